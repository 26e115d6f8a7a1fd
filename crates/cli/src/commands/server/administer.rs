//! The server's administration: each command is one or two calls of `/api/v1` on the open database.

mod skill;

use std::process::ExitCode;

use camino::Utf8Path;
use ostler_server::{Admin, AdminFault};
use serde_json::{Map, Value, json};

use super::Missing;
use crate::args::JsonFlag;
use crate::args::administer::{
    AbilityArg, AgentArgs, AgentCommand, AgentFields, AtArgs, FleetTaskCommand, InArgs, KindArg,
    RoleArg, RuntimeCommand, TaskArgs, TokenCommand, UserCommand, WorkspaceCommand,
};
use crate::args::server::ServerCommand;
use crate::context::Context;
use crate::error::{Code, Failure};
use crate::output;
use crate::table::{self, Column};

/// The longest file of a context or of instructions.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What is printed.
enum Shown {
    /// Records, each a row.
    List(Vec<Value>, &'static [Column]),
    /// One record.
    One(Value),
    /// Nothing but what was done.
    Done(String),
}

pub(super) async fn perform(
    context: &Context,
    command: ServerCommand,
) -> Result<ExitCode, Failure> {
    match command {
        ServerCommand::Workspace(command) => workspace(context, command).await,
        ServerCommand::User(command) => user(context, command).await,
        ServerCommand::Agent(command) => agent(context, command).await,
        ServerCommand::Skill(command) => skill::perform(context, command).await,
        ServerCommand::Token(command) => token(context, command).await,
        ServerCommand::Runtime(command) => runtime(context, command).await,
        ServerCommand::Task(command) => task(context, command).await,
        _ => Err(Failure::new(Code::Bug, "this is no command of the administration")),
    }
}

/// Opens the database, which is there, does it, closes the database, prints.
async fn with<T: Future<Output = Result<Shown, AdminFault>>>(
    context: &Context,
    at: &AtArgs,
    work: impl FnOnce(Admin) -> T,
) -> Result<ExitCode, Failure> {
    made_or(Missing::Refuse, context, at, work).await
}

async fn made_or<T: Future<Output = Result<Shown, AdminFault>>>(
    missing: Missing,
    context: &Context,
    at: &AtArgs,
    work: impl FnOnce(Admin) -> T,
) -> Result<ExitCode, Failure> {
    let admin = super::admin(context, &at.database, missing).await?;
    let done = work(admin.clone()).await;
    admin.close().await;
    print(done.map_err(failure)?, at.json)?;
    Ok(Code::Success.into())
}

fn failure(fault: AdminFault) -> Failure {
    let code = match fault.status {
        403 | 404 | 409 => Code::Refused,
        400 | 422 => Code::Usage,
        _ => Code::Failed,
    };
    let failure = Failure::new(code, fault.message);
    if fault.status == 404 { failure.hint("`list` shows what there is") } else { failure }
}

fn print(shown: Shown, json: JsonFlag) -> Result<(), Failure> {
    match shown {
        Shown::List(rows, _) if json.json => output::json_pretty(&rows),
        Shown::List(rows, columns) => table::rows(&rows, columns),
        Shown::One(record) if json.json => output::json_pretty(&record),
        Shown::One(record) => table::record(&record),
        Shown::Done(_) if json.json => output::json_pretty(&json!({})),
        Shown::Done(text) => output::line(&text),
    }
}

/// A file's text, or standard input's.
fn text_of(file: &Utf8Path) -> Result<String, Failure> {
    let cannot =
        |error| Failure::new(Code::Usage, format!("{file} cannot be read as text")).because(error);
    let read: Box<dyn std::io::Read> = if file == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(file).map_err(cannot)?)
    };
    let mut text = String::new();
    let mut read = std::io::Read::take(read, FILE_BYTES_MAX + 1);
    std::io::Read::read_to_string(&mut read, &mut text).map_err(cannot)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Failure::new(Code::Usage, format!("{file} has more than 4 MiB")));
    }
    Ok(text)
}

/// An object of what was said.
fn body<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    let said = fields.into_iter();
    said.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

async fn workspace(context: &Context, command: WorkspaceCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] = &[("WORKSPACE", "/slug"), ("ISSUES", "/prefix"), ("NAME", "/name")];
    match command {
        WorkspaceCommand::Create { at, email, name } => {
            let slug = at.workspace;
            made_or(Missing::Make, context, &at.at, async |admin| {
                let made = admin.workspace_create(&slug, name.as_deref(), &email).await?;
                Ok(Shown::One(made))
            })
            .await
        }
        WorkspaceCommand::List(at) => {
            with(context, &at, async |admin| Ok(Shown::List(admin.workspaces().await?, LIST))).await
        }
        WorkspaceCommand::Show(at) => {
            call(context, &at, ("GET", "/workspace"), &[], Value::Null).await
        }
        WorkspaceCommand::Update { at, name, context_file } => {
            let text = context_file.as_deref().map(text_of).transpose()?;
            let body = body([("name", name.map(Value::from)), ("context", text.map(Value::from))]);
            call(context, &at, ("PATCH", "/workspace"), &[], body.into()).await
        }
    }
}

/// One call that shows a record.
async fn call(
    context: &Context,
    at: &InArgs,
    (method, path): (&str, &str),
    params: &[(&str, &str)],
    body: Value,
) -> Result<ExitCode, Failure> {
    with(context, &at.at, async |admin| {
        Ok(Shown::One(admin.one(&at.workspace, method, path, params, body).await?))
    })
    .await
}

/// One call that shows a list.
async fn list(
    context: &Context,
    at: &InArgs,
    path: &str,
    query: &[(&str, &str)],
    columns: &'static [Column],
) -> Result<ExitCode, Failure> {
    with(context, &at.at, async |admin| {
        Ok(Shown::List(admin.list(&at.workspace, path, query).await?, columns))
    })
    .await
}

fn role(role: RoleArg) -> &'static str {
    match role {
        RoleArg::Member => "member",
        RoleArg::Admin => "admin",
    }
}

async fn user(context: &Context, command: UserCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] =
        &[("ID", "/id"), ("ROLE", "/role"), ("E-MAIL", "/email"), ("NAME", "/name")];
    match command {
        UserCommand::Create { at, email, name, role: wanted } => {
            let body = body([
                ("email", Some(email.into())),
                ("name", name.map(Value::from)),
                ("role", Some(role(wanted).into())),
            ]);
            call(context, &at, ("POST", "/members"), &[], body.into()).await
        }
        UserCommand::List(at) => list(context, &at, "/members", &[], LIST).await,
        UserCommand::Update { at, email, role: wanted } => {
            with(context, &at.at, async |admin| {
                let id = admin.user_find(&at.workspace, &email).await?.to_string();
                let (path, body) = ("/members/{user}", json!({ "role": role(wanted) }));
                let params = [("user", id.as_str())];
                Ok(Shown::One(admin.one(&at.workspace, "PATCH", path, &params, body).await?))
            })
            .await
        }
        UserCommand::Remove { at, email } => {
            with(context, &at.at, async |admin| {
                let id = admin.user_find(&at.workspace, &email).await?.to_string();
                let (path, params) = ("/members/{user}", [("user", id.as_str())]);
                admin.one(&at.workspace, "DELETE", path, &params, Value::Null).await?;
                Ok(Shown::Done(format!("{email} removed from {}", at.workspace)))
            })
            .await
        }
    }
}

fn agent_body(name: Option<String>, fields: AgentFields) -> Result<Map<String, Value>, Failure> {
    let instructions = fields.instructions_file.as_deref().map(text_of).transpose()?;
    Ok(body([
        ("name", name.map(Value::from)),
        ("provider", fields.provider.map(Value::from)),
        ("concurrency", fields.concurrency.map(Value::from)),
        ("model", fields.model.map(Value::from)),
        ("description", fields.description.map(Value::from)),
        ("instructions", instructions.map(Value::from)),
    ]))
}

async fn agent(context: &Context, command: AgentCommand) -> Result<ExitCode, Failure> {
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
    match command {
        AgentCommand::Create { at, name, fields } => {
            if fields.provider.is_none() {
                return Err(Failure::new(Code::Usage, "an agent needs a provider")
                    .hint("add --provider claude_code, or another agent CLI"));
            }
            let body = agent_body(Some(name), fields)?;
            call(context, &at, ("POST", "/agents"), &[], body.into()).await
        }
        AgentCommand::Update { at, name, rename, fields } => {
            let body = agent_body(rename, fields)?;
            change_agent(context, AgentArgs { at, name }, "PATCH", body.into()).await
        }
        AgentCommand::Pause(agent) => {
            change_agent(context, agent, "PATCH", json!({ "paused": true })).await
        }
        AgentCommand::Resume(agent) => {
            change_agent(context, agent, "PATCH", json!({ "paused": false })).await
        }
        AgentCommand::Show(agent) => change_agent(context, agent, "GET", Value::Null).await,
        AgentCommand::Archive(agent) => {
            change_agent(context, agent, "PATCH", json!({ "archived": true })).await
        }
        AgentCommand::List { at, archived } => {
            let query: &[_] = if archived { &[("archived", "1")] } else { &[] };
            list(context, &at, "/agents", query, LIST).await
        }
    }
}

async fn change_agent(
    context: &Context,
    AgentArgs { at, name }: AgentArgs,
    method: &str,
    body: Value,
) -> Result<ExitCode, Failure> {
    with(context, &at.at, async |admin| {
        let id = admin.agent_find(&at.workspace, &name).await?.to_string();
        let params = [("agent", id.as_str())];
        Ok(Shown::One(admin.one(&at.workspace, method, "/agents/{agent}", &params, body).await?))
    })
    .await
}

async fn token(context: &Context, command: TokenCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] = &[
        ("ID", "/id"),
        ("BEGINS", "/prefix"),
        ("KIND", "/kind"),
        ("USER", "/user/name"),
        ("EXPIRES", "/expires_at"),
        ("REVOKED", "/revoked_at"),
        ("NAME", "/name"),
    ];
    match command {
        TokenCommand::Create { at, user, name, days, kind, abilities } => {
            let abilities: Vec<_> = abilities
                .into_iter()
                .map(|ability| match ability {
                    AbilityArg::Read => "read",
                    AbilityArg::Write => "write",
                    AbilityArg::Admin => "admin",
                })
                .collect();
            let kind = if kind == KindArg::Daemon { "daemon" } else { "api" };
            with(context, &at.at, async |admin| {
                let user_id = admin.user_find(&at.workspace, &user).await?;
                let abilities = (!abilities.is_empty()).then(|| json!(abilities));
                let body = body([
                    ("name", Some(name.into())),
                    ("kind", Some(kind.into())),
                    ("days", Some(days.into())),
                    ("user_id", Some(user_id.into())),
                    ("abilities", abilities),
                ]);
                Ok(Shown::One(admin.one(&at.workspace, "POST", "/tokens", &[], body.into()).await?))
            })
            .await
        }
        TokenCommand::List(at) => list(context, &at, "/tokens", &[], LIST).await,
        TokenCommand::Revoke { at, id } => {
            let id = id.to_string();
            with(context, &at.at, async |admin| {
                let params = [("token", id.as_str())];
                let path = "/tokens/{token}";
                admin.one(&at.workspace, "DELETE", path, &params, Value::Null).await?;
                Ok(Shown::Done(format!("token {id} revoked")))
            })
            .await
        }
    }
}

async fn runtime(context: &Context, command: RuntimeCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] = &[
        ("ID", "/id"),
        ("PROVIDER", "/provider"),
        ("STATUS", "/status"),
        ("SEEN", "/last_seen"),
        ("VERSION", "/version"),
        ("MACHINE", "/name"),
    ];
    match command {
        RuntimeCommand::List(at) => list(context, &at, "/runtimes", &[], LIST).await,
        RuntimeCommand::Show { at, id } => {
            let params = [("runtime", id.as_str())];
            call(context, &at, ("GET", "/runtimes/{runtime}"), &params, Value::Null).await
        }
    }
}

async fn task(context: &Context, command: FleetTaskCommand) -> Result<ExitCode, Failure> {
    const LIST: &[Column] = &[
        ("TASK", "/id"),
        ("STATUS", "/status"),
        ("ISSUE", "/issue/id"),
        ("AGENT", "/agent/name"),
        ("TRY", "/attempts"),
        ("TITLE", "/issue/title"),
    ];
    let (order, task, sent) = match command {
        FleetTaskCommand::List { at, state, agent } => {
            return with(context, &at.at, async |admin| {
                let mut query = Vec::new();
                let id = match &agent {
                    Some(name) => Some(admin.agent_find(&at.workspace, name).await?.to_string()),
                    None => None,
                };
                query.extend(state.as_deref().map(|state| ("state", state)));
                query.extend(id.as_deref().map(|id| ("agent_id", id)));
                Ok(Shown::List(admin.list(&at.workspace, "/tasks", &query).await?, LIST))
            })
            .await;
        }
        FleetTaskCommand::Show(task) => (("GET", "/tasks/{task}"), task, Value::Null),
        FleetTaskCommand::Cancel(task) => (("POST", "/tasks/{task}/cancel"), task, Value::Null),
        FleetTaskCommand::Retry(task) => (("POST", "/tasks/{task}/retry"), task, Value::Null),
        FleetTaskCommand::Approve { task, note } => decision(task, "approved", note),
        FleetTaskCommand::Deny { task, note } => decision(task, "denied", note),
    };
    call(context, &task.at, order, &[("task", task.task.as_str())], sent).await
}

fn decision(
    task: TaskArgs,
    word: &str,
    note: Option<String>,
) -> ((&'static str, &'static str), TaskArgs, Value) {
    let sent = body([("decision", Some(word.into())), ("note", note.map(Value::from))]);
    (("POST", "/tasks/{task}/decision"), task, sent.into())
}
