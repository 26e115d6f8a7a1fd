//! How a run ended and what proves it: failure classes, usage, the receipt and its verdict.
//!
//! The shapes are those of runtime.md, "Shapes of ours". Plain data: `agents` and `supervise` fill
//! it, `host` joins it and converts it to the wire.

use crate::clock::Timestamp;

/// What kind of failure; the names are stable on the wires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// The provider refused the credentials.
    Authentication,
    /// A usage limit that ends at a known or unknown time.
    Quota,
    /// Too many requests for now.
    RateLimit,
    /// The model is unknown or failed.
    Model,
    /// The provider could not be reached, or the stream broke.
    Network,
    /// The conversation no longer fits the model.
    ContextOverflow,
    /// The run passed its wall-clock limit.
    Timeout,
    /// The run passed its budget.
    Budget,
    /// The agent said nothing for too long.
    Silent,
    /// The agent ended without an answer.
    EmptyOutput,
    /// The agent's output stopped in the middle, or passed its bound.
    TruncatedOutput,
    /// The agent could not finish without a permission that was denied.
    PermissionDenied,
    /// The agent's program was not found.
    NotInstalled,
    /// The agent's program is too old or too new for us.
    UnsupportedVersion,
    /// The program could not be started.
    Spawn,
    /// The program exited with a status other than 0.
    ExitStatus,
    /// The program died of a signal that was not ours.
    Signal,
    /// Something of the run could not be killed.
    KillFailed,
    /// The run's supervisor died.
    ShimLost,
    /// Disk or journal failed.
    Storage,
    /// None of the above.
    Unknown,
}

impl FailureClass {
    /// Every class, for tables and tests.
    pub const ALL: [Self; 21] = [
        Self::Authentication,
        Self::Quota,
        Self::RateLimit,
        Self::Model,
        Self::Network,
        Self::ContextOverflow,
        Self::Timeout,
        Self::Budget,
        Self::Silent,
        Self::EmptyOutput,
        Self::TruncatedOutput,
        Self::PermissionDenied,
        Self::NotInstalled,
        Self::UnsupportedVersion,
        Self::Spawn,
        Self::ExitStatus,
        Self::Signal,
        Self::KillFailed,
        Self::ShimLost,
        Self::Storage,
        Self::Unknown,
    ];

    /// The name on the wires.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Authentication => "authentication",
            Self::Quota => "quota",
            Self::RateLimit => "rate_limit",
            Self::Model => "model",
            Self::Network => "network",
            Self::ContextOverflow => "context_overflow",
            Self::Timeout => "timeout",
            Self::Budget => "budget",
            Self::Silent => "silent",
            Self::EmptyOutput => "empty_output",
            Self::TruncatedOutput => "truncated_output",
            Self::PermissionDenied => "permission_denied",
            Self::NotInstalled => "not_installed",
            Self::UnsupportedVersion => "unsupported_version",
            Self::Spawn => "spawn",
            Self::ExitStatus => "exit_status",
            Self::Signal => "signal",
            Self::KillFailed => "kill_failed",
            Self::ShimLost => "shim_lost",
            Self::Storage => "storage",
            Self::Unknown => "unknown",
        }
    }

    /// The class with that wire name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }
}

/// Why a task failed, in words for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind.
    pub class: FailureClass,
    /// One line; never contains the prompt or a secret.
    pub message: String,
    /// When a limit is said to end.
    pub retry_at: Option<Timestamp>,
}

impl Failure {
    /// A failure without a time to retry at.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), retry_at: None }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    /// Status 0.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

/// Tokens of one run. The buckets are disjoint, except that `reasoning` is part of `output`; what is
/// unknown is `None`, not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Fresh input.
    pub input_tokens: Option<u64>,
    /// Input read from a cache.
    pub cache_read_tokens: Option<u64>,
    /// Input written to a cache.
    pub cache_write_tokens: Option<u64>,
    /// Everything the model wrote.
    pub output_tokens: Option<u64>,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: Option<u64>,
}

/// What a run cost, in millionths of a US dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostMicros {
    /// Micro-dollars.
    pub amount: u64,
    /// Whether it is our estimate and not the agent's own figure.
    pub estimated: bool,
}

/// What proves a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The agent's own closing statement.
    TerminalEvent,
    /// The exit status, for programs that state nothing.
    ExitStatus,
}

impl Proof {
    /// The name on the wires.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TerminalEvent => "terminal_event",
            Self::ExitStatus => "exit_status",
        }
    }
}

/// The one-word judgement of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Proven, with something to show for it.
    Succeeded,
    /// Proven, but nothing changed and nothing was said.
    SucceededNoVisibleEffect,
    /// Proven, with denials or things that had to be killed.
    SucceededWithWarnings,
    /// Not proven.
    Failed,
    /// Ended on request.
    Cancelled,
    /// Ended with the daemon.
    Interrupted,
}

impl Verdict {
    /// Every verdict, for tables and tests.
    pub const ALL: [Self; 6] = [
        Self::Succeeded,
        Self::SucceededNoVisibleEffect,
        Self::SucceededWithWarnings,
        Self::Failed,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// The name on the wires.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::SucceededNoVisibleEffect => "succeeded_no_visible_effect",
            Self::SucceededWithWarnings => "succeeded_with_warnings",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A process that had to be killed, or that was left alone on purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Killed {
    /// Its process id.
    pub pid: u32,
    /// The first word of its command line; never the arguments.
    pub argv0: String,
    /// What it did not obey: `exit` (the leader ended and it did not), `term`, `kill`.
    pub after: String,
}

/// What changed in the working tree, when it is a git repository.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GitChange {
    /// HEAD before the run.
    pub head_before: Option<String>,
    /// HEAD after it.
    pub head_after: Option<String>,
    /// Files that differ from `head_before`, untracked ones included.
    pub changed_files: u64,
    /// Lines added.
    pub insertions: u64,
    /// Lines removed.
    pub deletions: u64,
}

/// The evidence of a finished run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The agent's id.
    pub agent: String,
    /// What its `--version` says, when it is known.
    pub agent_version: Option<String>,
    /// What the verdict rests on; `None` when nothing proved anything.
    pub proof: Option<Proof>,
    /// The agent's closing statement in a word or two (`completed`, `api_error`).
    pub statement: Option<String>,
    /// How the leader ended; `None` when that was never seen.
    pub exit: Option<Exit>,
    /// When the agent was started; `None` when it never was.
    pub started_at: Option<Timestamp>,
    /// When nothing of it was left.
    pub ended_at: Timestamp,
    /// The agent's own session id, to resume with.
    pub session_id: Option<String>,
    /// What changed in the repository.
    pub git: Option<GitChange>,
    /// Tools that were denied, by name.
    pub denials: Vec<String>,
    /// What had to be killed.
    pub killed: Vec<Killed>,
    /// What the keep-list let live.
    pub kept: Vec<Killed>,
    /// Bytes the agent wrote on both streams.
    pub output_bytes: u64,
    /// Whether some of it is no longer kept.
    pub truncated: bool,
    /// The judgement.
    pub verdict: Verdict,
}

impl Receipt {
    /// A receipt that proves nothing yet; the verdict is `failed` until something does.
    pub fn unproven(agent: impl Into<String>, ended_at: Timestamp) -> Self {
        Self {
            agent: agent.into(),
            agent_version: None,
            proof: None,
            statement: None,
            exit: None,
            started_at: None,
            ended_at,
            session_id: None,
            git: None,
            denials: Vec::new(),
            killed: Vec::new(),
            kept: Vec::new(),
            output_bytes: 0,
            truncated: false,
            verdict: Verdict::Failed,
        }
    }
}

/// How a run ended, with everything that is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Why it failed; `None` for a success and for a cancelled or interrupted run.
    pub failure: Option<Failure>,
    /// The evidence.
    pub receipt: Receipt,
    /// The agent's final answer, bounded.
    pub text: Option<String>,
    /// Tokens.
    pub usage: Option<Usage>,
    /// Money.
    pub cost_micros: Option<CostMicros>,
}

impl Outcome {
    /// A failure with what evidence there is.
    pub fn failed(failure: Failure, receipt: Receipt) -> Self {
        Self { failure: Some(failure), receipt, text: None, usage: None, cost_micros: None }
    }
}
