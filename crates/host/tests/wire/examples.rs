//! The examples, as a reader would run them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use super::raw::{Raw, submit};
use super::rig::Rig;
use super::runner::AT_ONCE;

/// The protocol document's own client, word for word. `examples/inspect_daemon.py` is this text.
const INSPECT: &str = r"import json, socket, struct, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
    sock.settimeout(15)
    sock.connect(sys.argv[1])
    def send(value):
        data = json.dumps(value).encode('utf-8')
        sock.sendall(struct.pack('>I', len(data)) + data)
    def exact(size):
        data = bytearray()
        while len(data) < size:
            part = sock.recv(size - len(data))
            if not part:
                raise EOFError('daemon disconnected')
            data.extend(part)
        return data
    def receive():
        size, = struct.unpack('>I', exact(4))
        if not 0 < size <= 1024 * 1024:
            raise ValueError('invalid frame length')
        return json.loads(exact(size))
    send({'type': 'hello', 'hello': {'clientId': 'docs-inspection',
          'versions': [3], 'resumeAfter': None}})
    welcome = receive()
    if welcome['type'] != 'welcome' or welcome['welcome']['version'] != 3:
        raise RuntimeError(welcome)
    send({'type': 'command', 'id': 'list-1',
          'command': {'version': 1, 'type': 'list'}})
    for _ in range(10000):
        message = receive()
        if message['type'] == 'heartbeat':
            send({'type': 'pong', 'sequence': message['sequence']})
        elif message['type'] == 'command_result' and message['id'] == 'list-1':
            print(json.dumps(message, indent=2))
            if not message['ok']:
                raise SystemExit(1)
            break
    else:
        raise RuntimeError('no list result within message bound')
";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn python(script: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").arg(script);
    command
}

/// Both streams as text, for what a failing test says.
fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// R-87
#[test]
fn r_87_the_documents_own_client_runs_unmodified() {
    let script = repository().join("examples/inspect_daemon.py");
    assert_eq!(std::fs::read_to_string(&script).unwrap(), INSPECT, "it was modified");
    let rig = Rig::new();
    let mut raw = rig.client();
    for n in 0..3 {
        let mut command = submit(&format!("t{n}"));
        command["prompt"] = json!(AT_ONCE);
        raw.call(&command).unwrap();
        raw.until_status(&format!("t{n}"), "TaskCompleted");
    }
    let output = python(&script).arg(rig.socket()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = json!({
        "type": "command_result", "id": "list-1", "ok": true, "error": null,
        "result": {"version": 1, "tasks": raw.list()}
    });
    assert_eq!(printed, expected);
}

/// A program that runs while the test goes on; killed when the test ends without it.
struct Running(Option<Child>);

impl Running {
    fn start(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(Some(child))
    }

    fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn client_py(rig: &Rig, task: &str) -> Running {
    let script = repository().join("examples/client.py");
    Running::start(python(&script).arg(rig.socket()).args([task, "do it", "/work"]))
}

/// R-43, R-67: our own Python client sees a task to its end, each way it can end.
#[test]
fn client_py_follows_a_task_and_exits_by_its_end() {
    let rig = Rig::new();
    let mut raw = rig.client();
    for (task, status, exit) in
        [("c", "TaskCompleted", 0), ("f", "TaskFailed", 1), ("x", "TaskCancelled", 5)]
    {
        let client = client_py(&rig, task);
        rig.runner.wait_started(task, 1);
        rig.runner.line(task, "a line");
        match exit {
            0 => rig.runner.complete(task),
            1 => rig.runner.fail(task, "no"),
            _ => drop(raw.on("cancel", task).unwrap()),
        }
        let output = client.output();
        assert_eq!(output.status.code(), Some(exit), "{}", told(&output));
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains(status) && printed.contains("a line"), "{printed}");
    }
    // Again: the id exists, so it tells what became of it, and nothing runs.
    let output = client_py(&rig, "c").output();
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    assert_eq!(rig.runner.started().len(), 3);
}

/// A tail above 1 MiB comes in slices.
#[test]
fn client_py_puts_slices_together() {
    let rig = Rig::new();
    let client = client_py(&rig, "big");
    rig.runner.wait_started("big", 1);
    super::replay::fill_tail(&rig, "big");
    rig.runner.complete("big");
    let output = client.output();
    assert_eq!(output.status.code(), Some(0), "{}", output.status);
    assert!(output.stdout.len() > 61 * 4_096);
}

/// It comes back with its cursor when the daemon went away.
#[test]
fn client_py_reconnects_after_a_restart() {
    let mut rig = Rig::new();
    let client = client_py(&rig, "t");
    rig.runner.wait_started("t", 1);
    rig.kill_and_start();
    let output = client.output();
    assert_eq!(output.status.code(), Some(6), "{}", told(&output));
    assert_eq!(rig.runner.started().len(), 1, "submitted again and not run again");
}

/// An example of this package, which cargo has built beside the tests.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(program.exists(), "cargo build -p ostler-host --examples makes {}", program.display());
    Command::new(program)
}

/// R-88, R-89: an application with its own runner, and the typed client that talks to it.
#[test]
fn r_88_r_89_the_rust_examples_work_together() {
    let folder = tempfile::tempdir().unwrap();
    let runtime_dir = folder.path().join("sums");
    let mut daemon = Running::start(example("embed").arg(&runtime_dir));
    let mut line = String::new();
    let child = daemon.0.as_mut().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "serving\n");
    let socket = runtime_dir.join("daemon.sock");
    let client = |task: &str, prompt: &str| {
        let output = example("client").arg(&socket).args([task, prompt]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap(), output.stderr)
    };
    let (exit, printed, _) = client("good", "1 + 2 + 39");
    assert_eq!(exit, 0, "{printed}");
    assert!(printed.contains("the sum is 42"), "{printed}");
    let (exit, printed, _) = client("bad", "one + two");
    assert_eq!(exit, 1, "{printed}");
    assert!(printed.contains("this is no sum"), "{printed}");
    let (exit, _, error) = client("good", "1");
    assert_eq!(exit, 3);
    assert!(String::from_utf8(error).unwrap().contains("task id already exists"));

    let (mut raw, _) = Raw::hello(&socket, None);
    let mut command = submit("other");
    command["agent"] = json!("claude_code");
    let refused = raw.call(&command).unwrap_err();
    assert!(refused.contains("adds up"), "{refused}");
    let statuses: Vec<_> = raw.list().iter().map(|task| task["status"].clone()).collect();
    assert_eq!(statuses, ["TaskCompleted", "TaskFailed"]);
    // Its standard input ends, and so does it.
    let child = daemon.0.as_mut().unwrap();
    child.stdin.take().unwrap().flush().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!socket.exists());
}
