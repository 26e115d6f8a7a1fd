//! What can go wrong, with the facts, and what to do about it.

use camino::Utf8PathBuf;
use std::{fmt, io};
use thiserror::Error;

/// Why a journal could not be opened or read. Nothing on disk was changed, but for `Repair`.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The options contradict one another.
    #[error("journal options: {reason}")]
    Options {
        /// What is wrong.
        reason: String,
    },
    /// Another process writes this journal.
    #[error("{file} is held by another process")]
    Locked {
        /// The lock file.
        file: Utf8PathBuf,
    },
    /// A file or the directory is a link, of another owner, or no regular file.
    #[error("{file} {reason}")]
    Unsafe {
        /// What was found.
        file: Utf8PathBuf,
        /// Why it is not used.
        reason: &'static str,
    },
    /// A file, or all of them together, above their bound.
    #[error("{file} has {bytes} bytes, above the bound of {bytes_max}")]
    Oversized {
        /// The file, or the directory when all segments together are meant.
        file: Utf8PathBuf,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        bytes_max: u64,
    },
    /// More segment files than any journal is given.
    #[error("{dir} has more than {files_max} segment files")]
    Crowded {
        /// The journal's directory.
        dir: Utf8PathBuf,
        /// How many are read.
        files_max: usize,
    },
    /// A file of a format this build does not know.
    #[error("{file} has format version {found}, this build knows version {known}")]
    Version {
        /// The file.
        file: Utf8PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The bytes are not what was written.
    #[error("{file} is corrupt at byte {offset}: {reason}")]
    Corrupt {
        /// The file.
        file: Utf8PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        reason: String,
    },
    /// The record is whole, but the journal's owner could not take it.
    #[error("{file}, record {sequence} at byte {offset}, cannot be used: {reason}")]
    Rejected {
        /// The file.
        file: Utf8PathBuf,
        /// Where the record's batch (or the snapshot's payload) begins.
        offset: u64,
        /// The record's sequence number, or the snapshot's.
        sequence: u64,
        /// What the owner said.
        reason: String,
    },
    /// The disk refused while the journal was read.
    #[error("cannot {doing} {file}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        file: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Everything was verified, then the disk refused while leftovers were cleared away. The next
    /// start does it again.
    #[error("the journal is whole, but the disk refused to {doing} {file}")]
    Repair {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        file: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// What the person can do, one sentence.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Options { .. } => "Correct the options of the journal.",
            Self::Locked { .. } => "Stop the other process, or use another directory.",
            Self::Unsafe { .. } => {
                "Put back a regular file of your own from a backup, or move the whole journal directory away to begin anew."
            }
            Self::Oversized { .. } => {
                "Restore the journal directory from a backup, or raise the bound if it was lowered."
            }
            Self::Crowded { .. } => {
                "Restore the journal directory from a backup, or move it away to begin anew; nothing in it was changed."
            }
            Self::Version { .. } => "Start the version of the program that wrote this journal.",
            Self::Corrupt { .. } | Self::Rejected { .. } => {
                "Copy the journal directory, then restore a backup or move the directory away to begin anew; what can be read can be exported first."
            }
            Self::Io { source, .. } | Self::Repair { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "The file system is full: free some space, then start again."
                }
                _ => "Check the disk and the permissions, then start again.",
            },
        }
    }
}

/// Something worth telling that did not stop the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// An append that was under way when the process or machine stopped (or, when only reading,
    /// that is under way), never reported, was left out.
    Torn {
        /// The segment.
        file: Utf8PathBuf,
        /// Where the append began.
        offset: u64,
        /// How far its remains reached.
        bytes: u64,
    },
    /// An unfinished or replaced file was removed (or, when only reading, left alone).
    Leftover {
        /// The file.
        file: Utf8PathBuf,
    },
    /// A file that is none of the journal's; it is left alone.
    UnknownFile {
        /// The file.
        file: Utf8PathBuf,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn { file, offset, bytes } => write!(
                f,
                "{file}: an unfinished append of {bytes} bytes at byte {offset}, never reported, is not counted"
            ),
            Self::Leftover { file } => write!(f, "{file} was left by an interrupted change"),
            Self::UnknownFile { file } => write!(f, "{file} is no file of the journal"),
        }
    }
}

/// No space for more records. Nothing was written, and the journal goes on when there is space.
#[derive(Debug, Error)]
pub enum Full {
    /// The disk has no space for another segment.
    #[error("no space on disk for a journal segment of {bytes} bytes")]
    Disk {
        /// The size asked for.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The disk takes no other segment, for a reason that is not space.
    #[error("a journal segment of {bytes} bytes cannot be made")]
    Refused {
        /// The size asked for.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// All segments together would pass their bound.
    #[error("the journal has reached its bound of {bytes_max} bytes")]
    Bound {
        /// `Options::total_bytes_max`.
        bytes_max: u64,
    },
    /// One more segment would pass the bound of files.
    #[error("the journal has reached its bound of {files_max} segment files")]
    Files {
        /// [`SEGMENT_FILES_MAX`](crate::SEGMENT_FILES_MAX).
        files_max: usize,
    },
}

/// Why records were not accepted.
#[derive(Debug, Error)]
pub enum AppendError {
    /// An earlier write or flush failed; only a new start can go on.
    #[error("the journal takes nothing more since a write failed")]
    Poisoned,
    /// No space; nothing was written.
    #[error("the journal is full")]
    Full(#[from] Full),
    /// A record or the whole append is above its bound; nothing was written.
    #[error("{bytes} bytes at once are above the bound of {bytes_max}")]
    TooLarge {
        /// The payload's size, or the append's cost.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
    /// The sequence numbers are used up; nothing was written.
    #[error("the journal's sequence numbers are used up")]
    SequenceExhausted,
    /// The write or flush failed just now; the journal is poisoned.
    #[error("cannot {doing} {file}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        file: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a snapshot was not installed, or what it covers was not removed. Unless poisoned, the
/// journal goes on with the snapshot it has.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The records before it could not be written.
    #[error("the records before the snapshot are not on disk")]
    Append(#[from] AppendError),
    /// The payload is above its bound.
    #[error("a snapshot of {bytes} bytes is above the bound of {bytes_max}")]
    TooLarge {
        /// The payload's size.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
    /// The journal has snapshots, so it decides itself what to keep.
    #[error("the journal has snapshots and drops segments by itself")]
    HasSnapshots,
    /// The disk refused.
    #[error("cannot {doing} {file}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        file: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
