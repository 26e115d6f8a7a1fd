//! Tasks read from the files of a daemon, whether it runs or not. Nothing is locked or changed.

use std::collections::{BTreeMap, HashMap};

use camino::Utf8Path;
use ostler_journal::{Options, Visit};
use ostler_proto::framed::Task;

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
    let mut tasks: HashMap<String, (u64, Task)> = HashMap::new();
    let mut covered = 0;
    read(journal_dir, &mut |visit| {
        match visit {
            Visit::Snapshot { sequence, payload } => {
                let snapshot =
                    record::decode_snapshot(payload).map_err(|error| error.to_string())?;
                covered = sequence;
                tasks = snapshot
                    .tasks
                    .iter()
                    .map(|published| {
                        (
                            published.task.spec.id.to_string(),
                            (published.task.order, convert::published(published)),
                        )
                    })
                    .collect();
            }
            Visit::Entry(entry) if entry.sequence > covered => {
                if let Event::Task { published, gone } =
                    Event::decode(entry.payload).map_err(|error| error.to_string())?
                {
                    for id in gone {
                        tasks.remove(id.as_str());
                    }
                    tasks.insert(
                        published.task.spec.id.to_string(),
                        (published.task.order, convert::published(&published)),
                    );
                }
            }
            Visit::Entry(_) => {}
        }
        Ok(())
    })?;
    let by_order: BTreeMap<u64, Task> = tasks.into_values().collect();
    Ok(by_order.into_values().collect())
}

/// The tasks that an archive holds, oldest first.
pub fn archived_tasks(archive_dir: &Utf8Path) -> Result<Vec<Task>, HistoryError> {
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
    Ok(tasks)
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
