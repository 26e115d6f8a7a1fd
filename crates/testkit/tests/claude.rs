//! The real Claude Code against the scripted endpoint: that the endpoint is good enough for it, and that
//! the fake Claude Code prints what the real one prints.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use ostler_testkit::claude::{CLAUDE_VERSION, claude_env, find_claude, require_or_skip};
use ostler_testkit::model::{ModelEndpoint, Scenario};
use ostler_testkit::process::fake_agent;
use ostler_testkit::scratch::Scratch;
use serde_json::{Value, json};

const ARGS: [&str; 7] = [
    "-p",
    "--output-format",
    "stream-json",
    "--verbose",
    "--dangerously-skip-permissions",
    "--model",
    "fake-model",
];

fn run(scratch: &Scratch, program: &Path, endpoint: &ModelEndpoint, args: &[&str]) -> Output {
    let mut command: Command = scratch.command(program);
    command.envs(claude_env(endpoint, &scratch.home()));
    command.args(ARGS).args(args).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn working() -> Scenario {
    Scenario::from_json(json!({"turns": [
        {"text": "I will write a file.", "shell": "echo written > f.txt", "usage": {"input": 101, "output": 22}},
        {"text": "All done.", "usage": {"input": 203, "output": 33}}], "side": {"text": "title"}}))
}

#[test]
fn the_real_claude_works_with_the_endpoint() {
    let Some(claude) = require_or_skip("testkit/claude_endpoint", find_claude()) else {
        return;
    };
    let scratch = Scratch::new();
    let endpoint = ModelEndpoint::start(working());
    let output = run(&scratch, &claude, &endpoint, &["write a file"]);
    assert!(output.status.success(), "{output:?}");
    assert!(scratch.work().join("f.txt").is_file());
    let lines = lines(&output);
    assert_eq!(lines[0]["claude_code_version"], CLAUDE_VERSION);
    let result = lines.last().unwrap();
    assert_eq!(result["result"], "All done.");
    assert_eq!(result["usage"]["output_tokens"], 55);
    let session = result["session_id"].as_str().unwrap();

    let resumed = run(&scratch, &claude, &endpoint, &["--resume", session, "and again"]);
    assert!(resumed.status.success(), "{resumed:?}");
    let last = endpoint.turns().pop().unwrap();
    assert!(last.users >= 2, "the resumed run sends both user turns: {}", last.users);

    endpoint.set_scenario(Scenario::status(401, "invalid x-api-key (scripted)"));
    let refused = run(&scratch, &claude, &endpoint, &["hello"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(self::lines(&refused).last().unwrap()["api_error_status"], 401);
}

/// The keys of the objects of one kind, by `type` and `subtype`.
fn shapes(lines: &[Value]) -> BTreeSet<(String, String)> {
    let kind = |line: &Value| match line["subtype"].as_str() {
        Some(subtype) => format!("{}/{subtype}", line["type"].as_str().unwrap()),
        None => line["type"].as_str().unwrap().to_owned(),
    };
    let keys = |line: &Value| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let pairs = lines.iter().map(|line| (kind(line), keys(line)));
    pairs.flat_map(|(kind, keys)| keys.into_iter().map(move |key| (kind.clone(), key))).collect()
}

/// Everything the fake prints has a counterpart of the same name in what the real program prints.
#[test]
fn the_fake_claude_prints_nothing_the_real_one_does_not() {
    let Some(claude) = require_or_skip("testkit/claude_shapes", find_claude()) else {
        return;
    };
    let scratch = Scratch::new();
    let endpoint = ModelEndpoint::start(working());
    let real = run(&scratch, &claude, &endpoint, &["write a file"]);
    endpoint.set_scenario(Scenario::status(401, "invalid x-api-key (scripted)"));
    let real_refused = run(&scratch, &claude, &endpoint, &["hello"]);
    let real_unknown = run(
        &scratch,
        &claude,
        &endpoint,
        &["--resume", "00000000-0000-4000-8000-000000000000", "x"],
    );
    let known = shapes(&[lines(&real), lines(&real_refused), lines(&real_unknown)].concat());

    let fake = scratch.install("claude", &fake_agent());
    let fake_run = |args: &[&str]| run(&scratch, &fake, &endpoint, args);
    let played = [
        fake_run(&["write-file:f.txt"]),
        fake_run(&["fail:401"]),
        fake_run(&["--resume", "unknown-1", "x"]),
    ];
    let statuses: Vec<_> = played.iter().map(|output| output.status.code()).collect();
    assert_eq!(
        statuses,
        [real.status.code(), real_refused.status.code(), real_unknown.status.code()]
    );
    let fake = shapes(&played.iter().flat_map(lines).collect::<Vec<_>>());
    let invented: Vec<_> = fake.difference(&known).collect();
    assert!(invented.is_empty(), "{invented:?}");
}
