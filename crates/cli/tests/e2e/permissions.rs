//! What may not be: a directory that its user may not enter, an agent that is denied something.

use std::fs;
use std::path::Path;

use ostler_testkit::process::wait_until;
use serde_json::{Value, json};

use crate::rig::{Done, PATIENCE, Rig, Running, finish};
use crate::user::{User, mode, set_mode};

/// The task as `ostler task show` has it for this user.
fn show(user: &User, id: &str) -> Value {
    let done = finish(&mut user.ostler(&["task", "show", id, "--json"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

/// That a run failed for its directory alone, and said so.
#[track_caller]
fn assert_not_entered(user: &User, id: &str, done: &Done, dir: &Path) {
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""), "{done:?}");
    let why = format!("cannot run in {}: Permission denied", dir.display());
    assert!(done.stderr.contains("failed: ") && done.stderr.contains(&why), "{done:?}");
    let task = show(user, id);
    assert_eq!(
        (&task["status"], &task["failure"]["class"]),
        (&json!("TaskFailed"), &json!("spawn"))
    );
    assert!(task["failure"]["message"].as_str().unwrap().contains(&why), "{task}");
    let receipt = &task["receipt"];
    assert_eq!((&receipt["started_at"], &receipt["exit"]), (&Value::Null, &Value::Null), "{task}");
    assert_eq!(receipt["verdict"], "failed");
}

/// The directory is named, nothing is started or changed, and the daemon goes on.
#[test]
fn a_directory_that_may_not_be_entered_fails_the_task_and_stays_as_it_is() {
    let mut user = User::new();
    user.configure("[tasks]\nlimit = 1\n");
    user.start_daemon();
    let [shut, listed, blind, outer] =
        ["shut", "listed", "blind", "outer"].map(|name| user.folder(name));
    let inner = user.folder("outer/inner");
    let modes = [(&shut, 0o000), (&listed, 0o600), (&blind, 0o300)];
    for (dir, bits) in modes {
        set_mode(dir, bits);
    }
    let run = |id: &str, dir: &Path| {
        let dir = dir.to_str().unwrap();
        user.ostler(&["run", "--id", id, "-C", dir, "--", "touch", "here"])
    };
    for (id, dir) in [("shut", &shut), ("listed", &listed)] {
        let done = finish(&mut run(id, dir));
        assert_not_entered(&user, id, &done, dir);
    }
    // Whoever may enter and not look around may work there.
    let done = finish(&mut run("blind", &blind));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(modes.iter().all(|(dir, bits)| mode(dir) == *bits), "the modes stay");

    // What lies behind a shut one is no directory as far as the command can tell; nothing is submitted. One that is
    // shut while the task waits fails it.
    let wait = "until [ -e go ]; do sleep 0.02; done";
    let mut holds = user.ostler(&["run", "--id", "holds", "--", "sh", "-c", wait]);
    let holds = Running::start(&mut holds);
    wait_until("it runs", PATIENCE, || {
        let done = finish(&mut user.ostler(&["status"]));
        done.stdout.contains("running    1")
    });
    let waits = Running::start(&mut run("waits", &inner));
    waits.says("queued");
    set_mode(&outer, 0o000);
    let done = finish(&mut run("behind", &inner));
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains(&format!("the directory {} cannot be used", inner.display())));
    assert!(done.stderr.contains("Permission denied"), "{done:?}");
    fs::write(user.rig.scratch.work().join("go"), "").unwrap();
    assert_eq!(holds.finish().code, Some(0));
    assert_not_entered(&user, "waits", &waits.finish(), &inner);

    let done = finish(&mut user.ostler(&["task", "list", "--json"]));
    let tasks: Vec<Value> = serde_json::from_str(&done.stdout).unwrap();
    let ids: Vec<&str> = tasks.iter().map(|task| task["taskId"].as_str().unwrap()).collect();
    assert_eq!(ids, ["shut", "listed", "blind", "holds", "waits"]);
    // Open again, so that they can be looked into and removed.
    for dir in [&shut, &listed, &blind, &outer] {
        set_mode(dir, 0o700);
    }
    for (dir, files) in [(&shut, 0), (&listed, 0), (&blind, 1), (&inner, 0)] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), files, "{}", dir.display());
    }
    let done = finish(&mut run("open", &shut));
    assert_eq!(done.code, Some(0), "{done:?}");
    user.rig.assert_nothing_runs();
}

/// the agent says that it finished all the same, and is believed; what it was denied is in the receipt and
/// before the person's eyes.
#[test]
fn r_71_a_denial_is_shown_and_the_agents_own_end_stands() {
    let rig = Rig::serving();
    rig.scratch.install("claude", &rig.agent);
    let done = finish(&mut rig.ostler(["run", "-a", "claude", "--id", "t", "denied write-file:f"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("Bash denied"), "while it runs: {done:?}");
    assert!(
        done.stderr.contains("completed: ") && done.stderr.contains("denied: Bash"),
        "{done:?}"
    );
    let task = rig.show("t");
    assert_eq!((&task["status"], &task["failure"]), (&json!("TaskCompleted"), &Value::Null));
    assert_eq!(task["receipt"]["denials"], json!(["Bash"]), "{task}");
    assert_eq!(task["receipt"]["verdict"], "succeeded_with_warnings");
    assert_eq!(task["receipt"]["proof"], "terminal_event");
    assert!(rig.scratch.work().join("f").exists(), "what is allowed happens");
    let table = finish(&mut rig.ostler(["task", "list"])).stdout;
    assert!(table.contains("denied: Bash"), "{table}");

    // Nothing was opened for it: the safest mode, and nobody to ask.
    let record: Value =
        serde_json::from_slice(&fs::read(rig.run_dir("t").join("run.json")).unwrap()).unwrap();
    let argv = record["argv"].as_array().unwrap();
    assert!(argv.contains(&json!("--permission-mode=acceptEdits")), "{argv:?}");
    assert!(!argv.iter().any(|word| word.as_str().unwrap().contains("skip-permissions")));

    // An undisturbed run has none of this.
    let done = finish(&mut rig.ostler(["run", "--json", "-a", "claude", "write-file:g"]));
    let result = done.json_lines().pop().unwrap();
    assert_eq!(result["receipt"]["denials"], json!([]), "{result}");
    assert_eq!((done.code, &result["receipt"]["verdict"]), (Some(0), &json!("succeeded")));
}

/// an agent that could not finish without it has failed, and the reason is the denial.
#[test]
fn r_71_a_run_that_could_not_do_without_has_failed() {
    let rig = Rig::serving();
    rig.scratch.install("claude", &rig.agent);
    let prompt = "denied give-up";
    let done = finish(&mut rig.ostler(["run", "--json", "-a", "claude", "--id", "t", prompt]));
    let result = done.json_lines().pop().unwrap();
    assert_eq!((done.code, &result["status"]), (Some(1), &json!("failed")), "{result}");
    assert_eq!(result["failure"]["class"], "permission_denied", "{result}");
    assert_eq!(result["receipt"]["denials"], json!(["Bash"]));
    assert_eq!(result["receipt"]["verdict"], "failed");
    let message = result["failure"]["message"].as_str().unwrap();
    assert!(message.contains("Bash"), "{message}");
    let done = finish(&mut rig.ostler(["run", "-a", "claude", prompt]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("failed: ") && done.stderr.contains(message), "{done:?}");
    // The same end without a denial is none of a permission.
    let done = finish(&mut rig.ostler(["run", "--json", "-a", "claude", "give-up"]));
    let result = done.json_lines().pop().unwrap();
    assert_eq!((done.code, &result["failure"]["class"]), (Some(1), &json!("unknown")), "{result}");
    rig.assert_nothing_runs();
}
