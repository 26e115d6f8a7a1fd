//! Following a run where things come late, or never: its directory, its end, the daemon's word on a cancel.
//!
//! What a daemon does only once in a blue moon is played by [`Stage`], a daemon of a few lines that says
//! what the test wants. Deliberately absent: what a daemon does of its own accord (`run`, `crash`).

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use ostler_proto::framed::{self, ClientMessage, Command, FRAME_BYTES_MAX, Task, TaskStatus};
use ostler_testkit::process::{wait_for, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{PATIENCE, Rig, Running, finish};

/// A run's directory may be made after the task is said to run: the output is shown as soon as it is there.
#[test]
fn the_output_is_shown_although_the_run_directory_came_late() {
    let rig = Rig::serving();
    for (id, form) in [("json", &["--json"][..]), ("text", &[])] {
        // This client looks for runs where none is yet.
        let elsewhere = rig.scratch.path().join(format!("elsewhere-{id}"));
        fs::create_dir(&elsewhere).unwrap();
        let mut command = rig.ostler(["run", "--id", id]);
        command.args(form).args(["-a", "command", "--"]).arg(&rig.agent);
        command.args(["lines", "1", "--stay"]).env("OSTLER_HOME", &elsewhere);
        let running = Running::start(&mut command);
        rig.printed(id, "line 1");
        if id == "json" {
            running.prints("TaskRunning");
        }
        symlink(rig.scratch.ostler_home().join("runs"), elsewhere.join("runs")).unwrap();
        running.prints("line 1");
        rig.cancel(id);
        assert_eq!(running.finish().code, Some(5));
    }
}

/// A run that no supervisor took, or whose records are lost, says nothing about its end: its task does.
#[test]
fn logs_follow_ends_with_the_task_where_the_directory_does_not_say_so() {
    let mut rig = Rig::serving();
    rig.detach("t", &["lines", "1"]);
    rig.settled("t");
    rig.stop_daemon();
    for record in ["shim.json", "exit.json"] {
        fs::remove_file(rig.run_dir("t").join(record)).unwrap();
    }
    let follow = |id: &str| finish(&mut rig.ostler(["task", "logs", "-f", id]));
    let done = follow("t");
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "line 1\n"), "{done:?}");
    // The same for a run that nobody knows any more.
    fs::rename(rig.run_dir("t"), rig.run_dir("forgotten")).unwrap();
    let done = follow("forgotten");
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "line 1\n"), "{done:?}");
    fs::rename(rig.run_dir("forgotten"), rig.run_dir("t")).unwrap();
    rig.start_daemon();
    let done = finish(&mut rig.ostler(["task", "logs", "-f", "t"]));
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "line 1\n"), "{done:?}");
}

/// A daemon that says what a test wants.
struct Stage {
    listener: UnixListener,
}

/// One client of it.
struct Guest(UnixStream);

impl Stage {
    fn of(rig: &Rig) -> Self {
        fs::create_dir(rig.scratch.runtime_dir()).unwrap();
        let listener = UnixListener::bind(rig.scratch.socket()).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    /// The next client, welcomed.
    fn welcome(&self, tasks: &[&Task]) -> Guest {
        let (stream, _) = wait_for("a client", PATIENCE, || self.listener.accept().ok());
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut guest = Guest(stream);
        assert!(matches!(guest.next(), ClientMessage::Hello(_)));
        guest.say(&json!({"type": "welcome", "welcome":
            {"version": 3, "currentSequence": 1, "heartbeatSeconds": 60}}));
        let by_id = tasks.iter().map(|task| (task.task_id.as_str(), *task));
        let snapshot = framed::encode_snapshot(1, by_id).unwrap();
        let mut frame = Vec::new();
        let kind = framed::ChunkKind::Snapshot;
        framed::encode_chunk(&mut frame, kind, 1, &snapshot, 0, FRAME_BYTES_MAX).unwrap();
        std::io::Write::write_all(&mut guest.0, &frame).unwrap();
        guest
    }

    /// A client that has submitted its task, which runs.
    fn submitted(&self) -> (Guest, Task) {
        let mut guest = self.welcome(&[]);
        let (id, command) = guest.command();
        let Command::Submit(submit) = command else { panic!("{command:?}") };
        let task = Task {
            task_id: submit.task_id,
            session_id: None,
            status: TaskStatus::Running,
            description: "".into(),
            working_directory: submit.cwd,
            provider: None,
            model: None,
            effort: None,
            worktree: false,
            attempt: 1,
            updated_at: "2026-01-02T03:04:05.000000Z".to_owned(),
            log_tail: Vec::new(),
            agent: None,
            failure: None,
            receipt: None,
        };
        let result = json!({"version": 1, "state": "submitted", "task": task});
        guest.answer(&id, Ok(&result));
        (guest, task)
    }
}

fn event(sequence: u64, task: &Task) -> Value {
    json!({"type": "event", "event":
        {"sequenceNumber": sequence, "eventType": "task_changed", "payload": task}})
}

impl Guest {
    fn say(&mut self, message: &Value) {
        let json = serde_json::to_vec(message).unwrap();
        framed::write_frame(&mut self.0, &json, FRAME_BYTES_MAX).unwrap();
    }

    fn next(&mut self) -> ClientMessage {
        let body = framed::read_frame(&mut self.0, FRAME_BYTES_MAX).unwrap();
        ClientMessage::parse(&body.expect("a message")).unwrap()
    }

    fn command(&mut self) -> (String, Command) {
        match self.next() {
            ClientMessage::Command { id, command } => (id, Command::parse(&command).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, id: &str, result: Result<&Value, &str>) {
        let (ok, result, error) = match result {
            Ok(result) => (true, Some(result), None),
            Err(error) => (false, None, Some(error)),
        };
        self.say(&json!({"type": "command_result", "id": id, "ok": ok, "error": error, "result": result}));
    }

    fn changed(&mut self, sequence: u64, task: &Task) {
        self.say(&event(sequence, task));
    }

    /// The end of a task and the answer to its cancel, in one piece: who has read the end may leave.
    fn cancelled(&mut self, sequence: u64, task: &Task, cancel: &str) {
        let result = json!({"version": 1, "state": "cancelled", "task": task});
        let answer = json!({"type": "command_result", "id": cancel, "ok": true, "error": null, "result": result});
        let mut bytes = Vec::new();
        for message in [event(sequence, task), answer] {
            let json = serde_json::to_vec(&message).unwrap();
            framed::write_frame(&mut bytes, &json, FRAME_BYTES_MAX).unwrap();
        }
        self.0.write_all(&bytes).unwrap();
    }

    /// The order to cancel, and the question behind it.
    fn asked_to_cancel(&mut self) -> (String, String) {
        let (cancel, command) = self.command();
        assert!(matches!(command, Command::Cancel { .. }), "{command:?}");
        let (list, command) = self.command();
        assert!(matches!(command, Command::List), "{command:?}");
        (cancel, list)
    }
}

fn follow(rig: &Rig) -> Running {
    Running::start(&mut rig.ostler(["run", "--id", "t", "--", "true"]))
}

/// Ctrl+C, as soon as it means something to the command.
fn interrupt(running: &Running) {
    let status = format!("/proc/{}/status", running.child.id());
    wait_until("it listens to signals", PATIENCE, || {
        let status = fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("what it listens to").trim(), 16).unwrap();
        caught & 1 << (Signal::INT.as_raw() - 1) != 0
    });
    running.signal(Signal::INT);
}

fn ended(task: Task, status: TaskStatus) -> Task {
    Task { status, ..task }
}

fn nothing() -> Value {
    json!({"version": 1, "tasks": []})
}

#[test]
fn a_refused_cancel_is_told_and_may_be_tried_again() {
    let rig = Rig::new();
    let stage = Stage::of(&rig);
    let running = follow(&rig);
    let (mut guest, task) = stage.submitted();
    interrupt(&running);
    let (cancel, list) = guest.asked_to_cancel();
    guest.answer(&cancel, Err("task scheduler command queue is full"));
    guest.answer(&list, Ok(&nothing()));
    running.says("task scheduler command queue is full");
    // The next Ctrl+C is a new order and does not leave.
    running.signal(Signal::INT);
    let (cancel, list) = guest.asked_to_cancel();
    let task = ended(task, TaskStatus::Cancelled);
    guest.answer(&list, Ok(&nothing()));
    guest.cancelled(2, &task, &cancel);
    let done = running.finish();
    assert_eq!(done.code, Some(5), "{done:?}");
}

#[test]
fn a_cancel_that_came_when_the_task_had_just_ended_is_no_error() {
    let rig = Rig::new();
    let stage = Stage::of(&rig);
    let running = follow(&rig);
    let (mut guest, task) = stage.submitted();
    interrupt(&running);
    let (cancel, _) = guest.asked_to_cancel();
    guest.answer(&cancel, Err("task is not active"));
    guest.changed(2, &ended(task, TaskStatus::Completed));
    let done = running.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(!done.stderr.contains("not active"), "{done:?}");
}

/// A command whose connection was lost may never have been executed.
#[test]
fn a_cancel_is_ordered_again_after_a_lost_connection() {
    let rig = Rig::new();
    let stage = Stage::of(&rig);
    let running = follow(&rig);
    let (mut guest, task) = stage.submitted();
    interrupt(&running);
    guest.asked_to_cancel();
    drop(guest);
    let mut guest = stage.welcome(&[&task]);
    let (cancel, list) = guest.asked_to_cancel();
    guest.answer(&list, Ok(&nothing()));
    let task = ended(task, TaskStatus::Cancelled);
    guest.cancelled(2, &task, &cancel);
    let done = running.finish();
    assert_eq!(done.code, Some(5), "{done:?}");
}

#[test]
fn who_leaves_before_the_daemon_has_the_order_is_told_so() {
    let rig = Rig::new();
    let stage = Stage::of(&rig);
    let running = follow(&rig);
    let (mut guest, _task) = stage.submitted();
    interrupt(&running);
    guest.asked_to_cancel();
    running.says("cancelling");
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(!done.stderr.contains("goes on cancelling"), "{done:?}");
    assert!(done.stderr.contains("ostler task cancel t"), "{done:?}");
}

/// what is folded again is shown as it was shown live.
#[test]
fn r_81_replay_shows_answers_and_reasons_redacted() {
    let rig = Rig::new();
    let said = |is_error: bool, text: &str| {
        let result = json!({"type": "result", "subtype": "success", "is_error": is_error,
            "result": text, "session_id": "s-1", "terminal_reason": "completed",
            "usage": {"input_tokens": 1, "output_tokens": 2}, "permission_denials": []});
        let start = json!({"type": "system", "subtype": "init", "session_id": "s-1",
            "model": "m", "tools": []});
        format!("{start}\n{result}\n")
    };
    for (name, is_error) in [("good.1", false), ("bad.1", true)] {
        let dir = rig.scratch.path().join(name);
        by_hand(&dir, "claude_code", &said(is_error, "use api_key=sesame-open now"));
        let done = finish(rig.ostler(["replay", "--json"]).arg(&dir));
        assert_eq!(done.code, Some(0), "{done:?}");
        let folded = done.json_lines().pop().unwrap();
        let shown = if is_error { &folded["failure"]["message"] } else { &folded["text"] };
        assert!(shown.as_str().unwrap().contains("[REDACTED]"), "{folded}");
        assert!(!done.stdout.contains("sesame"), "{name}: {done:?}");
        let done = finish(rig.ostler(["replay"]).arg(&dir));
        assert!(!done.stderr.contains("sesame") && !done.stdout.contains("sesame"), "{done:?}");
    }
}

/// A run directory as docs/run-directory.md describes it.
fn by_hand(dir: &Path, agent: &str, stdout: &str) {
    fs::create_dir_all(dir.join("output")).unwrap();
    let record = json!({"version": 1, "task_id": "t", "attempt": 1, "agent": agent,
        "program": "x", "argv": [], "cwd": "/", "prompt_bytes": 0, "prompt_sha256": "",
        "marker": "m", "created_at_micros": 0});
    fs::write(dir.join("run.json"), record.to_string()).unwrap();
    let exit = json!({"version": 1, "code": 0, "ended_at_micros": 1, "empty": true});
    fs::write(dir.join("exit.json"), exit.to_string()).unwrap();
    let mut chunk = b"OL\x01\x01".to_vec();
    chunk.extend(u32::try_from(stdout.len()).unwrap().to_le_bytes());
    chunk.extend([0; 16]);
    chunk.extend(stdout.as_bytes());
    fs::write(dir.join("output/00000000000000000000.log"), chunk).unwrap();
}
