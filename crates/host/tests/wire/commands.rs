//! The gate: what a command may say.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::raw::{Raw, frame, on, submit, wait_for};
use super::rig::Rig;

/// Every file below a directory with its bytes.
pub(crate) fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                match std::fs::read(entry.path()) {
                    Ok(bytes) => drop(files.insert(entry.path().display().to_string(), bytes)),
                    // A segment that is being made is renamed.
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
                }
            }
        }
    }
    files
}

/// [`files`] when nothing is written there any more: a thread opens the archive, and allocates the segment
/// after the first record's.
pub(crate) fn settled_files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let archive = dir.join("archive/journal.lock");
    wait_for("the segment ahead", || {
        let journal = std::fs::read_dir(dir.join("journal")).unwrap();
        let names = journal.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let segments = names.filter(|name| name.starts_with("segment-")).count();
        (segments != 1 && archive.exists()).then(|| files(dir))
    })
}

/// Every file is as it was.
#[track_caller]
pub(crate) fn unchanged(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) {
    assert!(before.keys().eq(after.keys()), "{:?}, then {:?}", before.keys(), after.keys());
    for (name, bytes) in before {
        let now = &after[name];
        if bytes != now {
            let at = bytes.iter().zip(now).position(|(old, new)| old != new);
            panic!("{name}: {} bytes, then {}, different at {at:?}", bytes.len(), now.len());
        }
    }
}

/// A client whose commands are answered without a change.
struct Unchanged<'a> {
    rig: &'a Rig,
    raw: Raw,
    tasks: Vec<Value>,
    sequence: u64,
    journal: BTreeMap<String, Vec<u8>>,
}

impl<'a> Unchanged<'a> {
    fn new(rig: &'a Rig) -> Self {
        let mut raw = rig.client();
        let tasks = raw.list();
        let sequence = rig.mirror().current;
        let journal = settled_files(&rig.runtime_dir());
        Self { rig, raw, tasks, sequence, journal }
    }

    #[track_caller]
    fn refused(&mut self, command: &str) -> String {
        match self.raw.call_text(command) {
            Err(error) => error,
            Ok(result) => panic!("not refused: {} {result}", &command[..command.len().min(300)]),
        }
    }

    /// R-49: state, sequence and journal are as they were.
    #[track_caller]
    fn check(mut self) {
        assert_eq!(self.raw.list(), self.tasks);
        assert_eq!(self.rig.mirror().current, self.sequence);
        unchanged(&self.journal, &files(&self.rig.runtime_dir()));
    }
}

/// R-49
#[test]
fn r_49_unknown_versions_types_and_shapes_change_nothing() {
    let rig = Rig::new();
    rig.client().submit("there").unwrap();
    rig.runner.wait_started("there", 1);
    let mut client = Unchanged::new(&rig);
    let deep = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"version":1,"type":"list","x":{open}{close}}}"#)
    };
    let commands = [
        "null",
        "1",
        "\"list\"",
        "[]",
        "{}",
        "true",
        r#"{"version":1}"#,
        r#"{"type":"list"}"#,
        r#"{"version":0,"type":"list"}"#,
        r#"{"version":2,"type":"list"}"#,
        r#"{"version":-1,"type":"list"}"#,
        r#"{"version":"1","type":"list"}"#,
        r#"{"version":null,"type":"list"}"#,
        r#"{"version":1.5,"type":"list"}"#,
        r#"{"version":1,"type":"List"}"#,
        r#"{"version":1,"type":"frobnicate"}"#,
        r#"{"version":1,"type":null}"#,
        r#"{"version":1,"type":7}"#,
        r#"{"version":1,"type":"cancel"}"#,
        r#"{"version":1,"type":"cancel","task_id":7}"#,
        r#"{"version":1,"type":"cancel","task_id":""}"#,
        r#"{"version":1,"type":"retry"}"#,
        r#"{"version":1,"type":"submit"}"#,
        r#"{"version":1,"type":"list","version":1}"#,
        r#"{"version":1,"type":"list","type":"list"}"#,
        r#"{"version":1,"type":"list","\u0074ype":"list"}"#,
        r#"{"version":1,"type":"list","x":{"a":1,"a":1}}"#,
        r#"{"version":1,"type":"list","x":[{"a":{"b":1,"b":1}}]}"#,
        &deep(130),
        &deep(100_000),
    ];
    for command in commands {
        client.refused(command);
    }
    client.raw.call_text(&deep(120)).expect("not too deep");
    client.check();
}

/// R-49: what comes with the fields that are known, and is not, is ignored.
#[test]
fn r_49_unknown_fields_are_ignored() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let mut command = submit("x");
    command["later"] = json!({"a": [1, null, {"b": "c"}]});
    command["taskId"] = json!(7);
    raw.call(&command).unwrap();
    raw.call(&json!({"version": 1, "type": "list", "task_id": 9, "limit": "no"})).unwrap();
}

/// A submission with one field changed; `None` leaves it out.
fn with(task: &str, field: &str, value: Option<Value>) -> String {
    let mut command = submit(task);
    let fields = command.as_object_mut().unwrap();
    match value {
        Some(value) => fields.insert(field.to_owned(), value),
        None => fields.remove(field),
    };
    command.to_string()
}

/// R-52, R-53, R-54 and the other lengths: the longest is accepted, one character more is not. Characters,
/// not bytes, counted after trimming.
#[test]
fn r_52_r_53_r_54_bounds_are_in_characters_after_trimming() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let bounds = [
        ("session_id", 256),
        ("prompt", 8_192),
        ("cwd", 4_096),
        ("effort", 64),
        ("provider", 128),
        ("model", 256),
    ];
    let mut tasks = 0;
    let mut accepted = Vec::new();
    for (field, max) in bounds {
        for unit in ["a", "é", "🙂"] {
            let longest = unit.repeat(max);
            let spaced = format!(" \t{longest}\n ");
            let too_long = unit.repeat(max + 1);
            for (value, fits) in [(&longest, true), (&spaced, true), (&too_long, false)] {
                tasks += 1;
                let task = format!("t{tasks}");
                let mut command: Value =
                    serde_json::from_str(&with(&task, field, Some(json!(value)))).unwrap();
                for (one, other) in [("provider", "model"), ("model", "provider")] {
                    if field == one {
                        command[other] = json!("other");
                    }
                }
                let result = raw.call(&command);
                assert_eq!(
                    result.is_ok(),
                    fits,
                    "{field} of {} {unit}: {result:?}",
                    value.chars().count()
                );
                if fits {
                    accepted.push(task);
                }
            }
        }
    }
    for unit in ["a", "é", "🙂"] {
        let longest = unit.repeat(256);
        raw.call_text(&with(&format!("  {longest}\t"), "x", None)).unwrap();
        assert_eq!(raw.submit(&longest), Err("task id already exists".into()));
        raw.submit(&unit.repeat(257)).unwrap_err();
        for kind in ["cancel", "retry"] {
            let missing = format!("b{}", unit.repeat(255));
            let result = raw.on(kind, &missing);
            assert_eq!(result, Err("task id is unknown".into()), "256 are fine");
            let too_long = raw.on(kind, &unit.repeat(257)).unwrap_err();
            assert_ne!(too_long, "task id is unknown");
        }
        accepted.push(longest);
    }
    let mut listed: Vec<_> =
        raw.list().iter().map(|it| it["taskId"].as_str().unwrap().to_owned()).collect();
    listed.sort();
    accepted.sort();
    assert_eq!(listed, accepted);
}

/// R-49
#[test]
fn r_49_empty_mistyped_and_forbidden_fields_are_refused() {
    let rig = Rig::new();
    let mut client = Unchanged::new(&rig);
    for field in ["task_id", "prompt", "cwd"] {
        client.refused(&with("x", field, None));
        client.refused(&with("x", field, Some(Value::Null)));
    }
    for field in ["task_id", "prompt", "cwd", "session_id", "effort"] {
        for value in [json!(""), json!("  \t\n"), json!(7), json!(["a"]), json!({}), json!(true)] {
            client.refused(&with("x", field, Some(value)));
        }
    }
    for field in ["provider", "model"] {
        for value in [json!(""), json!(" "), json!(7)] {
            let mut command = submit("x");
            command["provider"] = json!("p");
            command["model"] = json!("m");
            command[field] = value;
            client.refused(&command.to_string());
        }
    }
    for value in [json!("true"), json!(1), json!([])] {
        client.refused(&with("x", "worktree", Some(value)));
    }
    for control in ["a\u{0}b", "a\nb", "a\u{1b}b", "a\u{7f}b"] {
        client.refused(&with(control, "x", None));
        client.refused(&with("x", "session_id", Some(json!(control))));
        client.refused(&on("cancel", control).to_string());
        client.refused(&on("retry", control).to_string());
    }
    client.refused(&with("x", "cwd", Some(json!("/a\u{0}b"))));
    // A lone surrogate is JSON, and no text.
    client.refused(r#"{"version":1,"type":"submit","task_id":"\ud800","prompt":"p","cwd":"/"}"#);
    client.check();
}

/// R-55, R-56, R-57
#[test]
fn r_55_r_56_provider_comes_with_model_and_worktree_without_session() {
    let rig = Rig::new();
    let mut client = Unchanged::new(&rig);
    client.refused(&with("x", "provider", Some(json!("p"))));
    client.refused(&with("x", "model", Some(json!("m"))));
    let mut both: Value = serde_json::from_str(&with("x", "worktree", Some(json!(true)))).unwrap();
    both["session_id"] = json!("s");
    client.refused(&both.to_string());
    client.check();

    let mut raw = rig.client();
    let mut command = submit("full");
    command["provider"] = json!("p");
    command["model"] = json!("m");
    command["effort"] = json!("high");
    command["worktree"] = json!(true);
    let result = raw.call(&command).unwrap();
    assert_eq!(result["state"], "submitted");
    assert_eq!(result["task"]["worktree"], true);
    command = submit("plain");
    command["session_id"] = json!("s");
    command["worktree"] = json!(false);
    raw.call(&command).unwrap();
    let shown = |raw: &mut Raw, task: &str| {
        let mut shown = raw.task(task);
        let fields = shown.as_object_mut().unwrap();
        let updated_at = fields.remove("updatedAt").unwrap();
        assert_eq!(updated_at.as_str().unwrap().len(), "2026-01-02T03:04:05.678901Z".len());
        shown
    };
    raw.until_status("full", "TaskRunning");
    raw.until_status("plain", "TaskRunning");
    let expected = json!({
        "taskId": "full", "sessionId": null, "status": "TaskRunning",
        "description": "[task input redacted]", "workingDirectory": "/work", "provider": "p",
        "model": "m", "effort": "high", "worktree": true, "attempt": 1, "logTail": []
    });
    assert_eq!(shown(&mut raw, "full"), expected);
    let expected = json!({
        "taskId": "plain", "sessionId": "s", "status": "TaskRunning",
        "description": "[task input redacted]", "workingDirectory": "/work", "provider": null,
        "model": null, "effort": null, "worktree": false, "attempt": 1, "logTail": []
    });
    assert_eq!(shown(&mut raw, "plain"), expected);
}

/// R-45, R-48
#[test]
fn set_limit_takes_1_to_32_and_tells_everybody() {
    let rig = Rig::new();
    let mut client = Unchanged::new(&rig);
    for limit in ["0", "33", "-1", "1.5", "256", "257", "\"4\"", "null", "[1]", "4294967297"] {
        client.refused(&format!(r#"{{"version":1,"type":"set_limit","limit":{limit}}}"#));
    }
    client.refused(r#"{"version":1,"type":"set_limit"}"#);
    client.check();
    let mut mirror = rig.mirror().opened();
    for limit in [1, 32, 4] {
        let expected = json!({"version": 1, "limit": limit});
        let result = mirror.raw.call(&json!({"version": 1, "type": "set_limit", "limit": limit}));
        assert_eq!(result, Ok(expected.clone()));
        assert!(mirror.take());
        let (_, kind, payload) = mirror.events.last().unwrap();
        assert_eq!((kind.as_str(), payload), ("scheduler_limit_changed", &expected));
    }
}

/// R-52, R-66
#[test]
fn r_66_approvals_are_known_and_unsupported() {
    let rig = Rig::new();
    rig.running(&mut rig.client(), "t");
    let mut client = Unchanged::new(&rig);
    let approval = |task: &str, id: &str, decision: &str| {
        json!({"version": 1, "type": "approval", "task_id": task, "approval_id": id, "decision": decision})
            .to_string()
    };
    let unsupported = "interactive approval resolution is unsupported by the daemon task adapter";
    for decision in ["approve", "deny", "approve_session"] {
        assert_eq!(client.refused(&approval("t", "a", decision)), unsupported);
        assert_eq!(client.refused(&approval("t", &"é".repeat(256), decision)), unsupported);
        assert_eq!(client.refused(&approval("other", "a", decision)), "task is not running");
    }
    let bad = [
        approval("t", "a", "Approve"),
        approval("t", "a", "approved"),
        approval("t", "a", ""),
        approval("t", "", "approve"),
        approval("t", "a\nb", "approve"),
        approval("t", &"é".repeat(257), "approve"),
        approval(&"t".repeat(257), "a", "approve"),
        r#"{"version":1,"type":"approval","task_id":"t","approval_id":"a"}"#.to_owned(),
        r#"{"version":1,"type":"approval","task_id":"t","decision":"approve"}"#.to_owned(),
    ];
    for command in bad {
        let error = client.refused(&command);
        assert!(error != unsupported && error != "task is not running", "{command}: {error}");
    }
    client.check();
}

/// R-50. The commands come in one write, so that more are read at once than the queue holds.
#[test]
fn r_50_a_full_queue_is_answered_at_once_and_changes_nothing() {
    let rig = Rig::with(|settings| settings.wire.command_queue_max = 4);
    const COMMANDS: usize = 200;
    let mut mirror = rig.mirror().opened();
    mirror.raw.call(&json!({"version": 1, "type": "set_limit", "limit": 1})).unwrap();
    let mut bytes = Vec::new();
    for n in 0..COMMANDS {
        let command = submit(&format!("q{n}"));
        let message = json!({"type": "command", "id": format!("q{n}"), "command": command});
        bytes.extend(frame(message.to_string().as_bytes()));
    }
    mirror.raw.bytes(&bytes);
    let mut accepted = Vec::new();
    let mut full = 0;
    for n in 0..COMMANDS {
        match mirror.raw.result(&format!("q{n}")) {
            Ok(_) => accepted.push(json!(format!("q{n}"))),
            Err(error) => {
                assert_eq!(error, "task scheduler command queue is full");
                full += 1;
            }
        }
    }
    assert!(full > 0 && accepted.len() >= 4, "{full} of {COMMANDS} refused");
    let listed: Vec<_> = mirror.raw.list().iter().map(|it| it["taskId"].clone()).collect();
    assert_eq!(listed, accepted, "what was refused is not there");
    // The limit, one event for each accepted task, and the start of the first.
    mirror.until_sequence(accepted.len() as u64 + 2);
    assert_eq!(rig.mirror().current, accepted.len() as u64 + 2);
}

/// A command whose client has gone before it was taken is not executed: here the frame after it ends
/// the connection, and both come together.
#[test]
fn a_command_of_a_client_that_has_gone_is_not_executed() {
    let rig = Rig::new();
    for n in 0..20 {
        let mut raw = rig.mirror().opened().raw;
        let message = json!({"type": "command", "id": "1", "command": submit(&format!("gone{n}"))});
        let mut bytes = frame(message.to_string().as_bytes());
        bytes.extend(frame(b"garbage"));
        raw.bytes(&bytes);
        assert_eq!(raw.end(), Vec::<Value>::new());
    }
    let mut raw = rig.client();
    assert_eq!(raw.list(), Vec::<Value>::new());
    raw.submit("here").unwrap();
    rig.runner.wait_started("here", 1);
    assert_eq!(rig.runner.started(), [("here".to_owned(), 1)]);
}

/// R-45: each command gets one result, with its own id, whatever the id is.
#[test]
fn r_45_r_46_results_carry_the_id_of_their_command() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let ids = ["", " ", "same", "same", "\"quoted\"\\", "line\nbreak", "🙂", &"x".repeat(1_000)];
    for id in ids {
        raw.send(&json!({"type": "command", "id": id, "command": {"version": 1, "type": "list"}}));
    }
    for id in ids {
        raw.result(id).unwrap();
    }
    raw.list();
    assert!(raw.kept().all(|it| it["type"] != "command_result"), "one each");
}
