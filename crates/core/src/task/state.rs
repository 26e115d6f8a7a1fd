//! The live tasks and the indices that answer every question of a step in O(log n).
//!
//! Owns: [`TaskState`] and the agreement of its indices, which only `put`, `take` and
//! `change` touch. Deliberately absent: rules (`step`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::line::Line;
use super::{LIMIT_MAX, OUTPUT_INTERVAL_MS, Refusal, RequestId, StopReason};
use super::{Task, TaskBounds, TaskSpec, TaskStatus};
use crate::clock::{BootTime, Now};
use crate::id::TaskId;

/// Why a task is still queued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// For its turn: as many tasks run as may, or others came first.
    Limit,
    /// For the task before it in the same session to settle.
    Session(TaskId),
}

/// A live task and what is not journaled of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) task: Task,
    /// Whether the host still holds prompt, argv and environment.
    pub(super) input_held: bool,
    /// There exactly while the task is running.
    pub(super) run: Option<Box<Run>>,
}

/// The current run of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Run {
    /// Why it was told to stop, if it was.
    pub(super) stop: Option<StopReason>,
    /// When it will be told to; `None` once it was.
    pub(super) deadline: Option<BootTime>,
    /// Who waits for its end, at most [`CANCELS_PER_RUN_MAX`](super::CANCELS_PER_RUN_MAX).
    pub(super) cancels: Vec<RequestId>,
    /// Lines written so far; `Task::log_lines` follows at a bounded rate.
    pub(super) lines: u64,
    /// When a change last told of output alone.
    pub(super) output_told: Option<BootTime>,
}

impl Run {
    /// When output may be told of again; `None` means at once.
    pub(super) fn output_due(&self) -> Option<BootTime> {
        self.output_told.map(|told| told.after(Duration::from_millis(OUTPUT_INTERVAL_MS)))
    }
}

/// Everything the machine knows. A plain value: clone it, compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskState {
    bounds: TaskBounds,
    pub(super) limit: u8,
    pub(super) shutting_down: bool,
    /// Whether restored tasks still have to be interrupted.
    pub(super) recovery_due: bool,
    next_order: u64,
    slots: BTreeMap<u64, Slot>,
    orders: BTreeMap<TaskId, u64>,
    line: Line,
}

impl TaskState {
    /// No tasks and the default limit.
    pub fn new(bounds: TaskBounds) -> Self {
        Self {
            bounds,
            limit: bounds.limit_default.clamp(1, LIMIT_MAX),
            shutting_down: false,
            recovery_due: false,
            next_order: 1,
            slots: BTreeMap::new(),
            orders: BTreeMap::new(),
            line: Line::default(),
        }
    }

    /// The tasks of an earlier daemon, as journaled. Their inputs are not held, and none of them is
    /// started again: the next step, whatever its input, interrupts what is unfinished.
    ///
    /// Of several tasks with one id the last one counts; an `order` that repeats is moved up.
    pub fn restore(bounds: TaskBounds, limit: u8, tasks: Vec<Task>) -> Self {
        let mut state = Self::new(bounds);
        state.limit = limit.clamp(1, LIMIT_MAX);
        state.recovery_due = true;
        let by_id: BTreeMap<TaskId, Task> =
            tasks.into_iter().map(|task| (task.spec.id.clone(), task)).collect();
        let mut tasks: Vec<Task> = by_id.into_values().collect();
        tasks.sort_by_key(|task| task.order);
        for mut task in tasks {
            task.order = task.order.max(state.next_order);
            state.next_order = task.order.saturating_add(1);
            let run = (task.status == TaskStatus::Running).then(Box::default);
            state.put(Slot { task, input_held: false, run });
        }
        state
    }

    /// The live task with this id.
    pub fn get(&self, id: &TaskId) -> Option<&Task> {
        self.slot(self.order_of(id)?).map(|slot| &slot.task)
    }

    /// The live tasks by their order.
    pub fn iter(&self) -> impl Iterator<Item = &Task> {
        self.slots.values().map(|slot| &slot.task)
    }

    /// How many tasks are live.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no task is live.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many tasks may run at the same time.
    pub fn limit(&self) -> u8 {
        self.limit
    }

    /// How many tasks run. More than the limit only after the limit was lowered.
    pub fn running(&self) -> usize {
        self.line.running.len()
    }

    /// How many tasks wait.
    pub fn queued(&self) -> usize {
        self.line.queued
    }

    /// How many tasks have not settled.
    pub fn unfinished(&self) -> usize {
        self.running() + self.queued()
    }

    /// Whether [`Input::Shutdown`](super::Input::Shutdown) has come.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// When a [`Input::Tick`](super::Input::Tick) is due; ask again after every step.
    pub fn next_deadline(&self) -> Option<BootTime> {
        self.line.running.iter().filter_map(|order| self.slot(*order)).filter_map(due).min()
    }

    /// Why this task is queued; `None` when it is not.
    pub fn waits_for(&self, id: &TaskId) -> Option<Waiting> {
        let task = self.get(id).filter(|task| task.status == TaskStatus::Queued)?;
        let before = task.spec.session.as_ref().and_then(|session| {
            let order = self.line.sessions.get(session)?.range(..task.order).next_back()?;
            self.slot(*order)
        });
        Some(before.map_or(Waiting::Limit, |slot| Waiting::Session(slot.task.spec.id.clone())))
    }

    /// Why an approval for this task is refused; it always is.
    pub fn approval_refusal(&self, id: &TaskId) -> Refusal {
        match self.get(id) {
            Some(task) if task.status == TaskStatus::Running => Refusal::ApprovalUnsupported,
            _ => Refusal::NotRunning,
        }
    }

    /// The wall-clock limit of the runs of this task.
    pub fn timeout_of(&self, spec: &TaskSpec) -> Duration {
        spec.timeout.unwrap_or(self.bounds.timeout_default)
    }

    pub(super) fn live_tasks_max(&self) -> usize {
        self.bounds.live_tasks_max
    }

    pub(super) fn order_of(&self, id: &TaskId) -> Option<u64> {
        self.orders.get(id).copied()
    }

    pub(super) fn slot(&self, order: u64) -> Option<&Slot> {
        self.slots.get(&order)
    }

    /// The current run of the task at `order`; nothing of it is indexed.
    pub(super) fn run_mut(&mut self, order: u64) -> Option<&mut Run> {
        self.slots.get_mut(&order)?.run.as_deref_mut()
    }

    pub(super) fn running_orders(&self) -> Vec<u64> {
        self.line.running.iter().copied().collect()
    }

    /// The orders of all tasks that have not settled. A scan: recovery and shutdown only.
    pub(super) fn unfinished_orders(&self) -> Vec<u64> {
        self.iter().filter(|task| !task.status.is_settled()).map(|task| task.order).collect()
    }

    pub(super) fn first_ready(&self) -> Option<u64> {
        self.line.ready.first().copied()
    }

    pub(super) fn settled_len(&self) -> usize {
        self.line.settled.len()
    }

    pub(super) fn oldest_settled(&self) -> Option<u64> {
        self.line.settled.first().map(|(_, order)| *order)
    }

    /// The next place in the line.
    pub(super) fn draw_order(&mut self) -> u64 {
        let order = self.next_order;
        self.next_order = order.saturating_add(1);
        order
    }

    /// Changes the task at `order` and gives it as it is then.
    pub(super) fn change(
        &mut self,
        order: u64,
        now: Now,
        change: impl FnOnce(&mut Slot),
    ) -> Option<Task> {
        let slot = self.slots.get_mut(&order)?;
        self.line.leave(&slot.task);
        change(slot);
        slot.task.updated_at = slot.task.updated_at.max(now.wall);
        self.line.enter(&slot.task);
        Some(slot.task.clone())
    }

    /// Moves a settled task to a new place at the end of the line.
    pub(super) fn move_to_end(&mut self, order: u64) -> Option<u64> {
        let mut slot = self.take(order)?;
        slot.task.order = self.draw_order();
        let order = slot.task.order;
        self.put(slot);
        Some(order)
    }

    pub(super) fn put(&mut self, slot: Slot) {
        let order = slot.task.order;
        self.orders.insert(slot.task.spec.id.clone(), order);
        self.line.enter(&slot.task);
        self.slots.insert(order, slot);
    }

    pub(super) fn take(&mut self, order: u64) -> Option<Slot> {
        let slot = self.slots.remove(&order)?;
        self.orders.remove(&slot.task.spec.id);
        self.line.leave(&slot.task);
        Some(slot)
    }
}

/// When this running task needs a tick.
fn due(slot: &Slot) -> Option<BootTime> {
    let run = slot.run.as_ref()?;
    let output = run.output_due().filter(|_| run.lines > slot.task.log_lines);
    run.deadline.into_iter().chain(output).min()
}
