//! Admission, queue, limit, cancel and retry.

use super::kit::*;
use crate::outcome::{FailureClass, Verdict};
use crate::task::*;

#[test]
fn r_51_a_submission_is_queued_answered_and_started_in_one_step() {
    let mut machine = Machine::new();
    let effects = machine.submit(spec("a"));
    assert_eq!(
        told(&effects),
        [
            "TaskQueued a",
            "1: submitted TaskQueued",
            "TaskRunning a",
            "start a#1"
        ]
    );
    let effects = machine.ended("a", completed());
    assert_eq!(told(&effects), ["TaskCompleted a", "drop a"]);
    assert_eq!(machine.verdict("a"), Verdict::Succeeded);
    assert_eq!(machine.failure("a"), None);
    let _ = FailureClass::Unknown;
}
