//! The real Claude Code (`.ci/install-claude`) against the scripted model endpoint.
//!
//! The endpoint is told by the submitting shell's environment, as a person would. Each test checks the
//! result, that nothing of the run is left, and that the prompt is in no file of ours.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use ostler_proto::framed::{TaskStatus, Verdict};
use ostler_testkit::claude::{CLAUDE_VERSION, claude_env, find_claude, require_or_skip};
use ostler_testkit::model::{ModelEndpoint, Scenario};
use ostler_testkit::process::wait_until;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{PATIENCE, Rig, Running, finish, is};

/// Said in every prompt, and in nothing else.
const SECRET: &str = "quixotic-zeppelin-9731";

struct Claude {
    rig: Rig,
    endpoint: ModelEndpoint,
}

impl Claude {
    /// None where the real program is not installed and need not be.
    fn new(test: &str, scenario: Value) -> Option<Self> {
        let program = require_or_skip(&format!("cli/claude_{test}"), find_claude())?;
        let rig = Rig::serving();
        rig.scratch.install("claude", &program);
        let endpoint = ModelEndpoint::start(Scenario::from_json(scenario));
        Some(Self { rig, endpoint })
    }

    /// `ostler run --json -a claude --permissions full --id ID ARGS PROMPT`.
    fn run(&self, id: &str, args: &[&str]) -> Command {
        self.run_as_permitted(id, &[&["--permissions", "full"], args].concat())
    }

    /// `ostler run --json -a claude --id ID ARGS PROMPT`.
    fn run_as_permitted(&self, id: &str, args: &[&str]) -> Command {
        let mut command = self.rig.ostler(["run", "--json", "-a", "claude", "--id", id]);
        command.args(args);
        command.arg(format!("Please do what the script says, {SECRET}."));
        command.envs(claude_env(&self.endpoint, &self.rig.scratch.home()));
        command
    }

    /// Runs it to its end; gives the exit code and the last line.
    fn result(&self, id: &str, args: &[&str]) -> (i32, Value) {
        let done = finish(&mut self.run(id, args));
        self.assert_tidy();
        (done.code.unwrap(), done.json_lines().pop().unwrap())
    }

    #[track_caller]
    fn assert_tidy(&self) {
        self.rig.assert_nothing_runs();
        self.assert_secret();
    }

    #[track_caller]
    fn assert_secret(&self) {
        for dir in [self.rig.scratch.runtime_dir(), self.rig.scratch.ostler_home()] {
            let found = self.rig.files_with(&dir, SECRET);
            assert!(found.is_empty(), "the prompt is in {found:?}");
        }
        assert!(!self.rig.daemon_log().contains(SECRET));
    }

    fn in_work(&self, name: &str) -> PathBuf {
        self.rig.scratch.work().join(name)
    }
}

fn writes_a_file() -> Value {
    json!({"turns": [
        {"text": "I will write a file.", "shell": "echo written > f.txt", "usage": {"input": 101, "output": 22}},
        {"text": "All done.", "usage": {"input": 203, "output": 33}}], "side": {"text": "title"}})
}

/// A tool that says that it runs and then does not end.
fn hangs_in_a_tool() -> Value {
    json!({"turns": [{"shell": "touch in-the-tool; sleep 300; sleep 301"}, {"text": "never"}],
           "side": {"text": "title"}})
}

#[test]
fn claude_calls_a_tool_and_succeeds_and_is_resumed_by_its_session() {
    let Some(claude) = Claude::new("success", writes_a_file()) else { return };
    let (code, result) = claude.result("first", &[]);
    assert_eq!((code, &result["status"]), (0, &json!("completed")), "{result}");
    assert_eq!(fs::read_to_string(claude.in_work("f.txt")).unwrap(), "written\n");
    assert_eq!((&result["text"], &result["failure"]), (&json!("All done."), &Value::Null));
    assert_eq!(result["usage"]["input_tokens"], 304, "{result}");
    assert_eq!(result["usage"]["output_tokens"], 55, "{result}");
    assert!(result["cost_micros"]["amount"].as_u64().is_some(), "{result}");
    let receipt = &result["receipt"];
    assert_eq!(receipt["agent"], "claude_code");
    assert_eq!(receipt["agent_version"], CLAUDE_VERSION);
    assert_eq!(receipt["proof"], "terminal_event");
    assert_eq!(receipt["exit"], json!({"code": 0}));
    assert_eq!(receipt["verdict"], "succeeded");
    assert_eq!(receipt["session_id"], result["session_id"]);
    let session = result["session_id"].as_str().expect("a session").to_owned();
    let logs = claude.rig.logs("first");
    assert!(logs.contains("I will write a file.") && logs.contains("All done."), "{logs}");

    // The conversation goes on: both user texts are sent.
    let (code, result) = claude.result("second", &["--resume", &session]);
    assert_eq!((code, &result["session_id"]), (0, &json!(session)), "{result}");
    assert!(claude.endpoint.turns().last().unwrap().users >= 2);
    // Tokens and money of this run alone.
    assert_eq!(result["usage"]["output_tokens"], 55, "{result}");

    let (code, result) =
        claude.result("third", &["--resume", "00000000-0000-4000-8000-000000000000"]);
    assert_eq!((code, &result["status"]), (1, &json!("failed")), "{result}");
    assert!(result["failure"]["message"].as_str().unwrap().contains("No conversation"), "{result}");
}

/// without `--permissions` nobody is asked and nothing happens that a person would have been asked for;
/// the agent goes on to its own end.
#[test]
fn r_71_what_would_need_a_person_is_denied_and_the_run_goes_on() {
    let asks = json!({"turns": [{"text": "I will ask the network.", "shell": "touch reached; curl -s http://127.0.0.1:9"},
                                {"text": "It was not allowed."}], "side": {"text": "title"}});
    let Some(claude) = Claude::new("denied", asks) else { return };
    let done = finish(&mut claude.run_as_permitted("t", &[]));
    claude.assert_tidy();
    let result = done.json_lines().pop().unwrap();
    assert_eq!((done.code, &result["status"]), (Some(0), &json!("completed")), "{result}");
    assert_eq!(result["receipt"]["denials"], json!(["Bash"]), "{result}");
    assert_eq!(result["receipt"]["verdict"], "succeeded_with_warnings");
    assert_eq!(result["text"], "It was not allowed.");
    assert!(!claude.in_work("reached").exists());
}

#[test]
fn what_the_model_refuses_is_classified() {
    let Some(claude) = Claude::new("refused", json!({"turns": [{"text": "x"}]})) else { return };
    for (id, scenario, class) in [
        ("s401", Scenario::status(401, "invalid x-api-key (scripted)"), "authentication"),
        ("s429", Scenario::status(429, "rate limited (scripted)"), "rate_limit"),
    ] {
        claude.endpoint.set_scenario(scenario);
        let (code, result) = claude.result(id, &[]);
        assert_eq!((code, &result["status"]), (1, &json!("failed")), "{result}");
        assert_eq!(result["failure"]["class"], class, "{result}");
        assert_eq!(result["receipt"]["verdict"], "failed");
        assert!(result["session_id"].is_string(), "{result}");
    }
}

/// The stream breaks off in every answer: no success, whatever the exit status.
#[test]
fn a_cut_stream_is_no_success() {
    let cut = json!({"turns": [{"text": "half of an answ", "malformed": "truncate"}]});
    let Some(claude) = Claude::new("cut", cut) else { return };
    let (code, result) = claude.result("cut", &[]);
    assert_eq!((code, &result["status"]), (1, &json!("failed")), "{result}");
    let class = result["failure"]["class"].as_str().unwrap();
    assert!(["network", "truncated_output", "model"].contains(&class), "{result}");
}

#[test]
fn cancel_inside_a_tool_leaves_nothing() {
    let Some(claude) = Claude::new("cancel", hangs_in_a_tool()) else { return };
    let running = Running::start(&mut claude.run("t", &[]));
    wait_until("the tool runs", PATIENCE, || claude.in_work("in-the-tool").exists());
    let task = claude.rig.cancel("t");
    claude.assert_tidy();
    assert!(is(&task, TaskStatus::Cancelled), "{task:?}");
    let receipt = task.receipt.unwrap();
    assert_eq!(receipt.verdict, Verdict::Cancelled);
    assert!(receipt.session_id.is_some(), "it can be resumed: {receipt:?}");
    let done = running.finish();
    let result = done.json_lines().pop().unwrap();
    assert_eq!((done.code, &result["status"]), (Some(5), &json!("cancelled")), "{result}");
}

#[test]
fn kill_9_of_everything_inside_a_tool_leaves_nothing() {
    let Some(mut claude) = Claude::new("kill", hangs_in_a_tool()) else { return };
    let running = Running::start(&mut claude.run("t", &[]));
    wait_until("the tool runs", PATIENCE, || claude.in_work("in-the-tool").exists());
    let shim = claude.rig.shim("t");
    let agent = claude.rig.run_processes().into_iter().find(|process| process.parent == shim.pid);
    let agent = agent.expect("claude below its shim");
    // The shim first stands still, so that it cannot do its work before it dies.
    shim.signal(Signal::STOP);
    claude.rig.kill_daemon();
    agent.signal(Signal::KILL);
    shim.signal(Signal::KILL);
    let done = running.finish();
    assert_eq!(done.code, Some(3), "the daemon is gone: {done:?}");

    claude.rig.start_daemon();
    let task = claude.rig.settled("t");
    claude.rig.assert_gone_within(PATIENCE);
    claude.assert_secret();
    assert!(is(&task, TaskStatus::Interrupted), "{task:?}");
}
