//! Sudden death: of the daemon, and of the shim itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ostler_supervise::rundir::{RunDir, ShimRecord, read_exit};
use ostler_supervise::{Identity, IdleShim, Report, RunSpec, Shim, Spared, is_alive, sweep};

use crate::rig::*;

fn kill_9(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// A daemon of its own, so that it can be killed.
#[test]
fn kill_9_of_the_daemon_leaves_nothing_after_two_seconds() {
    for (mode, daemons) in [("ignore-term", 3), ("tool", 1), ("print-forever", 1), ("empty-env", 1)]
    {
        let rig = Rig::new();
        let mut children: Vec<_> = (0..daemons)
            .map(|number| {
                let name = format!("run{number}");
                let dir = RunDir::create(rig.root(), &name).unwrap();
                let mut command = Command::new(fixture());
                command.args(["daemon", dir.path().as_str(), mode, &rig.token]);
                command.stdout(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for child in &mut children {
            let mut line = [0; 8];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        eventually(mode, Duration::from_secs(2), || rig.alive().is_empty());
        for number in 0..daemons {
            let dir = rig.root().join(format!("run{number}"));
            eventually("exit.json", DEADLINE, || {
                read_exit(&dir).ok().flatten().is_some_and(|exit| exit.empty)
            });
            assert!(read_exit(&dir).unwrap().unwrap().daemon_gone);
        }
    }
}

#[tokio::test]
async fn kill_9_of_the_shim_is_noticed_and_the_marker_finds_all_it_left() {
    for mode in ["tool", "ignore-term", "double-fork"] {
        let rig = Rig::new();
        let mut spec = rig.play(&[mode]);
        spec.drain_ms = 60_000;
        let mut shim = rig.start(&spec).await;
        output(&mut shim, 1).await;
        kill_9(shim.identity().pid);
        while next(&mut shim).await != Report::Lost {}
        assert!(!rig.alive().is_empty(), "{mode}: nothing to find");
        // Somebody else's process with another marker is none of our business.
        let mut other =
            Command::new("sleep").arg("60").env("OSTLER_RUN", "another").spawn().unwrap();
        let report = sweep(&rig.marker, None, None, DEADLINE).await;
        assert_eq!(report.remaining, vec![]);
        assert_eq!(rig.alive(), Vec::<String>::new(), "{mode}");
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(read_exit(&rig.dir()).unwrap(), None);
        sweep(&rig.marker, Some(&rig.dir()), None, DEADLINE).await;
    }
}

/// Nobody orders anything any more, and the storm obeys nothing.
#[test]
fn kill_9_of_the_daemon_ends_a_fork_storm() {
    let rig = Rig::new();
    let dir = RunDir::create(rig.root(), "run").unwrap();
    let mut daemon = Command::new(fixture());
    let mut daemon = daemon
        .args(["daemon", dir.path().as_str(), "storm8", &rig.token])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(daemon.stdout.as_mut().unwrap(), &mut [0; 8]).unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    eventually("the storm", Duration::from_secs(3), || rig.alive().is_empty());
}

/// The child of a process that carries the marker belongs to the run, even without environment.
#[tokio::test]
async fn a_sweep_goes_down_from_those_that_carry_the_marker() {
    let rig = Rig::new();
    let mut shim = rig.start(&rig.play(&["empty-env"])).await;
    output(&mut shim, 6).await;
    kill_9(shim.identity().pid);
    while next(&mut shim).await != Report::Lost {}
    assert_eq!(rig.alive().len(), 2);
    sweep(&rig.marker, None, None, DEADLINE).await;
    assert_eq!(rig.alive(), Vec::<String>::new());
    sweep(&rig.marker, Some(&rig.dir()), None, DEADLINE).await;
}

/// The hole that marker and parentage leave: no environment, and no parent that has one.
#[tokio::test]
async fn with_a_cgroup_a_sweep_finds_what_carries_nothing() {
    let rig = Rig::new();
    let Some(mut shim) = start_in_a_cgroup(&rig, &rig.play(&["orphan-without-env"])).await else {
        return;
    };
    output(&mut shim, 6).await;
    let cgroup = PathBuf::from(read_run_shim(&rig).cgroup.unwrap());
    kill_9(shim.identity().pid);
    while next(&mut shim).await != Report::Lost {}
    sweep(&rig.marker, None, None, DEADLINE).await;
    assert_eq!(rig.alive().len(), 1, "the marker alone does not find it");
    // A record of another run's cgroup is not followed.
    sweep("another marker", Some(&rig.dir()), None, DEADLINE).await;
    assert_eq!(rig.alive().len(), 1);
    let report = sweep(&rig.marker, Some(&rig.dir()), None, DEADLINE).await;
    assert_eq!((report.remaining, rig.alive()), (vec![], vec![]));
    assert!(!cgroup.exists(), "the cgroup went with its run");
}

#[tokio::test]
async fn a_cgroup_goes_with_its_shim() {
    // The daemon waits for the shim, or goes first.
    for waits in [true, false] {
        let rig = Rig::new();
        let Some(mut shim) = start_in_a_cgroup(&rig, &rig.play(&["leave"])).await else { return };
        let cgroup = read_run_shim(&rig).cgroup.unwrap();
        if waits {
            assert!(ended(&mut shim).await.exit.is_some());
            shim.wait().await.unwrap();
            assert!(!Path::new(&cgroup).exists());
        } else {
            drop(shim);
            eventually("the cgroup is gone", DEADLINE, || !Path::new(&cgroup).exists());
        }
    }
}

/// Gives the shim the time to move into a cgroup. `None` where it cannot have one.
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
async fn start_in_a_cgroup(rig: &Rig, spec: &RunSpec) -> Option<Shim> {
    const JOINED_WITHIN: Duration = Duration::from_secs(5);
    let idle = IdleShim::spawn(&fixture(), &rig.marker).unwrap();
    let of_shim = format!("/proc/{}/cgroup", idle.identity().pid);
    let joined = || std::fs::read_to_string(&of_shim).unwrap_or_default().contains(&rig.marker);
    let began = Instant::now();
    while !joined() {
        if began.elapsed() > JOINED_WITHIN {
            eprintln!("skipped: no cgroup v2 here that this user may write");
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut shim = idle.prepare(spec).unwrap();
    shim.start().await.unwrap();
    Some(shim)
}

fn read_run_shim(rig: &Rig) -> ShimRecord {
    let path = rig.dir().join("shim.json");
    eventually("the shim's record", DEADLINE, || path.exists());
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A shim that lives does the work itself; the sweep waits for it and only then looks further.
#[tokio::test]
async fn a_sweep_beside_a_living_shim_leaves_the_last_word_to_it() {
    let rig = Rig::new();
    let mut shim = rig.start(&rig.play(&["ignore-term"])).await;
    output(&mut shim, 6).await;
    let identity = shim.identity().clone();
    drop(shim);
    let report = sweep(&rig.marker, None, None, DEADLINE).await;
    assert_eq!((report.remaining, rig.alive()), (vec![], vec![]));
    assert!(!is_alive(&identity));
    let exit = read_exit(&rig.dir()).unwrap().expect("the shim wrote it");
    assert!(exit.empty && exit.daemon_gone);
}

/// What the keep-list lets live outlives its shim too.
#[tokio::test]
async fn a_sweep_spares_who_is_kept() {
    let rig = Rig::new();
    // The agent's own name is on it too, and lets nobody live.
    let keep = ["kept-server".to_owned(), "supervise-fixture".to_owned()];
    let mut spec = rig.play(&["keep-and-stay"]);
    spec.keep = keep.to_vec();
    let mut shim = rig.start(&spec).await;
    let Report::Started { pid: leader, .. } = next(&mut shim).await else { panic!("not started") };
    output(&mut shim, 7).await;
    kill_9(shim.identity().pid);
    while next(&mut shim).await != Report::Lost {}
    assert_eq!(rig.alive().len(), 3);
    let spared = Some(Spared { names: keep.to_vec(), leader });
    let report = sweep(&rig.marker, Some(&rig.dir()), spared, DEADLINE).await;
    assert_eq!(report.remaining, vec![]);
    let left = rig.alive();
    assert!(left.len() == 2 && left[0].contains("kept-server"), "{left:?}");
    assert!(left[1].contains("setsid-sleep"), "the agent is gone: {left:?}");
    sweep(&rig.marker, Some(&rig.dir()), None, DEADLINE).await;
    assert_eq!(rig.alive(), Vec::<String>::new());
}

#[tokio::test]
async fn a_sweep_without_anybody_is_quick_and_does_nothing() {
    let began = Instant::now();
    let report = sweep("no such marker", None, None, DEADLINE).await;
    assert_eq!(report, Default::default());
    assert!(began.elapsed() < Duration::from_secs(1));
}

/// A record of a number that somebody else has now.
#[test]
fn b1_5_a_reused_number_is_not_the_shim_of_the_record() {
    let me = Identity::of(std::process::id()).unwrap();
    let record = ShimRecord {
        version: 1,
        protocol: 1,
        boot_id: me.boot_id,
        pid: me.pid,
        start_time: me.start_time - 5,
        cgroup: None,
    };
    assert!(!is_alive(&record.identity()));
}
