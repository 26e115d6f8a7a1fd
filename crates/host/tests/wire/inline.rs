//! A lone client's appends, which the daemon makes on its own thread: what they hold up (nobody), and what is
//! left of them after a kill (all).

use std::collections::BTreeSet;
use std::sync::mpsc;

use camino::Utf8PathBuf;
use ostler_journal::{Visit, read};
use serde_json::{Value, json};

use super::raw::{DEADLINE, Raw, hello, submit};
use super::rig::Rig;
use super::runner::AT_ONCE;

fn at_once(task: &str) -> Value {
    let mut command = submit(task);
    command["prompt"] = json!(AT_ONCE);
    command
}

/// Thousands of queued runs that end at once are worked off on the daemon's thread, one append each. Whoever
/// knocks meanwhile is let in and answered after a few of them, not after all.
#[test]
fn a_queue_of_runs_that_end_at_once_keeps_no_second_client_waiting() {
    const TASKS: usize = 3_000;
    /// So many have ended when the second client knocks.
    const KNOCKED_AT: usize = 100;
    /// Steps from the knock to the answer, with much to spare.
    const TURNS_MAX: usize = 300;
    let rig = Rig::fast(|settings| {
        settings.tasks.limit_default = 1;
        settings.tasks.live_tasks_max = TASKS + 10;
        settings.journal.segment_bytes = 32 * 1024 * 1024;
    });
    let mut raw = rig.client();
    rig.running(&mut raw, "first");
    for batch in (0..TASKS).collect::<Vec<_>>().chunks(500) {
        let ids: Vec<_> = batch.iter().map(|n| raw.command(&at_once(&format!("t{n}")))).collect();
        for id in ids {
            raw.result(&id).unwrap();
        }
    }
    let queued = raw.list().iter().filter(|task| task["status"] == "TaskQueued").count();
    assert_eq!(queued, TASKS);
    // The engine stands still in the middle until the second client has said all it wants to say.
    let (stands, standing) = mpsc::channel();
    let (knocked, knock) = mpsc::channel();
    rig.runner.at_start(&format!("t{KNOCKED_AT}"), move || {
        stands.send(()).unwrap();
        knock.recv_timeout(DEADLINE).unwrap();
    });
    rig.runner.complete("first");
    standing.recv_timeout(DEADLINE).expect("the engine stands still");
    let mut second = Raw::connect(&rig.socket());
    // After everything was queued.
    second.send(&hello(Some(TASKS as u64 + 2)));
    let id = second.command(&submit("second"));
    knocked.send(()).unwrap();

    let (mut ended, mut at_event, mut at_answer) = (0, None, None);
    while at_event.is_none() || at_answer.is_none() || ended <= TASKS {
        let message = second.message().expect("an open connection");
        let task = &message["event"]["payload"];
        ended += usize::from(task["status"] == "TaskCompleted");
        if task["taskId"] == "second" {
            at_event.get_or_insert(ended);
        }
        if message["type"] == "command_result" {
            assert_eq!((&message["id"], &message["ok"]), (&json!(id), &json!(true)), "{message}");
            at_answer = Some(ended);
        }
    }
    let soon = KNOCKED_AT..KNOCKED_AT + TURNS_MAX;
    let (at_event, at_answer) = (at_event.unwrap(), at_answer.unwrap());
    assert!(soon.contains(&at_event), "{at_event} had ended when it was heard");
    assert!(soon.contains(&at_answer), "{at_answer} had ended when it was answered");
}

/// The ids in the archive, each as often as it is there.
fn archived(rig: &Rig) -> Vec<String> {
    let dir = Utf8PathBuf::from_path_buf(rig.runtime_dir().join("archive")).unwrap();
    let mut ids = Vec::new();
    read(&dir, &rig.settings().archive_journal, &mut |visit| {
        if let Visit::Entry(entry) = visit {
            let record: Value = serde_json::from_slice(entry.payload).unwrap();
            ids.push(record["task"]["taskId"].as_str().unwrap().to_owned());
        }
        Ok(())
    })
    .unwrap();
    ids
}

/// a client that waits for each answer has its tasks appended on the daemon's thread, and those
/// that leave the live set reach the archive later, from the other thread. A kill at any of these moments
/// takes back neither.
#[test]
fn r_58_r_59_what_a_lone_client_was_told_survives_a_kill_in_live_set_and_archive() {
    const LIVE: usize = 20;
    let mut rig = Rig::fast(|settings| settings.tasks.live_tasks_max = LIVE);
    let mut told = Vec::new();
    let refused = |rig: &Rig, told: &[String]| {
        let mut raw = rig.client();
        let ids: Vec<_> = told.iter().map(|task| raw.command(&submit(task))).collect();
        for (task, id) in told.iter().zip(ids) {
            assert_eq!(raw.result(&id).unwrap_err(), "task id already exists", "{task}");
        }
        raw.list().iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect()
    };
    for round in 0..6 {
        let mut raw = rig.client();
        // Above and below what may wait for the archive at once.
        for n in 0..20 + round * 17 {
            let task = format!("r{round}-{n}");
            raw.call(&at_once(&task)).unwrap();
            told.push(task);
        }
        rig.kill_and_start();
        let live: Vec<String> = refused(&rig, &told);
        assert_eq!(live, told[told.len() - LIVE..], "round {round}");
    }
    // The last ones leave the live set in a life that ends in good order, with a snapshot without them.
    let mut raw = rig.client();
    for n in 0..LIVE + 30 {
        raw.call(&at_once(&format!("last{n}"))).unwrap();
        told.push(format!("last{n}"));
    }
    rig.stop();
    let mut expected: BTreeSet<_> = told[..told.len() - LIVE].iter().cloned().collect();
    for id in archived(&rig) {
        assert!(expected.remove(&id), "{id} is in the archive twice, or without having left");
    }
    assert!(expected.is_empty(), "not in the archive: {expected:?}");
    rig.start();
    refused(&rig, &told);
}
