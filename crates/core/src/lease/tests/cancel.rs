//! Cancelling: asked of the holder, done at once where there is none.

use super::kit::*;
use crate::lease::{Call, Effect, Input, Refusal, State};

#[test]
fn a_task_that_nobody_holds_is_cancelled_at_once() {
    let mut parked_task = World::running();
    parked_task.call(A, Call::Fail(parked(999)));
    for mut world in [World::queued(), parked_task, World::waiting()] {
        let done = world.put(Input::Cancel);
        assert_eq!(done.answer.unwrap().status, State::Canceled);
        assert_eq!(done.effects, [Effect::Changed]);
        assert_eq!(world.refused(claim(B)), Refusal::BadState(State::Canceled));
    }
}

#[test]
fn f_073_f_091_the_holder_learns_of_it_and_confirms() {
    for mut world in [World::dispatched(), World::running()] {
        let state = world.task.state;
        assert_eq!(world.ok(Input::Cancel).status, state);
        assert!(world.call(A, Call::Messages { highest: 1 }).cancel_requested);
        assert!(world.call(A, Call::Session).cancel_requested);
        assert!(world.call(A, Call::Start).cancel_requested);
        assert!(world.call(A, Call::Start).cancel_requested);
        let answer = world.call(A, Call::CancelAck);
        assert_eq!((answer.status, answer.expires_at), (State::Canceled, None));
    }
}

#[test]
fn asking_twice_is_asking_once() {
    let mut world = World::running();
    assert_eq!(world.put(Input::Cancel).effects, [Effect::Changed]);
    let again = world.put(Input::Cancel);
    assert_eq!(again.effects, []);
    assert!(again.answer.unwrap().cancel_requested);
}

#[test]
fn f_092_an_ack_that_nobody_asked_for_is_refused() {
    for mut world in [World::dispatched(), World::running()] {
        let state = world.task.state;
        assert_eq!(world.no_call(A, Call::CancelAck), Refusal::BadState(state));
    }
    // A request ends with the task it was made of.
    let mut world = World::running();
    world.ok(Input::Cancel);
    world.call(A, Call::Complete);
    world.ok(Input::Retry);
    assert!(!world.ok(claim(B)).cancel_requested);
    assert_eq!(world.no_call(B, Call::CancelAck), Refusal::BadState(State::Dispatched));
}

#[test]
fn f_110_a_machine_that_vanished_before_it_confirmed_leaves_a_cancelled_task() {
    for mut world in [World::dispatched(), World::running()] {
        world.ok(Input::Cancel);
        world.pass(LEASE_SECONDS).ok(Input::Sweep);
        assert_eq!(world.task.state, State::Canceled);
        assert_eq!(world.no_call(A, Call::CancelAck), Refusal::LeaseExpired);
    }
    let mut late = World::queued().with(Input::Claim { lease: A, starts_soon: true });
    late.ok(Input::Cancel);
    late.pass(START_SECONDS).ok(Input::Sweep);
    assert_eq!(late.task.state, State::Canceled);
}

#[test]
fn a_failure_after_the_request_is_not_tried_again() {
    for failing in [RETRYABLE, HANDED_BACK, parked(999)] {
        let mut world = World::running();
        world.ok(Input::Cancel);
        assert_eq!(world.call(A, Call::Fail(failing)).status, State::Canceled);
        let again = world.call(A, Call::Fail(failing));
        assert_eq!((again.status, again.repeated), (State::Canceled, true));
    }
}

#[test]
fn who_was_quicker_than_the_request_keeps_the_end() {
    let mut world = World::running();
    world.ok(Input::Cancel);
    let answer = world.call(A, Call::Complete);
    assert_eq!((answer.status, answer.cancel_requested), (State::Completed, false));

    let mut world = World::running();
    world.ok(Input::Cancel);
    assert_eq!(world.call(A, Call::Fail(FINAL)).status, State::Failed);
}

#[test]
fn f_101_a_run_that_would_wait_after_the_request_is_cancelled() {
    let mut world = World::running();
    world.ok(Input::Cancel);
    assert_eq!(world.call(A, awaits()).status, State::Canceled);
    assert_eq!(world.refused(resume(B)), Refusal::BadState(State::Canceled));
    assert_eq!(world.no_call(A, Call::CancelAck), Refusal::LeaseLost);
}

#[test]
fn what_has_ended_is_not_cancelled() {
    for end in [Call::Complete, Call::Fail(FINAL)] {
        let mut world = World::running();
        let became = world.call(A, end).status;
        assert_eq!(world.refused(Input::Cancel), Refusal::BadState(became));
    }
    let mut world = World::queued();
    world.ok(Input::Cancel);
    assert_eq!(world.refused(Input::Cancel), Refusal::BadState(State::Canceled));
}

#[test]
fn a_cancelled_task_can_be_retried() {
    let mut world = World::waiting();
    world.ok(Input::Cancel);
    assert_eq!(world.ok(Input::Retry).status, State::Queued);
    assert_eq!(world.ok(claim(B)).status, State::Dispatched);
}
