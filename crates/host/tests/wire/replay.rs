//! Snapshots, events and cursors.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use serde_json::json;

use super::commands::files;
use super::mirror::{Known, Mirror};
use super::raw::{Raw, submit};
use super::rig::Rig;
use super::runner::AT_ONCE;

fn at_once(task: &str) -> serde_json::Value {
    let mut command = submit(task);
    command["prompt"] = json!(AT_ONCE);
    command
}

/// Makes `count` tasks that succeed: three events each.
fn history(rig: &Rig, count: usize) -> u64 {
    let mut mirror = rig.mirror().opened();
    for n in 0..count {
        let id = mirror.raw.command(&at_once(&format!("h{n}")));
        mirror.raw.result(&id).unwrap();
        mirror.until_status(&format!("h{n}"), "TaskCompleted");
    }
    mirror.known.last
}

/// R-30
#[test]
fn r_30_without_a_cursor_snapshot_then_live_events() {
    let rig = Rig::new();
    let last = history(&rig, 3);
    assert_eq!(last, 9, "queued, running and completed, three times");
    let mut mirror = rig.mirror();
    assert!(mirror.take());
    assert_eq!((mirror.snapshots, mirror.known.last, mirror.current), (1, 9, 9));
    let listed = mirror.raw.list();
    let shown: Vec<_> = mirror.known.tasks.values().cloned().collect();
    assert_eq!(shown, listed, "a snapshot and a list say the same");
    let id = mirror.raw.command(&at_once("live"));
    mirror.raw.result(&id).unwrap();
    mirror.until_status("live", "TaskCompleted");
    assert_eq!(mirror.statuses("live"), ["TaskQueued", "TaskRunning", "TaskCompleted"]);
}

/// R-30: an empty daemon has a snapshot too.
#[test]
fn r_30_nothing_at_all_is_a_snapshot() {
    let rig = Rig::new();
    let mirror = rig.mirror().opened();
    assert_eq!((mirror.known, mirror.current), (Known::default(), 0));
}

/// R-33, R-34
#[test]
fn r_33_a_cursor_inside_retention_gets_exactly_what_is_after_it() {
    let rig = Rig::new();
    let last = history(&rig, 4);
    let mut whole = Mirror::connect(&rig.socket(), Some(Known::default()));
    whole.until_sequence(last);
    for after in 0..=last {
        let known = Known { last: after, ..Known::default() };
        let mut mirror = Mirror::connect(&rig.socket(), Some(known));
        assert_eq!(mirror.current, last);
        // The answer comes after the replay was on its way, or with it; nothing else ever comes.
        mirror.until_sequence(last);
        assert_eq!(mirror.snapshots, 0, "{after}");
        assert_eq!(mirror.events, whole.events[after as usize..], "{after}");
        mirror.raw.list();
        assert_eq!(mirror.raw.kept().count(), 0, "{after}: nothing more");
    }
}

/// R-35
#[test]
fn r_35_a_cursor_outside_of_what_is_kept_gets_a_snapshot() {
    let rig = Rig::with(|settings| settings.feed.events_max = 5);
    let last = history(&rig, 6);
    for (after, snapshot) in [
        (0, true),
        (1, true),
        (last - 6, true),
        (last - 5, false),
        (last, false),
        (last + 1, true),
        (u64::MAX - 1, true),
        (u64::MAX, true),
    ] {
        let known = Known { last: after, ..Known::default() };
        let mut mirror = Mirror::connect(&rig.socket(), Some(known));
        mirror.raw.list();
        while mirror.raw.kept().next().is_some() {
            mirror.take();
        }
        assert_eq!(mirror.snapshots, usize::from(snapshot), "after {after} of {last}");
        assert_eq!(mirror.known.last, last, "after {after}");
        if !snapshot {
            assert_eq!(mirror.events.len() as u64, last - after);
        }
    }
}

/// Small and repeatable.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Comes and goes until it has seen `last_task` complete: sometimes with its cursor, sometimes with an
/// older one (and the state of then), sometimes with none.
fn restless(socket: PathBuf, seed: u64, last_task: String) -> (Known, usize, usize) {
    let mut dice = Dice(seed);
    let mut states = vec![None];
    let (mut replays, mut snapshots) = (0, 0);
    loop {
        let known = match dice.roll(10) {
            0 => None,
            1..=3 => states[dice.roll(states.len() as u64) as usize].clone(),
            _ => states.last().cloned().flatten(),
        };
        let resumes = known.is_some();
        let mut mirror = Mirror::connect(&socket, known);
        let stay = dice.roll(60);
        for _ in 0..stay {
            let finished = mirror.known.tasks.get(&last_task);
            if finished.is_some_and(|task| task["status"] == "TaskCompleted") {
                return (mirror.known, replays, snapshots);
            }
            assert!(mirror.take(), "closed by the daemon");
        }
        replays += usize::from(resumes && mirror.snapshots == 0 && !mirror.events.is_empty());
        snapshots += mirror.snapshots;
        // What was never told is no state to resume from.
        if resumes || mirror.snapshots > 0 {
            states.push(Some(mirror.known));
        }
    }
}

fn storm(rig: &Rig, tasks: usize) -> (usize, usize) {
    let last_task = format!("s{}", tasks - 1);
    let mut faithful = rig.mirror().opened();
    let clients: Vec<_> = (0..6)
        .map(|seed| {
            let (socket, last_task) = (rig.socket(), last_task.clone());
            std::thread::spawn(move || restless(socket, seed, last_task))
        })
        .collect();
    let socket = rig.socket();
    let writer = std::thread::spawn(move || {
        let (mut raw, _) = Raw::hello(&socket, None);
        for batch in (0..tasks).collect::<Vec<_>>().chunks(20) {
            let ids: Vec<_> =
                batch.iter().map(|n| raw.command(&at_once(&format!("s{n}")))).collect();
            for id in ids {
                raw.result(&id).unwrap();
            }
        }
    });
    writer.join().unwrap();
    faithful.until_sequence(3 * tasks as u64);
    faithful.raw.list();
    let (mut replays, mut snapshots) = (0, 0);
    for client in clients {
        let (mut known, replayed, from_snapshot) = client.join().unwrap();
        // It left when it had seen the last task; that may not have been the last event.
        if known.last < faithful.known.last {
            let mut mirror = Mirror::connect(&rig.socket(), Some(known));
            mirror.until_sequence(faithful.known.last);
            known = mirror.known;
        }
        assert_eq!(known, faithful.known, "R-43");
        replays += replayed;
        snapshots += from_snapshot;
    }
    let sequences: BTreeSet<_> = faithful.events.iter().map(|event| event.0).collect();
    assert_eq!(sequences.len(), faithful.events.len());
    (replays, snapshots)
}

/// R-36, R-37, R-43. That no event is missing, doubled or out of order is checked by every mirror.
#[test]
fn r_36_r_37_r_43_clients_that_come_and_go_end_like_one_that_never_left() {
    let rig = Rig::new();
    let (replays, snapshots) = storm(&rig, 160);
    assert!(replays > 10 && snapshots > 4, "{replays} replays, {snapshots} snapshots");
}

/// R-35, R-43: the same when cursors fall out of retention all the time.
#[test]
fn r_35_r_43_cursors_that_fall_out_of_retention_end_in_the_same_state() {
    let rig = Rig::with(|settings| settings.feed.events_max = 30);
    let (_, snapshots) = storm(&rig, 120);
    assert!(snapshots > 10, "{snapshots} snapshots");
}

/// R-37: the same sequences mean the same to everybody, also after a restart.
#[test]
fn r_37_a_sequence_means_the_same_across_restarts() {
    let mut rig = Rig::new();
    let last = history(&rig, 5);
    let told = |rig: &Rig| {
        let mut mirror = Mirror::connect(&rig.socket(), Some(Known::default()));
        mirror.until_sequence(last);
        (mirror.events, mirror.snapshots)
    };
    let before = told(&rig);
    rig.stop();
    rig.start();
    assert_eq!(told(&rig), before, "after an orderly end");
    rig.kill_and_start();
    assert_eq!(told(&rig), before, "after a kill");
    assert_eq!(rig.mirror().current, last, "nothing was added");
}

/// Writes other bytes over the first such ones in the journal, as a failing disk does.
fn overwrite(rig: &Rig, old: &str, new: &str) {
    assert_eq!(old.len(), new.len());
    for (name, bytes) in files(&rig.runtime_dir().join("journal")) {
        if let Some(at) = memchr::memmem::find(&bytes, old.as_bytes())
            && name.contains("segment")
        {
            let file = std::fs::OpenOptions::new().write(true).open(name).unwrap();
            return file.write_all_at(new.as_bytes(), at as u64).unwrap();
        }
    }
    panic!("{old} is in no segment");
}

/// R-35, R-43: a record of an earlier start that is no longer what was verified then is not told, and
/// whoever would need it gets a snapshot.
#[test]
fn r_43_a_stored_event_that_changed_on_disk_is_a_snapshot_for_whoever_needs_it() {
    let mut rig = Rig::new();
    let last = history(&rig, 4);
    let whole = rig.mirror().opened().known;
    rig.stop();
    rig.start();
    let resume = |after: u64| {
        let known = Known { last: after, ..Known::default() };
        Mirror::connect(&rig.socket(), Some(known))
    };
    // Before anybody finds out, a client waits behind it.
    let mut ahead = resume(last);
    // Its second of three events, still a whole record that says something else.
    overwrite(
        &rig,
        r#""taskId":"h1","sessionId":null,"status":"TaskRunning","#,
        r#""taskId":"h1","sessionId":null,"status":"TaskFailed" ,"#,
    );
    let mut first = resume(3);
    while first.take() {}
    assert!(first.known.last <= 4 && first.snapshots == 0, "{:?}", first.known);
    for after in 0..=4 {
        let again = resume(after).opened();
        assert_eq!(again.known, whole, "after {after}");
    }
    for after in 5..=last {
        let mut behind = resume(after);
        behind.until_sequence(last);
        assert_eq!(behind.snapshots, 0, "after {after}: what is whole is still told");
    }
    let id = ahead.raw.command(&at_once("live"));
    ahead.raw.result(&id).unwrap();
    ahead.until_status("live", "TaskCompleted");
}

/// Lines that take six bytes a character as JSON: 1.5 MB in 250,000 characters.
pub(crate) fn fill_tail(rig: &Rig, task: &str) {
    for n in 0..61 {
        let head = format!("{n:04}");
        rig.runner.line(task, &(head + &"\u{1}".repeat(4_092)));
    }
}

/// R-31, R-32, R-38
#[test]
fn r_38_an_event_above_the_maximum_comes_in_slices_and_others_whole() {
    let rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    let id = mirror.raw.command(&submit("big"));
    mirror.raw.result(&id).unwrap();
    rig.runner.wait_started("big", 1);
    fill_tail(&rig, "big");
    rig.runner.complete("big");
    mirror.until_status("big", "TaskCompleted");
    assert!(mirror.sliced >= 1, "the completed task is above 1 MiB");
    let tail = mirror.known.tasks["big"]["logTail"].as_array().unwrap();
    assert_eq!(tail.len(), 61);
    assert!(tail.iter().enumerate().all(|(n, line)| {
        let line = line.as_str().unwrap();
        line.starts_with(&format!("{n:04}\u{1}")) && line.len() == 4_096
    }));
    let whole = mirror.statuses("big").len() - mirror.sliced;
    assert!(whole >= 2, "queued and running fit their frames");
    // Replayed to another client, it is the same.
    let mut other = Mirror::connect(&rig.socket(), Some(Known::default()));
    other.until_sequence(mirror.known.last);
    assert_eq!(other.known, mirror.known);
    assert!(other.sliced >= 1);
}

/// R-31, R-32
#[test]
fn r_31_a_large_snapshot_comes_in_slices() {
    let rig = Rig::new();
    let mut client = rig.client();
    for n in 0..4 {
        let task = format!("big{n}");
        rig.running(&mut client, &task);
        fill_tail(&rig, &task);
        rig.runner.complete(&task);
        client.until_status(&task, "TaskCompleted");
    }
    let mut mirror = rig.mirror();
    while mirror.snapshots == 0 {
        assert!(mirror.take());
    }
    assert!(mirror.raw.lengths.iter().filter(|length| **length > 1_000_000).count() >= 5);
    for n in 0..4 {
        let task = &mirror.known.tasks[&format!("big{n}")];
        assert_eq!(task["logTail"].as_array().unwrap().len(), 61);
    }
}
