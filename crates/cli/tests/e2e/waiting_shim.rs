//! The shim that waits ahead for a run: what it holds, that its death disturbs nobody, and that it never outlives
//! its daemon.

use std::collections::BTreeSet;
use std::fs;

use ostler_testkit::process::{Process, children_of, wait_for, wait_until};
use rustix::process::Signal;

use crate::rig::{PATIENCE, Rig, finish};

/// What a process has open.
fn files_of(process: &str) -> BTreeSet<String> {
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    targets.map(|target| target.to_string_lossy().into_owned()).collect()
}

/// The shims of this daemon that have no run, by their descriptors: a run's shim holds its output log.
fn waiting(rig: &Rig) -> Vec<Process> {
    let token = rig.scratch.token();
    let is_waiting = |shim: &Process| {
        let files = files_of(&shim.pid.to_string());
        // One that is about to be gone has nothing open.
        files.iter().any(|target| target.starts_with("socket:"))
            && !files.iter().any(|target| target.contains(token))
    };
    shims(rig).into_iter().filter(is_waiting).collect()
}

/// All shims of this daemon. A child that is not yet executed looks like the daemon.
fn shims(rig: &Rig) -> Vec<Process> {
    let is_shim = |child: &Process| child.argv.get(1).is_some_and(|word| word == "__shim");
    let children = children_of(rig.daemon().pid).into_iter();
    children.filter(|child| is_shim(child) && !child.is_zombie()).collect()
}

/// The one that waits, as soon as it has settled down: in a session of its own.
pub(crate) fn the_waiting(rig: &Rig) -> Process {
    wait_for("one shim waits", PATIENCE, || match waiting(rig).as_slice() {
        [shim] if shim.session == shim.pid => Some(shim.clone()),
        _ => None,
    })
}

fn runs(rig: &Rig, id: &str) {
    let done = finish(&mut rig.ostler(["run", "--id", id, "--", "echo", "done"]));
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "done\n"), "{done:?}");
}

/// It holds nothing of the daemon's: no variable, no file, no directory.
#[test]
fn the_waiting_shim_holds_its_marker_and_nothing_else() {
    let mut rig = Rig::new();
    let mut daemon = rig.ostler(["daemon"]);
    daemon.env("DATABASE_PASSWORD", "of-the-daemon");
    rig.start_daemon_with(daemon);
    let shim = the_waiting(&rig);
    let environ = fs::read(format!("/proc/{}/environ", shim.pid)).unwrap();
    let text = String::from_utf8(environ).unwrap();
    let marker = text.strip_prefix("OSTLER_RUN=").and_then(|rest| rest.strip_suffix('\0'));
    let marker = marker.unwrap_or_else(|| panic!("the marker alone: {text:?}")).to_owned();
    assert!(marker.len() >= 32 && marker.bytes().all(|b| b.is_ascii_hexdigit()), "{marker:?}");
    assert_eq!(shim.argv.len(), 2, "{:?}", shim.argv);
    assert_eq!(fs::read_link(format!("/proc/{}/cwd", shim.pid)).unwrap().to_str(), Some("/"));
    // What this test was itself started with open goes through to all of them.
    let inherited = files_of("self");
    let is_its_own = |target: &String| target == "/dev/null" || target.starts_with("socket:");
    // Once it has joined its cgroup, for which it reads and writes a few files.
    wait_until("it holds nothing but its own", PATIENCE, || {
        let files = files_of(&shim.pid.to_string());
        let mut held = files.difference(&inherited).peekable();
        held.peek().is_some() && held.all(is_its_own)
    });

    // The next run is its own, with that marker; then another waits, with another.
    rig.detach("t", &["print-env", "--stay"]);
    rig.printed("t", &format!("OSTLER_RUN={marker}"));
    assert_eq!(rig.shim("t"), shim);
    let next = the_waiting(&rig);
    assert_ne!(next, shim);
    let environ = fs::read(format!("/proc/{}/environ", next.pid)).unwrap();
    assert!(!String::from_utf8(environ).unwrap().contains(&marker));
    rig.cancel("t");
    assert!(next.is_alive(), "whoever waits is nobody's process");
    rig.assert_nothing_runs();
}

#[test]
fn kill_9_of_the_waiting_shim_disturbs_no_run() {
    let rig = Rig::serving();
    for n in 0..5 {
        let shim = the_waiting(&rig);
        shim.signal(Signal::KILL);
        wait_until("it is gone", PATIENCE, || !shim.is_alive());
        runs(&rig, &format!("t{n}"));
    }
    // Nor one that has begun.
    let shim = the_waiting(&rig);
    rig.detach("stays", &["lines", "1", "--stay"]);
    rig.printed("stays", "line 1");
    assert_eq!(rig.shim("stays"), shim);
    let next = the_waiting(&rig);
    next.signal(Signal::KILL);
    wait_until("it is gone", PATIENCE, || !next.is_alive());
    runs(&rig, "beside");
    assert!(shim.is_alive(), "the run beside it goes on");
    rig.cancel("stays");
    rig.assert_nothing_runs();
}

/// Neither TERM nor `kill -9` of the daemon leaves one behind, and there is never more than one.
#[test]
fn no_waiting_shim_outlives_its_daemon() {
    let mut rig = Rig::serving();
    for (n, signal) in [Signal::TERM, Signal::KILL, Signal::TERM].into_iter().enumerate() {
        runs(&rig, &format!("ends{n}"));
        rig.detach(&format!("stays{n}"), &["lines", "1", "--stay"]);
        let all = wait_for("a run and one that waits", PATIENCE, || {
            let all = shims(&rig);
            (all.len() == 2 && waiting(&rig).len() == 1).then_some(all)
        });
        rig.signal_daemon(signal);
        rig.daemon_ended(PATIENCE);
        wait_until("no shim is left", PATIENCE, || !all.iter().any(Process::is_alive));
        rig.start_daemon();
    }
}

/// What is not found needs no supervisor, and who took one leaves the next run another.
#[test]
fn a_run_that_does_not_start_leaves_a_shim_that_waits() {
    let rig = Rig::serving();
    let shim = the_waiting(&rig);
    let done = finish(&mut rig.ostler(["run", "--", "no-such-program"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(shim.is_alive(), "nobody needed it");
    assert_eq!(the_waiting(&rig), shim);
    let done = finish(&mut rig.ostler(["run", "--", "/tmp"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    wait_until("the run's own is gone", PATIENCE, || !shim.is_alive());
    the_waiting(&rig);
}
