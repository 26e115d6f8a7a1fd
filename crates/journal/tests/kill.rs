//! A real process on the real disk, ended by SIGKILL at a random moment, again and again; and a
//! reader beside a writer.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use camino::{Utf8Path, Utf8PathBuf};
use ostler_journal::{Journal, OpenError, Opened, Options, RealDisk, Visit, read};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

const DIR_ENV: &str = "OSTLER_JOURNAL_TEST_DIR";
const LOOPS: u64 = 40;

fn small() -> Options {
    Options {
        segment_bytes: 64 * 1024,
        record_bytes_max: 20_000,
        snapshot_bytes_max: 100_000,
        total_bytes_max: 64 * 1024 * 64,
        events_keep: 200,
        events_bytes_keep: 300_000,
    }
}

/// The payload of a record follows from its number, so that a reader can tell.
fn payload(sequence: u64) -> Vec<u8> {
    let mut bytes = format!("{sequence}:").into_bytes();
    bytes.resize(30 + (sequence as usize * 7919) % 1200, b'a' + (sequence % 26) as u8);
    bytes
}

/// Opens and checks that every record is what was submitted under its number.
fn open(dir: &Utf8Path) -> Result<(Opened<RealDisk>, u64), OpenError> {
    let mut count = 0;
    let opened = Journal::open(RealDisk::new(), dir, small(), &mut |visit| {
        check(&visit);
        count += u64::from(matches!(visit, Visit::Entry(_)));
        Ok(())
    })?;
    assert_eq!(count, opened.last_sequence + 1 - opened.first_sequence);
    Ok((opened, count))
}

fn check(visit: &Visit<'_>) {
    match visit {
        Visit::Entry(entry) => assert!(entry.payload == payload(entry.sequence)),
        Visit::Snapshot { sequence, payload } => {
            assert_eq!(*payload, format!("state {sequence}").as_bytes());
        }
    }
}

/// Appends for ever and reports each acknowledged number. Only as a child of the test below.
#[test]
#[ignore = "the child process of another test"]
fn child_appends_until_killed() {
    let Ok(dir) = std::env::var(DIR_ENV) else {
        return;
    };
    let mut journal = open(Utf8Path::new(&dir)).unwrap().0.journal;
    let mut out = std::io::stdout().lock();
    for round in 0_u64.. {
        let last = journal.last_sequence();
        let batch: Vec<_> = (1..=1 + round % 9).map(|n| payload(last + n)).collect();
        let batch: Vec<_> = batch.iter().map(Vec::as_slice).collect();
        let last = journal.append(&batch).unwrap();
        // The parent is gone when this fails.
        if writeln!(out, "acknowledged {last}").and_then(|()| out.flush()).is_err() {
            return;
        }
        if round % 3 == 0 {
            journal.ensure_room().unwrap();
        }
        if round % 20 == 19 {
            journal.install_snapshot(format!("state {last}").as_bytes()).unwrap();
        }
    }
}

#[test]
fn killed_processes_lose_nothing_they_acknowledged() {
    let temp = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(temp.path().join("journal")).unwrap();
    let mut acknowledged = 0;
    for round in 0..LOOPS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_appends_until_killed", "--ignored", "--nocapture"])
            .env(DIR_ENV, &dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // After some acknowledgements, at whatever it is doing by then.
        let mut wanted = 1 + (round * 13) % 60;
        for line in lines.map_while(Result::ok) {
            if let Some(number) = line.strip_prefix("acknowledged ") {
                acknowledged = number.parse().unwrap();
                wanted = wanted.saturating_sub(1);
                if wanted == 0 {
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        let (opened, _) = open(&dir).unwrap();
        assert!(opened.last_sequence >= acknowledged, "round {round}");
        assert!(opened.last_sequence <= acknowledged + 9, "round {round}");
    }
    assert!(acknowledged > LOOPS * 5);
}

/// Ends the writer also when the reader panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_reader_beside_a_writer_sees_whole_records_in_order() {
    let temp = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(temp.path().join("journal")).unwrap();
    let mut journal = open(&dir).unwrap().0.journal;
    journal.append(&[&payload(1)]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops_the_writer = StopOnDrop(&stop);
        scope.spawn(|| {
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let last = journal.last_sequence();
                let batch: Vec<_> = (1..=1 + round % 9).map(|n| payload(last + n)).collect();
                let batch: Vec<_> = batch.iter().map(Vec::as_slice).collect();
                let last = journal.append(&batch).unwrap();
                if round % 50 == 49 {
                    journal.install_snapshot(format!("state {last}").as_bytes()).unwrap();
                }
            }
        });
        let mut newest = 0;
        for _ in 0..300 {
            let mut next = None;
            let report = read(&dir, &small(), &mut |visit| {
                check(&visit);
                if let Visit::Entry(entry) = visit {
                    assert_eq!(entry.sequence, next.unwrap_or(entry.sequence));
                    next = Some(entry.sequence + 1);
                }
                Ok(())
            });
            let report = report.unwrap();
            assert!(report.last_sequence >= newest);
            newest = report.last_sequence;
        }
        assert!(newest > 1, "the writer was at work");
    });
}
