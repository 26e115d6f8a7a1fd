//! Room in the journal that unfinished tasks will need to end, so that a full disk refuses new work and
//! never the end of what was admitted.

use std::collections::HashMap;

use ostler_core::id::TaskId;
use ostler_core::task::TaskStatus;

/// What a task's receipt may add to its record, and the record's own cost.
const RECEIPT_RESERVE_BYTES: u64 = 2 * 1024;

/// Records that a task still has before it: its start and its end.
const RECORDS_LEFT: u64 = 2;

/// What a common task is taken for where none is there to be measured.
pub(crate) const COMMON_RESERVE_BYTES: u64 = RECEIPT_RESERVE_BYTES + RECORDS_LEFT * 1024;

/// Room that every task that may run may need on top of that: its answer, a short tail.
pub(crate) const RUNNING_END_RESERVE_BYTES: u64 = 96 * 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    by_task: HashMap<TaskId, u64>,
    bytes: u64,
}

impl Reserve {
    /// A task changed, and its record took so many bytes: the next ones will not be smaller.
    pub(super) fn changed(&mut self, id: &TaskId, status: TaskStatus, record_bytes: u64) {
        if status.is_settled() {
            self.bytes -= self.by_task.remove(id).unwrap_or(0);
            return;
        }
        let needed = RECEIPT_RESERVE_BYTES + RECORDS_LEFT * record_bytes;
        let before = self.by_task.get_mut(id).map(|held| std::mem::replace(held, needed));
        if before.is_none() {
            self.by_task.insert(id.clone(), needed);
        }
        self.bytes = self.bytes + needed - before.unwrap_or(0);
    }

    /// What all unfinished tasks need, of which so many may run at once.
    pub(super) fn bytes(&self, may_run: u64) -> u64 {
        self.bytes + RUNNING_END_RESERVE_BYTES * may_run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unfinished_task_holds_room_by_its_own_size_until_it_ends() {
        let (small, large) = (TaskId::new("small").unwrap(), TaskId::new("large").unwrap());
        let mut reserve = Reserve::default();
        reserve.changed(&small, TaskStatus::Queued, 500);
        reserve.changed(&large, TaskStatus::Queued, 30_000);
        let both = reserve.bytes(0);
        assert_eq!(both, 2 * RECEIPT_RESERVE_BYTES + 2 * 30_500);
        reserve.changed(&small, TaskStatus::Running, 600);
        assert_eq!(reserve.bytes(0), both + 200, "the newest record counts");
        reserve.changed(&large, TaskStatus::Cancelled, 31_000);
        reserve.changed(&small, TaskStatus::Failed, 9_000);
        reserve.changed(&small, TaskStatus::Failed, 9_000);
        assert_eq!(reserve.bytes(0), 0);
        assert_eq!(reserve.bytes(2), 2 * RUNNING_END_RESERVE_BYTES);
    }
}
