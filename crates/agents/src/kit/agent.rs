//! How to start an agent: the request of the host, and the arguments, stdin and variables that
//! come of it. An agent only says how it is called; the host resolves programs and starts them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use camino::Utf8Path;
use ostler_core::outcome::{Failure, FailureClass};
use ostler_core::task::Permissions;

use super::reader::Reader;

/// What stands where the prompt was, in everything that is kept or shown.
pub const REDACTED_PROMPT: &str = "[task input redacted]";

/// What the host asks for. Borrowed: the prompt stays where it is.
#[derive(Clone)]
pub struct LaunchRequest<'a> {
    /// The task's input.
    pub prompt: &'a str,
    /// Program and arguments, for `command` only.
    pub argv: &'a [String],
    /// Where it runs; the host makes it the working directory.
    pub cwd: &'a Utf8Path,
    /// The agent's own session to continue.
    pub resume: Option<&'a str>,
    /// The model's vendor.
    pub provider: Option<&'a str>,
    /// The model.
    pub model: Option<&'a str>,
    /// How hard the model should think.
    pub effort: Option<&'a str>,
    /// Whether the agent makes a worktree for itself.
    pub worktree: bool,
    /// What it may do.
    pub permissions: Permissions,
    /// What it may cost, in millionths of a US dollar.
    pub budget_micros: Option<u64>,
    /// Whether it will run as root.
    pub is_root: bool,
    /// The program that will be started.
    pub executable: PathBuf,
}

/// What the agent reads on its standard input.
#[derive(Clone, PartialEq, Eq)]
pub enum LaunchStdin {
    /// End of file at once.
    Null,
    /// The prompt, then end of file.
    Prompt(Vec<u8>),
}

/// One step of a stop order: a signal for the leader, then the time it has to obey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopStep {
    /// The signal's number.
    pub signal: i32,
    /// How long to wait for the end.
    pub grace_ms: u64,
}

/// The steps before everything is killed; at most 5 s in all.
pub type StopPlan = Vec<StopStep>;

pub(crate) const SIGINT: i32 = 2;
pub(crate) const SIGTERM: i32 = 15;

/// How to start one run.
#[derive(Clone)]
pub struct Launch {
    /// The arguments, without the program.
    pub args: Vec<OsString>,
    /// The same for the record: no prompt in it.
    pub public_args: Vec<String>,
    /// Its standard input.
    pub stdin: LaunchStdin,
    /// Variables added to the environment.
    pub env_set: Vec<(String, String)>,
    /// How to stop it.
    pub stop: StopPlan,
    /// More than this from one stream fails the run.
    pub stream_bytes_max: Option<u64>,
    /// Saying nothing for longer than this is a sign that it hangs.
    pub silence: Option<Duration>,
    /// Whether the prompt is replaced in its output before that is written.
    pub scrub: bool,
}

/// Why an agent cannot be started as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// It has no such mode.
    #[error("{agent} cannot run with permissions `{asked}`: {why}")]
    Permissions {
        /// The agent's id.
        agent: &'static str,
        /// What was asked for.
        asked: &'static str,
        /// What it can do instead.
        why: &'static str,
    },
    /// It does not count what it costs.
    #[error("{agent} does not count what it costs, so it cannot keep a budget")]
    Budget {
        /// The agent's id.
        agent: &'static str,
    },
    /// It cannot do one of the things asked for.
    #[error("{agent} takes no {what}")]
    Unsupported {
        /// The agent's id.
        agent: &'static str,
        /// The thing.
        what: &'static str,
    },
    /// It knows only its own vendors.
    #[error("{agent} has no provider `{provider}`; leave it out, or use `anthropic`")]
    Provider {
        /// The agent's id.
        agent: &'static str,
        /// What was asked for.
        provider: String,
    },
    /// `command` without a program.
    #[error("there is no program to run: `argv` is empty")]
    NoProgram,
    /// An argument cannot be handed to a program.
    #[error("{what} contains a NUL character, which no argument can")]
    NulByte {
        /// Which one.
        what: &'static str,
    },
}

impl LaunchError {
    /// The same as the failure of a task.
    pub fn failure(&self) -> Failure {
        let class = match self {
            Self::Permissions { .. } => FailureClass::PermissionDenied,
            Self::Budget { .. } => FailureClass::Budget,
            _ => FailureClass::Spawn,
        };
        Failure::new(class, self.to_string())
    }
}

/// One agent CLI.
pub trait Agent: Sync {
    /// Its name in the registry, on the wires and in receipts.
    fn id(&self) -> &'static str;

    /// Other names for it.
    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    /// Its programs, as they are looked for on `PATH`; none when the task names the program.
    fn programs(&self) -> &'static [&'static str];

    /// The permissions it can run with, the usual one first.
    fn permissions(&self) -> &'static [Permissions];

    /// What it runs with when nothing was asked for.
    fn default_permissions(&self) -> Permissions {
        self.permissions().first().copied().unwrap_or(Permissions::Full)
    }

    /// Its own variables, let through to it; a trailing `*` means every name that begins so.
    fn env_keys(&self) -> &'static [&'static str];

    /// Whether its output says how it ended, so that all of it must be read; else the exit status does.
    fn states_its_end(&self) -> bool;

    /// Arguments that make the program print its version; `None` when it has none to print.
    fn version_args(&self) -> Option<&'static [&'static str]>;

    /// How to start a run.
    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError>;

    /// A reader for one run.
    fn reader(&self) -> Box<dyn Reader>;
}

/// Refuses a budget that nobody would keep.
pub(crate) fn refuse_budget(
    agent: &'static str,
    request: &LaunchRequest<'_>,
) -> Result<(), LaunchError> {
    match request.budget_micros {
        Some(_) => Err(LaunchError::Budget { agent }),
        None => Ok(()),
    }
}

/// Refuses text that cannot be an argument.
pub(crate) fn refuse_nul(what: &'static str, text: &str) -> Result<(), LaunchError> {
    if text.contains('\0') { Err(LaunchError::NulByte { what }) } else { Ok(()) }
}
