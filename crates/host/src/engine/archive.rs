//! The archive: finished tasks that left the live set, in an append-only log of their own.
//!
//! Owned by the store's thread. Records are the settled events of the task journal, so that `ostler
//! task list --all` reads both alike. An archived task is safe at every moment: its record is synced
//! before the snapshot that forgets the task, and recovery archives again what the journal names
//! after that snapshot. The index in memory says which ids are taken (R-58).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use camino::Utf8Path;
use ostler_core::clock::Timestamp;
use ostler_core::id::TaskId;
use ostler_journal::{Journal, Options, RealDisk, Visit};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::record;
use crate::settings::ArchiveBounds;

/// The first half of an id's hash: enough to tell 100,000 ids apart, and small.
type Key = u128;

/// The sequence of a task that is not written yet.
const COMING: u64 = u64::MAX;

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
pub(crate) struct Archive {
    journal: Journal<RealDisk>,
    index: std::sync::Arc<ArchiveIndex>,
    bounds: ArchiveBounds,
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

impl Archive {
    /// Opens the archive and reads its index.
    pub(crate) fn open(
        dir: &Utf8Path,
        options: Options,
        bounds: ArchiveBounds,
        index: std::sync::Arc<ArchiveIndex>,
    ) -> Result<Self, ostler_journal::OpenError> {
        let opened = {
            let mut places = index.lock();
            let mut visit = |visit: Visit<'_>| match visit {
                // Where old segments went, the journal keeps a mark of its own; we store none.
                Visit::Snapshot { payload: [], .. } => Ok(()),
                Visit::Snapshot { .. } => Err("an archive has no snapshots".to_owned()),
                Visit::Entry(entry) => {
                    let indexed: Indexed<'_> =
                        serde_json::from_slice(entry.payload).map_err(|error| error.to_string())?;
                    let updated_at = record::parse_timestamp(&indexed.task.updated_at)?;
                    places.insert(
                        key(&indexed.task.task_id),
                        Place { sequence: entry.sequence, updated_at },
                    );
                    Ok(())
                }
            };
            Journal::open(RealDisk::new(), dir, options, &mut visit)?
        };
        Ok(Self { journal: opened.journal, index, bounds, unsynced: false })
    }

    /// Writes tasks that leave the live set; [`Archive::sync`] makes them durable. One that is there
    /// already (recovery repeats) is skipped.
    pub(crate) fn write(&mut self, leaving: &[Leaving]) -> Result<(), ostler_journal::AppendError> {
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
    pub(crate) fn sync(&mut self, now: Timestamp) -> Result<(), ostler_journal::AppendError> {
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
        let mut index = self.index.lock();
        let by_age = || {
            !index.values().any(|place| {
                place.sequence <= end_of_first && place.updated_at.as_micros() >= oldest
            })
        };
        if end_of_first >= by_count && (self.journal.segments().len() < 2 || !by_age()) {
            return;
        }
        let below = by_count.max(end_of_first + 1);
        if let Err(error) = self.journal.remove_segments_below(below) {
            tracing::warn!(%error, "old archive segments could not be removed");
            return;
        }
        let first = self.journal.segments().first().map_or(0, |segment| segment.first_sequence);
        index.retain(|_, place| place.sequence >= first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

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
        let index = Arc::new(ArchiveIndex::default());
        let bounds = ArchiveBounds { tasks_max, days_max };
        (Archive::open(dir, options(), bounds, Arc::clone(&index)).unwrap(), index)
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
