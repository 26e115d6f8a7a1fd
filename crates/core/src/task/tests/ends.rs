//! Output, cancel, deadline, and what a task becomes when its run is over.

use std::time::Duration;

use super::kit::*;
use crate::clock::Timestamp;
use crate::outcome::{FailureClass, Verdict};
use crate::task::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn r_61_a_queued_task_is_cancelled_at_once() {
    let mut machine = Machine::new();
    machine.set_limit(1);
    machine.submit_all(&["a", "b"]);
    assert_eq!(told(&machine.cancel("b")), ["TaskCancelled b", "4: cancelled TaskCancelled"]);
    assert_eq!(machine.task("b").outcome, None);
}

#[test]
fn r_61_a_running_task_is_cancelled_when_its_run_is_gone_and_everybody_who_asked_is_told() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    assert_eq!(told(&machine.cancel("a")), ["stop a#1 Cancel"]);
    assert_eq!(told(&machine.cancel("a")), [""; 0], "told to stop once");
    assert_eq!(machine.status("a"), TaskStatus::Running);
    assert_eq!(
        told(&machine.ended("a", stopped())),
        ["TaskCancelled a", "2: cancelled TaskCancelled", "3: cancelled TaskCancelled"]
    );
    assert_eq!((machine.failure("a"), machine.verdict("a")), (None, Verdict::Cancelled));
}

#[test]
fn r_61_unknown_and_settled_tasks_are_not_cancelled() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    machine.ended("a", completed());
    let before = machine.state.clone();
    assert_eq!(told(&machine.cancel("a")), ["2: task is not active"]);
    assert_eq!(told(&machine.cancel("nobody")), ["3: task id is unknown"]);
    assert_eq!(before, machine.state);
}

#[test]
fn r_61_what_ended_by_itself_before_the_cancel_took_hold_is_what_it_is() {
    let mut machine = Machine::new();
    machine.submit_all(&["done", "broken"]);
    machine.cancel("done");
    machine.cancel("broken");
    assert_eq!(
        told(&machine.ended("done", completed())),
        ["TaskCompleted done", "drop done", "3: task is not active"]
    );
    assert_eq!(machine.verdict("done"), Verdict::Succeeded);
    let end = failed(FailureClass::Authentication);
    assert_eq!(told(&machine.ended("broken", end)), ["TaskFailed broken", "4: task is not active"]);
    assert_eq!(machine.failure("broken").unwrap().class, FailureClass::Authentication);
}

#[test]
fn r_61_cancels_that_wait_for_one_run_are_bounded() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    for _ in 0..CANCELS_PER_RUN_MAX {
        machine.cancel("a");
    }
    let before = machine.state.clone();
    assert_eq!(
        told(&machine.cancel("a")),
        ["66: task is being cancelled; 64 requests already wait for its end"]
    );
    assert_eq!(before, machine.state);
    let effects = machine.ended("a", stopped());
    assert_eq!(effects.len(), 1 + CANCELS_PER_RUN_MAX);
}

#[test]
fn what_could_not_be_killed_is_failed_whatever_was_asked_or_said() {
    for status in [EndStatus::Completed, EndStatus::Failed, EndStatus::Stopped] {
        let mut machine = Machine::new();
        machine.submit(spec("a"));
        machine.cancel("a");
        let outcome = outcome(Some(FailureClass::KillFailed), Verdict::Cancelled);
        assert_eq!(
            told(&machine.ended("a", RunEnd { status, outcome })),
            ["TaskFailed a", "2: task failed: some of its processes could not be ended"]
        );
        assert_eq!(machine.failure("a").unwrap().class, FailureClass::KillFailed);
        assert_eq!(machine.verdict("a"), Verdict::Failed);
    }
}

#[test]
fn r_73_a_run_is_ended_after_six_hours_and_the_task_says_so() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    let deadline = machine.now.boot.after(seconds(6 * 3600));
    assert_eq!(machine.state.next_deadline(), Some(deadline));
    machine.pass(seconds(6 * 3600) - Duration::from_nanos(1));
    assert_eq!(told(&machine.step(Input::Tick)), [""; 0]);
    machine.pass(Duration::from_nanos(1));
    assert_eq!(told(&machine.step(Input::Tick)), ["stop a#1 Deadline"]);
    assert_eq!(told(&machine.step(Input::Tick)), [""; 0], "told to stop once");
    assert_eq!(machine.state.next_deadline(), None);
    assert_eq!(told(&machine.ended("a", stopped())), ["TaskFailed a"]);
    let failure = machine.failure("a").unwrap();
    assert_eq!(failure.class, FailureClass::Timeout);
    assert_eq!(failure.message, "agent-cli exceeded its 21600 second runtime limit");
    assert_eq!(machine.verdict("a"), Verdict::Failed);
}

#[test]
fn r_73_each_run_has_its_own_limit_and_the_text_names_its_agent() {
    let mut machine = Machine::new();
    let limited = |name: &str, agent: &str, limit| TaskSpec {
        agent: Some(agent.into()),
        timeout: Some(seconds(limit)),
        ..spec(name)
    };
    machine.submit(limited("a", "claude_code", 90));
    machine.submit(limited("b", "agent_cli", 60));
    assert_eq!(machine.state.next_deadline(), Some(machine.now.boot.after(seconds(60))));
    machine.pass(seconds(100));
    let effects = machine.step(Input::Tick);
    assert_eq!(told(&effects), ["stop a#1 Deadline", "stop b#1 Deadline"]);
    machine.ended("a", stopped());
    machine.ended("b", stopped());
    let text = |name| machine.failure(name).unwrap().message;
    assert_eq!(text("a"), "claude_code exceeded its 90 second runtime limit");
    assert_eq!(text("b"), "agent-cli exceeded its 60 second runtime limit");
    // The time of a retry counts from its own start.
    machine.retry("b");
    assert_eq!(machine.state.next_deadline(), Some(machine.now.boot.after(seconds(60))));
}

#[test]
fn r_73_the_limit_counts_from_the_start_and_not_from_the_submission() {
    let mut machine = Machine::new();
    machine.set_limit(1);
    machine.submit_all(&["a", "b"]);
    machine.pass(seconds(3600));
    machine.ended("a", completed());
    assert_eq!(machine.state.next_deadline(), Some(machine.now.boot.after(seconds(6 * 3600))));
}

#[test]
fn r_73_what_completes_while_it_is_being_stopped_for_its_deadline_has_completed() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    machine.pass(seconds(6 * 3600));
    machine.step(Input::Tick);
    machine.ended("a", completed());
    assert_eq!(machine.status("a"), TaskStatus::Completed);
    assert_eq!(machine.failure("a"), None);
}

#[test]
fn the_first_reason_to_stop_decides() {
    let mut machine = Machine::new();
    machine.submit_all(&["late", "cancelled"]);
    machine.cancel("cancelled");
    machine.pass(seconds(6 * 3600));
    assert_eq!(told(&machine.step(Input::Tick)), ["stop late#1 Deadline"]);
    assert_eq!(told(&machine.cancel("late")), [""; 0]);
    assert_eq!(told(&machine.step(Input::Shutdown)), [""; 0]);
    assert_eq!(
        told(&machine.ended("late", stopped())),
        ["TaskFailed late", "4: task is not active"]
    );
    assert_eq!(
        told(&machine.ended("cancelled", stopped())),
        ["TaskCancelled cancelled", "3: cancelled TaskCancelled"]
    );
}

#[test]
fn status_failure_and_verdict_always_agree() {
    let classes = [None, Some(FailureClass::Quota)];
    for (verdict, class) in Verdict::ALL.into_iter().flat_map(|v| classes.map(|c| (v, c))) {
        for status in [EndStatus::Completed, EndStatus::Failed, EndStatus::Stopped] {
            let mut machine = Machine::new();
            machine.submit(spec("a"));
            machine.ended("a", RunEnd { status, outcome: outcome(class, verdict) });
            let failure = machine.failure("a").map(|failure| failure.class);
            if status == EndStatus::Completed {
                assert_eq!((machine.status("a"), failure), (TaskStatus::Completed, None));
                let kept = match verdict {
                    Verdict::SucceededNoVisibleEffect | Verdict::SucceededWithWarnings => verdict,
                    _ => Verdict::Succeeded,
                };
                assert_eq!(machine.verdict("a"), kept);
            } else {
                // Nobody here asked it to stop: whoever did must say why, or the reason is unknown.
                assert_eq!(machine.status("a"), TaskStatus::Failed);
                assert_eq!(failure, class.or(Some(FailureClass::Unknown)));
                assert_eq!(machine.verdict("a"), Verdict::Failed);
            }
        }
    }
}

#[test]
fn r_71_a_denied_run_fails_as_denied() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    machine.ended("a", failed(FailureClass::PermissionDenied));
    assert_eq!(machine.status("a"), TaskStatus::Failed);
    assert_eq!(machine.failure("a").unwrap().class, FailureClass::PermissionDenied);
}

#[test]
fn what_a_run_says_that_is_not_the_current_one_is_ignored() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    machine.ended("a", failed(FailureClass::ExitStatus));
    machine.retry("a");
    for stale in [run("a", 1), run("a", 3), run("nobody", 1)] {
        let before = machine.state.clone();
        let end = Input::Ended { run: stale.clone(), end: completed() };
        assert_eq!(told(&machine.step(end)), [""; 0]);
        assert_eq!(told(&machine.step(Input::Output { run: stale, log_lines: 5 })), [""; 0]);
        assert_eq!(before, machine.state);
    }
    machine.ended("a", failed(FailureClass::ExitStatus));
    let before = machine.state.clone();
    assert_eq!(told(&machine.ended("a", completed())), [""; 0], "it has ended already");
    assert_eq!(told(&machine.output("a", 9)), [""; 0]);
    assert_eq!(before, machine.state);
}

#[test]
fn output_alone_changes_a_task_at_most_once_a_second() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    assert_eq!(told(&machine.output("a", 3)), ["TaskRunning a"]);
    assert_eq!(told(&machine.output("a", 4)), [""; 0]);
    assert_eq!(machine.task("a").log_lines, 3);
    let due = machine.now.boot.after(seconds(1));
    assert_eq!(machine.state.next_deadline(), Some(due));
    machine.pass(Duration::from_millis(999));
    assert_eq!(told(&machine.output("a", 9)), [""; 0]);
    machine.pass(Duration::from_millis(1));
    assert_eq!(told(&machine.step(Input::Tick)), ["TaskRunning a"]);
    assert_eq!(machine.task("a").log_lines, 9);
    assert_eq!(told(&machine.output("a", 9)), [""; 0], "nothing new");
    assert_eq!(told(&machine.output("a", 8)), [""; 0], "a position never moves back");
    assert!(machine.state.next_deadline() > Some(machine.now.boot.after(seconds(3600))));
    machine.pass(seconds(1));
    assert_eq!(told(&machine.output("a", 10)), ["TaskRunning a"]);
}

#[test]
fn a_change_of_state_carries_all_output_as_of_then() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    machine.output("a", 3);
    machine.output("a", 12);
    machine.ended("a", completed());
    assert_eq!(machine.task("a").log_lines, 12);
}

#[test]
fn updated_at_never_moves_back() {
    let mut machine = Machine::new();
    machine.submit(spec("a"));
    let started = machine.task("a").updated_at;
    machine.now.wall = Timestamp::from_micros(5);
    machine.output("a", 1);
    assert_eq!(machine.task("a").updated_at, started);
    machine.ended("a", failed(FailureClass::ExitStatus));
    machine.retry("a");
    assert_eq!(machine.task("a").updated_at, started);
    machine.submit(spec("b"));
    assert_eq!(machine.task("b").updated_at, Timestamp::from_micros(5));
    machine.now.wall = Timestamp::from_micros(2_000_000);
    machine.output("a", 1);
    assert_eq!(machine.task("a").updated_at, machine.now.wall);
}
