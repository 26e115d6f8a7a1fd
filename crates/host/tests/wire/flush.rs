//! Changes that nobody waits for become durable all the same, and the journal goes on while no snapshot can be
//! written.

use std::fs;
use std::path::PathBuf;

use camino::Utf8PathBuf;
use ostler_journal::{Report, verify};
use serde_json::json;

use super::raw::{submit, wait_for};
use super::rig::Rig;
use super::runner::AT_ONCE;

/// What the files say; the daemon may be at work.
fn report(rig: &Rig) -> Report {
    let dir = Utf8PathBuf::from_path_buf(rig.runtime_dir().join("journal")).unwrap();
    verify(&dir, &rig.settings().journal).unwrap()
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
