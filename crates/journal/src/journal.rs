//! The writer: one active segment, one reserve, one batch in memory at a time. Owns the directory
//! while it lives. Absent on purpose: reading back what was appended, threads, waiting.
//!
//! Two rules carry recovery. A batch is written into space that is zero and already durable, and a
//! segment is begun only after the batch before it was synced; so of all that is on disk only the
//! last batch can be torn. And whatever fails after bytes may have reached the disk poisons the
//! journal for good, even if a later try would succeed.

use crate::disk::Disk;
use crate::error::{AppendError, Full};
use crate::format::{
    HEADER_BYTES, RECORD_OVERHEAD_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, ZEROS, batch_cost,
    begin_batch, finish_batch, push_record,
};
use crate::names::{SEGMENT_TEMP, segment_name};
use crate::options::{Options, SEGMENT_FILES_MAX};
use camino::{Utf8Path, Utf8PathBuf};
use std::collections::VecDeque;
use std::io;

/// Memory kept for the next batch; a larger one is given back.
const BUFFER_KEPT_BYTES_MAX: usize = 512 * 1024;
/// Staged records are written when they reach this, synced or not asked for.
const STAGED_BYTES_MAX: u64 = 1024 * 1024;

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its number: the first is 1, and each is one more than the one before.
    pub sequence: u64,
    /// What was appended.
    pub payload: &'a [u8],
    /// Where it lies, for reading it again.
    pub place: Place,
}

/// Where a record's payload lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the segment.
    pub segment: u64,
    /// The payload's first byte in the segment's file.
    pub offset: u64,
    /// How long it is.
    pub bytes: u32,
    /// Its CRC-32C.
    pub crc: u32,
}

/// A segment that holds records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its place in the order of files; part of its name.
    pub number: u64,
    /// The first record in it.
    pub first_sequence: u64,
    /// The last record in it; `first_sequence - 1` when there is none yet.
    pub last_sequence: u64,
    /// How much of the file is used.
    pub used_bytes: u64,
    /// How much the file takes on disk.
    pub bytes: u64,
}

/// A segment file that is allocated, zero and durable, but not begun.
#[derive(Debug)]
pub(crate) struct Reserve<F> {
    pub(crate) file: F,
    pub(crate) number: u64,
    pub(crate) bytes: u64,
}

/// The snapshot in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SnapshotMark {
    pub(crate) sequence: u64,
    pub(crate) payload_bytes: u64,
}

/// The writer of one journal directory.
#[derive(Debug)]
pub struct Journal<D: Disk> {
    pub(crate) disk: D,
    pub(crate) dir: Utf8PathBuf,
    pub(crate) options: Options,
    /// In order; the last is the active one.
    pub(crate) segments: VecDeque<SegmentInfo>,
    pub(crate) active: Option<D::File>,
    pub(crate) reserve: Option<Reserve<D::File>>,
    pub(crate) next_number: u64,
    /// The batch being built, with the segment's header before it when it is the segment's first.
    pub(crate) buffer: Vec<u8>,
    pub(crate) staged_records: u32,
    pub(crate) staged_payload_bytes: u64,
    pub(crate) last_sequence: u64,
    pub(crate) snapshot: Option<SnapshotMark>,
    pub(crate) bytes_since_snapshot: u64,
    pub(crate) poisoned: bool,
}

impl<D: Disk> Journal<D> {
    /// Appends all payloads as one batch, with one write and one flush, and returns the number of
    /// the last. When this returns they are durable; after a crash either all of them are there or,
    /// if this had not returned, possibly none.
    pub fn append(&mut self, payloads: &[&[u8]]) -> Result<u64, AppendError> {
        self.write(payloads)?;
        self.sync()
    }

    /// Stages payloads in memory for the next [`sync`](Self::sync) and returns the number of the
    /// last. They are on disk only then (or earlier, when much is staged).
    pub fn write(&mut self, payloads: &[&[u8]]) -> Result<u64, AppendError> {
        if self.poisoned {
            return Err(AppendError::Poisoned);
        }
        if payloads.is_empty() {
            return Ok(self.last_sequence);
        }
        let (records, payload_bytes) = self.measure(payloads)?;
        self.last_sequence
            .checked_add(u64::from(records))
            .filter(|last| *last < u64::MAX)
            .ok_or(AppendError::SequenceExhausted)?;
        self.make_way(records, payload_bytes)?;
        self.stage(payloads, records, payload_bytes);
        Ok(self.last_sequence)
    }

    /// Makes everything staged durable: one write, one flush. Returns the last sequence number.
    pub fn sync(&mut self) -> Result<u64, AppendError> {
        if self.poisoned {
            return Err(AppendError::Poisoned);
        }
        if self.staged_records > 0 {
            self.seal();
            let written = self.write_staged();
            self.settle(written)?;
        }
        Ok(self.last_sequence)
    }

    /// The number of the newest record, staged ones included; 0 when there is none.
    pub fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// The oldest record on disk; one more than the last when there is none.
    pub fn first_sequence(&self) -> u64 {
        let front = self.segments.front();
        front.map_or(self.last_sequence.saturating_add(1), |s| s.first_sequence)
    }

    /// A write or flush has failed; nothing is taken any more.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// The sum of [`batch_cost`] of appends that is sure to fit into space already allocated,
    /// however it is divided.
    pub fn room(&self) -> u64 {
        let reserve = self
            .reserve
            .as_ref()
            .map_or(0, |reserve| reserve.bytes.saturating_sub(SEGMENT_HEADER_BYTES));
        // Not the sum: the batch that no longer fits the active segment leaves its rest unused.
        self.active_rest().max(reserve)
    }

    /// Whether the next segment is allocated already, so that the next append allocates nothing.
    pub fn has_reserve(&self) -> bool {
        self.reserve.is_some()
    }

    /// Allocates the reserve when there is none, and returns [`room`](Self::room). On a full disk
    /// the error is [`AppendError::Full`], nothing has changed, and it may be tried again.
    pub fn ensure_room(&mut self) -> Result<u64, AppendError> {
        if self.poisoned {
            return Err(AppendError::Poisoned);
        }
        if self.reserve.is_none() {
            self.reserve = Some(self.allocate()?);
        }
        Ok(self.room())
    }

    /// About how much was appended since the snapshot.
    pub fn bytes_since_snapshot(&self) -> u64 {
        self.bytes_since_snapshot
    }

    /// The snapshot's sequence number.
    pub fn snapshot_sequence(&self) -> Option<u64> {
        self.snapshot.map(|snapshot| snapshot.sequence)
    }

    /// The segments that hold records, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.segments.iter().copied().collect()
    }

    /// How many segment files there are, the reserve among them.
    pub fn files(&self) -> usize {
        self.segments.len() + usize::from(self.reserve.is_some())
    }

    /// What the segment files take on disk, the reserve among them.
    pub fn files_bytes(&self) -> u64 {
        let reserved = self.reserve.as_ref().map_or(0, |reserve| reserve.bytes);
        self.segments.iter().map(|segment| segment.bytes).fold(reserved, u64::saturating_add)
    }

    /// The largest [`batch_cost`] of one append.
    pub fn batch_bytes_max(&self) -> u64 {
        self.options.batch_bytes_max()
    }

    /// Where the journal lies.
    pub fn dir(&self) -> &Utf8Path {
        &self.dir
    }

    pub(crate) fn poison(
        &mut self,
        doing: &'static str,
        name: &str,
        source: io::Error,
    ) -> AppendError {
        self.poisoned = true;
        AppendError::Io { doing, file: self.dir.join(name), source }
    }

    fn measure(&self, payloads: &[&[u8]]) -> Result<(u32, u64), AppendError> {
        let record_max = u64::from(self.options.record_bytes_max);
        let mut payload_bytes = 0_u64;
        for payload in payloads {
            let bytes = payload.len() as u64;
            if bytes > record_max {
                return Err(AppendError::TooLarge { bytes, bytes_max: record_max });
            }
            payload_bytes = payload_bytes.saturating_add(bytes);
        }
        let bytes = batch_cost(payloads.len() as u64, payload_bytes);
        let bytes_max = self.batch_bytes_max();
        match u32::try_from(payloads.len()) {
            Ok(records) if bytes <= bytes_max => Ok((records, payload_bytes)),
            _ => Err(AppendError::TooLarge { bytes, bytes_max }),
        }
    }

    fn active_rest(&self) -> u64 {
        self.segments.back().map_or(0, |active| {
            let used = active.used_bytes.max(SEGMENT_HEADER_BYTES);
            active.bytes.saturating_sub(used)
        })
    }

    /// Makes sure that the staged batch with these records added fits the active segment: writes
    /// what is staged, begins the reserve, or allocates, as needed.
    fn make_way(&mut self, records: u32, payload_bytes: u64) -> Result<(), AppendError> {
        if self.staged_records > 0 {
            let all = u64::from(self.staged_records) + u64::from(records);
            let joined = batch_cost(all, self.staged_payload_bytes.saturating_add(payload_bytes));
            if joined <= self.active_rest().min(STAGED_BYTES_MAX) {
                return Ok(());
            }
            self.sync()?;
        }
        if batch_cost(u64::from(records), payload_bytes) <= self.active_rest() {
            return Ok(());
        }
        let next = match self.reserve.take() {
            Some(reserve) => reserve,
            None => self.allocate()?,
        };
        self.segments.push_back(SegmentInfo {
            number: next.number,
            first_sequence: self.last_sequence.saturating_add(1),
            last_sequence: self.last_sequence,
            used_bytes: 0,
            bytes: next.bytes,
        });
        self.active = Some(next.file);
        Ok(())
    }

    fn stage(&mut self, payloads: &[&[u8]], records: u32, payload_bytes: u64) {
        if self.staged_records == 0 {
            self.buffer.clear();
            if let Some(active) = self.segments.back().filter(|active| active.used_bytes == 0) {
                let header = SegmentHeader {
                    number: active.number,
                    first_sequence: active.first_sequence,
                    file_bytes: active.bytes,
                };
                self.buffer.extend_from_slice(&header.encode());
            }
            begin_batch(&mut self.buffer);
        }
        let records_bytes = u64::from(records) * RECORD_OVERHEAD_BYTES + payload_bytes;
        self.buffer.reserve(usize::try_from(records_bytes).unwrap_or(0));
        for payload in payloads {
            push_record(&mut self.buffer, payload);
        }
        self.staged_records += records;
        self.staged_payload_bytes += payload_bytes;
        self.last_sequence += u64::from(records);
    }

    fn seal(&mut self) {
        let fresh = self.segments.back().is_some_and(|active| active.used_bytes == 0);
        let start = if fresh { HEADER_BYTES } else { 0 };
        let before = self.last_sequence - u64::from(self.staged_records);
        finish_batch(&mut self.buffer, start, self.staged_records, before + 1);
    }

    fn write_staged(&mut self) -> Result<(), (&'static str, io::Error)> {
        let (Some(active), Some(file)) = (self.segments.back(), self.active.as_ref()) else {
            return Err(("write", io::Error::other("no active segment")));
        };
        self.disk
            .write_at(file, active.used_bytes, &self.buffer)
            .map_err(|source| ("write", source))?;
        self.disk.sync(file).map_err(|source| ("sync", source))
    }

    fn settle(
        &mut self,
        written: Result<(), (&'static str, io::Error)>,
    ) -> Result<(), AppendError> {
        if let Err((doing, source)) = written {
            let number = self.segments.back().map_or(0, |active| active.number);
            return Err(self.poison(doing, &segment_name(number), source));
        }
        let bytes = self.buffer.len() as u64;
        if let Some(active) = self.segments.back_mut() {
            active.used_bytes += bytes;
            active.last_sequence = self.last_sequence;
        }
        self.bytes_since_snapshot = self.bytes_since_snapshot.saturating_add(bytes);
        self.staged_records = 0;
        self.staged_payload_bytes = 0;
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_KEPT_BYTES_MAX);
        Ok(())
    }

    /// Makes the next segment file, zeroed and durable under its name. Until it is renamed nothing
    /// depends on it, so any failure up to there only means that there is no space.
    fn allocate(&mut self) -> Result<Reserve<D::File>, AppendError> {
        let bytes = self.options.segment_bytes;
        if self.files_bytes().saturating_add(bytes) > self.options.total_bytes_max {
            let bytes_max = self.options.total_bytes_max;
            return Err(Full::Bound { bytes_max }.into());
        }
        if self.files() >= SEGMENT_FILES_MAX {
            return Err(Full::Files { files_max: SEGMENT_FILES_MAX }.into());
        }
        let number = self.next_number;
        let name = segment_name(number);
        let file = match self.make_zeroed(bytes, &name) {
            Ok(file) => file,
            Err(source) => {
                // When this fails too, the next try or start removes it.
                let _left = self.disk.remove(SEGMENT_TEMP);
                return Err(match source.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                        Full::Disk { bytes, source }.into()
                    }
                    _ => Full::Refused { bytes, source }.into(),
                });
            }
        };
        if let Err(source) = self.disk.sync_dir() {
            return Err(self.poison("sync the directory for", &name, source));
        }
        self.next_number = number.saturating_add(1);
        Ok(Reserve { file, number, bytes })
    }

    /// Zeros are written, not only allocated: flushing into extents that are still marked unwritten
    /// costs a metadata commit each time.
    fn make_zeroed(&mut self, bytes: u64, name: &str) -> io::Result<D::File> {
        match self.disk.remove(SEGMENT_TEMP) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.disk.create(SEGMENT_TEMP)?;
        let mut offset = 0;
        while offset < bytes {
            let piece = (bytes - offset).min(ZEROS.len() as u64);
            let zeros = ZEROS.get(..usize::try_from(piece).unwrap_or(0));
            self.disk.write_at(&file, offset, zeros.unwrap_or_default())?;
            offset += piece;
        }
        self.disk.sync(&file)?;
        self.disk.rename(SEGMENT_TEMP, name)?;
        Ok(file)
    }
}
