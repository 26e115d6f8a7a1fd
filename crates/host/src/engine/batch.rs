//! What steps want done, gathered until it is durable: records, the frames that will tell clients,
//! and everything that waits for both, in the order of the steps.

use std::ops::Range;

use bytes::Bytes;
use ostler_core::id::{RunId, TaskId};
use ostler_core::task::{Effect, Task};

use super::commands::Reply;
use super::feed::{Feed, Publication, Published, SharedTail};
use super::record;
use super::store;

/// Bytes of records a batch gathers before the engine takes no further commands: the disk is the
/// bottleneck then, and the command queue answers for it.
const BATCH_BYTES_MAX: usize = 1024 * 1024;

/// Effects a batch gathers before the same.
const BATCH_EFFECTS_MAX: usize = 8_192;

/// What waits for a batch to be durable.
pub(super) enum Later {
    /// An effect of the machine.
    Effect(Effect),
    /// A list, to be read when everything before it is shown.
    List(Reply),
    /// A refusal whose reason is a state that is not durable yet.
    Refusal(Reply, String),
}

/// See the module's documentation.
pub(super) struct Pending {
    records: store::Batch,
    /// Ids that leave with the next record.
    gone: Vec<TaskId>,
    frames: Vec<u8>,
    publications: Vec<Publication>,
    later: Vec<Later>,
    awaited: bool,
    next_sequence: u64,
    frame_bytes_max: usize,
}

impl Pending {
    pub(super) fn new(next_sequence: u64, frame_bytes_max: usize) -> Self {
        Self {
            records: store::Batch::default(),
            gone: Vec::new(),
            frames: Vec::new(),
            publications: Vec::new(),
            later: Vec::new(),
            awaited: false,
            next_sequence,
            frame_bytes_max,
        }
    }

    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.later.is_empty()
    }

    /// Whether something has to become durable first.
    pub(super) fn changes_something(&self) -> bool {
        !self.records.is_empty()
    }

    /// Whether somebody waits for it: a client for an answer, or a run for its start or stop.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// Whether commands may still join.
    pub(super) fn takes_more(&self) -> bool {
        self.records.records.len() < BATCH_BYTES_MAX && self.later.len() < BATCH_EFFECTS_MAX
    }

    /// Bytes of records so far.
    pub(super) fn bytes(&self) -> u64 {
        self.records.records.len() as u64
    }

    /// Takes what was gathered; the numbering goes on.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::new(self.next_sequence, self.frame_bytes_max))
    }

    pub(super) fn take_records(&mut self) -> store::Batch {
        std::mem::take(&mut self.records)
    }

    /// Uses the memory of an earlier batch again.
    pub(super) fn reuse(&mut self, records: store::Batch) {
        if self.records.is_empty() && self.records.leaving.is_empty() {
            self.records = records;
        }
    }

    pub(super) fn later(&mut self, effect: Effect) {
        self.awaited |= !matches!(effect, Effect::DropInput { .. });
        self.later.push(Later::Effect(effect));
    }

    pub(super) fn refusal(&mut self, reply: Reply, text: String) {
        self.awaited = true;
        self.later.push(Later::Refusal(reply, text));
    }

    pub(super) fn list(&mut self, reply: Reply) {
        self.awaited = true;
        self.later.push(Later::List(reply));
    }

    pub(super) fn archive(&mut self, task: Task, tail: Option<SharedTail>) {
        let id = task.spec.id.clone();
        let updated_at = task.updated_at;
        let mut record = Vec::new();
        record::encode_task(
            &mut record,
            &Published { task, tail },
            record::TAIL_JSON_BYTES_MAX,
            &[],
        );
        self.records.leaving.push(super::archive::Leaving { id: id.clone(), updated_at, record });
        self.publications.push(Publication::Gone(id.clone()));
        self.gone.push(id);
    }

    pub(super) fn change(&mut self, task: Task, tail: Option<SharedTail>, tail_bytes_max: usize) {
        let published = Published { task, tail };
        let sequence = self.number();
        let settled = published.task.status.is_settled();
        let gone = std::mem::take(&mut self.gone);
        let tail_bytes_max = if settled { tail_bytes_max } else { 0 };
        let records = &mut self.records.records;
        let frame = if published.tail.is_none() {
            let (frames, max) = (&mut self.frames, self.frame_bytes_max);
            record::encode_both(records, frames, sequence, &published.task, &gone, max)
        } else {
            record::encode_task(records, &published, tail_bytes_max, &gone);
            None
        };
        self.records.ends.push(self.records.records.len());
        self.publications.push(Publication::Task { published, frame });
    }

    pub(super) fn limit(&mut self, limit: u8) {
        let sequence = self.number();
        record::encode_limit(&mut self.records.records, limit);
        self.records.ends.push(self.records.records.len());
        let frame: Range<usize> =
            record::encode_limit_frame(&mut self.frames, sequence, limit, self.frame_bytes_max);
        self.publications.push(Publication::Limit { limit, frame });
    }

    fn number(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    /// The runs that will start with this batch.
    pub(super) fn starts(&self) -> impl Iterator<Item = &RunId> {
        self.later.iter().filter_map(|later| match later {
            Later::Effect(Effect::Start { run }) => Some(run),
            _ => None,
        })
    }

    /// The requests that this batch answers.
    pub(super) fn requests(&self) -> Vec<u64> {
        self.later
            .iter()
            .filter_map(|later| match later {
                Later::Effect(Effect::Answer { request, .. }) => Some(request.0),
                _ => None,
            })
            .collect()
    }

    pub(super) fn publish(&mut self, feed: &Feed) {
        if !self.publications.is_empty() {
            feed.publish(
                std::mem::take(&mut self.publications),
                Bytes::from(std::mem::take(&mut self.frames)),
            );
        }
    }

    pub(super) fn into_effects(self) -> Vec<Later> {
        self.later
    }
}
