//! The rules of the task machine.
//!
//! Owns: what every input does, and the order of effects. Deliberately absent: index upkeep
//! (`state`), what a finished run makes of its task (`end`).

use std::sync::Arc;

use super::end::{Settlement, settle};
use super::state::{Run, Slot};
use super::{CANCELS_PER_RUN_MAX, LIMIT_MAX, Task, TaskSpec, TaskState, TaskStatus};
use super::{Effect, Input, Refusal, Reply, RequestId, RunEnd, StopReason};
use crate::clock::Now;
use crate::id::{RunId, TaskId};

/// Applies one input. Everything that can start afterwards is started in the same step.
pub fn step(state: &mut TaskState, input: Input, now: Now) -> Vec<Effect> {
    let mut step = Step { state, now, effects: Vec::new() };
    step.recover();
    match input {
        Input::Submit { request, spec, known_elsewhere } => {
            step.submit(request, spec, known_elsewhere);
        }
        Input::Cancel { request, task } => step.cancel(request, &task),
        Input::Retry { request, task } => step.retry(request, &task),
        Input::SetLimit { request, limit } => step.set_limit(request, limit),
        Input::Output { run, log_lines } => step.output(&run, log_lines),
        Input::Ended { run, end } => step.ended(&run, end),
        Input::Tick => step.tick(),
        Input::Recover => {}
        Input::Shutdown => step.shutdown(),
    }
    step.start_ready();
    step.effects
}

/// One step on its way.
struct Step<'a> {
    state: &'a mut TaskState,
    now: Now,
    effects: Vec<Effect>,
}

impl Step<'_> {
    fn answer(&mut self, request: RequestId, result: Result<Reply, Refusal>) {
        self.effects.push(Effect::Answer { request, result });
    }

    fn refuse(&mut self, request: RequestId, refusal: Refusal) {
        self.answer(request, Err(refusal));
    }

    /// Changes a task and tells of it.
    fn change(&mut self, order: u64, change: impl FnOnce(&mut Slot)) -> Option<Task> {
        let task = self.state.change(order, self.now, change)?;
        self.effects.push(Effect::Changed { task: task.clone() });
        Some(task)
    }

    /// Before anything else of the first step after a restore: nothing restored is started again.
    fn recover(&mut self) {
        if std::mem::take(&mut self.state.recovery_due) {
            for order in self.state.unfinished_orders() {
                self.interrupt(order);
            }
        }
    }

    fn interrupt(&mut self, order: u64) {
        self.change(order, |slot| {
            slot.run = None;
            slot.task.status = TaskStatus::Interrupted;
        });
    }

    fn submit(&mut self, request: RequestId, spec: TaskSpec, known_elsewhere: bool) {
        // First of all, so that whoever repeats a submission learns that it arrived.
        if known_elsewhere || self.state.order_of(&spec.id).is_some() {
            return self.refuse(request, Refusal::AlreadyExists);
        }
        if self.state.shutting_down {
            return self.refuse(request, Refusal::ShuttingDown);
        }
        if !self.make_room() {
            let live_tasks_max = self.state.live_tasks_max();
            return self.refuse(request, Refusal::LiveSetFull { live_tasks_max });
        }
        let task = Task {
            spec: Arc::new(spec),
            order: self.state.draw_order(),
            status: TaskStatus::Queued,
            attempt: 1,
            updated_at: self.now.wall,
            log_lines: 0,
            outcome: None,
        };
        self.state.put(Slot { task: task.clone(), input_held: true, run: None });
        self.effects.push(Effect::Changed { task: task.clone() });
        self.answer(request, Ok(Reply::Submitted(task)));
    }

    /// Archives the oldest settled tasks until one more fits; does nothing when they are too few.
    /// More than one goes only after a restore with a smaller bound.
    fn make_room(&mut self) -> bool {
        let too_many = (self.state.len() + 1).saturating_sub(self.state.live_tasks_max());
        if too_many > self.state.settled_len() {
            return false;
        }
        for _ in 0..too_many {
            let oldest = self.state.oldest_settled().and_then(|order| self.state.take(order));
            let Some(Slot { task, input_held, .. }) = oldest else {
                return false;
            };
            let id = task.spec.id.clone();
            self.effects.push(Effect::Archived { task });
            if input_held {
                self.effects.push(Effect::DropInput { task: id });
            }
        }
        true
    }

    fn cancel(&mut self, request: RequestId, id: &TaskId) {
        let Some(order) = self.state.order_of(id) else {
            return self.refuse(request, Refusal::UnknownTask);
        };
        if let Some(run) = self.state.run_mut(order) {
            if run.cancels.len() >= CANCELS_PER_RUN_MAX {
                return self.refuse(request, Refusal::TooManyCancels);
            }
            run.cancels.push(request);
            return self.stop(order, StopReason::Cancel);
        }
        if !self.has_status(order, TaskStatus::Queued) {
            return self.refuse(request, Refusal::NotActive);
        }
        if let Some(task) = self.change(order, |slot| slot.task.status = TaskStatus::Cancelled) {
            self.answer(request, Ok(Reply::Cancelled(task)));
        }
    }

    fn has_status(&self, order: u64, status: TaskStatus) -> bool {
        self.state.slot(order).is_some_and(|slot| slot.task.status == status)
    }

    /// Tells a run to stop, unless it was told before.
    fn stop(&mut self, order: u64, reason: StopReason) {
        let Some(run) = self.state.run_mut(order) else {
            return;
        };
        if run.stop.is_some() {
            return;
        }
        run.stop = Some(reason);
        run.deadline = None;
        if let Some(slot) = self.state.slot(order) {
            self.effects.push(Effect::Stop { run: run_id(&slot.task), reason });
        }
    }

    fn retry(&mut self, request: RequestId, id: &TaskId) {
        let (order, attempt) = match self.retryable(id) {
            Ok(found) => found,
            Err(refusal) => return self.refuse(request, refusal),
        };
        let Some(order) = self.state.move_to_end(order) else {
            return;
        };
        let task = self.change(order, |slot| {
            slot.task.status = TaskStatus::Queued;
            slot.task.attempt = attempt;
            slot.task.log_lines = 0;
            slot.task.outcome = None;
        });
        if let Some(task) = task {
            self.answer(request, Ok(Reply::Queued(task)));
        }
    }

    /// The place of a task that may be retried and the number its next attempt gets.
    fn retryable(&self, id: &TaskId) -> Result<(u64, u32), Refusal> {
        let slot = self.state.order_of(id).and_then(|order| self.state.slot(order));
        let slot = slot.ok_or(Refusal::UnknownTask)?;
        match slot.task.status {
            TaskStatus::Queued | TaskStatus::Running => return Err(Refusal::ActiveRetry),
            TaskStatus::Completed => return Err(Refusal::CompletedRetry),
            TaskStatus::Failed | TaskStatus::Cancelled | TaskStatus::Interrupted => {}
        }
        if !slot.input_held {
            return Err(Refusal::InputUnavailable);
        }
        if self.state.shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        // An attempt number names a run for good and is never used twice.
        let attempt = slot.task.attempt.checked_add(1).ok_or(Refusal::AttemptsExhausted)?;
        Ok((slot.task.order, attempt))
    }

    fn set_limit(&mut self, request: RequestId, limit: u8) {
        if !(1..=LIMIT_MAX).contains(&limit) {
            return self.refuse(request, Refusal::LimitOutOfRange);
        }
        self.state.limit = limit;
        self.effects.push(Effect::LimitChanged { limit });
        self.answer(request, Ok(Reply::Limit(limit)));
    }

    /// The place of this run's task, while it is the current run.
    fn current(&self, run: &RunId) -> Option<u64> {
        let slot = self.state.slot(self.state.order_of(&run.task)?)?;
        (slot.run.is_some() && slot.task.attempt == run.attempt).then_some(slot.task.order)
    }

    fn output(&mut self, run: &RunId, log_lines: u64) {
        let Some(order) = self.current(run) else {
            return;
        };
        if let Some(run) = self.state.run_mut(order) {
            run.lines = run.lines.max(log_lines);
        }
        self.tell_output(order);
    }

    /// Tells of new lines, if there are any and it is time.
    fn tell_output(&mut self, order: u64) {
        let boot = self.now.boot;
        let Some(slot) = self.state.slot(order) else {
            return;
        };
        let Some(run) = &slot.run else { return };
        if run.lines > slot.task.log_lines && run.output_due().is_none_or(|due| due <= boot) {
            self.change(order, |slot| {
                slot.show_lines();
                if let Some(run) = &mut slot.run {
                    run.output_told = Some(boot);
                }
            });
        }
    }

    fn ended(&mut self, run: &RunId, end: RunEnd) {
        let Some(order) = self.current(run) else {
            return;
        };
        let Some(slot) = self.state.slot(order) else {
            return;
        };
        let spec = Arc::clone(&slot.task.spec);
        let stop = slot.run.as_ref().and_then(|run| run.stop);
        let Settlement { status, outcome, cancels_refused } =
            settle(stop, end, &spec, self.state.timeout_of(&spec));
        let completed = status == TaskStatus::Completed;
        let mut cancels = Vec::new();
        let mut input_dropped = false;
        let task = self.change(order, |slot| {
            slot.show_lines();
            cancels = slot.run.take().map(|run| run.cancels).unwrap_or_default();
            slot.task.status = status;
            slot.task.outcome = Some(Arc::new(outcome));
            input_dropped = completed && std::mem::take(&mut slot.input_held);
        });
        let Some(task) = task else { return };
        if input_dropped {
            self.effects.push(Effect::DropInput { task: task.spec.id.clone() });
        }
        for request in cancels {
            let result = match cancels_refused {
                None => Ok(Reply::Cancelled(task.clone())),
                Some(refusal) => Err(refusal),
            };
            self.answer(request, result);
        }
    }

    fn tick(&mut self) {
        let boot = self.now.boot;
        for order in self.state.running_orders() {
            let deadline = self.state.run_mut(order).and_then(|run| run.deadline);
            if deadline.is_some_and(|deadline| deadline <= boot) {
                self.stop(order, StopReason::Deadline);
            }
            self.tell_output(order);
        }
    }

    fn shutdown(&mut self) {
        if std::mem::replace(&mut self.state.shutting_down, true) {
            return;
        }
        for order in self.state.unfinished_orders() {
            if self.has_status(order, TaskStatus::Queued) {
                self.interrupt(order);
            } else {
                self.stop(order, StopReason::Shutdown);
            }
        }
    }

    /// Starts what may start, first come first served. After a shutdown nothing is left that could:
    /// it has emptied the queue, and nothing is admitted any more.
    fn start_ready(&mut self) {
        for _ in self.state.running()..usize::from(self.state.limit) {
            let Some(order) = self.state.first_ready() else {
                return;
            };
            let Some(slot) = self.state.slot(order) else {
                return;
            };
            let deadline = self.now.boot.after(self.state.timeout_of(&slot.task.spec));
            let run = Run { deadline: Some(deadline), ..Run::default() };
            let task = self.change(order, |slot| {
                slot.task.status = TaskStatus::Running;
                slot.run = Some(Box::new(run));
            });
            let Some(task) = task else { return };
            self.effects.push(Effect::Start { run: run_id(&task) });
        }
    }
}

impl Slot {
    /// Lets the task show every line its run has written.
    fn show_lines(&mut self) {
        if let Some(run) = &self.run {
            self.task.log_lines = run.lines;
        }
    }
}

fn run_id(task: &Task) -> RunId {
    RunId { task: task.spec.id.clone(), attempt: task.attempt }
}
