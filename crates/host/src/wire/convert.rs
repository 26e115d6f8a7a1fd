//! The edge between the core's words and the wire's: tasks, outcomes and answers, both ways.
//!
//! What leaves here is redacted (runtime.md, "Journal"); lines were redacted when they were shown.

use std::borrow::Cow;
use std::sync::PoisonError;

use ostler_core::outcome as core;
use ostler_core::task::{Task, TaskStatus};
use ostler_proto::framed::{self, FrameError, encode_event as event_frames};

use crate::clock;
use crate::engine::CommandReply;
use crate::engine::feed::Published;
use crate::engine::record::Event;
use crate::tail::json_str_bytes;

/// A task without its tail.
pub(crate) fn task(task: &Task) -> framed::Task {
    let spec = &task.spec;
    framed::Task {
        task_id: spec.id.to_string(),
        session_id: spec.session.as_ref().map(ToString::to_string),
        status: status(task.status),
        description: Cow::Borrowed(framed::task::DESCRIPTION),
        working_directory: spec.cwd.clone(),
        provider: spec.provider.clone(),
        model: spec.model.clone(),
        effort: spec.effort.clone(),
        worktree: spec.worktree,
        attempt: task.attempt,
        updated_at: clock::to_rfc3339(task.updated_at),
        log_tail: Vec::new(),
        agent: spec.agent.clone(),
        failure: task.outcome.as_ref().and_then(|outcome| outcome.failure.as_ref()).map(failure),
        receipt: task.outcome.as_ref().map(|outcome| receipt(outcome)),
    }
}

/// A task as clients see it, with the lines of its tail up to its position.
pub(crate) fn published(published: &Published) -> framed::Task {
    let mut wire = task(&published.task);
    if let Some(tail) = &published.tail {
        let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        wire.log_tail = tail.view(published.task.log_lines).map(str::to_owned).collect();
    }
    wire
}

fn status(status: TaskStatus) -> framed::TaskStatus {
    match status {
        TaskStatus::Queued => framed::TaskStatus::Queued,
        TaskStatus::Running => framed::TaskStatus::Running,
        TaskStatus::Completed => framed::TaskStatus::Completed,
        TaskStatus::Failed => framed::TaskStatus::Failed,
        TaskStatus::Cancelled => framed::TaskStatus::Cancelled,
        TaskStatus::Interrupted => framed::TaskStatus::Interrupted,
    }
}

/// The core's word for a status of the wire.
pub(crate) fn core_status(status: framed::TaskStatus) -> TaskStatus {
    match status {
        framed::TaskStatus::Queued => TaskStatus::Queued,
        framed::TaskStatus::Running => TaskStatus::Running,
        framed::TaskStatus::Completed => TaskStatus::Completed,
        framed::TaskStatus::Failed => TaskStatus::Failed,
        framed::TaskStatus::Cancelled => TaskStatus::Cancelled,
        framed::TaskStatus::Interrupted => TaskStatus::Interrupted,
    }
}

/// Both sides name their variants alike; the compiler holds the two lists together.
macro_rules! same_names {
    ($to_wire:ident, $to_core:ident, $name:ident, [$($variant:ident),+ $(,)?]) => {
        fn $to_wire(value: core::$name) -> framed::$name {
            match value { $(core::$name::$variant => framed::$name::$variant),+ }
        }
        fn $to_core(value: framed::$name) -> core::$name {
            match value { $(framed::$name::$variant => core::$name::$variant),+ }
        }
    };
}

same_names!(
    class_to_wire,
    class_to_core,
    FailureClass,
    [
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
        Unknown,
    ]
);
same_names!(proof_to_wire, proof_to_core, Proof, [TerminalEvent, ExitStatus]);
same_names!(
    verdict_to_wire,
    verdict_to_core,
    Verdict,
    [Succeeded, SucceededNoVisibleEffect, SucceededWithWarnings, Failed, Cancelled, Interrupted,]
);

/// A failure, as clients see it.
pub(crate) fn failure(failure: &core::Failure) -> framed::Failure {
    framed::Failure {
        class: class_to_wire(failure.class),
        message: failure.message.clone(),
        retry_at: failure.retry_at.map(clock::to_rfc3339),
    }
}

/// The evidence of a run, as clients see it.
pub(crate) fn receipt(outcome: &core::Outcome) -> framed::Receipt {
    let receipt = &outcome.receipt;
    framed::Receipt {
        agent: receipt.agent.clone(),
        agent_version: receipt.agent_version.clone(),
        proof: receipt.proof.map(proof_to_wire),
        statement: receipt.statement.clone(),
        exit: receipt.exit.map(|exit| match exit {
            core::Exit::Code(code) => framed::Exit::Code(code),
            core::Exit::Signal(signal) => framed::Exit::Signal(signal),
        }),
        started_at: receipt.started_at.map(clock::to_rfc3339),
        ended_at: clock::to_rfc3339(receipt.ended_at),
        session_id: receipt.session_id.clone(),
        git: receipt.git.as_ref().map(|git| framed::GitChange {
            head_before: git.head_before.clone(),
            head_after: git.head_after.clone(),
            changed_files: git.changed_files,
            insertions: git.insertions,
            deletions: git.deletions,
        }),
        denials: receipt.denials.clone(),
        killed: receipt.killed.iter().map(killed).collect(),
        kept: receipt.kept.iter().map(killed).collect(),
        output_bytes: receipt.output_bytes,
        truncated: receipt.truncated,
        verdict: verdict_to_wire(receipt.verdict),
        usage: outcome.usage.map(|usage| framed::Usage {
            input_tokens: usage.input_tokens,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            output_tokens: usage.output_tokens,
            reasoning_tokens: usage.reasoning_tokens,
        }),
        cost_micros: outcome
            .cost_micros
            .map(|cost| framed::CostMicros { amount: cost.amount, estimated: cost.estimated }),
        text: outcome.text.clone(),
    }
}

fn killed(killed: &core::Killed) -> framed::Killed {
    framed::Killed { pid: killed.pid, argv0: killed.argv0.clone(), after: killed.after.clone() }
}

/// The outcome in a journaled task.
pub(crate) fn outcome(
    failure: Option<framed::Failure>,
    receipt: framed::Receipt,
) -> Result<core::Outcome, String> {
    let killed = |list: Vec<framed::Killed>| {
        list.into_iter()
            .map(|killed| core::Killed {
                pid: killed.pid,
                argv0: killed.argv0,
                after: killed.after,
            })
            .collect()
    };
    Ok(core::Outcome {
        failure: failure.map(core_failure).transpose()?,
        text: receipt.text,
        usage: receipt.usage.map(|usage| core::Usage {
            input_tokens: usage.input_tokens,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            output_tokens: usage.output_tokens,
            reasoning_tokens: usage.reasoning_tokens,
        }),
        cost_micros: receipt
            .cost_micros
            .map(|cost| core::CostMicros { amount: cost.amount, estimated: cost.estimated }),
        receipt: core::Receipt {
            agent: receipt.agent,
            agent_version: receipt.agent_version,
            proof: receipt.proof.map(proof_to_core),
            statement: receipt.statement,
            exit: receipt.exit.map(|exit| match exit {
                framed::Exit::Code(code) => core::Exit::Code(code),
                framed::Exit::Signal(signal) => core::Exit::Signal(signal),
            }),
            started_at: receipt.started_at.as_deref().map(time).transpose()?,
            ended_at: time(&receipt.ended_at)?,
            session_id: receipt.session_id,
            git: receipt.git.map(|git| core::GitChange {
                head_before: git.head_before,
                head_after: git.head_after,
                changed_files: git.changed_files,
                insertions: git.insertions,
                deletions: git.deletions,
            }),
            denials: receipt.denials,
            killed: killed(receipt.killed),
            kept: killed(receipt.kept),
            output_bytes: receipt.output_bytes,
            truncated: receipt.truncated,
            verdict: verdict_to_core(receipt.verdict),
        },
    })
}

fn core_failure(failure: framed::Failure) -> Result<core::Failure, String> {
    Ok(core::Failure {
        class: class_to_core(failure.class),
        message: failure.message,
        retry_at: failure.retry_at.as_deref().map(time).transpose()?,
    })
}

fn time(text: &str) -> Result<ostler_core::clock::Timestamp, String> {
    clock::from_rfc3339(text).map_err(|error| error.to_string())
}

/// All tails and answers of a snapshot together, as JSON; the oldest tasks lose theirs first.
pub(crate) const SNAPSHOT_TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A snapshot, where that can be had by leaving texts and lists out: half of what a client puts together, and
/// within any `journal.snapshot_bytes_max`. A thousand tasks whose other fields are as long as they may be,
/// and take six bytes a character, still are within what a client puts together.
pub(crate) const SNAPSHOT_BYTES_MAX: usize = framed::chunk::DOCUMENT_BYTES_MAX / 2;

/// What a task takes besides its own JSON: its key on the wire, our own fields in the journal; and its share
/// of what is around all of them.
const SNAPSHOT_TASK_EXTRA_BYTES: usize = 512;

/// The tasks of a snapshot, on the wire as in the journal, with the texts that they may have.
pub(crate) fn fit_snapshot(tasks: &mut [framed::Task]) {
    let extra = |task: &framed::Task| json_str_bytes(&task.task_id) + SNAPSHOT_TASK_EXTRA_BYTES;
    framed::fit_snapshot(tasks, extra, SNAPSHOT_TEXT_BYTES_MAX, SNAPSHOT_BYTES_MAX);
}

/// The snapshot document of runtime.md, "Frames".
pub(crate) fn snapshot_document(
    last_sequence: u64,
    tasks: &[Published],
) -> Result<Vec<u8>, serde_json::Error> {
    let mut tasks: Vec<_> = tasks.iter().map(published).collect();
    fit_snapshot(&mut tasks);
    framed::encode_snapshot(last_sequence, tasks.iter().map(|task| (task.task_id.as_str(), task)))
}

/// Appends the frame (or frames) of one event whose tail is rendered now.
pub(crate) fn encode_event(
    out: &mut Vec<u8>,
    sequence: u64,
    task: &Published,
    max: usize,
) -> Result<(), String> {
    let payload = serde_json::to_string(&published(task)).map_err(|error| error.to_string())?;
    encode_task_event(out, sequence, &payload, max)
}

/// The same for a task that is JSON already.
pub(crate) fn encode_task_event(
    out: &mut Vec<u8>,
    sequence: u64,
    payload: &str,
    max: usize,
) -> Result<(), String> {
    event_frames(out, sequence, framed::EVENT_TASK_CHANGED, payload, max)
        .map_err(|error| error.to_string())
}

/// The same for a record of an earlier start.
pub(crate) fn encode_stored(
    out: &mut Vec<u8>,
    sequence: u64,
    event: &Event,
    max: usize,
) -> Result<(), String> {
    match event {
        Event::Task { published, .. } => encode_event(out, sequence, published, max),
        Event::Limit(limit) => {
            limit_event(out, sequence, *limit, max).map_err(|error| error.to_string())
        }
    }
}

/// Appends the frame of a changed limit.
pub(crate) fn limit_event(
    out: &mut Vec<u8>,
    sequence: u64,
    limit: u8,
    max: usize,
) -> Result<(), FrameError> {
    let payload = format!(r#"{{"version":{},"limit":{limit}}}"#, framed::COMMAND_VERSION);
    event_frames(out, sequence, framed::EVENT_LIMIT_CHANGED, &payload, max)
}

/// Appends the frame of an answer; what does not fit one frame is trimmed as runtime.md says.
pub(crate) fn encode_answer(
    out: &mut Vec<u8>,
    id: &str,
    result: Result<CommandReply, String>,
    max: usize,
) -> Result<(), String> {
    let room = || framed::result_bytes_max(id, max);
    let encoded = match result {
        Err(error) => framed::encode_result::<()>(out, id, Err(&error), max),
        Ok(CommandReply::Limit(limit)) => {
            framed::encode_result(out, id, Ok(&framed::LimitResult::new(limit)), max)
        }
        Ok(CommandReply::List(tasks)) => {
            let list = framed::fit_list(tasks.iter().map(published).collect(), room());
            framed::encode_result(out, id, Ok(&list), max)
        }
        Ok(CommandReply::Task { state, task, tail }) => {
            let task = published(&Published { task: *task, tail });
            let result = framed::TaskResult { version: framed::COMMAND_VERSION, state, task };
            match framed::encode_result(out, id, Ok(&result), max) {
                // Only what does not fit is measured.
                Err(FrameError::TooLarge { .. }) => {
                    let fitted = framed::fit_task(state, result.task, room());
                    framed::encode_result(out, id, Ok(&fitted), max)
                }
                encoded => encoded,
            }
        }
    };
    encoded.map_err(|error| error.to_string())
}
