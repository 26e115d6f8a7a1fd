//! The tasks that claims are given next. While claims come quickly, more are read than are asked for, and the next
//! claims are given what is left without a look at the queue.
//!
//! What is left is only ever a guess, which is saved with guards like any other: a task or agent that changed is not
//! given. But a run must not be told what was true before either, nor a more urgent task be passed over. So what is
//! left is given up after [`AGE_MAX`], when this server changes anything it may depend on, when another server says
//! that it changed something, and when another process wrote to the SQLite file.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::claim::Agent;
use super::db::{Conn, DbError};
use super::facts::Base;
use crate::store::TaskRecord;

/// How old what was read may be. What a command or another server changes meanwhile, a claim may not see yet.
const AGE_MAX: Duration = Duration::from_millis(10);
/// Tasks that are read for claims that come quickly.
pub(super) const TASKS_MAX: usize = 32;
/// Of these one agent's; what follows its last one in the queue is given up, as it may have a more urgent one.
pub(super) const TASKS_OF_AGENT_MAX: usize = 8;
/// Bytes of what the runs of those that are left need to know; with more, nothing is kept.
const BYTES_MAX: usize = 1024 * 1024;
/// Changes that are remembered while candidates are out; after more, nothing is kept.
const CHANGES_MAX: usize = 256;

/// For whom tasks were looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) workspace_id: i64,
    pub(super) runtimes: Vec<String>,
    pub(super) providers: Vec<String>,
}

/// The most urgent tasks, their agents, and what their runs need to know.
pub(super) struct Candidates {
    pub(super) wanted: Wanted,
    pub(super) tasks: Vec<TaskRecord>,
    pub(super) agents: Vec<Agent>,
    pub(super) bases: HashMap<String, Base>,
    /// There are no others.
    pub(super) is_all: bool,
    /// So many of the tasks are the most urgent ones for certain.
    pub(super) certain: usize,
    pub(super) read_at: Instant,
    pub(super) file_version: i64,
}

impl Candidates {
    /// What is left when these tasks were given: `None` when that is nothing.
    pub(super) fn without(mut self, given: &[String]) -> Option<Self> {
        self.tasks.truncate(self.certain);
        self.tasks.retain(|task| !given.contains(&task.id));
        self.certain = self.tasks.len();
        self.bases.retain(|id, _| self.tasks.iter().any(|task| task.id == *id));
        let bytes: usize = self.bases.values().map(Base::bytes).sum();
        (!self.tasks.is_empty() && bytes <= BYTES_MAX).then_some(self)
    }

    /// Gives up what depends on a task that was changed.
    fn forget(&mut self, changed: &Changed) {
        let agent = self.agents.iter().find(|agent| agent.id == changed.agent_id);
        // An agent that was given a place more may have a task that is more urgent, if it had more tasks than places.
        let has_more = !changed.is_held && agent.is_none_or(Agent::is_full);
        if changed.is_queued || has_more {
            self.tasks.clear();
        }
        let first = self.tasks.iter().position(|task| task.issue_id == changed.issue_id);
        self.tasks.truncate(first.unwrap_or(usize::MAX));
        self.certain = self.tasks.len();
    }
}

/// A task that was changed.
struct Changed {
    agent_id: i64,
    issue_id: i64,
    is_held: bool,
    is_queued: bool,
}

/// What is kept between claims.
#[derive(Default)]
pub(crate) struct Ahead(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// How old it may be instead, so that a test need not be quick.
    #[cfg(test)]
    age_max: Option<Duration>,
    candidates: Option<Candidates>,
    last_read: Option<Instant>,
    /// What changed since candidates were taken out or read.
    changed: Vec<Changed>,
    /// Anything may have changed since then.
    anything: bool,
}

impl Kept {
    fn is_fresh(&self, read_at: Instant) -> bool {
        #[cfg(test)]
        let age_max = self.age_max.unwrap_or(AGE_MAX);
        #[cfg(not(test))]
        let age_max = AGE_MAX;
        read_at.elapsed() < age_max
    }
}

impl Ahead {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // What it holds is only ever a guess, also when a thread died over it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left for these; and whether claims come so quickly that it is worth reading ahead. From now on
    /// changes are remembered until [`Ahead::keep`].
    pub(super) fn take(&self, wanted: &Wanted) -> (Option<Candidates>, bool) {
        let mut kept = self.kept();
        kept.changed.clear();
        kept.anything = false;
        let is_rush = kept.last_read.is_some_and(|at| kept.is_fresh(at));
        let candidates = kept.candidates.take();
        (candidates.filter(|it| it.wanted == *wanted && kept.is_fresh(it.read_at)), is_rush)
    }

    /// Candidates are about to be read.
    pub(super) fn read(&self) {
        self.kept().last_read = Some(Instant::now());
    }

    /// Keeps what is left, as far as it is still as it was.
    pub(super) fn keep(&self, mut candidates: Candidates) {
        let mut kept = self.kept();
        if kept.anything {
            return;
        }
        for changed in kept.changed.drain(..) {
            candidates.forget(&changed);
        }
        kept.candidates = Some(candidates);
    }

    #[cfg(test)]
    pub(crate) fn set_age_max(&self, age_max: Duration) {
        self.kept().age_max = Some(age_max);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.kept().candidates.is_none()
    }

    /// These tasks were saved.
    pub(super) fn changed(&self, tasks: &[TaskRecord]) {
        let mut kept = self.kept();
        for task in tasks {
            let state = task.machine.state;
            let changed = Changed {
                agent_id: task.agent_id,
                issue_id: task.issue_id,
                is_held: state.is_held(),
                is_queued: state == ostler_core::lease::State::Queued,
            };
            if let Some(candidates) = &mut kept.candidates {
                candidates.forget(&changed);
            } else if kept.changed.len() < CHANGES_MAX {
                kept.changed.push(changed);
            } else {
                kept.anything = true;
            }
        }
    }

    /// Anything may have changed.
    pub(super) fn forget(&self) {
        let mut kept = self.kept();
        kept.candidates = None;
        kept.anything = true;
    }
}

/// Changes when another connection wrote to the file; nothing like it for PostgreSQL.
pub(super) async fn file_version(conn: &mut Conn) -> Result<i64, DbError> {
    if conn.is_postgres() { Ok(0) } else { conn.number("PRAGMA data_version", Vec::new()).await }
}
