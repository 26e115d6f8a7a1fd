//! What can be read with the daemon stopped: its journal, its archive, the run directories.

use ostler_core::id::{RunId, TaskId};
use ostler_host::history;
use ostler_proto::framed::{Task, TaskStatus};

use crate::context::Context;
use crate::error::{Code, Failure};

/// The live tasks, folded from the journal. Without a daemon nothing runs: what was not finished is shown as
/// what the next start makes of it.
pub(crate) fn live_tasks(context: &Context) -> Result<Vec<Task>, Failure> {
    let tasks = history::live_tasks(&context.paths.journal_dir());
    let mut tasks = tasks.map_err(|error| unreadable("journal", error))?;
    for task in tasks.iter_mut().filter(|task| !task.status.is_settled()) {
        task.status = TaskStatus::Interrupted;
    }
    Ok(tasks)
}

/// The tasks that left the live set, oldest first. To be read after the live ones: a task that goes from one to
/// the other meanwhile is then in both, and not in neither.
pub(crate) fn archived_tasks(context: &Context) -> Result<Vec<Task>, Failure> {
    history::archived_tasks(&context.paths.journal_dir(), &context.paths.archive_dir())
        .map_err(|error| unreadable("archive", error))
}

fn unreadable(what: &str, error: history::HistoryError) -> Failure {
    Failure::new(Code::Failed, format!("the {what} cannot be read"))
        .because(error)
        .hint("`ostler journal verify` says more")
}

/// The newest attempt of exactly that task that left a run directory.
pub(crate) fn newest_attempt(context: &Context, name: &str) -> Option<u32> {
    /// Attempts looked at; each is a retry by hand.
    const ATTEMPTS_MAX: u32 = 10_000;
    let task = TaskId::new(name).ok()?;
    let exists = |attempt: u32| {
        context.paths.run_dir(&RunId { task: task.clone(), attempt }).join("run.json").exists()
    };
    (1..=ATTEMPTS_MAX).take_while(|attempt| exists(*attempt)).last()
}
