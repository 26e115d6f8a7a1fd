//! Why the endpoint could not be opened, and what to do about it.

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::io::Errno;

use super::SOCKET_PATH_BYTES_MAX;
use crate::paths;

/// Which of our directories is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Socket and journal.
    Runtime,
    /// Run directories.
    State,
}

impl Role {
    /// The environment variable that names another directory.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Runtime => paths::RUNTIME_DIR_ENV,
            Self::State => paths::STATE_DIR_ENV,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runtime => "runtime directory",
            Self::State => "state directory",
        })
    }
}

/// What is wrong with a file that is already there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A symbolic link.
    Link,
    /// Another kind of file than the one needed.
    Kind {
        /// What it is.
        found: &'static str,
    },
    /// Owned by somebody else.
    Owner {
        /// Their user id.
        uid: u32,
    },
    /// Sticky, or writable by group or world.
    Shared {
        /// Its mode.
        mode: u32,
    },
    /// The home directory itself.
    Home,
    /// The root directory.
    Root,
    /// A path that ends in `..`.
    Unnamed,
    /// The file system does not keep file modes.
    Modeless {
        /// The mode after it was set.
        mode: u32,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link => f.write_str("it is a symbolic link"),
            Self::Kind { found } => write!(f, "it is a {found}"),
            Self::Owner { uid } => write!(f, "it belongs to the user id {uid}"),
            Self::Shared { mode } => write!(f, "it is shared with others (mode {mode:04o})"),
            Self::Home => f.write_str("it is the home directory"),
            Self::Root => f.write_str("it is the root directory"),
            Self::Unnamed => f.write_str("its path ends in '..'"),
            Self::Modeless { mode } => {
                write!(f, "its mode stays {mode:04o} when it is set to owner only")
            }
        }
    }
}

/// Why the endpoint could not be opened. Whatever it was, nothing that was there before is gone, and
/// nothing is open to others that was not before.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The socket's path does not fit a socket address.
    #[error("the socket path {path} has {} bytes, at most {SOCKET_PATH_BYTES_MAX} are possible", path.as_str().len())]
    PathTooLong {
        /// The socket.
        path: Utf8PathBuf,
    },
    /// The directory is not one we may use.
    #[error("{path} cannot be the {role}: {fault}")]
    Directory {
        /// Which directory.
        role: Role,
        /// Its path.
        path: Utf8PathBuf,
        /// What is wrong.
        fault: Fault,
    },
    /// What lies where the lock file belongs is not ours.
    #[error("{path} cannot be the lock file: {fault}")]
    LockFile {
        /// The lock file.
        path: Utf8PathBuf,
        /// What is wrong.
        fault: Fault,
    },
    /// Another process holds the lock.
    #[error("another daemon holds the lock {path}")]
    Held {
        /// The lock file.
        path: Utf8PathBuf,
    },
    /// A daemon accepts connections at the endpoint.
    #[error("a daemon already answers at {path}")]
    Live {
        /// The socket.
        path: Utf8PathBuf,
    },
    /// What lies at the endpoint is not ours.
    #[error("{path} is in the way: {fault}")]
    InTheWay {
        /// The socket.
        path: Utf8PathBuf,
        /// What is wrong.
        fault: Fault,
    },
    /// The system refused.
    #[error("cannot {action} {path}")]
    Io {
        /// Which directory is concerned.
        role: Role,
        /// What was tried.
        action: &'static str,
        /// On what.
        path: Utf8PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl EndpointError {
    pub(super) fn io(role: Role, action: &'static str, path: &Utf8Path, errno: Errno) -> Self {
        Self::Io { role, action, path: path.to_owned(), source: errno.into() }
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::PathTooLong { .. } => {
                format!("set {} to a directory with a shorter path", paths::RUNTIME_DIR_ENV)
            }
            Self::Directory { role, path, fault: Fault::Shared { .. } } => format!(
                "if nobody else uses it: chmod 0700 {path}; else set {} to another directory",
                role.variable()
            ),
            Self::Directory { role, .. } => {
                format!("set {} to a directory of your own", role.variable())
            }
            Self::LockFile { path, .. } | Self::InTheWay { path, .. } => {
                format!("find out what put {path} there and move it away")
            }
            Self::Held { path } => format!(
                "use the daemon that runs, or stop it first; `fuser {path}` names the process"
            ),
            Self::Live { .. } => "use the daemon that runs, or stop it first".to_owned(),
            Self::Io { role, source, .. } => io_hint(*role, source),
        }
    }
}

fn io_hint(role: Role, source: &std::io::Error) -> String {
    let variable = role.variable();
    match Errno::from_io_error(source) {
        Some(Errno::ROFS) => {
            format!(
                "the file system is read-only; set {variable} to a directory that can be written"
            )
        }
        Some(Errno::NOSPC | Errno::DQUOT) => {
            format!("the file system is full; free some space, or set {variable} to another one")
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            format!("this user may not; set {variable} to a directory of your own")
        }
        Some(Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => {
            format!("the path does not lead to a directory; check {variable} and HOME")
        }
        Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {
            format!("the file system cannot do this; set {variable} to a local one")
        }
        _ => format!("check the file system, or set {variable} to another directory"),
    }
}
