//! A runner that does what the test says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ostler_core::clock::Timestamp;
use ostler_core::id::RunId;
use ostler_core::outcome::{Exit, Failure, FailureClass, Outcome, Proof, Receipt, Verdict};
use ostler_core::task::{EndStatus, RunEnd, StopReason};
use ostler_host::runner::{LogSink, RunFuture, RunOrder, StopSignal, TaskRunner};
use tokio::sync::oneshot;

use super::raw::wait_for;

/// A prompt for runs that succeed at once.
pub(crate) const AT_ONCE: &str = "at once";

/// A prompt for runs that a stop does not end; the test ends them.
pub(crate) const STUBBORN: &str = "stubborn";

struct Live {
    log: LogSink,
    end: Option<oneshot::Sender<RunEnd>>,
}

#[derive(Default)]
struct State {
    /// Every run that was ever started, in order, with its prompt.
    started: Vec<(RunId, String)>,
    live: HashMap<String, Live>,
    stops: Vec<(RunId, StopReason)>,
    /// What is done on the daemon's own thread when a task is started.
    at_start: HashMap<String, AtStart>,
    /// The same when a start of the daemon finds a task that was running.
    at_recovery: Option<AtStart>,
}

type AtStart = Box<dyn FnOnce() + Send>;

/// Clones share one state, also across restarts of the daemon.
#[derive(Clone, Default)]
pub(crate) struct Scripted(Arc<Mutex<State>>);

impl Scripted {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Task and attempt of every run so far, in order.
    pub(crate) fn started(&self) -> Vec<(String, u32)> {
        let state = self.lock();
        let runs = state.started.iter();
        runs.map(|(run, _)| (run.task.to_string(), run.attempt)).collect()
    }

    pub(crate) fn prompts(&self) -> Vec<String> {
        let state = self.lock();
        let prompts = state.started.iter().map(|(_, prompt)| prompt.clone());
        prompts.collect()
    }

    pub(crate) fn stops(&self) -> Vec<(String, StopReason)> {
        let state = self.lock();
        let stops = state.stops.iter();
        stops.map(|(run, reason)| (run.task.to_string(), *reason)).collect()
    }

    #[track_caller]
    pub(crate) fn wait_started(&self, task: &str, attempt: u32) {
        wait_for(&format!("{task} is started"), || {
            let wanted = (task.to_owned(), attempt);
            self.started().contains(&wanted).then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn wait_stopped(&self, task: &str) -> StopReason {
        wait_for(&format!("{task} is told to stop"), || {
            let stops = self.stops();
            let stop = stops.iter().find(|(stopped, _)| stopped == task);
            stop.map(|(_, reason)| *reason)
        })
    }

    #[track_caller]
    pub(crate) fn log(&self, task: &str) -> LogSink {
        self.lock().live.get(task).expect("a live run").log.clone()
    }

    /// Does this on the daemon's own thread when the task is started: nothing else happens meanwhile.
    pub(crate) fn at_start(&self, task: &str, work: impl FnOnce() + Send + 'static) {
        self.lock().at_start.insert(task.to_owned(), Box::new(work));
    }

    /// The same when a start of the daemon finds a task that was running.
    pub(crate) fn at_recovery(&self, work: impl FnOnce() + Send + 'static) {
        self.lock().at_recovery = Some(Box::new(work));
    }

    pub(crate) fn line(&self, task: &str, line: &str) {
        self.log(task).line(line);
    }

    /// Ends the task's run.
    #[track_caller]
    pub(crate) fn end(&self, task: &str, end: RunEnd) {
        let mut live = self.lock().live.remove(task).expect("a live run");
        live.end.take().unwrap().send(end).ok().unwrap();
    }

    /// Drops the way to end the run: the runner panics.
    pub(crate) fn forget(&self, task: &str) {
        self.lock().live.remove(task).expect("a live run");
    }

    pub(crate) fn complete(&self, task: &str) {
        self.end(task, end(EndStatus::Completed, None));
    }

    pub(crate) fn fail(&self, task: &str, message: &str) {
        let failure = Failure::new(FailureClass::ExitStatus, message);
        self.end(task, end(EndStatus::Failed, Some(failure)));
    }
}

/// The end of a run of which nothing is left.
pub(crate) fn end(status: EndStatus, failure: Option<Failure>) -> RunEnd {
    let receipt = Receipt {
        agent: "scripted".to_owned(),
        agent_version: None,
        proof: Some(Proof::TerminalEvent),
        statement: None,
        exit: Some(Exit::Code(0)),
        started_at: None,
        ended_at: Timestamp::from_micros(1_767_323_045_678_901),
        session_id: None,
        git: None,
        denials: Vec::new(),
        killed: Vec::new(),
        kept: Vec::new(),
        output_bytes: 0,
        truncated: false,
        verdict: Verdict::Succeeded,
    };
    RunEnd {
        status,
        outcome: Outcome { failure, receipt, text: None, usage: None, cost_micros: None },
    }
}

impl TaskRunner for Scripted {
    fn abandoned(&self, _run: &RunId) -> Vec<String> {
        let at_recovery = self.lock().at_recovery.take();
        if let Some(work) = at_recovery {
            work();
        }
        Vec::new()
    }

    fn run(&self, order: RunOrder, log: LogSink, mut stop: StopSignal) -> RunFuture {
        let task = order.run.task.to_string();
        let (sender, receiver) = oneshot::channel();
        let prompt = order.input.prompt.clone();
        let at_start = self.lock().at_start.remove(&task);
        if let Some(work) = at_start {
            work();
        }
        {
            let mut state = self.lock();
            state.started.push((order.run.clone(), prompt.clone()));
            if prompt != AT_ONCE {
                let end = Some(sender);
                state.live.insert(task.clone(), Live { log, end });
            }
        }
        let this = self.clone();
        Box::pin(async move {
            if prompt == AT_ONCE {
                return end(EndStatus::Completed, None);
            }
            tokio::pin!(receiver);
            tokio::select! {
                biased;
                end = &mut receiver => return end.expect("the test ends the run"),
                reason = stop.stopped() => this.lock().stops.push((order.run, reason)),
            }
            if prompt == STUBBORN {
                return receiver.await.expect("the test ends the run");
            }
            this.lock().live.remove(&task);
            end(EndStatus::Stopped, None)
        })
    }
}
