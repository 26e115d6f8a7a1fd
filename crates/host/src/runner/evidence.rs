//! What became of a run, from what its supervisor saw and what its agent said.
//!
//! The supervisor's word comes first: output that was lost, processes that would not die. Then our own
//! reasons to end it, then the agent's statement.

use ostler_agents::{Conclusion, Reader, Status};
use ostler_core::clock::Timestamp;
use ostler_core::outcome::{Failure, FailureClass, Outcome, Receipt, Verdict};
use ostler_core::task::{EndStatus, RunEnd, StopReason};
use ostler_supervise::Ended;

use super::attempt::{OwnStop, Supervised};
use crate::redact;

/// What the judgement rests on, besides the agent's stream.
pub(super) struct Facts {
    pub(super) own_stop: Option<OwnStop>,
    pub(super) asked: Option<StopReason>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) agent_id: &'static str,
}

impl Facts {
    pub(super) fn judge(
        self,
        reader: &mut dyn Reader,
        supervised: Supervised,
        now: Timestamp,
    ) -> RunEnd {
        let mut receipt = Receipt::unproven(self.agent_id, now);
        receipt.started_at = self.started_at;
        let (ended, mut failure) = match supervised {
            Supervised::NotStarted(failure) => {
                let outcome = Outcome::failed(failure, receipt);
                return RunEnd { status: EndStatus::Failed, outcome };
            }
            Supervised::Ended(ended) => (Some(ended), None),
            Supervised::KillFailed(ended) => (
                Some(ended),
                Some(Failure::new(
                    FailureClass::KillFailed,
                    "some processes of the run could not be killed; its supervisor goes on trying",
                )),
            ),
            Supervised::ShimLost { killed, remaining } => {
                receipt.killed = killed;
                let failure = if remaining.is_empty() {
                    Failure::new(
                        FailureClass::ShimLost,
                        "the run's supervisor died; what was found of the run was ended",
                    )
                } else {
                    Failure::new(
                        FailureClass::KillFailed,
                        "the run's supervisor died and some processes of the run could not be killed",
                    )
                };
                (None, Some(failure))
            }
        };
        let exit = ended.as_ref().and_then(|ended| ended.exit);
        let stopped = ended.as_ref().is_none_or(|ended| ended.stopped);
        if let Some(ended) = ended {
            failure = failure.or_else(|| lost_output(&ended));
            receipt.killed = ended.killed;
            receipt.kept = ended.kept;
            receipt.output_bytes = ended.output_bytes;
            receipt.truncated = ended.truncated;
        }
        receipt.exit = exit;
        let conclusion = reader.conclude(exit, stopped && self.own_stop != Some(OwnStop::Stayed));
        self.join(conclusion, receipt, failure, stopped)
    }

    fn join(
        self,
        conclusion: Conclusion,
        mut receipt: Receipt,
        failure: Option<Failure>,
        stopped: bool,
    ) -> RunEnd {
        receipt.agent_version = conclusion.version;
        receipt.proof = conclusion.proof;
        receipt.statement = conclusion.statement;
        receipt.session_id = conclusion.session_id;
        receipt.denials = conclusion.denials;
        let given_up = match self.own_stop {
            Some(OwnStop::Silent(silence)) => Some(Failure::new(
                FailureClass::Silent,
                format!("{} said nothing for {} seconds", self.agent_id, silence.as_secs()),
            )),
            Some(OwnStop::Hopeless(failure)) => Some(failure),
            Some(OwnStop::Stayed) | None => None,
        };
        // What the supervisor saw comes before what the agent says of itself.
        let completed =
            conclusion.status == Status::Completed && failure.is_none() && given_up.is_none();
        let status = match self.asked {
            _ if completed => EndStatus::Completed,
            Some(_)
                if stopped
                    && failure
                        .as_ref()
                        .is_none_or(|failure| failure.class != FailureClass::KillFailed) =>
            {
                EndStatus::Stopped
            }
            _ => EndStatus::Failed,
        };
        let failure = match status {
            EndStatus::Completed => None,
            EndStatus::Stopped => failure,
            EndStatus::Failed => failure.or(given_up).or(conclusion.failure),
        };
        let failure = failure.map(|failure| Failure {
            message: redact::line(&failure.message).into_owned(),
            ..failure
        });
        receipt.verdict = match status {
            EndStatus::Completed if receipt.denials.is_empty() && receipt.killed.is_empty() => {
                Verdict::Succeeded
            }
            EndStatus::Completed => Verdict::SucceededWithWarnings,
            EndStatus::Failed | EndStatus::Stopped => Verdict::Failed,
        };
        let outcome = Outcome {
            failure,
            receipt,
            text: conclusion.text.map(|text| redact::text(&text).into_owned()),
            usage: conclusion.usage,
            cost_micros: conclusion.cost_micros,
        };
        RunEnd { status, outcome }
    }
}

/// Output that passed its bound, or that the disk did not take, is never a success.
fn lost_output(ended: &Ended) -> Option<Failure> {
    if ended.overflow {
        return Some(Failure::new(
            FailureClass::TruncatedOutput,
            "the agent wrote more than one stream may have",
        ));
    }
    let error = ended.write_error.as_ref()?;
    Some(Failure::new(
        FailureClass::Storage,
        format!("the run's output could not be written: {error}"),
    ))
}

/// A success that changed nothing and said nothing is told apart (`succeeded_no_visible_effect`).
pub(super) fn verdict_of_effect(end: &mut RunEnd, is_visible: Option<bool>) {
    let outcome = &mut end.outcome;
    if outcome.receipt.verdict != Verdict::Succeeded {
        return;
    }
    let visible = is_visible.unwrap_or(outcome.receipt.output_bytes > 0);
    if !visible {
        outcome.receipt.verdict = Verdict::SucceededNoVisibleEffect;
    }
}
