//! When changes become durable that nobody waits for, how many share a flush, and what happens to the journal
//! while no snapshot can be written.

use std::fs;
use std::path::PathBuf;

use camino::Utf8PathBuf;
use ostler_core::task::LIMIT_MAX;
use ostler_journal::{
    BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, Report, SEGMENT_HEADER_BYTES, verify,
};
use serde_json::json;

use super::raw::{submit, wait_for};
use super::rig::Rig;
use super::runner::AT_ONCE;

/// What the files say; the daemon may be at work.
fn report(rig: &Rig) -> Report {
    let dir = Utf8PathBuf::from_path_buf(rig.runtime_dir().join("journal")).unwrap();
    verify(&dir, &rig.settings().journal).unwrap()
}

/// How many batches were appended in between, one a flush. Each is padded to a multiple of eight bytes, so that
/// of many it is one or the other too many.
fn batches(before: &Report, after: &Report) -> u64 {
    let overhead = |report: &Report| {
        let used: u64 = report.segments.iter().map(|segment| segment.used_bytes).sum();
        let segments = report.segments.len() as u64 * SEGMENT_HEADER_BYTES;
        used - segments - report.payload_bytes - report.records * RECORD_OVERHEAD_BYTES
    };
    (overhead(after) - overhead(before)) / BATCH_OVERHEAD_BYTES
}

/// Starts as many runs as there may be; the test ends them.
fn start_all(rig: &Rig, round: usize) -> Vec<String> {
    let mut raw = rig.client();
    raw.call(&json!({"version": 1, "type": "set_limit", "limit": LIMIT_MAX})).unwrap();
    let tasks: Vec<_> = (0..LIMIT_MAX).map(|n| format!("r{round}-{n}")).collect();
    tasks.iter().for_each(|task| drop(rig.running(&mut raw, task)));
    tasks
}

/// an end comes to everybody by itself, with no command after it, and is on disk by then.
#[test]
fn r_60_an_end_that_nobody_waits_for_is_durable_and_told_by_itself() {
    let mut rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    for round in 0..20 {
        let task = format!("t{round}");
        rig.running(&mut mirror.raw, &task);
        rig.runner.complete(&task);
        // Nothing is sent from here on but what answers heartbeats.
        mirror.until_status(&task, "TaskCompleted");
        assert!(report(&rig).last_sequence >= mirror.known.last);
    }
    let seen = mirror.known.clone();
    rig.kill_and_start();
    assert_eq!(rig.mirror().opened().known, seen);
}

/// Ends that come one shortly after the other share flushes. On a disk that takes its time they would do so
/// anyway, so this is about one that does not.
#[test]
fn ends_that_nobody_waits_for_share_flushes() {
    let rig = Rig::fast(|_| {});
    let mut mirror = rig.mirror().opened();
    // A machine with more to do than this may need more in one round, but not in each.
    let fewest = (0..8).map(|round| {
        let tasks = start_all(&rig, round);
        let before = report(&rig);
        for task in &tasks {
            rig.runner.complete(task);
        }
        for task in &tasks {
            mirror.until_status(task, "TaskCompleted");
        }
        let after = report(&rig);
        assert_eq!(after.records, before.records + u64::from(LIMIT_MAX));
        batches(&before, &after)
    });
    let fewest = fewest.min().unwrap();
    assert!(fewest <= 4, "{LIMIT_MAX} ends took {fewest} flushes at least");
}

fn snapshots(rig: &Rig) -> Vec<PathBuf> {
    let files = fs::read_dir(rig.runtime_dir().join("journal")).unwrap();
    let mut found: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    found.retain(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("snapshot") && path.is_file()
    });
    found
}

/// Tasks of 24 KiB a record, each settled when this returns; three records each.
fn load(rig: &Rig, name: &str, count: usize) {
    let mut raw = rig.client();
    for n in 0..count {
        let mut command = submit(&format!("{name}{n}"));
        command["prompt"] = json!(AT_ONCE);
        command["cwd"] = json!(format!("/{}", "\u{1}".repeat(4_000)));
        raw.call(&command).unwrap();
    }
    raw.until_status(&format!("{name}{}", count - 1), "TaskCompleted");
}

/// While a snapshot cannot be written the journal goes on; it is tried again after as much as made the first
/// one due, not with every flush, and succeeds when it can.
#[test]
fn a_snapshot_that_cannot_be_written_stops_nothing_and_is_tried_again_later() {
    const FAILED: &str = "no snapshot was written";
    /// Bytes after which one is due.
    const DUE_BYTES: u64 = 4 * 1024 * 1024;
    let mut rig = Rig::with(|settings| settings.tasks.live_tasks_max = 100);
    load(&rig, "before", 2);
    let before = snapshots(&rig);
    // A folder in its way: root is refused nothing, but this.
    let obstacle = rig.runtime_dir().join("journal/snapshot.tmp");
    fs::create_dir(&obstacle).unwrap();
    load(&rig, "t", 280);
    assert_eq!(snapshots(&rig), before);
    let tries = rig.log.with(FAILED).len() as u64;
    fs::remove_dir(&obstacle).unwrap();
    let written = report(&rig).payload_bytes;
    let due = written / DUE_BYTES;
    assert!(due >= 4, "{written} bytes make no load");
    assert!((due - 1..=due + 1).contains(&tries), "{tries} tries for {written} bytes");

    load(&rig, "more", 60);
    wait_for("a snapshot", || (snapshots(&rig) != before).then_some(()));
    let tries_after = rig.log.with(FAILED).len() as u64;
    assert!(tries_after <= tries + 1, "{tries_after} tries, {tries} of them with the obstacle");
    let seen = rig.mirror().opened().known;
    assert_eq!(seen.tasks.len(), 100);
    rig.kill_and_start();
    assert_eq!(rig.mirror().opened().known, seen);
}
