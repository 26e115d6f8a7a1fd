//! Held tasks as this server last saved them, so that a call need not read its task first.
//!
//! What is known may be outdated: other servers, commands and people change tasks too. So whatever is decided
//! from it is saved with a guard ([`rows::save`](super::rows::save)) that writes nothing when the task has
//! another version by now; then it is read and decided again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::store::TaskRecord;

/// Tasks that are known at once; of more, some are read again when they are called.
const KNOWN_MAX: usize = 8_192;

/// The tasks, by id.
#[derive(Default)]
pub(crate) struct Known(Mutex<HashMap<String, TaskRecord>>);

impl Known {
    fn tasks(&self) -> std::sync::MutexGuard<'_, HashMap<String, TaskRecord>> {
        // What it holds is only ever a guess, also when a thread died over it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of these tasks that are known.
    pub(super) fn find<'a>(
        &self,
        ids: impl Iterator<Item = &'a str>,
    ) -> HashMap<String, TaskRecord> {
        let tasks = self.tasks();
        ids.filter_map(|id| tasks.get_key_value(id))
            .map(|(id, task)| (id.clone(), task.clone()))
            .collect()
    }

    /// Tasks as they are stored now. Only held ones are worth knowing: others are seldom called.
    pub(super) fn learn(&self, saved: Vec<TaskRecord>) {
        let mut tasks = self.tasks();
        for task in saved {
            if tasks.get(&task.id).is_some_and(|known| known.version > task.version) {
                continue;
            }
            if !task.machine.state.is_held() {
                tasks.remove(&task.id);
                continue;
            }
            if tasks.len() >= KNOWN_MAX
                && !tasks.contains_key(&task.id)
                && let Some(other) = tasks.keys().next().cloned()
            {
                tasks.remove(&other);
            }
            tasks.insert(task.id.clone(), task);
        }
    }

    /// Tasks that may be stored otherwise than was thought.
    pub(super) fn forget<'a>(&self, ids: impl Iterator<Item = &'a str>) {
        let mut tasks = self.tasks();
        for id in ids {
            tasks.remove(id);
        }
    }
}
