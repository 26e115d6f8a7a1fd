//! Frames: four bytes of big-endian length, then that many bytes of JSON.
//!
//! Owns the arithmetic and the bound. Deliberately absent: deadlines and async reading, which belong to
//! whoever owns the socket; what the bytes mean.

use std::io::{self, Read, Write};

use serde::Serialize;

/// The largest frame body in either direction, in bytes, unless configured otherwise.
pub const FRAME_BYTES_MAX: usize = 1_048_576;
/// The smallest maximum that may be configured, in bytes: below it a chunk has no room for data.
pub const FRAME_BYTES_MIN: usize = 1_024;
/// Bytes of the length in front of each body.
pub const HEADER_BYTES: usize = 4;

/// A length that no frame may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Length 0.
    #[error("the frame is empty")]
    Empty,
    /// More than the maximum.
    #[error("the frame has {bytes} bytes, more than {max}")]
    TooLarge {
        /// The announced or actual length.
        bytes: usize,
        /// The maximum in force.
        max: usize,
    },
    /// The value has no JSON form (a map with keys that are no strings, or a failing `Serialize`).
    #[error("the value cannot be written as JSON")]
    NotJson,
}

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The announced length is not allowed; nothing of the body was read.
    #[error("the peer announced a bad frame")]
    Frame(#[from] FrameError),
    /// The stream ended inside a frame.
    #[error("the connection ended inside a frame")]
    Truncated,
    /// Reading failed, a timeout of the socket included.
    #[error("reading a frame failed")]
    Io(#[from] io::Error),
}

/// The body length that `header` announces.
///
/// # Errors
/// 0, or more than `max`: the connection must end before the body is read or memory for it is taken.
pub fn frame_len(header: [u8; HEADER_BYTES], max: usize) -> Result<usize, FrameError> {
    // A length that does not fit `usize` is beyond any `max` too.
    check_len(usize::try_from(u32::from_be_bytes(header)).unwrap_or(usize::MAX), max)
}

/// The frame with this body.
///
/// # Errors
/// An empty body, or one above `max` bytes.
pub fn encode(json: &[u8], max: usize) -> Result<Vec<u8>, FrameError> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + json.len());
    append(&mut frame, max, |out| {
        out.extend_from_slice(json);
        Ok(())
    })?;
    Ok(frame)
}

/// Appends the frame of `value` to `out`.
///
/// # Errors
/// A body above `max` bytes, or a value that has no JSON form; `out` is then as it was.
pub fn encode_into(
    out: &mut Vec<u8>,
    value: &impl Serialize,
    max: usize,
) -> Result<(), FrameError> {
    append(out, max, |out| serde_json::to_writer(out, value).map_err(|_| FrameError::NotJson))
}

/// Appends a frame whose body `write` appends; puts `out` back when that is not a good frame.
pub(crate) fn append(
    out: &mut Vec<u8>,
    max: usize,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), FrameError>,
) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let body = start + HEADER_BYTES;
    let header = write(out).and_then(|()| {
        let bytes = check_len(out.len() - body, max)?;
        u32::try_from(bytes).map_err(|_| FrameError::TooLarge { bytes, max })
    });
    match (header, out.get_mut(start..body)) {
        (Ok(header), Some(place)) => {
            place.copy_from_slice(&header.to_be_bytes());
            Ok(())
        }
        (header, _) => {
            out.truncate(start);
            Err(header.err().unwrap_or(FrameError::Empty))
        }
    }
}

const fn check_len(bytes: usize, max: usize) -> Result<usize, FrameError> {
    if bytes == 0 {
        Err(FrameError::Empty)
    } else if bytes > max {
        Err(FrameError::TooLarge { bytes, max })
    } else {
        Ok(bytes)
    }
}

/// Reads one frame's body; `None` when the stream ends cleanly before one. Blocks.
///
/// Memory grows with what arrives, not with what was announced.
///
/// # Errors
/// A bad length, a stream that ends inside the frame, or a failed read. The stream is then of no use.
pub fn read_frame(from: &mut impl Read, max: usize) -> Result<Option<Vec<u8>>, ReadError> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    from.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header)?;
    if header.is_empty() {
        return Ok(None);
    }
    let header = header.try_into().map_err(|_| ReadError::Truncated)?;
    let bytes = frame_len(header, max)?;
    let mut body = Vec::new();
    from.by_ref().take(bytes as u64).read_to_end(&mut body)?;
    if body.len() == bytes { Ok(Some(body)) } else { Err(ReadError::Truncated) }
}

/// Writes `json` as one frame, in one `write_all`, and flushes. Blocks.
///
/// # Errors
/// A bad length is [`io::ErrorKind::InvalidInput`], with the [`FrameError`] as its source and nothing
/// written; else the stream's own error.
pub fn write_frame(to: &mut impl Write, json: &[u8], max: usize) -> io::Result<()> {
    let frame =
        encode(json, max).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    to.write_all(&frame)?;
    to.flush()
}
