//! A full disk: what was guaranteed is kept, new space is refused, and all goes on later.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use ostler_journal::fake::{FakeDisk, Loss};
use ostler_journal::{
    AppendError, Full, Journal, OpenError, Options, SEGMENT_FILES_FOUND_MAX, SEGMENT_FILES_MAX,
    Visit, batch_cost,
};

fn small() -> Options {
    Options {
        segment_bytes: 4096,
        record_bytes_max: 2000,
        snapshot_bytes_max: 10_000,
        total_bytes_max: 4096 * 8,
        events_keep: 5,
        events_bytes_keep: 6000,
    }
}

fn open(disk: &FakeDisk) -> (Journal<FakeDisk>, Vec<u64>, Option<Vec<u8>>) {
    let mut sequences = Vec::new();
    let mut snapshot = None;
    let opened = Journal::open(disk.clone(), "/j".into(), small(), &mut |visit| {
        match visit {
            Visit::Entry(entry) => sequences.push(entry.sequence),
            Visit::Snapshot { payload, .. } => snapshot = Some(payload.to_vec()),
        }
        Ok(())
    });
    (opened.unwrap().journal, sequences, snapshot)
}

fn is_full(error: &AppendError) -> bool {
    matches!(error, AppendError::Full(Full::Disk { .. }))
}

#[test]
fn a_full_disk_takes_what_room_promised_and_refuses_the_rest() {
    // Cut the promised room into appends in many ways, from every filling of the active segment.
    for start in (0..3900).step_by(130) {
        for piece in [1, 8, 100, 333, 900, 1999] {
            let disk = FakeDisk::new();
            let (mut journal, ..) = open(&disk);
            journal
                .append(&[&vec![1; start.min(2000)], &vec![1; start.saturating_sub(2000)]])
                .unwrap();
            let room = journal.ensure_room().unwrap();
            disk.set_free_bytes(Some(100));
            let mut spent = 0;
            while spent + batch_cost(1, piece) <= room {
                journal.append(&[&vec![2; piece as usize]]).unwrap();
                spent += batch_cost(1, piece);
            }
            let last = journal.last_sequence();
            // Up to the rest of the segment more may fit; then it is refused, again and again.
            let error = (0..1000).find_map(|_| journal.append(&[&[3; 1999]]).err()).unwrap();
            assert!(is_full(&error), "{error}");
            assert!(is_full(&journal.ensure_room().unwrap_err()));
            assert!(!journal.is_poisoned() && journal.last_sequence() >= last);
            assert!(!disk.tree().contains_key("segment.tmp"), "what was begun is cleared away");
            disk.set_free_bytes(Some(4096));
            assert!(journal.ensure_room().unwrap() >= journal.batch_bytes_max());
            let last = journal.append(&[&[4; 1999]]).unwrap();
            drop(journal);
            disk.power_cut(Loss::Everything);
            assert_eq!(open(&disk).1, (1..=last).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_snapshot_without_space_keeps_the_old_one() {
    let disk = FakeDisk::new();
    let (mut journal, ..) = open(&disk);
    journal.append(&[b"a", b"b"]).unwrap();
    journal.install_snapshot(b"old").unwrap();
    journal.append(&[b"c"]).unwrap();
    disk.set_free_bytes(Some(600));
    let error = journal.install_snapshot(&[7; 5000]).unwrap_err();
    assert!(!error.is_poisoning() && !journal.is_poisoned(), "{error}");
    assert!(journal.install_snapshot(&[7; 10_001]).is_err(), "above its bound");
    assert_eq!(journal.snapshot_sequence(), Some(2));
    journal.append(&[b"d"]).unwrap();
    disk.power_cut(Loss::Everything);
    drop(journal);
    let (mut journal, sequences, snapshot) = open(&disk);
    assert_eq!((sequences, snapshot), (vec![1, 2, 3, 4], Some(b"old".to_vec())));
    disk.set_free_bytes(None);
    journal.install_snapshot(&[7; 5000]).unwrap();
    drop(journal);
    assert_eq!(open(&disk).2, Some(vec![7; 5000]));
}

#[test]
fn the_bound_of_all_segments_is_kept_until_a_snapshot_frees_some() {
    let disk = FakeDisk::new();
    let (mut journal, ..) = open(&disk);
    let error = (0..100).find_map(|_| journal.append(&[&[1; 1500]]).err()).unwrap();
    assert!(matches!(error, AppendError::Full(Full::Bound { bytes_max: 32_768 })), "{error}");
    assert_eq!(journal.segments().len(), 8);
    journal.install_snapshot(b"state").unwrap();
    assert!(journal.segments().len() < 4);
    journal.append(&[&[1; 1500]]).unwrap();
}

#[test]
fn segments_below_a_record_go_and_stay_gone_and_nothing_else_may() {
    let disk = FakeDisk::new();
    let (mut journal, ..) = open(&disk);
    for _ in 0..10 {
        journal.append(&[&[1; 1500]]).unwrap();
    }
    journal.remove_segments_below(6).unwrap();
    let (first, last) = (journal.first_sequence(), journal.last_sequence());
    assert!(first > 1 && first <= 6 && last == 10);
    drop(journal);
    disk.power_cut(Loss::Everything);
    let (mut journal, sequences, snapshot) = open(&disk);
    assert_eq!(sequences, (first..=10).collect::<Vec<_>>());
    assert_eq!(snapshot, Some(vec![]));
    journal.append(&[b"more"]).unwrap();
    let oldest = journal.segments()[0].number;
    drop(journal);
    disk.take(&format!("segment-{oldest:020}.log"));
    let error = Journal::open(disk.clone(), "/j".into(), small(), &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    let (mut journal, ..) = open(&FakeDisk::new());
    journal.append(&[b"x"]).unwrap();
    journal.install_snapshot(b"state").unwrap();
    assert!(journal.remove_segments_below(1).is_err());
}

/// Segments of one page each, so many that only the number of files is in the way.
fn many() -> Options {
    Options { total_bytes_max: 4096 * 10_000, ..small() }
}

#[test]
fn no_more_files_are_made_than_may_be_and_a_start_takes_them_all() {
    let disk = FakeDisk::new();
    let mut journal =
        Journal::open(disk.clone(), "/j".into(), many(), &mut |_| Ok(())).unwrap().journal;
    let error = (0..2_000).find_map(|_| journal.append(&[&[1; 1999]]).err()).unwrap();
    let full = matches!(error, AppendError::Full(Full::Files { files_max: SEGMENT_FILES_MAX }));
    assert!(full, "{error}");
    assert_eq!(journal.files(), SEGMENT_FILES_MAX);
    assert!(!journal.is_poisoned());
    let last = journal.last_sequence();
    drop(journal);
    let opened = Journal::open(disk.clone(), "/j".into(), many(), &mut |_| Ok(())).unwrap();
    let mut journal = opened.journal;
    assert_eq!(journal.last_sequence(), last);
    // Old ones go, and it goes on.
    journal.remove_segments_below(last / 2).unwrap();
    journal.append(&[&[1; 1999]]).unwrap();
}

#[test]
fn a_snapshot_makes_way_where_smaller_segments_fill_the_number_of_files() {
    let options = Options { events_keep: u64::MAX, events_bytes_keep: u64::MAX, ..many() };
    let disk = FakeDisk::new();
    let mut journal =
        Journal::open(disk.clone(), "/j".into(), options, &mut |_| Ok(())).unwrap().journal;
    (0..2_000).find_map(|_| journal.append(&[&[1; 1999]]).err()).unwrap();
    journal.install_snapshot(b"state").unwrap();
    assert_eq!(journal.files(), SEGMENT_FILES_MAX / 2);
    journal.append(&[&[1; 1999]]).unwrap();
}

/// What earlier versions left: they made as many files as fitted the bound of bytes.
#[test]
fn a_start_takes_more_files_than_are_made_today_and_names_the_bound_beyond() {
    let disk = FakeDisk::new();
    let mut journal =
        Journal::open(disk.clone(), "/j".into(), many(), &mut |_| Ok(())).unwrap().journal;
    let error = (0..2_000).find_map(|_| journal.append(&[&[1; 1999]]).err()).unwrap();
    assert!(matches!(error, AppendError::Full(_)));
    let (last, number) = (journal.last_sequence(), journal.segments().last().unwrap().number);
    drop(journal);
    let put = |number: u64| disk.put(&format!("segment-{number:020}.log"), vec![0; 4096]);
    let found = SEGMENT_FILES_MAX as u64;
    (1..=SEGMENT_FILES_FOUND_MAX as u64 - found).for_each(|n| put(number + n));
    let opened = Journal::open(disk.clone(), "/j".into(), many(), &mut |_| Ok(())).unwrap();
    assert_eq!(opened.last_sequence, last);
    drop(opened);
    (1..=SEGMENT_FILES_FOUND_MAX as u64 - found + 1).for_each(|n| {
        disk.put(&format!("segment-{:020}.log", number + n), vec![0; 4096]);
    });
    let error = Journal::open(disk.clone(), "/j".into(), many(), &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, OpenError::Crowded { .. }), "{error}");
    assert!(error.hint().contains("move it away"), "{}", error.hint());
}
