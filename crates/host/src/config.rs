//! The configuration file: every documented number, which agents to run and what to let live.
//!
//! Owns: keys, defaults, ranges, and errors that say what was meant. An empty text is the defaults.
//! `HASKELL_AGENT_CLI` wins over `agents.agent_cli.program`, as over everything that finds an agent; where the
//! files are is the environment's to say alone (`paths`). Deliberately absent: secrets, reading
//! the file, and everything a submission says for itself.
//!
//! ```toml
//! default_agent = "claude_code"      # when neither HASKELL_AGENT_CLI nor agent-cli is there
//! keep = ["tmux", "gpg-agent"]       # processes that may outlive a run
//!
//! [tasks]
//! limit = 8
//!
//! [agents.claude_code]
//! program = "/opt/claude/bin/claude"
//! silence_seconds = 900
//! ```

mod error;
mod section;

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_core::settings::UnknownKey;
use ostler_core::suggest;
use serde::Deserialize;

use section::section;

pub use error::ConfigError;
pub use section::OutOfRange;

/// The most names in `keep`, and the longest.
const KEEP_MAX: usize = 256;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const DAY_SECONDS: u64 = 24 * 60 * 60;

section! {
    /// `[wire]`: frames, clients and their bounds.
    Wire {
        /// The largest frame, both ways.
        frame_bytes_max = MIB, 256 * KIB..=16 * MIB;
        /// How long one frame may take to be read or written.
        frame_deadline_seconds = 30, 1..=3_600;
        /// How long a client may send nothing at all.
        silent_client_seconds = 30, 2..=DAY_SECONDS;
        /// How often a heartbeat is sent.
        heartbeat_seconds = 15, 1..=3_600;
        /// Commands that wait; one more is answered with an error at once.
        command_queue_max = 1_024, 1..=65_536;
        /// Events kept beyond retention for clients that are connected and behind.
        live_backlog_bytes_max = 64 * MIB, MIB..=4 * GIB;
    }
}

section! {
    /// `[tasks]`: the live set, the scheduler, and what is shown of output.
    Tasks {
        /// Runs side by side, until `set_limit` says otherwise.
        limit = 4, 1..=32;
        /// How long a run may take that was submitted without a timeout.
        timeout_seconds = 6 * 60 * 60, 1..=30 * DAY_SECONDS;
        /// Tasks in the live set; beyond it the oldest settled ones are archived.
        live_max = 1_000, 1..=10_000;
        /// Lines of a log tail.
        log_lines_max = 500, 1..=10_000;
        /// Characters of a log tail.
        log_chars_max = 256_000, 4 * KIB..=16 * MIB;
    }
}

section! {
    /// `[journal]`: what is kept of the past for clients that reconnect.
    Journal {
        /// Events that a cursor may lie back.
        events_max = 10_000, 1..=10_000_000;
        /// Their bytes.
        events_bytes_max = 16 * MIB, MIB..=4 * GIB;
        /// Size of a segment file.
        segment_bytes = 8 * MIB, 8 * MIB..=64 * MIB;
        /// The largest snapshot.
        snapshot_bytes_max = 64 * MIB, 32 * MIB..=4 * GIB;
    }
}

section! {
    /// `[archive]`: settled tasks that left the live set.
    Archive {
        /// How many.
        tasks_max = 100_000, 1..=10_000_000;
        /// How long.
        days_max = 180, 1..=36_500;
    }
}

section! {
    /// `[runs]`: run directories, and how a run ends.
    Runs {
        /// All run directories together; the oldest settled go first.
        bytes_max = 20 * GIB, 64 * MIB..=1_024 * TIB;
        /// How long a run directory is kept.
        days_max = 90, 1..=36_500;
        /// The output of one run; beyond it the middle is dropped with a mark.
        run_bytes_max = GIB, MIB..=TIB;
        /// The beginning of a run's output, which stays.
        run_head_bytes_max = 64 * MIB, 4 * KIB..=TIB;
        /// How long an agent may take to exit after its own closing statement.
        statement_grace_seconds = 10, 1..=3_600;
    }
}

/// `[agents.<id>]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AgentConfig {
    /// The executable: an absolute path, or a name to be found on `PATH`.
    pub program: Option<Utf8PathBuf>,
    /// How long the agent may print nothing before that is noticed; the agent's own bound when absent.
    pub silence_seconds: Option<u64>,
}

const AGENT_KEYS: &[&str] = &["program", "silence_seconds"];
const TOP_KEYS: &[&str] =
    &["default_agent", "keep", "wire", "tasks", "journal", "archive", "runs", "agents"];
const SECTIONS: [(&str, &[&str]); 5] = [
    ("wire", Wire::KEYS),
    ("tasks", Tasks::KEYS),
    ("journal", Journal::KEYS),
    ("archive", Archive::KEYS),
    ("runs", Runs::KEYS),
];

/// The whole configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The agent of tasks that name none, when the environment names none either.
    pub default_agent: Option<String>,
    /// Names (`argv[0]` without its directory) of processes that may outlive a run.
    pub keep: Vec<String>,
    /// See [`Wire`].
    pub wire: Wire,
    /// See [`Tasks`].
    pub tasks: Tasks,
    /// See [`Journal`].
    pub journal: Journal,
    /// See [`Archive`].
    pub archive: Archive,
    /// See [`Runs`].
    pub runs: Runs,
    /// By agent id.
    pub agents: BTreeMap<String, AgentConfig>,
}

impl Config {
    /// Reads a configuration; `path` is named in errors.
    pub fn parse(text: &str, path: &Utf8Path) -> Result<Self, ConfigError> {
        let syntax =
            |source| ConfigError::Syntax { path: path.to_owned(), source: Box::new(source) };
        let document = toml::Deserializer::parse(text).map_err(syntax)?;
        let mut unknown = Vec::new();
        let mut config: Self = serde_ignored::deserialize(document, |key| {
            unknown.push(unknown_key(&key.to_string()));
        })
        .map_err(syntax)?;
        if !unknown.is_empty() {
            return Err(ConfigError::Unknown { path: path.to_owned(), keys: unknown });
        }
        config.check_ranges(path)?;
        config.check_agents(path)?;
        Ok(config)
    }

    fn check_ranges(&self, path: &Utf8Path) -> Result<(), ConfigError> {
        let mut wrong = Vec::new();
        self.wire.check("wire", &mut wrong);
        self.tasks.check("tasks", &mut wrong);
        self.journal.check("journal", &mut wrong);
        self.archive.check("archive", &mut wrong);
        self.runs.check("runs", &mut wrong);
        for (id, agent) in &self.agents {
            let range = 1..=DAY_SECONDS;
            if let Some(value) = agent.silence_seconds.filter(|value| !range.contains(value)) {
                wrong.push(OutOfRange {
                    key: format!("agents.{id}.silence_seconds"),
                    value,
                    range,
                });
            }
        }
        if !wrong.is_empty() {
            return Err(ConfigError::Range { path: path.to_owned(), wrong });
        }
        // Pairs that only make sense in one order.
        let (wire, runs, journal) = (&self.wire, &self.runs, &self.journal);
        for (small, small_key, large, large_key) in [
            (
                wire.heartbeat_seconds,
                "wire.heartbeat_seconds",
                wire.silent_client_seconds,
                "wire.silent_client_seconds",
            ),
            (
                runs.run_head_bytes_max,
                "runs.run_head_bytes_max",
                runs.run_bytes_max,
                "runs.run_bytes_max",
            ),
            (runs.run_bytes_max, "runs.run_bytes_max", runs.bytes_max, "runs.bytes_max"),
            (
                self.wire.frame_bytes_max,
                "wire.frame_bytes_max",
                journal.segment_bytes + 1,
                "journal.segment_bytes",
            ),
        ] {
            if small >= large {
                return Err(ConfigError::Order { path: path.to_owned(), small_key, large_key });
            }
        }
        Ok(())
    }

    fn check_agents(&mut self, path: &Utf8Path) -> Result<(), ConfigError> {
        let value = |key: &str, message: String| ConfigError::Value {
            path: path.to_owned(),
            key: key.to_owned(),
            message,
        };
        if let Some(name) = &self.default_agent {
            let agent = ostler_agents::find(name).ok_or_else(|| {
                value("default_agent", format!("there is no agent {name:?}{}", agent_like(name)))
            })?;
            self.default_agent = Some(agent.id().to_owned());
        }
        for (id, agent) in &self.agents {
            if ostler_agents::find(id).is_none_or(|known| known.id() != id) {
                let message = format!("there is no agent with the id {id:?}{}", agent_like(id));
                return Err(value(&format!("agents.{id}"), message));
            }
            if let Some(program) = agent.program.as_deref().filter(|program| !is_program(program)) {
                let message =
                    format!("{program:?} is neither an absolute path nor a name to find on PATH");
                return Err(value(&format!("agents.{id}.program"), message));
            }
        }
        let is_name = |name: &String| !name.is_empty() && !name.contains(['/', '\0']);
        if self.keep.len() > KEEP_MAX || !self.keep.iter().all(is_name) {
            let message =
                format!("must be at most {KEEP_MAX} names of programs, without directories");
            return Err(value("keep", message));
        }
        Ok(())
    }
}

fn is_program(program: &Utf8Path) -> bool {
    let is_plain = !program.as_str().is_empty() && !program.as_str().contains('/');
    (program.is_absolute() || is_plain) && !program.as_str().contains('\0')
}

fn agent_like(name: &str) -> String {
    let ids = || ostler_agents::REGISTRY.iter().map(|agent| agent.id());
    let by_alias = ostler_agents::find(name).map(|agent| agent.id());
    match by_alias.or_else(|| suggest::nearest(name, ids())) {
        Some(id) => format!("; did you mean {id:?}?"),
        None => format!("; there are {}", ids().collect::<Vec<_>>().join(", ")),
    }
}

/// What an unknown key may have meant: one beside it, or the same name in another section.
fn unknown_key(key: &str) -> UnknownKey {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let beside = match section {
        "" => TOP_KEYS,
        section if section.starts_with("agents.") => AGENT_KEYS,
        section => {
            SECTIONS.iter().find(|(known, _)| *known == section).map_or(&[][..], |(_, keys)| keys)
        }
    };
    let join = |section: &str, name: &str| match section {
        "" => name.to_owned(),
        section => format!("{section}.{name}"),
    };
    let elsewhere = || {
        let mut sections = SECTIONS.iter();
        sections.find(|(_, keys)| keys.contains(&name)).map(|(section, _)| join(section, name))
    };
    let suggestion = suggest::nearest(name, beside.iter().copied())
        .map(|near| join(section, near))
        .or_else(elsewhere);
    UnknownKey { key: key.to_owned(), suggestion }
}

#[cfg(test)]
mod tests;
