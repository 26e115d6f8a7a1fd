//! Order, sessions and the limit (runtime.md, "Scheduling").

use super::kit::*;
use crate::outcome::FailureClass;
use crate::task::*;

#[test]
fn scheduling_four_run_unless_told_otherwise_first_come_first_served() {
    let mut machine = Machine::new();
    machine.submit_all(&["a", "b", "c", "d", "e", "f"]);
    assert_eq!((machine.state.running(), machine.state.queued()), (4, 2));
    assert_eq!(machine.state.unfinished(), 6);
    assert_eq!(machine.state.waits_for(&id("e")), Some(Waiting::Limit));
    assert_eq!(machine.state.waits_for(&id("a")), None);
    let effects = machine.ended("c", completed());
    assert_eq!(told(&effects), ["TaskCompleted c", "drop c", "TaskRunning e", "start e#1"]);
    assert_eq!(told(&machine.ended("a", completed()))[2..], ["TaskRunning f", "start f#1"]);
}

#[test]
fn scheduling_a_raised_limit_starts_all_it_allows_in_one_step() {
    let mut machine = Machine::new();
    machine.set_limit(1);
    machine.submit_all(&["a", "b", "c", "d"]);
    assert_eq!(
        told(&machine.set_limit(3)),
        ["limit 3", "6: limit 3", "TaskRunning b", "start b#1", "TaskRunning c", "start c#1"]
    );
}

#[test]
fn scheduling_a_lowered_limit_stops_nobody_and_starts_nobody() {
    let mut machine = Machine::new();
    machine.submit_all(&["a", "b", "c", "d", "e"]);
    assert_eq!(told(&machine.set_limit(2)), ["limit 2", "6: limit 2"]);
    assert_eq!(machine.state.running(), 4);
    machine.ended("a", completed());
    machine.ended("b", completed());
    assert_eq!(machine.status("e"), TaskStatus::Queued);
    assert_eq!(told(&machine.ended("c", completed()))[2..], ["TaskRunning e", "start e#1"]);
}

#[test]
fn scheduling_tasks_of_one_session_run_one_after_another_and_hold_back_nobody_else() {
    let mut machine = Machine::new();
    machine.submit(in_session("s1", "s"));
    assert_eq!(machine.submit(in_session("s2", "s")).len(), 2);
    assert_eq!(machine.submit(in_session("s3", "s")).len(), 2);
    assert!(told(&machine.submit(in_session("t1", "t"))).contains(&"start t1#1".into()));
    assert!(told(&machine.submit(spec("free"))).contains(&"start free#1".into()));
    assert_eq!(machine.state.waits_for(&id("s2")), Some(Waiting::Session(id("s1"))));
    assert_eq!(machine.state.waits_for(&id("s3")), Some(Waiting::Session(id("s2"))));
    // Whatever became of the one before: the session goes on.
    let end = failed(FailureClass::ExitStatus);
    assert_eq!(told(&machine.ended("s1", end))[1..], ["TaskRunning s2", "start s2#1"]);
    machine.cancel("s2");
    assert_eq!(
        told(&machine.ended("s2", stopped()))[1..],
        ["6: cancelled TaskCancelled", "TaskRunning s3", "start s3#1"]
    );
}

#[test]
fn scheduling_a_session_keeps_its_place_in_the_line() {
    let mut machine = Machine::new();
    machine.set_limit(2);
    machine.submit(in_session("s1", "s"));
    machine.submit(spec("x"));
    machine.submit(in_session("s2", "s"));
    machine.submit(spec("y"));
    // `s2` was submitted before `y` and is no longer blocked: it goes first.
    assert_eq!(told(&machine.ended("s1", completed()))[2..], ["TaskRunning s2", "start s2#1"]);
    assert_eq!(told(&machine.ended("x", completed()))[2..], ["TaskRunning y", "start y#1"]);
}

#[test]
fn scheduling_cancelling_the_first_waiting_task_of_a_session_lets_the_next_take_its_place() {
    let mut machine = Machine::new();
    machine.set_limit(1);
    machine.submit(spec("x"));
    machine.submit(in_session("s1", "s"));
    machine.submit(in_session("s2", "s"));
    assert_eq!(machine.state.waits_for(&id("s1")), Some(Waiting::Limit));
    assert_eq!(told(&machine.cancel("s1")), ["TaskCancelled s1", "5: cancelled TaskCancelled"]);
    assert_eq!(machine.state.waits_for(&id("s2")), Some(Waiting::Limit));
    assert_eq!(told(&machine.ended("x", completed()))[2..], ["TaskRunning s2", "start s2#1"]);
}

#[test]
fn scheduling_a_retry_does_not_overtake_its_session() {
    let mut machine = Machine::new();
    machine.submit(in_session("s1", "s"));
    machine.submit(in_session("s2", "s"));
    machine.ended("s1", failed(FailureClass::ExitStatus));
    assert_eq!(told(&machine.retry("s1")), ["TaskQueued s1", "3: queued TaskQueued"]);
    assert_eq!(machine.state.waits_for(&id("s1")), Some(Waiting::Session(id("s2"))));
    assert_eq!(told(&machine.ended("s2", completed()))[2..], ["TaskRunning s1", "start s1#2"]);
}

#[test]
fn r_57_without_a_session_tasks_never_wait_for_each_other() {
    let mut machine = Machine::new();
    machine.submit_all(&["a", "b", "c"]);
    assert_eq!(machine.state.running(), 3);
}
