//! The feed's cursor, retention, backlog and bounds.

use super::*;
use crate::tail::TailBounds;
use ostler_core::clock::Timestamp;
use ostler_core::task::{TaskSpec, TaskStatus};

fn task(n: u64) -> Task {
    let spec = TaskSpec {
        id: TaskId::new(&format!("t{n}")).unwrap(),
        session: None,
        cwd: "/".into(),
        provider: None,
        model: None,
        effort: None,
        worktree: false,
        agent: None,
        permissions: None,
        timeout: None,
        budget_micros: None,
    };
    Task {
        spec: Arc::new(spec),
        order: n,
        status: TaskStatus::Completed,
        attempt: 1,
        updated_at: Timestamp::default(),
        log_lines: 0,
        outcome: None,
    }
}

fn feed(events_max: u64, backlog_bytes_max: usize) -> Arc<Feed> {
    Arc::new(Feed::new(FeedBounds { events_max, events_bytes_max: 1 << 20, backlog_bytes_max }))
}

/// Publishes the sequences from `first`, `count` of them, each with a frame that names it.
fn publish(feed: &Feed, first: u64, count: u64) {
    let mut frames = Vec::new();
    let mut publications = Vec::new();
    for n in first..first + count {
        let start = frames.len();
        frames.extend_from_slice(format!("<{n}>").as_bytes());
        let published = Published { task: task(n), tail: None };
        publications.push(Publication::Task { published, frame: Some(start..frames.len()) });
    }
    feed.publish(publications, Bytes::from(frames));
}

fn read(cursor: &mut Cursor) -> String {
    let mut text = String::new();
    loop {
        let pieces = cursor.take(64).unwrap();
        if pieces.is_empty() {
            return text;
        }
        for piece in pieces {
            let Piece::Frames { bytes, .. } = piece else { panic!("only frames were published") };
            text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }
}

#[test]
fn r_33_a_cursor_inside_a_batch_gets_exactly_what_follows() {
    let feed = feed(100, 0);
    publish(&feed, 1, 3);
    publish(&feed, 4, 2);
    for after in 0..=5 {
        let (opening, mut cursor) = feed.open(Some(after));
        assert!(matches!(opening, Opening::Replay { last: 5 }), "{after}");
        let wanted: String = (after + 1..=5).map(|n| format!("<{n}>")).collect();
        assert_eq!(read(&mut cursor), wanted);
    }
}

#[test]
fn r_35_outside_of_retention_a_snapshot_comes_instead() {
    let feed = feed(3, 0);
    for n in 1..=10 {
        publish(&feed, n, 1);
    }
    for (after, replay) in
        [(0, false), (6, false), (7, true), (10, true), (11, false), (u64::MAX, false)]
    {
        let (opening, cursor) = feed.open(Some(after));
        assert_eq!(matches!(opening, Opening::Replay { .. }), replay, "{after}");
        if let Opening::Snapshot { last, tasks } = opening {
            assert_eq!((last, tasks.len()), (10, 10));
            assert_eq!(cursor.sent(), 10);
        }
    }
}

#[test]
fn r_44_a_burst_closes_nobody_and_a_cursor_beyond_the_backlog_falls_behind() {
    let feed = feed(3, 1 << 20);
    let (_, mut reader) = feed.open(None);
    for n in 1..=1_000 {
        publish(&feed, n, 1);
    }
    assert!(read(&mut reader).starts_with("<1><2>"), "kept for the connected client");
    publish(&feed, 1_001, 1);
    let (opening, _) = feed.open(Some(10));
    assert!(matches!(opening, Opening::Snapshot { .. }), "not for one that comes back");

    let feed = Arc::new(Feed::new(FeedBounds {
        events_max: 3,
        events_bytes_max: 20,
        backlog_bytes_max: 20,
    }));
    let (_, mut reader) = feed.open(None);
    for n in 1..=1_000 {
        publish(&feed, n, 1);
    }
    assert_eq!(reader.take(64).unwrap_err(), FellBehind);
}

#[test]
fn r_75_tails_of_settled_tasks_share_a_bound() {
    let feed = feed(10, 0);
    let line = "x".repeat(4_000);
    for n in 1..=20 {
        let mut tail = Tail::new(TailBounds { lines_max: 500, chars_max: 2_000_000 }, None);
        (0..500).for_each(|_| tail.push(&line));
        let published = Published {
            task: Task { log_lines: 500, ..task(n) },
            tail: Some(Arc::new(Mutex::new(tail))),
        };
        feed.publish(vec![Publication::Task { published, frame: None }], Bytes::new());
    }
    let (tasks, _) = feed.view();
    let kept: usize = tasks
        .iter()
        .filter_map(|task| task.tail.as_ref())
        .map(|tail| tail.lock().unwrap().bytes())
        .sum();
    assert!(kept <= SETTLED_TAILS_BYTES_MAX, "{kept}");
    let newest = tasks.last().unwrap().tail.as_ref().unwrap().lock().unwrap().view(500).len();
    assert_eq!(newest, 500, "the newest is whole");
}
