//! `-m`, `--provider` and `--budget` of `ostler run`: what reaches the agent, and what is refused before
//! anything runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::rig::{Rig, finish};

/// A rig whose `claude` writes its arguments into the work folder, one a line, before it plays.
fn rig() -> Rig {
    let rig = Rig::serving();
    let script = r#"#!/bin/sh
[ "$1" = "--version" ] || printf '%s\n' "$@" > arguments
exec fake-agent claude "$@"
"#;
    let program = rig.scratch.bin().join("claude");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    rig
}

/// What `claude` was called with in `ostler run OPTIONS`, and the task.
fn called_with(rig: &Rig, id: &str, options: &[&str]) -> (Vec<String>, Value) {
    let done = finish(rig.ostler(["run", "--id", id]).args(options).arg("hello"));
    assert_eq!(done.code, Some(0), "{options:?}: {done:?}");
    let arguments = fs::read_to_string(rig.scratch.work().join("arguments")).unwrap();
    fs::remove_file(rig.scratch.work().join("arguments")).unwrap();
    (arguments.lines().map(str::to_owned).collect(), rig.show(id))
}

#[test]
fn r_72_model_provider_and_budget_reach_the_agent_and_the_task() {
    let rig = rig();
    let usual = ["-p", "--verbose", "--output-format=stream-json", "--permission-mode=acceptEdits"];
    let with = |more: &[&str]| -> Vec<String> {
        usual.iter().chain(more).map(|word| (*word).to_owned()).collect()
    };
    let (arguments, task) = called_with(&rig, "plain", &["-a", "claude"]);
    assert_eq!(arguments, with(&[]), "nothing that was not asked for");
    assert_eq!((&task["provider"], &task["model"]), (&Value::Null, &Value::Null));

    // An agent of one provider is not asked for it, also where it is the default.
    for (id, agent) in [("named", &["-a", "claude"][..]), ("default", &[])] {
        let (arguments, task) = called_with(&rig, id, &[agent, &["-m", "opus 4"]].concat());
        assert_eq!(arguments, with(&["--model=opus 4"]));
        assert_eq!((&task["provider"], &task["model"]), (&json!("anthropic"), &json!("opus 4")));
    }
    let shown = finish(&mut rig.ostler(["task", "show", "named"])).stdout;
    assert!(shown.lines().any(|line| line.starts_with("model ") && line.ends_with("opus 4")));

    let options = ["-a", "claude", "--model=-x", "--provider", "claude", "--effort", "high"];
    let (arguments, task) = called_with(&rig, "both", &options);
    assert_eq!(arguments, with(&["--model=-x", "--effort=high"]), "it takes no provider");
    assert_eq!((&task["provider"], &task["model"]), (&json!("claude"), &json!("-x")));
    assert_eq!(task["effort"], "high");

    // To the sixth decimal, whatever the spelling.
    for (id, said, told) in [
        ("cents", "0.50", "0.500000"),
        ("dollars", "$12", "12.000000"),
        ("least", "0.000001", "0.000001"),
    ] {
        let (arguments, _) = called_with(&rig, id, &["-a", "claude", "--budget", said]);
        assert_eq!(arguments, with(&[&format!("--max-budget-usd={told}")]));
    }

    // The original's agent is told both.
    rig.scratch.install("agent-cli", &rig.agent);
    let options = ["-m", "model-1", "--provider", "vendor", "--id", "original", "echo-args"];
    let done = finish(rig.ostler(["run"]).args(options));
    assert_eq!(done.code, Some(0), "{done:?}");
    let words: Vec<&str> = done.stdout.lines().filter(|line| line.starts_with('"')).collect();
    assert!(words.ends_with(&[r#""--provider""#, r#""vendor""#, r#""--model""#, r#""model-1""#]));
    let task = rig.show("original");
    assert_eq!((&task["provider"], &task["model"]), (&json!("vendor"), &json!("model-1")));
}

/// A command line that makes no sense is 2, what the daemon or the agent cannot honour 4; in neither case is there
/// a task, a run or a process.
#[test]
fn r_49_r_55_a_bad_model_provider_or_budget_submits_nothing() {
    let rig = rig();
    let (long_model, long_provider) = ("m".repeat(257), "p".repeat(129));
    let claude = |more: &[&str]| [&["-a", "claude"], more].concat().join("\u{1f}");
    let refusals = [
        (2, claude(&["--provider", "anthropic"]), "--model"),
        (2, claude(&["--budget", "0"]), "more than nothing"),
        (2, claude(&["--budget", "0.0000001"]), "like 2 or 0.50"),
        (2, claude(&["--budget=-1"]), "like 2 or 0.50"),
        (2, claude(&["--budget", "much"]), "like 2 or 0.50"),
        (
            2,
            "-a\u{1f}agent_cli\u{1f}-m\u{1f}x".to_owned(),
            "a model needs its agent or its provider",
        ),
        (4, claude(&["-m", ""]), "model"),
        (4, claude(&["-m", &long_model]), "model"),
        (4, claude(&["-m", "x", "--provider", &long_provider]), "provider"),
        (4, claude(&["-m", "x", "--provider", "openai"]), "claude_code has no provider `openai`"),
        (4, "-a\u{1f}agent_cli\u{1f}--budget\u{1f}1".to_owned(), "cannot keep a budget"),
    ];
    for (code, options, said) in refusals {
        let mut command = rig.ostler(["run", "--id", "t"]);
        let done = finish(command.args(options.split('\u{1f}')).arg("hello"));
        assert_eq!(done.code, Some(code), "{options:?}: {done:?}");
        assert!(
            done.stderr.contains("error:") && done.stderr.contains(said),
            "{options:?}: {done:?}"
        );
        assert!(done.stdout.is_empty(), "{done:?}");
        assert!(!done.stderr.contains("task show t"), "there is no such task: {done:?}");
    }
    for more in [&["-m", "x", "--provider", "y"][..], &["--budget", "1"]] {
        let done = finish(
            rig.ostler(["run", "-a", "command", "--id", "t"]).args(more).args(["--", "true"]),
        );
        assert_eq!(done.code, Some(4), "{more:?}: {done:?}");
        assert!(done.stderr.contains("command "), "it names the agent: {done:?}");
    }
    let listed = finish(&mut rig.ostler(["task", "list", "--all", "--json"]));
    assert_eq!(listed.stdout, "[]\n", "{listed:?}");
    assert!(!rig.scratch.work().join("arguments").exists());
    assert!(!rig.run_dir("t").exists());
    // The id was not taken either.
    let done = finish(&mut rig.ostler(["run", "-a", "claude", "--id", "t", "hello"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    rig.assert_nothing_runs();
}
