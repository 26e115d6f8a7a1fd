//! The task as clients see it, its receipt, and the snapshot of all tasks.
//!
//! Owns names, order and absence of fields (runtime.md, "Task" and "Shapes of ours"). Field names of a task
//! are camelCase, of a failure and a receipt snake_case. Deliberately absent: redaction and the bounds of
//! tails, which belong to whoever fills these in.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What stands in `description` in place of the prompt.
pub const DESCRIPTION: &str = "[task input redacted]";

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TaskStatus {
    /// Waits for its turn.
    #[serde(rename = "TaskQueued")]
    Queued,
    /// Has a process.
    #[serde(rename = "TaskRunning")]
    Running,
    /// Ended with proven success.
    #[serde(rename = "TaskCompleted")]
    Completed,
    /// Ended without.
    #[serde(rename = "TaskFailed")]
    Failed,
    /// Ended on request.
    #[serde(rename = "TaskCancelled")]
    Cancelled,
    /// Ended with the daemon.
    #[serde(rename = "TaskInterrupted")]
    Interrupted,
}

impl TaskStatus {
    /// Neither queued nor running.
    pub const fn is_settled(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// A task: the payload of `task_changed`, a member of snapshots and lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// Its id.
    pub task_id: String,
    /// The session it was submitted to; `None` is a fresh one.
    pub session_id: Option<String>,
    /// Where it is in its life.
    pub status: TaskStatus,
    /// Always [`DESCRIPTION`].
    pub description: Cow<'static, str>,
    /// Where it works.
    pub working_directory: String,
    /// The model vendor asked for.
    pub provider: Option<String>,
    /// The model asked for.
    pub model: Option<String>,
    /// The effort asked for.
    pub effort: Option<String>,
    /// Whether a worktree was asked for.
    pub worktree: bool,
    /// From 1; a retry counts up.
    pub attempt: u32,
    /// When it last changed: RFC 3339, UTC, microseconds.
    pub updated_at: String,
    /// The newest lines of this attempt, oldest first.
    pub log_tail: Vec<String>,
    /// The agent it was submitted with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The evidence of its last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind.
    pub class: FailureClass,
    /// One line for a person.
    pub message: String,
    /// When a limit is said to end: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
}

/// The kinds of failure; runtime.md, "Shapes of ours".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the protocol's own and say it")]
pub enum FailureClass {
    Authentication,
    Quota,
    RateLimit,
    Model,
    Network,
    ContextOverflow,
    Timeout,
    Budget,
    Silent,
    EmptyOutput,
    TruncatedOutput,
    PermissionDenied,
    NotInstalled,
    UnsupportedVersion,
    Spawn,
    ExitStatus,
    Signal,
    KillFailed,
    ShimLost,
    Storage,
    /// None of the others, and whatever a newer daemon calls it.
    #[serde(other)]
    Unknown,
}

/// The evidence of a finished run. What was not learnt is `null`, or absent where marked optional.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The agent's id.
    pub agent: String,
    /// What its `--version` says.
    pub agent_version: Option<String>,
    /// What the verdict rests on.
    pub proof: Option<Proof>,
    /// The agent's closing statement in a word or two (optional).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statement: Option<String>,
    /// How the leader ended.
    pub exit: Option<Exit>,
    /// When it was started: RFC 3339, UTC, microseconds.
    pub started_at: Option<String>,
    /// When nothing of it was left: RFC 3339, UTC, microseconds.
    pub ended_at: String,
    /// The agent's own session id (optional).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// What changed in the repository (optional).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<GitChange>,
    /// Tools that were denied, by name.
    pub denials: Vec<String>,
    /// What had to be killed.
    pub killed: Vec<Killed>,
    /// What the keep-list let live.
    pub kept: Vec<Killed>,
    /// Bytes the agent wrote on both streams.
    pub output_bytes: u64,
    /// Whether some of them are no longer kept.
    pub truncated: bool,
    /// The judgement.
    pub verdict: Verdict,
    /// Tokens (optional).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Money (optional).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<CostMicros>,
    /// The agent's final answer (optional; left out where an answer must fit a frame).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What proves a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The agent's own closing statement.
    TerminalEvent,
    /// The exit status, for programs that state nothing.
    ExitStatus,
}

/// How a process ended: `{"code": 0}` or `{"signal": 9}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// What changed in the working tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitChange {
    /// HEAD before the run.
    pub head_before: Option<String>,
    /// HEAD after it.
    pub head_after: Option<String>,
    /// Files that differ.
    pub changed_files: u64,
    /// Lines added.
    pub insertions: u64,
    /// Lines removed.
    pub deletions: u64,
}

/// A process that had to be killed, or that was left alone on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Killed {
    /// Its process id.
    pub pid: u32,
    /// The first word of its command line.
    pub argv0: String,
    /// What it did not obey: `exit`, `term` or `kill`.
    pub after: String,
}

/// The one-word judgement of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Proven, with something to show for it.
    Succeeded,
    /// Proven, but nothing changed and nothing was said.
    SucceededNoVisibleEffect,
    /// Proven, with denials or things that had to be killed.
    SucceededWithWarnings,
    /// Not proven.
    Failed,
    /// Ended on request.
    Cancelled,
    /// Ended with the daemon.
    Interrupted,
}

/// Tokens of one run, in disjoint buckets; absent, not zero, when unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Fresh input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Input read from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u64>,
    /// Input written to a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    /// Everything the model wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// The part of the output that was reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
}

/// What a run cost, in millionths of a US dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostMicros {
    /// Micro-dollars.
    pub amount: u64,
    /// Whether it is an estimate and not the agent's own figure.
    pub estimated: bool,
}

/// The whole state: `{lastSequence, tasks: {<taskId>: task}}`, joined from its chunks. It replaces what the
/// client knew before.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The newest sequence it contains; events above it follow.
    pub last_sequence: u64,
    /// The live tasks, in the order sent.
    #[serde(deserialize_with = "tasks_by_id")]
    pub tasks: Vec<Task>,
}

impl Snapshot {
    /// Reads a document joined from its chunks.
    ///
    /// # Errors
    /// Text that is no snapshot, or a task under another id than its own.
    pub fn parse(document: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(document)
    }
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tasks = self.tasks.iter().map(|task| (task.task_id.as_str(), task));
        SnapshotRef { last_sequence: self.last_sequence, tasks: TasksById(tasks) }
            .serialize(serializer)
    }
}

/// The document of a snapshot, to be cut by [`encode_chunk`](super::encode_chunk). `T` is a [`Task`], or
/// the JSON of one that is at hand already (a `RawValue`).
///
/// # Errors
/// Only what `T` itself fails with.
pub fn encode_snapshot<'a, T: Serialize + ?Sized + 'a>(
    last_sequence: u64,
    tasks: impl Iterator<Item = (&'a str, &'a T)> + Clone,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&SnapshotRef { last_sequence, tasks: TasksById(tasks) })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotRef<T: Serialize> {
    last_sequence: u64,
    tasks: T,
}

struct TasksById<I>(I);

impl<'a, T: Serialize + ?Sized + 'a, I: Iterator<Item = (&'a str, &'a T)> + Clone> Serialize
    for TasksById<I>
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.clone())
    }
}

fn tasks_by_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Task>, D::Error> {
    struct Tasks;
    impl<'de> Visitor<'de> for Tasks {
        type Value = Vec<Task>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of tasks by id")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Task>, A::Error> {
            let mut tasks = Vec::new();
            while let Some((id, task)) = map.next_entry::<String, Task>()? {
                if task.task_id != id {
                    return Err(A::Error::custom("a task stands under another id"));
                }
                tasks.push(task);
            }
            Ok(tasks)
        }
    }
    deserializer.deserialize_map(Tasks)
}
