//! The runs that are live: their stop switches, log queues and tails, and when their output is next
//! worth an event.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostler_core::id::RunId;
use ostler_core::outcome::{Failure, FailureClass, Outcome, Receipt, Verdict};
use ostler_core::task::{EndStatus, RunEnd, StopReason, Task, TaskStatus};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::RunnerEvent;
use super::feed::SharedTail;
use crate::redact::Input;
use crate::runner::{LogSink, RunOrder, StopSignal, TaskRunner};
use crate::tail::{Tail, TailBounds};

/// Output alone makes at most one event in this time, for one task (runtime.md, "Running a task").
const OUTPUT_EVENT_EVERY: Duration = Duration::from_secs(1);

struct LiveRun {
    sink: LogSink,
    stop: watch::Sender<Option<StopReason>>,
    tail: Option<SharedTail>,
    /// What no line may show.
    hidden: Arc<Input>,
    last_event: Option<Instant>,
    due: Option<Instant>,
    work: JoinHandle<()>,
}

pub(super) struct LiveRuns {
    runs: HashMap<RunId, LiveRun>,
    events: mpsc::Sender<RunnerEvent>,
}

impl LiveRuns {
    pub(super) fn new(events: mpsc::Sender<RunnerEvent>) -> Self {
        Self {
            runs: HashMap::new(),
            events,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Starts a run; its end comes as an event, also when the runner panics.
    pub(super) fn start(&mut self, order: RunOrder, runner: &Arc<dyn TaskRunner>) {
        let run = order.run.clone();
        let (stop, signal) = StopSignal::new();
        let sink = LogSink::new(run.clone(), self.events.clone());
        let hidden = Arc::new(Input::new(&order.input.prompt));
        let agent = order.spec.agent.clone().unwrap_or_default();
        let future = tokio::spawn(runner.run(order, sink.clone(), signal));
        let events = self.events.clone();
        let id = run.clone();
        let work = tokio::spawn(async move {
            let end = future.await.unwrap_or_else(|_| runner_failed(agent));
            // The engine is gone only when the daemon ends; nobody is left to tell then.
            let _ = events
                .send(RunnerEvent::Ended {
                    run: id,
                    end: Box::new(end),
                })
                .await;
        });
        self.runs.insert(
            run,
            LiveRun {
                sink,
                stop,
                tail: None,
                hidden,
                last_event: None,
                due: None,
                work,
            },
        );
    }

    pub(super) fn stop(&self, run: &RunId, reason: StopReason) {
        if let Some(live) = self.runs.get(run) {
            live.stop.send_if_modified(|current| {
                let first = current.is_none();
                if first {
                    *current = Some(reason);
                }
                first
            });
        }
    }

    pub(super) fn stop_all(&self, reason: StopReason) {
        for run in self.runs.keys() {
            self.stop(run, reason);
        }
    }

    /// Moves waiting lines into the run's tail. Gives the tail's position when an event is due now;
    /// else it becomes due later.
    pub(super) fn drain(&mut self, run: &RunId, now: Instant) -> Option<u64> {
        let live = self.runs.get_mut(run)?;
        let taken = live.sink.take();
        if taken.lines.is_empty() && !taken.overflowed {
            return None;
        }
        let tail = live.tail.get_or_insert_with(|| {
            Arc::new(Mutex::new(Tail::new(
                TailBounds::default(),
                Some(Arc::clone(&live.hidden)),
            )))
        });
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        for line in &taken.lines {
            tail.push(line);
        }
        if taken.overflowed {
            tail.mark_dropped();
        }
        let position = tail.lines_total();
        drop(tail);
        match live.last_event {
            Some(last) if now < last + OUTPUT_EVENT_EVERY => {
                live.due.get_or_insert(last + OUTPUT_EVENT_EVERY);
                None
            }
            _ => {
                live.last_event = Some(now);
                Some(position)
            }
        }
    }

    pub(super) fn next_output(&self) -> Option<Instant> {
        self.runs.values().filter_map(|live| live.due).min()
    }

    /// The runs whose output is due for an event, with the positions of their tails.
    pub(super) fn take_due_output(&mut self, now: Instant) -> Vec<(RunId, u64)> {
        let mut due = Vec::new();
        for (run, live) in &mut self.runs {
            if live.due.is_some_and(|at| at <= now) {
                live.due = None;
                live.last_event = Some(now);
                if let Some(tail) = &live.tail {
                    due.push((
                        run.clone(),
                        tail.lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .lines_total(),
                    ));
                }
            }
        }
        due
    }

    /// A changed task as it is shown: with the tail of its run as of now. A settled run leaves; the
    /// reason of a failure is its last line.
    pub(super) fn shown(&mut self, mut task: Task) -> (Task, Option<SharedTail>) {
        let run = RunId {
            task: task.spec.id.clone(),
            attempt: task.attempt,
        };
        if task.status.is_settled() {
            let mut tail = self.runs.remove(&run).and_then(|live| live.tail);
            if let (TaskStatus::Failed, Some(outcome)) = (task.status, &task.outcome)
                && let Some(failure) = &outcome.failure
            {
                tail.get_or_insert_with(|| {
                    Arc::new(Mutex::new(Tail::new(TailBounds::default(), None)))
                })
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(&failure.message);
            }
            if let Some(tail) = &tail {
                let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                tail.settle();
                task.log_lines = tail.lines_total();
            }
            (task, tail)
        } else {
            let tail = self
                .runs
                .get(&run)
                .and_then(|live| live.tail.clone())
                .filter(|_| task.log_lines > 0);
            (task, tail)
        }
    }

    /// Gives up on what did not end in time; dropping the runners closes their shims' control pipes,
    /// and the shims end what is left.
    pub(super) fn abandon(&mut self) {
        for live in self.runs.values() {
            live.work.abort();
        }
        self.runs.clear();
    }
}

fn runner_failed(agent: String) -> RunEnd {
    let receipt = Receipt {
        agent,
        agent_version: None,
        proof: None,
        statement: None,
        exit: None,
        started_at: None,
        ended_at: ostler_core::clock::Timestamp::default(),
        session_id: None,
        git: None,
        denials: Vec::new(),
        killed: Vec::new(),
        kept: Vec::new(),
        output_bytes: 0,
        truncated: false,
        verdict: Verdict::Failed,
    };
    let failure = Failure::new(
        FailureClass::Unknown,
        "the task runner ended without a result; this is a bug",
    );
    RunEnd {
        status: EndStatus::Failed,
        outcome: Outcome {
            failure: Some(failure),
            receipt,
            text: None,
            usage: None,
            cost_micros: None,
        },
    }
}
