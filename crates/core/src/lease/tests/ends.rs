//! Ends: what a task becomes, what is kept of it, and the same end told twice.

use super::kit::*;
use crate::lease::{Call, Effect, Input, Refusal, State};

#[test]
fn f_075_f_076_f_080_a_completed_run_is_delivered_with_its_session() {
    let mut world = World::running();
    world.pass(90);
    let done = world.put(held(A, Call::Complete));
    let answer = done.answer.unwrap();
    assert_eq!((answer.status, answer.expires_at), (State::Completed, None));
    assert!(done.effects.contains(&Effect::KeepSession), "{:?}", done.effects);
    assert!(done.effects.contains(&Effect::Deliver { worked: seconds(90) }), "{:?}", done.effects);
}

#[test]
fn f_074_the_session_is_kept_before_the_run_ends_and_again_when_it_changes() {
    for mut world in [World::dispatched(), World::running()] {
        let state = world.task.state;
        for _ in 0..2 {
            let done = world.put(held(A, Call::Session));
            assert_eq!(done.effects, [Effect::KeepSession]);
            assert_eq!(done.answer.unwrap().status, state);
        }
    }
}

#[test]
fn f_089_a_final_failure_fails_at_the_first_attempt() {
    for mut world in [World::dispatched(), World::running()] {
        assert_eq!(world.call(A, Call::Fail(FINAL)).status, State::Failed);
        assert_eq!(world.task.attempts, 1);
    }
    // It stays final with whatever else it says.
    let final_and = [
        crate::lease::Failing { handed_back: true, ..FINAL },
        crate::lease::Failing { retryable: false, ..parked(999) },
    ];
    for failing in final_and {
        assert_eq!(World::running().call(A, Call::Fail(failing)).status, State::Failed);
    }
}

#[test]
fn f_090_a_failure_delivers_nothing_but_its_error() {
    for failing in [RETRYABLE, FINAL, HANDED_BACK, parked(999)] {
        let effects = World::running().put(held(A, Call::Fail(failing))).effects;
        assert!(effects.contains(&Effect::KeepError), "{effects:?}");
        let delivers = effects.iter().any(|effect| matches!(effect, Effect::Deliver { .. }));
        assert!(!delivers, "{effects:?}");
    }
}

/// The three calls that end a lease, each on a task that was asked to cancel, so that all are allowed.
fn ends() -> [Call; 3] {
    [Call::Complete, Call::Fail(RETRYABLE), Call::CancelAck]
}

#[test]
fn an_end_told_again_gets_its_first_answer_and_another_end_is_a_bad_state() {
    for first in ends() {
        let mut world = World::running();
        world.ok(Input::Cancel);
        let told = world.call(A, first.clone());
        for again in ends() {
            world.pass(1_000);
            if again == first {
                let answer = world.call(A, again);
                assert!(answer.repeated && !told.repeated);
                assert_eq!(crate::lease::Answer { repeated: false, ..answer }, told);
            } else {
                assert_eq!(world.no_call(A, again), Refusal::BadState(told.status));
            }
        }
    }
}

/// A machine that lost the answer to its `fail` says it again, perhaps in other words.
#[test]
fn a_repeated_failure_counts_once_also_when_it_says_more() {
    let mut world = World::running();
    assert_eq!(world.call(A, Call::Fail(HANDED_BACK)).status, State::Queued);
    for failing in [HANDED_BACK, RETRYABLE, FINAL, parked(999)] {
        let answer = world.call(A, Call::Fail(failing));
        assert_eq!((answer.status, answer.repeated), (State::Queued, true));
    }
    assert_eq!((world.task.attempts, world.task.hand_backs), (0, 1));
}

#[test]
fn f_062_a_repeated_failure_is_answered_also_after_the_task_went_to_another() {
    let mut world = World::running();
    world.call(A, Call::Fail(RETRYABLE));
    world.ok(claim(B));
    let answer = world.call(A, Call::Fail(RETRYABLE));
    assert_eq!((answer.status, answer.repeated), (State::Queued, true));
    assert_eq!(world.no_call(A, Call::Complete), Refusal::BadState(State::Queued));
    // Once the second lease has ended, the first is forgotten.
    world.call(B, Call::Complete);
    assert_eq!(world.no_call(A, Call::Fail(RETRYABLE)), Refusal::LeaseLost);
    assert!(world.call(B, Call::Complete).repeated);
}

#[test]
fn f_080_a_second_completion_delivers_nothing() {
    let mut world = World::running();
    world.pass(60);
    assert_eq!(world.complete(A), seconds(60));
    let again = world.put(held(A, Call::Complete));
    assert_eq!(again.answer.unwrap().status, State::Completed);
    assert_eq!(again.effects, []);
}

#[test]
fn a_retried_task_starts_afresh_and_still_knows_how_its_last_lease_ended() {
    let mut world = World::running();
    world.call(A, Call::Fail(FINAL));
    world.ok(Input::Retry);
    assert_eq!((world.task.state, world.task.attempts), (State::Queued, 0));
    let answer = world.call(A, Call::Fail(FINAL));
    assert_eq!((answer.status, answer.repeated), (State::Failed, true));
    for lease in [B, C] {
        world.ok(claim(lease));
        assert_eq!(world.call(lease, Call::Fail(RETRYABLE)).status, State::Queued);
    }
    world.ok(claim(A));
    assert_eq!(world.call(A, Call::Fail(RETRYABLE)).status, State::Failed);
}
