//! Room in the journal that unfinished tasks will need to end, so that a full disk refuses new work and
//! never the end of what was admitted.

use std::collections::HashMap;
use std::sync::Arc;

use ostler_core::id::TaskId;
use ostler_core::outcome::Outcome;
use ostler_core::task::{Task, TaskStatus};

/// What the shortest form of a receipt may add to a task's record, and the record's own cost.
const RECEIPT_RESERVE_BYTES: u64 = 3 * 1024;

/// What a common task is taken for where none is there to be measured.
pub(crate) const COMMON_RESERVE_BYTES: u64 = RECEIPT_RESERVE_BYTES + 1024;

/// Room that every task that may run may need on top of that: its answer, a short tail. Held for as many as may
/// run at once; on a disk that stays full later ends come in a shorter form.
pub(crate) const RUNNING_END_RESERVE_BYTES: u64 = 96 * 1024;

/// What is left of a failure's message in the shortest form.
const SHORT_MESSAGE_CHARS_MAX: usize = 200;

/// The most bytes of JSON that one byte of text may take.
const JSON_ESCAPE_BYTES_MAX: u64 = 6;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    by_task: HashMap<TaskId, u64>,
    bytes: u64,
}

impl Reserve {
    /// A task changed, and its record took so many bytes: the next ones will not be smaller.
    pub(super) fn changed(&mut self, id: &TaskId, status: TaskStatus, record_bytes: u64) {
        // Its start, and its end.
        let records_left = match status {
            TaskStatus::Queued => 2,
            TaskStatus::Running => 1,
            _ => {
                self.bytes -= self.by_task.remove(id).unwrap_or(0);
                return;
            }
        };
        let needed = RECEIPT_RESERVE_BYTES + records_left * record_bytes;
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

    /// What all others need at the least.
    pub(super) fn bytes_of_others(&self, id: &TaskId) -> u64 {
        self.bytes - self.by_task.get(id).copied().unwrap_or(0)
    }
}

/// More than the words of an outcome can take in a record.
pub(super) fn words_bytes_max(task: &Task) -> u64 {
    let Some(outcome) = &task.outcome else { return 0 };
    let receipt = &outcome.receipt;
    let words = [outcome.text.as_ref(), receipt.statement.as_ref()].into_iter().flatten();
    let message = outcome.failure.iter().map(|failure| &failure.message);
    let processes = receipt.killed.iter().chain(&receipt.kept);
    let names = processes.flat_map(|process| [&process.argv0, &process.after]);
    let all = words.chain(message).chain(&receipt.denials).chain(names);
    JSON_ESCAPE_BYTES_MAX * all.map(|text| text.len() as u64 + 8).sum::<u64>()
}

/// The form of an end that always has room: how it ended, and why. The run directory has the rest.
pub(super) fn shortened(mut task: Task) -> Task {
    let Some(outcome) = &task.outcome else { return task };
    let mut short = Outcome { text: None, ..(**outcome).clone() };
    if let Some(failure) = &mut short.failure {
        failure.message = failure.message.chars().take(SHORT_MESSAGE_CHARS_MAX).collect();
    }
    let receipt = &mut short.receipt;
    (receipt.statement, receipt.agent_version) = (None, None);
    (receipt.killed, receipt.kept, receipt.denials) = (Vec::new(), Vec::new(), Vec::new());
    receipt.truncated = true;
    task.outcome = Some(Arc::new(short));
    task
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
        assert_eq!(reserve.bytes(0), both - 400, "the newest record counts, and one is written");
        assert_eq!(reserve.bytes_of_others(&large), RECEIPT_RESERVE_BYTES + 600);
        reserve.changed(&large, TaskStatus::Cancelled, 31_000);
        reserve.changed(&small, TaskStatus::Failed, 9_000);
        reserve.changed(&small, TaskStatus::Failed, 9_000);
        assert_eq!(reserve.bytes(0), 0);
        assert_eq!(reserve.bytes(2), 2 * RUNNING_END_RESERVE_BYTES);
    }
}
