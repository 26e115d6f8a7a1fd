//! Limit, order, sessions; cancel and retry.

use ostler_core::task::{EndStatus, StopReason};
use serde_json::{Value, json};

use super::raw::{Raw, submit};
use super::rig::Rig;
use super::runner::{AT_ONCE, STUBBORN, end};

fn names(started: &[(String, u32)]) -> Vec<&str> {
    started.iter().map(|(task, _)| task.as_str()).collect()
}

fn in_session(raw: &mut Raw, task: &str, session: &str) {
    let mut command = submit(task);
    command["session_id"] = json!(session);
    let result = raw.call(&command).unwrap();
    assert_eq!(result["task"]["sessionId"], session);
}

fn set_limit(raw: &mut Raw, limit: u8) {
    raw.call(&json!({"version": 1, "type": "set_limit", "limit": limit})).unwrap();
}

///
#[test]
fn r_51_r_57_a_submission_is_answered_with_its_task() {
    let rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    let result = mirror.raw.submit("t").unwrap();
    assert_eq!(result["state"], "submitted");
    assert_eq!(result["task"]["taskId"], "t");
    assert_eq!(result["task"]["sessionId"], Value::Null);
    assert_eq!(result["task"]["attempt"], 1);
    mirror.until_status("t", "TaskRunning");
    assert_eq!(mirror.statuses("t"), ["TaskQueued", "TaskRunning"]);
}

/// Four at a time, first come, first served.
#[test]
fn the_limit_holds_and_tasks_start_in_their_order() {
    let rig = Rig::new();
    let mut raw = rig.client();
    for n in 0..8 {
        raw.submit(&format!("t{n}")).unwrap();
    }
    rig.runner.wait_started("t3", 1);
    assert_eq!(raw.task("t4")["status"], "TaskQueued");
    rig.runner.complete("t2");
    rig.runner.wait_started("t4", 1);
    set_limit(&mut raw, 6);
    rig.runner.wait_started("t6", 1);
    assert_eq!(raw.task("t7")["status"], "TaskQueued");
    set_limit(&mut raw, 1);
    for n in [0, 1, 3, 4, 5] {
        let task = format!("t{n}");
        rig.runner.complete(&task);
        raw.until_status(&task, "TaskCompleted");
    }
    assert_eq!(
        raw.task("t7")["status"],
        "TaskQueued",
        "a lower limit ends nothing, and starts nothing"
    );
    rig.runner.complete("t6");
    rig.runner.wait_started("t7", 1);
    let started = rig.runner.started();
    assert_eq!(names(&started), ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"]);
}

/// One of a session at a time, in order; others pass.
#[test]
fn sessions_are_in_order_and_hold_back_nobody_else() {
    let rig = Rig::new();
    let mut raw = rig.client();
    in_session(&mut raw, "s1", "s");
    in_session(&mut raw, "s2", "s");
    in_session(&mut raw, "s3", "s");
    raw.submit("other").unwrap();
    in_session(&mut raw, "u1", "u");
    rig.runner.wait_started("u1", 1);
    assert_eq!(raw.task("s2")["status"], "TaskQueued");
    rig.runner.fail("s1", "whatever the end");
    rig.runner.wait_started("s2", 1);
    assert_eq!(raw.task("s3")["status"], "TaskQueued");
    raw.on("cancel", "s2").unwrap();
    rig.runner.wait_started("s3", 1);
    // A retry goes to the end of the line.
    raw.on("retry", "s1").unwrap();
    assert_eq!(raw.task("s1")["status"], "TaskQueued");
    rig.runner.complete("s3");
    rig.runner.wait_started("s1", 2);
    let started = rig.runner.started();
    assert_eq!(names(&started), ["s1", "other", "u1", "s2", "s3", "s1"]);
}

///
#[test]
fn r_61_cancel_of_queued_running_settled_and_unknown() {
    let rig = Rig::new();
    let mut raw = rig.client();
    set_limit(&mut raw, 1);
    rig.running(&mut raw, "running");
    raw.submit("queued").unwrap();
    let result = raw.on("cancel", "queued").unwrap();
    assert_eq!(
        (&result["state"], &result["task"]["status"]),
        (&json!("cancelled"), &json!("TaskCancelled"))
    );
    let result = raw.on("cancel", "running").unwrap();
    assert_eq!(
        (&result["state"], &result["task"]["status"]),
        (&json!("cancelled"), &json!("TaskCancelled"))
    );
    assert_eq!(rig.runner.stops(), [("running".to_owned(), StopReason::Cancel)]);
    for task in ["queued", "running"] {
        assert_eq!(raw.on("cancel", task), Err("task is not active".into()), "{task}");
    }
    assert_eq!(raw.on("cancel", "unknown"), Err("task id is unknown".into()));
    assert_eq!(names(&rig.runner.started()), ["running"]);
}

/// success is said when nothing is left, to everybody who asked.
#[test]
fn r_61_a_cancel_is_answered_when_the_run_has_ended() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let mut command = submit("t");
    command["prompt"] = json!(STUBBORN);
    raw.call(&command).unwrap();
    rig.runner.wait_started("t", 1);
    let mut other = rig.client();
    let first = raw.command(&super::raw::on("cancel", "t"));
    let second = other.command(&super::raw::on("cancel", "t"));
    rig.runner.wait_stopped("t");
    assert_eq!(raw.task("t")["status"], "TaskRunning", "it still runs");
    other.list();
    for client in [&raw, &other] {
        assert!(client.kept().all(|it| it["type"] != "command_result"), "no answer yet");
    }
    rig.runner.end("t", end(EndStatus::Stopped, None));
    assert_eq!(raw.result(&first).unwrap()["state"], "cancelled");
    assert_eq!(other.result(&second).unwrap()["state"], "cancelled");
    assert_eq!(rig.runner.stops().len(), 1, "one order to stop");
}

/// A run that completes before the stop takes hold is completed.
#[test]
fn r_61_a_cancel_that_comes_too_late_is_told_so() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let mut command = submit("t");
    command["prompt"] = json!(STUBBORN);
    raw.call(&command).unwrap();
    rig.runner.wait_started("t", 1);
    let cancel = raw.command(&super::raw::on("cancel", "t"));
    rig.runner.wait_stopped("t");
    rig.runner.complete("t");
    assert_eq!(raw.result(&cancel), Err("task is not active".into()));
    assert_eq!(raw.task("t")["status"], "TaskCompleted");
}

/// the event comes before the answer, to the client that asked.
#[test]
fn an_answer_never_comes_before_its_event() {
    let rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    for n in 0..30 {
        let task = format!("t{n}");
        let id = mirror.raw.command(&submit(&task));
        let mut told = false;
        while let Some(message) = mirror.raw.message() {
            told |= message["event"]["payload"]["taskId"] == *task;
            if message["type"] == "command_result" && message["id"] == *id {
                break;
            }
        }
        assert!(told, "{task} was answered and not told");
    }
}

///
#[test]
fn r_62_r_63_r_64_retry_by_state() {
    let rig = Rig::new();
    let mut raw = rig.client();
    set_limit(&mut raw, 1);
    let mut command = submit("t");
    command["prompt"] = json!("the original input");
    raw.call(&command).unwrap();
    rig.runner.wait_started("t", 1);
    raw.submit("queued").unwrap();
    let active = Err("active tasks cannot be retried".into());
    assert_eq!(raw.on("retry", "t"), active);
    assert_eq!(raw.on("retry", "queued"), active);
    assert_eq!(raw.on("retry", "unknown"), Err("task id is unknown".into()));
    raw.on("cancel", "queued").unwrap();

    rig.runner.line("t", "a line of the first attempt");
    rig.runner.fail("t", "it did not work");
    let failed = raw.until_status("t", "TaskFailed");
    assert_eq!(failed["logTail"], json!(["a line of the first attempt", "it did not work"]));
    rig.running(&mut raw, "blocker");
    let result = raw.on("retry", "t").unwrap();
    assert_eq!(result["state"], "queued");
    for task in [&result["task"], &raw.task("t")] {
        assert_eq!(task["status"], "TaskQueued");
        assert_eq!((&task["attempt"], &task["logTail"]), (&json!(2), &json!([])));
        assert!(task.get("failure").is_none() && task.get("receipt").is_none(), "{task}");
    }
    rig.runner.complete("blocker");
    rig.runner.wait_started("t", 2);
    raw.on("cancel", "t").unwrap();
    let result = raw.on("retry", "t").unwrap();
    assert_eq!(result["task"]["attempt"], 3);
    rig.runner.wait_started("t", 3);
    let prompts: Vec<_> =
        rig.runner.prompts().into_iter().filter(|it| it.contains("original")).collect();
    assert_eq!(prompts, ["the original input"; 3]);
    rig.runner.complete("t");
    raw.until_status("t", "TaskCompleted");
    let completed = "completed tasks cannot be retried; task input has been discarded";
    assert_eq!(raw.on("retry", "t"), Err(completed.into()));
    // A task that was cancelled before it ever ran, too.
    raw.on("retry", "queued").unwrap();
    rig.runner.wait_started("queued", 2);
}

///
#[test]
fn r_65_retry_after_a_restart_says_that_the_input_is_gone() {
    let mut rig = Rig::new();
    let mut raw = rig.client();
    for task in ["failed", "cancelled", "completed", "interrupted"] {
        rig.running(&mut raw, task);
    }
    rig.runner.fail("failed", "no");
    raw.on("cancel", "cancelled").unwrap();
    rig.runner.complete("completed");
    raw.until_status("completed", "TaskCompleted");
    raw.until_status("failed", "TaskFailed");
    drop(raw);
    rig.stop();
    rig.start();
    let mut raw = rig.client();
    let gone = "task input is unavailable after daemon restart; submit a new task id";
    for task in ["failed", "cancelled", "interrupted"] {
        assert_eq!(raw.on("retry", task), Err(gone.into()), "{task}");
    }
    let completed = raw.on("retry", "completed").unwrap_err();
    assert!(completed.starts_with("completed tasks cannot be retried"), "{completed}");
    assert_eq!(rig.runner.started().len(), 4);
}

/// a task's own limit; the text names the seconds.
#[test]
fn r_73_a_run_past_its_limit_is_stopped_and_failed() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let mut command = submit("slow");
    command["timeout_seconds"] = json!(1);
    raw.call(&command).unwrap();
    let failed = raw.until_status("slow", "TaskFailed");
    let message = "agent-cli exceeded its 1 second runtime limit";
    assert_eq!(failed["failure"], json!({"class": "timeout", "message": message}));
    assert_eq!(failed["logTail"].as_array().unwrap().last().unwrap(), message);
    assert_eq!(rig.runner.stops(), [("slow".to_owned(), StopReason::Deadline)]);
}

/// A runner that breaks is a failed task, and the daemon goes on.
#[test]
fn a_runner_that_panics_fails_its_task_alone() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let mut command = submit("broken");
    command["prompt"] = json!(STUBBORN);
    raw.call(&command).unwrap();
    rig.runner.wait_started("broken", 1);
    rig.runner.forget("broken");
    let failed = raw.until_status("broken", "TaskFailed");
    assert_eq!(failed["failure"]["class"], "unknown");
    command = submit("next");
    command["prompt"] = json!(AT_ONCE);
    raw.call(&command).unwrap();
    raw.until_status("next", "TaskCompleted");
}

/// A run whose runner does nothing and does not even hear a stop takes its own place and nothing else.
#[test]
fn a_runner_that_hangs_holds_up_its_own_task_only() {
    let rig = Rig::new();
    let mut raw = rig.client();
    set_limit(&mut raw, 2);
    let mut command = submit("hangs");
    command["prompt"] = json!(STUBBORN);
    raw.call(&command).unwrap();
    rig.runner.wait_started("hangs", 1);
    let some_more = |raw: &mut Raw, name: &str| {
        for n in 0..20 {
            let task = format!("{name}{n}");
            let mut command = submit(&task);
            if n % 2 == 0 {
                command["prompt"] = json!(AT_ONCE);
                raw.call(&command).unwrap();
            } else {
                rig.running(raw, &task);
                rig.runner.complete(&task);
            }
            raw.until_status(&task, "TaskCompleted");
        }
    };
    some_more(&mut raw, "before");
    let cancel = raw.command(&super::raw::on("cancel", "hangs"));
    rig.runner.wait_stopped("hangs");
    some_more(&mut raw, "after");
    assert_eq!(raw.task("hangs")["status"], "TaskRunning", "its processes may be there");
    assert!(!raw.kept().any(|message| message["id"] == cancel), "it is not answered");
    rig.runner.end("hangs", end(EndStatus::Stopped, None));
    assert_eq!(raw.result(&cancel).unwrap()["state"], "cancelled");
}
