//! The journal on the real file system.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use camino::{Utf8Path, Utf8PathBuf};
use ostler_journal::{
    Journal, OpenError, Opened, Options, Place, RealDisk, SegmentFile, Visit, batch_cost, read,
    verify,
};

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

/// The places of all entries, as a visit shows them.
fn places(seen: &mut Vec<(u64, Place)>, visit: Visit<'_>) -> Result<(), String> {
    if let Visit::Entry(entry) = visit {
        assert_eq!(entry.payload.len(), entry.place.bytes as usize);
        seen.push((entry.sequence, entry.place));
    }
    Ok(())
}

/// Reads every entry again by its place, through one handle a segment.
fn assert_read_again(files: &[(u64, SegmentFile)], seen: &[(u64, Place)]) {
    for (sequence, place) in seen {
        let (_, file) = files.iter().find(|(number, _)| *number == place.segment).unwrap();
        assert_eq!(file.read(*place).unwrap(), payload(*sequence), "record {sequence}");
    }
}

/// Each entry is read again by its place: those of single and of joined batches, of every segment, after the
/// segment has been removed, and while the writer goes on in the last one.
#[test]
fn entries_are_read_again_by_their_places_also_after_their_segment_is_removed() {
    let dir = dir();
    let (opened, _) = open(&dir.path, small()).unwrap();
    let mut journal = opened.journal;
    let mut last = 0;
    let mut append = |journal: &mut Journal<RealDisk>, batches: u64| {
        for round in 0..batches {
            let batch: Vec<Vec<u8>> = (1..=round % 4 + 1).map(|n| payload(last + n)).collect();
            let refs: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
            last = journal.append(&refs).unwrap();
        }
        last
    };
    append(&mut journal, 40);
    drop(journal);

    let mut seen = Vec::new();
    let opened =
        Journal::open(RealDisk::new(), &dir.path, small(), &mut |visit| places(&mut seen, visit));
    let mut journal = opened.unwrap().journal;
    let segments = journal.segments();
    assert!(segments.len() > 3, "{segments:?}");
    assert_eq!(seen.len() as u64, journal.last_sequence());
    let mut by_reading = Vec::new();
    read(&dir.path, &small(), &mut |visit| places(&mut by_reading, visit)).unwrap();
    assert_eq!(by_reading, seen, "a reader and a writer are shown the same places");
    let open_file = |number| (number, SegmentFile::open(&dir.path, number).unwrap());
    let files: Vec<_> = segments.iter().map(|segment| open_file(segment.number)).collect();
    assert_read_again(&files, &seen);

    let kept = segments.last().unwrap();
    append(&mut journal, 1);
    journal.remove_segments_below(kept.first_sequence).unwrap();
    assert!(SegmentFile::open(&dir.path, segments[0].number).is_err(), "it is removed");
    append(&mut journal, 40);
    assert_read_again(&files, &seen);

    // A place beyond the end of the file is an error, and no payload of zeros.
    let place = Place { offset: segments[0].bytes - 1, ..seen[0].1 };
    assert_eq!(files[0].1.read(place).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    assert!(SegmentFile::open(&dir.path, u64::MAX).is_err());
}
