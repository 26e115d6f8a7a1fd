//! The disk as the journal sees it: one directory and a handful of calls. `RealDisk` is the file
//! system; `fake::FakeDisk` loses what was not synced. Absent on purpose: any retry, any cache.

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// More names than this in a journal directory are an error.
pub const DIRECTORY_NAMES_MAX: usize = 10_000;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A device, socket or pipe.
    Other,
}

/// What is known of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// It belongs to the effective user.
    pub owned: bool,
    /// Nobody else has any permission on it.
    pub private: bool,
    /// Its size.
    pub bytes: u64,
}

/// Whether the lock was got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Ours until the disk is dropped.
    Taken,
    /// Another process has it.
    Held,
}

/// One directory on some disk. Names are plain file names in it. A call has happened, as far as
/// everybody else can see, when it returns; it survives a power cut only after the sync.
pub trait Disk: Send {
    /// An open file.
    type File: Send + std::fmt::Debug;

    /// Opens the directory all later calls speak of, without following a link.
    fn enter(&mut self, dir: &Utf8Path) -> io::Result<Facts>;
    /// Makes the directory, owner-only, and syncs its parent.
    fn make_dir(&mut self, dir: &Utf8Path) -> io::Result<()>;
    /// Takes the lock file `name` (made if absent) without waiting.
    fn lock(&mut self, name: &str) -> io::Result<Lock>;
    /// Gives the lock back; removes its file when this disk made it. For a failed start.
    fn unlock(&mut self, name: &str);
    /// All names in the directory.
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// What `name` is, a link itself and not what it points to.
    fn facts(&mut self, name: &str) -> io::Result<Facts>;
    /// Opens an existing file without following a link.
    fn open(&mut self, name: &str, write: bool) -> io::Result<(Self::File, Facts)>;
    /// Makes a new owner-only file; it must not exist.
    fn create(&mut self, name: &str) -> io::Result<Self::File>;
    /// Reads exactly `buffer.len()` bytes.
    fn read_at(&mut self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes`.
    fn write_at(&mut self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the file's bytes and size durable.
    fn sync(&mut self, file: &Self::File) -> io::Result<()>;
    /// Takes everybody else's permissions from `name`, or from the directory itself.
    fn make_private(&mut self, name: Option<&str>) -> io::Result<()>;
    /// Renames, replacing what was there.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Makes the directory's names durable.
    fn sync_dir(&mut self) -> io::Result<()>;
}

/// The file system.
#[derive(Debug, Default)]
pub struct RealDisk {
    dir: Option<OwnedFd>,
    lock: Option<File>,
    lock_made: bool,
}

impl RealDisk {
    /// No directory entered yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn dir(&self) -> io::Result<&OwnedFd> {
        self.dir.as_ref().ok_or_else(|| io::Error::other("no directory entered"))
    }

    fn open_at(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // NONBLOCK: a pipe put in a file's place must not hang the start.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(self.dir()?, name, flags, private_file())?;
        Ok(File::from(fd))
    }
}

fn private_file() -> Mode {
    Mode::RUSR | Mode::WUSR
}

fn facts_of(stat: &Stat) -> Facts {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    };
    Facts {
        kind,
        owned: stat.st_uid == rustix::process::geteuid().as_raw(),
        private: stat.st_mode & 0o077 == 0,
        bytes: u64::try_from(stat.st_size).unwrap_or(0),
    }
}

impl Disk for RealDisk {
    type File = File;

    fn enter(&mut self, dir: &Utf8Path) -> io::Result<Facts> {
        let facts = facts_of(&rustix::fs::lstat(dir.as_std_path())?);
        if facts.kind != Kind::Dir {
            return Ok(facts);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(dir.as_std_path(), flags, Mode::empty())?;
        let facts = facts_of(&rustix::fs::fstat(&fd)?);
        self.dir = Some(fd);
        Ok(facts)
    }

    fn make_dir(&mut self, dir: &Utf8Path) -> io::Result<()> {
        rustix::fs::mkdir(dir.as_std_path(), Mode::RWXU)?;
        let parent = match dir.parent() {
            Some(parent) if !parent.as_str().is_empty() => parent.to_owned(),
            _ => Utf8PathBuf::from("."),
        };
        File::open(parent)?.sync_all()
    }

    fn lock(&mut self, name: &str) -> io::Result<Lock> {
        let (file, made) = match self.open_at(name, OFlags::RDWR) {
            Ok(file) => (file, false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match self.open_at(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
                    Ok(file) => (file, true),
                    // Somebody made it just now, so somebody is starting.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        return Ok(Lock::Held);
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Lock::Held),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // A start that failed may have removed the file between our open and our lock.
        let ours = rustix::fs::fstat(&file)?;
        match rustix::fs::statat(self.dir()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino) => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(Lock::Held),
            Err(error) => return Err(error.into()),
        }
        self.lock = Some(file);
        self.lock_made = made;
        Ok(Lock::Taken)
    }

    fn unlock(&mut self, name: &str) {
        if self.lock.is_some() && self.lock_made {
            // Nothing to be done when it fails: an unlocked lock file is harmless.
            let _left = self.remove(name);
        }
        self.lock = None;
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(self.dir()?)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            if name == "." || name == ".." {
                continue;
            }
            if names.len() >= DIRECTORY_NAMES_MAX {
                return Err(io::Error::other("too many names in the directory"));
            }
            names.push(name.into_owned());
        }
        Ok(names)
    }

    fn facts(&mut self, name: &str) -> io::Result<Facts> {
        let stat = rustix::fs::statat(self.dir()?, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(facts_of(&stat))
    }

    fn open(&mut self, name: &str, write: bool) -> io::Result<(File, Facts)> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let file = self.open_at(name, access)?;
        let facts = facts_of(&rustix::fs::fstat(&file)?);
        Ok((file, facts))
    }

    fn create(&mut self, name: &str) -> io::Result<File> {
        self.open_at(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    fn read_at(&mut self, file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        file.read_exact_at(buffer, offset)
    }

    fn write_at(&mut self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        // Not std's: it retries a flush that a signal interrupted, and a failed flush is final.
        Ok(rustix::fs::fdatasync(file)?)
    }

    fn make_private(&mut self, name: Option<&str>) -> io::Result<()> {
        match name {
            Some(name) => {
                let file = self.open_at(name, OFlags::RDONLY)?;
                Ok(rustix::fs::fchmod(&file, private_file())?)
            }
            None => Ok(rustix::fs::fchmod(self.dir()?, Mode::RWXU)?),
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let dir = self.dir()?;
        Ok(rustix::fs::renameat(dir, from, dir, to)?)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self.dir()?, name, AtFlags::empty())?)
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.dir()?)?)
    }
}
