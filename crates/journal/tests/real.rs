//! The journal on the real file system.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use camino::{Utf8Path, Utf8PathBuf};
use ostler_journal::{Journal, OpenError, Opened, Options, RealDisk, Visit, batch_cost, verify};

fn small() -> Options {
    Options {
        segment_bytes: 4096,
        record_bytes_max: 2000,
        snapshot_bytes_max: 10_000,
        total_bytes_max: 4096 * 64,
        events_keep: 20,
        events_bytes_keep: 6000,
    }
}

struct Dir {
    _temp: tempfile::TempDir,
    path: Utf8PathBuf,
}

fn dir() -> Dir {
    let temp = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(temp.path().join("journal")).unwrap();
    Dir { _temp: temp, path }
}

type Seen = (Option<(u64, Vec<u8>)>, Vec<(u64, Vec<u8>)>);

fn open(path: &Utf8Path, options: Options) -> Result<(Opened<RealDisk>, Seen), OpenError> {
    let mut seen: Seen = (None, Vec::new());
    let opened = Journal::open(RealDisk::new(), path, options, &mut |visit| {
        match visit {
            Visit::Snapshot { sequence, payload } => seen.0 = Some((sequence, payload.to_vec())),
            Visit::Entry(entry) => seen.1.push((entry.sequence, entry.payload.to_vec())),
        }
        Ok(())
    })?;
    Ok((opened, seen))
}

fn payload(sequence: u64) -> Vec<u8> {
    let mut bytes = format!("record {sequence} ").into_bytes();
    bytes.resize(20 + (sequence as usize * 37) % 400, b'x');
    bytes
}

#[test]
fn appended_records_come_back_over_rotations_and_snapshots() {
    let dir = dir();
    let (opened, seen) = open(&dir.path, small()).unwrap();
    assert_eq!(seen, (None, vec![]));
    assert_eq!((opened.first_sequence, opened.last_sequence), (1, 0));
    let mut journal = opened.journal;
    let mut last = 0;
    for round in 0..60_u64 {
        let batch: Vec<Vec<u8>> = (1..=round % 5 + 1).map(|n| payload(last + n)).collect();
        let refs: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
        last = journal.append(&refs).unwrap();
        journal.ensure_room().unwrap();
        if round % 17 == 16 {
            journal.install_snapshot(format!("state at {last}").as_bytes()).unwrap();
            assert_eq!(journal.bytes_since_snapshot(), 0);
        }
    }
    let first = journal.first_sequence();
    assert!(first > 1, "retention dropped segments");
    let infos = journal.segments();
    drop(journal);
    let report = verify(&dir.path, &small()).unwrap();
    assert_eq!((report.first_sequence, report.last_sequence), (first, last));
    assert_eq!(report.segments, infos);
    assert_eq!(report.warnings, vec![]);
    let (opened, seen) = open(&dir.path, small()).unwrap();
    assert_eq!(opened.warnings, vec![]);
    assert_eq!((opened.first_sequence, opened.last_sequence), (first, last));
    let expected: Vec<_> = (first..=last).map(|n| (n, payload(n))).collect();
    assert_eq!(seen.1, expected);
    let (at, state) = seen.0.unwrap();
    assert_eq!(state, format!("state at {at}").into_bytes());
    assert_eq!(opened.journal.segments(), infos);
    let mut journal = opened.journal;
    assert_eq!(journal.append(&[b"more"]).unwrap(), last + 1);
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_gone() {
    let dir = dir();
    let (first, _) = open(&dir.path, small()).unwrap();
    let refused = open(&dir.path, small()).unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    drop(first);
    open(&dir.path, small()).unwrap();
}

#[test]
fn an_append_costs_what_batch_cost_says_and_bounds_are_kept() {
    let dir = dir();
    let (opened, _) = open(&dir.path, small()).unwrap();
    let mut journal = opened.journal;
    assert_eq!(journal.room(), 0);
    let room = journal.ensure_room().unwrap();
    assert_eq!(room, journal.batch_bytes_max());
    journal.append(&[&[7; 100], &[8; 51]]).unwrap();
    assert_eq!(journal.room(), room - batch_cost(2, 151));
    assert!(journal.append(&[&[0; 2001]]).is_err());
    assert!(journal.append(&[&[0; 2000], &[0; 2000], &[0; 50]]).is_err());
    assert_eq!(journal.last_sequence(), 2);
    assert!(!journal.is_poisoned());
}
