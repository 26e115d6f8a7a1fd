//! `ostler server task`: tasks of a workspace, and what they printed.

use std::process::ExitCode;
use std::time::Duration;

use ostler_server::Admin;
use serde_json::Value;

use super::{Missing, Shown, body, call, failure, with};
use crate::args::administer::{FleetTaskCommand, InArgs, TaskArgs};
use crate::context::Context;
use crate::error::{Code, Failure};
use crate::output;
use crate::table::Column;

/// Pause between two looks at a task that is followed.
const FOLLOW_PAUSE: Duration = Duration::from_secs(1);
/// Characters that are shown of what a tool was given.
const PAYLOAD_CHARS_MAX: usize = 200;
/// States that nothing comes after.
const ENDS: [&str; 3] = ["completed", "failed", "canceled"];
const LIST: &[Column] = &[
    ("TASK", "/id"),
    ("STATUS", "/status"),
    ("ISSUE", "/issue/id"),
    ("AGENT", "/agent/name"),
    ("TRY", "/attempts"),
    ("TITLE", "/issue/title"),
];

pub(super) async fn perform(
    context: &Context,
    command: FleetTaskCommand,
) -> Result<ExitCode, Failure> {
    let (order, task, sent) = match command {
        FleetTaskCommand::List { at, state, agent } => {
            return list(context, &at, state.as_deref(), agent.as_deref()).await;
        }
        FleetTaskCommand::Logs { task, follow } => return logs(context, &task, follow).await,
        FleetTaskCommand::Show(task) => (("GET", "/tasks/{task}"), task, Value::Null),
        FleetTaskCommand::Cancel(task) => (("POST", "/tasks/{task}/cancel"), task, Value::Null),
        FleetTaskCommand::Retry(task) => (("POST", "/tasks/{task}/retry"), task, Value::Null),
        FleetTaskCommand::Approve { task, note } => decision(task, "approved", note),
        FleetTaskCommand::Deny { task, note } => decision(task, "denied", note),
    };
    call(context, &task.at, order, &[("task", task.task.as_str())], sent).await
}

async fn list(
    context: &Context,
    at: &InArgs,
    state: Option<&str>,
    agent: Option<&str>,
) -> Result<ExitCode, Failure> {
    with(context, &at.at, async |admin| {
        let mut query = Vec::new();
        let id = match agent {
            Some(name) => Some(admin.agent_find(&at.workspace, name).await?.to_string()),
            None => None,
        };
        query.extend(state.map(|state| ("state", state)));
        query.extend(id.as_deref().map(|id| ("agent_id", id)));
        Ok(Shown::List(admin.list(&at.workspace, "/tasks", &query).await?, LIST))
    })
    .await
}

fn decision(
    task: TaskArgs,
    word: &str,
    note: Option<String>,
) -> ((&'static str, &'static str), TaskArgs, Value) {
    let sent = body([("decision", Some(word.into())), ("note", note.map(Value::from))]);
    (("POST", "/tasks/{task}/decision"), task, sent.into())
}

async fn logs(context: &Context, task: &TaskArgs, follow: bool) -> Result<ExitCode, Failure> {
    let at = &task.at.at;
    let admin = super::super::admin(context, &at.database, Missing::Refuse).await?;
    let done = print_lines(&admin, task, follow).await;
    admin.close().await;
    done.map(|()| Code::Success.into())
}

async fn print_lines(admin: &Admin, task: &TaskArgs, follow: bool) -> Result<(), Failure> {
    let (workspace, id, is_json) = (&task.at.workspace, &task.task, task.at.at.json.json);
    let mut after = 0;
    loop {
        // Asked before the lines are read: what came before the end is among them.
        let params = [("task", id.as_str())];
        let shown = admin.one(workspace, "GET", "/tasks/{task}", &params, Value::Null).await;
        let shown = shown.map_err(failure)?;
        let is_over =
            shown.get("status").and_then(Value::as_str).is_some_and(|it| ENDS.contains(&it));
        loop {
            let lines = admin.messages(workspace, id, after).await.map_err(failure)?;
            let Some(last) = lines.last() else { break };
            after = last.get("seq").and_then(Value::as_i64).unwrap_or(i64::MAX);
            for line in &lines {
                if is_json { output::json_line(line)? } else { print_line(line)? }
            }
        }
        if !follow || is_over {
            let lines = shown.get("lines").and_then(Value::as_i64).unwrap_or(0);
            if after == 0 && lines > 0 {
                output::note(&format!("its output of {lines} lines was removed by retention"));
            }
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_PAUSE).await;
    }
}

/// As `ostler task logs` shows what runs here.
fn print_line(line: &Value) -> Result<(), Failure> {
    let text = |name: &str| line.get(name).and_then(Value::as_str).unwrap_or_default();
    let (kind, content) = (text("type"), text("content"));
    let (first, rest) = match kind {
        "assistant" => (String::new(), ""),
        "tool_use" => (format!("⏺ {}", text("tool")), ""),
        "tool_result" => ("  ⎿ ".to_owned(), "    "),
        kind => (format!("{kind}: "), "  "),
    };
    if kind == "tool_use" {
        let given = line.get("payload").filter(|it| !it.is_null()).map(Value::to_string);
        let given = given.unwrap_or_else(|| content.to_owned());
        let given = output::fit(&given, PAYLOAD_CHARS_MAX);
        return output::line(&output::safe(format!("{first} {given}").trim_end()));
    }
    let mut lines = content.lines();
    let head = lines.next().unwrap_or_default();
    output::line(&output::safe(&format!("{first}{head}")))?;
    lines.try_for_each(|line| output::line(&output::safe(&format!("{rest}{line}"))))
}
