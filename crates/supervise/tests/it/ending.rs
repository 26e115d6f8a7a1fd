//! Ending: whoever wants it ended and however the agent resists, nothing is left.

use std::time::{Duration, Instant};

use ostler_core::outcome::Exit;
use ostler_supervise::rundir::read_exit;
use ostler_supervise::{Ended, IdleShim, Report, Shim, StopOrder};

use crate::rig::*;

fn quick(steps: &[(i32, u64)]) -> Vec<(i32, Duration)> {
    steps.iter().map(|(signal, ms)| (*signal, Duration::from_millis(*ms))).collect()
}

/// Nothing is left at the moment the end is reported, not some time later.
async fn nothing_left(rig: &Rig, shim: &mut Shim) -> Ended {
    let end = ended(shim).await;
    assert_eq!(rig.alive(), Vec::<String>::new(), "left when the end was reported");
    assert!(read_exit(&rig.dir()).unwrap().unwrap().empty);
    shim.wait().await.unwrap();
    end
}

#[tokio::test]
async fn b1_1_an_agent_that_ignores_term_is_killed_after_its_grace() {
    let rig = Rig::new();
    let mut spec = rig.play(&["ignore-term"]);
    spec.stop.steps = quick(&[(15, 300)]);
    let mut shim = rig.start(&spec).await;
    output(&mut shim, 6).await;
    let began = Instant::now();
    shim.stop(StopOrder::Plan).await.unwrap();
    let end = nothing_left(&rig, &mut shim).await;
    assert!(
        began.elapsed() >= Duration::from_millis(300) && began.elapsed() < Duration::from_secs(2)
    );
    assert_eq!(end.exit, Some(Exit::Signal(9)));
    assert!(end.stopped);
    assert_eq!((end.killed.len(), end.killed[0].after.as_str()), (1, "term"), "{:?}", end.killed);
    assert_eq!(end.killed[0].argv0, "supervise-fixture");
}

#[tokio::test]
async fn an_agent_that_obeys_is_not_among_the_killed() {
    let rig = Rig::new();
    let mut shim = rig.start(&rig.play(&["print-stay"])).await;
    output(&mut shim, 7).await;
    let began = Instant::now();
    shim.stop(StopOrder::Plan).await.unwrap();
    let end = nothing_left(&rig, &mut shim).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!((end.exit, end.stopped, end.killed), (Some(Exit::Signal(15)), true, vec![]));
    assert_eq!(rig.stdout(), "result\n");
}

/// The signals of the plan in their order, each with its grace.
#[tokio::test]
async fn the_stop_plan_is_followed_step_by_step() {
    let rig = Rig::new();
    let script = "trap 'echo int' INT; trap 'echo term; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let mut spec = rig.spec("sh", &["-c", script, &rig.token]);
    spec.stop.steps = quick(&[(2, 300), (15, 2_000)]);
    let mut shim = rig.start(&spec).await;
    output(&mut shim, 6).await;
    shim.stop(StopOrder::Plan).await.unwrap();
    let end = nothing_left(&rig, &mut shim).await;
    assert_eq!(rig.stdout(), "ready\nint\nterm\n");
    assert_eq!((end.exit, end.killed), (Some(Exit::Code(5)), vec![]));
}

/// Every agent CLI that was measured runs its tools in sessions of their own.
#[tokio::test]
async fn r_76_a_stubborn_tool_in_its_own_session_dies_with_a_cancelled_agent() {
    let rig = Rig::new();
    let mut shim = rig.start(&rig.play(&["tool"])).await;
    output(&mut shim, 6).await;
    let began = Instant::now();
    shim.stop(StopOrder::Plan).await.unwrap();
    let end = nothing_left(&rig, &mut shim).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((end.exit, end.killed.len()), (Some(Exit::Signal(15)), 1), "{:?}", end.killed);
    assert_eq!(end.killed[0].after, "term");
}

#[tokio::test]
async fn b1_3_servers_left_by_an_agent_that_is_done_die_with_the_run() {
    for mode in ["leave", "double-fork"] {
        let rig = Rig::new();
        let mut spec = rig.play(&[mode]);
        spec.drain_ms = 200;
        let mut shim = rig.start(&spec).await;
        let leader = until(&mut shim, |report| match report {
            Report::LeaderExited(exit) => Some(*exit),
            _ => None,
        });
        assert_eq!(leader.await, Exit::Code(0));
        let end = nothing_left(&rig, &mut shim).await;
        assert_eq!((end.exit, end.stopped), (Some(Exit::Code(0)), false));
        assert_eq!(
            (end.killed.len(), end.killed[0].after.as_str()),
            (1, "exit"),
            "{mode}: {:?}",
            end.killed
        );
        assert_eq!(rig.stdout(), "result\n");
    }
}

#[tokio::test]
async fn a_descendant_without_environment_is_found_as_well() {
    let rig = Rig::new();
    let mut shim = rig.start(&rig.play(&["empty-env"])).await;
    output(&mut shim, 6).await;
    shim.stop(StopOrder::Plan).await.unwrap();
    nothing_left(&rig, &mut shim).await;
}

/// Eight forkers, each in a new session for every generation, none of which obeys anything.
#[tokio::test]
async fn a_fork_storm_of_eight_ends() {
    for order in [StopOrder::Now, StopOrder::Plan] {
        let rig = Rig::new();
        let mut spec = rig.play(&["storm8"]);
        spec.stop.steps = quick(&[(15, 20)]);
        let mut shim = rig.start(&spec).await;
        output(&mut shim, 6).await;
        shim.stop(order).await.unwrap();
        let end = nothing_left(&rig, &mut shim).await;
        assert_eq!(end.exit, Some(Exit::Signal(9)));
        assert!(!end.killed.is_empty());
    }
}

#[tokio::test]
async fn an_agent_that_forked_before_it_died_at_once() {
    let rig = Rig::new();
    let mut spec = rig.spec("sh", &["-c", "sleep 60 & sleep 61 & kill -SEGV $$", &rig.token]);
    spec.drain_ms = 100;
    let mut shim = rig.start(&spec).await;
    let end = nothing_left(&rig, &mut shim).await;
    assert_eq!((end.exit, end.killed.len()), (Some(Exit::Signal(11)), 2));
}

/// A stop order that comes after the leader's own exit did not stop it.
#[tokio::test]
async fn a_stop_order_after_the_exit_is_no_stop() {
    let rig = Rig::new();
    let mut spec = rig.play(&["leave"]);
    spec.drain_ms = 20_000;
    let mut shim = rig.start(&spec).await;
    until(&mut shim, |report| matches!(report, Report::LeaderExited(_)).then_some(())).await;
    let began = Instant::now();
    shim.stop(StopOrder::Plan).await.unwrap();
    let end = nothing_left(&rig, &mut shim).await;
    assert_eq!((end.exit, end.stopped), (Some(Exit::Code(0)), false));
    assert!(began.elapsed() < Duration::from_secs(3), "the drain is not waited for");
}

#[tokio::test]
async fn a_plan_is_made_stronger_by_now() {
    let rig = Rig::new();
    let mut spec = rig.play(&["ignore-term"]);
    spec.stop.steps = quick(&[(15, 60_000)]);
    let mut shim = rig.start(&spec).await;
    output(&mut shim, 6).await;
    shim.stop(StopOrder::Plan).await.unwrap();
    shim.stop(StopOrder::Plan).await.unwrap();
    shim.stop(StopOrder::Now).await.unwrap();
    assert_eq!(nothing_left(&rig, &mut shim).await.exit, Some(Exit::Signal(9)));
}

#[tokio::test]
async fn a_stop_before_the_start_starts_nothing() {
    let rig = Rig::new();
    let spec = rig.spec("touch", &["ran"]);
    let mut shim = IdleShim::spawn(&fixture(), &rig.marker).unwrap().prepare(&spec).unwrap();
    shim.stop(StopOrder::Plan).await.unwrap();
    let end = ended(&mut shim).await;
    assert_eq!((end.exit, end.stopped), (None, true));
    assert!(!rig.root().join("ran").exists());
}

/// The keep-list: what is on it lives, with a name in the record; everything else goes.
#[tokio::test]
async fn a_kept_server_lives_and_is_named() {
    let rig = Rig::new();
    let mut spec = rig.play(&["keep"]);
    spec.drain_ms = 200;
    spec.keep = vec!["kept-server".into()];
    let mut shim = rig.start(&spec).await;
    let end = ended(&mut shim).await;
    assert_eq!((end.killed.len(), end.kept.len()), (1, 1), "{end:?}");
    assert_eq!(end.kept[0].argv0, "kept-server");
    let left = rig.alive();
    assert!(left.len() == 1 && left[0].contains("kept-server"), "{left:?}");
    shim.wait().await.unwrap();
}

/// What cannot be killed is reported, and the shim stays until it is gone.
#[tokio::test]
async fn b1_9_what_cannot_be_killed_is_reported_and_later_found_gone() {
    let rig = Rig::new();
    let alive = rig.root().join("immortal");
    std::fs::write(&alive, "").unwrap();
    let mut spec = rig.play(&["immortal", alive.as_str()]);
    spec.stop.steps = quick(&[(15, 50)]);
    let program = rig.root().join("impatient-shim");
    std::os::unix::fs::symlink(fixture(), &program).unwrap();
    let idle = IdleShim::spawn(program.as_std_path(), &rig.marker).unwrap();
    let mut shim = idle.prepare(&spec).unwrap();
    shim.start().await.unwrap();
    until(&mut shim, |report| matches!(report, Report::Started { .. }).then_some(())).await;
    shim.stop(StopOrder::Plan).await.unwrap();
    let failed = until(&mut shim, |report| match report {
        Report::KillFailed { remaining, ended } => Some((remaining.clone(), ended.clone())),
        _ => None,
    });
    let (remaining, facts) = failed.await;
    assert_eq!((remaining.len(), remaining[0].after.as_str(), facts.exit), (1, "kill", None));
    let exit = read_exit(&rig.dir()).unwrap().unwrap();
    assert!(!exit.empty && exit.remaining.len() == 1);
    assert_eq!(rig.alive().len(), 1);
    std::fs::remove_file(&alive).unwrap();
    let end = until(&mut shim, |report| match report {
        Report::Empty(ended) => Some(ended.clone()),
        _ => None,
    });
    assert_eq!(end.await.exit, Some(Exit::Signal(9)));
    let exit = read_exit(&rig.dir()).unwrap().unwrap();
    assert!(exit.empty && exit.remaining.is_empty());
    assert_eq!(rig.alive(), Vec::<String>::new());
}

/// The daemon lets go of its end: the run ends within two seconds, and the record says why.
#[tokio::test]
async fn a_closed_control_socket_ends_the_run_within_two_seconds() {
    for mode in ["ignore-term", "tool"] {
        let rig = Rig::new();
        let mut shim = rig.start(&rig.play(&[mode])).await;
        output(&mut shim, 6).await;
        drop(shim);
        let took = eventually("the run is gone", Duration::from_secs(2), || rig.alive().is_empty());
        assert!(took >= Duration::from_millis(900), "{mode}: TERM has its grace, took {took:?}");
        let gone = || {
            read_exit(&rig.dir()).ok().flatten().is_some_and(|exit| exit.daemon_gone && exit.empty)
        };
        eventually("the record", DEADLINE, gone);
    }
}
