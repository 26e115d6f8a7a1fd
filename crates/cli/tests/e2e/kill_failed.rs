//! Processes that cannot be killed: what the daemon says of their run, who stays with them, and that it is over by
//! itself.
//!
//! Really unkillable is only what hangs in the kernel. Here the shim is `supervise-fixture`, to which a process is
//! immortal as long as a file is there. It comes in as the daemon's own program: that is what supervises, and it
//! is replaced while the daemon runs, as an upgrade does. By the name it gets it does not wait ten seconds before it
//! says that it cannot kill.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use ostler_proto::framed::{FailureClass, Task, TaskStatus, Verdict};
use ostler_testkit::process::{Process, find_by_argv, supervise_fixture, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{OSTLER, PATIENCE, Rig, Running, finish};
use crate::waiting_shim::the_waiting;

/// A daemon whose next shims spare what is immortal.
fn rig() -> Rig {
    let mut rig = Rig::new();
    let own = rig.scratch.path().join("own");
    fs::create_dir(&own).unwrap();
    let program = own.join("ostler");
    fs::copy(OSTLER, &program).unwrap();
    let mut daemon = rig.scratch.command(&program);
    daemon.arg("daemon");
    rig.start_daemon_with(daemon);

    let (fixture, shim, script) =
        (supervise_fixture(), own.join("impatient-shim"), own.join("new"));
    symlink(&fixture, &shim).unwrap();
    fs::write(&script, format!("#!/bin/sh\nexec '{}' \"$@\"\n", shim.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let waiting = the_waiting(&rig);
    fs::rename(script, program).unwrap();
    waiting.signal(Signal::KILL);
    wait_until("the old shim is gone", PATIENCE, || !waiting.is_alive());
    rig.agent = fixture;
    rig
}

/// A run of a process that lives as long as its file is there.
struct Immortal {
    id: &'static str,
    file: PathBuf,
    process: Process,
}

impl Immortal {
    fn start(rig: &Rig, id: &'static str) -> Self {
        let file = rig.scratch.path().join(format!("immortal-{id}"));
        fs::write(&file, "").unwrap();
        rig.detach(id, &["immortal", file.to_str().unwrap()]);
        rig.wire().until(id, |task| task.status == TaskStatus::Running);
        let mut found = Vec::new();
        wait_until("it runs", PATIENCE, || {
            found = find_by_argv(file.to_str().unwrap());
            // Before it is executed it is a copy of its shim.
            found.len() == 1 && found[0].argv[1] == "immortal"
        });
        Self { id, file, process: found.remove(0) }
    }

    /// What `ostler status` says of it.
    fn attention(&self) -> Value {
        let left = format!("still there: supervise-fixture (pid {})", self.process.pid);
        json!({"task_id": self.id, "what": "kill_failed", "message": left})
    }

    #[track_caller]
    fn assert_kill_failed(&self, task: &Task) {
        let failure = task.failure.as_ref().expect("a failure");
        assert_eq!((task.status, failure.class), (TaskStatus::Failed, FailureClass::KillFailed));
        assert_eq!(task.log_tail.last(), Some(&failure.message));
        let receipt = task.receipt.as_ref().unwrap();
        assert_eq!((receipt.verdict, receipt.exit), (Verdict::Failed, None), "nobody saw its end");
    }
}

fn attention(rig: &Rig, code: i32) -> Vec<Value> {
    let done = finish(&mut rig.ostler(["status", "--json"]));
    assert_eq!(done.code, Some(code), "{done:?}");
    let status: Value = serde_json::from_str(&done.stdout).unwrap();
    status["attention"].as_array().unwrap().clone()
}

/// a cancel is not called done when it is not.
#[test]
fn r_61_what_cannot_be_killed_fails_its_task_and_is_watched_until_it_is_gone() {
    let mut rig = rig();
    let (first, second) = (Immortal::start(&rig, "first"), Immortal::start(&rig, "second"));
    let unwatched = Immortal::start(&rig, "unwatched");
    let (both, all) = ([&first, &second], [&first, &second, &unwatched]);
    let cancels = all.map(|run| Running::start(&mut rig.ostler(["task", "cancel", run.id])));
    for (run, cancel) in all.into_iter().zip(cancels) {
        let done = cancel.finish();
        assert_eq!((done.code, done.stdout.as_str()), (Some(4), ""), "{done:?}");
        assert!(done.stderr.contains("some of its processes could not be ended"), "{done:?}");
        run.assert_kill_failed(&rig.settled(run.id));
        assert!(run.process.is_alive());
    }

    // The shims stay with them, below the daemon, and the person is told whom to look at.
    let shims = both.map(|run| rig.shim(run.id));
    for (run, shim) in both.into_iter().zip(&shims) {
        assert_eq!(Process::read(run.process.pid).unwrap().parent, shim.pid);
        assert_eq!(shim.parent, rig.daemon().pid);
    }
    assert_eq!(attention(&rig, 0), all.map(Immortal::attention));
    // What its shim wrote down counts as long as the shim is there to write it again.
    let shim = rig.shim(unwatched.id);
    shim.signal(Signal::KILL);
    wait_until("its shim is gone", PATIENCE, || !shim.is_alive());
    assert_eq!(attention(&rig, 0), both.map(Immortal::attention));
    unwatched.process.signal(Signal::KILL);
    let said = finish(&mut rig.ostler(["status"])).stdout;
    let line =
        format!("attention  first: still there: supervise-fixture (pid {})\n", first.process.pid);
    assert!(said.contains(&line) && said.contains("running    0\n"), "{said}");
    // Other tasks have nothing to do with it.
    assert_eq!(finish(&mut rig.ostler(["run", "--", "true"])).code, Some(0));

    // It goes, and so does the attention; the daemon has seen it.
    const GONE: &str = "what could not be killed is gone now";
    assert!(!rig.daemon_log().contains(GONE), "{}", rig.daemon_log());
    fs::remove_file(&first.file).unwrap();
    wait_until("the log says so", PATIENCE, || rig.daemon_log().contains(GONE));
    let log = rig.daemon_log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(GONE)).collect();
    assert!(lines.len() == 1 && lines[0].contains("runs/first.1"), "{log}");
    assert!(!first.process.is_alive());
    wait_until("its shim has gone", PATIENCE, || !shims[0].is_alive());
    assert_eq!(attention(&rig, 0), [second.attention()]);
    first.assert_kill_failed(&rig.settled(first.id));

    // The other is told without a daemon as well, and after a restart, until it is gone, too.
    rig.stop_daemon();
    assert_eq!(attention(&rig, 3), [second.attention()]);
    rig.start_daemon();
    assert_eq!(attention(&rig, 0), [second.attention()]);
    assert!(shims[1].is_alive() && second.process.is_alive());
    fs::remove_file(&second.file).unwrap();
    wait_until("nothing needs a person", PATIENCE, || attention(&rig, 0).is_empty());
    assert!(!second.process.is_alive());
    wait_until("its shim has gone", PATIENCE, || !shims[1].is_alive());
    second.assert_kill_failed(&rig.settled(second.id));
    rig.assert_nothing_runs();
}
