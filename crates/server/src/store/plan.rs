//! From a call to what must be saved: the core's machine decides, this says it in the store's words. Pure.

use std::fmt;

use ostler_core::clock::Timestamp;
use ostler_core::lease::{
    Answer, Call, Effect, Input, LeaseHash, Policy, Priority, Refusal, State, rank, step,
};
use serde_json::json;

use super::types::{
    Claim, Completion, Line, Payload, SessionReport, Stepped, TaskCall, TaskRecord, What,
};
use crate::hex::unhex;
use crate::secrets::{Keyring, hash_token};

/// A lease that a store made for a claim or a resume.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NewLease {
    pub(crate) hash: LeaseHash,
    pub(crate) nonce: String,
    pub(crate) token: String,
}

impl fmt::Debug for NewLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewLease([token redacted])")
    }
}

/// Something to be saved beside the task itself.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    /// Lines above everything stored: certainly new. `seq` counts through all attempts.
    NewLines(Vec<Line>),
    /// Lines below: only those that are missing.
    OldLines(Vec<Line>),
    /// The session of the agent on the issue.
    Session(SessionReport),
    /// The run ended well after so many milliseconds of work.
    Delivered { completion: Box<Completion>, worked_ms: i64 },
    /// Something for those who follow.
    Event { kind: &'static str, data: String },
    /// There is something to claim.
    Queued,
    /// The agent has room again.
    Freed,
}

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) stepped: Stepped,
    pub(crate) changes: Vec<Change>,
}

/// A task as it is queued.
pub(crate) fn queued(
    id: String,
    (workspace_id, issue_id, issue_number, agent_id): (i64, i64, i64, i64),
    priority: Priority,
    now: Timestamp,
) -> TaskRecord {
    TaskRecord {
        id,
        workspace_id,
        issue_id,
        issue_number,
        agent_id,
        runtime_id: None,
        rank: rank(priority, now),
        lease_nonce: None,
        lease_request: None,
        claimed_by: None,
        error: None,
        created_at: now,
        started_at: None,
        ended_at: None,
        line_bytes: 0,
        pruned: false,
        version: 0,
        machine: ostler_core::lease::Task::new(),
    }
}

/// The event that tells of a task's state.
pub(crate) fn task_event(record: &TaskRecord) -> Change {
    let data = json!({
        "task_id": record.id,
        "issue_number": record.issue_number,
        "agent_id": record.agent_id,
        "status": record.machine.state.word(),
        "attempts": record.machine.attempts,
        "cancel_requested": record.machine.cancel_requested,
    });
    Change::Event { kind: "task.changed", data: data.to_string() }
}

/// Gives a queued task to a runtime of the claim.
pub(crate) fn claim(
    record: &mut TaskRecord,
    claim: &Claim,
    runtime_id: &str,
    lease: &NewLease,
    now: Timestamp,
    policy: &Policy,
) -> Result<Planned, Refusal> {
    let input = Input::Claim { lease: lease.hash, starts_soon: claim.starts_soon };
    let planned = apply(record, input, Payload::None, now, policy)?;
    record.runtime_id = Some(runtime_id.to_owned());
    record.lease_nonce = Some(lease.nonce.clone());
    record.lease_request.clone_from(&claim.request);
    record.claimed_by = claim.request.is_some().then(|| claim.daemon_id.clone());
    record.started_at = None;
    Ok(planned)
}

/// Does what a call asks for. `lease` is a new one, for a resume; a refusal has changed nothing.
pub(crate) fn call(
    record: &mut TaskRecord,
    call: TaskCall,
    lease: Option<&NewLease>,
    now: Timestamp,
    policy: &Policy,
) -> Result<Planned, Refusal> {
    match call.what {
        What::Input(input) => apply(record, input, call.with, now, policy),
        What::Resume { runtimes, request } => {
            let lease = lease.ok_or(Refusal::LeaseLost)?;
            let same_machine =
                record.runtime_id.as_ref().is_some_and(|ran_on| runtimes.contains(ran_on));
            let input = Input::Resume { same_machine, lease: lease.hash };
            let mut planned = apply(record, input, Payload::None, now, policy)?;
            record.lease_nonce = Some(lease.nonce.clone());
            record.lease_request = request;
            record.claimed_by = None;
            planned.stepped.lease_token = Some(lease.token.clone());
            Ok(planned)
        }
    }
}

/// The same resume once more, whose answer was lost: the same lease.
pub(crate) fn resumed_before(
    record: &TaskRecord,
    runtimes: &[String],
    request: Option<&str>,
    keyring: &Keyring,
) -> Option<Stepped> {
    request?;
    let lease = record.machine.lease?;
    let same = record.lease_request.as_deref() == request
        && record.runtime_id.as_ref().is_some_and(|ran_on| runtimes.contains(ran_on));
    let token = lease_token(record, keyring).filter(|_| same)?;
    Some(Stepped {
        answer: Answer {
            status: record.machine.state,
            expires_at: Some(lease.expires_at),
            cancel_requested: record.machine.cancel_requested,
            repeated: true,
        },
        accepted: 0,
        next_seq: next_seq(record),
        waiting_since: None,
        lease_token: Some(token),
    })
}

/// The token of the lease a task has, made again.
pub(crate) fn lease_token(record: &TaskRecord, keyring: &Keyring) -> Option<String> {
    let lease = record.machine.lease?;
    let nonce = unhex(record.lease_nonce.as_deref()?)?;
    // The attempt that a resume's lease was made in is the task's as well.
    let token = keyring.lease_token(&record.id, record.machine.attempts, &nonce);
    (hash_token(&token) == lease.hash.0).then_some(token)
}

fn next_seq(record: &TaskRecord) -> u64 {
    record.machine.lines.saturating_sub(record.machine.lines_before) + 1
}

/// The sweeper looks at a task.
pub(crate) fn sweep(record: &mut TaskRecord, now: Timestamp, policy: &Policy) -> Vec<Change> {
    match apply(record, Input::Sweep, Payload::None, now, policy) {
        Ok(planned) => planned.changes,
        Err(_) => Vec::new(),
    }
}

fn apply(
    record: &mut TaskRecord,
    input: Input,
    with: Payload,
    now: Timestamp,
    policy: &Policy,
) -> Result<Planned, Refusal> {
    let stored_before = record.machine.lines;
    let is_sweep = input == Input::Sweep;
    let is_start = matches!(input, Input::Held { call: Call::Start, .. });
    let done = step(&mut record.machine, input, now, policy);
    let answer = done.answer?;
    let (changes, accepted) = (Vec::new(), 0);
    let with = Some(with);
    let mut saved =
        Saved { record, with, now, stored_before, is_sweep, is_start, changes, accepted };
    for effect in done.effects {
        saved.add(effect);
    }
    let Saved { record, changes, accepted, .. } = saved;
    let stepped = Stepped {
        answer,
        accepted,
        next_seq: next_seq(record),
        waiting_since: record.machine.waits.as_ref().map(|waits| waits.since),
        lease_token: None,
    };
    Ok(Planned { stepped, changes })
}

/// What a step leaves to be saved, effect by effect.
struct Saved<'a> {
    record: &'a mut TaskRecord,
    /// What came with the call, until an effect takes it.
    with: Option<Payload>,
    now: Timestamp,
    /// The highest line that was stored before.
    stored_before: u64,
    is_sweep: bool,
    is_start: bool,
    changes: Vec<Change>,
    /// New lines.
    accepted: u64,
}

impl Saved<'_> {
    fn add(&mut self, effect: Effect) {
        match effect {
            Effect::Changed => {
                changed(self.record, self.is_start, self.now);
                self.changes.push(task_event(self.record));
            }
            Effect::Queued => self.changes.push(Change::Queued),
            Effect::Freed => self.changes.push(Change::Freed),
            Effect::KeepLines => {
                if let Some(Payload::Lines(lines)) = self.with.take() {
                    let before = self.stored_before;
                    self.accepted = keep_lines(self.record, lines, before, &mut self.changes);
                }
            }
            Effect::KeepSession => {
                let report = match &mut self.with {
                    Some(Payload::Session(report)) => report,
                    Some(Payload::Completion(completion)) => &mut completion.session,
                    _ => return,
                };
                self.changes.push(Change::Session(std::mem::take(report)));
            }
            Effect::Deliver { worked } => {
                if let Some(Payload::Completion(completion)) = self.with.take() {
                    let worked_ms = i64::try_from(worked.as_millis()).unwrap_or(i64::MAX);
                    self.changes.push(Change::Delivered { completion, worked_ms });
                }
            }
            Effect::KeepError => match self.with.take() {
                Some(Payload::Failure(error)) => self.record.error = Some(error),
                _ if self.is_sweep => self.record.error = Some(LEASES_USED_UP.to_owned()),
                _ => {}
            },
        }
    }
}

/// The error of a task whose machines all vanished.
const LEASES_USED_UP: &str = "the machine that ran it was not heard of again, on every attempt";

fn changed(record: &mut TaskRecord, is_start: bool, now: Timestamp) {
    let state = record.machine.state;
    if is_start && record.started_at.is_none() {
        record.started_at = Some(now);
    }
    record.ended_at = state.is_ended().then_some(now);
    if !state.is_held() {
        record.lease_nonce = None;
        record.lease_request = None;
        record.claimed_by = None;
    }
    if state == State::Completed {
        record.error = None;
    }
}

/// Sorts lines into those that must be new and those that may be there; counts the former.
fn keep_lines(
    record: &mut TaskRecord,
    lines: Vec<Line>,
    stored_before: u64,
    changes: &mut Vec<Change>,
) -> u64 {
    let before = record.machine.lines_before;
    let mut lines: Vec<_> = lines
        .into_iter()
        .map(|line| Line { seq: before.saturating_add(line.seq), ..line })
        .collect();
    lines.sort_by_key(|line| line.seq);
    // Of two with one number the first stands, as with a repeated batch.
    lines.dedup_by_key(|line| line.seq);
    let at = lines.partition_point(|line| line.seq <= stored_before);
    let new = lines.split_off(at);
    let count = new.len() as u64;
    if !lines.is_empty() {
        changes.push(Change::OldLines(lines));
    }
    if !new.is_empty() {
        stored(record, new.iter().map(Line::bytes).sum());
        changes.push(Change::NewLines(new));
        changes.push(Change::Event { kind: OUTPUT, data: output(record).to_string() });
    }
    count
}

/// The type of the event that tells of output.
pub(crate) const OUTPUT: &str = "task.output";

/// What it says.
pub(crate) fn output(record: &TaskRecord) -> serde_json::Value {
    json!({
        "task_id": record.id,
        "issue_number": record.issue_number,
        "last_seq": record.machine.lines,
    })
}

/// So many bytes of output were kept. A store says it of lines which could have been there and were not; when no
/// later ones came with them, it records [`OUTPUT`] too.
pub(crate) fn stored(record: &mut TaskRecord, bytes: u64) {
    record.line_bytes = record.line_bytes.saturating_add(bytes);
    // There is something to remove again, also of a task that a person has retried.
    record.pruned = false;
}
