//! The runs that are live: their stop switches, log queues and tails.

use std::borrow::Cow;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use ostler_agents::{DENIALS_MAX, TEXT_BYTES_MAX};
use ostler_core::clock::Timestamp;
use ostler_core::id::RunId;
use ostler_core::outcome::{Failure, FailureClass, Outcome, Receipt};
use ostler_core::task::{EndStatus, RunEnd, StopReason, Task, TaskStatus};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::RunnerEvent;
use super::feed::SharedTail;
use crate::redact::{self, Input};
use crate::runner::{LogSink, RunFuture, RunOrder, StopSignal, TaskRunner};
use crate::tail::{Tail, TailBounds, json_str_bytes};

/// The message of a failure, which is also the last line of the tail.
const MESSAGE_BYTES_MAX: usize = crate::tail::PIECE_BYTES_MAX;

/// Any other words of a receipt, each: a statement, a version, the name of a tool or a program. A session or a
/// commit whose name is longer is left out.
const WORD_BYTES_MAX: usize = 1_024;

/// Processes that a receipt names as killed, and as kept. The others are left out.
const KILLED_MAX: usize = 64;

/// The words of one list of a receipt, as JSON. What comes later is left out. With a whole tail and answer
/// this is what a record of the journal holds, whatever the characters.
const LIST_JSON_BYTES_MAX: usize = 64 * 1024;

struct LiveRun {
    sink: LogSink,
    stop: watch::Sender<Option<StopReason>>,
    tail: Option<SharedTail>,
    /// What no line may show.
    hidden: Arc<Input>,
    /// `None` when its first step was its last.
    work: Option<AbortHandle>,
}

pub(super) struct LiveRuns {
    runs: HashMap<RunId, LiveRun>,
    /// Tails of runs that were interrupted before this start, until that is told.
    remembered: HashMap<RunId, SharedTail>,
    events: mpsc::Sender<RunnerEvent>,
    bounds: Tails,
}

/// How tails are made.
#[derive(Clone, Copy)]
struct Tails(TailBounds);

impl Tails {
    fn empty(self, hidden: Option<Arc<Input>>) -> SharedTail {
        Arc::new(Mutex::new(Tail::new(self.0, hidden)))
    }
}

impl LiveRuns {
    pub(super) fn new(events: mpsc::Sender<RunnerEvent>, bounds: TailBounds) -> Self {
        Self { runs: HashMap::new(), remembered: HashMap::new(), events, bounds: Tails(bounds) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Starts a run and lets it take its first step at once: an agent does not wait for its turn behind
    /// answers. Gives the end of a run that needed no more; a later end comes as an event. Both also when
    /// the runner panics.
    pub(super) fn start(
        &mut self,
        order: RunOrder,
        runner: &Arc<dyn TaskRunner>,
    ) -> Option<RunEnd> {
        let run = order.run.clone();
        let (stop, signal) = StopSignal::new();
        let hidden = Arc::new(Input::new(&order.input.prompt));
        let sink = LogSink::new(run.clone(), Arc::clone(&hidden), self.events.clone());
        let agent = order.spec.agent.clone().unwrap_or_default();
        let first = catch_unwind(AssertUnwindSafe(|| {
            let mut future = runner.run(order, sink.clone(), signal);
            // Nobody is woken: whoever is not done is polled again below.
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(end) => Ok(end),
                Poll::Pending => Err(future),
            }
        }));
        let (end, work) = match first {
            Ok(Ok(end)) => (Some(end), None),
            Ok(Err(future)) => (None, Some(self.go_on(run.clone(), agent, future))),
            Err(_) => (Some(runner_failed(agent)), None),
        };
        self.runs.insert(run, LiveRun { sink, stop, tail: None, hidden, work });
        end
    }

    fn go_on(&self, run: RunId, agent: String, future: RunFuture) -> AbortHandle {
        let future = tokio::spawn(future);
        let work = future.abort_handle();
        let events = self.events.clone();
        tokio::spawn(async move {
            let end = future.await.unwrap_or_else(|_| runner_failed(agent));
            // The engine is gone only when the daemon ends; nobody is left to tell then.
            let _ = events.send(RunnerEvent::Ended { run, end: Box::new(end) }).await;
        });
        work
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

    /// Moves waiting lines into the run's tail. Gives the tail's new position, when it has one.
    pub(super) fn drain(&mut self, run: &RunId) -> Option<u64> {
        let live = self.runs.get_mut(run)?;
        let taken = live.sink.take();
        if taken.lines.is_empty() && !taken.overflowed {
            return None;
        }
        let hidden = &live.hidden;
        let tail = live.tail.get_or_insert_with(|| self.bounds.empty(Some(Arc::clone(hidden))));
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.overflowed {
            tail.mark_dropped();
        }
        for line in &taken.lines {
            tail.push(line);
        }
        Some(tail.lines_total())
    }

    /// A run whose end cannot be recorded.
    pub(super) fn forget(&mut self, run: &RunId) {
        self.runs.remove(run);
    }

    /// The last lines of a run that an earlier daemon did not see to its end.
    pub(super) fn remember(&mut self, run: RunId, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        let tail = self.bounds.empty(None);
        lines
            .iter()
            .for_each(|line| tail.lock().unwrap_or_else(PoisonError::into_inner).push(line));
        self.remembered.insert(run, tail);
    }

    /// The end of a run without its input and without what reads as a secret, and no longer than it may be:
    /// any runner's words are journaled and sent.
    pub(super) fn redacted(&self, run: &RunId, mut end: RunEnd) -> RunEnd {
        let hidden = self.runs.get(run).map(|live| &*live.hidden);
        let mut words = Words { hidden, cut: false };
        let Outcome { failure, receipt, text, .. } = &mut end.outcome;
        if let Some(failure) = failure {
            words.clean(&mut failure.message, MESSAGE_BYTES_MAX);
        }
        if let Some(text) = text {
            words.clean(text, TEXT_BYTES_MAX);
        }
        let said = [receipt.statement.as_mut(), receipt.agent_version.as_mut()];
        said.into_iter().flatten().for_each(|word| words.clean(word, WORD_BYTES_MAX));
        words.list(&mut receipt.denials, DENIALS_MAX, |denial| vec![denial]);
        for list in [&mut receipt.killed, &mut receipt.kept] {
            words.list(list, KILLED_MAX, |killed| vec![&mut killed.argv0, &mut killed.after]);
        }
        // Names that somebody may want to use again stay what they are, or are none.
        words.cut(&mut receipt.agent, WORD_BYTES_MAX);
        let heads = receipt.git.as_mut().map(|git| [&mut git.head_before, &mut git.head_after]);
        let names = heads.into_iter().flatten().chain([&mut receipt.session_id]);
        names.for_each(|name| words.drop_long(name, WORD_BYTES_MAX));
        receipt.truncated |= words.cut;
        end
    }

    /// A changed task as it is shown: with the tail of its run as of now. A settled run leaves; the
    /// reason of a failure is its last line.
    pub(super) fn shown(&mut self, mut task: Task) -> (Task, Option<SharedTail>) {
        let run = RunId { task: task.spec.id.clone(), attempt: task.attempt };
        if task.status.is_settled() {
            let live = self.runs.remove(&run).and_then(|live| live.tail);
            let mut tail = live.or_else(|| self.remembered.remove(&run));
            if let (TaskStatus::Failed, Some(outcome)) = (task.status, &task.outcome)
                && let Some(failure) = &outcome.failure
            {
                tail.get_or_insert_with(|| self.bounds.empty(None))
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
        self.runs.values().filter_map(|live| live.work.as_ref()).for_each(AbortHandle::abort);
        self.runs.clear();
    }
}

/// What a runner says at the end of a run, on its way to journal and clients.
struct Words<'a> {
    hidden: Option<&'a Input>,
    /// Something was longer than it may be.
    cut: bool,
}

impl Words<'_> {
    /// Hides what must not be shown, then cuts: a part of the prompt would not be found.
    fn clean(&mut self, words: &mut String, bytes_max: usize) {
        let shown = self.hidden.map_or(Cow::Borrowed(&**words), |hidden| hidden.hide(words));
        *words = redact::text(&shown).into_owned();
        self.cut(words, bytes_max);
    }

    fn cut(&mut self, words: &mut String, bytes_max: usize) {
        if words.len() > bytes_max {
            words.truncate(words.floor_char_boundary(bytes_max));
            words.shrink_to_fit();
            self.cut = true;
        }
    }

    fn list<T>(
        &mut self,
        list: &mut Vec<T>,
        count_max: usize,
        words: impl Fn(&mut T) -> Vec<&mut String>,
    ) {
        let before = list.len();
        list.truncate(count_max);
        let mut bytes = 0;
        list.retain_mut(|item| {
            for word in words(item) {
                self.clean(word, WORD_BYTES_MAX);
                bytes += json_str_bytes(word);
            }
            bytes <= LIST_JSON_BYTES_MAX
        });
        list.shrink_to_fit();
        self.cut |= list.len() < before;
    }

    fn drop_long(&mut self, name: &mut Option<String>, bytes_max: usize) {
        if name.take_if(|name| name.len() > bytes_max).is_some() {
            self.cut = true;
        }
    }
}

fn runner_failed(agent: String) -> RunEnd {
    let receipt = Receipt::unproven(agent, Timestamp::default());
    let why = "the task runner ended without a result; this is a bug";
    let outcome = Outcome::failed(Failure::new(FailureClass::Unknown, why), receipt);
    RunEnd { status: EndStatus::Failed, outcome }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ostler_core::id::TaskId;
    use ostler_core::task::TaskSpec;

    use super::*;
    use crate::runner::TaskInput;

    /// Ends at once, ends later, or panics, as the prompt says.
    struct Scripted;

    impl TaskRunner for Scripted {
        fn run(&self, order: RunOrder, _log: LogSink, mut stop: StopSignal) -> RunFuture {
            Box::pin(async move {
                match order.input.prompt.as_str() {
                    "panic" => panic!("as asked"),
                    "later" => drop(stop.stopped().await),
                    _ => {}
                }
                RunEnd { status: EndStatus::Completed, ..runner_failed(String::new()) }
            })
        }
    }

    fn order(prompt: &str) -> RunOrder {
        let id = TaskId::new(prompt).unwrap();
        let spec = TaskSpec {
            id: id.clone(),
            session: None,
            cwd: "/".to_owned(),
            provider: None,
            model: None,
            effort: None,
            worktree: false,
            agent: None,
            permissions: None,
            timeout: None,
            budget_micros: None,
        };
        let input = TaskInput { prompt: prompt.to_owned(), ..TaskInput::default() };
        let run = RunId { task: id, attempt: 1 };
        RunOrder { run, spec: Arc::new(spec), input: Arc::new(input) }
    }

    #[tokio::test]
    async fn a_run_that_ends_or_panics_in_its_first_step_ends_there() {
        let (events, mut ended) = mpsc::channel(1);
        let mut runs = LiveRuns::new(events, TailBounds::default());
        let runner: Arc<dyn TaskRunner> = Arc::new(Scripted);
        let end = runs.start(order("now"), &runner);
        assert!(end.is_some_and(|end| end.status == EndStatus::Completed));
        let end = runs.start(order("panic"), &runner);
        assert!(end.is_some_and(|end| end.status == EndStatus::Failed), "the engine lives on");
        let later = order("later");
        assert!(runs.start(later.clone(), &runner).is_none());
        runs.stop(&later.run, StopReason::Cancel);
        let told = ended.recv().await;
        assert!(matches!(told, Some(RunnerEvent::Ended { run, .. }) if run == later.run));
    }
}
