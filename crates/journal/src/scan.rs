//! Reading one segment's bytes: which records are whole, and whether what follows the last whole
//! batch is unused space, an append that a crash tore, or damage. Pure; no files.
//!
//! A batch is one write over zeros, and the next begins only after it was synced. So a crash leaves
//! of the last batch any subset of its 512-byte sectors, the others still zero; a killed process
//! leaves a front part. What looks otherwise was not made by a crash and is reported, never dropped.
//! The price: damage that wipes a whole sector of the very last batch looks like a torn append.

use crate::format::{
    BATCH_ALIGN, BATCH_FOOTER_BYTES, BATCH_HEADER_BYTES, BATCH_MAGIC, BATCH_TRAILER, BatchHeader,
    HEADER_BYTES, HeaderProblem, SEGMENT_MAGIC, SegmentHeader, is_zero, u32_at, written_end,
};
use crate::journal::{Entry, Place};
use std::ops::Range;

/// The unit a disk writes whole or not at all.
pub(crate) const SECTOR_BYTES: usize = 512;

/// Why a segment cannot be used.
#[derive(Debug)]
pub(crate) enum Problem {
    Corrupt { offset: usize, reason: String },
    Version { found: u32 },
    Rejected { offset: usize, sequence: u64, reason: String },
}

/// How far a segment has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Where the next batch begins; 0 before the header.
    pub(crate) offset: usize,
    /// The sequence number it must begin with; any, when nothing came before.
    pub(crate) next_sequence: Option<u64>,
    /// The last whole batch.
    pub(crate) last_batch: Option<Range<usize>>,
}

impl Cursor {
    pub(crate) fn start(next_sequence: Option<u64>) -> Self {
        Self { offset: 0, next_sequence, last_batch: None }
    }
}

/// What comes after the last whole batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Unused space.
    Clean,
    /// The remains of an append that was never reported.
    Torn(Range<usize>),
}

/// Receives verified records: the offset of their batch, and the record.
pub(crate) type OnEntry<'a> = dyn FnMut(usize, Entry<'_>) -> Result<(), String> + 'a;

fn corrupt<T>(offset: usize, reason: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Corrupt { offset, reason: reason.into() })
}

/// Reads on from `cursor`. `last` says that no later segment holds anything: only there may an
/// append be torn.
pub(crate) fn scan(
    bytes: &[u8],
    number: u64,
    last: bool,
    cursor: &mut Cursor,
    on_entry: &mut OnEntry<'_>,
) -> Result<Tail, Problem> {
    if cursor.offset == 0 {
        match SegmentHeader::decode(bytes) {
            Ok(header) => read_header(bytes, number, header, cursor)?,
            Err(HeaderProblem::Version(found)) => return Err(Problem::Version { found }),
            Err(HeaderProblem::Invalid) => {
                return judge(bytes, 0, HEADER_BYTES, &SEGMENT_MAGIC, last);
            }
        }
    }
    loop {
        let start = cursor.offset;
        let rest = bytes.get(start..).unwrap_or_default();
        let Some(header) = BatchHeader::decode(rest) else {
            return judge(bytes, start, BATCH_HEADER_BYTES, &BATCH_MAGIC, last);
        };
        let Some(batch) = rest.get(..header.extent()) else {
            return corrupt(start, "a batch reaches past the end of the segment");
        };
        if !is_sealed(batch) {
            return judge_batch(bytes, start, batch.len(), last);
        }
        read_batch(number, start, header, batch, cursor, on_entry)?;
    }
}

fn read_header(
    bytes: &[u8],
    number: u64,
    header: SegmentHeader,
    cursor: &mut Cursor,
) -> Result<(), Problem> {
    if header.number != number {
        let reason = format!("the file is named {number} and holds segment {}", header.number);
        return corrupt(16, reason);
    }
    if header.file_bytes != bytes.len() as u64 {
        let reason =
            format!("the file has {} bytes and was made with {}", bytes.len(), header.file_bytes);
        return corrupt(bytes.len(), reason);
    }
    check_sequence(24, header.first_sequence, cursor.next_sequence)?;
    cursor.next_sequence = Some(header.first_sequence);
    cursor.offset = HEADER_BYTES;
    Ok(())
}

fn check_sequence(offset: usize, found: u64, expected: Option<u64>) -> Result<(), Problem> {
    match expected {
        _ if found == 0 => corrupt(offset, "sequence number 0 is never used"),
        Some(expected) if found > expected => corrupt(
            offset,
            format!("a gap in the sequence: {found} follows {}", expected.saturating_sub(1)),
        ),
        Some(expected) if found < expected => corrupt(
            offset,
            format!("a repeat in the sequence: {found} follows {}", expected.saturating_sub(1)),
        ),
        _ => Ok(()),
    }
}

/// Trailer and checksum of a whole batch.
fn is_sealed(batch: &[u8]) -> bool {
    let sealed_at = batch.len().saturating_sub(BATCH_FOOTER_BYTES);
    batch.ends_with(&BATCH_TRAILER)
        && batch.get(..sealed_at).map(crc32c::crc32c) == u32_at(batch, sealed_at)
}

fn read_batch(
    segment: u64,
    start: usize,
    header: BatchHeader,
    batch: &[u8],
    cursor: &mut Cursor,
    on_entry: &mut OnEntry<'_>,
) -> Result<(), Problem> {
    check_sequence(start, header.first_sequence, cursor.next_sequence)?;
    let Some(next) = header.first_sequence.checked_add(u64::from(header.records)) else {
        return corrupt(start, "the sequence numbers wrap");
    };
    let body = batch.get(BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + header.body_bytes as usize);
    let mut body = body.unwrap_or_default();
    if header.records == 0 {
        return corrupt(start, "a batch without records");
    }
    let mut offset = start + BATCH_HEADER_BYTES;
    for sequence in header.first_sequence..next {
        let payload = u32_at(body, 0).and_then(|length| {
            let end = (length as usize).checked_add(4)?;
            body.get(4..end)
        });
        let Some(payload) = payload else {
            return corrupt(start, "a record reaches past its batch");
        };
        body = body.get(4 + payload.len()..).unwrap_or_default();
        let place = Place {
            segment,
            offset: (offset + 4) as u64,
            bytes: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            crc: crc32c::crc32c(payload),
        };
        offset += 4 + payload.len();
        on_entry(start, Entry { sequence, payload, place })
            .map_err(|reason| Problem::Rejected { offset: start, sequence, reason })?;
    }
    if !body.is_empty() {
        return corrupt(start, "a batch holds more than its records");
    }
    cursor.last_batch = Some(start..start + batch.len());
    cursor.offset = start + batch.len();
    cursor.next_sequence = Some(next);
    Ok(())
}

/// A batch with a good header and a wrong checksum: torn only if bytes are visibly missing and
/// nothing was written after it.
fn judge_batch(bytes: &[u8], start: usize, extent: usize, last: bool) -> Result<Tail, Problem> {
    let end = start + extent;
    let batch = bytes.get(start..end).unwrap_or_default();
    let missing = batch.last() == Some(&0) || has_zero_sector(bytes, start, end);
    if !missing {
        return corrupt(start, "the checksum of a batch is wrong");
    }
    if !last || !is_zero(bytes.get(end..).unwrap_or_default()) {
        return corrupt(start, "bytes of a batch are missing and more follows it");
    }
    Ok(Tail::Torn(start..end))
}

/// `true` when a sector's share of `start..end` is all zero.
fn has_zero_sector(bytes: &[u8], start: usize, end: usize) -> bool {
    let mut at = start;
    while at < end {
        let next = sector_end(at).min(end);
        if is_zero(bytes.get(at..next).unwrap_or_default()) {
            return true;
        }
        at = next;
    }
    false
}

fn sector_end(at: usize) -> usize {
    (at / SECTOR_BYTES + 1) * SECTOR_BYTES
}

/// No header at `start`: unused space, a torn append whose extent is unknown, or damage.
fn judge(
    bytes: &[u8],
    start: usize,
    header_bytes: usize,
    magic: &[u8],
    last: bool,
) -> Result<Tail, Problem> {
    let end = written_end(bytes);
    if end <= start && start == 0 && !last {
        return corrupt(0, "an empty segment and a later one follows");
    }
    if end <= start {
        return Ok(Tail::Clean);
    }
    let first_sector = bytes.get(start..sector_end(start).min(bytes.len()));
    let first_missing = is_zero(first_sector.unwrap_or_default());
    let head_end = (start + header_bytes).min(bytes.len());
    // A header with nothing at all behind it was never a batch: those end in a mark.
    let torn = first_missing
        || end <= head_end
        || (begins_like(bytes.get(start..).unwrap_or_default(), magic)
            && second_sector_missing(bytes, start, head_end));
    if !torn {
        return corrupt(start, "neither a batch nor unused space");
    }
    if !last {
        return corrupt(start, "bytes are missing and a later segment follows");
    }
    if let Some(offset) = valid_header_after(bytes, start, end) {
        let reason = format!("bytes are missing and a whole batch header follows at {offset}");
        return corrupt(start, reason);
    }
    Ok(Tail::Torn(start..end))
}

/// The header crosses into a sector that never arrived.
fn second_sector_missing(bytes: &[u8], start: usize, head_end: usize) -> bool {
    let border = sector_end(start);
    border < head_end
        && is_zero(bytes.get(border..(border + SECTOR_BYTES).min(bytes.len())).unwrap_or_default())
}

/// `bytes` begin with `magic`, or with a front part of it and then zeros.
fn begins_like(bytes: &[u8], magic: &[u8]) -> bool {
    let equal = bytes.iter().zip(magic).take_while(|(a, b)| a == b).count();
    equal > 0 && is_zero(bytes.get(equal..magic.len()).unwrap_or_default())
}

fn valid_header_after(bytes: &[u8], start: usize, end: usize) -> Option<usize> {
    (start + BATCH_ALIGN..end)
        .step_by(BATCH_ALIGN)
        .find(|at| bytes.get(*at..).and_then(BatchHeader::decode).is_some())
}
