//! Documents larger than a frame: cut into base64 slices, and joined again.
//!
//! Owns the size of a slice and the bound of what a client assembles. The encoders append to a buffer and
//! keep no state, so that a slow client costs an index, not a copy.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::frame::{self, FrameError};

/// The largest document a client puts together, in bytes: the bound of a snapshot.
pub const DOCUMENT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What a chunk's frame holds besides its data, at most: names, quotes and three numbers of 20 digits.
const ENVELOPE_BYTES_MAX: usize = 192;

/// Which document a chunk belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkKind {
    /// A [`Snapshot`](super::Snapshot).
    Snapshot,
    /// An [`Event`](super::Event).
    Event,
}

/// Bytes of the document in each slice but the last, for frames of `max` bytes.
const fn slice_bytes(max: usize) -> usize {
    let groups = max.saturating_sub(ENVELOPE_BYTES_MAX) / 4;
    if groups == 0 { 3 } else { groups * 3 }
}

/// How many chunks a document of `bytes` takes with frames of `max` bytes; at least one.
pub const fn chunk_count(bytes: usize, max: usize) -> usize {
    let count = bytes.div_ceil(slice_bytes(max));
    if count == 0 { 1 } else { count }
}

/// Appends the frame of one chunk of `document` to `out`; `index` counts from 0 to [`chunk_count`].
///
/// # Errors
/// `max` below [`FRAME_BYTES_MIN`](super::FRAME_BYTES_MIN), or an `index` past the end
/// ([`FrameError::Empty`]); `out` is then as it was.
pub fn encode_chunk(
    out: &mut Vec<u8>,
    kind: ChunkKind,
    sequence: u64,
    document: &[u8],
    index: usize,
    max: usize,
) -> Result<(), FrameError> {
    let (name, field) = match kind {
        ChunkKind::Snapshot => ("snapshot_chunk", "snapshot_data"),
        ChunkKind::Event => ("event_chunk", "event_data"),
    };
    let slice = document.chunks(slice_bytes(max)).nth(index).ok_or(FrameError::Empty)?;
    let count = chunk_count(document.len(), max);
    frame::append(out, max, |out| {
        write!(
            out,
            r#"{{"type":"{name}","sequence":{sequence},"chunk_index":{index},"chunk_count":{count},"{field}":""#
        )
        .map_err(|_| FrameError::NotJson)?;
        let start = out.len();
        out.resize(start + slice.len().div_ceil(3) * 4, 0);
        STANDARD
            .encode_slice(slice, out.get_mut(start..).unwrap_or_default())
            .map_err(|_| FrameError::NotJson)?;
        out.extend_from_slice(b"\"}");
        Ok(())
    })
}

/// Appends an event to `out`: one `event` frame, or `event_chunk` frames when that would pass `max`.
///
/// `payload` is the payload's JSON text, copied as it is and **not** checked; no value is built. This is
/// the way for a busy feed.
///
/// # Errors
/// `max` below [`FRAME_BYTES_MIN`](super::FRAME_BYTES_MIN); `out` is then as it was.
pub fn encode_event(
    out: &mut Vec<u8>,
    sequence: u64,
    event_type: &str,
    payload: &str,
    max: usize,
) -> Result<(), FrameError> {
    let start = out.len();
    let whole = frame::append(out, max, |out| {
        out.extend_from_slice(br#"{"type":"event","event":"#);
        event_document(out, sequence, event_type, payload)?;
        out.push(b'}');
        Ok(())
    });
    if !matches!(whole, Err(FrameError::TooLarge { .. })) {
        return whole;
    }
    let mut document = Vec::with_capacity(payload.len() + ENVELOPE_BYTES_MAX);
    event_document(&mut document, sequence, event_type, payload)?;
    for index in 0..chunk_count(document.len(), max) {
        let chunk = encode_chunk(out, ChunkKind::Event, sequence, &document, index, max);
        if chunk.is_err() {
            out.truncate(start);
            return chunk;
        }
    }
    Ok(())
}

fn event_document(
    out: &mut Vec<u8>,
    sequence: u64,
    event_type: &str,
    payload: &str,
) -> Result<(), FrameError> {
    write!(out, r#"{{"sequenceNumber":{sequence},"eventType":"#)
        .map_err(|_| FrameError::NotJson)?;
    serde_json::to_writer(&mut *out, event_type).map_err(|_| FrameError::NotJson)?;
    out.extend_from_slice(br#","payload":"#);
    out.extend_from_slice(payload.as_bytes());
    out.push(b'}');
    Ok(())
}

/// Why chunks do not make a document. The connection is then of no use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// A chunk that does not go on where the last one stopped: other kind, sequence, count or index.
    #[error("chunk {index} of {count} does not follow what came before")]
    OutOfOrder {
        /// The chunk's index.
        index: u64,
        /// The chunk's count.
        count: u64,
    },
    /// The slice is not base64.
    #[error("a chunk's data is not base64")]
    NotBase64,
    /// The document passes the bound.
    #[error("the document has more than {max} bytes")]
    TooLarge {
        /// The bound in force.
        max: usize,
    },
}

/// Joins chunks, in order, into one document of bounded size. Other messages may come in between.
#[derive(Debug)]
pub struct Assembler {
    max: usize,
    /// Kind, sequence, count and next index of the document under way.
    open: Option<(ChunkKind, u64, u64, u64)>,
    document: Vec<u8>,
}

impl Default for Assembler {
    fn default() -> Self {
        Self::new(DOCUMENT_BYTES_MAX)
    }
}

impl Assembler {
    /// Takes documents of at most `max` bytes.
    pub const fn new(max: usize) -> Self {
        Self { max, open: None, document: Vec::new() }
    }

    /// Whether a document is under way.
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes one chunk; the last one gives the document.
    ///
    /// # Errors
    /// See [`AssembleError`]; what was under way is forgotten.
    pub fn push(
        &mut self,
        kind: ChunkKind,
        sequence: u64,
        index: u64,
        count: u64,
        data: &str,
    ) -> Result<Option<Vec<u8>>, AssembleError> {
        let expected = self.open.take().unwrap_or((kind, sequence, count, 0));
        if expected.3 == 0 {
            self.document = Vec::new();
        }
        if expected != (kind, sequence, count, index) || index >= count {
            self.document = Vec::new();
            return Err(AssembleError::OutOfOrder { index, count });
        }
        // Before decoding, so that memory stays bounded; padding counts for at most two bytes.
        if self.document.len() + data.len() / 4 * 3 > self.max.saturating_add(2) {
            return Err(self.too_large());
        }
        if STANDARD.decode_vec(data, &mut self.document).is_err() {
            self.document = Vec::new();
            return Err(AssembleError::NotBase64);
        }
        if self.document.len() > self.max {
            return Err(self.too_large());
        }
        if index + 1 == count {
            return Ok(Some(std::mem::take(&mut self.document)));
        }
        self.open = Some((kind, sequence, count, index + 1));
        Ok(None)
    }

    fn too_large(&mut self) -> AssembleError {
        self.document = Vec::new();
        AssembleError::TooLarge { max: self.max }
    }
}
