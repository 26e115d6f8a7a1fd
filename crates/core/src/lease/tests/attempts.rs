//! Attempts: what counts, what is given back, and that all of it has an end.

use super::kit::*;
use crate::lease::{Call, Failing, Input, LeaseHash, Refusal, State};

/// The token of the `n`-th claim of a long test.
fn nth(n: u32) -> LeaseHash {
    let mut hash = [7; 32];
    hash[..4].copy_from_slice(&n.to_be_bytes());
    LeaseHash(hash)
}

/// Claims and fails in the same way until the task has failed; how often it was claimed.
fn claims_until_failed(failing: impl Fn(i64) -> Failing) -> u32 {
    let mut world = World::queued();
    let mut claims = 0;
    while world.task.state != State::Failed {
        assert!(claims < 1_000, "it never ends: {:?}", world.task);
        let until = world.task.not_before.unwrap_or(at(world.now));
        while at(world.now) < until {
            world.pass(1);
        }
        world.ok(claim(nth(claims)));
        world.call(nth(claims), Call::Fail(failing(world.now)));
        claims += 1;
    }
    claims
}

#[test]
fn attempts_count_when_the_task_is_claimed() {
    let mut world = World::queued();
    assert_eq!(world.task.attempts, 0);
    world.ok(claim(A));
    assert_eq!(world.task.attempts, 1);
    world.call(A, Call::Start);
    world.call(A, awaits());
    world.ok(resume(B));
    assert_eq!(world.task.attempts, 1, "a resumed run is the same attempt");
    world.call(B, Call::Fail(RETRYABLE));
    world.ok(claim(C));
    assert_eq!(world.task.attempts, 2);
}

#[test]
fn f_088_a_retryable_failure_is_queued_again_and_failed_at_the_third_attempt() {
    let mut world = World::queued();
    for (lease, became) in [(A, State::Queued), (B, State::Queued), (C, State::Failed)] {
        world.ok(claim(lease));
        world.call(lease, Call::Start);
        assert_eq!(world.call(lease, Call::Fail(RETRYABLE)).status, became);
    }
    assert_eq!(world.task.attempts, ATTEMPTS);
    assert_eq!(world.refused(claim(A)), Refusal::BadState(State::Failed));
}

#[test]
fn f_109_an_expired_lease_is_queued_again_and_failed_at_the_third_attempt() {
    let mut world = World::queued();
    for (lease, became) in [(A, State::Queued), (B, State::Queued), (C, State::Failed)] {
        world.ok(claim(lease));
        world.pass(LEASE_SECONDS).ok(Input::Sweep);
        assert_eq!(world.task.state, became);
    }
}

#[test]
fn f_088_f_109_failures_and_expiries_count_together() {
    let mut world = World::dispatched();
    world.call(A, Call::Fail(RETRYABLE));
    world.ok(claim(B));
    world.pass(LEASE_SECONDS).ok(Input::Sweep);
    world.ok(claim(C));
    assert_eq!(world.call(C, Call::Fail(RETRYABLE)).status, State::Failed);
}

#[test]
fn a_hand_back_costs_no_attempt_ten_times_and_then_it_does() {
    let mut world = World::queued();
    for n in 0..HAND_BACKS {
        world.ok(claim(nth(n)));
        assert_eq!(world.call(nth(n), Call::Fail(HANDED_BACK)).status, State::Queued);
        assert_eq!(world.task.attempts, 0);
        assert!(world.task.is_due(at(world.now)), "at once, not when a lease ends");
    }
    assert_eq!(claims_until_failed(|_| HANDED_BACK), HAND_BACKS + ATTEMPTS);
}

#[test]
fn an_attempt_that_counted_is_not_given_back_by_a_later_hand_back() {
    let mut world = World::dispatched();
    world.call(A, Call::Fail(RETRYABLE));
    world.ok(claim(B));
    world.call(B, Call::Fail(HANDED_BACK));
    assert_eq!(world.task.attempts, 1);
}

#[test]
fn a_usage_limit_parks_the_task_without_costing_an_attempt() {
    let mut world = World::running();
    assert_eq!(world.call(A, Call::Fail(parked(3_600))).status, State::Queued);
    assert_eq!(world.task.attempts, 0);
    assert_eq!(world.refused(claim(B)), Refusal::BadState(State::Queued));
    world.pass(3_599).ok(Input::Sweep);
    assert_eq!(world.refused(claim(B)), Refusal::BadState(State::Queued));
    world.pass(1).ok(claim(B));
    assert_eq!((world.task.attempts, world.task.not_before), (1, None));
}

#[test]
fn parking_does_not_cost_hand_backs_and_is_bounded_too() {
    let parks_max = World::queued().policy.parks_max;
    assert!(parks_max > HAND_BACKS, "a usage limit lasts for days");
    assert_eq!(claims_until_failed(|now| parked(now + 60)), parks_max + ATTEMPTS);
    let both = |now| Failing { handed_back: true, ..parked(now + 60) };
    assert_eq!(claims_until_failed(both), HAND_BACKS + parks_max + ATTEMPTS);
}

/// The report waited on the machine while the server was away, or the clocks differ.
#[test]
fn a_usage_limit_that_is_over_when_it_is_reported_costs_no_attempt_either() {
    for passed in [0, 1, 3_600] {
        let mut world = World::running();
        world.pass(3_600);
        let answer = world.call(A, Call::Fail(parked(3_600 - passed)));
        assert_eq!(answer.status, State::Queued);
        assert_eq!((world.task.attempts, world.task.parks), (0, 1));
        assert_eq!(world.task.not_before, None);
        world.ok(claim(B));
    }
    let parks_max = World::queued().policy.parks_max;
    assert_eq!(claims_until_failed(|now| parked(now - 1)), parks_max + ATTEMPTS);
}

#[test]
fn a_parked_hand_back_waits_as_well() {
    let mut world = World::running();
    world.call(A, Call::Fail(Failing { handed_back: true, ..parked(100) }));
    assert_eq!((world.task.attempts, world.task.not_before), (0, Some(at(100))));
}

#[test]
fn f_088_a_failure_at_the_last_attempt_is_final_although_it_was_parked_too_often() {
    let mut world = World::queued();
    world.policy.parks_max = 0;
    for (lease, became) in [(A, State::Queued), (B, State::Queued), (C, State::Failed)] {
        world.ok(claim(lease));
        assert_eq!(world.call(lease, Call::Fail(parked(world.now + 5))).status, became);
        world.pass(5);
    }
}

fn claim_to_start(lease: LeaseHash) -> Input {
    Input::Claim { lease, starts_soon: true }
}

#[test]
fn a_late_start_goes_back_without_costing_an_attempt() {
    let mut world = World::queued().with(claim_to_start(A));
    world.pass(START_SECONDS - 1).ok(Input::Sweep);
    assert_eq!(world.task.state, State::Dispatched);
    world.pass(1).ok(Input::Sweep);
    assert_eq!((world.task.state, world.task.attempts), (State::Queued, 0));
    assert_eq!(world.no_call(A, Call::Start), Refusal::LeaseExpired);
    // Not even when the sweeper itself was late.
    world.ok(claim_to_start(B));
    world.pass(10 * LEASE_SECONDS).ok(Input::Sweep);
    assert_eq!((world.task.state, world.task.attempts), (State::Queued, 0));
}

#[test]
fn a_start_in_time_or_before_the_sweeper_keeps_the_task() {
    for passed in [START_SECONDS - 1, START_SECONDS + 5] {
        let mut world = World::queued().with(claim_to_start(A));
        world.pass(passed);
        assert_eq!(world.call(A, Call::Start).status, State::Running);
        world.pass(START_SECONDS).ok(Input::Sweep);
        assert_eq!(world.task.state, State::Running);
    }
}

#[test]
fn who_promised_nothing_may_clone_as_long_as_the_lease_lasts() {
    let mut world = World::dispatched();
    world.pass(LEASE_SECONDS - 1).ok(Input::Sweep);
    assert_eq!(world.task.state, State::Dispatched);
    world.pass(1).ok(Input::Sweep);
    assert_eq!((world.task.state, world.task.attempts), (State::Queued, 1));
}

#[test]
fn starts_that_never_come_have_an_end() {
    let mut world = World::queued();
    let mut claims = 0;
    while world.task.state != State::Failed {
        world.ok(claim_to_start(nth(claims)));
        world.pass(START_SECONDS).ok(Input::Sweep);
        claims += 1;
        assert!(claims < 100);
    }
    assert_eq!(claims, HAND_BACKS + ATTEMPTS);
}
