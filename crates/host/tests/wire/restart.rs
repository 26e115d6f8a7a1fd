//! What is left after the daemon has ended, well or not.

use std::path::Path;
use std::process::Command;

use ostler_core::task::StopReason;
use serde_json::json;

use super::commands::{files, unchanged};
use super::mirror::{Known, Mirror};
use super::raw::{DEADLINE, Raw, hello, submit, wait_for};
use super::rig::{Rig, Server};
use super::runner::AT_ONCE;

/// One of each: completed, failed, cancelled, running with output, queued behind its session, and a limit.
fn history(rig: &Rig) -> Known {
    let mut mirror = rig.mirror().opened();
    let raw = &mut mirror.raw;
    raw.call(&json!({"version": 1, "type": "set_limit", "limit": 7})).unwrap();
    let mut command = submit("completed");
    command["prompt"] = json!(AT_ONCE);
    raw.call(&command).unwrap();
    for task in ["failed", "cancelled"] {
        rig.running(raw, task);
    }
    for task in ["running", "queued"] {
        let mut command = submit(task);
        command["session_id"] = json!("s");
        raw.call(&command).unwrap();
    }
    rig.runner.wait_started("running", 1);
    rig.runner.line("failed", "a line");
    rig.runner.fail("failed", "no");
    raw.on("cancel", "cancelled").unwrap();
    rig.runner.line("running", "so far");
    mirror.until_status("completed", "TaskCompleted");
    mirror.until_status("failed", "TaskFailed");
    mirror.until_status("cancelled", "TaskCancelled");
    mirror.until(|known| known.tasks["running"]["logTail"] == json!(["so far"]));
    mirror.known
}

/// What a client with that cursor is told after the restart.
fn after_restart(rig: &Rig, before: Known) -> Mirror {
    let mut mirror = Mirror::connect(&rig.socket(), Some(before));
    mirror.until_status("running", "TaskInterrupted");
    mirror.until_status("queued", "TaskInterrupted");
    mirror.raw.list();
    assert_eq!(mirror.snapshots, 0, "the cursor was resumed");
    mirror
}

fn is_settled(mirror: &Mirror, before: &Known, runs: usize, rig: &Rig) {
    assert_eq!(mirror.statuses("running"), ["TaskInterrupted"]);
    assert_eq!(mirror.statuses("queued"), ["TaskInterrupted"]);
    assert_eq!(mirror.events.len(), 2, "each by an event, and nothing else happened");
    for task in ["completed", "failed", "cancelled"] {
        assert_eq!(mirror.known.tasks[task], before.tasks[task]);
    }
    assert_eq!(mirror.known.tasks["failed"]["logTail"], json!(["a line", "no"]));
    assert_eq!(rig.runner.started().len(), runs, "nothing is started by itself");
}

///
#[test]
fn r_80_what_was_unfinished_at_a_kill_is_interrupted_and_not_run_again() {
    let mut rig = Rig::new();
    let before = history(&rig);
    let runs = rig.runner.started().len();
    rig.kill_and_start();
    let mirror = after_restart(&rig, before.clone());
    is_settled(&mirror, &before, runs, &rig);
    // A client without a cursor sees the same, and a second restart adds nothing.
    assert_eq!(rig.mirror().opened().known, mirror.known);
    rig.kill_and_start();
    let again = rig.mirror().opened();
    assert_eq!(again.known, mirror.known);
    assert_eq!(rig.runner.started().len(), runs);
}

/// told to the clients that are connected, before they are closed, and what ran was stopped.
#[test]
fn r_80_an_orderly_end_interrupts_and_says_so() {
    let mut rig = Rig::new();
    let before = history(&rig);
    let runs = rig.runner.started().len();
    let mut watcher = Mirror::connect(&rig.socket(), Some(before.clone()));
    watcher.raw.list();
    rig.stop();
    while watcher.take() {}
    assert_eq!(watcher.statuses("running"), ["TaskInterrupted"], "told before the end");
    assert_eq!(watcher.statuses("queued"), ["TaskInterrupted"]);
    assert!(rig.runner.stops().contains(&("running".to_owned(), StopReason::Shutdown)));
    assert!(!rig.socket().exists(), "the socket is removed");
    rig.start();
    let mirror = after_restart(&rig, before.clone());
    is_settled(&mirror, &before, runs, &rig);
    assert_eq!(mirror.known, watcher.known);
    let tail = &mirror.known.tasks["running"]["logTail"];
    assert_eq!(tail[0], "so far", "it keeps its last words");
}

/// The limit is state as well.
#[test]
fn the_limit_survives_a_restart() {
    let mut rig = Rig::new();
    rig.client().call(&json!({"version": 1, "type": "set_limit", "limit": 1})).unwrap();
    rig.kill_and_start();
    let mut raw = rig.client();
    rig.running(&mut raw, "one");
    raw.submit("two").unwrap();
    assert_eq!(raw.task("two")["status"], "TaskQueued");
}

/// what was answered is there after a kill, at any moment of a stream of submissions.
#[test]
fn r_59_what_was_answered_is_there_after_a_kill() {
    let mut rig = Rig::new();
    let mut answered = Vec::new();
    for round in 0..8 {
        let mut raw = rig.client();
        let ids: Vec<_> = (0..30)
            .map(|n| {
                let task = format!("r{round}-{n}");
                (raw.command(&submit(&task)), task)
            })
            .collect();
        for (id, task) in ids.iter().take(1 + round * 4) {
            raw.result(id).unwrap();
            answered.push(task.clone());
        }
        rig.kill_and_start();
        let listed = rig.client().list();
        for task in &answered {
            assert!(
                listed.iter().any(|it| it["taskId"] == **task),
                "{task} was answered and is gone"
            );
        }
    }
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

///
#[test]
fn r_86_a_copied_runtime_directory_shows_the_same_and_takes_the_same_cursors() {
    let mut rig = Rig::new();
    history(&rig);
    rig.stop();
    let copied = rig.folder().join("copy");
    copy(&rig.runtime_dir(), &copied);
    rig.start();
    let original = rig.mirror().opened();
    let server = Server::start(rig.settings_in(copied.clone()), rig.runner.clone()).unwrap();
    let socket = copied.join("daemon.sock");
    assert_eq!(Mirror::connect(&socket, None).opened().known, original.known);
    let last = original.known.last;
    for after in [0, 1, last / 2, last - 1, last] {
        let known = Known { last: after, ..Known::default() };
        let told = |socket: &Path| {
            let mut mirror = Mirror::connect(socket, Some(known.clone()));
            mirror.until_sequence(last);
            assert_eq!(mirror.snapshots, 0);
            mirror.events
        };
        assert_eq!(told(&socket), told(&rig.socket()), "after {after}");
    }
    server.stop();
}

fn journal_file(rig: &Rig, name: &str) -> std::path::PathBuf {
    let names = files(&rig.runtime_dir().join("journal"));
    let found = names.keys().find(|it| it.contains(name));
    found.unwrap_or_else(|| panic!("{name} in {:?}", names.keys())).into()
}

/// a flipped bit in the middle of what was written, in segments and snapshots.
#[test]
fn r_82_corruption_refuses_the_start_and_changes_no_byte() {
    let mut rig = Rig::new();
    history(&rig);
    rig.stop();
    let whole = rig.folder().join("whole");
    copy(&rig.runtime_dir(), &whole);
    for name in ["segment", "snapshot"] {
        let file = journal_file(&rig, name);
        let bytes = std::fs::read(&file).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        for at in [0, used / 3, used / 2, used * 2 / 3] {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            std::fs::write(&file, &broken).unwrap();
            let before = files(&rig.runtime_dir());
            let error = rig.try_start().expect_err("a start on corrupt data");
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            let short = file.file_name().unwrap().to_str().unwrap();
            assert!(text.contains(short), "byte {at} of {short}: the error names the file: {text}");
            unchanged(&before, &files(&rig.runtime_dir()));
            std::fs::write(&file, &bytes).unwrap();
        }
    }
    rig.start();
    assert_eq!(rig.client().list().len(), 5, "restored, it starts");
}

/// a torn last record does not stop the start.
#[test]
fn r_85_an_unfinished_last_record_is_dropped() {
    let mut rig = Rig::new();
    let before = history(&rig);
    rig.kill();
    let file = journal_file(&rig, "segment");
    let bytes = std::fs::read(&file).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    // Half of the last bytes never reached the disk.
    let mut torn = bytes.clone();
    torn[used - 40..=used].fill(0);
    std::fs::write(&file, &torn).unwrap();
    wait_for("a start", || rig.try_start().ok());
    let known = rig.mirror().opened().known;
    assert_eq!(known.tasks.keys().collect::<Vec<_>>(), before.tasks.keys().collect::<Vec<_>>());
}

/// whoever knocks while a start finds runs of an earlier daemon is let in when what became of them
/// is on disk: the first that anybody is told shows none of them as running.
#[test]
fn r_60_r_80_nobody_is_let_in_before_the_recovered_state_is_durable_and_shown() {
    let mut rig = Rig::new();
    for round in 0..5 {
        let mut raw = rig.client();
        let tasks: Vec<_> = (0..4).map(|n| format!("r{round}-{n}")).collect();
        tasks.iter().for_each(|task| drop(rig.running(&mut raw, task)));
        let cursor = rig.mirror().opened().known;
        assert_eq!(raw.task(&tasks[0])["status"], "TaskRunning");
        rig.kill();
        // Both have said all they want to say before the daemon has taken its first step.
        let (sender, knocked) = std::sync::mpsc::channel();
        let socket = rig.socket();
        let last = cursor.last;
        rig.runner.at_recovery(move || {
            let knock = |resume_after| {
                let mut raw = Raw::connect(&socket);
                raw.send(&hello(resume_after));
                raw
            };
            sender.send((knock(None), knock(Some(last)))).unwrap();
        });
        wait_for("a start after a kill", || rig.try_start().ok());
        let (without, with) = knocked.recv_timeout(DEADLINE).expect("two clients");
        let first = Mirror::greeted(without, None).opened();
        let with = Mirror::greeted(with, Some(cursor));
        for task in &tasks {
            assert_eq!(first.known.tasks[task]["status"], "TaskInterrupted", "{task}");
        }
        assert_eq!(first.known.last, last + tasks.len() as u64);
        assert_eq!((first.current, with.current), (first.known.last, first.known.last));
    }
}
