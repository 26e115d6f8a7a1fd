//! The bytes of a segment, a batch and a snapshot: constants, encoding, decoding. Pure; no files.
//!
//! All integers are little-endian, all checksums CRC-32C.
//!
//! ```text
//! segment   = header (64) · batch · batch · … · zeros up to the file's end
//! header    = "OSTLRSEG" · version u32 · 0 u32 · number u64 · first sequence u64 · file bytes u64 · 0 (20) · crc u32
//! batch     = FB 4F 42 FD · body bytes u32 · records u32 · first sequence u64 · crc u32   (24)
//!             · body: (length u32 · payload) for each record
//!             · zeros so that the batch is a multiple of 8
//!             · crc u32 over everything before · FD 45 4F FB
//! snapshot  = "OSTLRSNP" · version u32 · 0 u32 · sequence u64 · floor u64 · payload bytes u64 · 0 (20) · crc u32   (64)
//!             · payload · crc u32 over the payload
//! ```
//!
//! Every batch is one write over space that was zero before, and at most one batch is ever unsynced:
//! that is what makes a torn batch recognisable (see `scan`). The batch's marks hold bytes that no
//! UTF-8 text contains, so that a payload of text never looks like a batch.

/// The format this build reads and writes.
pub const FORMAT_VERSION: u32 = 1;
/// Bytes a segment file spends before its first batch.
pub const SEGMENT_HEADER_BYTES: u64 = 64;
/// Bytes a batch spends beside its records and the padding (below 8 bytes).
pub const BATCH_OVERHEAD_BYTES: u64 = 32;
/// Bytes a record spends beside its payload.
pub const RECORD_OVERHEAD_BYTES: u64 = 4;

pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"OSTLRSEG";
pub(crate) const SNAPSHOT_MAGIC: [u8; 8] = *b"OSTLRSNP";
pub(crate) const BATCH_MAGIC: [u8; 4] = [0xFB, b'O', b'B', 0xFD];
pub(crate) const BATCH_TRAILER: [u8; 4] = [0xFD, b'E', b'O', 0xFB];
pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const BATCH_HEADER_BYTES: usize = 24;
pub(crate) const BATCH_FOOTER_BYTES: usize = 8;
pub(crate) const BATCH_ALIGN: usize = 8;
pub(crate) const SNAPSHOT_FOOTER_BYTES: u64 = 4;
const HEADER_CRC_AT: usize = HEADER_BYTES - 4;
const BATCH_CRC_AT: usize = BATCH_HEADER_BYTES - 4;

/// What one append of `records` payloads of together `payload_bytes` takes from a segment.
pub const fn batch_cost(records: u64, payload_bytes: u64) -> u64 {
    let raw = BATCH_OVERHEAD_BYTES
        .saturating_add(payload_bytes)
        .saturating_add(records.saturating_mul(RECORD_OVERHEAD_BYTES));
    raw.saturating_add(BATCH_ALIGN as u64 - 1) & !(BATCH_ALIGN as u64 - 1)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

/// `true` when every byte is zero. By blocks, since whole segments are checked at every start.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).all(is_zero_block)
}

/// One past the last byte that is not zero; 0 when there is none.
pub(crate) fn written_end(bytes: &[u8]) -> usize {
    let mut end = bytes.len();
    // By coarse blocks, then by fine ones, then by bytes.
    for step in [ZEROS.len(), 64, 1] {
        let rest = bytes.get(..end).unwrap_or_default();
        let zero = rest.rchunks(step).take_while(|block| is_zero_block(block));
        end = end.saturating_sub(zero.map(<[u8]>::len).sum());
    }
    end
}

/// What unused space holds, a block of it.
pub(crate) static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

fn is_zero_block(block: &[u8]) -> bool {
    ZEROS.get(..block.len()).is_some_and(|zeros| zeros == block)
}

/// Why a header is not one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderProblem {
    /// Magic, checksum or a fixed field is wrong.
    Invalid,
    /// Written by another version of the format.
    Version(u32),
}

/// The first bytes of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) number: u64,
    pub(crate) first_sequence: u64,
    pub(crate) file_bytes: u64,
}

/// The first bytes of a snapshot file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SnapshotHeader {
    pub(crate) sequence: u64,
    /// The first sequence number that was still to be kept when the snapshot was made.
    pub(crate) floor: u64,
    pub(crate) payload_bytes: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        encode_header(SEGMENT_MAGIC, [self.number, self.first_sequence, self.file_bytes])
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderProblem> {
        let [number, first_sequence, file_bytes] = decode_header(SEGMENT_MAGIC, bytes)?;
        Ok(Self { number, first_sequence, file_bytes })
    }
}

impl SnapshotHeader {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        encode_header(SNAPSHOT_MAGIC, [self.sequence, self.floor, self.payload_bytes])
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderProblem> {
        let [sequence, floor, payload_bytes] = decode_header(SNAPSHOT_MAGIC, bytes)?;
        Ok(Self { sequence, floor, payload_bytes })
    }
}

fn encode_header(magic: [u8; 8], fields: [u64; 3]) -> [u8; HEADER_BYTES] {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&0_u32.to_le_bytes());
    for field in fields {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.resize(HEADER_CRC_AT, 0);
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes.try_into().unwrap_or([0; HEADER_BYTES])
}

fn decode_header(magic: [u8; 8], bytes: &[u8]) -> Result<[u64; 3], HeaderProblem> {
    let header = bytes.get(..HEADER_BYTES).ok_or(HeaderProblem::Invalid)?;
    if !header.starts_with(&magic) {
        return Err(HeaderProblem::Invalid);
    }
    // The version comes before the checksum, whose place another version may have moved; 0 never
    // was one: it is a header that was cut short.
    match u32_at(header, 8) {
        Some(FORMAT_VERSION) => {}
        None | Some(0) => return Err(HeaderProblem::Invalid),
        Some(other) => return Err(HeaderProblem::Version(other)),
    }
    let sealed = header.get(..HEADER_CRC_AT).map(crc32c::crc32c);
    if sealed.is_none() || sealed != u32_at(header, HEADER_CRC_AT) {
        return Err(HeaderProblem::Invalid);
    }
    match (u64_at(header, 16), u64_at(header, 24), u64_at(header, 32)) {
        (Some(a), Some(b), Some(c)) => Ok([a, b, c]),
        _ => Err(HeaderProblem::Invalid),
    }
}

/// The head of one batch: enough to know where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) body_bytes: u32,
    pub(crate) records: u32,
    pub(crate) first_sequence: u64,
}

impl BatchHeader {
    /// The header at the start of `bytes`, when its mark and checksum are right.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(&BATCH_MAGIC) {
            return None;
        }
        let sealed = crc32c::crc32c(bytes.get(..BATCH_CRC_AT)?);
        if sealed != u32_at(bytes, BATCH_CRC_AT)? {
            return None;
        }
        Some(Self {
            body_bytes: u32_at(bytes, 4)?,
            records: u32_at(bytes, 8)?,
            first_sequence: u64_at(bytes, 12)?,
        })
    }

    /// The bytes of the whole batch.
    pub(crate) fn extent(self) -> usize {
        let raw = BATCH_HEADER_BYTES + self.body_bytes as usize + BATCH_FOOTER_BYTES;
        raw.next_multiple_of(BATCH_ALIGN)
    }
}

/// Begins a batch at the end of `buffer`; its header is filled in by [`finish_batch`].
pub(crate) fn begin_batch(buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(&[0; BATCH_HEADER_BYTES]);
}

/// Adds a record to the batch being built.
pub(crate) fn push_record(buffer: &mut Vec<u8>, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(payload);
}

/// Seals the batch that begins at `start` of `buffer`.
pub(crate) fn finish_batch(buffer: &mut Vec<u8>, start: usize, records: u32, first_sequence: u64) {
    let body = buffer.len().saturating_sub(start + BATCH_HEADER_BYTES);
    let body_bytes = u32::try_from(body).unwrap_or(u32::MAX);
    let mut header = Vec::with_capacity(BATCH_HEADER_BYTES);
    header.extend_from_slice(&BATCH_MAGIC);
    header.extend_from_slice(&body_bytes.to_le_bytes());
    header.extend_from_slice(&records.to_le_bytes());
    header.extend_from_slice(&first_sequence.to_le_bytes());
    header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
    if let Some(place) = buffer.get_mut(start..start + BATCH_HEADER_BYTES) {
        place.copy_from_slice(&header);
    }
    let batch = BatchHeader { body_bytes, records, first_sequence };
    buffer.resize(start + batch.extent() - BATCH_FOOTER_BYTES, 0);
    let sealed = crc32c::crc32c(buffer.get(start..).unwrap_or_default());
    buffer.extend_from_slice(&sealed.to_le_bytes());
    buffer.extend_from_slice(&BATCH_TRAILER);
}
