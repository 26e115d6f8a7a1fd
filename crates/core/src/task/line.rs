//! Who runs, who waits and who has settled.
//!
//! Owns: the indices by status and session, and what it means to be first in a session. Deliberately
//! absent: the tasks themselves (`state`), and when to start one (`step`).

use std::collections::{BTreeMap, BTreeSet};

use super::{Task, TaskStatus};
use crate::clock::Timestamp;
use crate::id::SessionId;

/// Who runs, who waits and who has settled, by their orders. A task enters with everything the index
/// knows of it and leaves with the same.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Line {
    pub(super) running: BTreeSet<u64>,
    pub(super) queued: usize,
    /// The queued tasks that nothing but the limit holds back.
    pub(super) ready: BTreeSet<u64>,
    /// The unfinished tasks of each session; the first one runs or is ready, the others wait for it.
    pub(super) sessions: BTreeMap<SessionId, BTreeSet<u64>>,
    /// The settled tasks by the time they settled.
    pub(super) settled: BTreeSet<(Timestamp, u64)>,
}

impl Line {
    pub(super) fn enter(&mut self, task: &Task) {
        let order = task.order;
        if task.status.is_settled() {
            self.settled.insert((task.updated_at, order));
            return;
        }
        let is_first = self.enter_session(task);
        if task.status == TaskStatus::Running {
            self.running.insert(order);
        } else {
            self.queued += 1;
            if is_first {
                self.ready.insert(order);
            }
        }
    }

    /// Whether nobody of its session is before it.
    fn enter_session(&mut self, task: &Task) -> bool {
        let Some(session) = &task.spec.session else {
            return true;
        };
        let line = self.sessions.entry(session.clone()).or_default();
        line.insert(task.order);
        // It may just have come back to its place, before one that was ready meanwhile.
        if let Some(next) = line.iter().nth(1) {
            self.ready.remove(next);
        }
        line.first() == Some(&task.order)
    }

    pub(super) fn leave(&mut self, task: &Task) {
        let order = task.order;
        if task.status.is_settled() {
            self.settled.remove(&(task.updated_at, order));
            return;
        }
        if task.status == TaskStatus::Running {
            self.running.remove(&order);
        } else {
            self.queued = self.queued.saturating_sub(1);
        }
        self.ready.remove(&order);
        self.leave_session(task);
    }

    /// Whoever comes first then is ready: only the first of a session ever runs.
    fn leave_session(&mut self, task: &Task) {
        let Some(session) = &task.spec.session else {
            return;
        };
        let Some(line) = self.sessions.get_mut(session) else {
            return;
        };
        let was_first = line.first() == Some(&task.order);
        line.remove(&task.order);
        match line.first() {
            Some(first) if was_first => {
                self.ready.insert(*first);
            }
            Some(_) => {}
            None => {
                self.sessions.remove(session);
            }
        }
    }
}
