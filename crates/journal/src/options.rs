//! The bounds of one journal and what its owner may choose.

use crate::format::{SEGMENT_HEADER_BYTES, batch_cost};

/// The smallest segment: one page.
pub const SEGMENT_BYTES_MIN: u64 = 4096;
/// The largest segment. A start holds one segment in memory at a time.
pub const SEGMENT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The most segment files a journal makes, the reserve among them. At the bound no segment is allocated
/// until old ones go; a snapshot lets go of what is beyond half of it, whatever is to be kept for replay.
pub const SEGMENT_FILES_MAX: usize = 512;

/// The bounds of a journal. Files above them make a start fail before they are loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Size of a segment file, allocated and zeroed before its first record. A segment that was
    /// made with another size stays valid. One append never takes more than one segment.
    pub segment_bytes: u64,
    /// The largest payload of a record.
    pub record_bytes_max: u32,
    /// The largest payload of a snapshot.
    pub snapshot_bytes_max: u64,
    /// All segment files together, the reserve among them. At the bound no segment is allocated
    /// until a snapshot lets old ones go.
    pub total_bytes_max: u64,
    /// How many records stay behind a snapshot for replay, …
    pub events_keep: u64,
    /// … or how many bytes of them, whichever is reached first; and never more than half of
    /// [`SEGMENT_FILES_MAX`] segments. Whole segments are dropped, so up to a segment more stays.
    pub events_bytes_keep: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 4 * 1024 * 1024,
            record_bytes_max: 2 * 1024 * 1024,
            snapshot_bytes_max: 64 * 1024 * 1024,
            total_bytes_max: 256 * 1024 * 1024,
            events_keep: 10_000,
            events_bytes_keep: 16 * 1024 * 1024,
        }
    }
}

impl Options {
    /// The largest [`batch_cost`](crate::batch_cost) of one append.
    pub fn batch_bytes_max(&self) -> u64 {
        self.segment_bytes.saturating_sub(SEGMENT_HEADER_BYTES)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.segment_bytes < SEGMENT_BYTES_MIN
            || self.segment_bytes > SEGMENT_BYTES_MAX
            || !self.segment_bytes.is_multiple_of(512)
        {
            return Err(format!(
                "segment_bytes is {}, not a multiple of 512 from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}",
                self.segment_bytes
            ));
        }
        if batch_cost(1, u64::from(self.record_bytes_max)) > self.batch_bytes_max() {
            return Err(format!(
                "a record of record_bytes_max {} does not fit a segment of {}",
                self.record_bytes_max, self.segment_bytes
            ));
        }
        if self.total_bytes_max < self.segment_bytes.saturating_mul(3) {
            return Err(format!(
                "total_bytes_max {} is below three segments of {}",
                self.total_bytes_max, self.segment_bytes
            ));
        }
        Ok(())
    }
}
