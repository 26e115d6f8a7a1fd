//! The rules once more, as plainly as they can be said: one list in the order of the line, scans for
//! every question, nothing kept that can be worked out.

use std::sync::Arc;
use std::time::Duration;

use ostler_core::clock::{BootTime, Now};
use ostler_core::id::{RunId, TaskId};
use ostler_core::outcome::{Failure, FailureClass, Outcome, Verdict};
use ostler_core::task::{
    Effect, EndStatus, Input, Refusal, Reply, RequestId, RunEnd, StopReason, Task, TaskBounds,
    TaskStatus, Waiting,
};

use TaskStatus::{Cancelled, Completed, Failed, Interrupted, Queued, Running};

pub(crate) struct Entry {
    pub(crate) task: Task,
    input: bool,
    started: BootTime,
    stop: Option<StopReason>,
    cancels: Vec<RequestId>,
    lines: u64,
    output_told: Option<BootTime>,
}

impl Entry {
    fn new(task: Task, input: bool) -> Self {
        let started = BootTime::default();
        let (stop, cancels, lines, output_told) = (None, Vec::new(), 0, None);
        Self { task, input, started, stop, cancels, lines, output_told }
    }

    fn run(&self) -> RunId {
        RunId { task: self.task.spec.id.clone(), attempt: self.task.attempt }
    }
}

pub(crate) struct Model {
    bounds: TaskBounds,
    pub(crate) limit: u8,
    /// By `task.order`.
    pub(crate) entries: Vec<Entry>,
    next_order: u64,
    shutting_down: bool,
    fresh_restore: bool,
}

impl Model {
    pub(crate) fn new(bounds: TaskBounds) -> Self {
        Self {
            bounds,
            limit: bounds.limit_default,
            entries: Vec::new(),
            next_order: 1,
            shutting_down: false,
            fresh_restore: false,
        }
    }

    pub(crate) fn restore(bounds: TaskBounds, limit: u8, mut tasks: Vec<Task>) -> Self {
        tasks.sort_by_key(|task| task.order);
        let next_order = tasks.last().map_or(1, |task| task.order + 1);
        let entries = tasks.into_iter().map(|task| Entry::new(task, false)).collect();
        Self { limit, entries, next_order, fresh_restore: true, ..Self::new(bounds) }
    }

    pub(crate) fn get(&self, id: &TaskId) -> Option<&Task> {
        self.find(id).map(|at| &self.entries[at].task)
    }

    fn find(&self, id: &TaskId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.task.spec.id == *id)
    }

    /// The nearest unfinished task of the same session before this place.
    fn before_in_session(&self, at: usize) -> Option<&Task> {
        let session = self.entries[at].task.spec.session.as_ref()?;
        self.entries[..at]
            .iter()
            .rev()
            .map(|entry| &entry.task)
            .find(|task| task.spec.session.as_ref() == Some(session) && !task.status.is_settled())
    }

    pub(crate) fn waits_for(&self, id: &TaskId) -> Option<Waiting> {
        let at = self.find(id)?;
        if self.entries[at].task.status != Queued {
            return None;
        }
        Some(match self.before_in_session(at) {
            Some(task) => Waiting::Session(task.spec.id.clone()),
            None => Waiting::Limit,
        })
    }

    fn timeout(&self, task: &Task) -> Duration {
        task.spec.timeout.unwrap_or(self.bounds.timeout_default)
    }

    pub(crate) fn next_deadline(&self) -> Option<BootTime> {
        let mut all = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.task.status == Running) {
            if entry.stop.is_none() && !self.fresh_restore {
                all.push(entry.started.after(self.timeout(&entry.task)));
            }
            if let Some(told) = entry.output_told
                && entry.lines > entry.task.log_lines
            {
                all.push(told.after(Duration::from_secs(1)));
            }
        }
        all.into_iter().min()
    }

    pub(crate) fn step(&mut self, input: Input, now: Now) -> Vec<Effect> {
        let mut out = Vec::new();
        if self.fresh_restore {
            self.fresh_restore = false;
            for at in 0..self.entries.len() {
                if !self.entries[at].task.status.is_settled() {
                    self.become_(at, Interrupted, now, &mut out);
                }
            }
        }
        match input {
            Input::Submit { request, spec, known_elsewhere } => {
                let unfinished =
                    self.entries.iter().filter(|entry| !entry.task.status.is_settled()).count();
                let live_tasks_max = self.bounds.live_tasks_max;
                let result = if known_elsewhere || self.find(&spec.id).is_some() {
                    Err(Refusal::AlreadyExists)
                } else if self.shutting_down {
                    Err(Refusal::ShuttingDown)
                } else if unfinished >= live_tasks_max {
                    Err(Refusal::LiveSetFull { live_tasks_max })
                } else {
                    while self.entries.len() >= live_tasks_max {
                        self.archive_oldest(&mut out);
                    }
                    let task = Task {
                        spec: Arc::new(spec),
                        order: self.next_order,
                        status: Queued,
                        attempt: 1,
                        updated_at: now.wall,
                        log_lines: 0,
                        outcome: None,
                    };
                    self.next_order += 1;
                    out.push(Effect::Changed { task: task.clone() });
                    self.entries.push(Entry::new(task.clone(), true));
                    Ok(Reply::Submitted(task))
                };
                out.push(Effect::Answer { request, result });
            }
            Input::Cancel { request, task } => self.cancel(request, &task, now, &mut out),
            Input::Retry { request, task } => {
                let result = self.retry(&task, now, &mut out).map(Reply::Queued);
                out.push(Effect::Answer { request, result });
            }
            Input::SetLimit { request, limit } => {
                let result = if limit == 0 || limit > 32 {
                    Err(Refusal::LimitOutOfRange)
                } else {
                    self.limit = limit;
                    out.push(Effect::LimitChanged { limit });
                    Ok(Reply::Limit(limit))
                };
                out.push(Effect::Answer { request, result });
            }
            Input::Output { run, log_lines } => {
                if let Some(at) = self.find_run(&run) {
                    self.entries[at].lines = self.entries[at].lines.max(log_lines);
                    self.tell_output(at, now, &mut out);
                }
            }
            Input::Ended { run, end } => {
                if let Some(at) = self.find_run(&run) {
                    self.end(at, end, now, &mut out);
                }
            }
            Input::Tick => {
                for at in 0..self.entries.len() {
                    if self.entries[at].task.status == Running {
                        let deadline =
                            self.entries[at].started.after(self.timeout(&self.entries[at].task));
                        if now.boot >= deadline {
                            self.stop(at, StopReason::Deadline, &mut out);
                        }
                        self.tell_output(at, now, &mut out);
                    }
                }
            }
            Input::Recover => {}
            Input::Shutdown => {
                for at in 0..self.entries.len() {
                    match self.entries[at].task.status {
                        Queued => self.become_(at, Interrupted, now, &mut out),
                        Running => self.stop(at, StopReason::Shutdown, &mut out),
                        _ => {}
                    }
                }
                self.shutting_down = true;
            }
        }
        self.start(now, &mut out);
        out
    }

    fn find_run(&self, run: &RunId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.task.status == Running && entry.run() == *run)
    }

    fn become_(&mut self, at: usize, status: TaskStatus, now: Now, out: &mut Vec<Effect>) {
        self.entries[at].task.status = status;
        self.changed(at, now, out);
    }

    fn changed(&mut self, at: usize, now: Now, out: &mut Vec<Effect>) {
        let task = &mut self.entries[at].task;
        task.updated_at = task.updated_at.max(now.wall);
        out.push(Effect::Changed { task: task.clone() });
    }

    fn archive_oldest(&mut self, out: &mut Vec<Effect>) {
        let (at, _) = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.task.status.is_settled())
            .min_by_key(|(_, entry)| (entry.task.updated_at, entry.task.order))
            .unwrap();
        let entry = self.entries.remove(at);
        let id = entry.task.spec.id.clone();
        out.push(Effect::Archived { task: entry.task });
        if entry.input {
            out.push(Effect::DropInput { task: id });
        }
    }

    fn cancel(&mut self, request: RequestId, id: &TaskId, now: Now, out: &mut Vec<Effect>) {
        let result = match self.find(id).map(|at| (at, self.entries[at].task.status)) {
            None => Err(Refusal::UnknownTask),
            Some((at, Queued)) => {
                self.become_(at, Cancelled, now, out);
                Ok(Reply::Cancelled(self.entries[at].task.clone()))
            }
            Some((at, Running)) if self.entries[at].cancels.len() < 64 => {
                self.entries[at].cancels.push(request);
                self.stop(at, StopReason::Cancel, out);
                return;
            }
            Some((_, Running)) => Err(Refusal::TooManyCancels),
            Some(_) => Err(Refusal::NotActive),
        };
        out.push(Effect::Answer { request, result });
    }

    fn stop(&mut self, at: usize, reason: StopReason, out: &mut Vec<Effect>) {
        if self.entries[at].stop.is_none() {
            self.entries[at].stop = Some(reason);
            out.push(Effect::Stop { run: self.entries[at].run(), reason });
        }
    }

    fn retry(&mut self, id: &TaskId, now: Now, out: &mut Vec<Effect>) -> Result<Task, Refusal> {
        let at = self.find(id).ok_or(Refusal::UnknownTask)?;
        match self.entries[at].task.status {
            Queued | Running => return Err(Refusal::ActiveRetry),
            Completed => return Err(Refusal::CompletedRetry),
            _ if !self.entries[at].input => return Err(Refusal::InputUnavailable),
            _ if self.shutting_down => return Err(Refusal::ShuttingDown),
            _ => {}
        }
        let Entry { task, input, .. } = self.entries.remove(at);
        let task = Task {
            order: self.next_order,
            status: Queued,
            attempt: task.attempt + 1,
            log_lines: 0,
            outcome: None,
            ..task
        };
        self.next_order += 1;
        self.entries.push(Entry::new(task, input));
        let last = self.entries.len() - 1;
        self.changed(last, now, out);
        Ok(self.entries[last].task.clone())
    }

    fn tell_output(&mut self, at: usize, now: Now, out: &mut Vec<Effect>) {
        let entry = &mut self.entries[at];
        let told_lately =
            entry.output_told.is_some_and(|told| now.boot.since(told) < Duration::from_secs(1));
        if entry.lines > entry.task.log_lines && !told_lately {
            entry.task.log_lines = entry.lines;
            entry.output_told = Some(now.boot);
            self.changed(at, now, out);
        }
    }

    fn end(&mut self, at: usize, end: RunEnd, now: Now, out: &mut Vec<Effect>) {
        let seconds = self.timeout(&self.entries[at].task).as_secs();
        let entry = &mut self.entries[at];
        let class = end.outcome.failure.as_ref().map(|failure| failure.class);
        let kill_failed = class == Some(FailureClass::KillFailed);
        let status = if kill_failed {
            Failed
        } else if end.status == EndStatus::Completed {
            Completed
        } else if end.status == EndStatus::Failed {
            Failed
        } else {
            match entry.stop {
                Some(StopReason::Cancel) => Cancelled,
                Some(StopReason::Shutdown) => Interrupted,
                Some(StopReason::Deadline) | None => Failed,
            }
        };
        let late = end.status == EndStatus::Stopped && entry.stop == Some(StopReason::Deadline);
        let agent = match entry.task.spec.agent.as_deref() {
            Some("claude_code") => "claude_code",
            _ => "agent-cli",
        };
        let failure = if status != Failed {
            None
        } else if late && !kill_failed {
            let text = format!("{agent} exceeded its {seconds} second runtime limit");
            Some(Failure::new(FailureClass::Timeout, text))
        } else {
            let unknown = "the run failed and no reason is known";
            Some(end.outcome.failure.unwrap_or(Failure::new(FailureClass::Unknown, unknown)))
        };
        let mut receipt = end.outcome.receipt;
        receipt.verdict = match (status, receipt.verdict) {
            (Completed, Verdict::SucceededNoVisibleEffect | Verdict::SucceededWithWarnings) => {
                receipt.verdict
            }
            (Completed, _) => Verdict::Succeeded,
            (Cancelled, _) => Verdict::Cancelled,
            (Interrupted, _) => Verdict::Interrupted,
            _ => Verdict::Failed,
        };
        entry.task.outcome = Some(Arc::new(Outcome { failure, receipt, ..end.outcome }));
        entry.task.log_lines = entry.lines;
        let cancels = std::mem::take(&mut entry.cancels);
        let dropped = status == Completed && std::mem::take(&mut entry.input);
        self.become_(at, status, now, out);
        let task = &self.entries[at].task;
        if dropped {
            out.push(Effect::DropInput { task: task.spec.id.clone() });
        }
        for request in cancels {
            let result = match status {
                Cancelled => Ok(Reply::Cancelled(task.clone())),
                _ if kill_failed => Err(Refusal::KillFailed),
                _ => Err(Refusal::NotActive),
            };
            out.push(Effect::Answer { request, result });
        }
    }

    fn start(&mut self, now: Now, out: &mut Vec<Effect>) {
        for at in 0..self.entries.len() {
            let running = self.entries.iter().filter(|entry| entry.task.status == Running).count();
            if self.shutting_down || running >= usize::from(self.limit) {
                return;
            }
            if self.entries[at].task.status == Queued && self.before_in_session(at).is_none() {
                self.entries[at].started = now.boot;
                self.become_(at, Running, now, out);
                out.push(Effect::Start { run: self.entries[at].run() });
            }
        }
    }
}
