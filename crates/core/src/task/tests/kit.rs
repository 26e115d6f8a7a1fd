//! A machine with a clock that is turned by hand, and short names for inputs and effects.

use std::time::Duration;

use crate::clock::{BootTime, Now, Timestamp};
use crate::id::{RunId, SessionId, TaskId};
use crate::outcome::{Exit, Failure, FailureClass, Outcome, Proof, Receipt, Verdict};
use crate::task::*;

pub(super) struct Machine {
    pub(super) state: TaskState,
    pub(super) now: Now,
    requests: u64,
}

pub(super) fn id(name: &str) -> TaskId {
    TaskId::new(name).unwrap()
}

pub(super) fn run(name: &str, attempt: u32) -> RunId {
    RunId { task: id(name), attempt }
}

pub(super) fn spec(name: &str) -> TaskSpec {
    TaskSpec {
        id: id(name),
        session: None,
        cwd: "/work".into(),
        provider: None,
        model: None,
        effort: None,
        worktree: false,
        agent: None,
        permissions: None,
        timeout: None,
        budget_micros: None,
    }
}

pub(super) fn in_session(name: &str, session: &str) -> TaskSpec {
    TaskSpec { session: Some(SessionId::new(session).unwrap()), ..spec(name) }
}

pub(super) fn outcome(failure: Option<FailureClass>, verdict: Verdict) -> Outcome {
    Outcome {
        failure: failure.map(|class| Failure::new(class, "as the run says")),
        receipt: Receipt {
            agent: "command".into(),
            agent_version: None,
            proof: Some(Proof::ExitStatus),
            statement: None,
            exit: Some(Exit::Code(0)),
            started_at: None,
            ended_at: Timestamp::from_micros(1),
            session_id: None,
            git: None,
            denials: Vec::new(),
            killed: Vec::new(),
            kept: Vec::new(),
            output_bytes: 0,
            truncated: false,
            verdict,
        },
        text: None,
        usage: None,
        cost_micros: None,
    }
}

pub(super) fn completed() -> RunEnd {
    RunEnd { status: EndStatus::Completed, outcome: outcome(None, Verdict::Succeeded) }
}

pub(super) fn failed(class: FailureClass) -> RunEnd {
    RunEnd { status: EndStatus::Failed, outcome: outcome(Some(class), Verdict::Failed) }
}

/// Ended by our stop; the host knows neither why nor what the verdict is.
pub(super) fn stopped() -> RunEnd {
    let outcome = outcome(Some(FailureClass::Signal), Verdict::Failed);
    RunEnd { status: EndStatus::Stopped, outcome }
}

impl Machine {
    pub(super) fn new() -> Self {
        Self::with(TaskBounds::default())
    }

    pub(super) fn with(bounds: TaskBounds) -> Self {
        Self::of(TaskState::new(bounds))
    }

    pub(super) fn of(state: TaskState) -> Self {
        let now = Now {
            wall: Timestamp::from_micros(1_000_000),
            boot: BootTime::from_duration(Duration::from_secs(10)),
        };
        Self { state, now, requests: 0 }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now.boot = self.now.boot.after(time);
        let micros = i64::try_from(time.as_micros()).unwrap();
        self.now.wall = Timestamp::from_micros(self.now.wall.as_micros() + micros);
    }

    pub(super) fn step(&mut self, input: Input) -> Vec<Effect> {
        step(&mut self.state, input, self.now)
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    pub(super) fn submit(&mut self, spec: TaskSpec) -> Vec<Effect> {
        let request = self.request();
        self.step(Input::Submit { request, spec, known_elsewhere: false })
    }

    pub(super) fn submit_all(&mut self, names: &[&str]) {
        for name in names {
            self.submit(spec(name));
        }
    }

    pub(super) fn cancel(&mut self, name: &str) -> Vec<Effect> {
        let request = self.request();
        self.step(Input::Cancel { request, task: id(name) })
    }

    pub(super) fn retry(&mut self, name: &str) -> Vec<Effect> {
        let request = self.request();
        self.step(Input::Retry { request, task: id(name) })
    }

    pub(super) fn set_limit(&mut self, limit: u8) -> Vec<Effect> {
        let request = self.request();
        self.step(Input::SetLimit { request, limit })
    }

    pub(super) fn ended(&mut self, name: &str, end: RunEnd) -> Vec<Effect> {
        let run = RunId { task: id(name), attempt: self.task(name).attempt };
        self.step(Input::Ended { run, end })
    }

    pub(super) fn output(&mut self, name: &str, log_lines: u64) -> Vec<Effect> {
        let run = RunId { task: id(name), attempt: self.task(name).attempt };
        self.step(Input::Output { run, log_lines })
    }

    pub(super) fn task(&self, name: &str) -> Task {
        self.state.get(&id(name)).unwrap().clone()
    }

    pub(super) fn status(&self, name: &str) -> TaskStatus {
        self.task(name).status
    }

    pub(super) fn failure(&self, name: &str) -> Option<Failure> {
        self.task(name).outcome.and_then(|outcome| outcome.failure.clone())
    }

    pub(super) fn verdict(&self, name: &str) -> Verdict {
        self.task(name).outcome.unwrap().receipt.verdict
    }
}

/// Effects in a line each, to compare them as a whole.
pub(super) fn told(effects: &[Effect]) -> Vec<String> {
    effects.iter().map(tell).collect()
}

fn tell(effect: &Effect) -> String {
    match effect {
        Effect::Archived { task } => format!("archived {}", task.spec.id),
        Effect::Changed { task } => format!("{} {}", tell_status(task), task.spec.id),
        Effect::LimitChanged { limit } => format!("limit {limit}"),
        Effect::Start { run } => format!("start {run}"),
        Effect::Stop { run, reason } => format!("stop {run} {reason:?}"),
        Effect::DropInput { task } => format!("drop {task}"),
        Effect::Answer { request: RequestId(request), result } => match result {
            Ok(Reply::Submitted(task)) => format!("{request}: submitted {}", tell_status(task)),
            Ok(Reply::Cancelled(task)) => format!("{request}: cancelled {}", tell_status(task)),
            Ok(Reply::Queued(task)) => format!("{request}: queued {}", tell_status(task)),
            Ok(Reply::Limit(limit)) => format!("{request}: limit {limit}"),
            Err(refusal) => format!("{request}: {refusal}"),
        },
    }
}

fn tell_status(task: &Task) -> &'static str {
    task.status.as_str()
}
