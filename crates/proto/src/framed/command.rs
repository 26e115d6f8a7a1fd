//! Commands: what a client asks for, and the gate that judges it.
//!
//! Owns every bound and every error text that needs no state. Answers that depend on tasks (`task id is
//! unknown`, …) belong to the scheduler; whether an agent exists or a folder is there, to the host.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::COMMAND_VERSION;
use super::gate::{self, Fields};
use crate::json::{self, Problem};

/// Characters of a task, session or approval id.
pub const ID_CHARS_MAX: usize = 256;
/// Characters of a prompt for the default agent, which may take it as an argument.
pub const PROMPT_CHARS_MAX: usize = 8_192;
/// Bytes of a prompt when the submit names its `agent`.
pub const AGENT_PROMPT_BYTES_MAX: usize = 512 * 1024;
/// Characters of a working directory.
pub const CWD_CHARS_MAX: usize = 4_096;
/// Characters of a provider.
pub const PROVIDER_CHARS_MAX: usize = 128;
/// Characters of a model.
pub const MODEL_CHARS_MAX: usize = 256;
/// Characters of an effort.
pub const EFFORT_CHARS_MAX: usize = 64;
/// Characters of an agent's id.
pub const AGENT_CHARS_MAX: usize = 64;
/// Bytes of all words of `argv` together.
pub const ARGV_BYTES_MAX: usize = 256 * 1024;
/// Bytes of all names and values of `env` together.
pub const ENV_BYTES_MAX: usize = 512 * 1024;
/// Seconds a task may be given; 30 days.
pub const TIMEOUT_SECONDS_MAX: u64 = 2_592_000;
/// Micro-dollars a task may be given; what fits a signed column.
pub const BUDGET_MICROS_MAX: u64 = 9_223_372_036_854_775_807;
/// The highest limit of tasks that run at once.
pub const LIMIT_MAX: u8 = 32;
/// The agent that runs the program in `argv`.
pub const AGENT_COMMAND: &str = "command";

/// A command that passed the gate, or that a client is about to send.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly every command of a busy client is a submit")]
pub enum Command {
    /// All live tasks.
    List,
    /// A new task.
    Submit(Submit),
    /// End a task.
    Cancel {
        /// Which.
        task_id: String,
    },
    /// Queue a settled task again.
    Retry {
        /// Which.
        task_id: String,
    },
    /// How many tasks may run at once, 1 to 32.
    SetLimit {
        /// The new limit.
        limit: u8,
    },
    /// A decision about a running task; well formed, and always refused by this daemon.
    Approval {
        /// The task that asked.
        task_id: String,
        /// What it asked.
        approval_id: String,
        /// The answer.
        decision: Decision,
    },
}

/// The spellings of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// This once.
    Approve,
    /// No.
    Deny,
    /// For the rest of the session.
    ApproveSession,
}

/// What a run may do without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Permissions {
    /// The agent's own sandbox; what needs more is denied.
    Safe,
    /// A person decides.
    Ask,
    /// Everything.
    Full,
}

impl Permissions {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Ask => "ask",
            Self::Full => "full",
        }
    }
}

/// A new task. Its `Debug` shows neither prompt, nor argv, nor values of the environment.
#[derive(Clone, PartialEq, Eq, Default, Serialize)]
pub struct Submit {
    /// Chosen by the client, unique for as long as the daemon remembers it. 256 characters.
    pub task_id: String,
    /// What to do. 8,192 characters without `agent`, 512 KiB with it; may be empty only with `argv`.
    pub prompt: String,
    /// The working directory; 4,096 characters. Made absolute by whoever sends it.
    pub cwd: String,
    /// The session to go on with; `None` is a fresh one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// A model vendor; only together with `model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// A model; only together with `provider`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How hard the model thinks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// Whether the agent makes a git worktree; only for a fresh session.
    pub worktree: bool,
    /// An id of the agents registry; `None` is the default agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The program and its arguments, for the agent `command` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// The submitting shell's environment. Never persisted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The task's wall-clock limit in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// What the task may cost, in millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_micros: Option<u64>,
    /// What it may do; `None` is `safe`, or what the agent can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
}

impl fmt::Debug for Submit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submit")
            .field("task_id", &self.task_id)
            .field("prompt", &format_args!("[{} bytes]", self.prompt.len()))
            .field("cwd", &self.cwd)
            .field("session_id", &self.session_id)
            .field("provider", &self.provider)
            .field("model", &self.model)
            .field("effort", &self.effort)
            .field("worktree", &self.worktree)
            .field("agent", &self.agent)
            .field("argv", &format_args!("[{} words]", self.argv.len()))
            .field("env", &self.env.keys())
            .field("timeout_seconds", &self.timeout_seconds)
            .field("budget_micros", &self.budget_micros)
            .field("permissions", &self.permissions)
            .finish()
    }
}

/// The text of a command, not yet judged. Its `Debug` shows the length only.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub struct RawCommand(Box<RawValue>);

impl RawCommand {
    /// The text of `command`.
    ///
    /// # Errors
    /// None in practice: every command has a JSON form.
    pub fn new(command: &Command) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(command).map(Self)
    }

    /// Any JSON value, for tests and for clients that speak a newer dialect.
    pub const fn from_raw(raw: Box<RawValue>) -> Self {
        Self(raw)
    }

    /// The JSON text. Holds prompts: never log it.
    pub fn get(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for RawCommand {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for RawCommand {}

impl fmt::Debug for RawCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawCommand([{} bytes])", self.get().len())
    }
}

impl Command {
    /// Judges a command: version, type, then each field in the order of the protocol's table.
    ///
    /// Identifiers, `cwd`, `provider`, `model`, `effort`, `agent`, and the `prompt` of the default agent
    /// come out trimmed. `null` counts as absent for optional fields; unknown fields are ignored.
    ///
    /// # Errors
    /// The text for `command_result.error`. It never contains anything the client sent.
    pub fn parse(raw: &RawCommand) -> Result<Self, String> {
        json::check(raw.get(), None).map_err(|problem| match problem {
            Problem::DuplicateKey => "command has a duplicate key",
            Problem::TooDeep => "command is nested too deeply",
        })?;
        let fields = Fields::new(raw.get())?;
        let version = fields.version.ok_or("version is missing")?;
        if gate::integer(version) != Some(u64::from(COMMAND_VERSION)) {
            return Err("unknown command version".into());
        }
        let kind = fields.kind.ok_or("type is missing")?;
        match gate::string(kind).as_deref() {
            Some("list") => Ok(Self::List),
            Some("submit") => submit(&fields).map(Self::Submit),
            Some("cancel") => Ok(Self::Cancel { task_id: task_id(&fields)? }),
            Some("retry") => Ok(Self::Retry { task_id: task_id(&fields)? }),
            Some("set_limit") => {
                let limit = fields.limit.ok_or("limit is missing")?;
                let limit = gate::integer_within("limit", limit, u64::from(LIMIT_MAX))?;
                Ok(Self::SetLimit { limit: u8::try_from(limit).unwrap_or(LIMIT_MAX) })
            }
            Some("approval") => approval(&fields),
            _ => Err("unknown command type".into()),
        }
    }
}

fn task_id(fields: &Fields<'_>) -> Result<String, String> {
    let id = gate::required("task_id", fields.task_id, ID_CHARS_MAX)?;
    gate::no_control("task_id", id)
}

fn approval(fields: &Fields<'_>) -> Result<Command, String> {
    let task_id = task_id(fields)?;
    let approval_id = gate::required("approval_id", fields.approval_id, ID_CHARS_MAX)?;
    let approval_id = gate::no_control("approval_id", approval_id)?;
    let decision = match gate::string(fields.decision.ok_or("decision is missing")?).as_deref() {
        Some("approve") => Decision::Approve,
        Some("deny") => Decision::Deny,
        Some("approve_session") => Decision::ApproveSession,
        _ => return Err("decision must be approve, deny or approve_session".into()),
    };
    Ok(Command::Approval { task_id, approval_id, decision })
}

fn submit(fields: &Fields<'_>) -> Result<Submit, String> {
    let task_id = task_id(fields)?;
    let agent = gate::optional("agent", fields.agent, AGENT_CHARS_MAX)?
        .map(|agent| gate::no_control("agent", agent))
        .transpose()?;
    let submit = Submit {
        task_id,
        prompt: prompt(fields, agent.as_deref())?,
        cwd: gate::no_nul("cwd", gate::required("cwd", fields.cwd, CWD_CHARS_MAX)?)?,
        session_id: gate::optional("session_id", fields.session_id, ID_CHARS_MAX)?
            .map(|id| gate::no_control("session_id", id))
            .transpose()?,
        provider: word("provider", fields.provider, PROVIDER_CHARS_MAX)?,
        model: word("model", fields.model, MODEL_CHARS_MAX)?,
        effort: word("effort", fields.effort, EFFORT_CHARS_MAX)?,
        worktree: gate::flag("worktree", fields.worktree)?,
        argv: argv(fields, agent.as_deref())?,
        env: env(fields)?,
        timeout_seconds: gate::not_null(fields.timeout_seconds)
            .map(|raw| gate::integer_within("timeout_seconds", raw, TIMEOUT_SECONDS_MAX))
            .transpose()?,
        budget_micros: gate::not_null(fields.budget_micros)
            .map(|raw| gate::integer_within("budget_micros", raw, BUDGET_MICROS_MAX))
            .transpose()?,
        permissions: permissions(fields)?,
        agent,
    };
    if submit.provider.is_some() != submit.model.is_some() {
        return Err("provider and model must be given together".into());
    }
    if submit.worktree && submit.session_id.is_some() {
        return Err("worktree is valid only for a fresh session".into());
    }
    Ok(submit)
}

/// The default agent's prompt is trimmed, as the original does; any other agent gets it as it came, since
/// it may be a program's standard input.
fn prompt(fields: &Fields<'_>, agent: Option<&str>) -> Result<String, String> {
    let Some(agent) = agent else {
        return gate::required("prompt", fields.prompt, PROMPT_CHARS_MAX);
    };
    let may_be_empty = agent == AGENT_COMMAND;
    let raw = match gate::not_null(fields.prompt) {
        None if may_be_empty => return Ok(String::new()),
        _ => fields.prompt.ok_or("prompt is missing")?,
    };
    let prompt = gate::string(raw).ok_or("prompt must be a string")?;
    if prompt.trim().is_empty() && !may_be_empty {
        Err("prompt is empty".into())
    } else if prompt.len() > AGENT_PROMPT_BYTES_MAX {
        Err(format!("prompt is longer than {AGENT_PROMPT_BYTES_MAX} bytes"))
    } else {
        Ok(prompt)
    }
}

/// A short text that becomes an argument of a program.
fn word(
    name: &'static str,
    raw: Option<&RawValue>,
    chars_max: usize,
) -> Result<Option<String>, String> {
    gate::optional(name, raw, chars_max)?.map(|text| gate::no_nul(name, text)).transpose()
}

fn argv(fields: &Fields<'_>, agent: Option<&str>) -> Result<Vec<String>, String> {
    let raw = gate::not_null(fields.argv);
    if agent != Some(AGENT_COMMAND) {
        return match raw {
            None => Ok(Vec::new()),
            Some(_) => Err("argv is only for the agent command".into()),
        };
    }
    let raw = raw.ok_or("argv is missing")?;
    let argv: Vec<String> =
        serde_json::from_str(raw.get()).map_err(|_| "argv must be an array of strings")?;
    if argv.first().is_none_or(String::is_empty) {
        return Err("argv is empty".into());
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return Err("argv contains NUL".into());
    }
    if argv.iter().map(|word| word.len() + 1).sum::<usize>() > ARGV_BYTES_MAX {
        return Err(format!("argv is longer than {ARGV_BYTES_MAX} bytes"));
    }
    Ok(argv)
}

fn env(fields: &Fields<'_>) -> Result<BTreeMap<String, String>, String> {
    let Some(raw) = gate::not_null(fields.env) else {
        return Ok(BTreeMap::new());
    };
    let env: BTreeMap<String, String> =
        serde_json::from_str(raw.get()).map_err(|_| "env must be an object of strings")?;
    if env.keys().any(|name| name.is_empty() || name.contains(['=', '\0'])) {
        return Err("env has an invalid name".into());
    }
    if env.values().any(|value| value.contains('\0')) {
        return Err("env contains NUL".into());
    }
    if env.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>() > ENV_BYTES_MAX {
        return Err(format!("env is longer than {ENV_BYTES_MAX} bytes"));
    }
    Ok(env)
}

fn permissions(fields: &Fields<'_>) -> Result<Option<Permissions>, String> {
    let Some(raw) = gate::not_null(fields.permissions) else {
        return Ok(None);
    };
    match gate::string(raw).as_deref() {
        Some("safe") => Ok(Some(Permissions::Safe)),
        Some("ask") => Ok(Some(Permissions::Ask)),
        Some("full") => Ok(Some(Permissions::Full)),
        _ => Err("permissions must be safe, ask or full".into()),
    }
}

/// A command as it is written: version and type, then its own fields.
#[derive(Serialize)]
struct Wire<'a> {
    version: u32,
    r#type: &'static str,
    #[serde(flatten)]
    body: Body<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Nothing {},
    Submit(&'a Submit),
    Task { task_id: &'a str },
    Limit { limit: u8 },
    Approval { task_id: &'a str, approval_id: &'a str, decision: Decision },
}

impl Serialize for Command {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (r#type, body) = match self {
            Self::List => ("list", Body::Nothing {}),
            Self::Submit(submit) => ("submit", Body::Submit(submit)),
            Self::Cancel { task_id } => ("cancel", Body::Task { task_id }),
            Self::Retry { task_id } => ("retry", Body::Task { task_id }),
            Self::SetLimit { limit } => ("set_limit", Body::Limit { limit: *limit }),
            Self::Approval { task_id, approval_id, decision } => {
                ("approval", Body::Approval { task_id, approval_id, decision: *decision })
            }
        };
        Wire { version: COMMAND_VERSION, r#type, body }.serialize(serializer)
    }
}
