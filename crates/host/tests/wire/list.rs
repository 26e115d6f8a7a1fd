//! What a `list` shows, and how it fits one frame.

use serde_json::{Value, json};

use super::commands::{files, settled_files, unchanged};
use super::raw::{FRAME_BYTES_MAX, submit};
use super::replay::fill_tail;
use super::rig::Rig;
use super::runner::AT_ONCE;

///
#[test]
fn r_47_huge_tails_are_trimmed_evenly_and_nothing_changes() {
    let rig = Rig::new();
    let mut raw = rig.client();
    for n in 0..6 {
        let task = format!("big{n}");
        rig.running(&mut raw, &task);
        fill_tail(&rig, &task);
        if n == 0 {
            // One that has less to give.
            continue;
        }
        rig.runner.complete(&task);
        raw.until_status(&task, "TaskCompleted");
    }
    rig.runner.complete("big0");
    raw.until_status("big0", "TaskCompleted");
    rig.running(&mut raw, "small");
    rig.runner.line("small", "the only line");
    rig.runner.complete("small");
    raw.until_status("small", "TaskCompleted");

    let current = rig.mirror().current;
    let journal = settled_files(&rig.runtime_dir());
    raw.lengths.clear();
    let list = raw.call(&json!({"version": 1, "type": "list"})).unwrap();
    assert!(list.get("truncated").is_none(), "all tasks fit");
    let used = *raw.lengths.last().unwrap();
    assert!(used > FRAME_BYTES_MAX * 9 / 10, "only {used} bytes were used");
    let tasks = list["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 7);
    let mut counts = Vec::new();
    for task in tasks {
        let tail = task["logTail"].as_array().unwrap();
        if task["taskId"] == "small" {
            assert_eq!(*tail, [json!("the only line")], "it was not what took the room");
            continue;
        }
        counts.push(tail.len());
        for (index, line) in tail.iter().enumerate() {
            let number = 61 - tail.len() + index;
            assert!(
                line.as_str().unwrap().starts_with(&format!("{number:04}")),
                "the newest are left"
            );
        }
    }
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(most - least <= 1 && *least > 0, "{counts:?} lines were left");
    assert_eq!(rig.mirror().current, current, "no event");
    unchanged(&journal, &files(&rig.runtime_dir()));
}

fn with_long_cwd(task: &str, prompt: &str) -> Value {
    let mut command = submit(task);
    command["cwd"] = json!(format!("/{}", "🙂".repeat(4_000)));
    command["prompt"] = json!(prompt);
    command
}

/// when the tasks alone do not fit, the oldest settled ones are left out, and that is said.
#[test]
fn r_47_the_oldest_settled_tasks_are_left_out_last() {
    let rig = Rig::new();
    let mut raw = rig.client();
    raw.call(&with_long_cwd("unfinished", "wait")).unwrap();
    rig.runner.wait_started("unfinished", 1);
    const SETTLED: usize = 80;
    for n in 0..SETTLED {
        raw.call(&with_long_cwd(&format!("s{n}"), AT_ONCE)).unwrap();
    }
    let mut mirror = rig.mirror().opened();
    mirror.until(|known| {
        let settled = known.tasks.values().filter(|it| it["status"] == "TaskCompleted");
        settled.count() == SETTLED
    });
    let list = raw.call(&json!({"version": 1, "type": "list"})).unwrap();
    assert_eq!(list["truncated"], true);
    let ids: Vec<_> =
        list["tasks"].as_array().unwrap().iter().map(|it| it["taskId"].clone()).collect();
    assert_eq!(ids[0], "unfinished", "older than all, and not settled");
    let kept = ids.len() - 1;
    assert!(kept > 40 && kept < SETTLED, "{kept} are left");
    let newest: Vec<_> = (SETTLED - kept..SETTLED).map(|n| json!(format!("s{n}"))).collect();
    assert_eq!(ids[1..], newest);
}

/// unfinished tasks alone can be more than a frame; there is an answer nevertheless.
#[test]
fn r_47_more_unfinished_tasks_than_a_frame_holds_are_answered() {
    let rig = Rig::new();
    let mut raw = rig.client();
    for n in 0..100 {
        raw.call(&with_long_cwd(&format!("u{n}"), "wait")).unwrap();
    }
    let list = raw.call(&json!({"version": 1, "type": "list"}));
    let list = list.expect("a list");
    assert_eq!(list["truncated"], true);
    assert!(list["tasks"].as_array().unwrap().len() > 40);
}

/// Tasks are listed in the order of their submission.
#[test]
fn r_47_a_list_is_in_order_and_whole() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let names: Vec<_> = (0..300).map(|n| format!("n{}", n * 7_919 % 300)).collect();
    for name in &names {
        raw.submit(name).unwrap();
    }
    let listed: Vec<_> =
        raw.list().iter().map(|it| it["taskId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(listed, names);
}
