//! What a run may not do: an agent that is denied something.

use std::fs;

use serde_json::{Value, json};

use crate::rig::{Rig, finish};

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
