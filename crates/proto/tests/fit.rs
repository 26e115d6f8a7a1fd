//! Lists and task results are made to fit, leaving out what the specification says in its order.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

use std::time::{Duration, Instant};

use ostler_proto::framed::{
    FRAME_BYTES_MAX, ListResult, Receipt, Task, TaskState, TaskStatus, Verdict, encode_result,
    fit_list, fit_snapshot, fit_task, result_bytes_max,
};
use proptest::prelude::*;

fn task(id: usize, status: TaskStatus, log_tail: Vec<String>) -> Task {
    Task {
        task_id: format!("t-{id}"),
        session_id: None,
        status,
        description: "[task input redacted]".into(),
        working_directory: "/abs".into(),
        provider: None,
        model: None,
        effort: None,
        worktree: false,
        attempt: 1,
        updated_at: "2026-01-02T03:04:05.678901Z".into(),
        log_tail,
        agent: None,
        failure: None,
        receipt: None,
    }
}

fn with_text(mut task: Task, text: &str) -> Task {
    task.receipt = Some(Receipt {
        agent: "claude_code".into(),
        agent_version: None,
        proof: None,
        statement: None,
        exit: None,
        started_at: None,
        ended_at: String::new(),
        session_id: None,
        git: None,
        denials: vec![],
        killed: vec![],
        kept: vec![],
        output_bytes: 0,
        truncated: false,
        verdict: Verdict::Failed,
        usage: None,
        cost_micros: None,
        text: Some(text.into()),
    });
    task
}

fn bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).unwrap().len()
}

fn whole(tasks: &[Task]) -> ListResult {
    ListResult { version: 1, tasks: tasks.to_vec(), truncated: false }
}

fn lines(count: usize, bytes: usize) -> Vec<String> {
    (0..count).map(|line| format!("{line:0bytes$}")).collect()
}

#[test]
fn r_47_a_list_that_fits_is_whole() {
    let tasks: Vec<_> = (0..3).map(|id| task(id, TaskStatus::Running, lines(4, 9))).collect();
    let list = whole(&tasks);
    assert_eq!(fit_list(tasks, bytes(&list)), list);
}

#[test]
fn r_47_tails_are_cut_evenly_oldest_lines_first() {
    let tails = [100, 3, 50, 0];
    let tasks: Vec<_> =
        (0..4).map(|id| task(id, TaskStatus::Running, lines(tails[id], 8))).collect();
    let list = fit_list(tasks.clone(), bytes(&whole(&tasks)) - 900);
    let left: Vec<_> = list.tasks.iter().map(|task| task.log_tail.len()).collect();
    assert_eq!(left, [34, 3, 34, 0], "82 lines of 11 bytes go");
    assert!(!list.truncated);
    for (task, before) in list.tasks.iter().zip(&tasks) {
        assert!(before.log_tail.ends_with(&task.log_tail));
    }
}

#[test]
fn r_47_then_texts_then_the_oldest_settled_tasks_then_the_last_in_the_queue() {
    let tasks = vec![
        task(0, TaskStatus::Running, lines(5, 5)),
        with_text(task(1, TaskStatus::Completed, lines(5, 5)), "answer"),
        with_text(task(2, TaskStatus::Failed, vec![]), "answer"),
        task(3, TaskStatus::Queued, vec![]),
        task(4, TaskStatus::Queued, vec![]),
    ];
    let ids = |list: &ListResult| -> Vec<String> {
        list.tasks.iter().map(|task| task.task_id.clone()).collect()
    };
    let mut bare = tasks.clone();
    bare.iter_mut().for_each(|task| task.log_tail.clear());
    let list = fit_list(tasks.clone(), bytes(&whole(&bare)));
    assert_eq!(list, whole(&bare), "no tail is left, every text is");

    let list = fit_list(tasks.clone(), bytes(&whole(&bare)) - 1);
    assert_eq!(list.tasks.len(), 5);
    assert!(!list.truncated && list.tasks[1].receipt.as_ref().unwrap().text.is_none());

    let mut left = list.clone();
    for expected in [
        vec!["t-0", "t-2", "t-3", "t-4"],
        vec!["t-0", "t-3", "t-4"],
        vec!["t-0", "t-3"],
        vec!["t-0"],
        vec![],
    ] {
        let max = bytes(&left) - 1;
        left = fit_list(tasks.clone(), max);
        assert!(left.truncated && bytes(&left) <= max);
        assert_eq!(ids(&left), expected);
    }
}

#[test]
fn r_23_a_task_result_fits_with_a_tail_of_escapes_and_a_long_text() {
    let max = result_bytes_max("submit-1", FRAME_BYTES_MAX);
    let tail = vec!["\u{1}".repeat(1000); 256];
    let running = task(1, TaskStatus::Running, tail.clone());
    let result = fit_task(TaskState::Cancelled, with_text(running, "answer"), max);
    assert_eq!(result.task.log_tail.len(), max / 6003);
    assert!(result.task.receipt.as_ref().unwrap().text.is_some());
    let mut out = Vec::new();
    encode_result(&mut out, "submit-1", Ok(&result), FRAME_BYTES_MAX).unwrap();
    let long = with_text(task(1, TaskStatus::Failed, tail), &"x".repeat(FRAME_BYTES_MAX));
    let result = fit_task(TaskState::Queued, long, max);
    assert!(result.task.log_tail.is_empty() && bytes(&result) <= max);
}

#[test]
fn r_23_the_room_for_a_result_is_exact_whatever_the_id() {
    for id in ["", "a", "\"\\\n\u{1}é"] {
        let max = 2000;
        let text = "x".repeat(result_bytes_max(id, max) - 2);
        let mut out = Vec::new();
        encode_result(&mut out, id, Ok(&text), max).unwrap();
        assert_eq!(out.len(), max + 4);
        assert!(encode_result(&mut out, id, Ok(&format!("{text}x")), max).is_err());
    }
    assert_eq!(result_bytes_max("a", 10), 0);
}

/// A large list is cut in a moment: a bound against quadratic work, not a benchmark.
#[test]
fn r_47_a_thousand_tails_are_cut_in_a_moment() {
    let tasks: Vec<_> =
        (0..1000).map(|id| task(id, TaskStatus::Completed, lines(50, 100))).collect();
    let max = result_bytes_max("list-1", FRAME_BYTES_MAX);
    let start = Instant::now();
    let list = fit_list(tasks, max);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(list.tasks.len(), 1000);
    assert!(bytes(&list) <= max && bytes(&list) > max - 1000 * 103);
}

fn any_task() -> impl Strategy<Value = Task> {
    let status = prop::sample::select(vec![
        TaskStatus::Queued,
        TaskStatus::Running,
        TaskStatus::Completed,
        TaskStatus::Failed,
        TaskStatus::Cancelled,
        TaskStatus::Interrupted,
    ]);
    let tail = prop::collection::vec("[a\"\u{1}é😀]{0,12}", 0..12);
    (0_usize..99, status, tail, prop::option::of("[a\n]{0,30}")).prop_map(
        |(id, status, tail, text)| match text {
            Some(text) => with_text(task(id, status, tail), &text),
            None => task(id, status, tail),
        },
    )
}

proptest! {
    #[test]
    fn r_47_always_fits_and_leaves_out_in_order(
        tasks in prop::collection::vec(any_task(), 0..8), max in 41_usize..4000,
    ) {
        let list = fit_list(tasks.clone(), max);
        prop_assert!(bytes(&list) <= max);
        // What is left is as it was, but for the fronts of tails and the texts.
        let mut from = tasks.iter();
        for task in &list.tasks {
            let origin = from.by_ref().find(|origin| {
                let mut copy = (*task).clone();
                copy.log_tail.clone_from(&origin.log_tail);
                if let (Some(copy), Some(origin)) = (&mut copy.receipt, &origin.receipt) {
                    copy.text.clone_from(&origin.text);
                }
                copy == **origin && origin.log_tail.ends_with(&task.log_tail)
            });
            prop_assert!(origin.is_some(), "in the order given");
        }
        prop_assert_eq!(list.truncated, list.tasks.len() < tasks.len());
        let tails: usize = list.tasks.iter().map(|task| task.log_tail.len()).sum();
        let has_text = |task: &Task| task.receipt.as_ref().is_some_and(|r| r.text.is_some());
        if list.truncated {
            prop_assert_eq!(tails, 0, "tasks go only after all lines");
            prop_assert!(!list.tasks.iter().any(has_text), "and all texts");
            let gone_unsettled = tasks.iter().filter(|t| !t.status.is_settled()).count()
                > list.tasks.iter().filter(|t| !t.status.is_settled()).count();
            let left_settled = list.tasks.iter().any(|task| task.status.is_settled());
            prop_assert!(!(gone_unsettled && left_settled), "settled ones go first");
        } else if list.tasks.iter().filter(|t| has_text(t)).count()
            < tasks.iter().filter(|t| has_text(t)).count()
        {
            prop_assert_eq!(tails, 0, "texts go only after all lines");
        }
        // What fits is left alone.
        if bytes(&whole(&tasks)) <= max {
            prop_assert_eq!(list, whole(&tasks));
        }
    }

    #[test]
    fn r_47_the_share_is_even_and_the_largest(
        tails in prop::collection::vec(prop::collection::vec("[a-z\"]{0,9}", 0..15), 1..6), cut in 1_usize..300,
    ) {
        let tasks: Vec<_> = tails.iter().enumerate()
            .map(|(id, tail)| task(id, TaskStatus::Running, tail.clone())).collect();
        let full = bytes(&whole(&tasks));
        let max = full.saturating_sub(cut);
        let list = fit_list(tasks.clone(), max.max(41));
        // Two in five; as rejected cases they would be too many for a long run.
        if list.truncated {
            return Ok(());
        }
        let cost = |lines: &[String]| if lines.is_empty() { 0 } else { bytes(&lines) - 2 };
        // A cut tail with one more line would be above every other kept tail, or the list would not fit.
        let largest = list.tasks.iter().map(|task| cost(&task.log_tail)).max().unwrap_or(0);
        let mut next: Vec<(usize, usize)> = Vec::new();
        for (task, before) in list.tasks.iter().zip(&tasks) {
            let (left, had) = (task.log_tail.len(), before.log_tail.len());
            if left < had {
                let more = cost(&before.log_tail[had - left - 1..]);
                prop_assert!(more > largest, "nobody has what this one could not have");
                next.push((more, more - cost(&task.log_tail)));
            }
        }
        // The next larger share, for everybody whom it would give a line, is too much.
        if let Some(share) = next.iter().map(|next| next.0).min() {
            let added: usize = next.iter().filter(|next| next.0 == share).map(|next| next.1).sum();
            prop_assert!(bytes(&list) + added > max);
        }
    }
}

#[test]
fn r_83_a_snapshot_keeps_every_task_and_the_newest_texts() {
    let tasks: Vec<_> = (0..6)
        .map(|id| with_text(task(id, TaskStatus::Completed, lines(10, 8)), "\u{1}\u{1}\u{1}"))
        .collect();
    let texts = 109 + 20;
    let fitted = |texts_max: usize, bytes_max: usize| {
        let mut fitted = tasks.clone();
        fit_snapshot(&mut fitted, |_| 1, texts_max, bytes_max);
        assert_eq!(fitted.len(), 6);
        let shape = fitted.iter().map(|task| {
            let text = task.receipt.as_ref().unwrap().text.is_some();
            (task.log_tail.len(), text)
        });
        let bytes = fitted.iter().map(|task| bytes(task) + 1).sum::<usize>();
        (shape.collect::<Vec<_>>(), bytes)
    };
    let whole = (10, true);
    let (all, full_bytes) = fitted(usize::MAX, usize::MAX);
    assert_eq!(all, [whole; 6]);
    assert_eq!(fitted(6 * texts, full_bytes).0, [whole; 6]);
    assert_eq!(fitted(6 * texts - 1, full_bytes).0[..2], [(9, true), whole]);
    assert_eq!(fitted(4 * texts + 20, full_bytes).0[..3], [(0, false), (0, true), whole]);
    for less in [1, 150, 300, 600] {
        let (shape, bytes) = fitted(usize::MAX, full_bytes - less);
        assert!(bytes <= full_bytes - less && shape[5] == whole, "{less}: {shape:?}");
    }
}
