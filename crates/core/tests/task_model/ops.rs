//! Random operations: few ids and sessions, so that they meet.

use std::time::Duration;

use ostler_core::clock::Timestamp;
use ostler_core::id::{SessionId, TaskId};
use ostler_core::outcome::{Failure, FailureClass, Outcome, Receipt, Verdict};
use ostler_core::task::{EndStatus, RunEnd, TaskSpec};
use proptest::prelude::*;

/// How many task ids there are.
pub(crate) const TASKS: u8 = 10;
const SESSIONS: u8 = 2;

/// What happens next.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// `forgotten`: the archive no longer knows the id, if it did.
    Submit {
        spec: TaskSpec,
        forgotten: bool,
    },
    Cancel(TaskId),
    Retry(TaskId),
    SetLimit(u8),
    /// Of the `pick`-th running task.
    Output {
        pick: usize,
        lines: u64,
    },
    /// Of the `pick`-th running task.
    End {
        pick: usize,
        end: RunEnd,
    },
    /// Of whatever attempt, mostly not the current one.
    Stale {
        task: TaskId,
        attempt: u32,
        end: RunEnd,
    },
    Tick,
    /// Time passes; the wall clock may jump.
    Pass {
        boot: Duration,
        wall_micros: i64,
    },
    /// Time passes up to the next deadline, then the tick.
    WaitForDeadline,
    Recover,
    Shutdown,
    /// The daemon dies and comes back with what is journaled; `then`: and recovers first thing.
    Restart {
        then: bool,
    },
}

pub(crate) fn task_id(number: u8) -> TaskId {
    TaskId::new(&format!("t{number}")).unwrap()
}

pub(crate) fn any_op() -> impl Strategy<Value = Op> {
    let id = || (0..TASKS).prop_map(task_id);
    prop_oneof![
        12 => (any_spec(), any::<bool>())
            .prop_map(|(spec, forgotten)| Op::Submit { spec, forgotten }),
        4 => id().prop_map(Op::Cancel),
        4 => id().prop_map(Op::Retry),
        2 => prop_oneof![4 => 0u8..6, 1 => 30u8..35].prop_map(Op::SetLimit),
        4 => (0usize..8, 0u64..50).prop_map(|(pick, lines)| Op::Output { pick, lines }),
        8 => (0usize..8, any_end()).prop_map(|(pick, end)| Op::End { pick, end }),
        1 => (id(), 0u32..4, any_end())
            .prop_map(|(task, attempt, end)| Op::Stale { task, attempt, end }),
        2 => Just(Op::Tick),
        5 => any_pass(),
        2 => Just(Op::WaitForDeadline),
        1 => Just(Op::Recover),
        1 => prop_oneof![1 => Just(Op::Shutdown), 2 => any::<bool>().prop_map(|then| Op::Restart { then })],
    ]
}

fn any_pass() -> impl Strategy<Value = Op> {
    let boot = prop_oneof![3 => 0u64..1_500, 1 => 1_500u64..30_000].prop_map(Duration::from_millis);
    // Usually as fast as the boot clock, sometimes back or far ahead.
    let jump = prop_oneof![4 => Just(0i64), 1 => -90_000_000i64..90_000_000];
    (boot, jump).prop_map(|(boot, jump)| {
        let wall_micros = i64::try_from(boot.as_micros()).unwrap() + jump;
        Op::Pass { boot, wall_micros }
    })
}

fn any_spec() -> impl Strategy<Value = TaskSpec> {
    let session = prop::option::of(0..SESSIONS);
    let timeout = prop::option::weighted(0.3, (0u64..60).prop_map(Duration::from_secs));
    let agent = prop::option::of(prop_oneof![Just("agent_cli"), Just("claude_code")]);
    (0..TASKS, session, timeout, agent).prop_map(|(number, session, timeout, agent)| TaskSpec {
        id: task_id(number),
        session: session.map(|number| SessionId::new(&format!("s{number}")).unwrap()),
        cwd: "/work".into(),
        provider: None,
        model: None,
        effort: None,
        worktree: false,
        agent: agent.map(Into::into),
        permissions: None,
        timeout,
        budget_micros: None,
    })
}

fn any_end() -> impl Strategy<Value = RunEnd> {
    let status =
        prop_oneof![Just(EndStatus::Completed), Just(EndStatus::Failed), Just(EndStatus::Stopped)];
    let class = prop_oneof![
        4 => Just(None),
        4 => Just(Some(FailureClass::ExitStatus)),
        1 => Just(Some(FailureClass::KillFailed)),
    ];
    let verdict = prop::sample::select(Verdict::ALL.to_vec());
    (status, class, verdict)
        .prop_map(|(status, class, verdict)| RunEnd { status, outcome: outcome(class, verdict) })
}

/// A plain success.
pub(crate) fn completed() -> RunEnd {
    RunEnd { status: EndStatus::Completed, outcome: outcome(None, Verdict::Succeeded) }
}

fn outcome(class: Option<FailureClass>, verdict: Verdict) -> Outcome {
    Outcome {
        failure: class.map(|class| Failure::new(class, "as the run says")),
        receipt: Receipt {
            agent: "command".into(),
            agent_version: None,
            proof: None,
            statement: None,
            exit: None,
            started_at: None,
            ended_at: Timestamp::from_micros(7),
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
