//! The protocol's table of states and calls, as it stands on its page, against every way into each state.

use super::kit::*;
use crate::lease::{Call, Input, LeaseHash, Refusal, State};

/// The page's table, and a row for what it takes for granted: a queued task belongs to nobody.
const TABLE: &str = "
| state | start | messages | session | complete, fail | cancel-ack | await | resume |
| dispatched | running | ok | ok | ok | if asked | ok | bad_state |
| running | same answer | ok | ok | ok | if asked | ok | bad_state |
| waiting | no lease | no lease | no lease | no lease | no lease | no lease | ok |
| ended | lease_lost | lease_lost | lease_lost | first answer to its own lease | first answer | lease_lost | bad_state |
| queued | lease_lost | lease_lost | lease_lost | first answer to its own lease | first answer | lease_lost | bad_state |
";

/// A task whose last lease was `own`.
struct Case {
    name: &'static str,
    row: &'static str,
    world: World,
    own: LeaseHash,
    /// The call that ended `own`.
    ended_by: Option<&'static str>,
    /// The sweeper took `own`.
    swept: bool,
}

fn case(name: &'static str, row: &'static str, world: World) -> Case {
    Case { name, row, world, own: A, ended_by: None, swept: false }
}

fn ended(name: &'static str, row: &'static str, world: World, by: &'static str) -> Case {
    Case { ended_by: Some(by), ..case(name, row, world) }
}

fn swept(name: &'static str, row: &'static str, mut world: World) -> Case {
    world.pass(LEASE_SECONDS).ok(Input::Sweep);
    Case { swept: true, ..case(name, row, world) }
}

/// Every way into every state.
fn cases() -> Vec<Case> {
    let (dispatched, running, waiting) = (World::dispatched, World::running, World::waiting);
    let mut third = World::queued();
    for lease in [B, C] {
        third = third.with(claim(lease)).with(held(lease, Call::Fail(RETRYABLE)));
    }
    let third = || third.clone().with(claim(A));
    let asked = || running().with(Input::Cancel);
    let completed = || running().with(held(A, Call::Complete));
    vec![
        case("new", "queued", World::queued()),
        ended("failed once", "queued", running().with(held(A, Call::Fail(RETRYABLE))), "fail"),
        ended("handed back", "queued", dispatched().with(held(A, Call::Fail(HANDED_BACK))), "fail"),
        ended("parked", "queued", running().with(held(A, Call::Fail(parked(999)))), "fail"),
        swept("taken once", "queued", running()),
        ended("retried", "queued", completed().with(Input::Retry), "complete"),
        case("claimed", "dispatched", dispatched()),
        case("claimed, asked to cancel", "dispatched", dispatched().with(Input::Cancel)),
        case("claimed again", "dispatched", third()),
        case("started", "running", running()),
        case("asked to cancel", "running", asked()),
        Case { own: B, ..case("resumed", "running", waiting().with(resume(B))) },
        case("waiting", "waiting", waiting()),
        case("waiting unstarted", "waiting", dispatched().with(held(A, awaits()))),
        ended("completed", "ended", completed(), "complete"),
        ended(
            "completed unstarted",
            "ended",
            dispatched().with(held(A, Call::Complete)),
            "complete",
        ),
        ended(
            "completed although asked",
            "ended",
            asked().with(held(A, Call::Complete)),
            "complete",
        ),
        ended("failed", "ended", running().with(held(A, Call::Fail(FINAL))), "fail"),
        ended("failed thrice", "ended", third().with(held(A, Call::Fail(RETRYABLE))), "fail"),
        ended("cancelled", "ended", asked().with(held(A, Call::CancelAck)), "cancel-ack"),
        ended("failed when asked", "ended", asked().with(held(A, Call::Fail(RETRYABLE))), "fail"),
        swept("taken thrice", "ended", third()),
        swept("taken when asked", "ended", asked()),
        case("cancelled while it waited", "ended", waiting().with(Input::Cancel)),
        case("cancelled as it would wait", "ended", asked().with(held(A, awaits()))),
        case("cancelled while queued", "ended", World::queued().with(Input::Cancel)),
    ]
}

/// The calls of a column's name.
fn calls(column: &str) -> Vec<(&str, Call)> {
    let each = column.split(", ");
    let calls = each.flat_map(|name| match name {
        "start" => vec![(name, Call::Start)],
        "messages" => vec![(name, Call::Messages { highest: 1 })],
        "session" => vec![(name, Call::Session)],
        "complete" => vec![(name, Call::Complete)],
        "fail" => [RETRYABLE, FINAL, HANDED_BACK, parked(9_999)]
            .map(|failing| (name, Call::Fail(failing)))
            .into(),
        "cancel-ack" => vec![(name, Call::CancelAck)],
        "await" => vec![(name, awaits())],
        other => panic!("no such column: {other}"),
    });
    calls.collect()
}

#[test]
fn f_060_to_f_101_every_call_in_every_state_is_answered_as_the_page_says() {
    let mut rows = TABLE.trim().lines().map(|line| {
        let cells = line.trim_matches('|').split('|').map(str::trim);
        cells.collect::<Vec<_>>()
    });
    let head = rows.next().unwrap();
    let rows: Vec<_> = rows.collect();
    let mut judged = 0;
    for case in cases() {
        let row = rows.iter().find(|row| row[0] == case.row).unwrap();
        for (column, cell) in head.iter().zip(row).skip(1) {
            if *column == "resume" {
                judge_resume(&case, cell);
                judged += 1;
                continue;
            }
            for (name, call) in calls(column) {
                judge(&case, name, &call, cell);
                judged += 1;
            }
        }
    }
    assert_eq!(judged, 26 * 11);
}

fn judge(case: &Case, name: &str, call: &Call, cell: &str) {
    let about = format!("{call:?} on a task {:?}", case.name);
    // Without the task's own lease every call is refused alike, whatever the state.
    for shown in [None, Some(STRANGER)] {
        let mut world = case.world.clone();
        let refusal = world.refused(Input::Held { lease: shown, call: call.clone() });
        assert_eq!(refusal, Refusal::LeaseLost, "{about}, with {shown:?}");
    }
    let mut world = case.world.clone();
    let before = world.task.clone();
    let answer = world.put(held(case.own, call.clone())).answer;
    let state = before.state;
    let lost = if case.swept { Refusal::LeaseExpired } else { Refusal::LeaseLost };
    match cell {
        "running" | "same answer" => {
            let answer = answer.expect(&about);
            assert_eq!((answer.status, answer.repeated), (State::Running, false), "{about}");
        }
        "ok" => assert!(!answer.expect(&about).repeated, "{about}"),
        "if asked" if before.cancel_requested => {
            assert_eq!(answer.expect(&about).status, State::Canceled, "{about}");
        }
        "if asked" => assert_eq!(answer, Err(Refusal::BadState(state)), "{about}"),
        "no lease" | "lease_lost" => assert_eq!(answer, Err(lost), "{about}"),
        "first answer" | "first answer to its own lease" => match case.ended_by {
            None => assert_eq!(answer, Err(lost), "{about}"),
            Some(by) if by == name => {
                let answer = answer.expect(&about);
                assert!(answer.repeated, "{about}");
                assert_eq!(Some(answer.status), before.ended.map(|ended| ended.became), "{about}");
            }
            Some(_) => assert!(matches!(answer, Err(Refusal::BadState(_))), "{about}: {answer:?}"),
        },
        other => panic!("no such cell: {other}"),
    }
}

fn judge_resume(case: &Case, cell: &str) {
    let about = format!("resume of a task {:?}", case.name);
    let state = case.world.task.state;
    let other = Input::Resume { same_machine: false, lease: C };
    let told =
        if state == State::Waiting { Refusal::OtherMachine } else { Refusal::BadState(state) };
    assert_eq!(case.world.clone().refused(other), told, "{about}");
    let answer = case.world.clone().put(resume(C)).answer;
    match cell {
        "ok" => assert_eq!(answer.expect(&about).status, State::Running, "{about}"),
        "bad_state" => assert_eq!(answer, Err(Refusal::BadState(state)), "{about}"),
        other => panic!("no such cell: {other}"),
    }
}

/// What people and the sweeper may do, in the same words.
#[test]
fn f_031_f_096_f_101_claim_cancel_retry_and_decide_in_every_state() {
    for case in cases() {
        let name = case.name;
        let (state, now) = (case.world.task.state, at(case.world.now));
        let due = state == State::Queued && case.world.task.not_before.is_none_or(|at| at <= now);
        let bad = Err(Refusal::BadState(state));
        let put = |input| case.world.clone().put(input).answer.map(|answer| answer.status);
        assert_eq!(case.world.task.is_due(now), due, "{name}");
        let claimed = put(claim(C));
        assert_eq!(claimed, if due { Ok(State::Dispatched) } else { bad }, "{name}");
        let cancelled = match state {
            State::Dispatched | State::Running => Ok(state),
            State::Queued | State::Waiting => Ok(State::Canceled),
            State::Completed | State::Failed | State::Canceled => bad,
        };
        assert_eq!(put(Input::Cancel), cancelled, "{name}");
        let retried = if case.row == "ended" { Ok(State::Queued) } else { bad };
        assert_eq!(put(Input::Retry), retried, "{name}");
        let decided = put(Input::Decide(decision(crate::lease::Decided::Approved, "")));
        assert_eq!(decided, if state == State::Waiting { Ok(state) } else { bad }, "{name}");
        assert_eq!(put(Input::Sweep), Ok(state), "{name}");
    }
}

#[test]
fn the_words_of_states_are_the_protocols() {
    let words = ["queued", "dispatched", "running", "waiting", "completed", "failed", "canceled"];
    assert_eq!(State::ALL.map(State::word), words);
    for state in State::ALL {
        assert_eq!(State::from_word(state.word()), Some(state));
        let (held, over) = (state.is_held(), state.is_ended());
        assert_eq!(held, matches!(state.word(), "dispatched" | "running"));
        assert_eq!(over, matches!(state.word(), "completed" | "failed" | "canceled"));
    }
    assert_eq!(State::from_word("cancelled"), None);
}
