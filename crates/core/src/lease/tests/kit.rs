//! One task under a clock that is turned by hand; every step is checked for what holds of all steps.

use std::fmt;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::lease::{
    Answer, Call, Decided, Decision, Effect, Failing, Input, LeaseHash, Policy, Refusal, State,
    Step, Task, WaitingFor, step,
};

/// The protocol's numbers, written out: a changed default must be noticed.
pub(super) const LEASE_SECONDS: i64 = 300;
pub(super) const START_SECONDS: i64 = 60;
pub(super) const ATTEMPTS: u32 = 3;
pub(super) const HAND_BACKS: u32 = 10;

/// The tokens of the first, second and third lease of a test, and one that was never given out.
pub(super) const A: LeaseHash = LeaseHash([1; 32]);
pub(super) const B: LeaseHash = LeaseHash([2; 32]);
pub(super) const C: LeaseHash = LeaseHash([3; 32]);
pub(super) const STRANGER: LeaseHash = LeaseHash([99; 32]);

pub(super) const RETRYABLE: Failing =
    Failing { retryable: true, handed_back: false, not_before: None };
pub(super) const FINAL: Failing = Failing { retryable: false, ..RETRYABLE };
pub(super) const HANDED_BACK: Failing = Failing { handed_back: true, ..RETRYABLE };

pub(super) fn parked(until: i64) -> Failing {
    Failing { not_before: Some(at(until)), ..RETRYABLE }
}

/// So many seconds into the test.
pub(super) const fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_785_000_000_000_000 + seconds * 1_000_000)
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn awaits() -> Call {
    Call::Await { what: WaitingFor::Approval, summary: "Send the reply?".to_owned() }
}

pub(super) fn held(lease: LeaseHash, call: Call) -> Input {
    Input::Held { lease: Some(lease), call }
}

pub(super) fn claim(lease: LeaseHash) -> Input {
    Input::Claim { lease, starts_soon: false }
}

pub(super) fn starts_soon(lease: LeaseHash) -> Input {
    Input::Claim { lease, starts_soon: true }
}

pub(super) fn resume(lease: LeaseHash) -> Input {
    Input::Resume { same_machine: true, lease }
}

pub(super) fn decision(decided: Decided, note: &str) -> Decision {
    Decision { decided, note: note.to_owned() }
}

#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) task: Task,
    pub(super) now: i64,
    pub(super) policy: Policy,
}

impl World {
    pub(super) fn queued() -> Self {
        Self { task: Task::new(), now: 0, policy: Policy::DEFAULT }
    }

    /// Claimed with `A`.
    pub(super) fn dispatched() -> Self {
        Self::queued().with(claim(A))
    }

    /// Claimed and started with `A`.
    pub(super) fn running() -> Self {
        Self::dispatched().with(held(A, Call::Start))
    }

    /// Waiting; its last lease was `A`.
    pub(super) fn waiting() -> Self {
        Self::running().with(held(A, awaits()))
    }

    pub(super) fn with(mut self, input: Input) -> Self {
        self.ok(input);
        self
    }

    pub(super) fn pass(&mut self, seconds: i64) -> &mut Self {
        self.now += seconds;
        self
    }

    pub(super) fn put(&mut self, input: Input) -> Step {
        let before = self.task.clone();
        let done = step(&mut self.task, input.clone(), at(self.now), &self.policy);
        check(&before, &input, &done, &self.task, &self.policy);
        done
    }

    #[track_caller]
    pub(super) fn ok(&mut self, input: Input) -> Answer {
        let done = self.put(input.clone());
        done.answer.unwrap_or_else(|refusal| panic!("{input:?}: {refusal:?} of {:?}", self.task))
    }

    #[track_caller]
    pub(super) fn refused(&mut self, input: Input) -> Refusal {
        let done = self.put(input.clone());
        done.answer.expect_err(&format!("{input:?} was not refused"))
    }

    /// What the holder is told.
    #[track_caller]
    pub(super) fn call(&mut self, lease: LeaseHash, call: Call) -> Answer {
        self.ok(held(lease, call))
    }

    /// How the holder is refused.
    #[track_caller]
    pub(super) fn no_call(&mut self, lease: LeaseHash, call: Call) -> Refusal {
        self.refused(held(lease, call))
    }

    /// The billed time of the run that completes now.
    #[track_caller]
    pub(super) fn complete(&mut self, lease: LeaseHash) -> Duration {
        let effects = self.put(held(lease, Call::Complete)).effects;
        let delivered = effects.iter().find_map(|effect| match effect {
            Effect::Deliver { worked } => Some(*worked),
            _ => None,
        });
        delivered.expect("a delivery")
    }
}

/// What holds of every step, whatever its input.
pub(super) fn check(before: &Task, input: &Input, done: &Step, after: &Task, policy: &Policy) {
    let about = fmt::from_fn(|f| write!(f, "{input:?} on {before:?}: {done:?}, {after:?}"));
    let has = |effect: Effect| done.effects.contains(&effect);
    assert_eq!(after.lease.is_some(), after.state.is_held(), "a lease when held: {about}");
    assert_eq!(after.working_since.is_some(), after.state.is_held(), "works when held: {about}");
    assert_eq!(after.waits.is_some(), after.state == State::Waiting, "waits when waiting: {about}");
    assert!(after.attempts <= policy.attempts_max, "attempts: {about}");
    assert!(after.hand_backs <= policy.hand_backs_max, "hand-backs: {about}");
    assert!(after.parks <= policy.parks_max, "parks: {about}");
    assert!(after.not_before.is_none() || after.state == State::Queued, "parked: {about}");
    let promised = after.lease.is_some_and(|lease| lease.start_by.is_some());
    assert!(!promised || after.state == State::Dispatched, "a start is promised: {about}");
    assert!(!after.cancel_requested || after.state.is_held(), "a holder is asked: {about}");
    assert!(after.lines >= before.lines && after.lines >= after.lines_before, "lines: {about}");

    let changed = before.state != after.state;
    assert!(!changed || has(Effect::Changed), "a change is told: {about}");
    let freed = before.state.is_held() && !after.state.is_held();
    assert_eq!(has(Effect::Freed), freed, "a place is freed: {about}");
    let queued = changed && after.state == State::Queued;
    assert_eq!(has(Effect::Queued), queued, "queued: {about}");
    let delivers = done.effects.iter().any(|effect| matches!(effect, Effect::Deliver { .. }));
    assert_eq!(delivers, changed && after.state == State::Completed, "delivered once: {about}");
    let failed = changed && after.state == State::Failed;
    assert!(!failed || has(Effect::KeepError), "an error is kept: {about}");

    match &done.answer {
        Err(refusal) => {
            assert_eq!(before, after, "a refusal changes nothing: {about}");
            assert!(done.effects.is_empty(), "a refusal has no effects: {about}");
            if let Refusal::BadState(state) = refusal {
                let of_the_end = before.ended.is_some_and(|ended| ended.became == *state);
                assert!(*state == before.state || of_the_end, "the state it is in: {about}");
            }
        }
        Ok(answer) if answer.repeated => {
            assert_eq!(before, after, "a repeat changes nothing: {about}");
            assert!(done.effects.is_empty(), "a repeat has no effects: {about}");
        }
        Ok(answer) => {
            assert_eq!(answer.status, after.state, "{about}");
            assert_eq!(answer.expires_at, after.lease.map(|lease| lease.expires_at), "{about}");
            assert_eq!(answer.cancel_requested, after.cancel_requested, "{about}");
        }
    }
}
