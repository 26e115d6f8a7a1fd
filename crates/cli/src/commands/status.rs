//! `ostler status`: the daemon, what runs, what waits, and what needs a person.

use std::process::ExitCode;

use ostler_core::id::{RunId, TaskId};
use ostler_proto::framed::{FailureClass, Task, TaskStatus};
use ostler_supervise::rundir;
use serde::Serialize;

use crate::args::JsonFlag;
use crate::context::{Context, block_on};
use crate::error::{Code, Failure};
use crate::{daemon_client, offline, output};

#[derive(Serialize)]
struct Status<'a> {
    daemon: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_pid: Option<u32>,
    socket: &'a str,
    running: Vec<&'a str>,
    queued: Vec<&'a str>,
    settled: usize,
    attention: Vec<Attention<'a>>,
}

/// Something that needs a person.
#[derive(Serialize)]
struct Attention<'a> {
    task_id: &'a str,
    what: &'static str,
    message: String,
}

pub(crate) fn perform(context: &Context, json: JsonFlag) -> Result<ExitCode, Failure> {
    block_on(async {
        let (daemon, daemon_pid, tasks) = match daemon_client::live_tasks(context).await? {
            Some((pid, tasks)) => ("running", pid, tasks),
            None => ("stopped", None, offline::live_tasks(context)?),
        };
        let socket = context.paths.socket();
        let with = |status| {
            tasks
                .iter()
                .filter(move |task| task.status == status)
                .map(|task| task.task_id.as_str())
                .collect()
        };
        let status = Status {
            daemon,
            daemon_pid,
            socket: socket.as_str(),
            running: with(TaskStatus::Running),
            queued: with(TaskStatus::Queued),
            settled: tasks.iter().filter(|task| task.status.is_settled()).count(),
            attention: tasks.iter().filter_map(|task| attention(context, task)).collect(),
        };
        show(&status, json)?;
        Ok(if daemon == "running" { Code::Success } else { Code::Unreachable }.into())
    })
}

/// A run with processes that could not be killed needs a person until they are gone, as far as anybody
/// can tell.
fn attention<'a>(context: &Context, task: &'a Task) -> Option<Attention<'a>> {
    if task.failure.as_ref()?.class != FailureClass::KillFailed {
        return None;
    }
    let id = RunId { task: TaskId::new(&task.task_id).ok()?, attempt: task.attempt };
    let run = rundir::read_run(&context.paths.run_dir(&id)).ok()?;
    let message = match &run.exit {
        Some(exit) if run.is_kill_failed() => still_there(&exit.remaining),
        Some(_) => return None,
        // Its shim was killed and wrote nothing down. Only a restart of the machine is sure to end all of it.
        None if run.shim.is_some_and(|shim| shim.identity().is_of_this_boot()) => {
            MAY_BE_LEFT.to_owned()
        }
        None => return None,
    };
    Some(Attention { task_id: &task.task_id, what: "kill_failed", message })
}

const MAY_BE_LEFT: &str = "processes of the run may be left";

fn still_there(left: &[rundir::KilledRecord]) -> String {
    if left.is_empty() {
        return MAY_BE_LEFT.to_owned();
    }
    let names: Vec<_> =
        left.iter().map(|left| format!("{} (pid {})", left.argv0, left.pid)).collect();
    format!("still there: {}", names.join(", "))
}

fn show(status: &Status<'_>, json: JsonFlag) -> Result<(), Failure> {
    if json.json {
        return output::json_pretty(status);
    }
    let pid = status.daemon_pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
    output::line(&format!("daemon     {}{pid} ({})", status.daemon, status.socket))?;
    for (name, tasks) in [("running", &status.running), ("queued", &status.queued)] {
        let list: Vec<_> = tasks.iter().map(|task| output::safe(task)).collect();
        output::line(&format!(
            "{name:10} {}{}{}",
            tasks.len(),
            if tasks.is_empty() { "" } else { ": " },
            output::fit(&list.join(", "), output::width().saturating_sub(16))
        ))?;
    }
    output::line(&format!("settled    {}", status.settled))?;
    for attention in &status.attention {
        output::line(&format!(
            "\x1b[33mattention{}  {}: {}",
            output::PLAIN,
            output::safe(attention.task_id),
            output::safe(&attention.message)
        ))?;
    }
    Ok(())
}
