//! Entry points for fuzzing the reader: plain functions over arbitrary bytes. They panic when a
//! promise is broken: no panic inside, a failed start changes nothing, a start that went well can
//! go on and be repeated.

use crate::fake::{FakeDisk, Loss};
use crate::format::{BATCH_FOOTER_BYTES, BATCH_MAGIC, BATCH_TRAILER, SegmentHeader};
use crate::journal::Journal;
use crate::names::{segment_name, snapshot_name};
use crate::options::{Options, SEGMENT_BYTES_MIN};
use crate::read::read_from;
use crate::recover::Visit;
use camino::Utf8Path;

type Records = Vec<(u64, Vec<u8>)>;

fn options() -> Options {
    Options {
        segment_bytes: SEGMENT_BYTES_MIN,
        record_bytes_max: 2000,
        snapshot_bytes_max: 10_000,
        total_bytes_max: SEGMENT_BYTES_MIN * 64,
        events_keep: 20,
        events_bytes_keep: 6000,
    }
}

fn open(disk: &FakeDisk) -> Option<(Journal<FakeDisk>, Records)> {
    let mut records = Vec::new();
    let dir = Utf8Path::new("/j");
    let opened = Journal::open(disk.clone(), dir, options(), &mut |visit| {
        if let Visit::Entry(entry) = visit {
            records.push((entry.sequence, entry.payload.to_vec()));
        }
        Ok(())
    });
    Some((opened.ok()?.journal, records))
}

/// Opens whatever lies there and holds the promises; the records found, if it opened.
fn check(disk: &FakeDisk) -> Option<Records> {
    let before = disk.tree();
    let _report = read_from(&mut disk.clone(), "/j".into(), &options(), &mut |_| Ok(()));
    assert_eq!(disk.tree(), before, "reading changed something");
    let Some((mut journal, records)) = open(disk) else {
        let mut after = disk.tree();
        after.retain(|name, _| before.contains_key(name) || name != "journal.lock");
        assert_eq!(after, before, "a failed start changed something");
        return None;
    };
    if journal.append(&[b"one more"]).is_err() {
        return Some(records);
    }
    let last = journal.last_sequence();
    drop(journal);
    disk.power_cut(Loss::Everything);
    let again = open(disk).map(|(_, records)| records).unwrap_or_default();
    let mut expected = records.clone();
    expected.push((last, b"one more".to_vec()));
    assert_eq!(again, expected, "what was opened did not go on");
    Some(records)
}

/// `data` is the first segment, filled up with zeros.
pub fn fuzz_segment(data: &[u8]) {
    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().max(SEGMENT_BYTES_MIN as usize), 0);
    let disk = FakeDisk::new();
    disk.put(&segment_name(1), bytes);
    let _records = check(&disk);
}

/// `data` is the fields and body of one batch, with right marks and checksums around them.
pub fn fuzz_batch(data: &[u8]) {
    let header = SegmentHeader { number: 1, first_sequence: 1, file_bytes: SEGMENT_BYTES_MIN };
    let mut bytes = header.encode().to_vec();
    let (fields, body) = data.split_at(data.len().min(16));
    let start = bytes.len();
    bytes.extend_from_slice(&BATCH_MAGIC);
    bytes.extend_from_slice(fields);
    bytes.resize(start + 20, 0);
    let seal = crc32c::crc32c(bytes.get(start..).unwrap_or_default());
    bytes.extend_from_slice(&seal.to_le_bytes());
    bytes.extend_from_slice(body.get(..body.len().min(3000)).unwrap_or_default());
    bytes.resize((bytes.len() + BATCH_FOOTER_BYTES).next_multiple_of(8) - BATCH_FOOTER_BYTES, 0);
    let seal = crc32c::crc32c(bytes.get(start..).unwrap_or_default());
    bytes.extend_from_slice(&seal.to_le_bytes());
    bytes.extend_from_slice(&BATCH_TRAILER);
    fuzz_segment(&bytes);
}

/// `data` is the snapshot of an otherwise good journal.
pub fn fuzz_snapshot(data: &[u8]) {
    let (disk, _) = good();
    disk.take(&snapshot_name(9));
    disk.put(&snapshot_name(9), data.to_vec());
    let _records = check(&disk);
}

/// `data` is a list of edits to a good journal: file, offset (two bytes), new value. What opens
/// then holds only records that were there before.
pub fn fuzz_edits(data: &[u8]) {
    let (disk, records) = good();
    let mut tree = disk.tree();
    for edit in data.chunks_exact(4) {
        let [file, high, low, value] = edit else { continue };
        let at = usize::from(u16::from_be_bytes([*high, *low]));
        let files = tree.len();
        let Some(bytes) = tree.values_mut().nth(usize::from(*file) % files) else {
            continue;
        };
        let length = bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at % length) {
            *byte = *value;
        }
    }
    for (name, bytes) in tree {
        disk.put(&name, bytes);
    }
    if let Some(found) = check(&disk) {
        let kept = records.get(..found.len()).unwrap_or_default();
        assert!(kept == found, "records that were never written");
    }
}

/// A journal of several segments, a snapshot and a reserve, and its records.
fn good() -> (FakeDisk, Records) {
    let disk = FakeDisk::new();
    if let Some((mut journal, _)) = open(&disk) {
        for round in 0..14_u8 {
            let payload = vec![b'a' + round; 700];
            let _appended = journal.append(&[&payload, b"", &[round; 40]]);
            if round == 2 {
                let _installed = journal.install_snapshot(b"the state");
            }
        }
        let _room = journal.ensure_room();
    }
    let records = open(&disk).map(|(_, records)| records).unwrap_or_default();
    (disk, records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_good_journal_opens() {
        let (disk, records) = good();
        assert_eq!(records.len(), 14 * 3);
        assert_eq!(disk.tree().len(), 6, "{:?}", disk.tree().keys());
        fuzz_edits(&[]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn any_segment(data in prop::collection::vec(any::<u8>(), 0..6000)) {
            fuzz_segment(&data);
        }

        #[test]
        fn any_batch(
            body in prop::collection::vec(any::<u8>(), 0..200),
            length in 0..250_u8, records in 0..6_u8, first in 0..3_u8,
            wild in any::<bool>(), fields in any::<[u8; 16]>(),
        ) {
            let tame = [length, 0, 0, 0, records, 0, 0, 0, first, 0, 0, 0, 0, 0, 0, 0];
            let mut data = if wild { fields.to_vec() } else { tame.to_vec() };
            data.extend_from_slice(&body);
            fuzz_batch(&data);
        }

        #[test]
        fn any_snapshot(data in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_snapshot(&data);
        }

        #[test]
        fn any_edits(data in prop::collection::vec(any::<u8>(), 0..40)) {
            fuzz_edits(&data);
        }
    }
}
