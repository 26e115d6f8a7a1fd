//! Following a run from the shell: when the connection is lost, and before the run has begun.

use std::fs;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use ostler_proto::framed::TaskStatus;
use ostler_testkit::process::wait_until;
use serde_json::Value;

use crate::rig::{PATIENCE, Rig, Running, finish};

/// A runtime directory whose socket leads to the daemon's, until somebody cuts the wire.
struct Relay {
    dir: PathBuf,
    lines: Arc<Mutex<Vec<UnixStream>>>,
}

impl Relay {
    fn new(rig: &Rig) -> Self {
        let dir = rig.scratch.path().join("relay");
        fs::create_dir(&dir).unwrap();
        let listener = UnixListener::bind(dir.join("daemon.sock")).unwrap();
        let (lines, target) = (Arc::<Mutex<Vec<UnixStream>>>::default(), rig.scratch.socket());
        let accepted = Arc::clone(&lines);
        // Ends with the process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                // A daemon that is away is one that hangs up.
                let Ok(daemon) = UnixStream::connect(&target) else { continue };
                let ends = [&client, &daemon].map(|end| end.try_clone().unwrap());
                accepted.lock().unwrap().push(client.try_clone().unwrap());
                let [from_client, from_daemon] = ends;
                copy(from_client, daemon);
                copy(from_daemon, client);
            }
        });
        Self { dir, lines }
    }

    /// How many connections there have been.
    fn count(&self) -> usize {
        self.lines.lock().unwrap().len()
    }

    /// Cuts the newest.
    fn cut(&self) {
        let lines = self.lines.lock().unwrap();
        lines.last().expect("a connection").shutdown(Shutdown::Both).unwrap();
    }
}

/// Copies one way in a thread; an end or a cut on one side is one on the other.
fn copy(mut from: UnixStream, mut to: UnixStream) {
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

/// Prints a line, then one more for every file that appears, and ends with a status of its own.
const STEPS: &str = "echo begun; for i in 1 2 3; do until [ -e go$i ]; do sleep 0.02; done; \
    echo step $i; done; exit 7";

fn go(work: &Path, step: u32) {
    fs::write(work.join(format!("go{step}")), "").unwrap();
}

/// The connection is lost again and again while the run goes on, and also when it ends while nobody is there
/// to hear it: `run` shows everything once, and ends as the task ended.
#[test]
fn run_connects_again_after_a_loss_and_ends_as_the_task_ended() {
    let rig = Rig::serving();
    let relay = Relay::new(&rig);
    let work = rig.scratch.work();
    let mut command = rig.ostler(["run", "--json", "--id", "lost", "--", "sh", "-c", STEPS]);
    let running = Running::start(command.env("HASKELL_AGENT_RUNTIME_DIR", &relay.dir));
    running.prints("begun");
    for step in 1..=2 {
        let before = relay.count();
        relay.cut();
        wait_until("it connects again", PATIENCE, || relay.count() > before);
        go(&work, step);
        running.prints(&format!("step {step}"));
    }
    // It is stopped, so that it hears of the loss only after the end.
    running.signal(rustix::process::Signal::STOP);
    relay.cut();
    go(&work, 3);
    assert_eq!(rig.settled("lost").status, TaskStatus::Failed);
    running.signal(rustix::process::Signal::CONT);
    let done = running.finish();
    assert_eq!(done.code, Some(1), "{done:?}");
    let lines = done.json_lines();
    let printed: Vec<&Value> =
        lines.iter().filter(|line| line["type"] == "output").map(|line| &line["line"]).collect();
    assert_eq!(printed, ["begun", "step 1", "step 2", "step 3"]);
    let statuses: Vec<_> = lines.iter().filter(|line| line["type"] == "task").collect();
    let statuses: Vec<_> = statuses.iter().map(|line| &line["task"]["status"]).collect();
    assert_eq!(statuses, ["TaskQueued", "TaskRunning", "TaskFailed"], "each once");
    let result = lines.last().unwrap();
    assert_eq!(
        (&result["status"], &result["receipt"]["exit"]["code"]),
        (&"failed".into(), &7.into())
    );
    assert_eq!(relay.count(), 4);
}

/// A daemon that was killed and is there again has interrupted the run, and says so to whoever followed it.
#[test]
fn run_ends_as_interrupted_when_its_daemon_was_killed_and_started_again() {
    let mut rig = Rig::serving();
    let mut command = rig.ostler(["run", "--id", "lost", "--", "sh", "-c", STEPS]);
    let running = Running::start(&mut command);
    running.prints("begun");
    rig.kill_daemon();
    rig.start_daemon();
    let done = running.finish();
    assert_eq!(done.code, Some(6), "{done:?}");
    assert_eq!(rig.show("lost")["status"], "TaskInterrupted");
}

/// Following a queued task waits for its start, says so, and then shows everything from the beginning.
#[test]
fn logs_of_a_queued_task_wait_for_its_start_and_show_everything() {
    let rig = Rig::configured("[tasks]\nlimit = 1\n");
    let agent = rig.agent.to_str().unwrap();
    rig.detach("first", &["lines", "1", "--stay"]);
    rig.printed("first", "line 1");
    let second = ["run", "-d", "--id", "second", "--", agent, "lines", "2000"];
    assert_eq!(finish(&mut rig.ostler(second)).code, Some(0));
    rig.detach("third", &["lines", "1"]);
    let follow = |id: &str| Running::start(&mut rig.ostler(["task", "logs", "-f", id]));
    let (followers, cancelled) = ([follow("second"), follow("second")], follow("third"));
    for follower in followers.iter().chain([&cancelled]) {
        follower.says("waiting for its start");
    }
    // One that never starts has no output, and nobody waits for it.
    rig.cancel("third");
    let done = cancelled.finish();
    assert_eq!((done.code, done.stdout.as_str()), (Some(4), ""), "{done:?}");
    assert!(done.stderr.contains("there is no output of third"), "{done:?}");

    rig.cancel("first");
    let expected: String = (1..=2000).map(|n| format!("line {n}\n")).collect();
    for follower in followers {
        let done = follower.finish();
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(done.stdout == expected, "{} bytes", done.stdout.len());
        assert_eq!(done.stderr.matches("waiting for its start").count(), 1, "{done:?}");
    }
}
