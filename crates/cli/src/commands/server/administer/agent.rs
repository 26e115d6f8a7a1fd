//! `ostler server agent`: agents by their names. What is secret of them comes from files and is never shown.

use std::process::ExitCode;

use camino::Utf8Path;
use ostler_server::{Admin, AdminFault};
use serde_json::{Map, Value, json};

use super::{Shown, body, call, nothing_to_change, text_of, with};
use crate::args::administer::{AgentArgs, AgentCommand, AgentFields, InArgs};
use crate::context::Context;
use crate::error::{Code, Failure};
use crate::table::Column;

/// The agent CLI of an agent that was made without a word about it.
const PROVIDER: &str = "claude_code";
const LIST: &[Column] = &[
    ("ID", "/id"),
    ("NAME", "/name"),
    ("PROVIDER", "/provider"),
    ("STATUS", "/status"),
    ("PAUSED", "/paused"),
    ("LIMIT", "/concurrency"),
    ("HELD", "/held"),
    ("QUEUED", "/queued"),
];

/// Among whom a name is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Among {
    Active,
    Archived,
    All,
}

pub(super) async fn perform(context: &Context, command: AgentCommand) -> Result<ExitCode, Failure> {
    let patch = |agent: AgentArgs, among, body: Value| async move {
        one(context, agent, among, "PATCH", body).await
    };
    match command {
        AgentCommand::Create { at, name, mut fields } => {
            fields.provider.get_or_insert_with(|| PROVIDER.to_owned());
            let body = agent_body(Some(name), fields)?;
            call(context, &at, ("POST", "/agents"), &[], body.into()).await
        }
        AgentCommand::Update { at, name, rename, fields } => {
            let body = agent_body(rename, fields)?;
            if body.is_empty() {
                return Err(nothing_to_change("--rename, --concurrency or another of its options"));
            }
            patch(AgentArgs { at, name }, Among::Active, body.into()).await
        }
        AgentCommand::Pause(agent) => patch(agent, Among::Active, json!({ "paused": true })).await,
        AgentCommand::Resume(agent) => {
            patch(agent, Among::Active, json!({ "paused": false })).await
        }
        AgentCommand::Archive(agent) => {
            patch(agent, Among::Active, json!({ "archived": true })).await
        }
        AgentCommand::Restore(agent) => {
            patch(agent, Among::Archived, json!({ "archived": false })).await
        }
        AgentCommand::Show(agent) => one(context, agent, Among::All, "GET", Value::Null).await,
        AgentCommand::List { at, name, archived } => list(context, &at, name, archived).await,
    }
}

async fn list(
    context: &Context,
    at: &InArgs,
    name: Option<String>,
    archived: bool,
) -> Result<ExitCode, Failure> {
    let query: &[_] = if archived { &[("archived", "1")] } else { &[] };
    with(context, &at.at, async |admin| {
        let mut agents = admin.list(&at.workspace, "/agents", query).await?;
        if let Some(name) = name {
            agents.retain(|agent| is_called(agent, &name));
        }
        Ok(Shown::List(agents, LIST))
    })
    .await
}

fn is_called(agent: &Value, name: &str) -> bool {
    agent.get("name").and_then(Value::as_str) == Some(name)
}

/// One call about an agent.
async fn one(
    context: &Context,
    AgentArgs { at, name }: AgentArgs,
    among: Among,
    method: &str,
    body: Value,
) -> Result<ExitCode, Failure> {
    with(context, &at.at, async |admin| {
        let id = find(&admin, &at.workspace, &name, among).await?.to_string();
        let params = [("agent", id.as_str())];
        Ok(Shown::One(admin.one(&at.workspace, method, "/agents/{agent}", &params, body).await?))
    })
    .await
}

/// Several that were archived may have had one name: the newest is meant.
async fn find(admin: &Admin, workspace: &str, name: &str, among: Among) -> Result<i64, AdminFault> {
    let active = match among {
        Among::Archived => None,
        Among::Active | Among::All => Some(admin.agent_find(workspace, name).await),
    };
    match active {
        Some(Err(fault)) if fault.status == 404 && among == Among::All => {}
        Some(found) => return found,
        None => {}
    }
    let archived = admin.list(workspace, "/agents", &[("archived", "1")]).await?;
    let ids = archived.iter().filter(|agent| is_called(agent, name));
    ids.filter_map(|agent| agent.get("id")?.as_i64()).max().ok_or_else(|| {
        let among = if among == Among::All { "" } else { "archived " };
        AdminFault { status: 404, message: format!("There is no {among}agent {name:?} here.") }
    })
}

fn agent_body(name: Option<String>, fields: AgentFields) -> Result<Map<String, Value>, Failure> {
    let instructions = fields.instructions_file.as_deref().map(text_of).transpose()?;
    let env = fields.env_file.as_deref().map(env_of).transpose()?;
    let mcp = fields.mcp_config.as_deref().map(mcp_of).transpose()?;
    Ok(body([
        ("name", name.map(Value::from)),
        ("provider", fields.provider.as_deref().map(provider).map(Value::from)),
        ("concurrency", fields.concurrency.map(Value::from)),
        ("model", fields.model.map(Value::from)),
        ("description", fields.description.map(Value::from)),
        ("instructions", instructions.map(Value::from)),
        ("custom_env", env.map(Value::from)),
        ("mcp_config", mcp),
    ]))
}

/// The agent CLI's id, where what is written is another name of it. Machines may offer others than we know.
fn provider(name: &str) -> &str {
    ostler_agents::find(name).map_or(name, |agent| agent.id())
}

/// Lines `NAME=VALUE`, the value as it is; `NAME` takes a variable out. What stands in the file is repeated
/// nowhere.
fn env_of(file: &Utf8Path) -> Result<Map<String, Value>, Failure> {
    let text = text_of(file)?;
    let lines = text.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| match line.split_once('=') {
        // As in files that shells read too.
        Some((name, value)) => {
            let name = name.strip_prefix("export ").unwrap_or(name);
            (name.trim().to_owned(), Value::from(value))
        }
        None => (line.trim_end().to_owned(), Value::Null),
    };
    Ok(lines.map(read).collect())
}

fn mcp_of(file: &Utf8Path) -> Result<Value, Failure> {
    let text = text_of(file)?;
    let read = serde_json::from_str::<Map<String, Value>>(&text);
    read.map(Value::from).map_err(|error| {
        // Its words may repeat what stands there: only the place is told.
        let place = format!("line {}, column {}", error.line(), error.column());
        Failure::new(Code::Usage, format!("{file} is no JSON object: {place}"))
            .hint("write {\"name\": {\"command\": …}}")
    })
}
