//! Where everything lies: runtime directory, state directory, configuration file, run directories.
//!
//! Owns: the environment variables that move them and the name of a run's directory. Deliberately
//! absent: reading the process environment anywhere but in [`Environment::of_process`], and touching
//! the disk.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_core::id::RunId;
use sha2::{Digest, Sha256};

/// Moves the runtime directory (socket and journal).
pub const RUNTIME_DIR_ENV: &str = "HASKELL_AGENT_RUNTIME_DIR";
/// Moves the state directory (run directories).
pub const STATE_DIR_ENV: &str = "OSTLER_HOME";
/// Names another configuration file.
pub const CONFIG_FILE_ENV: &str = "OSTLER_CONFIG";
/// Names the executable that runs tasks submitted without an agent.
pub const AGENT_CLI_ENV: &str = "HASKELL_AGENT_CLI";

/// The socket's name in the runtime directory.
pub const SOCKET_NAME: &str = "daemon.sock";
/// The name of the lock beside the socket, the same as the original's.
pub const SOCKET_LOCK_NAME: &str = "daemon.sock.lock";
/// The name of the lock in the state directory.
pub const STATE_LOCK_NAME: &str = "ostler.lock";

/// The longest task id that names its run directory itself.
const PLAIN_NAME_BYTES_MAX: usize = 64;
/// How much of a task id's hash names its run directory, in hexadecimal digits.
const HASH_DIGITS: usize = 32;
const HASH_PREFIX: &str = "x-";

/// The environment, as a value: what the daemon was started with, or what a test says.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The environment of this process.
    pub fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    /// The value of `name` as it is.
    pub fn get_os(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// The value of `name`; an empty one counts as absent, one that is no UTF-8 is an error.
    pub fn get(&self, name: &'static str) -> Result<Option<&str>, PathsError> {
        match self.get_os(name) {
            None => Ok(None),
            Some(value) if value.is_empty() => Ok(None),
            Some(value) => match value.to_str() {
                Some(text) => Ok(Some(text)),
                None => Err(PathsError::NotUtf8 { name }),
            },
        }
    }

    /// All of it, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    fn dir(&self, name: &'static str) -> Result<Option<Utf8PathBuf>, PathsError> {
        let Some(text) = self.get(name)? else {
            return Ok(None);
        };
        let path = Utf8Path::new(text);
        if !path.is_absolute() {
            return Err(PathsError::Relative { name, value: text.to_owned() });
        }
        Ok(Some(path.to_owned()))
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(vars: I) -> Self {
        Self(vars.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Values may be secrets; only the names are shown.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Why the environment does not say where things are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathsError {
    /// A variable is set to a relative path.
    #[error("{name} must be an absolute path, and is {value:?}")]
    Relative {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// A variable's value is no UTF-8.
    #[error("{name} is not valid UTF-8")]
    NotUtf8 {
        /// The variable.
        name: &'static str,
    },
    /// HOME is needed and not there.
    #[error("HOME is not set, so there is no place for {what}")]
    NoHome {
        /// What would have been put under it.
        what: &'static str,
        /// The variable that would have made HOME unnecessary.
        instead: &'static str,
    },
}

impl PathsError {
    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Relative { name, .. } => format!("set {name} to a path that begins with /"),
            Self::NotUtf8 { name } => format!("set {name} to a path in UTF-8"),
            Self::NoHome { instead, .. } => format!("set HOME, or set {instead}"),
        }
    }
}

/// Where everything is, for one daemon and its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The user's home directory, when it is known: never a runtime or state directory itself.
    pub home: Option<Utf8PathBuf>,
    /// Socket, lock and journal.
    pub runtime_dir: Utf8PathBuf,
    /// Run directories and what else is kept.
    pub state_dir: Utf8PathBuf,
    /// The configuration file.
    pub config_file: Utf8PathBuf,
    /// Whether [`CONFIG_FILE_ENV`] named the configuration file: then it must exist.
    pub config_is_explicit: bool,
}

impl Paths {
    /// Works them out from the environment. HOME is needed only for what no variable names.
    pub fn from_env(env: &Environment) -> Result<Self, PathsError> {
        let home = env.dir("HOME")?;
        let under_home = |what, instead, rest: &str| match &home {
            Some(home) => Ok(home.join(rest)),
            None => Err(PathsError::NoHome { what, instead }),
        };
        let runtime_dir = match env.dir(RUNTIME_DIR_ENV)? {
            Some(dir) => dir,
            None => under_home("the runtime directory", RUNTIME_DIR_ENV, ".haskell-agent/runtime")?,
        };
        let state_dir = match (env.dir(STATE_DIR_ENV)?, env.dir("XDG_STATE_HOME")?) {
            (Some(dir), _) => dir,
            (None, Some(xdg)) => xdg.join("ostler"),
            (None, None) => {
                under_home("the state directory", STATE_DIR_ENV, ".local/state/ostler")?
            }
        };
        let named = env.dir(CONFIG_FILE_ENV)?;
        let config_is_explicit = named.is_some();
        let config_file = match (named, env.dir("XDG_CONFIG_HOME")?) {
            (Some(file), _) => file,
            (None, Some(xdg)) => xdg.join("ostler/config.toml"),
            (None, None) => {
                under_home("the configuration", CONFIG_FILE_ENV, ".config/ostler/config.toml")?
            }
        };
        Ok(Self { home, runtime_dir, state_dir, config_file, config_is_explicit })
    }

    /// The socket that clients connect to.
    pub fn socket(&self) -> Utf8PathBuf {
        self.runtime_dir.join(SOCKET_NAME)
    }

    /// The journal's directory (R-04: it moves with the socket).
    pub fn journal_dir(&self) -> Utf8PathBuf {
        self.runtime_dir.join("journal")
    }

    /// The archive's directory: with the journal, so that one copy is a whole backup.
    pub fn archive_dir(&self) -> Utf8PathBuf {
        self.runtime_dir.join("archive")
    }

    /// The folder of all run directories.
    pub fn runs_dir(&self) -> Utf8PathBuf {
        self.state_dir.join("runs")
    }

    /// The directory of one run.
    pub fn run_dir(&self, run: &RunId) -> Utf8PathBuf {
        self.runs_dir().join(run_dir_name(run))
    }
}

/// The name of a run's directory: the task id as it is when it is safe as a file name, else its
/// hash; then the attempt. An id that looks like a hashed one is hashed too, so that no id can take
/// the directory of another.
pub fn run_dir_name(run: &RunId) -> String {
    let id = run.task.as_str();
    if is_plain(id) {
        return format!("{id}.{}", run.attempt);
    }
    let mut name = String::from(HASH_PREFIX);
    for byte in Sha256::digest(id.as_bytes()).iter().take(HASH_DIGITS / 2) {
        // Writing to a `String` cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    let _ = write!(name, ".{}", run.attempt);
    name
}

fn is_plain(id: &str) -> bool {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let looks_hashed = id.strip_prefix(HASH_PREFIX).is_some_and(|digits| {
        digits.len() == HASH_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    id.len() <= PLAIN_NAME_BYTES_MAX && id.bytes().all(safe) && !looks_hashed
}

#[cfg(test)]
mod tests;
