//! Events of earlier starts, which stay in the journal's files until somebody asks for them.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use ostler_host::Settings;
use serde_json::{Value, json};

use super::mirror::{Known, Mirror};
use super::raw::{submit, wait_for};
use super::rig::Rig;
use super::runner::AT_ONCE;

const MIB: u64 = 1024 * 1024;

/// Small segments, of which the journal keeps none for replay; the daemon keeps as many events as usual.
fn small_segments(settings: &mut Settings) {
    settings.tasks.live_tasks_max = 400;
    settings.journal.segment_bytes = 2 * MIB;
    settings.journal.record_bytes_max = 512 * 1024;
    settings.journal.events_keep = 1;
    settings.journal.events_bytes_keep = 1;
    settings.feed.events_bytes_max = 64 * MIB as usize;
}

/// A task that succeeds at once, of whose records each takes 24 KiB.
fn long(task: &str) -> Value {
    let mut command = submit(task);
    command["prompt"] = json!(AT_ONCE);
    command["cwd"] = json!(format!("/{}", "\u{1}".repeat(4_000)));
    command
}

/// Makes that many of them, the last one settled when this returns.
fn load(rig: &Rig, name: &str, count: usize) {
    let mut raw = rig.client();
    for n in 0..count {
        raw.call(&long(&format!("{name}{n}"))).unwrap();
    }
    raw.until_status(&format!("{name}{}", count - 1), "TaskCompleted");
}

/// Output, a failure and a limit, beside the long ones.
fn various(rig: &Rig) {
    let mut mirror = rig.mirror().opened();
    mirror.raw.call(&json!({"version": 1, "type": "set_limit", "limit": 7})).unwrap();
    rig.running(&mut mirror.raw, "various");
    for n in 0..20 {
        rig.runner.line("various", &format!("line {n}"));
    }
    rig.runner.fail("various", "as it were");
    mirror.until_status("various", "TaskFailed");
}

/// The events from there to there.
fn told(rig: &Rig, after: u64, last: u64) -> Vec<(u64, String, Value)> {
    let mut mirror =
        Mirror::connect(&rig.socket(), Some(Known { last: after, ..Known::default() }));
    mirror.until_sequence(last);
    assert_eq!(mirror.snapshots, 0, "the cursor {after} was resumed");
    mirror.events.truncate((last - after) as usize);
    mirror.events
}

fn segments(rig: &Rig) -> Vec<PathBuf> {
    let files = fs::read_dir(rig.runtime_dir().join("journal")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let mut segments: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "log")).collect();
    segments.sort();
    segments
}

/// exactly the earlier events, from cursors all over them; also when the journal has begun new
/// segments since the start and has removed the ones they lie in.
#[test]
fn r_33_r_37_events_of_an_earlier_start_are_told_again_also_when_their_segments_are_gone() {
    let mut rig = Rig::with(small_segments);
    various(&rig);
    load(&rig, "early", 45);
    let last = rig.mirror().current;
    let before = told(&rig, 0, last);
    assert!(segments(&rig).len() > 2, "{:?}", segments(&rig));
    rig.kill_and_start();
    let cursors = [0, 1, 2, 5, 30, last / 2, last - 1, last];
    let check = |rig: &Rig| {
        for after in cursors {
            assert!(told(rig, after, last) == before[after as usize..], "after {after}");
        }
    };
    check(&rig);
    let at_start = segments(&rig);
    // One that reads slowly begins before they are gone, and has the rest afterwards.
    let known = Known { last: 0, ..Known::default() };
    let mut slow = Mirror::connect(&rig.socket(), Some(known));
    load(&rig, "late", 120);
    let left = segments(&rig);
    assert!(!at_start.iter().any(|segment| left.contains(segment)), "{at_start:?}, then {left:?}");
    check(&rig);
    slow.until_sequence(last + 3 * 120);
    assert!(slow.events[..last as usize] == before);
    // What came before and what came since, in one go.
    let newest = rig.mirror().current;
    let all = told(&rig, 0, newest);
    assert!(all[..last as usize] == before && all == told(&rig, 0, newest));
}

/// What cannot be read again closes the connection that asked for it, says so in the log, and is nobody
/// else's matter.
#[test]
fn an_event_that_cannot_be_read_again_ends_only_the_connection_that_asked() {
    let mut rig = Rig::with(small_segments);
    load(&rig, "early", 45);
    let last = rig.mirror().current;
    rig.kill_and_start();
    let [damaged, intact, ..] = &segments(&rig)[..] else { panic!("{:?}", segments(&rig)) };
    assert!(intact.exists());
    let file = OpenOptions::new().write(true).open(damaged).unwrap();
    file.set_len(MIB).unwrap();

    let mut other = Mirror::connect(&rig.socket(), Some(Known { last, ..Known::default() }));
    let mut asked = Mirror::connect(&rig.socket(), Some(Known::default()));
    while asked.take() {
        assert_eq!((asked.snapshots, asked.beats), (0, 0), "it is closed");
    }
    assert!((1..last).contains(&asked.known.last), "it got what is there: {}", asked.known.last);
    let said = wait_for("a line in the log", || {
        Some(rig.log.with("cannot be read again")).filter(|said| !said.is_empty())
    });
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("ERROR") && said[0].contains("segment=1 "), "{said:?}");

    // Behind the damage, without a cursor, and live: everything goes on.
    assert_eq!(told(&rig, last - 3, last).len(), 3);
    let shown = rig.mirror().opened();
    assert_eq!((shown.known.tasks.len(), shown.known.last), (45, last));
    load(&rig, "late", 1);
    other.until_status("late0", "TaskCompleted");
    assert_eq!(other.snapshots, 0);
}
