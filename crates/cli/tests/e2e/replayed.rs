//! What a client was told before a `kill -9` of the daemon is what every later start tells.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ostler_proto::framed::{Submit, TaskStatus};
use ostler_testkit::process::{random_hex, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{PATIENCE, ROUNDS, Rig, rounds};

/// Each event's text, as it came, by its sequence.
type Events = BTreeMap<u64, String>;

/// The wire, frame by frame.
struct Frames(UnixStream);

impl Frames {
    /// Shakes hands with this cursor; the newest sequence by then.
    fn hello(socket: &Path, resume_after: u64) -> (Self, u64) {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = json!({"clientId": "e2e", "versions": [3], "resumeAfter": resume_after});
        let hello = json!({"type": "hello", "hello": hello}).to_string();
        stream.write_all(&u32::try_from(hello.len()).unwrap().to_be_bytes()).unwrap();
        stream.write_all(hello.as_bytes()).unwrap();
        let mut frames = Self(stream);
        let welcome: Value = serde_json::from_str(&frames.next().expect("a welcome")).unwrap();
        let current = welcome["welcome"]["currentSequence"].as_u64().expect("a sequence");
        (frames, current)
    }

    /// The next whole frame; `None` at the end, also in the middle of one.
    fn next(&mut self) -> Option<String> {
        let mut header = [0; 4];
        self.0.read_exact(&mut header).ok()?;
        let mut body = vec![0; u32::from_be_bytes(header) as usize];
        self.0.read_exact(&mut body).ok()?;
        Some(String::from_utf8(body).unwrap())
    }

    /// The next event.
    fn event(&mut self) -> Option<(u64, String)> {
        loop {
            let text = self.next()?;
            let message: Value = serde_json::from_str(&text).unwrap();
            match message["type"].as_str().unwrap() {
                "heartbeat" => {}
                "event" => {
                    return Some((message["event"]["sequenceNumber"].as_u64().unwrap(), text));
                }
                other => panic!("{other} after a cursor that is kept"),
            }
        }
    }
}

/// Takes events until the daemon is killed.
struct Watcher {
    count: Arc<AtomicU64>,
    running_tails: Arc<AtomicU64>,
    events: Arc<Mutex<Events>>,
    thread: JoinHandle<()>,
}

impl Watcher {
    fn start(socket: &Path, after: u64) -> Self {
        let (mut frames, _) = Frames::hello(socket, after);
        let (count, running_tails, events): (Arc<AtomicU64>, Arc<AtomicU64>, Arc<Mutex<Events>>) =
            Default::default();
        let (counted, tails, taken) =
            (Arc::clone(&count), Arc::clone(&running_tails), Arc::clone(&events));
        let thread = std::thread::spawn(move || {
            while let Some((sequence, text)) = frames.event() {
                let (tail, rest) = parted(&text);
                if rest.contains("TaskRunning") && !tail.is_empty() {
                    tails.fetch_add(1, Ordering::Relaxed);
                }
                taken.lock().unwrap().insert(sequence, text);
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { count, running_tails, events, thread }
    }

    fn end(self) -> Events {
        self.thread.join().unwrap();
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

/// All events, as a daemon tells them that has just started.
fn replay(rig: &Rig) -> Events {
    let (mut frames, current) = Frames::hello(&rig.scratch.socket(), 0);
    let mut events = Events::new();
    while events.len() as u64 != current {
        let (sequence, text) = frames.event().expect("an event");
        assert_eq!(sequence, events.len() as u64 + 1);
        events.insert(sequence, text);
    }
    events
}

/// The log tail of an event, and its text without.
fn parted(text: &str) -> (Vec<String>, String) {
    let mut event: Value = serde_json::from_str(text).unwrap();
    let tail = event["event"]["payload"]["logTail"].take();
    (serde_json::from_value(tail).unwrap_or_default(), event.to_string())
}

/// Byte for byte the same, but for a tail that has lost its oldest lines.
#[track_caller]
fn assert_same(seen: &str, again: &str) {
    let ((seen_tail, seen_rest), (tail, rest)) = (parted(seen), parted(again));
    assert_eq!(rest, seen_rest);
    if tail == seen_tail {
        assert_eq!(again, seen);
    }
    assert!(seen_tail.ends_with(&tail), "{tail:?} is no end of {seen_tail:?}");
}

fn submit(id: &str, work: &str, script: &str) -> Submit {
    Submit {
        task_id: id.to_owned(),
        agent: Some("command".to_owned()),
        argv: vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
        cwd: work.to_owned(),
        ..Submit::default()
    }
}

/// Submits, ends, failures, output, cancels and limits, until the daemon is gone.
fn busy(rig: &Rig, round: u32) -> JoinHandle<()> {
    let wire = rig.wire().without_updates();
    let work = rig.scratch.work().to_str().unwrap().to_owned();
    std::thread::spawn(move || {
        let client = wire.client.clone();
        let work = async {
            for n in 0..2 {
                let id = format!("r{round}-talks{n}");
                let script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done";
                client.submit(submit(&id, &work, script)).await.ok()?;
            }
            for n in 0..u64::MAX {
                let id = format!("r{round}-{n}");
                let script = format!("echo {id}; exit {}", n % 2);
                let submitted = client.submit(submit(&id, &work, &script));
                if n % 5 == 4 {
                    // A cancel that may come too late.
                    submitted.await.ok()?;
                    drop(client.cancel(&id).await);
                    client.set_limit(4 + u8::try_from(n % 3).unwrap()).await.ok()?;
                } else {
                    submitted.await.ok()?;
                }
            }
            Some(())
        };
        wire.block_on(work);
    })
}

/// no event that a client saw is taken back or becomes another one by a `kill -9`, at whatever
/// moment, and by all that follow.
#[test]
fn r_37_r_60_what_a_client_saw_before_a_kill_is_what_later_starts_tell() {
    let mut rig = Rig::configured("[tasks]\nlimit = 6\n");
    let mut seen = Events::new();
    for round in 0..rounds(ROUNDS) {
        let known = seen.last_key_value().map_or(0, |(sequence, _)| *sequence);
        let watcher = Watcher::start(&rig.scratch.socket(), known);
        let busy = busy(&rig, round);
        // A random moment, counted in what was told; in every other round output is among it.
        let moment = 5 + u64::from_str_radix(&random_hex()[..4], 16).unwrap() % 120;
        let tails = u64::from(round % 2 == 0);
        eprintln!("round {round}: killed after {moment} events");
        wait_until("enough was told", PATIENCE, || {
            watcher.count.load(Ordering::Relaxed) >= moment
                && watcher.running_tails.load(Ordering::Relaxed) >= tails
        });
        rig.signal_daemon(Signal::KILL);
        rig.daemon_ended(PATIENCE);
        busy.join().unwrap();
        seen.append(&mut watcher.end());
        assert!(seen.keys().copied().eq(1..=seen.len() as u64), "no gap");

        rig.start_daemon();
        let again = replay(&rig);
        for (sequence, text) in &seen {
            let told = again.get(sequence);
            let told = told.unwrap_or_else(|| panic!("{sequence} was told and is gone: {text}"));
            assert_same(text, told);
        }
        // What this start adds counts from now on as well.
        seen = again;
    }
    let statuses: Vec<String> = seen.values().map(|text| parted(text).1).collect();
    for status in [TaskStatus::Completed, TaskStatus::Failed, TaskStatus::Interrupted] {
        let name = serde_json::to_string(&status).unwrap();
        assert!(statuses.iter().any(|text| text.contains(&name)), "no {name} was told");
    }
    rig.assert_gone_within(PATIENCE);
}
