//! The journal: numbered records in append-only segments, and a snapshot now and then.
//!
//! It sees bytes and knows nothing of tasks. It blocks: the owner gives it a thread. What it
//! promises: whatever [`Journal::append`] reported is there after any crash; nothing is there that
//! was not submitted; records come back in order and whole; a start either verifies everything or
//! names file, offset and reason and changes nothing; a sequence number is never used twice.
//!
//! ```no_run
//! use ostler_journal::{Journal, Options, RealDisk, Visit};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut seen = 0;
//! let mut opened = Journal::open(
//!     RealDisk::new(),
//!     "/var/lib/example/journal".into(),
//!     Options::default(),
//!     &mut |visit| {
//!         if let Visit::Entry(entry) = visit {
//!             seen = entry.sequence;
//!         }
//!         Ok(())
//!     },
//! )?;
//! let last = opened.journal.append(&[b"one", b"two"])?;
//! assert_eq!(last, seen + 2);
//! # Ok(())
//! # }
//! ```
//!
//! Absent on purpose: compression, encryption, indexes, async.

mod disk;
mod error;
#[doc(hidden)]
pub mod fake;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod journal;
mod names;
mod options;
mod read;
mod recover;
mod repair;
mod scan;
mod snapshot;
mod survey;

pub use disk::{DIRECTORY_NAMES_MAX, Disk, Facts, Kind, Lock, RealDisk};
pub use error::{AppendError, Full, OpenError, SnapshotError, Warning};
pub use format::{
    BATCH_OVERHEAD_BYTES, FORMAT_VERSION, RECORD_OVERHEAD_BYTES, SEGMENT_HEADER_BYTES, batch_cost,
};
pub use journal::{Entry, Journal, Place, SegmentInfo};
pub use options::{Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_FILES_MAX};
pub use read::{Report, SegmentFile, read, verify};
pub use recover::{Opened, Visit, Visitor};
pub use survey::SEGMENT_FILES_FOUND_MAX;
