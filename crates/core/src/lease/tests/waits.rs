//! Waiting for a person: no lease, no bill, one decision.

use super::kit::*;
use crate::lease::{Call, Decided, Effect, Input, Refusal, State, WaitingFor};

#[test]
fn f_093_f_095_await_gives_the_lease_and_the_place_up() {
    for mut world in [World::dispatched(), World::running()] {
        world.pass(42);
        let what = WaitingFor::Input;
        let done = world.put(held(A, Call::Await { what, summary: "Which one?".to_owned() }));
        let answer = done.answer.unwrap();
        assert_eq!((answer.status, answer.expires_at), (State::Waiting, None));
        assert_eq!(done.effects, [Effect::Changed, Effect::Freed]);
        let waits = world.task.waits.clone().unwrap();
        assert_eq!((waits.what, waits.summary.as_str()), (what, "Which one?"));
        assert_eq!((waits.since, waits.decision), (at(42), None));
    }
    assert_eq!(
        [WaitingFor::Approval, WaitingFor::Input].map(WaitingFor::word),
        ["approval", "input"]
    );
    assert_eq!(WaitingFor::from_word("coffee"), None);
}

#[test]
fn f_096_the_sweeper_leaves_a_waiting_task_alone() {
    let mut world = World::waiting();
    let before = world.task.clone();
    for _ in 0..100 {
        let done = world.pass(100 * LEASE_SECONDS).put(Input::Sweep);
        assert_eq!(done.effects, []);
    }
    assert_eq!(world.task, before);
    assert_eq!(world.ok(resume(B)).status, State::Running);
}

#[test]
fn f_098_resume_gives_a_new_lease() {
    let mut world = World::waiting();
    world.pass(10_000);
    let answer = world.ok(resume(B));
    assert_eq!((answer.status, answer.cancel_requested), (State::Running, false));
    assert_eq!(answer.expires_at, Some(at(10_000 + LEASE_SECONDS)));
    assert_eq!(world.no_call(A, Call::Messages { highest: 1 }), Refusal::LeaseLost);
    world.call(B, Call::Messages { highest: 1 });
    assert_eq!(world.call(B, Call::Complete).status, State::Completed);
}

#[test]
fn f_099_f_100_resume_by_another_machine_or_of_a_run_that_does_not_wait_is_refused() {
    let mut world = World::waiting();
    let other = Input::Resume { same_machine: false, lease: B };
    assert_eq!(world.refused(other), Refusal::OtherMachine);
    world.ok(resume(B));
    assert_eq!(world.refused(resume(C)), Refusal::BadState(State::Running));
}

#[test]
fn f_109_a_resumed_run_that_vanishes_is_queued_again() {
    let mut world = World::waiting();
    world.pass(1_000).ok(resume(B));
    world.pass(LEASE_SECONDS - 1).ok(Input::Sweep);
    assert_eq!(world.task.state, State::Running);
    world.pass(1).ok(Input::Sweep);
    assert_eq!((world.task.state, world.task.attempts), (State::Queued, 1));
}

#[test]
fn f_080_waiting_is_not_billed() {
    let mut world = World::running();
    world.pass(30);
    world.call(A, awaits());
    world.pass(86_400).ok(resume(B));
    world.pass(12);
    world.call(B, awaits());
    world.pass(86_400).ok(resume(C));
    world.pass(3);
    assert_eq!(world.call(C, Call::Start).status, State::Running, "a start again is no new run");
    world.pass(4);
    assert_eq!(world.complete(C), seconds(30 + 12 + 3 + 4));
}

#[test]
fn f_080_a_run_is_billed_from_its_start_and_an_earlier_attempt_is_not() {
    let mut world = World::dispatched();
    world.pass(100);
    world.call(A, Call::Start);
    world.pass(7);
    world.call(A, Call::Fail(RETRYABLE));
    world.pass(500).ok(claim(B));
    world.pass(20);
    world.call(B, Call::Start);
    world.pass(5);
    assert_eq!(world.complete(B), seconds(5));
}

#[test]
fn f_080_a_clock_that_goes_back_bills_nothing_rather_than_years() {
    let mut world = World::running();
    world.pass(-3_600);
    assert_eq!(world.complete(A), seconds(0));
}

#[test]
fn the_first_decision_stands_until_the_machine_resumes() {
    let mut world = World::waiting();
    let yes = decision(Decided::Approved, "but politely");
    assert_eq!(world.put(Input::Decide(yes.clone())).effects, [Effect::Changed]);
    assert_eq!(world.task.waits.clone().unwrap().decision, Some(yes.clone()));
    // The same again is no fault and no news.
    assert_eq!(world.put(Input::Decide(yes.clone())).effects, []);
    let others =
        [decision(Decided::Denied, "but politely"), decision(Decided::Approved, "at once")];
    for other in others {
        assert_eq!(world.refused(Input::Decide(other)), Refusal::Decided(Decided::Approved));
    }
    assert_eq!(world.task.waits.clone().unwrap().decision, Some(yes));
    world.ok(resume(B));
    assert_eq!(world.task.waits, None);
    // The next question is a new one.
    world.call(B, awaits());
    assert_eq!(world.task.waits.clone().unwrap().decision, None);
    world.ok(Input::Decide(decision(Decided::Denied, "")));
}

#[test]
fn only_a_waiting_run_can_be_decided() {
    let mut cancelled = World::waiting();
    cancelled.ok(Input::Cancel);
    for mut world in [World::queued(), World::dispatched(), World::running(), cancelled] {
        let state = world.task.state;
        let refusal = world.refused(Input::Decide(decision(Decided::Approved, "")));
        assert_eq!(refusal, Refusal::BadState(state));
    }
}

#[test]
fn f_101_cancelling_a_waiting_run_cancels_it_also_when_it_was_decided() {
    for decided in [None, Some(Decided::Approved)] {
        let mut world = World::waiting();
        if let Some(decided) = decided {
            world.ok(Input::Decide(decision(decided, "")));
        }
        assert_eq!(world.ok(Input::Cancel).status, State::Canceled);
        assert_eq!(world.refused(resume(B)), Refusal::BadState(State::Canceled));
    }
}
