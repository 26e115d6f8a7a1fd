//! `ostler task`: look at tasks, cancel them, run them again.

use std::collections::HashSet;
use std::process::ExitCode;

use ostler_core::id::{RunId, TaskId};
use ostler_host::client::ClientError;
use ostler_proto::framed::{Task, TaskResult};

use super::logs::{self, Form};
use crate::args::{JsonFlag, TaskCommand};
use crate::context::{Context, block_on};
use crate::daemon_client;
use crate::error::{Code, Failure};
use crate::offline;
use crate::output;

/// How often a queued task is looked at by `logs -f`.
const QUEUED_POLL: std::time::Duration = std::time::Duration::from_millis(250);

pub(crate) fn perform(context: &Context, command: TaskCommand) -> Result<ExitCode, Failure> {
    match command {
        TaskCommand::List { all, json } => block_on(list(context, all, json)),
        TaskCommand::Show { task, json } => block_on(show(context, &task, json)),
        TaskCommand::Logs { task, follow, attempt, raw, json } => {
            let form = match (raw, json) {
                (true, _) => Form::Raw,
                (false, true) => Form::Json,
                (false, false) => Form::Readable,
            };
            block_on(print_logs(context, &task, attempt, form, follow))
        }
        TaskCommand::Cancel { task, json } => block_on(async {
            let client = daemon_client::connect_for_commands(context).await?;
            let id = resolve(&live_tasks(context).await?, &task)?;
            changed(client.cancel(&id).await, json, "cancelled")
        }),
        TaskCommand::Retry { task, json } => block_on(async {
            let client = daemon_client::connect_for_commands(context).await?;
            let id = resolve(&live_tasks(context).await?, &task)?;
            changed(client.retry(&id).await, json, "queued again")
        }),
        TaskCommand::Limit { limit, json } => block_on(async {
            let client = daemon_client::connect_for_commands(context).await?;
            let result = client.set_limit(limit).await.map_err(daemon_client::failure)?;
            if json.json {
                output::json_pretty(&result)?;
            } else {
                output::line(&format!("up to {} tasks run at once", result.limit))?;
            }
            Ok(Code::Success.into())
        }),
    }
}

fn changed(
    result: Result<TaskResult, ClientError>,
    json: JsonFlag,
    word: &str,
) -> Result<ExitCode, Failure> {
    let result = result.map_err(daemon_client::failure)?;
    if json.json {
        output::json_pretty(&result)?;
    } else {
        output::line(&format!("{} {word}", result.task.task_id))?;
    }
    Ok(Code::Success.into())
}

/// The live tasks: from the daemon, or from its journal when none runs.
async fn live_tasks(context: &Context) -> Result<Vec<Task>, Failure> {
    match daemon_client::live_tasks(context).await? {
        Some((_, tasks)) => Ok(tasks),
        None => offline::live_tasks(context),
    }
}

async fn list(context: &Context, all: bool, json: JsonFlag) -> Result<ExitCode, Failure> {
    let live = live_tasks(context).await?;
    let mut tasks = if all { offline::archived_tasks(context)? } else { Vec::new() };
    // Who left the live set after it was read.
    let left: HashSet<String> = tasks.iter().map(|task| task.task_id.clone()).collect();
    tasks.extend(live.into_iter().filter(|task| !left.contains(&task.task_id)));
    if json.json {
        output::json_pretty(&tasks)?;
    } else if tasks.is_empty() {
        output::note("there are no tasks; start one with `ostler run \"…\"`");
    } else {
        table(&tasks)?;
    }
    Ok(Code::Success.into())
}

fn table(tasks: &[Task]) -> Result<(), Failure> {
    let width = output::width();
    let id_width =
        tasks.iter().map(|task| task.task_id.chars().count()).max().unwrap_or(4).clamp(4, 32);
    let now = ostler_host::clock::to_rfc3339(ostler_core::clock::Timestamp::from_micros(
        jiff::Timestamp::now().as_microsecond(),
    ));
    output::line(&format!(
        "\x1b[1m{:id_width$}  {:11}  {:>6}  {:12}  {}{}",
        "TASK",
        "STATUS",
        "AGO",
        "AGENT",
        "WHAT",
        output::PLAIN
    ))?;
    for task in tasks {
        let (word, colour) = output::status_word(task.status);
        let ago = output::seconds_between(&task.updated_at, &now)
            .map_or_else(String::new, output::duration);
        let agent = task
            .agent
            .as_deref()
            .or(task.receipt.as_ref().map(|receipt| receipt.agent.as_str()))
            .unwrap_or("");
        let summary = output::summary(task);
        let what = if summary.is_empty() {
            task.log_tail.last().map(|line| output::safe(line).into_owned()).unwrap_or_default()
        } else {
            summary
        };
        let what = output::fit(&what, width.saturating_sub(id_width + 39));
        let id = output::fit(&output::safe(&task.task_id), id_width);
        output::line(&format!(
            "{id:id_width$}  {colour}{word:11}{}  {ago:>6}  {:12}  {what}",
            output::PLAIN,
            output::fit(agent, 12)
        ))?;
    }
    Ok(())
}

/// The one task that an id, or the beginning of one, names.
fn resolve(tasks: &[Task], name: &str) -> Result<String, Failure> {
    if tasks.iter().any(|task| task.task_id == name) {
        return Ok(name.to_owned());
    }
    let found: Vec<_> = tasks.iter().filter(|task| task.task_id.starts_with(name)).collect();
    match found.as_slice() {
        [task] => Ok(task.task_id.clone()),
        [] => Err(Failure::new(Code::Refused, format!("no task is called `{name}`"))
            .hint("`ostler task list --all` shows every task")),
        several => Err(Failure::new(
            Code::Usage,
            format!("`{name}` is the beginning of {} task ids", several.len()),
        )
        .hint("write more of it")),
    }
}

async fn find(context: &Context, name: &str) -> Result<Task, Failure> {
    let live = live_tasks(context).await?;
    let (tasks, id) = match resolve(&live, name) {
        Ok(id) => (live, id),
        Err(error) => {
            let archived = offline::archived_tasks(context)?;
            let id = resolve(&archived, name).map_err(|_| error)?;
            (archived, id)
        }
    };
    tasks
        .into_iter()
        .find(|task| task.task_id == id)
        .ok_or_else(|| Failure::new(Code::Bug, "the task is gone"))
}

async fn show(context: &Context, name: &str, json: JsonFlag) -> Result<ExitCode, Failure> {
    let task = find(context, name).await?;
    if json.json {
        output::json_pretty(&task)?;
        return Ok(Code::Success.into());
    }
    let (word, colour) = output::status_word(task.status);
    let mut rows = vec![
        ("task", output::safe(&task.task_id).into_owned()),
        ("status", format!("{colour}{word}{}", output::PLAIN)),
        ("directory", output::safe(&task.working_directory).into_owned()),
        ("attempt", task.attempt.to_string()),
        ("changed", task.updated_at.clone()),
    ];
    let text =
        |value: &Option<String>| value.as_deref().map(|value| output::safe(value).into_owned());
    let optional = [
        ("agent", text(&task.agent)),
        ("session", text(&task.session_id)),
        ("model", text(&task.model)),
    ];
    rows.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    if let Some(failure) = &task.failure {
        rows.push(("failure", output::safe(&failure.message).into_owned()));
    }
    if let Some(receipt) = &task.receipt {
        receipt_rows(receipt, &mut rows);
    }
    for (name, value) in rows {
        output::line(&format!("{name:12} {value}"))?;
    }
    if !task.log_tail.is_empty() {
        output::line("")?;
    }
    const SHOWN_LINES: usize = 20;
    for line in task.log_tail.iter().skip(task.log_tail.len().saturating_sub(SHOWN_LINES)) {
        output::line(&output::safe(line))?;
    }
    Ok(Code::Success.into())
}

fn receipt_rows(receipt: &ostler_proto::framed::Receipt, rows: &mut Vec<(&'static str, String)>) {
    use ostler_proto::framed::{Exit, Proof, Verdict};
    let version = output::safe(receipt.agent_version.as_deref().unwrap_or(""));
    rows.push(("ran", format!("{} {version}", receipt.agent).trim_end().to_owned()));
    rows.push((
        "verdict",
        serde_json::to_value(receipt.verdict)
            .ok()
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default(),
    ));
    let proof = match receipt.proof {
        Some(Proof::TerminalEvent) => "its own closing statement",
        Some(Proof::ExitStatus) => "its exit status",
        None => "nothing",
    };
    if matches!(
        receipt.verdict,
        Verdict::Succeeded | Verdict::SucceededNoVisibleEffect | Verdict::SucceededWithWarnings
    ) {
        rows.push(("proven by", proof.to_owned()));
    }
    match receipt.exit {
        Some(Exit::Code(code)) => rows.push(("exit", format!("status {code}"))),
        Some(Exit::Signal(signal)) => rows.push(("exit", format!("signal {signal}"))),
        None => {}
    }
    if let Some(session) = &receipt.session_id {
        rows.push(("resume with", format!("--resume {}", output::safe(session))));
    }
    if let Some(git) = receipt.git.as_ref().filter(|git| git.changed_files > 0) {
        rows.push((
            "files",
            format!("{} changed, +{} −{}", git.changed_files, git.insertions, git.deletions),
        ));
    }
    if let Some(cost) = receipt.cost_micros {
        rows.push(("cost", output::dollars(cost.amount)));
    }
    for killed in &receipt.killed {
        rows.push((
            "killed",
            format!("{} (pid {}, after {})", output::safe(&killed.argv0), killed.pid, killed.after),
        ));
    }
    for kept in &receipt.kept {
        rows.push(("still runs", format!("{} (pid {})", output::safe(&kept.argv0), kept.pid)));
    }
    rows.push((
        "output",
        format!(
            "{} bytes{}",
            receipt.output_bytes,
            if receipt.truncated { ", not all kept" } else { "" }
        ),
    ));
}

async fn print_logs(
    context: &Context,
    name: &str,
    attempt: Option<u32>,
    form: Form,
    follow: bool,
) -> Result<ExitCode, Failure> {
    let run = run_of(context, name, attempt).await?;
    let dir = context.paths.run_dir(&run);
    if follow {
        wait_for_output(context, &run, &dir).await?;
        logs::follow(&dir, form, async || is_over(context, &run).await).await?;
    } else if is_there(&dir) {
        logs::print(&dir, form)?;
    } else {
        return Err(no_output(&run));
    }
    Ok(Code::Success.into())
}

/// Whether nothing more can come of a run, as its task says. A task that nobody knows any more is over.
async fn is_over(context: &Context, run: &RunId) -> Result<bool, Failure> {
    match find(context, run.task.as_str()).await {
        Ok(task) => Ok(task.status.is_settled() || task.attempt != run.attempt),
        Err(error) if error.code() == Code::Refused => Ok(true),
        Err(error) => Err(error),
    }
}

/// The run that is asked for: the task's current attempt, or, of a task that nobody knows any more, the last
/// that left a directory.
async fn run_of(context: &Context, name: &str, attempt: Option<u32>) -> Result<RunId, Failure> {
    match find(context, name).await {
        Ok(task) => {
            Ok(RunId { task: task_id(&task.task_id)?, attempt: attempt.unwrap_or(task.attempt) })
        }
        Err(error) => match offline::newest_attempt(context, name) {
            Some(last) => Ok(RunId { task: task_id(name)?, attempt: attempt.unwrap_or(last) }),
            None => Err(error),
        },
    }
}

/// A task that is queued prints later: waits until its run is there, or will never be.
async fn wait_for_output(
    context: &Context,
    run: &RunId,
    dir: &camino::Utf8Path,
) -> Result<(), Failure> {
    let mut told = false;
    while !is_there(dir) {
        if is_over(context, run).await? {
            return Err(no_output(run));
        }
        if !std::mem::replace(&mut told, true) {
            output::note("queued; waiting for its start");
        }
        tokio::time::sleep(QUEUED_POLL).await;
    }
    Ok(())
}

/// Whether a run's record is there and whole.
fn is_there(dir: &camino::Utf8Path) -> bool {
    let run = ostler_supervise::rundir::read_run(dir);
    !matches!(run, Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

fn no_output(run: &RunId) -> Failure {
    Failure::new(Code::Refused, format!("there is no output of {}", output::safe(&run.to_string())))
        .hint("it has not started, or its output is no longer kept")
}

fn task_id(text: &str) -> Result<TaskId, Failure> {
    TaskId::new(text).map_err(|error| {
        Failure::new(Code::Usage, format!("`{}` is no task id", output::safe(text))).because(error)
    })
}
