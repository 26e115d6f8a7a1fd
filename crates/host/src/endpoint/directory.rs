//! A directory that only its owner can enter, and the lock in it.

use std::os::fd::{AsRawFd as _, OwnedFd};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, chmod, fchmod, flock, fstat, mkdir,
    openat, stat, statat,
};
use rustix::io::Errno;

use super::error::{EndpointError, Fault, Role};

/// Sticky, group-writable and world-writable: somebody else has business in such a directory.
const SHARED_BITS: u32 = 0o1022;

/// A directory of ours with its lock held; released when dropped.
#[derive(Debug)]
pub struct LockedDir {
    pub(super) path: Utf8PathBuf,
    pub(super) fd: OwnedFd,
    /// Closing it releases the lock. Close-on-exec, so that no agent can hold on to it.
    _lock: OwnedFd,
}

impl LockedDir {
    /// Makes `path` an owner-only directory (see [`secure`]) and takes the lock `lock_name` in it.
    pub(super) fn open(
        role: Role,
        path: &Utf8Path,
        home: Option<&Utf8Path>,
        lock_name: &str,
    ) -> Result<Self, EndpointError> {
        // Without a slash at the end, which would make the kernel follow a link.
        let path: Utf8PathBuf = path.components().collect();
        let fd = secure(role, &path, home)?;
        let lock = take_lock(role, &fd, &path.join(lock_name), lock_name)?;
        Ok(Self { path, fd, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }
}

/// Opens `path` without following a link, creating it when absent, and makes it owner-only. One that
/// is foreign or shared is refused as it is.
fn secure(role: Role, path: &Utf8Path, home: Option<&Utf8Path>) -> Result<OwnedFd, EndpointError> {
    let io = |action, errno| EndpointError::io(role, action, path, errno);
    let refuse = |fault| EndpointError::Directory { role, path: path.to_owned(), fault };
    if path.file_name().is_none() {
        let fault = if path.parent().is_none() { Fault::Root } else { Fault::Unnamed };
        return Err(refuse(fault));
    }
    // O_PATH needs no permission on the directory itself: a mode of 0000 can be repaired.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(rustix::fs::CWD, path.as_str(), flags, Mode::empty());
    let found = match open() {
        Err(Errno::NOENT) => {
            create(role, path)?;
            open()
        }
        other => other,
    }
    .map_err(|errno| io("open the directory", errno))?;

    let seen = fstat(&found).map_err(|errno| io("examine the directory", errno))?;
    if let Some(fault) = directory_fault(&seen, home) {
        return Err(refuse(fault));
    }
    if permissions(&seen) != 0o700 {
        // Through the descriptor that was checked; fchmod does not take an O_PATH one.
        let checked = format!("/proc/self/fd/{}", found.as_raw_fd());
        chmod(&checked, Mode::RWXU).map_err(|errno| io("set the mode of", errno))?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(&found, ".", flags, Mode::empty())
        .map_err(|errno| io("open the directory", errno))?;
    let now = fstat(&dir).map_err(|errno| io("examine the directory", errno))?;
    match permissions(&now) {
        0o700 => Ok(dir),
        mode => Err(refuse(Fault::Modeless { mode })),
    }
}

fn directory_fault(seen: &Stat, home: Option<&Utf8Path>) -> Option<Fault> {
    let same_as = |other: &str| {
        stat(other).is_ok_and(|other| (other.st_dev, other.st_ino) == (seen.st_dev, seen.st_ino))
    };
    if let Some(fault) = fault(seen, FileType::Directory) {
        return Some(fault);
    }
    if same_as("/") {
        return Some(Fault::Root);
    }
    if home.is_some_and(|home| same_as(home.as_str())) {
        return Some(Fault::Home);
    }
    let mode = permissions(seen);
    (mode & SHARED_BITS != 0).then_some(Fault::Shared { mode })
}

/// What keeps a file from being ours: its kind, then its owner.
pub(super) fn fault(seen: &Stat, kind: FileType) -> Option<Fault> {
    let found = FileType::from_raw_mode(seen.st_mode);
    if found == FileType::Symlink {
        return Some(Fault::Link);
    }
    if found != kind {
        return Some(Fault::Kind { found: kind_name(found) });
    }
    let uid = seen.st_uid;
    (uid != rustix::process::geteuid().as_raw()).then_some(Fault::Owner { uid })
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "named pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Unknown => "file of an unknown kind",
    }
}

/// Permission bits with setuid, setgid and sticky.
pub(super) fn permissions(seen: &Stat) -> u32 {
    seen.st_mode & 0o7777
}

/// Creates the directory and its missing parents, all owner-only under any umask.
fn create(role: Role, path: &Utf8Path) -> Result<(), EndpointError> {
    let is_missing = |dir: &&Utf8Path| matches!(stat(dir.as_str()), Err(Errno::NOENT));
    let missing: Vec<&Utf8Path> = path.ancestors().take_while(is_missing).collect();
    for dir in missing.into_iter().rev() {
        let io = |errno| EndpointError::io(role, "create the directory", dir, errno);
        match mkdir(dir.as_str(), Mode::RWXU) {
            // The umask may have taken bits away; what was just made is ours.
            Ok(()) => chmod(dir.as_str(), Mode::RWXU).map_err(io)?,
            // Somebody was faster, or a dangling link lies there: what it is gets checked next.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(io(errno)),
        }
    }
    Ok(())
}

/// Takes the lock without waiting: flock(2), as the original does, so that the two exclude each other.
fn take_lock(
    role: Role,
    dir: &OwnedFd,
    path: &Utf8Path,
    name: &str,
) -> Result<OwnedFd, EndpointError> {
    let io = |action, errno| EndpointError::io(role, action, path, errno);
    let refuse = |fault| EndpointError::LockFile { path: path.to_owned(), fault };
    // NONBLOCK: a named pipe or device in its place must not make us wait.
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let lock = match openat(dir, name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(lock) => lock,
        Err(errno) => {
            let there = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            return Err(match there.and_then(|seen| fault(&seen, FileType::RegularFile)) {
                Some(fault) => refuse(fault),
                None => io("open the lock file", errno),
            });
        }
    };
    let seen = fstat(&lock).map_err(|errno| io("examine the lock file", errno))?;
    if let Some(fault) = fault(&seen, FileType::RegularFile) {
        return Err(refuse(fault));
    }
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            return Err(EndpointError::Held { path: path.to_owned() });
        }
        Err(errno) => return Err(io("lock", errno)),
    }
    if permissions(&seen) != 0o600 {
        fchmod(&lock, Mode::RUSR | Mode::WUSR).map_err(|errno| io("set the mode of", errno))?;
    }
    Ok(lock)
}
