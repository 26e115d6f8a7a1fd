//! A task id is used once.

use serde_json::json;

use super::raw::{Raw, submit};
use super::rig::Rig;
use super::runner::AT_ONCE;

fn exists(raw: &mut Raw, task: &str) {
    assert_eq!(raw.submit(task), Err("task id already exists".into()), "{task}");
}

///
#[test]
fn r_58_r_67_an_id_in_any_state_is_refused_and_never_runs_twice() {
    let mut rig = Rig::new();
    let mut raw = rig.client();
    for task in ["running", "completed", "failed", "cancelled"] {
        rig.running(&mut raw, task);
    }
    raw.submit("queued").unwrap();
    assert_eq!(raw.task("queued")["status"], "TaskQueued");
    for task in ["running", "completed", "failed", "cancelled", "queued"] {
        exists(&mut raw, task);
    }
    raw.on("cancel", "queued").unwrap();
    rig.runner.complete("completed");
    rig.runner.fail("failed", "no");
    raw.on("cancel", "cancelled").unwrap();
    raw.until_status("completed", "TaskCompleted");
    raw.until_status("failed", "TaskFailed");
    let tasks = ["running", "completed", "failed", "cancelled", "queued"];
    for task in tasks {
        exists(&mut raw, task);
    }
    drop(raw);
    rig.kill_and_start();
    let mut raw = rig.client();
    assert_eq!(raw.task("running")["status"], "TaskInterrupted");
    for task in tasks {
        exists(&mut raw, task);
    }
    assert_eq!(raw.list().len(), 5);
    assert_eq!(rig.runner.started().len(), 4, "each ran once, the queued one never");
}

/// also when it has moved to the archive, and after restarts.
#[test]
fn r_58_an_archived_id_is_refused() {
    let mut rig = Rig::with(|settings| settings.tasks.live_tasks_max = 3);
    let mut raw = rig.client();
    for n in 0..10 {
        let task = format!("a{n}");
        let mut command = submit(&task);
        command["prompt"] = json!(AT_ONCE);
        raw.call(&command).unwrap();
        raw.until_status(&task, "TaskCompleted");
    }
    let live: Vec<_> = raw.list().iter().map(|it| it["taskId"].clone()).collect();
    assert_eq!(live, ["a7", "a8", "a9"], "the oldest finished ones have left");
    let refuse_all = |rig: &Rig| {
        let mut raw = rig.client();
        for n in 0..10 {
            exists(&mut raw, &format!("a{n}"));
            assert_eq!(raw.list().len(), 3, "a refusal moves nothing");
        }
    };
    refuse_all(&rig);
    assert_eq!(raw.on("cancel", "a0"), Err("task id is unknown".into()));
    drop(raw);
    rig.kill_and_start();
    refuse_all(&rig);
    rig.stop();
    rig.start();
    refuse_all(&rig);
    assert_eq!(rig.runner.started().len(), 10);
}

/// Only a live set full of unfinished tasks refuses.
#[test]
fn a_live_set_full_of_unfinished_tasks_refuses_and_changes_nothing() {
    let rig = Rig::with(|settings| settings.tasks.live_tasks_max = 5);
    let mut raw = rig.client();
    for n in 0..5 {
        raw.submit(&format!("u{n}")).unwrap();
    }
    rig.runner.wait_started("u3", 1);
    let current = rig.mirror().current;
    let error = raw.submit("one-more").unwrap_err();
    assert!(error.contains("full"), "{error}");
    assert_eq!((raw.list().len(), rig.mirror().current), (5, current));
    raw.on("cancel", "u4").unwrap();
    raw.submit("one-more").unwrap();
    let live: Vec<_> = raw.list().iter().map(|it| it["taskId"].clone()).collect();
    assert_eq!(live, ["u0", "u1", "u2", "u3", "one-more"]);
}

/// A client learns of what was archived as of any other task: the snapshot it gets has the live ones.
#[test]
fn r_43_a_new_client_sees_the_live_tasks_and_no_archived_one() {
    let rig = Rig::with(|settings| settings.tasks.live_tasks_max = 2);
    let mut raw = rig.client();
    for n in 0..4 {
        rig.running(&mut raw, &format!("t{n}"));
        rig.runner.complete(&format!("t{n}"));
        raw.until_status(&format!("t{n}"), "TaskCompleted");
    }
    let mirror = rig.mirror().opened();
    assert_eq!(mirror.known.tasks.keys().collect::<Vec<_>>(), ["t2", "t3"]);
}
