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
        let unwritten = ended.as_ref().and_then(unwritten_output);
        let is_unwritten = unwritten.is_some();
        let exit = ended.as_ref().and_then(|ended| ended.exit);
        let stopped = ended.as_ref().is_none_or(|ended| ended.stopped);
        if let Some(ended) = ended {
            failure = failure.or_else(|| overflow(&ended));
            receipt.killed = ended.killed;
            receipt.kept = ended.kept;
            receipt.output_bytes = ended.output_bytes;
            receipt.truncated = ended.truncated || ended.write_error.is_some();
        }
        receipt.exit = exit;
        let conclusion = reader.conclude(exit, stopped && self.own_stop != Some(OwnStop::Stayed));
        // Where its proof was not in what is missing, the work was done; it must not be asked for again.
        if conclusion.status != Status::Completed {
            failure = failure.or(unwritten);
        }
        self.join(conclusion, receipt, failure, stopped, is_unwritten)
    }

    fn join(
        self,
        conclusion: Conclusion,
        mut receipt: Receipt,
        failure: Option<Failure>,
        stopped: bool,
        unwritten: bool,
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
            EndStatus::Completed
                if receipt.denials.is_empty() && receipt.killed.is_empty() && !unwritten =>
            {
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
fn overflow(ended: &Ended) -> Option<Failure> {
    ended.overflow.then(|| {
        Failure::new(FailureClass::TruncatedOutput, "the agent wrote more than one stream may have")
    })
}

fn unwritten_output(ended: &Ended) -> Option<Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_agents::Stream;
    use ostler_core::outcome::{Exit, Killed, Proof};

    const COMPLETED: &str = concat!(
        r#"{"type":"system","subtype":"init","session_id":"s-1","model":"m","tools":[]}"#,
        "\n",
        r#"{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"s-1","terminal_reason":"completed","usage":{"input_tokens":1,"output_tokens":2},"permission_denials":[]}"#,
        "\n"
    );

    fn ended(exit: Exit, stopped: bool) -> Ended {
        Ended {
            exit: Some(exit),
            started_at_micros: Some(1),
            ended_at_micros: 2,
            killed: Vec::new(),
            kept: Vec::new(),
            output_bytes: 10,
            output_end: 10,
            truncated: false,
            overflow: false,
            stopped,
            daemon_gone: false,
            write_error: None,
        }
    }

    fn judge(
        agent: &'static str,
        output: &str,
        supervised: Supervised,
        own_stop: Option<OwnStop>,
        asked: Option<StopReason>,
    ) -> RunEnd {
        let mut reader = ostler_agents::find(agent).unwrap().reader();
        let mut events = Vec::new();
        reader.push(Stream::Stdout, output.as_bytes(), &mut events);
        reader.finish_streams(&mut events);
        let facts =
            Facts { own_stop, asked, started_at: Some(Timestamp::from_micros(1)), agent_id: agent };
        facts.judge(&mut *reader, supervised, Timestamp::from_micros(3))
    }

    fn class(end: &RunEnd) -> Option<FailureClass> {
        end.outcome.failure.as_ref().map(|failure| failure.class)
    }

    fn some_process() -> Killed {
        Killed { pid: 7, argv0: "sleep".into(), after: "kill".into() }
    }

    #[test]
    fn what_would_not_die_is_never_called_completed_or_stopped() {
        for asked in [None, Some(StopReason::Cancel), Some(StopReason::Shutdown)] {
            let supervised = Supervised::KillFailed(ended(Exit::Code(0), asked.is_some()));
            let end = judge("command", "", supervised, None, asked);
            assert_eq!(
                (end.status, class(&end)),
                (EndStatus::Failed, Some(FailureClass::KillFailed))
            );
        }
        let lost = Supervised::ShimLost { killed: Vec::new(), remaining: vec![some_process()] };
        let end = judge("command", "", lost, None, Some(StopReason::Cancel));
        assert_eq!((end.status, class(&end)), (EndStatus::Failed, Some(FailureClass::KillFailed)));
    }

    #[test]
    fn a_lost_supervisor_proves_nothing_unless_a_stop_was_asked_for() {
        let lost = || Supervised::ShimLost { killed: vec![some_process()], remaining: Vec::new() };
        let end = judge("command", "", lost(), None, None);
        assert_eq!((end.status, class(&end)), (EndStatus::Failed, Some(FailureClass::ShimLost)));
        assert_eq!(end.outcome.receipt.killed, [some_process()]);
        assert_eq!(end.outcome.receipt.exit, None);
        assert_eq!(
            judge("command", "", lost(), None, Some(StopReason::Cancel)).status,
            EndStatus::Stopped
        );
    }

    #[test]
    fn output_beyond_the_bound_is_never_a_success() {
        let overflow = Ended { overflow: true, ..ended(Exit::Code(0), false) };
        let end = judge("command", "", Supervised::Ended(overflow), None, None);
        assert_eq!(class(&end), Some(FailureClass::TruncatedOutput));
    }

    #[test]
    fn output_that_found_no_space_is_a_warning_where_the_proof_is_there_and_the_reason_where_not() {
        let unwritten = |exit| Ended { write_error: Some("no space".into()), ..ended(exit, false) };
        for (agent, stream) in [("command", ""), ("claude_code", COMPLETED)] {
            let supervised = Supervised::Ended(unwritten(Exit::Code(0)));
            let end = judge(agent, stream, supervised, None, None);
            assert_eq!((end.status, class(&end)), (EndStatus::Completed, None), "{agent}");
            assert_eq!(end.outcome.receipt.verdict, Verdict::SucceededWithWarnings);
            assert!(end.outcome.receipt.truncated);
        }
        for (agent, exit) in [("command", Exit::Code(1)), ("claude_code", Exit::Code(0))] {
            let end = judge(agent, "", Supervised::Ended(unwritten(exit)), None, None);
            assert_eq!(class(&end), Some(FailureClass::Storage), "{agent}");
        }
    }

    #[test]
    fn r_61_a_program_that_ends_with_0_when_it_is_told_to_stop_was_stopped() {
        for agent in ["command", "agent_cli"] {
            for reason in [StopReason::Cancel, StopReason::Deadline, StopReason::Shutdown] {
                let supervised = Supervised::Ended(ended(Exit::Code(0), true));
                let end = judge(agent, "", supervised, None, Some(reason));
                assert_eq!((end.status, class(&end)), (EndStatus::Stopped, None), "{agent}");
            }
        }
        // It had ended before it could be told.
        let supervised = Supervised::Ended(ended(Exit::Code(0), false));
        let end = judge("command", "", supervised, None, Some(StopReason::Cancel));
        assert_eq!(end.status, EndStatus::Completed);
    }

    #[test]
    fn b2_10_a_result_stands_although_the_agent_stayed_and_had_to_be_ended() {
        let stayed = Ended { killed: vec![some_process()], ..ended(Exit::Signal(15), true) };
        let end =
            judge("claude_code", COMPLETED, Supervised::Ended(stayed), Some(OwnStop::Stayed), None);
        assert_eq!(end.status, EndStatus::Completed);
        assert_eq!(end.outcome.receipt.proof, Some(Proof::TerminalEvent));
        assert_eq!(end.outcome.receipt.verdict, Verdict::SucceededWithWarnings);
        assert_eq!(end.outcome.text.as_deref(), Some("done"));
    }

    #[test]
    fn our_own_reasons_to_end_a_run_are_its_failure() {
        let silent = OwnStop::Silent(std::time::Duration::from_secs(60));
        let end = judge(
            "claude_code",
            "",
            Supervised::Ended(ended(Exit::Signal(15), true)),
            Some(silent),
            None,
        );
        assert_eq!((end.status, class(&end)), (EndStatus::Failed, Some(FailureClass::Silent)));
        let hopeless = OwnStop::Hopeless(Failure::new(FailureClass::Authentication, "refused"));
        let end = judge(
            "claude_code",
            "",
            Supervised::Ended(ended(Exit::Code(0), true)),
            Some(hopeless),
            None,
        );
        assert_eq!(
            (end.status, class(&end)),
            (EndStatus::Failed, Some(FailureClass::Authentication))
        );
    }

    #[test]
    fn r_61_a_stop_that_came_too_late_leaves_the_success() {
        let end = judge(
            "claude_code",
            COMPLETED,
            Supervised::Ended(ended(Exit::Code(0), true)),
            None,
            Some(StopReason::Cancel),
        );
        assert_eq!(end.status, EndStatus::Completed);
        let end = judge(
            "command",
            "",
            Supervised::Ended(ended(Exit::Signal(15), true)),
            None,
            Some(StopReason::Cancel),
        );
        assert_eq!(end.status, EndStatus::Stopped);
    }

    #[test]
    fn a_success_that_changed_and_said_nothing_is_told_apart() {
        let silent = Ended { output_bytes: 0, ..ended(Exit::Code(0), false) };
        let mut end = judge("command", "", Supervised::Ended(silent), None, None);
        verdict_of_effect(&mut end, None);
        assert_eq!(end.outcome.receipt.verdict, Verdict::SucceededNoVisibleEffect);
        let mut end =
            judge("command", "x\n", Supervised::Ended(ended(Exit::Code(0), false)), None, None);
        verdict_of_effect(&mut end, Some(false));
        assert_eq!(end.outcome.receipt.verdict, Verdict::SucceededNoVisibleEffect);
        let mut end =
            judge("command", "x\n", Supervised::Ended(ended(Exit::Code(0), false)), None, None);
        verdict_of_effect(&mut end, Some(true));
        assert_eq!(end.outcome.receipt.verdict, Verdict::Succeeded);
    }

    #[test]
    fn r_81_answers_and_reasons_are_redacted() {
        let output = COMPLETED.replace("done", "use api_key=abc");
        let end = judge(
            "claude_code",
            &output,
            Supervised::Ended(ended(Exit::Code(0), false)),
            None,
            None,
        );
        assert!(!end.outcome.text.unwrap().contains("abc"));
    }
}
