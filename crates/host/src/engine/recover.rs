//! Start: folds snapshot and records back into the state, and starts nothing (invariant 6).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use camino::Utf8PathBuf;
use ostler_core::clock::Clock;
use ostler_core::id::TaskId;
use ostler_core::task::TaskState;
use ostler_journal::{Journal, Place, RealDisk, SegmentFile, Visit};

use super::archive::{ArchiveIndex, Leaving};
use super::feed::{Feed, Published, StoredRecord};
use super::record::{self, Event};
use super::store::{Standing, StoreParts};
use crate::settings::Settings;
use crate::tail::TailBounds;

/// Why the daemon cannot start from what is on disk. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The journal itself is not sound.
    #[error("the journal cannot be used")]
    Journal(#[from] ostler_journal::OpenError),
}

/// Everything an engine starts with.
pub(crate) struct Recovered {
    pub(crate) state: TaskState,
    pub(crate) feed: Feed,
    pub(crate) store: StoreParts,
    pub(crate) standing: Standing,
    pub(crate) archive: Arc<ArchiveIndex>,
    pub(crate) frame_bytes_max: usize,
    pub(crate) command_queue_max: usize,
    pub(crate) tail: TailBounds,
}

/// Opens the journal in `settings.runtime_dir` and reads it.
pub(crate) fn recover(
    settings: &Settings,
    clock: Arc<dyn Clock>,
) -> Result<Recovered, RecoverError> {
    let dir = settings.runtime_dir.join("journal");
    let mut fold = Fold {
        dir: dir.clone(),
        events_max: settings.feed.events_max,
        events_bytes_max: settings.feed.events_bytes_max,
        ..Fold::default()
    };
    let opened = Journal::open(RealDisk::new(), &dir, settings.journal.clone(), &mut |visit| {
        fold.visit(visit)
    })?;
    for warning in &opened.warnings {
        tracing::warn!(%warning, "the journal was repaired");
    }
    let journal = opened.journal;
    let last = opened.last_sequence;
    let standing = Standing {
        room: journal.room(),
        since_snapshot: journal.bytes_since_snapshot(),
        ..Standing::default()
    };
    let (tasks, leaving) = (fold.in_order(), fold.leaving);
    let state = TaskState::restore(
        settings.tasks,
        fold.limit.unwrap_or(settings.tasks.limit_default),
        tasks.iter().map(|published| published.task.clone()).collect(),
    );
    let feed = Feed::new(settings.feed);
    feed.restore(tasks, fold.limit, fold.records, last);
    let archive = Arc::new(ArchiveIndex::default());
    let store = StoreParts {
        journal,
        archive_dir: settings.runtime_dir.join("archive"),
        archive_options: settings.archive_journal.clone(),
        archive_bounds: settings.archive,
        index: Arc::clone(&archive),
        leaving,
        clock,
    };
    Ok(Recovered {
        state,
        feed,
        store,
        standing,
        archive,
        frame_bytes_max: settings.wire.frame_bytes_max,
        command_queue_max: settings.wire.command_queue_max,
        tail: settings.tail,
    })
}

/// The state so far.
#[derive(Default)]
struct Fold {
    dir: Utf8PathBuf,
    snapshot: u64,
    limit: Option<u8>,
    tasks: HashMap<TaskId, Published>,
    leaving: Vec<Leaving>,
    /// The segment that is being shown.
    file: Option<(u64, Arc<SegmentFile>)>,
    records: VecDeque<(u64, StoredRecord)>,
    bytes: usize,
    events_max: u64,
    events_bytes_max: usize,
}

impl Fold {
    fn visit(&mut self, visit: Visit<'_>) -> Result<(), String> {
        match visit {
            Visit::Snapshot { sequence, payload } => {
                let snapshot =
                    record::decode_snapshot(payload).map_err(|error| error.to_string())?;
                self.snapshot = sequence;
                self.limit = snapshot.limit.map(in_range);
                self.tasks = snapshot
                    .tasks
                    .into_iter()
                    .map(|published| (published.task.spec.id.clone(), published))
                    .collect();
                Ok(())
            }
            Visit::Entry(entry) => {
                self.retain(entry.sequence, entry.place)?;
                if entry.sequence <= self.snapshot {
                    return Ok(());
                }
                self.apply(Event::decode(entry.payload).map_err(|error| error.to_string())?);
                Ok(())
            }
        }
    }

    fn retain(&mut self, sequence: u64, place: Place) -> Result<(), String> {
        let file =
            self.segment(place.segment).map_err(|error| format!("no second look: {error}"))?;
        self.bytes += place.bytes as usize;
        self.records.push_back((sequence, StoredRecord { file, place }));
        while self.records.len() as u64 > self.events_max || self.bytes > self.events_bytes_max {
            let Some((_, dropped)) = self.records.pop_front() else {
                break;
            };
            self.bytes -= dropped.place.bytes as usize;
        }
        Ok(())
    }

    fn segment(&mut self, number: u64) -> std::io::Result<Arc<SegmentFile>> {
        match &self.file {
            Some((shown, file)) if *shown == number => Ok(Arc::clone(file)),
            _ => {
                let file = Arc::new(SegmentFile::open(&self.dir, number)?);
                self.file = Some((number, Arc::clone(&file)));
                Ok(file)
            }
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Limit(limit) => self.limit = Some(in_range(limit)),
            Event::Task { published, gone } => {
                for id in gone {
                    if let Some(left) = self.tasks.remove(&id) {
                        let mut record = Vec::new();
                        let updated_at = left.task.updated_at;
                        record::encode_task(&mut record, &left, record::TAIL_JSON_BYTES_MAX, &[]);
                        self.leaving.push(Leaving { id, updated_at, record });
                    }
                }
                self.tasks.insert(published.task.spec.id.clone(), *published);
            }
        }
    }

    fn in_order(&self) -> Vec<Published> {
        let mut tasks: Vec<_> = self.tasks.values().cloned().collect();
        tasks.sort_by_key(|published| published.task.order);
        tasks
    }
}

fn in_range(limit: u8) -> u8 {
    limit.clamp(1, ostler_core::task::LIMIT_MAX)
}
