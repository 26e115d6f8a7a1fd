//! One run, from the start of its agent to the receipt.
//!
//! Tells the shim to start, reads the output from the run directory when the shim says there is more,
//! gives it to the agent's reader, watches over silence and over agents that stay after their last
//! word, passes stop orders on, and joins the evidence at the end. The output is on disk before it is
//! read here: however slow this is, the agent is not held up.

use std::path::PathBuf;
use std::time::Duration;

use ostler_agents::{Agent, AgentEvent, Conclusion, Reader, Status};
use ostler_core::clock::{Clock, Timestamp};
use ostler_core::outcome::{Failure, FailureClass, Killed, Outcome, Receipt, Verdict};
use ostler_core::task::{EndStatus, RunEnd, StopReason};
use ostler_supervise::rundir::{Item, OutputReader, RunDir};
use ostler_supervise::{Ended, Report, RunSpec, Shim, StopOrder};
use tokio::time::Instant;

use super::process::RunnerSettings;
use super::version::Versions;
use super::{LogSink, RunOrder, StopSignal};

/// Output read between two looks at everything else.
const READ_CHUNKS_PER_TURN_MAX: usize = 4;

/// How long the processes of a run whose shim died may take to be found and killed.
const SWEEP_DEADLINE: Duration = Duration::from_secs(10);

/// Everything up to the start of the agent.
pub(super) struct Prepared {
    pub(super) shim: Shim,
    pub(super) run_spec: RunSpec,
    pub(super) run_dir: RunDir,
    pub(super) agent: &'static dyn Agent,
    pub(super) program: PathBuf,
    pub(super) head_before: Option<crate::git::Head>,
    pub(super) silence: Option<Duration>,
}

pub(super) struct Attempt<'a> {
    pub(super) order: RunOrder,
    pub(super) log: LogSink,
    pub(super) stop: StopSignal,
    pub(super) settings: &'a RunnerSettings,
    pub(super) clock: &'a dyn Clock,
    pub(super) versions: &'a Versions,
}

/// Why we ended a run by ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnStop {
    /// The agent had said its last word and stayed.
    Stayed,
    /// It said nothing for too long.
    Silent(Duration),
}

/// How the supervised part ended.
enum Supervised {
    Ended(Ended),
    KillFailed(Ended),
    NotStarted(Failure),
    ShimLost { killed: Vec<Killed>, remaining: Vec<Killed> },
}

impl Attempt<'_> {
    pub(super) async fn run(mut self, prepared: Result<Prepared, Failure>) -> RunEnd {
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(failure) => return self.never_started(failure),
        };
        let Prepared { mut shim, run_spec, run_dir, agent, program, head_before, silence } =
            prepared;
        let started = match shim.prepare(&run_spec).await {
            Ok(()) => shim.start().await,
            Err(error) => Err(error),
        };
        if let Err(error) = started {
            return self.never_started(Failure::new(
                FailureClass::Spawn,
                format!("the run's supervisor could not be reached: {error}"),
            ));
        }
        let mut watch = Watch {
            output: Output {
                reader: OutputReader::open(run_dir.path(), 0),
                agent: agent.reader(),
                events: Vec::new(),
                last_word: None,
            },
            log: &self.log,
            stop: &mut self.stop,
            silence,
            terminal_grace: self.settings.terminal_grace,
            started_at: None,
            own_stop: None,
            asked: None,
        };
        let supervised = watch.supervise(&mut shim, &run_spec).await;
        watch.output.finish(&self.log);
        let (own_stop, asked, started_at) = (watch.own_stop, watch.asked, watch.started_at);
        let mut reader = watch.output.agent;
        let facts = Facts { own_stop, asked, started_at, agent_id: agent.id() };
        if let Supervised::KillFailed(_) = &supervised {
            linger(shim, run_spec.run_dir.to_string());
        }
        let mut end = facts.judge(&mut *reader, supervised, self.clock.now().wall);
        if started_at.is_none() {
            return end;
        }
        let receipt = &mut end.outcome.receipt;
        if receipt.agent_version.is_none() {
            receipt.agent_version = self.versions.of(agent, &program, &run_spec.env).await;
        }
        let mut is_visible = None;
        if let Some(head) = head_before
            && let Some(change) = crate::git::change_since(&head, &run_spec.env).await
        {
            receipt.git = Some(change.git);
            is_visible = Some(change.is_visible);
        }
        verdict_of_effect(&mut end, is_visible);
        end
    }

    fn never_started(&self, failure: Failure) -> RunEnd {
        let agent = self.order.spec.agent.clone().unwrap_or_default();
        let receipt = Receipt::unproven(agent, self.clock.now().wall);
        RunEnd { status: EndStatus::Failed, outcome: Outcome::failed(failure, receipt) }
    }
}

/// What would not die is watched until it is gone; the shim goes on sweeping meanwhile.
fn linger(mut shim: Shim, run: String) {
    tokio::spawn(async move {
        loop {
            match shim.report().await {
                Report::Empty(_) => {
                    return tracing::warn!(%run, "what could not be killed is gone now");
                }
                Report::Lost => {
                    return tracing::error!(%run, "the supervisor of what could not be killed is gone");
                }
                _ => {}
            }
        }
    });
}

struct Watch<'a> {
    output: Output,
    log: &'a LogSink,
    stop: &'a mut StopSignal,
    silence: Option<Duration>,
    terminal_grace: Duration,
    started_at: Option<Timestamp>,
    own_stop: Option<OwnStop>,
    asked: Option<StopReason>,
}

impl Watch<'_> {
    async fn supervise(&mut self, shim: &mut Shim, spec: &RunSpec) -> Supervised {
        let mut heard_at = Instant::now();
        let mut more = false;
        loop {
            let due = self.due(heard_at);
            tokio::select! {
                biased;
                reason = self.stop.stopped(), if self.asked.is_none() => {
                    self.asked = Some(reason);
                    self.order_stop(shim).await;
                }
                report = shim.report() => match report {
                    Report::Started { at_micros, .. } => self.started_at = Some(Timestamp::from_micros(at_micros)),
                    Report::Output { .. } => { heard_at = Instant::now(); more = true; }
                    Report::LeaderExited(_) | Report::Empty(_) => {}
                    Report::SpawnFailed { kind, message } => return Supervised::NotStarted(spawn_failed(kind, message)),
                    Report::Ended(ended) => return Supervised::Ended(ended),
                    Report::KillFailed { ended, .. } => return Supervised::KillFailed(ended),
                    Report::Lost => {
                        let swept = ostler_supervise::sweep(&spec.marker, SWEEP_DEADLINE).await;
                        return Supervised::ShimLost { killed: swept.killed, remaining: swept.remaining };
                    }
                },
                () = sleep_until(due) => self.overdue(shim).await,
                () = std::future::ready(()), if more => {
                    more = self.output.read_some(self.log);
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// When patience ends: after the last word, or after silence.
    fn due(&self, heard_at: Instant) -> Option<Instant> {
        if self.own_stop.is_some() {
            return None;
        }
        let last_word = self.output.last_word.map(|at| at + self.terminal_grace);
        last_word.or_else(|| self.silence.map(|silence| heard_at + silence))
    }

    async fn overdue(&mut self, shim: &mut Shim) {
        self.own_stop = Some(match (self.output.last_word, self.silence) {
            (None, Some(silence)) => OwnStop::Silent(silence),
            _ => OwnStop::Stayed,
        });
        self.order_stop(shim).await;
    }

    async fn order_stop(&mut self, shim: &mut Shim) {
        if let Err(error) = shim.stop(StopOrder::Plan).await {
            // A shim that cannot be told has ended; its last report, or its loss, comes next.
            tracing::debug!(%error, "a stop order did not arrive");
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The output on its way from the run directory to the agent's reader and the log tail.
struct Output {
    reader: std::io::Result<OutputReader>,
    agent: Box<dyn Reader>,
    events: Vec<AgentEvent>,
    last_word: Option<Instant>,
}

impl Output {
    /// Reads some of what is there; `true` when there may be more.
    fn read_some(&mut self, log: &LogSink) -> bool {
        for _ in 0..READ_CHUNKS_PER_TURN_MAX {
            if !self.read_one(log) {
                return false;
            }
        }
        true
    }

    fn read_one(&mut self, log: &LogSink) -> bool {
        let Ok(reader) = &mut self.reader else {
            return false;
        };
        match reader.next_item() {
            Ok(Some(Item::Chunk(chunk))) => {
                self.agent.push(super::agent_stream(chunk.stream), &chunk.bytes, &mut self.events);
                self.show(log);
                true
            }
            Ok(Some(Item::Gap(gap))) => {
                log.line(&format!("[{} bytes of output are no longer kept]", gap.dropped_bytes()));
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::error!(%error, "a run's output could not be read back");
                false
            }
        }
    }

    fn show(&mut self, log: &LogSink) {
        for event in self.events.drain(..) {
            if let Some(line) = super::display_line(event) {
                log.line(&line);
            }
        }
        if self.last_word.is_none() && self.agent.terminal().is_some() {
            self.last_word = Some(Instant::now());
        }
    }

    /// Reads what is left once nothing more can come.
    fn finish(&mut self, log: &LogSink) {
        while self.read_one(log) {}
        self.agent.finish_streams(&mut self.events);
        self.show(log);
    }
}

fn spawn_failed(kind: ostler_supervise::SpawnErrorKind, message: String) -> Failure {
    let class = match kind {
        ostler_supervise::SpawnErrorKind::NotFound => FailureClass::NotInstalled,
        _ => FailureClass::Spawn,
    };
    Failure::new(class, message)
}

/// What the judgement rests on, besides the agent's stream.
struct Facts {
    own_stop: Option<OwnStop>,
    asked: Option<StopReason>,
    started_at: Option<Timestamp>,
    agent_id: &'static str,
}

impl Facts {
    fn judge(self, reader: &mut dyn Reader, supervised: Supervised, now: Timestamp) -> RunEnd {
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
        let silent = match self.own_stop {
            Some(OwnStop::Silent(silence)) => Some(Failure::new(
                FailureClass::Silent,
                format!("{} said nothing for {} seconds", self.agent_id, silence.as_secs()),
            )),
            _ => None,
        };
        // What the supervisor saw comes before what the agent says of itself.
        let completed =
            conclusion.status == Status::Completed && failure.is_none() && silent.is_none();
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
            EndStatus::Failed => failure.or(silent).or(conclusion.failure),
        };
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
            text: conclusion.text,
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
fn verdict_of_effect(end: &mut RunEnd, is_visible: Option<bool>) {
    let outcome = &mut end.outcome;
    if outcome.receipt.verdict != Verdict::Succeeded {
        return;
    }
    let visible = is_visible.unwrap_or(outcome.receipt.output_bytes > 0);
    if !visible {
        outcome.receipt.verdict = Verdict::SucceededNoVisibleEffect;
    }
}
