//! What the journal holds: one JSON record an event, and the snapshot that folds them.
//!
//! A record is the task as clients see it, without its tail, plus what only we need: its place in the
//! queue, the position of its log, the rest of what was asked. The tail is journaled once, when the
//! task settles. The prompt is in none of it. Owns both directions; `wire::convert` owns the wire's
//! half of the task.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostler_core::clock::Timestamp;
use ostler_core::id::{SessionId, TaskId};
use ostler_core::task::{Permissions, Task, TaskSpec};
use ostler_proto::framed;
use serde::{Deserialize, Serialize};

use super::feed::{Published, SharedTail};
use crate::clock;
use crate::tail::{Tail, TailBounds};
use crate::wire::convert;

/// The longest tail in a record, as JSON; what is older is left out (the run directory has it).
pub(crate) const TAIL_JSON_BYTES_MAX: usize = 1024 * 1024;

/// A record that is not what this program writes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("the record is not the JSON this version writes: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the record cannot be read again: {0}")]
    Read(#[from] std::io::Error),
    #[error("the record has an impossible {what}: {why}")]
    Field { what: &'static str, why: String },
}

/// One journaled event.
#[derive(Debug)]
pub(crate) enum Event {
    Task {
        published: Box<Published>,
        /// Tasks that left the live set with it.
        gone: Vec<TaskId>,
    },
    Limit(u8),
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Stored<T> {
    TaskChanged(Box<StoredTask<T>>),
    SchedulerLimitChanged { limit: u8 },
}

/// `T` is the task, or the task as JSON already.
#[derive(Serialize, Deserialize)]
struct StoredTask<T = framed::Task> {
    task: T,
    order: u64,
    #[serde(default)]
    log_lines: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    permissions: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget_micros: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gone: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredSnapshot {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u8>,
    tasks: Vec<StoredTask>,
}

/// A stored tail was bounded when it was made.
const STORED_TAIL: TailBounds = TailBounds { lines_max: usize::MAX, chars_max: usize::MAX };

/// The version of the snapshot's shape.
const SNAPSHOT_VERSION: u32 = 1;

/// A decoded snapshot.
pub(crate) struct SnapshotState {
    /// What `set_limit` had set.
    pub(crate) limit: Option<u8>,
    pub(crate) tasks: Vec<Published>,
}

/// Appends the record of a changed task.
pub(crate) fn encode_task(
    out: &mut Vec<u8>,
    published: &Published,
    tail_bytes_max: usize,
    gone: &[TaskId],
) {
    let stored = store(&published.task, wire(published, tail_bytes_max), gone);
    append(out, &Stored::TaskChanged(Box::new(stored)));
}

/// Appends the record of a changed task without a tail, and the event's frame, which share the task's
/// JSON; the frame's place in `frames`.
pub(crate) fn encode_both(
    records: &mut Vec<u8>,
    frames: &mut Vec<u8>,
    sequence: u64,
    task: &Task,
    gone: &[TaskId],
    frame_bytes_max: usize,
) -> Option<Range<usize>> {
    let start = frames.len();
    let encoded = serde_json::value::to_raw_value(&convert::task(task))
        .map_err(|error| error.to_string())
        .and_then(|json| {
            append(records, &Stored::TaskChanged(Box::new(store(task, &json, gone))));
            convert::encode_task_event(frames, sequence, json.get(), frame_bytes_max)
        });
    match encoded {
        Ok(()) => Some(start..frames.len()),
        Err(error) => {
            tracing::error!(%error, "an event could not be encoded");
            frames.truncate(start);
            None
        }
    }
}

/// What the record of a task takes without its tail, with what the journal adds to it.
pub(crate) fn task_bytes(task: &Task) -> usize {
    /// A record's share of its batch.
    const BATCH_SHARE_BYTES: usize = 64;
    let mut record = Vec::new();
    append(&mut record, &Stored::TaskChanged(Box::new(store(task, convert::task(task), &[]))));
    record.len() + BATCH_SHARE_BYTES
}

/// Appends the record of a changed limit.
pub(crate) fn encode_limit(out: &mut Vec<u8>, limit: u8) {
    append(out, &Stored::<()>::SchedulerLimitChanged { limit });
}

fn append(out: &mut Vec<u8>, stored: &Stored<impl Serialize>) {
    // Plain data into memory: serialisation has nothing to fail on.
    if let Err(error) = serde_json::to_writer(&mut *out, stored) {
        tracing::error!(%error, "a record could not be encoded");
    }
}

/// The task as clients see it, with as much of its tail as the record may have.
fn wire(published: &Published, tail_bytes_max: usize) -> framed::Task {
    let task = &published.task;
    let mut wire = convert::task(task);
    if let (1.., Some(tail)) = (tail_bytes_max, &published.tail) {
        let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        wire.log_tail =
            tail.view_within(task.log_lines, tail_bytes_max).map(str::to_owned).collect();
    }
    wire
}

fn store<T>(task: &Task, wire: T, gone: &[TaskId]) -> StoredTask<T> {
    StoredTask {
        task: wire,
        order: task.order,
        log_lines: task.log_lines,
        permissions: task.spec.permissions.map(|permissions| permissions.as_str().to_owned()),
        timeout_seconds: task.spec.timeout.map(|timeout| timeout.as_secs()),
        budget_micros: task.spec.budget_micros,
        gone: gone.iter().map(ToString::to_string).collect(),
    }
}

/// Appends the frame of a changed limit; its place in `out`.
pub(crate) fn encode_limit_frame(
    out: &mut Vec<u8>,
    sequence: u64,
    limit: u8,
    max: usize,
) -> Range<usize> {
    let start = out.len();
    if let Err(error) = convert::limit_event(out, sequence, limit, max) {
        tracing::error!(%error, "an event could not be encoded");
        out.truncate(start);
    }
    start..out.len()
}

impl Event {
    /// Reads a record.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        match serde_json::from_slice::<Stored<framed::Task>>(bytes)? {
            Stored::SchedulerLimitChanged { limit } => Ok(Self::Limit(limit)),
            Stored::TaskChanged(mut stored) => {
                let gone = std::mem::take(&mut stored.gone);
                let gone = gone
                    .iter()
                    .map(|id| TaskId::new(id))
                    .collect::<Result<_, _>>()
                    .map_err(|error| field("gone", error))?;
                Ok(Self::Task { published: Box::new(restore(*stored)?), gone })
            }
        }
    }
}

fn field(what: &'static str, why: impl ToString) -> RecordError {
    RecordError::Field { what, why: why.to_string() }
}

fn restore(stored: StoredTask) -> Result<Published, RecordError> {
    let wire = stored.task;
    let permissions = stored
        .permissions
        .as_deref()
        .map(|name| Permissions::parse(name).ok_or_else(|| field("permissions", name)))
        .transpose()?;
    let spec = TaskSpec {
        id: TaskId::new(&wire.task_id).map_err(|error| field("taskId", error))?,
        session: wire
            .session_id
            .as_deref()
            .map(SessionId::new)
            .transpose()
            .map_err(|error| field("sessionId", error))?,
        cwd: wire.working_directory,
        provider: wire.provider,
        model: wire.model,
        effort: wire.effort,
        worktree: wire.worktree,
        agent: wire.agent,
        permissions,
        timeout: stored.timeout_seconds.map(Duration::from_secs),
        budget_micros: stored.budget_micros,
    };
    let outcome = wire
        .receipt
        .map(|receipt| convert::outcome(wire.failure, receipt))
        .transpose()
        .map_err(|why| field("receipt", why))?;
    let task = Task {
        spec: Arc::new(spec),
        order: stored.order,
        status: convert::core_status(wire.status),
        attempt: wire.attempt,
        updated_at: parse_timestamp(&wire.updated_at).map_err(|why| field("updatedAt", why))?,
        log_lines: stored.log_lines,
        outcome: outcome.map(Arc::new),
    };
    let tail = (!wire.log_tail.is_empty())
        .then(|| shared_tail(Tail::restore(STORED_TAIL, stored.log_lines, wire.log_tail)));
    Ok(Published { task, tail })
}

fn shared_tail(tail: Tail) -> SharedTail {
    Arc::new(Mutex::new(tail))
}

/// The snapshot of the published state. Tails and answers share a budget.
pub(crate) fn encode_snapshot(
    tasks: &[Published],
    limit: Option<u8>,
) -> Result<Vec<u8>, serde_json::Error> {
    let shown = |published: &Published| {
        let settled = published.task.status.is_settled();
        wire(published, if settled { TAIL_JSON_BYTES_MAX } else { 0 })
    };
    let mut wires: Vec<_> = tasks.iter().map(shown).collect();
    convert::fit_snapshot(&mut wires);
    let stored = tasks.iter().zip(wires);
    let tasks = stored.map(|(published, wire)| store(&published.task, wire, &[])).collect();
    serde_json::to_vec(&StoredSnapshot { version: SNAPSHOT_VERSION, limit, tasks })
}

/// Reads a snapshot.
pub(crate) fn decode_snapshot(bytes: &[u8]) -> Result<SnapshotState, RecordError> {
    let stored: StoredSnapshot = serde_json::from_slice(bytes)?;
    if stored.version != SNAPSHOT_VERSION {
        return Err(field("snapshot version", stored.version));
    }
    Ok(SnapshotState {
        limit: stored.limit,
        tasks: stored.tasks.into_iter().map(restore).collect::<Result<_, _>>()?,
    })
}

/// A time as records write it.
pub(crate) fn parse_timestamp(text: &str) -> Result<Timestamp, String> {
    clock::from_rfc3339(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_core::outcome::{Exit, Failure, FailureClass, Outcome, Receipt, Usage, Verdict};
    use ostler_core::task::TaskStatus;

    fn published(n: u64, text_bytes: usize, log_lines: u64) -> Published {
        let spec = TaskSpec {
            id: TaskId::new(&format!("task-{n}")).unwrap(),
            session: Some(SessionId::new("s").unwrap()),
            cwd: "/somewhere".into(),
            provider: Some("p".into()),
            model: Some("m".into()),
            effort: None,
            worktree: false,
            agent: Some("claude_code".into()),
            permissions: Some(Permissions::Full),
            timeout: Some(Duration::from_secs(90)),
            budget_micros: Some(5),
        };
        let mut receipt = Receipt::unproven("claude_code", Timestamp::from_micros(2_000_001));
        receipt.exit = Some(Exit::Signal(15));
        receipt.verdict = Verdict::Cancelled;
        receipt.started_at = Some(Timestamp::from_micros(1));
        let outcome = Outcome {
            failure: Some(Failure::new(FailureClass::KillFailed, "why")),
            receipt,
            text: Some("t".repeat(text_bytes)),
            usage: Some(Usage { input_tokens: Some(3), ..Usage::default() }),
            cost_micros: None,
        };
        let mut tail = Tail::new(TailBounds::default(), None);
        (0..log_lines).for_each(|line| tail.push(&format!("line {line}")));
        Published {
            task: Task {
                spec: Arc::new(spec),
                order: n,
                status: TaskStatus::Failed,
                attempt: 2,
                updated_at: Timestamp::from_micros(1_234_567_890_123_456),
                log_lines,
                outcome: Some(Arc::new(outcome)),
            },
            tail: Some(shared_tail(tail)),
        }
    }

    fn lines(published: &Published) -> Vec<String> {
        let tail = published.tail.as_ref().map(|tail| tail.lock().unwrap().clone());
        tail.map_or_else(Vec::new, |tail| tail.view(u64::MAX).map(str::to_owned).collect())
    }

    #[test]
    fn a_record_says_everything_that_the_state_holds() {
        let before = published(7, 10, 600);
        let gone = [TaskId::new("older").unwrap()];
        let mut record = Vec::new();
        encode_task(&mut record, &before, TAIL_JSON_BYTES_MAX, &gone);
        let Event::Task { published: after, gone: left } = Event::decode(&record).unwrap() else {
            panic!("a task was encoded")
        };
        assert_eq!(after.task, before.task);
        assert_eq!(left, gone);
        assert_eq!(lines(&after).len(), 500);
        assert_eq!(lines(&after).last().unwrap(), "line 599");
    }

    #[test]
    fn r_82_a_record_that_is_not_ours_is_an_error_that_names_the_field() {
        let mut record = Vec::new();
        encode_task(&mut record, &published(7, 10, 600), 0, &[]);
        let text = String::from_utf8(record).unwrap();
        let broken = text.replace("task-7", "");
        assert!(Event::decode(broken.as_bytes()).unwrap_err().to_string().contains("taskId"));
        assert!(Event::decode(b"{\"event\":\"something_else\"}").is_err());
        assert!(decode_snapshot(b"{\"version\":2,\"limit\":4,\"tasks\":[]}").is_err());
    }

    /// Tasks whose every word takes six bytes a character.
    fn escaped(count: u64) -> Vec<Published> {
        let mut published = published(0, 0, 0);
        let long = |bytes: usize| "\u{1}".repeat(bytes);
        let mut outcome = published.task.outcome.as_deref().unwrap().clone();
        outcome.text = Some(long(64 * 1024));
        outcome.failure = Some(Failure::new(FailureClass::Unknown, long(500)));
        outcome.receipt.denials = vec![long(200); 100];
        let mut tail = Tail::new(TailBounds::default(), None);
        (0..5).for_each(|_| tail.push(&long(4_096)));
        published.tail = Some(shared_tail(tail));
        published.task.outcome = Some(Arc::new(outcome));
        published.task.log_lines = 5;
        let numbered = |n: u64| {
            let mut published = published.clone();
            let id = TaskId::new(&format!("task-{n}")).unwrap();
            let spec = TaskSpec { id, cwd: long(4_096), ..(*published.task.spec).clone() };
            (published.task.spec, published.task.order) = (Arc::new(spec), n);
            published
        };
        (0..count).map(numbered).collect()
    }

    #[test]
    fn r_83_a_snapshot_stays_within_its_bound_and_the_oldest_lose_text_first() {
        let mut tasks = escaped(250);
        tasks.push(published(250, 10, 5));
        let stored = encode_snapshot(&tasks, Some(9)).unwrap();
        let sent = convert::snapshot_document(250, &tasks).unwrap();
        for (what, snapshot) in [("stored", &stored), ("sent", &sent)] {
            assert!(snapshot.len() <= convert::SNAPSHOT_BYTES_MAX, "{what}: {}", snapshot.len());
        }
        let stored = decode_snapshot(&stored).unwrap();
        assert_eq!((stored.limit, stored.tasks.len()), (Some(9), 251));
        let stored: Vec<_> = stored.tasks.iter().map(|it| wire(it, usize::MAX)).collect();
        let sent = framed::Snapshot::parse(&sent).unwrap().tasks;
        for tasks in [stored, sent] {
            let text = |task: &framed::Task| task.receipt.as_ref().unwrap().text.is_some();
            let oldest_with_text = tasks.iter().position(text).unwrap();
            assert!(tasks.iter().skip(oldest_with_text).all(text), "the newest keep theirs");
            let (oldest, newest) = (tasks.first().unwrap(), tasks.last().unwrap());
            assert!(
                oldest.log_tail.is_empty() && oldest.receipt.as_ref().unwrap().denials.is_empty()
            );
            assert_eq!(newest.log_tail.len(), 5);
        }
    }
}
