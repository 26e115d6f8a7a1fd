//! A damaged journal: the start names file, place and reason, and changes nothing.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use camino::Utf8PathBuf;
use ostler_journal::fake::FakeDisk;
use ostler_journal::{
    Journal, Kind, OpenError, Options, RealDisk, SEGMENT_BYTES_MAX, Visit, Warning, read, verify,
};

const RESERVE: &str = "segment-00000000000000000006.log";
const LAST: &str = "segment-00000000000000000005.log";
const MIDDLE: &str = "segment-00000000000000000003.log";
const SNAPSHOT: &str = "snapshot-00000000000000000009.snap";

fn small() -> Options {
    Options {
        segment_bytes: 4096,
        record_bytes_max: 2000,
        snapshot_bytes_max: 10_000,
        total_bytes_max: 4096 * 64,
        events_keep: 100,
        events_bytes_keep: 60_000,
    }
}

type Records = Vec<(u64, Vec<u8>)>;
type Found = (Records, Vec<Warning>);

fn open(disk: &FakeDisk) -> Result<Found, OpenError> {
    let mut records = Vec::new();
    let opened = Journal::open(disk.clone(), "/j".into(), small(), &mut |visit| {
        if let Visit::Entry(entry) = visit {
            records.push((entry.sequence, entry.payload.to_vec()));
        }
        Ok(())
    })?;
    Ok((records, opened.warnings))
}

/// Five segments with records, a snapshot, a reserve. `seed` changes the sizes.
fn closed_journal(seed: usize) -> (FakeDisk, Records) {
    let disk = FakeDisk::new();
    let opened = Journal::open(disk.clone(), "/j".into(), small(), &mut |_| Ok(())).unwrap();
    let mut journal = opened.journal;
    for round in 0..15_usize {
        let payload = vec![b'a' + round as u8; 1000 + (round * 37 + seed) % 200];
        journal.append(&[&payload, b"", &[round as u8; 40]]).unwrap();
        if round == 2 {
            journal.install_snapshot(b"the state").unwrap();
        }
    }
    journal.ensure_room().unwrap();
    drop(journal);
    let (records, warnings) = open(&disk).unwrap();
    assert_eq!((records.len(), warnings.len()), (45, 0));
    (disk, records)
}

/// Opening must fail, and change nothing; the error.
fn refused(disk: &FakeDisk) -> OpenError {
    let before = disk.tree();
    let error = open(disk).map(|(records, _)| records.len()).unwrap_err();
    assert_eq!(disk.tree(), before, "a failed start changes nothing");
    assert!(!error.hint().is_empty());
    error
}

fn corrupt_in(error: &OpenError, name: &str, words: &str) {
    let OpenError::Corrupt { file, reason, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(file.file_name(), Some(name), "{error}");
    assert!(reason.contains(words), "{error}");
}

#[test]
fn r_82_every_single_changed_byte_is_reported_or_harmless() {
    let (disk, records) = closed_journal(0);
    let (mut refusals, mut drops) = (0, 0);
    for (name, bytes) in disk.tree() {
        if name == "journal.lock" {
            continue;
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] = match at % 4 {
                0 => !changed[at],
                1 => changed[at] ^ 1,
                2 => changed[at] ^ 0x80,
                _ if changed[at] == 0 => 0xFB,
                _ => 0,
            };
            let trial = disk.fork();
            trial.put(&name, changed);
            let before = trial.tree();
            match open(&trial) {
                Err(error) => {
                    refusals += 1;
                    assert_eq!(trial.tree(), before);
                    assert!(error.to_string().contains(&name), "{name} at {at}: {error}");
                }
                Ok((found, warnings)) => {
                    drops += 1;
                    assert!(matches!(&warnings[..], [Warning::Torn { .. }]), "{name} at {at}");
                    let unused = is_unused(&name, &bytes, at);
                    let kept = if unused { records.len() } else { records.len() - 3 };
                    // Used space must look as if its end had never arrived.
                    assert!(unused || at + 1 == used(&bytes), "{name} at {at}");
                    assert!(name == LAST || name == RESERVE, "{name} at {at}");
                    assert!(found == records[..kept], "{name} at {at}: {} records", found.len());
                }
            }
        }
    }
    assert!(refusals > 15_000 && drops > 1000, "{refusals} refused, {drops} harmless");
}

#[test]
fn r_82_a_wiped_sector_is_torn_only_inside_the_last_batch() {
    let (disk, records) = closed_journal(0);
    let tree = disk.tree();
    let mark = [0xFB, b'O', b'B', 0xFD];
    let last_batch = tree[LAST].windows(4).rposition(|four| four == mark).unwrap();
    let (mut refusals, mut drops) = (0, 0);
    for (name, bytes) in tree.iter().filter(|(name, _)| *name != SNAPSHOT) {
        for at in (0..bytes.len()).step_by(512) {
            let mut wiped = bytes.clone();
            wiped[at..at + 512].fill(0);
            if wiped == *bytes {
                continue;
            }
            let trial = disk.fork();
            trial.put(name, wiped);
            if name == LAST && at >= last_batch {
                drops += 1;
                assert!(open(&trial).unwrap().0 == records[..records.len() - 3]);
            } else {
                refusals += 1;
                assert!(refused(&trial).to_string().contains(name));
            }
        }
    }
    assert!(refusals > 30 && drops > 0, "{refusals} refused, {drops} torn");
}

fn is_unused(name: &str, bytes: &[u8], at: usize) -> bool {
    name == RESERVE || at >= used(bytes)
}

fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// A name, the damage, the file that is named and words of the reason.
type Case<'a> = (&'a str, &'a dyn Fn(&FakeDisk), &'a str, &'a str);

#[test]
fn r_82_gaps_repeats_and_strangers_are_refused() {
    let cases: [Case; 10] = [
        ("a missing segment", &|disk| disk.take(MIDDLE), MIDDLE, "missing"),
        (
            "the first missing",
            &|disk| disk.take("segment-00000000000000000001.log"),
            "segment-00000000000000000002.log",
            "records from 1 to",
        ),
        ("the last missing", &|disk| disk.take(LAST), LAST, "missing"),
        (
            "all missing",
            &|disk| {
                for number in 1..=6 {
                    disk.take(&format!("segment-0000000000000000000{number}.log"));
                }
            },
            SNAPSHOT,
            "the snapshot covers record 9 and the records end at 0",
        ),
        (
            "a copy under another number",
            &|disk| {
                let copy = disk.tree()[LAST].clone();
                disk.put(RESERVE, copy);
            },
            RESERVE,
            "named 6 and holds segment 5",
        ),
        (
            "another journal's segment, later",
            &|disk| {
                disk.put(MIDDLE, stranger(300));
            },
            MIDDLE,
            "gap",
        ),
        (
            "another journal's segment, earlier",
            &|disk| {
                disk.put(MIDDLE, stranger(1900));
            },
            MIDDLE,
            "repeat",
        ),
        (
            "a cut segment",
            &|disk| {
                let mut bytes = disk.tree()[LAST].clone();
                bytes.truncate(4000);
                disk.put(LAST, bytes);
            },
            LAST,
            "shorter",
        ),
        ("an odd name", &|disk| disk.put("segment-7.log", vec![]), "segment-7.log", "name"),
        (
            "a snapshot under another number",
            &|disk| {
                let copy = disk.tree()[SNAPSHOT].clone();
                disk.put("snapshot-00000000000000000012.snap", copy);
            },
            "snapshot-00000000000000000012.snap",
            "name",
        ),
    ];
    for (case, damage, file, words) in cases {
        let (disk, _) = closed_journal(0);
        damage(&disk);
        let error = refused(&disk);
        println!("{case}: {error}");
        corrupt_in(&error, file, words);
    }
}

/// The third segment of a journal with records of another size.
fn stranger(bytes: usize) -> Vec<u8> {
    let disk = FakeDisk::new();
    let opened = Journal::open(disk.clone(), "/j".into(), small(), &mut |_| Ok(())).unwrap();
    let mut journal = opened.journal;
    for _ in 0..40 {
        journal.append(&[&vec![b'z'; bytes]]).unwrap();
    }
    disk.tree()[MIDDLE].clone()
}

#[test]
fn r_84_links_foreign_files_and_other_kinds_are_refused() {
    for name in [MIDDLE, SNAPSHOT, "journal.lock", "segment.tmp"] {
        for (kind, owned, words) in [
            (Kind::Link, true, "is a link"),
            (Kind::Dir, true, "is not a regular file"),
            (Kind::Other, true, "is not a regular file"),
            (Kind::File, false, "belongs to another user"),
        ] {
            let (disk, _) = closed_journal(0);
            let bytes = disk.tree().get(name).cloned().unwrap_or_default();
            disk.put_kind(name, bytes, kind, owned);
            let error = refused(&disk);
            assert!(matches!(error, OpenError::Unsafe { .. }));
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(words), "{text}");
        }
    }
}

#[test]
fn r_83_what_is_above_its_bound_is_refused_before_it_is_read() {
    let (disk, _) = closed_journal(0);
    disk.put("snapshot-00000000000000000012.snap", vec![0; 10_069]);
    let calls = disk.calls();
    assert!(matches!(refused(&disk), OpenError::Oversized { bytes: 10_069, .. }));
    assert!(disk.calls() - calls < 40, "nothing was read");
    let (disk, _) = closed_journal(0);
    for number in 7..=65 {
        disk.put(&format!("segment-{number:020}.log"), vec![0; 4096]);
    }
    let error = refused(&disk);
    let bytes_max = 64 * 4096;
    assert!(matches!(error, OpenError::Oversized { bytes_max: max, .. } if max == bytes_max));
}

#[test]
fn another_format_version_is_named() {
    for name in [MIDDLE, SNAPSHOT] {
        let (disk, _) = closed_journal(0);
        let mut bytes = disk.tree()[name].clone();
        bytes[8] = 2;
        disk.put(name, bytes);
        let error = refused(&disk);
        assert!(matches!(error, OpenError::Version { found: 2, known: 1, .. }), "{error}");
        assert!(error.to_string().contains(name));
    }
}

#[test]
fn leftovers_go_and_strange_files_stay() {
    let (disk, records) = closed_journal(0);
    disk.put("segment.tmp", vec![1; 100]);
    disk.put("snapshot.tmp", vec![2; 100]);
    disk.put("snapshot-00000000000000000001.snap", vec![3; 100]);
    disk.put("notes.txt", b"mine".to_vec());
    let (found, warnings) = open(&disk).unwrap();
    assert!(found == records);
    assert_eq!(warnings.len(), 4, "{warnings:?}");
    let tree = disk.tree();
    assert!(tree.contains_key("notes.txt"));
    assert!(!tree.keys().any(|name| name.ends_with(".tmp") || name.ends_with("01.snap")));
}

#[test]
fn r_82_a_record_its_owner_cannot_take_stops_the_start() {
    let (disk, _) = closed_journal(0);
    let before = disk.tree();
    let error = Journal::open(disk.clone(), "/j".into(), small(), &mut |visit| match visit {
        Visit::Entry(entry) if entry.sequence == 17 => Err("no such task".to_owned()),
        _ => Ok(()),
    })
    .unwrap_err();
    assert_eq!(disk.tree(), before);
    assert!(matches!(error, OpenError::Rejected { sequence: 17, .. }), "{error}");
    assert!(error.to_string().contains("no such task"));
}

#[test]
fn r_82_r_84_on_the_real_disk_a_failed_start_changes_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(temp.path().join("journal")).unwrap();
    let (fake, records) = closed_journal(0);
    std::fs::create_dir(&dir).unwrap();
    for (name, bytes) in fake.tree() {
        if name != "journal.lock" {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
    }
    let names = || {
        let mut names: Vec<_> =
            dir.read_dir_utf8().unwrap().map(|e| e.unwrap().into_path()).collect();
        names.sort();
        names
    };
    let before = names();
    let open = || Journal::open(RealDisk::new(), &dir, small(), &mut |_| Ok(()));

    std::fs::rename(dir.join(MIDDLE), temp.path().join("aside")).unwrap();
    std::os::unix::fs::symlink(temp.path().join("aside"), dir.join(MIDDLE)).unwrap();
    let error = open().unwrap_err();
    assert!(error.to_string().contains("is a link"), "{error}");
    assert!(verify(&dir, &small()).is_err());
    std::fs::remove_file(dir.join(MIDDLE)).unwrap();
    std::fs::rename(temp.path().join("aside"), dir.join(MIDDLE)).unwrap();
    assert_eq!(names(), before, "not even a lock file is left");

    let huge = dir.join("segment-00000000000000000007.log");
    std::fs::File::create(&huge).unwrap().set_len(SEGMENT_BYTES_MAX + 1).unwrap();
    assert!(matches!(open().unwrap_err(), OpenError::Oversized { .. }));
    std::fs::remove_file(&huge).unwrap();
    assert_eq!(names(), before);

    let link = Utf8PathBuf::from_path_buf(temp.path().join("link")).unwrap();
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    let error = Journal::open(RealDisk::new(), &link, small(), &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("is a link"), "{error}");

    let mut found = Vec::new();
    let report = read(&dir, &small(), &mut |visit| {
        if let Visit::Entry(entry) = visit {
            found.push((entry.sequence, entry.payload.to_vec()));
        }
        Ok(())
    });
    assert_eq!(report.unwrap().records, 45);
    assert!(found == records, "r_86: a copy is a whole backup");
    drop(open().unwrap());
    let mode = |path: &Utf8PathBuf| {
        use std::os::unix::fs::PermissionsExt;
        path.metadata().unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode(&dir), 0o700);
    assert!(names().iter().all(|path| mode(path) == 0o600));
}
