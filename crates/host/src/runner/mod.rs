//! What runs a task: the `TaskRunner` trait, and the shipped runner that starts agent CLIs.
//!
//! An application that embeds the daemon can supply its own runner and keeps scheduler,
//! persistence and wire. Deliberately absent: any way to resolve an approval.

mod attempt;
mod events;
mod evidence;
mod log;
mod process;
mod retention;
mod spare;
mod version;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ostler_core::id::RunId;
use ostler_core::task::{RunEnd, StopReason, TaskSpec};
use tokio::sync::watch;

pub use log::{LOG_LINE_BYTES_MAX, LOG_QUEUE_LINES_MAX, LogSink};
pub use process::{ProcessRunner, RunnerSettings};

/// What a task was given and what no file may ever hold. It lives in memory while a retry is
/// possible, and its `Debug` shows nothing.
#[derive(Clone, Default)]
pub struct TaskInput {
    /// The prompt, as submitted.
    pub prompt: String,
    /// Program and arguments, for the agent `command`.
    pub argv: Vec<String>,
    /// The submitting shell's environment; empty for clients that do not send one.
    pub env: BTreeMap<String, String>,
}

impl fmt::Debug for TaskInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskInput([task input redacted])")
    }
}

/// One run to perform.
#[derive(Debug, Clone)]
pub struct RunOrder {
    /// Which run.
    pub run: RunId,
    /// What was asked, without the input.
    pub spec: Arc<TaskSpec>,
    /// The input.
    pub input: Arc<TaskInput>,
}

/// Tells a running runner to stop. Once a reason is there, the runner ends everything it started
/// and then returns.
#[derive(Debug, Clone)]
pub struct StopSignal(watch::Receiver<Option<StopReason>>);

impl StopSignal {
    pub(crate) fn new() -> (watch::Sender<Option<StopReason>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// The reason, when a stop was asked for.
    pub fn reason(&self) -> Option<StopReason> {
        *self.0.borrow()
    }

    /// Waits until a stop is asked for (also when the daemon's engine is gone).
    pub async fn stopped(&mut self) -> StopReason {
        match self.0.wait_for(Option::is_some).await {
            Ok(reason) => (*reason).unwrap_or(StopReason::Shutdown),
            Err(_) => StopReason::Shutdown,
        }
    }
}

/// The line of a log that an event is; `None` for what only `events.jsonl` and the receipt show.
pub fn display_line(event: ostler_agents::AgentEvent) -> Option<String> {
    match event {
        ostler_agents::AgentEvent::Line(line) => Some(line),
        _ => None,
    }
}

/// The reader's word for a stream of the run directory.
pub fn agent_stream(stream: ostler_supervise::rundir::Stream) -> ostler_agents::Stream {
    match stream {
        ostler_supervise::rundir::Stream::Stdout => ostler_agents::Stream::Stdout,
        ostler_supervise::rundir::Stream::Stderr => ostler_agents::Stream::Stderr,
    }
}

/// Makes the folder of all run directories, for the owner only.
pub fn make_runs_dir(dir: &camino::Utf8Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// The future of one run.
pub type RunFuture = Pin<Box<dyn Future<Output = RunEnd> + Send>>;

/// Runs tasks. The engine calls `prepare` while it makes the intent to run durable, and `run` only
/// when it is; whatever must not happen twice belongs into `run`.
pub trait TaskRunner: Send + Sync + 'static {
    /// Whether this runner could perform such a task at all; an error is the refusal's text and
    /// nothing is changed. Called before a task is admitted.
    fn admit(&self, spec: &TaskSpec, input: &TaskInput) -> Result<(), String> {
        let _ = (spec, input);
        Ok(())
    }

    /// Gets ready, without a side effect that matters when the run never comes.
    fn prepare(&self, order: &RunOrder) {
        let _ = order;
    }

    /// A run that an earlier daemon did not see to its end: whatever is left of it is to be ended. Gives
    /// its last lines, where they are known. It is never run again.
    fn abandoned(&self, run: &RunId) -> Vec<String> {
        let _ = run;
        Vec::new()
    }

    /// Performs the run. When the future is ready, nothing of the run may be left, except where its
    /// end says `kill_failed`.
    fn run(&self, order: RunOrder, log: LogSink, stop: StopSignal) -> RunFuture;
}
