//! The endpoint of the framed wire: the owner-only runtime directory, its lock, the socket.
//!
//! Owns: making the directory safe, the two locks (socket and state directory), what happens to a
//! socket that is already there, binding, removal at exit, and who may connect. Deliberately absent:
//! accepting connections (`wire`), and everything asynchronous.
//!
//! The order at startup is [`Claim::open`] (directory, lock, nobody else serves), then the journal,
//! then [`Claim::listen`]: a start that fails on its journal has touched no socket.

mod directory;
mod error;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, chmod, fchmod, fstat, openat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::paths::{SOCKET_LOCK_NAME, SOCKET_NAME, STATE_LOCK_NAME};

pub use directory::LockedDir;
pub use error::{EndpointError, Fault, Role};

/// The longest path of a Unix socket on Linux (`sun_path` without its closing NUL).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Connections that may wait to be accepted; the kernel lowers it to `net.core.somaxconn`. Beyond it
/// a client waits in its own `connect`.
const LISTEN_BACKLOG_MAX: i32 = 1024;

/// Takes the lock of the state directory (`OSTLER_HOME`), made owner-only like the runtime directory.
pub fn lock_state_dir(
    path: &Utf8Path,
    home: Option<&Utf8Path>,
) -> Result<LockedDir, EndpointError> {
    LockedDir::open(Role::State, path, home, STATE_LOCK_NAME)
}

/// The runtime directory with its lock held and nobody serving: the right to bind.
#[derive(Debug)]
pub struct Claim {
    dir: LockedDir,
    socket: Utf8PathBuf,
}

impl Claim {
    /// Secures and locks `runtime_dir`, and makes sure that what lies at the socket's path, if
    /// anything, is a stale socket of ours. Nothing is removed yet.
    pub fn open(runtime_dir: &Utf8Path, home: Option<&Utf8Path>) -> Result<Self, EndpointError> {
        let socket = runtime_dir.components().collect::<Utf8PathBuf>().join(SOCKET_NAME);
        if socket.as_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(EndpointError::PathTooLong { path: socket });
        }
        let dir = LockedDir::open(Role::Runtime, runtime_dir, home, SOCKET_LOCK_NAME)?;
        let claim = Self { dir, socket };
        claim.existing()?;
        Ok(claim)
    }

    /// The runtime directory.
    pub fn dir(&self) -> &Utf8Path {
        self.dir.path()
    }

    /// Replaces a stale socket and listens. The listener is non-blocking, ready for tokio.
    pub fn listen(self) -> Result<(UnixListener, Endpoint), EndpointError> {
        if self.existing()? == Existing::Stale {
            unlinkat(&self.dir.fd, SOCKET_NAME, AtFlags::empty())
                .map_err(|errno| self.io("remove the stale socket", errno))?;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .map_err(|errno| self.io("make the socket", errno))?;
        // Linux takes the mode of the file that `bind` makes from the socket, and the directory is
        // owner-only: there is no moment at which somebody else could connect, whatever the umask.
        // Where the kernel cannot do this, the directory alone protects until the chmod below.
        let _ = fchmod(&listener, Mode::RUSR | Mode::WUSR);
        let address = self.address()?;
        rustix::net::bind(&listener, &address).map_err(|errno| self.io("bind", errno))?;
        let endpoint = Endpoint::of_bound(self)?;
        rustix::net::listen(&listener, LISTEN_BACKLOG_MAX)
            .map_err(|errno| endpoint.claim.io("listen at", errno))?;
        Ok((UnixListener::from(listener), endpoint))
    }

    /// Looks at what is there already: nothing, a stale socket of ours, or a reason to stop.
    fn existing(&self) -> Result<Existing, EndpointError> {
        let seen = match statat(&self.dir.fd, SOCKET_NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(seen) => seen,
            Err(Errno::NOENT) => return Ok(Existing::Nothing),
            Err(errno) => return Err(self.io("examine", errno)),
        };
        if let Some(fault) = directory::fault(&seen, FileType::Socket) {
            return Err(EndpointError::InTheWay { path: self.socket.clone(), fault });
        }
        // Non-blocking: a daemon whose backlog is full is alive too, and must not make us wait.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|errno| self.io("make a socket to try", errno))?;
        match rustix::net::connect(&probe, &self.address()?) {
            Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => {
                Err(EndpointError::Live { path: self.socket.clone() })
            }
            Err(Errno::CONNREFUSED) => Ok(Existing::Stale),
            Err(Errno::NOENT) => Ok(Existing::Nothing),
            // A datagram socket: alive or not, no daemon's.
            Err(Errno::PROTOTYPE) => Err(EndpointError::InTheWay {
                path: self.socket.clone(),
                fault: Fault::Kind { found: "socket of another type" },
            }),
            Err(errno) => Err(self.io("try to connect to", errno)),
        }
    }

    fn address(&self) -> Result<SocketAddrUnix, EndpointError> {
        SocketAddrUnix::new(self.socket.as_str()).map_err(|errno| self.io("use", errno))
    }

    fn io(&self, action: &'static str, errno: Errno) -> EndpointError {
        EndpointError::io(Role::Runtime, action, &self.socket, errno)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Existing {
    Nothing,
    Stale,
}

/// The bound socket. Dropping it removes the socket file, if it is still the one that was made
/// here, and then releases the lock.
#[derive(Debug)]
pub struct Endpoint {
    claim: Claim,
    /// The socket file itself. Open, so that its inode number cannot be given to another file.
    file: OwnedFd,
}

impl Endpoint {
    /// Called right after `bind`, which creates the file or fails: with the lock held, in an
    /// owner-only directory, what lies there is what was bound.
    fn of_bound(claim: Claim) -> Result<Self, EndpointError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&claim.dir.fd, SOCKET_NAME, flags, Mode::empty())
            .map_err(|errno| claim.io("open", errno))?;
        let seen = fstat(&file).map_err(|errno| claim.io("examine", errno))?;
        if let Some(fault) = directory::fault(&seen, FileType::Socket) {
            return Err(EndpointError::InTheWay { path: claim.socket, fault });
        }
        let endpoint = Self { claim, file };
        if directory::permissions(&seen) != 0o600 {
            let bound = format!("/proc/self/fd/{}", endpoint.file.as_raw_fd());
            chmod(&bound, Mode::RUSR | Mode::WUSR)
                .map_err(|errno| endpoint.claim.io("set the mode of", errno))?;
        }
        Ok(endpoint)
    }

    /// The socket's path.
    pub fn socket(&self) -> &Utf8Path {
        &self.claim.socket
    }

    /// Removes the socket file if it is still the one made here; says whether it was. Early, so that
    /// new clients find nothing while running work is ended; the lock stays held.
    pub fn remove_socket(&self) -> io::Result<bool> {
        let dir = &self.claim.dir.fd;
        let made = fstat(&self.file)?;
        match statat(dir, SOCKET_NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if same_file(&there, &made) => {
                unlinkat(dir, SOCKET_NAME, AtFlags::empty())?;
                Ok(true)
            }
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Err(error) = self.remove_socket() {
            tracing::warn!(%error, "the socket file could not be removed");
        }
    }
}

fn same_file(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// Whether the process at the other end of a connection runs as the user of this one. One
/// whose user the kernel does not tell is refused like any other.
pub fn is_same_user(stream: &impl AsFd) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

#[cfg(test)]
mod tests;
