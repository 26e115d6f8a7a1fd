//! The task machine: admission, the queue with sessions, the limit, cancel, retry, deadlines,
//! interruption and shutdown of tasks, as one function [`step`] of a [`TaskState`], an [`Input`] and
//! "now".
//!
//! Owns: the words of a task, the rules of runtime.md ("Commands", "Scheduling" and what "Running a
//! task" and "Journal" say of states), and the order of what a step wants done. Deliberately absent:
//! prompts, argv and environment (the host holds them and forgets them on [`Effect::DropInput`]),
//! log lines (only their position), the archive (the machine only says what leaves), and the command
//! queue. Cost budgets are carried, not watched: the run that can count ends itself as failed.
//!
//! A step costs O(log n) of the live tasks: every question it asks has an index in [`TaskState`],
//! the only scans are over the runs (at most [`LIMIT_MAX`]) and, once in a daemon's life each, over
//! all tasks in recovery and shutdown.

mod end;
mod line;
mod message;
mod state;
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::id::{SessionId, TaskId};
use crate::outcome::Outcome;

pub use message::{Effect, EndStatus, Input, Refusal, Reply, RequestId, RunEnd, StopReason};
pub use state::{TaskState, Waiting};
pub use step::step;

/// The live set unless configured (runtime.md, "Journal"). When it is full the oldest settled task is
/// archived; when nothing in it is settled a submission is refused.
pub const LIVE_TASKS_MAX: usize = 1_000;

/// Tasks that run at the same time unless told otherwise.
pub const LIMIT_DEFAULT: u8 = 4;

/// The highest limit of running tasks; a higher one is refused.
pub const LIMIT_MAX: u8 = 32;

/// The wall-clock limit of a run unless told otherwise, in seconds (six hours). A run that passes it
/// is stopped and its task is failed.
pub const TIMEOUT_DEFAULT_SECONDS: u64 = 6 * 60 * 60;

/// Cancel requests that wait for the end of one run; the next one is refused.
pub const CANCELS_PER_RUN_MAX: usize = 64;

/// The shortest time between two changes of a task that tell of nothing but output. Lines that come
/// sooner are told together when it is over, or with the next change of state.
pub const OUTPUT_INTERVAL_MS: u64 = 1_000;

/// What has become of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    /// Waits for its turn.
    Queued,
    /// A run of it exists, or is about to.
    Running,
    /// Its last run was proven to succeed.
    Completed,
    /// Its last run failed.
    Failed,
    /// Ended on request; nothing of it is left.
    Cancelled,
    /// Ended with the daemon.
    Interrupted,
}

impl TaskStatus {
    /// Every status, for tables and tests.
    pub const ALL: [Self; 6] = [
        Self::Queued,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// Whether nothing but a retry changes it any more.
    pub const fn is_settled(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }

    /// The name on the framed wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "TaskQueued",
            Self::Running => "TaskRunning",
            Self::Completed => "TaskCompleted",
            Self::Failed => "TaskFailed",
            Self::Cancelled => "TaskCancelled",
            Self::Interrupted => "TaskInterrupted",
        }
    }

    /// The status with that wire name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

/// What an agent may do without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permissions {
    /// The agent's own sandbox or edit-only mode; what needs more is denied.
    Safe,
    /// A person decides.
    Ask,
    /// Everything.
    Full,
}

impl Permissions {
    /// Every mode, for tables and tests.
    pub const ALL: [Self; 3] = [Self::Safe, Self::Ask, Self::Full];

    /// The name on the wires.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Ask => "ask",
            Self::Full => "full",
        }
    }

    /// The mode with that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name)
    }
}

/// What was submitted, without prompt, argv and environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// The client's name for the task.
    pub id: TaskId,
    /// The conversation it continues; `None` starts a fresh one.
    pub session: Option<SessionId>,
    /// The directory the agent works in.
    pub cwd: String,
    /// The model's vendor; comes together with `model`.
    pub provider: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// How hard the model is to think.
    pub effort: Option<String>,
    /// Whether the agent is to work in a worktree of its own.
    pub worktree: bool,
    /// The agent's id; `None` is the default agent.
    pub agent: Option<String>,
    /// What the agent may do; `None` is the configured default.
    pub permissions: Option<Permissions>,
    /// The run's wall-clock limit; `None` is [`TaskBounds::timeout_default`].
    pub timeout: Option<Duration>,
    /// What a run may cost, in millionths of a US dollar.
    pub budget_micros: Option<u64>,
}

/// A task as it is journaled and shown. Clones are cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// What was submitted.
    pub spec: Arc<TaskSpec>,
    /// The place in the line: unique, grows with every submission; a retry gets a new one.
    pub order: u64,
    /// What has become of it.
    pub status: TaskStatus,
    /// Which of its runs is the current or last one, from 1.
    pub attempt: u32,
    /// When it last changed; never moves back, even if the wall clock does.
    pub updated_at: Timestamp,
    /// Display lines of this attempt so far: a position, not the lines.
    pub log_lines: u64,
    /// How the run of this attempt ended; `None` while it has not, or when it never ran.
    pub outcome: Option<Arc<Outcome>>,
}

/// The numbers of the machine that can be configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskBounds {
    /// See [`LIVE_TASKS_MAX`].
    pub live_tasks_max: usize,
    /// See [`LIMIT_DEFAULT`].
    pub limit_default: u8,
    /// See [`TIMEOUT_DEFAULT_SECONDS`].
    pub timeout_default: Duration,
}

impl Default for TaskBounds {
    fn default() -> Self {
        Self {
            live_tasks_max: LIVE_TASKS_MAX,
            limit_default: LIMIT_DEFAULT,
            timeout_default: Duration::from_secs(TIMEOUT_DEFAULT_SECONDS),
        }
    }
}
