//! Shutdown, restore and recovery.

use super::kit::*;
use crate::outcome::{FailureClass, Verdict};
use crate::task::*;

/// A machine with tasks of every kind, and what is journaled of them.
fn journaled() -> (Machine, Vec<Task>) {
    let mut machine = Machine::new();
    machine.set_limit(2);
    machine.submit_all(&["completed", "failed", "runs", "waits"]);
    machine.submit(in_session("waits_in_s", "s"));
    machine.ended("completed", completed());
    machine.ended("failed", failed(FailureClass::ExitStatus));
    machine.submit(spec("waits_too"));
    let tasks = machine.state.iter().cloned().collect();
    (machine, tasks)
}

fn restored(tasks: Vec<Task>) -> Machine {
    Machine::of(TaskState::restore(TaskBounds::default(), 2, tasks))
}

#[test]
fn r_80_at_startup_all_that_was_unfinished_is_interrupted_and_nothing_starts() {
    let (old, tasks) = journaled();
    assert_eq!((old.state.running(), old.state.queued()), (2, 2));
    let mut machine = restored(tasks);
    assert_eq!((machine.state.running(), machine.state.queued()), (2, 2), "as journaled");
    assert_eq!(machine.state.next_deadline(), None);
    assert_eq!(
        told(&machine.step(Input::Recover)),
        [
            "TaskInterrupted runs",
            "TaskInterrupted waits",
            "TaskInterrupted waits_in_s",
            "TaskInterrupted waits_too"
        ]
    );
    assert_eq!(machine.state.unfinished(), 0);
    assert_eq!(machine.status("failed"), TaskStatus::Failed);
    assert_eq!(machine.state.limit(), 2);
    machine.submit(in_session("new", "s"));
    assert!(machine.task("new").order > machine.task("waits_too").order);
    assert_eq!(machine.status("new"), TaskStatus::Running, "the session is free again");
}

#[test]
fn r_80_recovery_happens_once_and_before_any_other_input() {
    let (_, tasks) = journaled();
    let mut machine = restored(tasks.clone());
    machine.step(Input::Recover);
    machine.submit(spec("new"));
    assert_eq!(told(&machine.step(Input::Recover)), [""; 0]);
    assert_eq!(machine.status("new"), TaskStatus::Running);

    let mut machine = restored(tasks);
    let effects = told(&machine.submit(spec("new")));
    assert_eq!(effects[..2], ["TaskInterrupted runs", "TaskInterrupted waits"]);
    assert_eq!(effects[4..6], ["TaskQueued new", "1: submitted TaskQueued"]);
    assert_eq!(effects[6..], ["TaskRunning new", "start new#1"]);
}

#[test]
fn r_80_nothing_is_recovered_where_nothing_was_restored() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    assert_eq!(told(&machine.step(Input::Recover)), [""; 0]);
    assert_eq!(machine.status("a"), TaskStatus::Running);
}

#[test]
fn r_65_after_a_restart_no_input_is_there_to_retry_with() {
    let (_, tasks) = journaled();
    let mut machine = restored(tasks);
    machine.step(Input::Recover);
    let text = ": task input is unavailable after daemon restart; submit a new task id";
    for name in ["failed", "runs", "waits"] {
        let before = machine.state.clone();
        let effects = machine.retry(name);
        assert!(told(&effects)[0].ends_with(text), "{effects:?}");
        assert_eq!((effects.len(), &before), (1, &machine.state));
    }
    let completed = &told(&machine.retry("completed"))[0];
    assert!(completed.contains("completed tasks cannot be retried"), "{completed}");
}

#[test]
fn r_58_restored_ids_are_taken() {
    let (_, tasks) = journaled();
    let mut machine = restored(tasks);
    machine.step(Input::Recover);
    for name in ["completed", "failed", "runs", "waits"] {
        assert!(told(&machine.submit(spec(name)))[0].ends_with(": task id already exists"));
    }
}

#[test]
fn r_80_shutdown_interrupts_what_waits_stops_what_runs_and_admits_nothing() {
    let (mut machine, _) = journaled();
    let effects = told(&machine.step(Input::Shutdown));
    assert_eq!(
        effects,
        [
            "stop runs#1 Shutdown",
            "stop waits#1 Shutdown",
            "TaskInterrupted waits_in_s",
            "TaskInterrupted waits_too"
        ]
    );
    assert!(machine.state.is_shutting_down());
    let before = machine.state.clone();
    for effects in
        [machine.submit(spec("new")), machine.retry("failed"), machine.retry("waits_too")]
    {
        assert!(told(&effects)[0].ends_with(": daemon is shutting down"), "{effects:?}");
    }
    assert_eq!(told(&machine.step(Input::Shutdown)), [""; 0], "a second one is harmless");
    assert_eq!(before, machine.state);
    assert_eq!(told(&machine.ended("runs", stopped())), ["TaskInterrupted runs"]);
    assert_eq!((machine.failure("runs"), machine.verdict("runs")), (None, Verdict::Interrupted));
    assert_eq!(told(&machine.ended("waits", completed())), ["TaskCompleted waits", "drop waits"]);
    assert_eq!(machine.state.unfinished(), 0);
}

#[test]
fn r_80_nothing_starts_after_shutdown() {
    let mut machine = Machine::new();
    machine.set_limit(1);
    machine.submit_all(&["a", "b"]);
    machine.step(Input::Shutdown);
    machine.ended("a", stopped());
    assert_eq!(told(&machine.set_limit(4)), ["limit 4", "4: limit 4"]);
    assert_eq!(machine.status("b"), TaskStatus::Interrupted);
}

#[test]
fn r_67_a_repeated_submission_learns_even_in_shutdown_that_it_arrived() {
    let (mut machine, _) = journaled();
    machine.step(Input::Shutdown);
    assert!(told(&machine.submit(spec("failed")))[0].ends_with(": task id already exists"));
}

#[test]
fn a_cancel_during_shutdown_is_answered_when_the_run_is_gone() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    machine.step(Input::Shutdown);
    assert_eq!(told(&machine.cancel("a")), [""; 0]);
    assert_eq!(
        told(&machine.ended("a", stopped())),
        ["TaskInterrupted a", "2: task is not active"]
    );
}

#[test]
fn a_smaller_bound_after_a_restart_archives_down_to_it() {
    let mut machine = Machine::new();
    machine.submit_all(&["a", "b", "c", "d"]);
    for name in ["a", "b", "c", "d"] {
        machine.ended(name, completed());
    }
    let tasks = machine.state.iter().cloned().collect();
    let bounds = TaskBounds { live_tasks_max: 2, ..TaskBounds::default() };
    let mut machine = Machine::of(TaskState::restore(bounds, 4, tasks));
    let effects = told(&machine.submit(spec("e")));
    assert_eq!(effects[..4], ["archived a", "archived b", "archived c", "TaskQueued e"]);
    assert_eq!(machine.state.len(), 2);
}

#[test]
fn a_refused_submission_archives_nothing() {
    let (_, tasks) = journaled();
    let bounds = TaskBounds { live_tasks_max: 0, ..TaskBounds::default() };
    let mut machine = Machine::of(TaskState::restore(bounds, 4, tasks));
    machine.step(Input::Recover);
    let before = machine.state.clone();
    let effects = told(&machine.submit(spec("new")));
    assert_eq!(effects, ["1: live task set is full: 0 tasks are queued or running"]);
    assert_eq!(before, machine.state);
}

#[test]
fn restoring_repeats_and_odd_limits_gives_a_sound_state() {
    let (_, tasks) = journaled();
    let twice: Vec<Task> = tasks.iter().chain(&tasks).cloned().collect();
    let same_order = tasks.iter().cloned().map(|task| Task { order: 7, ..task }).collect();
    for (tasks, limit, expected) in [(twice, 0, 1), (same_order, 200, 32)] {
        let state = TaskState::restore(TaskBounds::default(), limit, tasks);
        assert_eq!((state.len(), state.limit()), (6, expected));
        let orders: Vec<u64> = state.iter().map(|task| task.order).collect();
        assert!(orders.is_sorted_by(|a, b| a < b), "{orders:?}");
    }
}
