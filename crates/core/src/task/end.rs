//! What a task becomes when its run is over.
//!
//! Owns: the one decision from (what was asked of the run, how it ended) to (status, outcome), and
//! the agreement of status, failure and verdict. Deliberately absent: state; this is a function.

use std::time::Duration;

use super::{EndStatus, Refusal, RunEnd, StopReason, TaskSpec, TaskStatus};
use crate::outcome::{Failure, FailureClass, Outcome, Verdict};

/// The decision.
pub(super) struct Settlement {
    pub(super) status: TaskStatus,
    pub(super) outcome: Outcome,
    /// What waiting cancels are told; `None` when they got what they asked for.
    pub(super) cancels_refused: Option<Refusal>,
}

/// Decides. What could not be killed is a failure whatever was asked; what ended by itself is what it
/// says it is; only a run that ended of our stop becomes what the stop was for.
pub(super) fn settle(
    stop: Option<StopReason>,
    end: RunEnd,
    spec: &TaskSpec,
    timeout: Duration,
) -> Settlement {
    let RunEnd { status, mut outcome } = end;
    let kill_failed =
        outcome.failure.as_ref().is_some_and(|failure| failure.class == FailureClass::KillFailed);
    let status = match (status, stop) {
        _ if kill_failed => TaskStatus::Failed,
        (EndStatus::Completed, _) => TaskStatus::Completed,
        (EndStatus::Stopped, Some(StopReason::Cancel)) => TaskStatus::Cancelled,
        (EndStatus::Stopped, Some(StopReason::Shutdown)) => TaskStatus::Interrupted,
        (EndStatus::Stopped, Some(StopReason::Deadline)) => {
            outcome.failure = Some(deadline_failure(spec, timeout));
            TaskStatus::Failed
        }
        // Stopped, but not by us: whoever did it says why in the failure.
        (EndStatus::Stopped, None) | (EndStatus::Failed, _) => TaskStatus::Failed,
    };
    agree(status, &mut outcome);
    let cancels_refused = match status {
        TaskStatus::Cancelled => None,
        _ if kill_failed => Some(Refusal::KillFailed),
        _ => Some(Refusal::NotActive),
    };
    Settlement { status, outcome, cancels_refused }
}

/// Makes failure and verdict say what the status says.
fn agree(status: TaskStatus, outcome: &mut Outcome) {
    let verdict = &mut outcome.receipt.verdict;
    match status {
        TaskStatus::Completed => {
            outcome.failure = None;
            if matches!(verdict, Verdict::Failed | Verdict::Cancelled | Verdict::Interrupted) {
                *verdict = Verdict::Succeeded;
            }
        }
        TaskStatus::Cancelled => {
            outcome.failure = None;
            *verdict = Verdict::Cancelled;
        }
        TaskStatus::Interrupted => {
            outcome.failure = None;
            *verdict = Verdict::Interrupted;
        }
        TaskStatus::Failed | TaskStatus::Queued | TaskStatus::Running => {
            *verdict = Verdict::Failed;
            outcome.failure.get_or_insert_with(|| {
                Failure::new(FailureClass::Unknown, "the run failed and no reason is known")
            });
        }
    }
}

fn deadline_failure(spec: &TaskSpec, timeout: Duration) -> Failure {
    // The original's text names its program, which is also what the default agent stands in for.
    let agent = match spec.agent.as_deref() {
        None | Some("agent_cli") => "agent-cli",
        Some(agent) => agent,
    };
    let seconds = timeout.as_secs();
    Failure::new(
        FailureClass::Timeout,
        format!("{agent} exceeded its {seconds} second runtime limit"),
    )
}
