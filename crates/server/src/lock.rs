//! A file that one process holds at a time, and that is free again when the process is gone, however it went.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;

/// Held until it is dropped. The file stays: who removed it would let two hold it.
#[derive(Debug)]
pub struct LockFile {
    _held: File,
}

impl LockFile {
    /// `None` when somebody holds it.
    pub fn take(file: &Utf8Path) -> io::Result<Option<Self>> {
        let nofollow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow);
        let opened = options.open(file)?;
        match opened.try_lock() {
            Ok(()) => Ok(Some(Self { _held: opened })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}
