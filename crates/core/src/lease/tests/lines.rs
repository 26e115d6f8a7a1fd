//! Lines: numbered from 1 in every attempt, kept in one row through all of them.

use super::kit::*;
use crate::lease::{Call, Effect, Input};

fn lines(highest: u64) -> Call {
    Call::Messages { highest }
}

#[test]
fn f_068_f_069_the_highest_line_counts_whatever_comes_again() {
    let mut world = World::running();
    for (highest, stored) in [(3, 3), (3, 3), (1, 3), (5, 5), (2, 5)] {
        assert_eq!(world.put(held(A, lines(highest))).effects, [Effect::KeepLines]);
        assert_eq!((world.task.lines, world.task.lines_before), (stored, 0));
    }
}

#[test]
fn f_067_lines_come_before_the_start_too() {
    let mut world = World::dispatched();
    world.call(A, lines(2));
    world.call(A, Call::Start);
    assert_eq!((world.task.lines, world.task.lines_before), (2, 0));
}

/// A new attempt counts from 1 again and must not be taken for what the one before has said.
#[test]
fn f_068_a_new_attempt_begins_behind_the_lines_of_the_last_one() {
    let mut world = World::running();
    world.call(A, lines(7));
    world.call(A, Call::Fail(RETRYABLE));
    world.ok(claim(B));
    assert_eq!((world.task.lines, world.task.lines_before), (7, 7));
    world.call(B, lines(1));
    assert_eq!((world.task.lines, world.task.lines_before), (8, 7));
    world.call(B, lines(3));
    world.pass(2 * LEASE_SECONDS).ok(Input::Sweep);
    world.ok(claim(C));
    world.call(C, lines(2));
    assert_eq!((world.task.lines, world.task.lines_before), (12, 10));
}

#[test]
fn f_098_a_resumed_run_counts_on() {
    let mut world = World::running();
    world.call(A, lines(4));
    world.call(A, awaits());
    world.ok(resume(B));
    world.call(B, lines(5));
    assert_eq!((world.task.lines, world.task.lines_before), (5, 0));
}

#[test]
fn f_068_a_task_that_is_retried_keeps_its_lines() {
    let mut world = World::running();
    world.call(A, lines(4));
    world.call(A, Call::Fail(FINAL));
    world.ok(Input::Retry);
    world.ok(claim(B));
    world.call(B, lines(1));
    assert_eq!((world.task.lines, world.task.lines_before), (5, 4));
}

#[test]
fn an_absurd_number_does_not_panic() {
    let mut world = World::running();
    world.call(A, lines(u64::MAX));
    world.call(A, Call::Fail(RETRYABLE));
    world.ok(claim(B));
    world.call(B, lines(u64::MAX));
    assert_eq!(world.task.lines, u64::MAX);
}
