//! What goes into the task machine and what comes out of it.
//!
//! Owns: inputs, effects, replies and the refusals with their exact texts on the framed wire.
//! Deliberately absent: the rules that connect them (`step`).

use super::{CANCELS_PER_RUN_MAX, LIMIT_MAX, Task, TaskSpec};
use crate::id::{RunId, TaskId};
use crate::outcome::Outcome;

/// The host's name for a request, by which its one answer finds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "an input lives for one step and is never stored")]
pub enum Input {
    /// A client submits a task.
    Submit {
        /// Who asks.
        request: RequestId,
        /// What to do.
        spec: TaskSpec,
        /// Whether the archive remembers a task of this id.
        known_elsewhere: bool,
    },
    /// A client wants a task ended.
    Cancel {
        /// Who asks.
        request: RequestId,
        /// Which task.
        task: TaskId,
    },
    /// A client wants a settled task run again with its original input.
    Retry {
        /// Who asks.
        request: RequestId,
        /// Which task.
        task: TaskId,
    },
    /// A client changes how many tasks run at the same time.
    SetLimit {
        /// Who asks.
        request: RequestId,
        /// 1 to [`LIMIT_MAX`]; anything else is refused.
        limit: u8,
    },
    /// A run has written lines.
    Output {
        /// Which run.
        run: RunId,
        /// How many lines it has written in all.
        log_lines: u64,
    },
    /// A run is over and nothing of it is left (or what is left is in the failure).
    Ended {
        /// Which run.
        run: RunId,
        /// How.
        end: RunEnd,
    },
    /// [`TaskState::next_deadline`](super::TaskState::next_deadline) has come.
    Tick,
    /// The first input after a restore: what was unfinished is interrupted. Any other first input has
    /// the same effect before its own; a second one has none.
    Recover,
    /// The daemon ends: nothing is admitted any more, what waits is interrupted, what runs is stopped.
    Shutdown,
}

/// How a run ended, as the host saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndStatus {
    /// It succeeded, whatever was asked of it meanwhile.
    Completed,
    /// It failed by itself.
    Failed,
    /// It ended because it was told to stop, and had not completed before.
    Stopped,
}

/// The end of a run with its evidence. The machine decides what the task becomes; failure and verdict
/// of the outcome are made to agree with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// How.
    pub status: EndStatus,
    /// What is known of it.
    pub outcome: Outcome,
}

/// Why a run is told to stop. A run is told once; the first reason decides what the task becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// A client asked.
    Cancel,
    /// It passed its wall-clock limit.
    Deadline,
    /// The daemon ends.
    Shutdown,
}

/// What the machine wants done, in this order. `Archived`, `Changed` and `LimitChanged` of one step
/// are made durable together before anything else of it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The task has left the live set; comes before the change that pushed it out.
    Archived {
        /// As it was.
        task: Task,
    },
    /// Journal and publish this task.
    Changed {
        /// As it is now.
        task: Task,
    },
    /// Journal and publish the limit.
    LimitChanged {
        /// The limit.
        limit: u8,
    },
    /// Start this run.
    Start {
        /// Which run.
        run: RunId,
    },
    /// End this run; its `Ended` is waited for.
    Stop {
        /// Which run.
        run: RunId,
        /// Why.
        reason: StopReason,
    },
    /// Forget prompt, argv and environment of this task. Comes once for each submitted task, when it
    /// completes or is archived.
    DropInput {
        /// Which task.
        task: TaskId,
    },
    /// The one answer to a request.
    Answer {
        /// Whose.
        request: RequestId,
        /// What to say.
        result: Result<Reply, Refusal>,
    },
}

/// A request that was granted, with the task as it was at that moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To a submission.
    Submitted(Task),
    /// To a cancel.
    Cancelled(Task),
    /// To a retry.
    Queued(Task),
    /// To a change of the limit.
    Limit(u8),
}

/// A request that was refused and changed nothing. `Display` is the text on the framed wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The id is taken, live or archived.
    #[error("task id already exists")]
    AlreadyExists,
    /// No live task has this id.
    #[error("task id is unknown")]
    UnknownTask,
    /// Cancel of a settled task, or of one that settled otherwise before the cancel took hold.
    #[error("task is not active")]
    NotActive,
    /// Retry of a queued or running task.
    #[error("active tasks cannot be retried")]
    ActiveRetry,
    /// Retry of a completed task.
    #[error("completed tasks cannot be retried; task input has been discarded")]
    CompletedRetry,
    /// Retry of a task of an earlier daemon.
    #[error("task input is unavailable after daemon restart; submit a new task id")]
    InputUnavailable,
    /// An approval for a running task; nobody can resolve it.
    #[error("interactive approval resolution is unsupported by the daemon task adapter")]
    ApprovalUnsupported,
    /// An approval for anything else.
    #[error("task is not running")]
    NotRunning,
    /// The host's command queue takes no more.
    #[error("task scheduler command queue is full")]
    CommandQueueFull,
    /// A limit outside of its range.
    #[error("limit must be between 1 and {LIMIT_MAX}")]
    LimitOutOfRange,
    /// As many tasks as may live are unfinished.
    #[error("live task set is full: {live_tasks_max} tasks are queued or running")]
    LiveSetFull {
        /// The bound.
        live_tasks_max: usize,
    },
    /// The daemon ends and admits nothing.
    #[error("daemon is shutting down")]
    ShuttingDown,
    /// Cancel of a run of which something would not die; the task is failed.
    #[error("task failed: some of its processes could not be ended")]
    KillFailed,
    /// More cancels wait for this run than may.
    #[error("task is being cancelled; {CANCELS_PER_RUN_MAX} requests already wait for its end")]
    TooManyCancels,
    /// The attempt number cannot grow any more.
    #[error("task has no attempts left; submit a new task id")]
    AttemptsExhausted,
}
