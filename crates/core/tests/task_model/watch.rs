//! What must be true of any sequence of effects, whatever the rules: seen from outside, by what a
//! journal, a client and a process table would notice.

use std::collections::{BTreeMap, BTreeSet};

use ostler_core::id::{RunId, SessionId, TaskId};
use ostler_core::outcome::Verdict;
use ostler_core::task::{Effect, Input, Refusal, RequestId, Task, TaskState, TaskStatus, Waiting};

/// Places that the random sequences must reach.
pub(crate) const PLACES: [&str; 29] = [
    "archived",
    "drop input on completion",
    "drop input on archive",
    "status TaskQueued",
    "status TaskRunning",
    "status TaskCompleted",
    "status TaskFailed",
    "status TaskCancelled",
    "status TaskInterrupted",
    "stop Cancel",
    "stop Deadline",
    "stop Shutdown",
    "start of attempt 2",
    "several starts in one step",
    "waits for its session",
    "limit lowered below what runs",
    "several cancels of one run",
    "restart with unfinished tasks",
    "refused task id already exists",
    "refused task id is unknown",
    "refused task is not active",
    "refused active tasks cannot be retried",
    "refused completed tasks cannot be retried; task input has been discarded",
    "refused task input is unavailable after daemon restart; submit a new task id",
    "refused limit must be between 1 and 32",
    "refused live task set is full: 4 tasks are queued or running",
    "refused daemon is shutting down",
    "refused task failed: some of its processes could not be ended",
    "output told later",
];

#[derive(Default)]
pub(crate) struct Watch {
    /// The last `Changed` of every live task: what a restart finds.
    pub(crate) journal: BTreeMap<TaskId, Task>,
    pub(crate) limit: Option<u8>,
    pub(crate) archived: BTreeSet<TaskId>,
    pub(crate) seen: BTreeSet<String>,
    waiting: BTreeSet<RequestId>,
    running: BTreeSet<RunId>,
    /// How often each id was submitted: it may come back when the archive has forgotten it.
    submissions: BTreeMap<TaskId, u32>,
    /// Id, which submission of it, attempt.
    started: BTreeSet<(TaskId, u32, u32)>,
    stopped: BTreeSet<RunId>,
    inputs: BTreeSet<TaskId>,
    shutting_down: bool,
    /// The next step recovers, whatever else it does.
    fresh_restart: bool,
}

impl Watch {
    pub(crate) fn restart(&mut self) {
        if self.journal.values().any(|task| !task.status.is_settled()) {
            self.saw("restart with unfinished tasks");
        }
        // Clients, processes and inputs are gone; what was written stays.
        self.waiting.clear();
        self.running.clear();
        self.stopped.clear();
        self.inputs.clear();
        self.shutting_down = false;
        self.fresh_restart = true;
    }

    /// Everything has ended: nobody waits for an answer.
    pub(crate) fn finish(&self) {
        assert!(self.waiting.is_empty(), "never answered: {:?}", self.waiting);
        assert!(self.running.is_empty(), "still running: {:?}", self.running);
    }

    pub(crate) fn step(
        &mut self,
        input: &Input,
        effects: &[Effect],
        before: &TaskState,
        after: &TaskState,
    ) {
        self.note_input(input, after);
        for effect in effects {
            self.note_effect(input, effect);
        }
        if let [Effect::Answer { result: Err(_), .. }] = effects
            && !std::mem::take(&mut self.fresh_restart)
        {
            assert_eq!(before, after, "a refusal changes nothing");
        }
        let answers = effects.iter().filter(|e| matches!(e, Effect::Answer { .. })).count();
        if answers > 1 {
            assert!(matches!(input, Input::Ended { .. }));
            self.saw("several cancels of one run");
        }
        let starts = effects.iter().filter(|e| matches!(e, Effect::Start { .. })).count();
        if starts > 1 {
            self.saw("several starts in one step");
        }
        if starts > 0 {
            assert!(self.running.len() <= usize::from(after.limit()), "the limit is kept");
        }
        self.fresh_restart = false;
        self.check_state(after);
    }

    fn saw(&mut self, place: impl Into<String>) {
        self.seen.insert(place.into());
    }

    fn note_input(&mut self, input: &Input, after: &TaskState) {
        match input {
            Input::Submit { request, .. }
            | Input::Cancel { request, .. }
            | Input::Retry { request, .. }
            | Input::SetLimit { request, .. } => {
                assert!(self.waiting.insert(*request));
            }
            Input::Shutdown => self.shutting_down = true,
            Input::Output { .. } | Input::Ended { .. } | Input::Tick | Input::Recover => {}
        }
        if matches!(input, Input::SetLimit { .. }) && after.running() > usize::from(after.limit()) {
            self.saw("limit lowered below what runs");
        }
    }

    fn note_effect(&mut self, input: &Input, effect: &Effect) {
        match effect {
            Effect::Archived { task } => {
                self.saw("archived");
                let last = self.journal.remove(id_of(task));
                assert_eq!(last.as_ref(), Some(task), "archived as last journaled");
                assert!(task.status.is_settled());
                self.archived.insert(id_of(task).clone());
            }
            Effect::Changed { task } => self.note_change(input, task),
            Effect::LimitChanged { limit } => {
                assert!((1..=32).contains(limit));
                self.limit = Some(*limit);
            }
            Effect::Start { run } => self.note_start(run),
            Effect::Stop { run, reason } => {
                self.saw(format!("stop {reason:?}"));
                assert!(self.running.contains(run), "only what runs is stopped");
                assert!(self.stopped.insert(run.clone()), "a run is told once");
            }
            Effect::DropInput { task } => {
                let live = self.journal.contains_key(task);
                self.saw(format!("drop input on {}", if live { "completion" } else { "archive" }));
                assert!(self.inputs.remove(task), "an input is dropped once");
            }
            Effect::Answer { request, result } => {
                assert!(self.waiting.remove(request), "one answer to each request");
                if let Err(refusal) = result {
                    self.saw(format!("refused {refusal}"));
                    let late = matches!(refusal, Refusal::NotActive | Refusal::KillFailed);
                    assert!(late || !matches!(input, Input::Ended { .. }), "{refusal}");
                }
            }
        }
    }

    fn note_change(&mut self, input: &Input, task: &Task) {
        self.saw(format!("status {}", task.status.as_str()));
        let last = self.journal.insert(id_of(task).clone(), task.clone());
        match &last {
            None => {
                assert!(matches!(input, Input::Submit { .. }));
                assert_eq!((task.status, task.attempt), (TaskStatus::Queued, 1));
                self.inputs.insert(id_of(task).clone());
                self.archived.remove(id_of(task));
                *self.submissions.entry(id_of(task).clone()).or_default() += 1;
            }
            Some(last) => {
                assert_ne!(last, task, "a change changes something");
                assert!(task.updated_at >= last.updated_at);
                if last.status.is_settled() {
                    assert!(matches!(input, Input::Retry { .. }), "only a retry unsettles");
                    assert_eq!((task.status, task.attempt), (TaskStatus::Queued, last.attempt + 1));
                    assert!(task.order > last.order);
                    assert_eq!((task.log_lines, &task.outcome), (0, &None));
                } else {
                    assert_eq!((task.attempt, task.order), (last.attempt, last.order));
                    assert!(task.log_lines >= last.log_lines);
                    if matches!(input, Input::Tick) && task.status == TaskStatus::Running {
                        self.saw("output told later");
                    }
                }
            }
        }
        if task.status.is_settled() {
            let run = RunId { task: id_of(task).clone(), attempt: task.attempt };
            self.running.remove(&run);
            self.stopped.remove(&run);
        }
        check_agreement(task);
    }

    fn note_start(&mut self, run: &RunId) {
        assert!(!self.shutting_down, "nothing starts after a shutdown");
        if run.attempt == 2 {
            self.saw("start of attempt 2");
        }
        let task = self.journal.get(&run.task).unwrap();
        assert_eq!((task.status, task.attempt), (TaskStatus::Running, run.attempt));
        assert!(self.inputs.contains(&run.task), "nothing starts without its input");
        if let Some(session) = &task.spec.session {
            let earlier = self.unfinished_of(session).filter(|other| other.order < task.order);
            assert_eq!(earlier.count(), 0, "nobody is overtaken or run beside");
        }
        assert!(self.running.insert(run.clone()));
        let submission = self.submissions.get(&run.task).copied().unwrap_or(0);
        let key = (run.task.clone(), submission, run.attempt);
        assert!(self.started.insert(key), "an attempt starts once, restarts included");
    }

    fn unfinished_of(&self, session: &SessionId) -> impl Iterator<Item = &Task> {
        self.journal.values().filter(move |task| {
            task.spec.session.as_ref() == Some(session) && !task.status.is_settled()
        })
    }

    fn check_state(&mut self, state: &TaskState) {
        let live: BTreeMap<TaskId, Task> =
            state.iter().map(|task| (id_of(task).clone(), task.clone())).collect();
        assert_eq!(live, self.journal, "what is told is what is");
        assert_eq!(self.running.len(), state.running());
        for task in state.iter().filter(|task| task.status == TaskStatus::Queued) {
            match state.waits_for(id_of(task)) {
                Some(Waiting::Session(_)) => self.saw("waits for its session"),
                Some(Waiting::Limit) => {
                    assert!(state.running() >= usize::from(state.limit()), "nothing idles");
                }
                None => panic!("a queued task waits for something"),
            }
        }
    }
}

fn id_of(task: &Task) -> &TaskId {
    &task.spec.id
}

fn check_agreement(task: &Task) {
    let Some(outcome) = &task.outcome else {
        assert!(!matches!(task.status, TaskStatus::Completed | TaskStatus::Failed));
        return;
    };
    let verdict = outcome.receipt.verdict;
    let expected = match task.status {
        TaskStatus::Failed => Verdict::Failed,
        TaskStatus::Cancelled => Verdict::Cancelled,
        TaskStatus::Interrupted => Verdict::Interrupted,
        TaskStatus::Completed => {
            let successes = [
                Verdict::Succeeded,
                Verdict::SucceededNoVisibleEffect,
                Verdict::SucceededWithWarnings,
            ];
            assert!(successes.contains(&verdict));
            verdict
        }
        TaskStatus::Queued | TaskStatus::Running => panic!("an outcome before the end"),
    };
    assert_eq!(verdict, expected);
    assert_eq!(outcome.failure.is_some(), task.status == TaskStatus::Failed);
}
