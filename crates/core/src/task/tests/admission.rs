//! Submission, the live set, retry, approvals and the texts of refusals.

use std::time::Duration;

use super::kit::*;
use crate::outcome::FailureClass;
use crate::task::*;

fn small(live_tasks_max: usize) -> Machine {
    Machine::with(TaskBounds { live_tasks_max, ..TaskBounds::default() })
}

/// Submits with the archive remembering the id.
fn submit_archived(machine: &mut Machine, name: &str) -> Vec<Effect> {
    let request = RequestId(99);
    machine.step(Input::Submit { request, spec: spec(name), known_elsewhere: true })
}

#[test]
fn r_51_a_submission_is_queued_answered_and_started_in_one_step() {
    let mut machine = Machine::new();
    let effects = machine.submit(spec("a"));
    assert_eq!(
        told(&effects),
        ["TaskQueued a", "1: submitted TaskQueued", "TaskRunning a", "start a#1"]
    );
    let task = machine.task("a");
    assert_eq!((task.attempt, task.log_lines, task.outcome), (1, 0, None));
    assert_eq!(told(&machine.ended("a", completed())), ["TaskCompleted a", "drop a"]);
}

#[test]
fn r_58_r_67_an_id_that_exists_in_any_state_live_or_archived_is_refused() {
    let mut machine = Machine::new();
    machine.set_limit(1);
    machine.submit_all(&["runs", "waits"]);
    for name in ["runs", "waits"] {
        let before = machine.state.clone();
        let effects = machine.submit(spec(name));
        assert!(told(&effects)[0].ends_with(": task id already exists"), "{effects:?}");
        assert_eq!((effects.len(), &before), (1, &machine.state));
    }
    machine.cancel("waits");
    machine.ended("runs", completed());
    for name in ["runs", "waits"] {
        assert!(told(&machine.submit(spec(name)))[0].ends_with(": task id already exists"));
    }
    assert_eq!(told(&submit_archived(&mut machine, "old")), ["99: task id already exists"]);
    assert_eq!(machine.state.get(&id("old")), None);
}

#[test]
fn a_full_live_set_archives_what_settled_first_and_drops_its_input() {
    let mut machine = small(3);
    machine.submit_all(&["a", "b", "c"]);
    machine.pass(Duration::from_secs(1));
    machine.ended("c", failed(FailureClass::ExitStatus));
    machine.pass(Duration::from_secs(1));
    machine.ended("a", completed());
    // `c` was submitted last but settled first; `a` has lost its input already.
    assert_eq!(
        told(&machine.submit(spec("d"))),
        [
            "archived c",
            "drop c",
            "TaskQueued d",
            "4: submitted TaskQueued",
            "TaskRunning d",
            "start d#1"
        ]
    );
    assert_eq!(told(&machine.submit(spec("e")))[..2], ["archived a", "TaskQueued e"]);
    assert_eq!(machine.state.len(), 3);
    assert!(told(&machine.cancel("a"))[0].ends_with(": task id is unknown"));
    assert!(told(&machine.retry("c"))[0].ends_with(": task id is unknown"));
}

#[test]
fn an_archived_task_leaves_nothing_behind() {
    let mut machine = small(1);
    machine.submit(in_session("first", "its-session"));
    machine.output("first", 3);
    machine.ended("first", failed(FailureClass::ExitStatus));
    machine.submit(spec("second"));
    let everything = format!("{:?}", machine.state);
    assert!(everything.contains("second"));
    assert!(!everything.contains("first") && !everything.contains("its-session"), "{everything}");
}

#[test]
fn a_live_set_full_of_unfinished_tasks_refuses_until_one_settles() {
    let mut machine = small(2);
    machine.set_limit(1);
    machine.submit_all(&["a", "b"]);
    let before = machine.state.clone();
    let effects = machine.submit(spec("c"));
    assert_eq!(told(&effects), ["4: live task set is full: 2 tasks are queued or running"]);
    assert_eq!(before, machine.state);
    machine.ended("a", completed());
    assert_eq!(told(&machine.submit(spec("c")))[..2], ["archived a", "TaskQueued c"]);
}

#[test]
fn r_62_retry_queues_again_with_the_next_attempt_and_an_empty_log() {
    let mut machine = Machine::new();
    machine.submit_all(&["fails", "is_cancelled"]);
    machine.output("fails", 7);
    machine.ended("fails", failed(FailureClass::Network));
    machine.cancel("is_cancelled");
    machine.ended("is_cancelled", stopped());
    let effects = machine.retry("fails");
    assert_eq!(
        told(&effects),
        ["TaskQueued fails", "4: queued TaskQueued", "TaskRunning fails", "start fails#2"]
    );
    let Effect::Changed { task } = &effects[0] else { panic!("{effects:?}") };
    assert_eq!((task.attempt, task.log_lines, &task.outcome), (2, 0, &None));
    assert!(told(&machine.retry("is_cancelled")).contains(&"start is_cancelled#2".to_owned()));
    machine.ended("fails", failed(FailureClass::Network));
    assert!(told(&machine.retry("fails")).contains(&"start fails#3".to_owned()));
}

#[test]
fn r_62_a_retry_goes_to_the_end_of_the_line() {
    let mut machine = Machine::new();
    machine.set_limit(1);
    machine.submit_all(&["a", "b"]);
    machine.ended("a", failed(FailureClass::ExitStatus));
    machine.submit(spec("c"));
    machine.retry("a");
    let line: Vec<&str> = machine.state.iter().map(|task| task.spec.id.as_str()).collect();
    assert_eq!(line, ["b", "c", "a"]);
    assert_eq!(told(&machine.ended("b", completed()))[2..], ["TaskRunning c", "start c#1"]);
    assert_eq!(told(&machine.ended("c", completed()))[2..], ["TaskRunning a", "start a#2"]);
}

#[test]
fn r_63_r_64_active_and_completed_tasks_are_not_retried() {
    let mut machine = Machine::new();
    machine.set_limit(1);
    machine.submit_all(&["a", "b"]);
    for name in ["a", "b"] {
        let before = machine.state.clone();
        let effects = machine.retry(name);
        assert!(told(&effects)[0].ends_with(": active tasks cannot be retried"));
        assert_eq!((effects.len(), &before), (1, &machine.state));
    }
    machine.ended("a", completed());
    assert_eq!(
        told(&machine.retry("a")),
        ["6: completed tasks cannot be retried; task input has been discarded"]
    );
    assert_eq!(told(&machine.retry("nobody")), ["7: task id is unknown"]);
}

#[test]
fn an_attempt_number_is_never_used_twice() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    machine.ended("a", failed(FailureClass::ExitStatus));
    let order = machine.task("a").order;
    machine.state.change(order, machine.now, |slot| slot.task.attempt = u32::MAX);
    assert_eq!(told(&machine.retry("a")), ["2: task has no attempts left; submit a new task id"]);
    assert_eq!(machine.task("a").attempt, u32::MAX);
}

#[test]
fn r_49_a_limit_outside_of_1_to_32_changes_nothing() {
    let mut machine = Machine::new();
    for limit in [0, 33, u8::MAX] {
        let before = machine.state.clone();
        let effects = machine.set_limit(limit);
        assert!(told(&effects)[0].ends_with(": limit must be between 1 and 32"));
        assert_eq!((effects.len(), &before), (1, &machine.state));
    }
    for limit in [1, 32] {
        let effects = told(&machine.set_limit(limit));
        assert_eq!(effects[0], format!("limit {limit}"));
        assert!(effects[1].ends_with(&format!(": limit {limit}")));
        assert_eq!((effects.len(), machine.state.limit()), (2, limit));
    }
}

#[test]
fn r_66_an_approval_is_always_refused() {
    let mut machine = Machine::new();
    machine.set_limit(1);
    machine.submit_all(&["runs", "waits"]);
    let refusal = |name| machine.state.approval_refusal(&id(name));
    assert_eq!(refusal("runs"), Refusal::ApprovalUnsupported);
    assert_eq!(refusal("waits"), Refusal::NotRunning);
    assert_eq!(refusal("nobody"), Refusal::NotRunning);
}

/// The texts are those of runtime.md, letter by letter; the last group is ours.
#[test]
fn r_50_r_58_r_61_to_r_66_refusals_have_the_documented_texts() {
    let texts = [
        (Refusal::AlreadyExists, "task id already exists"),
        (Refusal::UnknownTask, "task id is unknown"),
        (Refusal::NotActive, "task is not active"),
        (Refusal::ActiveRetry, "active tasks cannot be retried"),
        (
            Refusal::CompletedRetry,
            "completed tasks cannot be retried; task input has been discarded",
        ),
        (
            Refusal::InputUnavailable,
            "task input is unavailable after daemon restart; submit a new task id",
        ),
        (
            Refusal::ApprovalUnsupported,
            "interactive approval resolution is unsupported by the daemon task adapter",
        ),
        (Refusal::NotRunning, "task is not running"),
        (Refusal::CommandQueueFull, "task scheduler command queue is full"),
        // Ours.
        (Refusal::LimitOutOfRange, "limit must be between 1 and 32"),
        (
            Refusal::LiveSetFull { live_tasks_max: 1_000 },
            "live task set is full: 1000 tasks are queued or running",
        ),
        (Refusal::ShuttingDown, "daemon is shutting down"),
        (Refusal::KillFailed, "task failed: some of its processes could not be ended"),
        (Refusal::TooManyCancels, "task is being cancelled; 64 requests already wait for its end"),
        (Refusal::AttemptsExhausted, "task has no attempts left; submit a new task id"),
    ];
    for (refusal, text) in texts {
        assert_eq!(refusal.to_string(), text);
    }
}

#[test]
fn the_names_on_the_wire_are_the_documented_ones() {
    let names = TaskStatus::ALL.map(TaskStatus::as_str);
    assert_eq!(
        names,
        [
            "TaskQueued",
            "TaskRunning",
            "TaskCompleted",
            "TaskFailed",
            "TaskCancelled",
            "TaskInterrupted"
        ]
    );
    assert_eq!(names.map(|name| TaskStatus::parse(name).unwrap()), TaskStatus::ALL);
    assert_eq!(TaskStatus::parse("taskqueued"), None);
    assert_eq!(Permissions::ALL.map(Permissions::as_str), ["safe", "ask", "full"]);
    assert_eq!(["safe", "ask", "full"].map(Permissions::parse), Permissions::ALL.map(Some));
    assert_eq!(Permissions::parse("Full"), None);
}
