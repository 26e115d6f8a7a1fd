//! The archive: finished tasks that left the live set, in an append-only log of their own.
//!
//! Owned by the store's thread. Records are the settled events of the task journal, so that `ostler
//! task list --all` reads both alike. An archived task is safe at every moment: its record is synced
//! before the snapshot that forgets the task, and recovery archives again what the journal names
//! after that snapshot. The index in memory says which ids are taken (R-58). What is beyond the bounds is
//! forgotten, oldest segment first, and its ids may be used again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camino::Utf8Path;
use ostler_core::clock::Timestamp;
use ostler_core::id::TaskId;
use ostler_journal::{AppendError, Disk, Journal, Options, RealDisk, SEGMENT_FILES_MAX, Visit};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::record;
use crate::settings::ArchiveBounds;

/// The first half of an id's hash: enough to tell 100,000 ids apart, and small.
type Key = u128;

/// The sequence of a task that is not written yet.
const COMING: u64 = u64::MAX;

/// So many segments must be free below the bounds of files and bytes before anything is written; the oldest
/// go for it. One write takes at most one.
const FREE_SEGMENTS_MIN: u64 = 4;

#[derive(Debug, Clone, Copy)]
struct Place {
    sequence: u64,
    updated_at: Timestamp,
}

/// Which task ids the archive holds.
#[derive(Debug, Default)]
pub(crate) struct ArchiveIndex(Mutex<HashMap<Key, Place>>);

impl ArchiveIndex {
    /// A task is on its way here: its id is taken from now on.
    pub(crate) fn announce(&self, task: &TaskId) {
        let coming = Place { sequence: COMING, updated_at: Timestamp::from_micros(i64::MAX) };
        self.lock().entry(key(task.as_str())).or_insert(coming);
    }

    pub(crate) fn contains(&self, task: &TaskId) -> bool {
        self.lock().contains_key(&key(task.as_str()))
    }

    /// Nobody may write to it, or ask it, until the guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(id: &str) -> Key {
    let digest = Sha256::digest(id.as_bytes());
    digest.iter().take(size_of::<Key>()).fold(0, |key, byte| key << 8 | Key::from(*byte))
}

/// One task on its way into the archive.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) id: TaskId,
    pub(crate) updated_at: Timestamp,
    pub(crate) record: Vec<u8>,
}

/// The open archive.
pub(crate) struct Archive<D: Disk = RealDisk> {
    journal: Journal<D>,
    index: Arc<ArchiveIndex>,
    bounds: ArchiveBounds,
    segment_bytes: u64,
    bytes_max: u64,
    unsynced: bool,
}

/// The two fields of a record that the index needs.
#[derive(Deserialize)]
struct Indexed<'a> {
    #[serde(borrow)]
    task: IndexedTask<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IndexedTask<'a> {
    #[serde(borrow)]
    task_id: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    updated_at: std::borrow::Cow<'a, str>,
}

impl<D: Disk> Archive<D> {
    /// Opens the archive and reads its index, which takes as long as the archive is large. Given up, with
    /// an error, soon after `stop`. The index can be used meanwhile.
    pub(crate) fn open(
        disk: D,
        dir: &Utf8Path,
        options: Options,
        bounds: ArchiveBounds,
        index: Arc<ArchiveIndex>,
        stop: &AtomicBool,
    ) -> Result<Self, ostler_journal::OpenError> {
        let (segment_bytes, bytes_max) = (options.segment_bytes, options.total_bytes_max);
        let mut places = HashMap::new();
        let mut visit = |visit: Visit<'_>| match visit {
            _ if stop.load(Ordering::Relaxed) => Err("the daemon is stopping".to_owned()),
            // Where old segments went, the journal keeps a mark of its own; we store none.
            Visit::Snapshot { payload: [], .. } => Ok(()),
            Visit::Snapshot { .. } => Err("an archive has no snapshots".to_owned()),
            Visit::Entry(entry) => {
                let indexed: Indexed<'_> =
                    serde_json::from_slice(entry.payload).map_err(|error| error.to_string())?;
                let updated_at = record::parse_timestamp(&indexed.task.updated_at)?;
                let place = Place { sequence: entry.sequence, updated_at };
                places.insert(key(&indexed.task.task_id), place);
                Ok(())
            }
        };
        let journal = Journal::open(disk, dir, options, &mut visit)?.journal;
        // What was announced meanwhile and is here already is known by its place from now on.
        index.lock().extend(places);
        let mut archive =
            Self { journal, index, bounds, segment_bytes, bytes_max, unsynced: false };
        archive.make_way();
        Ok(archive)
    }

    /// A write or flush failed: nothing is taken until the next start. A full disk is no failure.
    pub(crate) fn has_failed(&self) -> bool {
        self.journal.is_poisoned()
    }

    /// Writes tasks that leave the live set; [`Archive::sync`] makes them durable. One that is there
    /// already (recovery repeats) is skipped.
    pub(crate) fn write(&mut self, leaving: &[Leaving]) -> Result<(), AppendError> {
        let fresh: Vec<_> = {
            let index = self.index.lock();
            let is_new = |task: &&Leaving| {
                index.get(&key(task.id.as_str())).is_none_or(|place| place.sequence == COMING)
            };
            leaving.iter().filter(is_new).collect()
        };
        if fresh.is_empty() {
            return Ok(());
        }
        self.make_way();
        let payloads: Vec<&[u8]> = fresh.iter().map(|task| task.record.as_slice()).collect();
        let first = self.journal.last_sequence() + 1;
        self.journal.write(&payloads)?;
        self.unsynced = true;
        let mut index = self.index.lock();
        for (sequence, task) in (first..).zip(fresh) {
            let place = Place { sequence, updated_at: task.updated_at };
            index.insert(key(task.id.as_str()), place);
        }
        Ok(())
    }

    /// Makes everything written durable, then drops what is older than the bounds.
    pub(crate) fn sync(&mut self, now: Timestamp) -> Result<(), AppendError> {
        if !self.unsynced {
            return Ok(());
        }
        self.journal.sync()?;
        self.unsynced = false;
        self.trim(now);
        Ok(())
    }

    fn trim(&mut self, now: Timestamp) {
        const DAY_MICROS: i64 = 24 * 60 * 60 * 1_000_000;
        let oldest = now.as_micros().saturating_sub(
            i64::try_from(self.bounds.days_max).unwrap_or(i64::MAX).saturating_mul(DAY_MICROS),
        );
        let by_count = (self.journal.last_sequence() + 1).saturating_sub(self.bounds.tasks_max);
        let Some(end_of_first) =
            self.journal.segments().first().map(|segment| segment.last_sequence)
        else {
            return;
        };
        let index = self.index.lock();
        let by_age = || {
            !index.values().any(|place| {
                place.sequence <= end_of_first && place.updated_at.as_micros() >= oldest
            })
        };
        if end_of_first >= by_count && (self.journal.segments().len() < 2 || !by_age()) {
            return;
        }
        drop(index);
        self.forget_below(by_count.max(end_of_first + 1));
    }

    /// Drops the oldest segments where the files come near a bound: the archive must always be able to take
    /// what leaves the live set, or the journal could forget nothing any more.
    fn make_way(&mut self) {
        let (files, bytes) = (self.journal.files() as u64, self.journal.files_bytes());
        let files_max = (SEGMENT_FILES_MAX as u64).saturating_sub(FREE_SEGMENTS_MIN);
        let bytes_max = self.bytes_max.saturating_sub(FREE_SEGMENTS_MIN * self.segment_bytes);
        if files <= files_max && bytes <= bytes_max {
            return;
        }
        let (mut files_over, mut bytes_over) =
            (files.saturating_sub(files_max), bytes.saturating_sub(bytes_max));
        let segments = self.journal.segments();
        let last = segments.iter().find(|segment| {
            files_over = files_over.saturating_sub(1);
            bytes_over = bytes_over.saturating_sub(segment.bytes);
            files_over == 0 && bytes_over == 0
        });
        let Some(last) = last.or(segments.last()) else { return };
        let tasks = self.forget_below(last.last_sequence.saturating_add(1));
        if tasks > 0 {
            tracing::warn!(
                tasks,
                files,
                bytes,
                "the archive is near its bound of files or bytes and forgets its oldest tasks"
            );
        }
    }

    /// Drops the segments that end below; returns how many tasks were forgotten.
    fn forget_below(&mut self, below: u64) -> usize {
        if let Err(error) = self.journal.remove_segments_below(below) {
            tracing::warn!(%error, "old archive segments could not be removed");
        }
        let first = self.journal.first_sequence();
        let mut index = self.index.lock();
        let before = index.len();
        index.retain(|_, place| place.sequence >= first);
        before - index.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_journal::fake::{FakeDisk, Fault};

    const DAY_MICROS: i64 = 24 * 60 * 60 * 1_000_000;

    fn options() -> Options {
        Options { segment_bytes: 64 * 1024, record_bytes_max: 16 * 1024, ..Options::default() }
    }

    fn leaving(n: i64, at: i64) -> Leaving {
        let updated_at = Timestamp::from_micros(at);
        let time = crate::clock::to_rfc3339(updated_at);
        let padding = "x".repeat(4_000);
        let record =
            format!(r#"{{"task":{{"taskId":"t{n}","updatedAt":"{time}","pad":"{padding}"}}}}"#);
        Leaving {
            id: TaskId::new(&format!("t{n}")).unwrap(),
            updated_at,
            record: record.into_bytes(),
        }
    }

    fn open(dir: &Utf8Path, tasks_max: u64, days_max: u64) -> (Archive, Arc<ArchiveIndex>) {
        let bounds = ArchiveBounds { tasks_max, days_max };
        open_on(RealDisk::new(), dir, options(), bounds)
    }

    fn open_on<D: Disk>(
        disk: D,
        dir: &Utf8Path,
        options: Options,
        bounds: ArchiveBounds,
    ) -> (Archive<D>, Arc<ArchiveIndex>) {
        let index = Arc::new(ArchiveIndex::default());
        let stop = AtomicBool::new(false);
        let archive = Archive::open(disk, dir, options, bounds, Arc::clone(&index), &stop);
        (archive.unwrap(), index)
    }

    const UNBOUNDED: ArchiveBounds = ArchiveBounds { tasks_max: u64::MAX, days_max: 36_500 };

    /// Writes until the oldest is forgotten and long after, over restarts.
    fn fill(options: &Options, tasks: i64) -> FakeDisk {
        let (disk, dir) = (FakeDisk::new(), Utf8Path::new("/archive"));
        for round in 0..3 {
            let (mut archive, index) = open_on(disk.clone(), dir, options.clone(), UNBOUNDED);
            for n in round * tasks..(round + 1) * tasks {
                archive.write(&[leaving(n, n)]).unwrap();
                archive.sync(Timestamp::from_micros(n)).unwrap();
                let bytes = archive.journal.files_bytes();
                assert!(archive.journal.files() <= SEGMENT_FILES_MAX);
                assert!(bytes <= options.total_bytes_max, "{bytes}");
            }
            let newest = (round + 1) * tasks - 1;
            assert!(!known(&index, 0), "the oldest is forgotten");
            assert!(known(&index, newest) && known(&index, newest - tasks / 2));
        }
        disk
    }

    #[test]
    fn at_its_bound_of_files_the_archive_forgets_the_oldest_and_goes_on_over_restarts() {
        let segment_bytes = 8 * 1024;
        let total_bytes_max = 10_000 * segment_bytes;
        let record_bytes_max = 6_000;
        fill(&Options { segment_bytes, total_bytes_max, record_bytes_max, ..options() }, 600);
    }

    #[test]
    fn at_its_bound_of_bytes_the_archive_forgets_the_oldest_and_goes_on_over_restarts() {
        fill(&Options { total_bytes_max: 16 * 64 * 1024, ..options() }, 240);
    }

    #[test]
    fn only_a_failed_write_or_flush_is_a_failure_of_the_archive_a_full_disk_is_not() {
        const EIO: i32 = 5;
        let disk = FakeDisk::new();
        let (mut archive, _) =
            open_on(disk.clone(), Utf8Path::new("/archive"), options(), UNBOUNDED);
        disk.set_free_bytes(Some(0));
        assert!(archive.write(&[leaving(1, 1)]).is_err());
        assert!(!archive.has_failed());
        disk.set_free_bytes(None);
        archive.write(&[leaving(1, 1)]).unwrap();
        disk.plan(disk.calls() + 1, Fault::Error(EIO));
        assert!(archive.sync(Timestamp::from_micros(1)).is_err());
        assert!(archive.has_failed());
    }

    #[test]
    fn reading_the_archive_is_given_up_when_the_daemon_stops_and_can_be_done_again() {
        let disk = FakeDisk::new();
        let dir = Utf8Path::new("/archive");
        let (mut archive, _) = open_on(disk.clone(), dir, options(), UNBOUNDED);
        archive.write(&[leaving(1, 1)]).unwrap();
        archive.sync(Timestamp::from_micros(1)).unwrap();
        drop(archive);
        let (index, stop) = (Arc::default(), AtomicBool::new(true));
        let given_up = Archive::open(disk.clone(), dir, options(), UNBOUNDED, index, &stop);
        assert!(given_up.is_err());
        let (_, index) = open_on(disk, dir, options(), UNBOUNDED);
        assert!(known(&index, 1));
    }

    fn known(index: &ArchiveIndex, n: i64) -> bool {
        index.contains(&TaskId::new(&format!("t{n}")).unwrap())
    }

    #[test]
    fn r_58_the_archive_remembers_ids_across_starts_and_takes_each_once() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(scratch.path()).unwrap().join("archive");
        let (mut archive, index) = open(&dir, 1_000, 180);
        archive.write(&[leaving(1, 1), leaving(2, 2)]).unwrap();
        archive.write(&[leaving(2, 2), leaving(3, 3)]).unwrap();
        archive.sync(Timestamp::from_micros(4)).unwrap();
        assert!(known(&index, 3) && !known(&index, 4));
        drop(archive);
        let (archive, index) = open(&dir, 1_000, 180);
        assert_eq!(archive.journal.last_sequence(), 3, "t2 is there once");
        assert!((1..=3).all(|n| known(&index, n)));
    }

    #[test]
    fn the_archive_forgets_the_oldest_by_number_and_by_age_and_opens_again() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(scratch.path()).unwrap().join("archive");
        let (mut archive, index) = open(&dir, 50, 180);
        for n in 0..200 {
            archive.write(&[leaving(n, n)]).unwrap();
            archive.sync(Timestamp::from_micros(n)).unwrap();
        }
        assert!(!known(&index, 0), "far beyond the bound");
        assert!((150..200).all(|n| known(&index, n)), "what the bound keeps");
        drop(archive);
        let (mut archive, index) = open(&dir, 50, 180);
        assert!(!known(&index, 0) && known(&index, 199));
        // Half a year later everything old goes; the segment in use stays.
        let later = 200 * DAY_MICROS;
        for n in 200..230 {
            archive.write(&[leaving(n, later)]).unwrap();
            archive.sync(Timestamp::from_micros(later)).unwrap();
        }
        assert!(!known(&index, 150));
        assert!(known(&index, 229));
    }
}
