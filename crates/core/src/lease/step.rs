//! The step: one input, what the task became, the answer, and what else must be saved with it.

use std::time::Duration;

use super::state::{
    Decided, Decision, End, Ended, Lease, LeaseHash, Policy, State, Task, WaitingFor, Waits,
};
use crate::clock::Timestamp;

/// How a run failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failing {
    /// May be tried again; else the task has failed at once.
    pub retryable: bool,
    /// The machine gave it back without a fault of the task.
    pub handed_back: bool,
    /// A usage limit: not before this.
    pub not_before: Option<Timestamp>,
}

/// What a machine says about a task it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// The process runs.
    Start,
    /// Lines came.
    Messages {
        /// The highest number among them, counted from 1 within the attempt.
        highest: u64,
    },
    /// The agent's session is known.
    Session,
    /// The run ended well.
    Complete,
    /// The run ended badly.
    Fail(Failing),
    /// The process was ended, as a person wished.
    CancelAck,
    /// The run waits for a person.
    Await {
        /// What it needs.
        what: WaitingFor,
        /// In the agent's words.
        summary: String,
    },
}

/// What happens to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A machine takes it.
    Claim {
        /// Of the new lease's token.
        lease: LeaseHash,
        /// It promises to start within [`Policy::start_within`].
        starts_soon: bool,
    },
    /// A machine that should hold it says something.
    Held {
        /// The hash of the token it showed, if it showed any.
        lease: Option<LeaseHash>,
        /// What it says.
        call: Call,
    },
    /// The run goes on.
    Resume {
        /// The caller is the machine that ran it.
        same_machine: bool,
        /// Of the new lease's token.
        lease: LeaseHash,
    },
    /// A person wants it to end.
    Cancel,
    /// A person wants it to run again.
    Retry,
    /// A person decides about a waiting run.
    Decide(Decision),
    /// The sweeper came by.
    Sweep,
}

/// Why nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The caller holds no lease on it.
    LeaseLost,
    /// The caller held one, and the sweeper took it.
    LeaseExpired,
    /// The task is in this state, and that does not allow it.
    BadState(State),
    /// The run waits, and only the machine that ran it may go on with it.
    OtherMachine,
    /// A person decided already, and not this.
    Decided(Decided),
}

/// What the caller is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What the task is now; for the repeated end of a lease, what it became by it.
    pub status: State,
    /// The lease's end, where there is one.
    pub expires_at: Option<Timestamp>,
    /// A person wants it to end.
    pub cancel_requested: bool,
    /// Nothing was done now: this is the first answer once more.
    pub repeated: bool,
}

/// What must be saved in the same transaction, beside the task itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The state changed: record an event.
    Changed,
    /// It can be claimed (perhaps later, see [`Task::not_before`]).
    Queued,
    /// It no longer takes one of its agent's places.
    Freed,
    /// Keep the lines that came.
    KeepLines,
    /// Keep the agent's session and its directory for the next run of this agent on this issue.
    KeepSession,
    /// The run ended well: keep its result, post the summary, record deliveries, spend the time.
    Deliver {
        /// How long it worked, without waiting.
        worked: Duration,
    },
    /// The run ended badly: keep the error.
    KeepError,
}

/// What came of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// For the caller.
    pub answer: Result<Answer, Refusal>,
    /// For the store.
    pub effects: Vec<Effect>,
}

impl Step {
    fn refused(refusal: Refusal) -> Self {
        Self { answer: Err(refusal), effects: Vec::new() }
    }
}

/// Does one thing to one task. A refusal has changed nothing.
pub fn step(task: &mut Task, input: Input, now: Timestamp, policy: &Policy) -> Step {
    let done = match input {
        Input::Claim { lease, starts_soon } => claim(task, lease, starts_soon, now, policy),
        Input::Held { lease, call } => {
            if let Some(repeated) = ended_before(task, lease, &call) {
                return repeated;
            }
            held(task, lease).and_then(|lease| hear(task, lease, call, now, policy))
        }
        Input::Resume { same_machine, lease } => resume(task, same_machine, lease, now, policy),
        Input::Cancel => cancel(task),
        Input::Retry => retry(task),
        Input::Decide(decision) => decide(task, decision),
        Input::Sweep => Ok(sweep(task, now, policy)),
    };
    match done {
        Ok(effects) => Step { answer: Ok(answer(task)), effects },
        Err(refusal) => Step::refused(refusal),
    }
}

fn answer(task: &Task) -> Answer {
    Answer {
        status: task.state,
        expires_at: task.lease.map(|lease| lease.expires_at),
        cancel_requested: task.cancel_requested,
        repeated: false,
    }
}

/// The end that a call is.
fn end_of(call: &Call) -> Option<End> {
    match call {
        Call::Complete => Some(End::Complete),
        Call::Fail(_) => Some(End::Fail),
        Call::CancelAck => Some(End::CancelAck),
        Call::Start | Call::Messages { .. } | Call::Session | Call::Await { .. } => None,
    }
}

/// A call that ends a lease which has ended: told again what it became, or that it ended otherwise.
fn ended_before(task: &Task, lease: Option<LeaseHash>, call: &Call) -> Option<Step> {
    let end = end_of(call)?;
    let ended = task.ended.filter(|ended| Some(ended.hash) == lease)?;
    match ended.end {
        End::Expired => None,
        first if first == end => Some(Step {
            answer: Ok(Answer {
                status: ended.became,
                expires_at: None,
                cancel_requested: false,
                repeated: true,
            }),
            effects: Vec::new(),
        }),
        _ => Some(Step::refused(Refusal::BadState(ended.became))),
    }
}

/// The caller shows the token of the task's lease.
fn held(task: &Task, lease: Option<LeaseHash>) -> Result<LeaseHash, Refusal> {
    let Some(shown) = lease else { return Err(Refusal::LeaseLost) };
    if task.lease.is_some_and(|lease| lease.hash == shown) {
        return Ok(shown);
    }
    let taken = task.ended.filter(|ended| ended.hash == shown && ended.end == End::Expired);
    Err(if taken.is_some() { Refusal::LeaseExpired } else { Refusal::LeaseLost })
}

/// What the holder says.
fn hear(
    task: &mut Task,
    lease: LeaseHash,
    call: Call,
    now: Timestamp,
    policy: &Policy,
) -> Result<Vec<Effect>, Refusal> {
    let end = end_of(&call);
    let effects = match call {
        Call::Start => start(task, now, policy),
        Call::Messages { highest } => messages(task, highest, now, policy),
        Call::Session => vec![Effect::KeepSession],
        Call::Complete => {
            let worked = stop_working(task, now);
            let effects = vec![Effect::KeepSession, Effect::Deliver { worked }];
            become_ended(task, State::Completed, effects)
        }
        Call::Fail(failing) => fail(task, failing, now, policy),
        Call::CancelAck if !task.cancel_requested => return Err(Refusal::BadState(task.state)),
        Call::CancelAck => {
            stop_working(task, now);
            become_ended(task, State::Canceled, Vec::new())
        }
        Call::Await { what, summary } => wait(task, what, summary, now),
    };
    if let Some(end) = end {
        task.ended = Some(Ended { hash: lease, end, became: task.state });
    }
    Ok(effects)
}

fn claim(
    task: &mut Task,
    lease: LeaseHash,
    starts_soon: bool,
    now: Timestamp,
    policy: &Policy,
) -> Result<Vec<Effect>, Refusal> {
    if !task.is_due(now) {
        return Err(Refusal::BadState(task.state));
    }
    task.state = State::Dispatched;
    task.attempts += 1;
    task.not_before = None;
    task.worked = Duration::ZERO;
    task.working_since = Some(now);
    task.lines_before = task.lines;
    task.lease = Some(Lease {
        hash: lease,
        expires_at: now.after(policy.lease),
        start_by: starts_soon.then(|| now.after(policy.start_within)),
    });
    Ok(vec![Effect::Changed])
}

fn renew(task: &mut Task, now: Timestamp, policy: &Policy) {
    if let Some(lease) = &mut task.lease {
        // A clock that was set back must not take what was promised.
        lease.expires_at = lease.expires_at.max(now.after(policy.lease));
    }
}

fn start(task: &mut Task, now: Timestamp, policy: &Policy) -> Vec<Effect> {
    renew(task, now, policy);
    if task.state == State::Running {
        return Vec::new();
    }
    task.state = State::Running;
    task.working_since = Some(now);
    if let Some(lease) = &mut task.lease {
        lease.start_by = None;
    }
    vec![Effect::Changed]
}

fn messages(task: &mut Task, highest: u64, now: Timestamp, policy: &Policy) -> Vec<Effect> {
    renew(task, now, policy);
    if let Some(lease) = &mut task.lease {
        // A machine that reports its clone has begun, even before the process runs.
        lease.start_by = None;
    }
    task.lines = task.lines.max(task.lines_before.saturating_add(highest));
    vec![Effect::KeepLines]
}

/// The lease is over; what it worked since the last pause is added up.
fn stop_working(task: &mut Task, now: Timestamp) -> Duration {
    if let Some(since) = task.working_since.take() {
        task.worked = task.worked.saturating_add(now.since(since));
    }
    task.lease = None;
    task.worked
}

fn become_ended(task: &mut Task, state: State, mut effects: Vec<Effect>) -> Vec<Effect> {
    task.state = state;
    task.cancel_requested = false;
    task.not_before = None;
    effects.extend([Effect::Changed, Effect::Freed]);
    effects
}

fn requeue(task: &mut Task) -> Vec<Effect> {
    task.state = State::Queued;
    vec![Effect::Changed, Effect::Freed, Effect::Queued]
}

fn fail(task: &mut Task, failing: Failing, now: Timestamp, policy: &Policy) -> Vec<Effect> {
    stop_working(task, now);
    if task.cancel_requested && failing.retryable {
        return become_ended(task, State::Canceled, vec![Effect::KeepError]);
    }
    if !failing.retryable {
        return become_ended(task, State::Failed, vec![Effect::KeepError]);
    }
    if failing.handed_back && task.hand_backs < policy.hand_backs_max {
        task.hand_backs += 1;
        task.attempts = task.attempts.saturating_sub(1);
    } else if failing.not_before.is_some() && task.parks < policy.parks_max {
        // Also when that time has passed: the report may have waited, or the machine's clock be another.
        task.parks += 1;
        task.attempts = task.attempts.saturating_sub(1);
    }
    if task.attempts >= policy.attempts_max {
        return become_ended(task, State::Failed, vec![Effect::KeepError]);
    }
    task.not_before = failing.not_before.filter(|&at| at > now);
    let mut effects = vec![Effect::KeepError];
    effects.extend(requeue(task));
    effects
}

fn wait(task: &mut Task, what: WaitingFor, summary: String, now: Timestamp) -> Vec<Effect> {
    stop_working(task, now);
    if task.cancel_requested {
        // Nobody holds it any more who could stop: this is the cancellation.
        return become_ended(task, State::Canceled, Vec::new());
    }
    task.state = State::Waiting;
    task.waits = Some(Waits { what, summary, since: now, decision: None });
    vec![Effect::Changed, Effect::Freed]
}

fn resume(
    task: &mut Task,
    same_machine: bool,
    lease: LeaseHash,
    now: Timestamp,
    policy: &Policy,
) -> Result<Vec<Effect>, Refusal> {
    if task.state != State::Waiting {
        return Err(Refusal::BadState(task.state));
    }
    if !same_machine {
        return Err(Refusal::OtherMachine);
    }
    task.state = State::Running;
    task.waits = None;
    task.working_since = Some(now);
    let expires_at = now.after(policy.lease);
    task.lease = Some(Lease { hash: lease, expires_at, start_by: None });
    Ok(vec![Effect::Changed])
}

fn cancel(task: &mut Task) -> Result<Vec<Effect>, Refusal> {
    match task.state {
        State::Queued => {
            task.state = State::Canceled;
            task.not_before = None;
            Ok(vec![Effect::Changed])
        }
        State::Waiting => {
            task.state = State::Canceled;
            task.waits = None;
            Ok(vec![Effect::Changed])
        }
        State::Dispatched | State::Running if task.cancel_requested => Ok(Vec::new()),
        State::Dispatched | State::Running => {
            task.cancel_requested = true;
            Ok(vec![Effect::Changed])
        }
        State::Completed | State::Failed | State::Canceled => Err(Refusal::BadState(task.state)),
    }
}

fn retry(task: &mut Task) -> Result<Vec<Effect>, Refusal> {
    if !task.state.is_ended() {
        return Err(Refusal::BadState(task.state));
    }
    task.state = State::Queued;
    (task.attempts, task.hand_backs, task.parks) = (0, 0, 0);
    Ok(vec![Effect::Changed, Effect::Queued])
}

fn decide(task: &mut Task, decision: Decision) -> Result<Vec<Effect>, Refusal> {
    match &mut task.waits {
        // The first decision stands; the same one again is no fault.
        Some(waits) if waits.decision.is_none() => {
            waits.decision = Some(decision);
            Ok(vec![Effect::Changed])
        }
        Some(Waits { decision: Some(first), .. }) if *first == decision => Ok(Vec::new()),
        Some(Waits { decision: Some(first), .. }) => Err(Refusal::Decided(first.decided)),
        _ => Err(Refusal::BadState(task.state)),
    }
}

/// Takes a lease that ran out, or a start that did not come. One that a clock gave which was set back since is
/// renewed, as that is all anybody knows of it: else its holder could vanish for as long as the clock went back.
fn sweep(task: &mut Task, now: Timestamp, policy: &Policy) -> Vec<Effect> {
    let Some(lease) = &mut task.lease else { return Vec::new() };
    if lease.expires_at > policy.lease_end_max(now) {
        lease.expires_at = now.after(policy.lease);
        lease.start_by = lease.start_by.map(|by| by.min(now.after(policy.start_within)));
        return Vec::new();
    }
    let lease = *lease;
    let expired = lease.expires_at <= now;
    let late = task.state == State::Dispatched && lease.start_by.is_some_and(|by| by <= now);
    if !expired && !late {
        return Vec::new();
    }
    stop_working(task, now);
    if late && task.hand_backs < policy.hand_backs_max {
        task.hand_backs += 1;
        task.attempts = task.attempts.saturating_sub(1);
    }
    let effects = if task.cancel_requested {
        become_ended(task, State::Canceled, Vec::new())
    } else if task.attempts >= policy.attempts_max {
        become_ended(task, State::Failed, vec![Effect::KeepError])
    } else {
        requeue(task)
    };
    task.ended = Some(Ended { hash: lease.hash, end: End::Expired, became: task.state });
    effects
}
