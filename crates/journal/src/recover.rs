//! Starting from what is on disk. First everything is read and verified, and every record shown to
//! the owner; only when all of that went well is anything changed (`repair`).

use crate::disk::{Disk, Kind, Lock};
use crate::error::{OpenError, Warning};
use crate::format::{
    FORMAT_VERSION, HEADER_BYTES, HeaderProblem, RECORD_OVERHEAD_BYTES, SNAPSHOT_FOOTER_BYTES,
    SegmentHeader, SnapshotHeader, ZEROS, is_zero, u32_at,
};
use crate::journal::{Entry, Journal, SegmentInfo, SnapshotMark};
use crate::names::{LOCK, segment_name, snapshot_name};
use crate::options::Options;
use crate::scan::{Cursor, OnEntry, Problem, Tail, scan};
use crate::survey::{
    Files, Numbered, Segment, check_kind, check_numbers, file_of, hold_last, io_error, survey,
};
use camino::Utf8Path;
use std::io;
use std::ops::Range;

/// How often the tail that a live writer is changing is read again before it is judged.
const TAIL_READS_MAX: usize = 5;

/// What a start shows its owner, in order: the snapshot, if there is one, then every record kept on
/// disk, also those the snapshot covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit<'a> {
    /// The state as of a record.
    Snapshot {
        /// The last record it covers.
        sequence: u64,
        /// What was installed.
        payload: &'a [u8],
    },
    /// A record.
    Entry(Entry<'a>),
}

/// Takes what is read, or says why it cannot be used.
pub type Visitor<'a> = dyn FnMut(Visit<'_>) -> Result<(), String> + 'a;

/// A journal that can go on.
#[derive(Debug)]
pub struct Opened<D: Disk> {
    /// The writer.
    pub journal: Journal<D>,
    /// The snapshot's sequence number, when there is one.
    pub snapshot_sequence: Option<u64>,
    /// The oldest record on disk; one more than the last when there is none.
    pub first_sequence: u64,
    /// The newest record; 0 when there never was one.
    pub last_sequence: u64,
    /// What was noticed and did not stop the start.
    pub warnings: Vec<Warning>,
}

/// What reading everything found out.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) segments: Vec<SegmentInfo>,
    pub(crate) snapshot: Option<SnapshotMark>,
    pub(crate) last_sequence: u64,
    pub(crate) records: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) bytes_since_snapshot: u64,
    /// In the last segment that holds anything.
    pub(crate) torn: Option<Range<usize>>,
    /// That segment's last whole batch.
    pub(crate) last_batch: Option<Range<usize>>,
    /// That segment's bytes.
    pub(crate) bytes: Vec<u8>,
}

impl Loaded {
    fn count(&mut self, entry: Entry<'_>) {
        let bytes = entry.payload.len() as u64;
        self.records += 1;
        self.payload_bytes += bytes;
        if self.snapshot.is_none_or(|snapshot| entry.sequence > snapshot.sequence) {
            self.bytes_since_snapshot += bytes + RECORD_OVERHEAD_BYTES;
        }
    }
}

impl<D: Disk> Journal<D> {
    /// Opens (or begins) the journal in `dir` as its only writer. When this fails, no byte on disk
    /// has changed.
    pub fn open(
        mut disk: D,
        dir: &Utf8Path,
        options: Options,
        visit: &mut Visitor<'_>,
    ) -> Result<Opened<D>, OpenError> {
        options.check().map_err(|reason| OpenError::Options { reason })?;
        let private = enter(&mut disk, dir, true)?;
        take_lock(&mut disk, dir)?;
        let read = survey(&mut disk, dir, &options, true).and_then(|mut files| {
            let loaded = load(&mut disk, dir, &mut files, false, visit)?;
            hold_last(&mut disk, dir, &mut files.segments, loaded.segments.len())?;
            Ok((files, loaded))
        });
        let (files, loaded) = match read {
            Ok(read) => read,
            Err(error) => {
                disk.unlock(LOCK);
                return Err(error);
            }
        };
        crate::repair::repair(disk, dir, options, files, loaded, private)
    }
}

/// Enters the directory; makes it when `make`. Returns whether it is closed to others.
pub(crate) fn enter<D: Disk>(disk: &mut D, dir: &Utf8Path, make: bool) -> Result<bool, OpenError> {
    let mut entered = disk.enter(dir);
    if make && entered.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        disk.make_dir(dir).map_err(io_error("make the directory", dir, ""))?;
        entered = disk.enter(dir);
    }
    let facts = entered.map_err(io_error("enter the directory", dir, ""))?;
    check_kind(dir, "", facts, Kind::Dir)?;
    Ok(facts.private)
}

fn take_lock<D: Disk>(disk: &mut D, dir: &Utf8Path) -> Result<(), OpenError> {
    match disk.facts(LOCK) {
        Ok(facts) => check_kind(dir, LOCK, facts, Kind::File)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error("look at", dir, LOCK)(error)),
    }
    match disk.lock(LOCK).map_err(io_error("lock", dir, LOCK))? {
        Lock::Taken => Ok(()),
        Lock::Held => Err(OpenError::Locked { file: dir.join(LOCK) }),
    }
}

/// Reads and verifies everything, and shows it to `visit`. `live`: a writer may be at work.
pub(crate) fn load<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    files: &mut Files<D::File>,
    live: bool,
    visit: &mut Visitor<'_>,
) -> Result<Loaded, OpenError> {
    let mut loaded = Loaded::default();
    check_numbers(dir, &files.segments)?;
    let begun = count_begun(disk, dir, files)?;
    let used = files.segments.get(..begun).unwrap_or_default();
    let mut floor = 1;
    if let Some(snapshot) = &files.snapshot {
        let (header, payload) = read_snapshot(disk, dir, snapshot)?;
        floor = header.floor;
        loaded.snapshot =
            Some(SnapshotMark { sequence: header.sequence, payload_bytes: header.payload_bytes });
        let shown = Visit::Snapshot { sequence: header.sequence, payload: &payload };
        visit(shown).map_err(|reason| OpenError::Rejected {
            file: dir.join(snapshot_name(header.sequence)),
            offset: HEADER_BYTES as u64,
            sequence: header.sequence,
            reason,
        })?;
    }
    let mut next_sequence = None;
    for (place, segment) in used.iter().enumerate() {
        let mut reading = Reading {
            dir,
            segment,
            last: place + 1 == begun,
            live,
            floor: (place == 0).then_some(floor),
        };
        next_sequence = reading.read(disk, next_sequence, &mut loaded, visit)?;
    }
    check_ends(dir, &loaded)?;
    Ok(loaded)
}

/// How many segments hold anything: after the last such one all are zero.
fn count_begun<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    files: &Files<D::File>,
) -> Result<usize, OpenError> {
    let mut begun = files.segments.len();
    for segment in files.segments.iter().rev() {
        if !is_unused(disk, dir, segment)? {
            break;
        }
        begun = begun.saturating_sub(1);
    }
    Ok(begun)
}

/// `true` when every byte of the file is zero; reads no further than the first that is not.
fn is_unused<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    segment: &Segment<D::File>,
) -> Result<bool, OpenError> {
    let mut opened = None;
    let file = file_of(disk, dir, segment, &mut opened)?;
    let mut piece = vec![0; ZEROS.len()];
    let mut at = 0;
    while at < segment.bytes {
        let length = (segment.bytes - at).min(ZEROS.len() as u64);
        piece.truncate(usize::try_from(length).unwrap_or(0));
        let read = disk.read_at(file, at, &mut piece);
        read.map_err(io_error("read", dir, &segment_name(segment.number)))?;
        if !is_zero(&piece) {
            return Ok(false);
        }
        at += length;
    }
    Ok(true)
}

fn read_segment<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    segment: &Segment<D::File>,
    bytes: &mut Vec<u8>,
) -> Result<(), OpenError> {
    let mut opened = None;
    let file = file_of(disk, dir, segment, &mut opened)?;
    bytes.resize(usize::try_from(segment.bytes).unwrap_or(0), 0);
    let read = disk.read_at(file, 0, bytes);
    read.map_err(io_error("read", dir, &segment_name(segment.number)))
}

/// One segment and how it is to be read.
struct Reading<'a, F> {
    dir: &'a Utf8Path,
    segment: &'a Segment<F>,
    last: bool,
    live: bool,
    /// For the first segment: the sequence number that must not be missing.
    floor: Option<u64>,
}

impl<F: Send + std::fmt::Debug> Reading<'_, F> {
    fn read<D: Disk<File = F>>(
        &mut self,
        disk: &mut D,
        next_sequence: Option<u64>,
        loaded: &mut Loaded,
        visit: &mut Visitor<'_>,
    ) -> Result<Option<u64>, OpenError> {
        let mut cursor = Cursor::start(next_sequence);
        let mut tail = Err(Problem::Corrupt { offset: 0, reason: String::new() });
        let reads_max = if self.live && self.last { TAIL_READS_MAX } else { 1 };
        for _ in 0..reads_max {
            read_segment(disk, self.dir, self.segment, &mut loaded.bytes)?;
            self.check_floor(&loaded.bytes)?;
            let bytes = std::mem::take(&mut loaded.bytes);
            let number = self.segment.number;
            let mut on_entry = |_: usize, entry: Entry<'_>| {
                loaded.count(entry);
                visit(Visit::Entry(entry))
            };
            tail = scan(&bytes, number, self.last, &mut cursor, &mut on_entry as &mut OnEntry<'_>);
            loaded.bytes = bytes;
            if matches!(tail, Ok(Tail::Clean) | Err(Problem::Rejected { .. })) {
                break;
            }
        }
        let tail = tail.map_err(|problem| self.name_problem(problem))?;
        self.note(&cursor, tail, next_sequence, loaded);
        Ok(cursor.next_sequence)
    }

    fn check_floor(&self, bytes: &[u8]) -> Result<(), OpenError> {
        let (Some(floor), Ok(header)) = (self.floor, SegmentHeader::decode(bytes)) else {
            return Ok(());
        };
        if header.first_sequence <= floor {
            return Ok(());
        }
        Err(OpenError::Corrupt {
            file: self.dir.join(segment_name(self.segment.number)),
            offset: 24,
            reason: format!(
                "a gap in the sequence: the records from {floor} to {} are missing",
                header.first_sequence - 1
            ),
        })
    }

    fn note(&self, cursor: &Cursor, tail: Tail, before: Option<u64>, loaded: &mut Loaded) {
        let header = SegmentHeader::decode(&loaded.bytes).ok();
        let next = cursor.next_sequence.unwrap_or(1);
        loaded.last_sequence = next.saturating_sub(1);
        if cursor.offset > 0 {
            let first_sequence = header.map_or(before.unwrap_or(next), |h| h.first_sequence);
            loaded.segments.push(SegmentInfo {
                number: self.segment.number,
                first_sequence,
                last_sequence: loaded.last_sequence,
                used_bytes: cursor.offset as u64,
                bytes: self.segment.bytes,
            });
        }
        if self.last {
            loaded.last_batch = cursor.last_batch.clone();
            if let Tail::Torn(range) = tail {
                loaded.torn = Some(range);
            }
        }
    }

    fn name_problem(&self, problem: Problem) -> OpenError {
        let file = self.dir.join(segment_name(self.segment.number));
        match problem {
            Problem::Corrupt { offset, reason } => {
                OpenError::Corrupt { file, offset: offset as u64, reason }
            }
            Problem::Version { found } => OpenError::Version { file, found, known: FORMAT_VERSION },
            Problem::Rejected { offset, sequence, reason } => {
                OpenError::Rejected { file, offset: offset as u64, sequence, reason }
            }
        }
    }
}

/// The snapshot must not be ahead of the records.
fn check_ends(dir: &Utf8Path, loaded: &Loaded) -> Result<(), OpenError> {
    match loaded.snapshot {
        Some(snapshot) if snapshot.sequence > loaded.last_sequence => Err(OpenError::Corrupt {
            file: dir.join(snapshot_name(snapshot.sequence)),
            offset: 16,
            reason: format!(
                "a gap in the sequence: the snapshot covers record {} and the records end at {}",
                snapshot.sequence, loaded.last_sequence
            ),
        }),
        _ => Ok(()),
    }
}

fn read_snapshot<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    snapshot: &Numbered<D::File>,
) -> Result<(SnapshotHeader, Vec<u8>), OpenError> {
    let name = snapshot_name(snapshot.number);
    let file = dir.join(&name);
    let mut bytes = vec![0; usize::try_from(snapshot.bytes).unwrap_or(0)];
    let read = disk.read_at(&snapshot.file, 0, &mut bytes);
    read.map_err(io_error("read", dir, &name))?;
    let corrupt = |offset: u64, reason: &str| OpenError::Corrupt {
        file: file.clone(),
        offset,
        reason: reason.to_owned(),
    };
    let header = SnapshotHeader::decode(&bytes).map_err(|problem| match problem {
        HeaderProblem::Invalid => corrupt(0, "the header is damaged"),
        HeaderProblem::Version(found) => {
            OpenError::Version { file: file.clone(), found, known: FORMAT_VERSION }
        }
    })?;
    if header.sequence != snapshot.number {
        return Err(corrupt(16, "the file's name does not fit its content"));
    }
    let fixed = HEADER_BYTES as u64 + SNAPSHOT_FOOTER_BYTES;
    if header.payload_bytes.checked_add(fixed) != Some(snapshot.bytes) {
        return Err(corrupt(snapshot.bytes, "the file's size does not fit its content"));
    }
    if header.floor == 0 || header.floor > header.sequence.saturating_add(1) {
        return Err(corrupt(24, "the first record to be kept lies past the snapshot"));
    }
    let seal = bytes.split_off(bytes.len().saturating_sub(4));
    bytes.drain(..HEADER_BYTES);
    if u32_at(&seal, 0) != Some(crc32c::crc32c(&bytes)) {
        return Err(corrupt(HEADER_BYTES as u64, "the checksum of the payload is wrong"));
    }
    Ok((header, bytes))
}
