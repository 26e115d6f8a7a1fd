//! Room in the journal that unfinished tasks will need to end, so that a full disk refuses new work and
//! never the end of what was admitted.

use std::collections::HashMap;
use std::sync::Arc;

use ostler_core::id::TaskId;
use ostler_core::outcome::Outcome;
use ostler_core::task::{Task, TaskStatus};

use super::{ADMISSION_BYTES, Engine, record};

/// What the shortest form of a receipt may add to a task's record, and the record's own cost.
const RECEIPT_RESERVE_BYTES: u64 = 3 * 1024;

/// What a common task is taken for where none is there to be measured.
pub(crate) const COMMON_RESERVE_BYTES: u64 = RECEIPT_RESERVE_BYTES + 1024;

/// Room that every task that may run may need on top of that: its answer, a short tail. Held for as many as may
/// run at once; on a disk that stays full later ends come in a shorter form.
pub(crate) const RUNNING_END_RESERVE_BYTES: u64 = 96 * 1024;

/// The longest tail that is journaled when room is short.
const SHORT_TAIL_BYTES: usize = 8 * 1024;

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

impl Engine {
    /// Whether the journal has room for so much beyond what waits and the ends of everything unfinished.
    pub(super) fn has_room(&self, wanted_bytes: u64) -> bool {
        let unfinished = self.state.unfinished() as u64;
        let may_run =
            unfinished.min(u64::from(self.state.limit())).max(self.state.running() as u64);
        let ends = self.reserve.bytes(may_run);
        self.standing.room >= self.in_flight_bytes + self.pending.bytes() + ends + wanted_bytes
    }

    /// A task in the form for which the journal has room, and the room for its tail: all of it while the ends
    /// of the others keep theirs, and on a disk that stays full the shortest.
    pub(super) fn fitted(&self, task: Task) -> (Task, usize) {
        let words = words_bytes_max(&task);
        let all = ADMISSION_BYTES + words + record::TAIL_JSON_BYTES_MAX as u64;
        if !task.status.is_settled() || self.has_room(all) {
            return (task, record::TAIL_JSON_BYTES_MAX);
        }
        let others = self.reserve.bytes_of_others(&task.spec.id);
        let taken = self.in_flight_bytes + self.pending.bytes() + others;
        let free = usize::try_from(self.standing.room.saturating_sub(taken)).unwrap_or(0);
        let bytes = record::task_bytes(&task);
        if bytes + SHORT_TAIL_BYTES <= free {
            (task, SHORT_TAIL_BYTES)
        } else if bytes <= free {
            (task, 0)
        } else {
            (shortened(task), 0)
        }
    }
}

/// More than the words of an outcome can take in a record.
fn words_bytes_max(task: &Task) -> u64 {
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
fn shortened(mut task: Task) -> Task {
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
