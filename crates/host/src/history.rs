//! Tasks read from the files of a daemon, whether it runs or not. Nothing is locked or changed.

use std::collections::{BTreeMap, HashMap, HashSet};

use camino::Utf8Path;
use ostler_journal::{Options, Visit};
use ostler_proto::framed::Task;

use crate::engine::feed::Published;
use crate::engine::record::{self, Event};
use crate::wire::convert;

/// Why the files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The files are not a sound journal.
    #[error("the files in {dir} are not a sound journal")]
    Journal {
        /// Which directory.
        dir: String,
        /// Why.
        source: ostler_journal::OpenError,
    },
}

/// The tasks that a journal holds, in the order of their submission.
pub fn live_tasks(journal_dir: &Utf8Path) -> Result<Vec<Task>, HistoryError> {
    let by_order: BTreeMap<u64, Task> = Held::read(journal_dir)?.live.into_values().collect();
    Ok(by_order.into_values().collect())
}

/// The tasks that left the live set, oldest first: what the archive holds, and what is still on its way there.
/// The journal is read first: it forgets a task only when the archive has it on disk.
pub fn archived_tasks(
    journal_dir: &Utf8Path,
    archive_dir: &Utf8Path,
) -> Result<Vec<Task>, HistoryError> {
    let left = Held::read(journal_dir)?.left;
    let mut tasks = Vec::new();
    read(archive_dir, &mut |visit| {
        if let Visit::Entry(entry) = visit
            && let Event::Task { published, .. } =
                Event::decode(entry.payload).map_err(|error| error.to_string())?
        {
            tasks.push(convert::published(&published));
        }
        Ok(())
    })?;
    let there: HashSet<String> = tasks.iter().map(|task| task.task_id.clone()).collect();
    tasks.extend(left.into_iter().filter(|task| !there.contains(&task.task_id)));
    Ok(tasks)
}

/// What a journal says of tasks.
#[derive(Default)]
struct Held {
    /// By id, with the order of submission.
    live: HashMap<String, (u64, Task)>,
    /// Those that left the live set since the newest snapshot, in that order.
    left: Vec<Task>,
}

impl Held {
    fn read(journal_dir: &Utf8Path) -> Result<Self, HistoryError> {
        let (mut held, mut covered) = (Self::default(), 0);
        read(journal_dir, &mut |visit| {
            match visit {
                Visit::Snapshot { sequence, payload } => {
                    let snapshot =
                        record::decode_snapshot(payload).map_err(|error| error.to_string())?;
                    covered = sequence;
                    held = Self::default();
                    snapshot.tasks.iter().for_each(|published| held.insert(published));
                }
                Visit::Entry(entry) if entry.sequence > covered => {
                    if let Event::Task { published, gone } =
                        Event::decode(entry.payload).map_err(|error| error.to_string())?
                    {
                        let gone = gone.iter().filter_map(|id| held.live.remove(id.as_str()));
                        held.left.extend(gone.map(|(_, task)| task));
                        held.insert(&published);
                    }
                }
                Visit::Entry(_) => {}
            }
            Ok(())
        })?;
        Ok(held)
    }

    fn insert(&mut self, published: &Published) {
        let task = (published.task.order, convert::published(published));
        self.live.insert(published.task.spec.id.to_string(), task);
    }
}

fn read(
    dir: &Utf8Path,
    visit: &mut dyn FnMut(Visit<'_>) -> Result<(), String>,
) -> Result<(), HistoryError> {
    if !dir.exists() {
        return Ok(());
    }
    ostler_journal::read(dir, &options(), visit)
        .map(drop)
        .map_err(|source| HistoryError::Journal { dir: dir.to_string(), source })
}

/// Bounds for reading: wide enough for any journal or archive that can be configured.
pub fn options() -> Options {
    Options {
        total_bytes_max: crate::settings::ARCHIVE_BYTES_MAX,
        snapshot_bytes_max: 4 * 1024 * 1024 * 1024,
        ..Options::default()
    }
}
