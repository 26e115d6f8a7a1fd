//! One run, from the start of its agent to the receipt.
//!
//! Tells the shim to start, reads the output from the run directory when the shim says there is more,
//! gives it to the agent's reader, watches over silence and over agents that stay after their last
//! word, passes stop orders on, and joins the evidence at the end. The output is on disk before it is
//! read here: however slow this is, the agent is not held up.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use camino::Utf8PathBuf;
use ostler_agents::{Agent, AgentEvent, Reader};
use ostler_core::clock::{Clock, Timestamp};
use ostler_core::outcome::{Failure, FailureClass, Killed, Outcome, Receipt};
use ostler_core::task::{EndStatus, RunEnd, StopReason};
use ostler_supervise::rundir::{Item, OutputReader, RunDir};
use ostler_supervise::{Ended, Report, RunSpec, Shim, Spared, StopOrder, SweepReport};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::events::EventFile;
use super::evidence::{Facts, verdict_of_effect};
use super::process::{RunnerSettings, TakenSpare};
use super::version::Versions;
use super::{LogSink, RunOrder, StopSignal};

/// Output read between two looks at everything else.
const READ_CHUNKS_PER_TURN_MAX: usize = 4;

/// Lines that are shown before the engine gets a turn; fewer than its queue holds.
const LINES_PER_TURN_MAX: usize = 256;

/// Unread output after which the older part is skipped, and how much is read then.
const BACKLOG_BYTES_MAX: u64 = 4 * 1024 * 1024;
const BACKLOG_KEPT_BYTES: u64 = 256 * 1024;

/// How long asking for version and changes may take: a cancelled task is waited for, and an agent that ends
/// by itself is not held up for long.
const EVIDENCE_TIME_MAX: Duration = Duration::from_secs(8);
/// The same for a cancelled task, which somebody waits for.
const CANCELLED_EVIDENCE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long the working directory and the folders of `PATH` may take to answer before the start is given up.
const PREPARE_TIME_MAX: Duration = Duration::from_secs(20);

/// How long the processes of a run whose shim died may take to be found and killed.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(10);

/// Everything up to the start of the agent.
pub(super) struct Prepared {
    /// The shim, which has been told what to run.
    pub(super) shim: Shim,
    /// Whose place it left.
    pub(super) taken: TakenSpare,
    pub(super) run_spec: RunSpec,
    pub(super) run_dir: RunDir,
    pub(super) agent: &'static dyn Agent,
    pub(super) program: PathBuf,
    pub(super) head_before: Option<crate::git::Head>,
    pub(super) silence: Option<Duration>,
}

/// The same, on its way.
pub(super) type Preparing = JoinHandle<Result<Prepared, Failure>>;

pub(super) struct Attempt<'a> {
    pub(super) order: RunOrder,
    pub(super) log: LogSink,
    pub(super) stop: StopSignal,
    pub(super) settings: &'a RunnerSettings,
    pub(super) clock: &'a dyn Clock,
    pub(super) versions: &'a Versions,
}

/// Why we ended a run by ourselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnStop {
    /// The agent had said its last word and stayed.
    Stayed,
    /// It said nothing for too long.
    Silent(Duration),
    /// It goes on asking where asking again cannot help.
    Hopeless(Failure),
}

/// How the supervised part ended.
pub(super) enum Supervised {
    Ended(Ended),
    KillFailed(Ended),
    NotStarted(Failure),
    ShimLost { killed: Vec<Killed>, remaining: Vec<Killed> },
}

impl Supervised {
    fn output_end(&self) -> Option<u64> {
        match self {
            Self::Ended(ended) | Self::KillFailed(ended) => Some(ended.output_end),
            Self::NotStarted(_) | Self::ShimLost { .. } => None,
        }
    }
}

impl Attempt<'_> {
    pub(super) async fn run(mut self, preparing: Preparing) -> RunEnd {
        let prepared = match self.start(preparing).await {
            Ok(prepared) => prepared,
            Err(end) => return end,
        };
        let Prepared { mut shim, taken, run_spec, run_dir, agent, program, head_before, silence } =
            prepared;
        let mut watch = Watch {
            output: Output {
                dir: run_dir.path().to_owned(),
                reader: OutputReader::open(run_dir.path(), 0),
                end: 0,
                is_read_whole: agent.states_its_end(),
                agent: agent.reader(),
                events: Vec::new(),
                file: EventFile::create(run_dir.path()),
                last_word: None,
                hopeless: None,
            },
            log: &self.log,
            stop: &mut self.stop,
            silence,
            silence_told: false,
            terminal_grace: self.settings.terminal_grace,
            taken: Some(taken),
            started_at: None,
            leader: None,
            own_stop: None,
            asked: None,
        };
        let supervised = watch.supervise(&mut shim, &run_spec).await;
        watch.output.finish(supervised.output_end(), &self.log).await;
        watch.taken = None;
        let (own_stop, asked, started_at) = (watch.own_stop.take(), watch.asked, watch.started_at);
        let (mut reader, mut events) = (watch.output.agent, watch.output.file);
        let facts = Facts { own_stop, asked, started_at, agent_id: agent.id() };
        if let Supervised::KillFailed(_) = &supervised {
            linger(shim, run_spec.run_dir.to_string());
        } else {
            // It has said its last word, and goes.
            tokio::spawn(async move { shim.wait().await });
        }
        let mut end = facts.judge(&mut *reader, supervised, self.clock.now().wall);
        if started_at.is_none() {
            return end;
        }
        let time_max = match asked {
            // The daemon is on its way out; what counts is that this end is recorded.
            Some(StopReason::Shutdown) => Duration::ZERO,
            Some(StopReason::Cancel) => CANCELLED_EVIDENCE_TIME_MAX,
            Some(StopReason::Deadline) | None => EVIDENCE_TIME_MAX,
        };
        let evidence = self.look_around(&end, agent, &program, head_before, &run_spec.env);
        let (version, change) = tokio::time::timeout(time_max, evidence).await.unwrap_or_default();
        let receipt = &mut end.outcome.receipt;
        receipt.agent_version = receipt.agent_version.take().or(version);
        let is_visible = change.as_ref().map(|change| change.is_visible);
        receipt.git = change.map(|change| change.git);
        verdict_of_effect(&mut end, is_visible);
        events.end(&end);
        end
    }

    /// What the agent's stream does not say: its version, and what changed in the repository.
    async fn look_around(
        &self,
        end: &RunEnd,
        agent: &'static dyn Agent,
        program: &Path,
        head_before: Option<crate::git::Head>,
        env: &[(OsString, OsString)],
    ) -> (Option<String>, Option<crate::git::Change>) {
        let version = async {
            match &end.outcome.receipt.agent_version {
                Some(_) => None,
                None => self.versions.of(agent, program, env).await,
            }
        };
        let change = async {
            match &head_before {
                Some(head) => crate::git::change_since(head, env).await,
                None => None,
            }
        };
        tokio::join!(version, change)
    }

    /// Lets the agent start: the intent is durable. Whoever stops the run while it gets ready does not wait
    /// for that.
    async fn start(&mut self, preparing: Preparing) -> Result<Prepared, RunEnd> {
        let prepared = tokio::select! {
            biased;
            _ = self.stop.stopped() => return Err(self.never_started(EndStatus::Stopped, None)),
            prepared = tokio::time::timeout(PREPARE_TIME_MAX, preparing) => prepared,
        };
        let failed = |class, why: String| {
            self.never_started(EndStatus::Failed, Some(Failure::new(class, why)))
        };
        let mut prepared = match prepared {
            Ok(Ok(Ok(prepared))) => prepared,
            Ok(Ok(Err(failure))) => {
                return Err(self.never_started(EndStatus::Failed, Some(failure)));
            }
            Ok(Err(panic)) => {
                return Err(failed(FailureClass::Spawn, format!("the start failed: {panic}")));
            }
            Err(_) => {
                let seconds = PREPARE_TIME_MAX.as_secs();
                let cwd = &self.order.spec.cwd;
                return Err(failed(
                    FailureClass::Spawn,
                    format!(
                        "{cwd}, or a folder of PATH, did not answer for {seconds} seconds; is it on a mount that is gone?"
                    ),
                ));
            }
        };
        match prepared.shim.start().await {
            Ok(()) => Ok(prepared),
            Err(error) => {
                let why = format!("the run's supervisor could not be reached: {error}");
                Err(failed(FailureClass::Spawn, why))
            }
        }
    }

    fn never_started(&self, status: EndStatus, failure: Option<Failure>) -> RunEnd {
        let agent = self.order.spec.agent.clone().unwrap_or_default();
        let receipt = Receipt::unproven(agent, self.clock.now().wall);
        let outcome = Outcome { failure, receipt, text: None, usage: None, cost_micros: None };
        RunEnd { status, outcome }
    }
}

/// Ends what the shim has left. Before the agent's number is known nobody is spared.
async fn sweep(spec: &RunSpec, leader: Option<u32>) -> SweepReport {
    let spared = leader.map(|leader| Spared { names: spec.keep.clone(), leader });
    ostler_supervise::sweep(&spec.marker, Some(&spec.run_dir), spared, SWEEP_TIME_MAX).await
}

/// What would not die is watched until it is gone; the shim goes on sweeping meanwhile.
fn linger(mut shim: Shim, run: String) {
    tokio::spawn(async move {
        loop {
            match shim.report().await {
                Report::Empty(_) => {
                    tracing::warn!(%run, "what could not be killed is gone now");
                    break;
                }
                Report::Lost => {
                    tracing::error!(%run, "the supervisor of what could not be killed is gone");
                    break;
                }
                _ => {}
            }
        }
        shim.wait().await
    });
}

struct Watch<'a> {
    output: Output,
    log: &'a LogSink,
    stop: &'a mut StopSignal,
    silence: Option<Duration>,
    /// Half of it has passed, and that was said.
    silence_told: bool,
    terminal_grace: Duration,
    /// Held until the agent has started: its start comes first.
    taken: Option<TakenSpare>,
    started_at: Option<Timestamp>,
    leader: Option<u32>,
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
                    Report::Started { at_micros, pid, .. } => {
                        self.leader = Some(pid);
                        self.started_at = Some(Timestamp::from_micros(at_micros));
                        self.taken = None;
                    }
                    Report::Output { end } => {
                        heard_at = Instant::now();
                        self.silence_told = false;
                        self.output.end = end;
                        more = true;
                    }
                    Report::LeaderExited(_) | Report::Empty(_) => {}
                    Report::SpawnFailed { kind, message } => return Supervised::NotStarted(spawn_failed(kind, message)),
                    Report::Ended(ended) => return Supervised::Ended(ended),
                    Report::KillFailed { ended, .. } => return Supervised::KillFailed(ended),
                    Report::Lost => {
                        let swept = sweep(spec, self.leader).await;
                        return Supervised::ShimLost { killed: swept.killed, remaining: swept.remaining };
                    }
                },
                () = sleep_until(due) => self.overdue(shim).await,
                () = std::future::ready(()), if more => {
                    more = self.output.read_some(self.log).await;
                    self.give_up_on_hopeless(shim).await;
                    tokio::task::yield_now().await;
                }
            }
        }
    }

    /// When patience ends: after the last word, or after silence, of which half is told.
    fn due(&self, heard_at: Instant) -> Option<Instant> {
        if self.own_stop.is_some() {
            return None;
        }
        let last_word = self.output.last_word.map(|at| at + self.terminal_grace);
        let patience = |silence: Duration| if self.silence_told { silence } else { silence / 2 };
        last_word.or_else(|| self.silence.map(|silence| heard_at + patience(silence)))
    }

    async fn overdue(&mut self, shim: &mut Shim) {
        if let (None, Some(silence), false) =
            (self.output.last_word, self.silence, self.silence_told)
        {
            self.silence_told = true;
            self.log.line(&format!(
                "[nothing was said for {} seconds; after {} the run is ended]",
                (silence / 2).as_secs(),
                silence.as_secs()
            ));
            return;
        }
        self.own_stop = Some(match (self.output.last_word, self.silence) {
            (None, Some(silence)) => OwnStop::Silent(silence),
            _ => OwnStop::Stayed,
        });
        self.order_stop(shim).await;
    }

    async fn give_up_on_hopeless(&mut self, shim: &mut Shim) {
        if self.own_stop.is_none()
            && self.asked.is_none()
            && let Some(failure) = self.output.hopeless.take()
        {
            self.own_stop = Some(OwnStop::Hopeless(failure));
            self.order_stop(shim).await;
        }
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
    dir: Utf8PathBuf,
    reader: std::io::Result<OutputReader>,
    /// Where the output ends, as far as is known.
    end: u64,
    /// Whether every line counts for the judgement.
    is_read_whole: bool,
    agent: Box<dyn Reader>,
    events: Vec<AgentEvent>,
    file: EventFile,
    last_word: Option<Instant>,
    /// A retry that cannot help.
    hopeless: Option<Failure>,
}

impl Output {
    /// Reads some of what is there; `true` when there may be more.
    async fn read_some(&mut self, log: &LogSink) -> bool {
        self.skip_backlog(log);
        for _ in 0..READ_CHUNKS_PER_TURN_MAX {
            if !self.read_one(log) {
                return false;
            }
            self.show(log).await;
        }
        true
    }

    /// A program that is judged by its exit status is not read line by line when it prints faster than
    /// that: only its newest lines are shown anyway, and the run directory has everything.
    fn skip_backlog(&mut self, log: &LogSink) {
        let Ok(reader) = &mut self.reader else { return };
        let behind = self.end.saturating_sub(reader.position());
        if self.is_read_whole || behind <= BACKLOG_BYTES_MAX {
            return;
        }
        self.reader = OutputReader::open(&self.dir, self.end - BACKLOG_KEPT_BYTES);
        log.left_out();
    }

    fn read_one(&mut self, log: &LogSink) -> bool {
        let Ok(reader) = &mut self.reader else {
            return false;
        };
        match reader.next_item() {
            Ok(Some(Item::Chunk(chunk))) => {
                self.agent.push(super::agent_stream(chunk.stream), &chunk.bytes, &mut self.events);
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

    /// Shows the events, and lets the engine take lines in between.
    async fn show(&mut self, log: &LogSink) {
        for (count, event) in std::mem::take(&mut self.events).into_iter().enumerate() {
            if count % LINES_PER_TURN_MAX == LINES_PER_TURN_MAX - 1 {
                tokio::task::yield_now().await;
            }
            self.file.event(&event);
            if let AgentEvent::Retry { class, message, .. } = &event
                && is_hopeless(*class)
            {
                self.hopeless.get_or_insert_with(|| Failure::new(*class, message.clone()));
            }
            if let Some(line) = super::display_line(event) {
                log.line(&line);
            }
        }
        // A later turn withdraws a closing statement.
        self.last_word = self.agent.terminal().map(|_| self.last_word.unwrap_or_else(Instant::now));
    }

    /// Reads what is left once nothing more can come.
    async fn finish(&mut self, end: Option<u64>, log: &LogSink) {
        self.end = end.unwrap_or(self.end);
        while self.read_some(log).await {
            tokio::task::yield_now().await;
        }
        self.agent.finish_streams(&mut self.events);
        self.show(log).await;
    }
}

/// Refused credentials and used-up quotas do not get better by asking again in a few seconds; agents
/// that do so for minutes are ended, and the reason is told at once.
fn is_hopeless(class: FailureClass) -> bool {
    matches!(class, FailureClass::Authentication | FailureClass::Quota)
}

fn spawn_failed(kind: ostler_supervise::SpawnErrorKind, message: String) -> Failure {
    let class = match kind {
        ostler_supervise::SpawnErrorKind::NotFound => FailureClass::NotInstalled,
        ostler_supervise::SpawnErrorKind::Storage => FailureClass::Storage,
        _ => FailureClass::Spawn,
    };
    Failure::new(class, message)
}

#[cfg(test)]
mod tests;
