//! `kill -9` of everything that can be killed, at any moment, over and over; and the end in good order.
//!
//! What holds after each: nothing of a run is left, what was acknowledged is there, nothing runs twice.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant, SystemTime};

use ostler_host::client::ClientError;
use ostler_proto::framed::{FailureClass, Submit, TaskStatus, Verdict};
use ostler_testkit::process::{Process, random_hex, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{PATIENCE, ROUNDS, Rig, finish, is, rounds};

/// How long a run may outlive its daemon (design.md, "How long work lives").
const GONE_S_MAX: u64 = 2;

/// The words of agents that do not want to go, and what they print when they are ready.
const STUBBORN: [(&str, &str); 6] = [
    ("ignore-term", "ignoring TERM"),
    ("spawn-tool --ignore-term", "tool pid="),
    ("double-fork-setsid --ignore-term --empty-env --stay", "forked twice"),
    ("close-stdout", "closing"),
    ("print-for-ever", "0000000"),
    ("fork-storm 2 20 --stay", "storm of 2"),
];

/// Each start appends a line to `starts` in the work folder, before anything else.
fn detach_counted(rig: &Rig, id: &str, words: &str) {
    let script = format!("echo {id} >> starts; exec {} {words}", rig.agent.display());
    let done = finish(&mut rig.ostler(["run", "-d", "--id", id, "--", "sh", "-c", &script]));
    assert_eq!(done.code, Some(0), "{done:?}");
}

/// How often each task was started.
fn starts(rig: &Rig) -> HashMap<String, u32> {
    let text = fs::read_to_string(rig.scratch.work().join("starts")).unwrap_or_default();
    let mut counts = HashMap::new();
    for line in text.lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

fn micros_since_epoch() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_micros()).unwrap()
}

/// every run is gone within 2 s of its daemon's `kill -9`; the next daemon says interrupted, and
/// nothing runs twice.
#[test]
fn r_80_kill_9_of_the_daemon_ends_every_run_and_nothing_runs_twice() {
    let mut rig = Rig::configured("[tasks]\nlimit = 6\n");
    let mut ids = Vec::new();
    // Each waits for the grace that stubborn agents have.
    for round in 0..rounds(2) {
        for (n, (words, ready)) in STUBBORN.iter().enumerate() {
            let id = format!("r{round}-{n}");
            detach_counted(&rig, &id, words);
            rig.printed(&id, ready);
            ids.push(id);
        }
        let waiting = format!("r{round}-waits");
        detach_counted(&rig, &waiting, "lines 1");
        ids.push(waiting.clone());

        let killed_at = micros_since_epoch();
        rig.kill_daemon();
        rig.assert_gone_within(Duration::from_secs(GONE_S_MAX) * 5);
        for n in 0..STUBBORN.len() {
            let exit = fs::read(rig.run_dir(&format!("r{round}-{n}")).join("exit.json")).unwrap();
            let exit: Value = serde_json::from_slice(&exit).unwrap();
            let took = exit["ended_at_micros"].as_i64().unwrap() - killed_at;
            assert!(exit["daemon_gone"] == true && exit["empty"] == true, "{exit}");
            assert!(took < i64::try_from(GONE_S_MAX).unwrap() * 1_000_000, "{took} µs: {exit}");
        }

        // With no daemon at all, what was printed can be read.
        assert_eq!(rig.logs(&format!("r{round}-0")).lines().next(), Some("ignoring TERM"));
        rig.start_daemon();
        assert!(is(&rig.settled(&waiting), TaskStatus::Interrupted));
        let listed = finish(&mut rig.ostler(["task", "list", "--json"]));
        let tasks: Vec<Value> = serde_json::from_str(&listed.stdout).unwrap();
        let listed: Vec<_> = tasks.iter().map(|task| task["taskId"].as_str().unwrap()).collect();
        assert_eq!(listed, ids);
        assert!(tasks.iter().all(|task| task["status"] == "TaskInterrupted"), "{tasks:?}");
        let refused = finish(&mut rig.ostler(["task", "retry", &waiting]));
        assert_eq!(refused.code, Some(4), "{refused:?}");
        assert!(refused.stderr.contains("input is unavailable after daemon restart"), "R-65");
        rig.assert_nothing_runs();
        let starts = starts(&rig);
        assert!(
            ids.iter().all(|id| starts.get(id).copied() == (!id.ends_with("waits")).then_some(1))
        );
    }
}

/// an acknowledged submit is there after a `kill -9` at any moment.
#[test]
fn r_59_r_67_what_was_acknowledged_is_there_and_ran_at_most_once() {
    /// Submits of one storm.
    const SUBMITS_MAX: usize = 60;
    let mut rig = Rig::configured("[tasks]\nlimit = 2\n");
    let mut acknowledged: Vec<String> = Vec::new();
    for round in 0..rounds(ROUNDS) {
        let wire = rig.wire().without_updates();
        let client = wire.client.clone();
        let work = rig.scratch.work().to_str().unwrap().to_owned();
        let submits = async {
            let mut acked = Vec::new();
            for n in 0..SUBMITS_MAX {
                let id = format!("s{round}-{n}");
                let submit = Submit {
                    task_id: id.clone(),
                    agent: Some("command".to_owned()),
                    argv: ["sh", "-c", &format!("echo {id} >> starts")].map(str::to_owned).into(),
                    cwd: work.clone(),
                    ..Submit::default()
                };
                match client.submit(submit).await {
                    Ok(_) => acked.push(id),
                    Err(ClientError::Closed(_)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            acked
        };
        let daemon = rig.daemon();
        let pause = u64::from_str_radix(&random_hex()[..4], 16).unwrap() % 150;
        eprintln!("round {round}: killed after {pause} ms");
        let killer = std::thread::spawn(move || {
            // A random moment, not a wait for anything.
            std::thread::sleep(Duration::from_millis(pause));
            daemon.signal(Signal::KILL);
        });
        acknowledged.extend(wire.block_on(submits));
        killer.join().unwrap();
        rig.daemon_ended(PATIENCE);
        let offline = finish(&mut rig.ostler(["task", "list", "--json"]));
        rig.start_daemon();
        if let Some(last) = acknowledged.last() {
            rig.settled(last);
        }
        let online = finish(&mut rig.ostler(["task", "list", "--json"]));
        for (what, done) in [("offline", offline), ("online", online)] {
            let tasks: Vec<Value> = serde_json::from_str(&done.stdout).unwrap();
            let known: Vec<&str> =
                tasks.iter().map(|task| task["taskId"].as_str().unwrap()).collect();
            for id in &acknowledged {
                assert!(known.contains(&id.as_str()), "{what}: {id} was acknowledged and is gone");
            }
            let settled = ["TaskCompleted", "TaskInterrupted"];
            let all = tasks.iter().all(|task| settled.contains(&task["status"].as_str().unwrap()));
            assert!(what == "offline" || all, "{}", done.stdout);
        }
        let verified = finish(&mut rig.ostler(["journal", "verify"]));
        assert_eq!(verified.code, Some(0), "{verified:?}");
    }
    assert!(starts(&rig).values().all(|count| *count == 1), "{:?}", starts(&rig));
    assert!(!acknowledged.is_empty());
    rig.assert_gone_within(PATIENCE);
}

/// The daemon notices, ends the tree by marker and identity, and the task ends as what it is.
#[test]
fn kill_9_of_a_shim_ends_its_tree_and_the_task() {
    let rig = Rig::serving();
    for (n, (words, ready)) in
        [("spawn-tool --ignore-term", "tool pid="), ("lines 1 --stay", "line 1")].iter().enumerate()
    {
        let id = format!("t{n}");
        detach_counted(&rig, &id, words);
        rig.printed(&id, ready);
        rig.shim(&id).signal(Signal::KILL);
        let task = rig.settled(&id);
        rig.assert_nothing_runs();
        assert!(is(&task, TaskStatus::Failed), "{task:?}");
        assert_eq!(task.failure.unwrap().class, FailureClass::ShimLost);
        let receipt = task.receipt.unwrap();
        assert_eq!((receipt.verdict, receipt.proof), (Verdict::Failed, None));
        assert_eq!(receipt.killed.is_empty(), n == 1, "only who ignored TERM: {receipt:?}");
        assert!(rig.logs(&id).contains(ready));
    }
    // The input is still there: it can be tried again.
    let retried = finish(&mut rig.ostler(["task", "retry", "t1"]));
    assert_eq!(retried.code, Some(0), "{retried:?}");
    rig.wire().until("t1", |task| task.attempt == 2 && task.status == TaskStatus::Running);
    rig.cancel("t1");
    rig.assert_nothing_runs();
}

/// With the shim dead as well nobody is left to end the run: the next daemon does it.
#[test]
fn kill_9_of_daemon_and_shim_leaves_work_for_the_next_daemon() {
    let mut rig = Rig::serving();
    detach_counted(&rig, "t", "spawn-tool --ignore-term");
    rig.printed("t", "tool pid=");
    let shim = rig.shim("t");
    // In this order the shim has no time to notice that the daemon is gone.
    shim.signal(Signal::STOP);
    wait_until("the shim stands still", PATIENCE, || {
        Process::read(shim.pid).is_some_and(|process| process.state == 'T')
    });
    rig.kill_daemon();
    shim.signal(Signal::KILL);
    wait_until("the shim is gone", PATIENCE, || !shim.is_alive());
    assert_eq!(rig.run_processes().len(), 2, "agent and tool live: {:#?}", rig.run_processes());

    rig.start_daemon();
    let task = rig.settled("t");
    assert!(is(&task, TaskStatus::Interrupted), "{task:?}");
    rig.assert_gone_within(PATIENCE);
    assert_eq!(starts(&rig)["t"], 1);
}

/// TERM ends the daemon in good order, however stubborn its runs are.
#[test]
fn r_07_r_80_term_ends_runs_flushes_and_removes_the_socket() {
    let mut rig = Rig::configured("[tasks]\nlimit = 6\n");
    for (n, (words, ready)) in STUBBORN.iter().enumerate() {
        detach_counted(&rig, &format!("t{n}"), words);
        rig.printed(&format!("t{n}"), ready);
    }
    detach_counted(&rig, "waits", "lines 1");
    let mut wires = ["t0", "waits"].map(|id| (id, rig.wire()));
    let began = Instant::now();
    rig.signal_daemon(Signal::TERM);
    for (id, wire) in &mut wires {
        wire.until(id, |task| task.status == TaskStatus::Interrupted);
    }
    let status = rig.daemon_ended(PATIENCE);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(status.code(), Some(0), "{}", rig.daemon_log());
    rig.assert_nothing_runs();
    assert!(!rig.scratch.socket().exists());
    let done = finish(&mut rig.ostler(["task", "list", "--json"]));
    let tasks: Vec<Value> = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(tasks.len(), STUBBORN.len() + 1);
    for task in &tasks {
        assert_eq!(task["status"], "TaskInterrupted", "{task}");
        if task["taskId"] != "waits" {
            assert_eq!(task["receipt"]["verdict"], "interrupted", "{task}");
        }
    }
    assert_eq!(starts(&rig).len(), STUBBORN.len());
}

/// A second signal does not wait; the shims end the runs.
#[test]
fn a_second_term_ends_the_daemon_at_once() {
    let mut rig = Rig::serving();
    detach_counted(&rig, "t", "ignore-term");
    rig.printed("t", "ignoring TERM");
    rig.signal_daemon(Signal::TERM);
    wait_until("the first was heard", PATIENCE, || rig.daemon_log().contains("stopping"));
    rig.signal_daemon(Signal::TERM);
    // The agent holds the daemon up for two seconds unless the second signal counts.
    let status = rig.daemon_ended(Duration::from_millis(1_500));
    assert!(status.code() == Some(143) || status.signal() == Some(15), "{status}");
    rig.assert_gone_within(PATIENCE);
    rig.start_daemon();
    assert_eq!(rig.settled("t").status, TaskStatus::Interrupted);
}
