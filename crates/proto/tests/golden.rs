//! Every message, command, result and document against its golden file, in both directions.
//!
//! The files are the wire itself, one line each, written from the specification before the code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use ostler_proto::framed::{
    ChunkKind, ClientMessage, Command, CommandResult, CostMicros, Decision, Event, Exit,
    FRAME_BYTES_MAX, Failure, FailureClass, GitChange, Hello, Killed, LimitResult, ListResult,
    Permissions, Proof, RawCommand, Receipt, ServerMessage, Snapshot, Submit, Task, TaskResult,
    TaskState, TaskStatus, Usage, Verdict, Welcome, encode_chunk, encode_event, encode_result,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

fn folder() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn golden(name: &str) -> String {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).expect(name);
    text.trim_end().to_owned()
}

/// The value writes the file, and the file reads as the value.
fn both_ways<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(name: &str, value: &T) {
    let text = golden(name);
    assert_eq!(serde_json::to_string(value).unwrap(), text, "{name}");
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{name}");
}

fn queued() -> Task {
    Task {
        task_id: "inspect-1".into(),
        session_id: None,
        status: TaskStatus::Queued,
        description: "[task input redacted]".into(),
        working_directory: "/abs".into(),
        provider: None,
        model: None,
        effort: None,
        worktree: false,
        attempt: 1,
        updated_at: "2026-01-02T03:04:05.678901Z".into(),
        log_tail: vec![],
        agent: None,
        failure: None,
        receipt: None,
    }
}

fn receipt(agent: &str) -> Receipt {
    Receipt {
        agent: agent.into(),
        agent_version: None,
        proof: None,
        statement: None,
        exit: None,
        started_at: None,
        ended_at: "2026-01-02T03:04:05.600000Z".into(),
        session_id: None,
        git: None,
        denials: vec![],
        killed: vec![],
        kept: vec![],
        output_bytes: 0,
        truncated: false,
        verdict: Verdict::Failed,
        usage: None,
        cost_micros: None,
        text: None,
    }
}

fn completed() -> Task {
    Task {
        task_id: "fix-7".into(),
        session_id: Some("s-1".into()),
        status: TaskStatus::Completed,
        working_directory: "/abs/project".into(),
        provider: Some("anthropic".into()),
        model: Some("opus".into()),
        effort: Some("high".into()),
        attempt: 2,
        log_tail: vec!["läuft".into(), "done".into()],
        agent: Some("claude_code".into()),
        receipt: Some(Receipt {
            agent_version: Some("2.1.0".into()),
            proof: Some(Proof::TerminalEvent),
            statement: Some("success".into()),
            exit: Some(Exit::Code(0)),
            started_at: Some("2026-01-02T03:03:05.000001Z".into()),
            session_id: Some("0b1c".into()),
            git: Some(GitChange {
                head_before: Some("aa".into()),
                head_after: Some("bb".into()),
                changed_files: 2,
                insertions: 10,
                deletions: 3,
            }),
            denials: vec!["WebFetch".into()],
            killed: vec![Killed { pid: 4711, argv0: "sleep".into(), after: "term".into() }],
            output_bytes: 1024,
            verdict: Verdict::SucceededWithWarnings,
            usage: Some(Usage {
                input_tokens: Some(10),
                cache_read_tokens: Some(20),
                output_tokens: Some(30),
                ..Usage::default()
            }),
            cost_micros: Some(CostMicros { amount: 1200, estimated: false }),
            text: Some("All done.".into()),
            ..receipt("claude_code")
        }),
        ..queued()
    }
}

fn failed() -> Task {
    Task {
        task_id: "fix-8".into(),
        status: TaskStatus::Failed,
        working_directory: "/abs/project".into(),
        worktree: true,
        log_tail: vec!["agent-cli exited with status 9".into()],
        failure: Some(Failure {
            class: FailureClass::Quota,
            message: "usage limit reached".into(),
            retry_at: Some("2026-01-02T05:00:00.000000Z".into()),
        }),
        receipt: Some(Receipt {
            exit: Some(Exit::Signal(9)),
            truncated: true,
            ..receipt("agent_cli")
        }),
        ..queued()
    }
}

fn client_messages() -> BTreeMap<&'static str, ClientMessage> {
    let hello =
        Hello { client_id: "documentation-client".into(), versions: vec![3], resume_after: None };
    let resume = Hello { versions: vec![2, 3], resume_after: Some(42), ..hello.clone() };
    BTreeMap::from([
        ("client-hello", ClientMessage::Hello(hello)),
        ("client-hello-resume", ClientMessage::Hello(resume)),
        ("client-ack", ClientMessage::Ack { sequence: 42 }),
        ("client-pong", ClientMessage::Pong { sequence: 42 }),
        ("client-command", ClientMessage::command("list-1", &Command::List).unwrap()),
    ])
}

fn commands() -> BTreeMap<&'static str, Command> {
    let submit = Submit {
        task_id: "inspect-1".into(),
        prompt: "Describe the top-level files. Do not modify anything.".into(),
        cwd: "/absolute/path/to/project".into(),
        ..Submit::default()
    };
    let full = Submit {
        task_id: "fix-7".into(),
        prompt: "Fix the tests.".into(),
        cwd: "/abs/project".into(),
        session_id: Some("s-1".into()),
        provider: Some("anthropic".into()),
        model: Some("opus".into()),
        effort: Some("high".into()),
        agent: Some("claude_code".into()),
        env: [("HOME", "/home/u"), ("PATH", "/bin")].map(|(k, v)| (k.into(), v.into())).into(),
        timeout_seconds: Some(3600),
        budget_micros: Some(5_000_000),
        permissions: Some(Permissions::Safe),
        ..Submit::default()
    };
    let argv = Submit {
        task_id: "make-1".into(),
        cwd: "/abs/project".into(),
        agent: Some("command".into()),
        argv: vec!["make".into(), "test".into()],
        ..Submit::default()
    };
    let task_id = || "inspect-1".to_owned();
    BTreeMap::from([
        ("command-list", Command::List),
        ("command-submit", Command::Submit(submit)),
        ("command-submit-full", Command::Submit(full)),
        ("command-submit-argv", Command::Submit(argv)),
        ("command-cancel", Command::Cancel { task_id: task_id() }),
        ("command-retry", Command::Retry { task_id: task_id() }),
        ("command-set-limit", Command::SetLimit { limit: 8 }),
        (
            "command-approval",
            Command::Approval {
                task_id: task_id(),
                approval_id: "a-1".into(),
                decision: Decision::ApproveSession,
            },
        ),
    ])
}

fn server_messages() -> BTreeMap<&'static str, ServerMessage> {
    let event = |sequence_number, event_type: &str, payload| ServerMessage::Event {
        event: Event { sequence_number, event_type: event_type.into(), payload },
    };
    let limit = || to_raw_value(&LimitResult::new(8)).unwrap();
    let result = |id: &str, error: Option<&str>, result| {
        let ok = error.is_none();
        ServerMessage::CommandResult(CommandResult {
            id: id.into(),
            ok,
            error: error.map(Into::into),
            result,
        })
    };
    let welcome = Welcome { version: 3, current_sequence: 42, heartbeat_seconds: 15 };
    BTreeMap::from([
        ("server-welcome", ServerMessage::Welcome { welcome }),
        ("server-version-rejected", ServerMessage::VersionRejected { supported: vec![3] }),
        (
            "server-snapshot-chunk",
            ServerMessage::SnapshotChunk {
                sequence: 42,
                chunk_index: 0,
                chunk_count: 1,
                snapshot_data: "eyJsYXN0U2VxdWVuY2UiOjQyLCJ0YXNrcyI6e319".into(),
            },
        ),
        ("server-event", event(43, "scheduler_limit_changed", limit())),
        ("server-event-task-changed", event(44, "task_changed", to_raw_value(&queued()).unwrap())),
        (
            "server-event-chunk",
            ServerMessage::EventChunk {
                sequence: 44,
                chunk_index: 1,
                chunk_count: 2,
                event_data: "77+9w6k=".into(),
            },
        ),
        ("server-command-result-ok", result("limit-1", None, Some(limit()))),
        ("server-command-result-error", result("cancel-1", Some("task id is unknown"), None)),
        ("server-heartbeat", ServerMessage::Heartbeat { sequence: 44 }),
    ])
}

#[test]
fn r_25_client_messages() {
    for (name, message) in client_messages() {
        assert_eq!(serde_json::to_string(&message).unwrap(), golden(name), "{name}");
        assert_eq!(ClientMessage::parse(golden(name).as_bytes()).unwrap(), message, "{name}");
    }
}

#[test]
fn r_45_commands() {
    for (name, command) in commands() {
        let text = golden(name);
        assert_eq!(serde_json::to_string(&command).unwrap(), text, "{name}");
        let raw = RawCommand::from_raw(RawValue::from_string(text).unwrap());
        assert_eq!(Command::parse(&raw), Ok(command), "{name}");
    }
}

#[test]
fn r_26_server_messages() {
    for (name, message) in server_messages() {
        let text = golden(name);
        assert_eq!(serde_json::to_string(&message).unwrap(), text, "{name}");
        let read = ServerMessage::parse(text.as_bytes()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{message:?}"), "{name}");
    }
}

#[test]
fn the_encoders_write_the_same_bytes() {
    let body = |frame: Vec<u8>| String::from_utf8(frame[4..].to_vec()).unwrap();
    let mut out = Vec::new();
    let payload = serde_json::to_string(&queued()).unwrap();
    encode_event(&mut out, 44, "task_changed", &payload, FRAME_BYTES_MAX).unwrap();
    assert_eq!(body(out), golden("server-event-task-changed"));

    let mut out = Vec::new();
    encode_result(&mut out, "limit-1", Ok(&LimitResult::new(8)), FRAME_BYTES_MAX).unwrap();
    assert_eq!(body(out), golden("server-command-result-ok"));

    let mut out = Vec::new();
    let error = Err::<&(), _>("task id is unknown");
    encode_result(&mut out, "cancel-1", error, FRAME_BYTES_MAX).unwrap();
    assert_eq!(body(out), golden("server-command-result-error"));

    let mut out = Vec::new();
    let document = br#"{"lastSequence":42,"tasks":{}}"#;
    encode_chunk(&mut out, ChunkKind::Snapshot, 42, document, 0, FRAME_BYTES_MAX).unwrap();
    assert_eq!(body(out), golden("server-snapshot-chunk"));
}

#[test]
fn r_48_tasks_results_and_snapshot() {
    both_ways("task-queued", &queued());
    both_ways("task-completed", &completed());
    both_ways("task-failed", &failed());
    both_ways("snapshot", &Snapshot { last_sequence: 42, tasks: vec![queued()] });
    both_ways("result-list", &ListResult { version: 1, tasks: vec![queued()], truncated: false });
    both_ways("result-list-truncated", &ListResult { version: 1, tasks: vec![], truncated: true });
    let result = |state, task| TaskResult { version: 1, state, task };
    both_ways("result-submit", &result(TaskState::Submitted, queued()));
    let cancelled = Task { status: TaskStatus::Cancelled, ..queued() };
    both_ways("result-cancel", &result(TaskState::Cancelled, cancelled));
    both_ways("result-retry", &result(TaskState::Queued, Task { attempt: 2, ..queued() }));
    both_ways("result-set-limit", &LimitResult::new(8));
}

#[derive(Deserialize)]
struct RefusedCommand {
    command: Box<RawValue>,
    error: String,
}

#[test]
fn r_49_refused_commands_have_these_texts() {
    let rows: Vec<RefusedCommand> = serde_json::from_str(&golden("commands-refused")).unwrap();
    for row in rows {
        let raw = RawCommand::from_raw(row.command);
        assert_eq!(Command::parse(&raw), Err(row.error), "{}", raw.get());
        let framed = format!(r#"{{"type":"command","id":"a","command":{}}}"#, raw.get());
        let message = ClientMessage::parse(framed.as_bytes());
        assert!(matches!(message, Ok(ClientMessage::Command { .. })), "{framed}: {message:?}");
    }
}

#[derive(Deserialize)]
struct RefusedMessage {
    message: Box<RawValue>,
    error: String,
}

#[test]
fn r_29_refused_messages() {
    let rows: Vec<RefusedMessage> = serde_json::from_str(&golden("messages-refused")).unwrap();
    for row in rows {
        let error = ClientMessage::parse(row.message.get().as_bytes()).expect_err(&row.error);
        assert_eq!(error.to_string(), row.error, "{}", row.message.get());
    }
}

#[test]
fn every_golden_file_has_a_test() {
    let there: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let others = [
        "task-queued",
        "task-completed",
        "task-failed",
        "snapshot",
        "result-list",
        "result-list-truncated",
        "result-submit",
        "result-cancel",
        "result-retry",
        "result-set-limit",
        "commands-refused",
        "messages-refused",
    ];
    let tested: BTreeSet<String> = (client_messages().into_keys())
        .chain(commands().into_keys())
        .chain(server_messages().into_keys())
        .chain(others)
        .map(Into::into)
        .collect();
    assert_eq!(there, tested);
}
