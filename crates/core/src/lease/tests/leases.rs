//! Leases: how long they last, what renews them, who may take them, and that a lost one stays lost.

use super::kit::*;
use crate::lease::{Call, Input, Policy, Refusal, State};

#[test]
fn the_protocols_numbers() {
    let policy = Policy::DEFAULT;
    assert_eq!(policy.lease, seconds(300));
    assert_eq!(policy.start_within, seconds(60));
    assert_eq!((policy.attempts_max, policy.hand_backs_max), (3, 10));
}

#[test]
fn f_028_a_claim_is_dispatched_with_a_lease_of_five_minutes() {
    let answer = World::queued().ok(claim(A));
    assert_eq!(answer.status, State::Dispatched);
    assert_eq!(answer.expires_at, Some(at(LEASE_SECONDS)));
    assert!(!answer.cancel_requested && !answer.repeated);
}

#[test]
fn f_031_a_task_is_claimed_once() {
    let mut world = World::dispatched();
    assert_eq!(world.refused(claim(B)), Refusal::BadState(State::Dispatched));
    world.call(A, Call::Start);
    assert_eq!(world.refused(claim(B)), Refusal::BadState(State::Running));
}

#[test]
fn f_063_f_066_f_072_start_and_messages_renew_the_lease_and_nothing_else_does() {
    let renewed_by = |call: Call| {
        let mut world = World::running();
        world.pass(100);
        let answer = world.call(A, call);
        assert_eq!(world.task.lease.unwrap().hash, A);
        answer.expires_at.unwrap()
    };
    assert_eq!(renewed_by(Call::Start), at(100 + LEASE_SECONDS));
    assert_eq!(renewed_by(Call::Messages { highest: 1 }), at(100 + LEASE_SECONDS));
    assert_eq!(renewed_by(Call::Session), at(LEASE_SECONDS));
    let mut world = World::running();
    world.pass(100).ok(Input::Cancel);
    world.ok(Input::Sweep);
    assert_eq!(world.task.lease.unwrap().expires_at, at(LEASE_SECONDS));
    // A clone that takes long says so before it starts.
    let mut world = World::dispatched();
    world.pass(299);
    let answer = world.call(A, Call::Messages { highest: 1 });
    assert_eq!((answer.status, answer.expires_at), (State::Dispatched, Some(at(599))));
}

#[test]
fn f_066_start_again_gives_the_same_answer() {
    let mut world = World::dispatched();
    let first = world.call(A, Call::Start);
    assert_eq!((first.status, first.expires_at), (State::Running, Some(at(LEASE_SECONDS))));
    assert_eq!(world.call(A, Call::Start), first);
    assert_eq!(world.put(held(A, Call::Start)).effects, []);
}

#[test]
fn a_clock_that_goes_back_shortens_no_lease_by_what_its_holder_says() {
    let mut world = World::running();
    world.pass(1_000);
    world.call(A, Call::Messages { highest: 1 });
    world.pass(-900);
    for call in [Call::Messages { highest: 2 }, Call::Start, Call::Session] {
        assert_eq!(world.call(A, call).expires_at, Some(at(1_000 + LEASE_SECONDS)));
    }
}

#[test]
fn f_110_after_a_clock_went_back_a_sweep_lets_a_lease_last_no_longer_than_a_new_one() {
    for mut world in [World::dispatched(), World::running(), World::queued().with(starts_soon(A))] {
        let state = world.task.state;
        let soon = world.task.lease.unwrap().start_by.is_some();
        world.pass(-3_600).ok(Input::Sweep);
        let lease = world.task.lease.unwrap();
        assert_eq!((world.task.state, lease.expires_at), (state, at(-3_600 + LEASE_SECONDS)));
        assert_eq!(lease.start_by, soon.then(|| at(-3_600 + START_SECONDS)));
        world.pass(LEASE_SECONDS).ok(Input::Sweep);
        assert_eq!(world.task.state, State::Queued);
    }
}

#[test]
fn clocks_that_differ_a_little_change_no_lease() {
    let mut world = World::running();
    world.pass(-5).ok(Input::Sweep);
    assert_eq!(world.task.lease.unwrap().expires_at, at(LEASE_SECONDS));
    world.pass(-1).ok(Input::Sweep);
    assert_eq!(world.task.lease.unwrap().expires_at, at(-6 + LEASE_SECONDS));
}

#[test]
fn f_109_the_sweeper_takes_a_lease_when_it_ran_out_and_not_before() {
    for mut world in [World::dispatched(), World::running()] {
        let state = world.task.state;
        world.pass(LEASE_SECONDS - 1).ok(Input::Sweep);
        assert_eq!(world.task.state, state);
        world.pass(1).ok(Input::Sweep);
        assert_eq!((world.task.state, world.task.attempts), (State::Queued, 1));
    }
}

#[test]
fn f_064_a_late_call_before_the_sweeper_keeps_the_task_and_after_it_does_not() {
    let mut world = World::running();
    world.pass(10 * LEASE_SECONDS);
    let answer = world.call(A, Call::Messages { highest: 3 });
    assert_eq!(answer.expires_at, Some(at(11 * LEASE_SECONDS)));
    world.ok(Input::Sweep);
    assert_eq!(world.task.state, State::Running);

    // A server that was down does not take finished work away.
    let mut finished = world.clone();
    finished.pass(10 * LEASE_SECONDS);
    assert_eq!(finished.call(A, Call::Complete).status, State::Completed);

    world.pass(LEASE_SECONDS).ok(Input::Sweep);
    for call in
        [Call::Start, Call::Messages { highest: 4 }, Call::Session, Call::Complete, awaits()]
    {
        assert_eq!(world.no_call(A, call), Refusal::LeaseExpired);
    }
}

#[test]
fn f_060_f_061_without_the_lease_nothing_can_be_said() {
    let calls = [
        Call::Start,
        Call::Messages { highest: 1 },
        Call::Session,
        Call::Complete,
        Call::Fail(RETRYABLE),
        Call::CancelAck,
        awaits(),
    ];
    for mut world in [World::dispatched(), World::running()] {
        world.ok(Input::Cancel);
        for call in calls.clone() {
            assert_eq!(world.no_call(STRANGER, call.clone()), Refusal::LeaseLost);
            assert_eq!(world.refused(Input::Held { lease: None, call }), Refusal::LeaseLost);
        }
    }
}

#[test]
fn f_062_an_old_lease_is_refused_for_ever() {
    let said = [Call::Start, Call::Messages { highest: 1 }, Call::Session, awaits()];
    let refuse_all = |world: &mut World| {
        for call in said.clone() {
            let refusal = world.no_call(A, call);
            assert!(matches!(refusal, Refusal::LeaseLost | Refusal::LeaseExpired), "{refusal:?}");
        }
        for call in [Call::Complete, Call::CancelAck] {
            world.no_call(A, call);
        }
    };
    let mut failed = World::running();
    failed.call(A, Call::Fail(RETRYABLE));
    let mut taken = World::running();
    taken.pass(LEASE_SECONDS).ok(Input::Sweep);
    for mut world in [failed, taken] {
        refuse_all(&mut world);
        world.ok(claim(B));
        refuse_all(&mut world);
        world.call(B, Call::Start);
        refuse_all(&mut world);
        world.call(B, awaits());
        refuse_all(&mut world);
        world.ok(resume(C));
        refuse_all(&mut world);
        world.call(C, Call::Complete);
        refuse_all(&mut world);
        assert_eq!(world.task.state, State::Completed);
    }
}

#[test]
fn f_064_a_call_under_a_taken_lease_is_late_until_the_next_lease_has_ended() {
    let mut world = World::running();
    world.pass(LEASE_SECONDS).ok(Input::Sweep);
    assert_eq!(world.no_call(A, Call::Complete), Refusal::LeaseExpired);
    world.ok(claim(B));
    assert_eq!(world.no_call(A, Call::Fail(RETRYABLE)), Refusal::LeaseExpired);
    assert_eq!(world.call(B, Call::Complete).status, State::Completed);
    assert_eq!(world.no_call(A, Call::Complete), Refusal::LeaseLost);
}
