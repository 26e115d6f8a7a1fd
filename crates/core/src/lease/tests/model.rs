//! Random sequences against the rules once more, in other words: budgets that run down, spans of work, and a
//! task that is in one of four places. `PROPTEST_CASES` sets how many sequences there are (256).

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::kit::{at, check, decision};
use crate::lease::{
    Call, Decided, Decision, Effect, Failing, Input, LeaseHash, Policy, Refusal, State, Task,
    WaitingFor, step,
};

/// Operations of one sequence.
const OPS_MAX: usize = 80;

/// Seconds after which every lease has run out and every parked task is due, although the clock went back.
const LONG: i64 = 100_000;

/// Small numbers, so that random sequences reach the bounds.
const POLICY: Policy = Policy {
    lease: Duration::from_secs(300),
    start_within: Duration::from_secs(60),
    attempts_max: 3,
    hand_backs_max: 2,
    parks_max: 2,
};

#[derive(Debug, Clone)]
enum Op {
    Claim {
        starts_soon: bool,
    },
    /// With the token of the lease `back` leases ago; `None`: without any.
    Held {
        back: Option<usize>,
        call: Call,
    },
    Resume {
        same_machine: bool,
    },
    Cancel,
    Retry,
    Decide(Decision),
    Sweep,
    Pass(i64),
}

fn any_call() -> impl Strategy<Value = Call> {
    let flags = (prop::bool::weighted(0.8), prop::bool::weighted(0.4));
    let failing =
        (flags, prop::option::of(-100i64..200)).prop_map(|((retryable, handed_back), until)| {
            // The time is of the test's beginning; the world moves it to its own.
            Failing { retryable: retryable || handed_back, handed_back, not_before: until.map(at) }
        });
    prop_oneof![
        3 => Just(Call::Start),
        3 => (1u64..9).prop_map(|highest| Call::Messages { highest }),
        1 => Just(Call::Session),
        1 => Just(Call::Complete),
        4 => failing.prop_map(Call::Fail),
        2 => Just(Call::CancelAck),
        2 => Just(Call::Await { what: WaitingFor::Input, summary: "Which?".to_owned() }),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    let back = prop_oneof![1 => Just(None), 12 => Just(Some(0)), 3 => (1usize..4).prop_map(Some)];
    let decided = prop::sample::select(vec![Decided::Approved, Decided::Denied]);
    prop_oneof![
        8 => any::<bool>().prop_map(|starts_soon| Op::Claim { starts_soon }),
        14 => (back, any_call()).prop_map(|(back, call)| Op::Held { back, call }),
        2 => prop::bool::weighted(0.8).prop_map(|same_machine| Op::Resume { same_machine }),
        1 => Just(Op::Cancel),
        1 => Just(Op::Retry),
        1 => decided.prop_map(|decided| Op::Decide(decision(decided, ""))),
        4 => Just(Op::Sweep),
        4 => prop_oneof![4 => 0i64..100, 2 => 100i64..400, 1 => -200i64..0].prop_map(Op::Pass),
    ]
}

#[derive(Debug, Clone, PartialEq)]
enum Place {
    Line {
        from: i64,
    },
    Held {
        token: LeaseHash,
        runs: bool,
        until: i64,
        start_by: Option<i64>,
        asked: bool,
        since: i64,
    },
    Person {
        decided: Option<Decision>,
    },
    Over(State),
}

/// How the last lease ended: with which word of its holder, or taken by the sweeper.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Last {
    Said(&'static str, State),
    Taken,
}

#[derive(Debug, Clone)]
struct Model {
    place: Place,
    tries: u32,
    hand_backs: u32,
    parks: u32,
    last: Option<(LeaseHash, Last)>,
    spent: i64,
    lines: u64,
    lines_of_attempt: u64,
}

/// Status, the lease's end, whether asked to cancel, whether repeated.
type Told = (State, Option<i64>, bool, bool);

impl Model {
    fn new() -> Self {
        let place = Place::Line { from: i64::MIN };
        let (tries, hand_backs, parks) =
            (POLICY.attempts_max, POLICY.hand_backs_max, POLICY.parks_max);
        let (last, spent, lines, lines_of_attempt) = (None, 0, 0, 0);
        Self { place, tries, hand_backs, parks, last, spent, lines, lines_of_attempt }
    }

    fn state(&self) -> State {
        match &self.place {
            Place::Line { .. } => State::Queued,
            Place::Held { runs: false, .. } => State::Dispatched,
            Place::Held { runs: true, .. } => State::Running,
            Place::Person { .. } => State::Waiting,
            Place::Over(state) => *state,
        }
    }

    fn told(&self) -> Told {
        let (until, asked) = match &self.place {
            Place::Held { until, asked, .. } => (Some(*until), *asked),
            _ => (None, false),
        };
        (self.state(), until, asked, false)
    }

    /// A lease that ended without success: another try, if there is one.
    fn again(&mut self, asked: bool, from: i64) {
        self.place = match (asked, self.tries) {
            (true, _) => Place::Over(State::Canceled),
            (false, 0) => Place::Over(State::Failed),
            (false, _) => Place::Line { from },
        };
    }

    fn step(&mut self, input: &Input, now: i64) -> Result<Told, Refusal> {
        let bad = Err(Refusal::BadState(self.state()));
        match (input, &mut self.place) {
            (Input::Held { lease, call }, _) => return self.hear(*lease, call, now),
            (Input::Claim { lease, starts_soon }, Place::Line { from }) if *from <= now => {
                self.tries -= 1;
                self.spent = 0;
                self.lines += std::mem::take(&mut self.lines_of_attempt);
                let start_by = starts_soon.then_some(now + 60);
                let (token, runs, asked) = (*lease, false, false);
                self.place =
                    Place::Held { token, runs, until: now + 300, start_by, asked, since: now };
            }
            (Input::Resume { same_machine: true, lease }, Place::Person { .. }) => {
                let (token, runs, asked, start_by) = (*lease, true, false, None);
                self.place =
                    Place::Held { token, runs, until: now + 300, start_by, asked, since: now };
            }
            (Input::Cancel, Place::Held { asked, .. }) => *asked = true,
            (Input::Cancel, Place::Line { .. } | Place::Person { .. }) => {
                self.place = Place::Over(State::Canceled);
            }
            (Input::Retry, Place::Over(_)) => {
                let (last, lines) = (self.last, self.lines + self.lines_of_attempt);
                *self = Self { last, lines, ..Self::new() };
            }
            (Input::Decide(new), Place::Person { decided }) => {
                let first = decided.get_or_insert_with(|| new.clone());
                if first != new {
                    return Err(Refusal::Decided(first.decided));
                }
            }
            (Input::Resume { same_machine: false, .. }, Place::Person { .. }) => {
                return Err(Refusal::OtherMachine);
            }
            (Input::Sweep, place) => {
                if let Place::Held { until, start_by, .. } = place
                    && *until > now + 305
                {
                    *until = now + 300;
                    *start_by = start_by.map(|by| by.min(now + 60));
                } else if let Place::Held { token, runs, until, start_by, asked, .. } =
                    place.clone()
                {
                    let late = !runs && start_by.is_some_and(|by| by <= now);
                    if late && self.hand_backs > 0 {
                        (self.hand_backs, self.tries) = (self.hand_backs - 1, self.tries + 1);
                    }
                    if late || until <= now {
                        self.last = Some((token, Last::Taken));
                        self.again(asked, i64::MIN);
                    }
                }
            }
            _ => return bad,
        }
        Ok(self.told())
    }

    fn hear(&mut self, shown: Option<LeaseHash>, call: &Call, now: i64) -> Result<Told, Refusal> {
        let end = match call {
            Call::Complete => Some("complete"),
            Call::Fail(_) => Some("fail"),
            Call::CancelAck => Some("cancel-ack"),
            _ => None,
        };
        let state = self.state();
        let Place::Held { token, runs, until, start_by, asked, since } = &mut self.place else {
            return self.not_held(shown, end);
        };
        if Some(*token) != shown {
            return self.not_held(shown, end);
        }
        let (token, asked, worked) = (*token, *asked, (now - *since).max(0));
        match call {
            Call::Start | Call::Messages { .. } => {
                (*until, *start_by) = ((now + 300).max(*until), None);
                if let Call::Messages { highest } = call {
                    self.lines_of_attempt = self.lines_of_attempt.max(*highest);
                } else if !*runs {
                    (*runs, *since) = (true, now);
                }
            }
            Call::Session => {}
            Call::CancelAck if !asked => return Err(Refusal::BadState(state)),
            Call::CancelAck => self.place = Place::Over(State::Canceled),
            Call::Complete => {
                self.spent += worked;
                self.place = Place::Over(State::Completed);
            }
            Call::Await { .. } => {
                self.spent += worked;
                self.place = if asked {
                    Place::Over(State::Canceled)
                } else {
                    Place::Person { decided: None }
                };
            }
            Call::Fail(Failing { retryable: false, .. }) => self.place = Place::Over(State::Failed),
            Call::Fail(Failing { handed_back, not_before, .. }) => {
                if *handed_back && self.hand_backs > 0 {
                    (self.hand_backs, self.tries) = (self.hand_backs - 1, self.tries + 1);
                } else if not_before.is_some() && self.parks > 0 {
                    (self.parks, self.tries) = (self.parks - 1, self.tries + 1);
                }
                let from = not_before.map(second).filter(|from| *from > now);
                self.again(asked, from.unwrap_or(i64::MIN));
            }
        }
        if let Some(end) = end {
            self.last = Some((token, Last::Said(end, self.state())));
        }
        Ok(self.told())
    }

    /// A token that is not the task's.
    fn not_held(&self, shown: Option<LeaseHash>, end: Option<&str>) -> Result<Told, Refusal> {
        match self.last.filter(|(token, _)| Some(*token) == shown).map(|(_, last)| last) {
            Some(Last::Said(first, became)) if Some(first) == end => {
                Ok((became, None, false, true))
            }
            Some(Last::Said(_, became)) if end.is_some() => Err(Refusal::BadState(became)),
            Some(Last::Taken) => Err(Refusal::LeaseExpired),
            _ => Err(Refusal::LeaseLost),
        }
    }
}

/// Back from [`at`].
fn second(time: crate::clock::Timestamp) -> i64 {
    (time.as_micros() - at(0).as_micros()) / 1_000_000
}

struct World {
    task: Task,
    model: Model,
    now: i64,
    tokens: Vec<LeaseHash>,
    seen: BTreeSet<String>,
}

impl World {
    fn new() -> Self {
        let (task, model, now) = (Task::new(), Model::new(), 0);
        Self { task, model, now, tokens: Vec::new(), seen: BTreeSet::new() }
    }

    fn new_token(&mut self) -> LeaseHash {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(self.tokens.len() as u64 + 1).to_be_bytes());
        LeaseHash(hash)
    }

    fn apply(&mut self, op: Op) {
        let input = match op {
            Op::Pass(seconds) => {
                self.now += seconds;
                return;
            }
            Op::Claim { starts_soon } => Input::Claim { lease: self.new_token(), starts_soon },
            Op::Resume { same_machine } => Input::Resume { same_machine, lease: self.new_token() },
            Op::Held { back, call } => {
                let token = |back| self.tokens.iter().rev().nth(back).copied();
                let call = match call {
                    Call::Fail(failing) => {
                        let until = failing.not_before.map(|until| at(self.now + second(until)));
                        Call::Fail(Failing { not_before: until, ..failing })
                    }
                    call => call,
                };
                Input::Held { lease: back.and_then(token), call }
            }
            Op::Cancel => Input::Cancel,
            Op::Retry => Input::Retry,
            Op::Decide(decision) => Input::Decide(decision),
            Op::Sweep => Input::Sweep,
        };
        self.step(input);
    }

    fn step(&mut self, input: Input) {
        let before = self.task.clone();
        let mut again = before.clone();
        let done = step(&mut self.task, input.clone(), at(self.now), &POLICY);
        assert_eq!(step(&mut again, input.clone(), at(self.now), &POLICY), done);
        assert_eq!(again, self.task);
        check(&before, &input, &done, &self.task, &POLICY);

        let expected = self.model.step(&input, self.now);
        let told = done.answer.map(|answer| {
            let until = answer.expires_at.map(second);
            (answer.status, until, answer.cancel_requested, answer.repeated)
        });
        assert_eq!(told, expected, "{input:?} on {before:?}");
        if let Input::Claim { lease, .. } | Input::Resume { lease, .. } = input
            && told.is_ok()
        {
            self.tokens.push(lease);
        }
        self.compare(&done.effects);
        self.note(&before, told, &done.effects);
    }

    fn compare(&self, effects: &[Effect]) {
        let model = &self.model;
        assert_eq!(self.task.state, model.state());
        // What a cancelled task has used up is of no consequence: a retry begins anew.
        if self.task.state != State::Canceled {
            assert_eq!(self.task.attempts, POLICY.attempts_max - model.tries);
            assert_eq!(self.task.hand_backs, POLICY.hand_backs_max - model.hand_backs);
            assert_eq!(self.task.parks, POLICY.parks_max - model.parks);
        }
        assert_eq!(self.task.lines, model.lines + model.lines_of_attempt);
        let due = matches!(model.place, Place::Line { from } if from <= self.now);
        assert_eq!(self.task.is_due(at(self.now)), due);
        let decided = match &model.place {
            Place::Person { decided } => decided.clone(),
            _ => None,
        };
        assert_eq!(self.task.waits.clone().and_then(|waits| waits.decision), decided);
        for effect in effects {
            if let Effect::Deliver { worked } = effect {
                assert_eq!(worked.as_micros(), u128::try_from(model.spent * 1_000_000).unwrap());
            }
        }
    }

    fn note(&mut self, before: &Task, told: Result<Told, Refusal>, effects: &[Effect]) {
        let (was, is) = (before.state.word(), self.task.state.word());
        if was != is {
            self.seen.insert(format!("{was} to {is}"));
        }
        match told {
            Ok((.., repeated)) => self.seen.extend(repeated.then(|| "repeated".to_owned())),
            Err(Refusal::BadState(_)) => _ = self.seen.insert("bad state".to_owned()),
            Err(Refusal::OtherMachine) => _ = self.seen.insert("other machine".to_owned()),
            Err(Refusal::Decided(_)) => _ = self.seen.insert("decided".to_owned()),
            Err(refusal) => _ = self.seen.insert(format!("{refusal:?}")),
        }
        if told.is_ok() && self.task.hand_backs == POLICY.hand_backs_max {
            self.seen.insert("hand-backs are used up".to_owned());
        }
        if told.is_ok() && self.task.parks == POLICY.parks_max {
            self.seen.insert("parks are used up".to_owned());
        }
        if effects
            .iter()
            .any(|effect| matches!(effect, Effect::Deliver { worked } if !worked.is_zero()))
        {
            self.seen.insert("billed".to_owned());
        }
    }

    /// Without machines a task comes to rest with the first sweep; with machines that do nothing but claim
    /// it has an end after a bounded number of claims, and with a person at once.
    fn finish(mut self) -> BTreeSet<String> {
        self.now += LONG;
        self.step(Input::Sweep);
        let rests = self.task.clone();
        assert!(!rests.state.is_held(), "{rests:?}");
        for _ in 0..20 {
            self.now += LONG;
            self.step(Input::Sweep);
            assert_eq!(self.task, rests);
        }
        let mut cancelled = self.task.clone();
        step(&mut cancelled, Input::Cancel, at(self.now), &POLICY);
        assert!(cancelled.state.is_ended(), "{cancelled:?}");

        if self.task.state == State::Waiting {
            self.apply(Op::Resume { same_machine: true });
        }
        let claims_max = POLICY.attempts_max + POLICY.hand_backs_max;
        for n in 0..=claims_max {
            self.now += LONG;
            self.step(Input::Sweep);
            if self.task.state.is_ended() {
                return self.seen;
            }
            self.apply(Op::Claim { starts_soon: n % 2 == 0 });
        }
        panic!("more than {claims_max} claims: {:?}", self.task);
    }
}

proptest! {
    #[test]
    fn f_059_to_f_110_the_machine_does_what_the_simple_model_does(
        ops in prop::collection::vec(any_op(), 1..OPS_MAX),
    ) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
        }
        world.finish();
    }
}

/// The random sequences are worth something only if they reach the interesting places.
#[test]
fn the_random_sequences_reach_every_change_and_refusal() {
    let places = [
        "queued to dispatched",
        "queued to canceled",
        "dispatched to running",
        "dispatched to queued",
        "dispatched to waiting",
        "dispatched to completed",
        "dispatched to failed",
        "dispatched to canceled",
        "running to queued",
        "running to waiting",
        "running to completed",
        "running to failed",
        "running to canceled",
        "waiting to running",
        "waiting to canceled",
        "completed to queued",
        "failed to queued",
        "canceled to queued",
        "repeated",
        "bad state",
        "other machine",
        "decided",
        "LeaseLost",
        "LeaseExpired",
        "hand-backs are used up",
        "parks are used up",
        "billed",
    ];
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    for _ in 0..300 {
        let ops =
            prop::collection::vec(any_op(), 1..OPS_MAX).new_tree(&mut runner).unwrap().current();
        let mut world = World::new();
        for op in ops {
            world.apply(op);
        }
        seen.extend(world.finish());
    }
    for place in places {
        assert!(seen.contains(place), "never reached: {place}");
    }
    let changes = seen.iter().filter(|place| place.contains(" to ")).count();
    assert_eq!(changes, 18, "a change that the page does not know: {seen:?}");
}
