//! Reads a run's output log, while it is written and long after.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use camino::{Utf8Path, Utf8PathBuf};

use super::format::{CHUNK_BYTES_MAX, HEADER_BYTES, Header, segment_name};
use super::{OUTPUT_DIR, open_read, segments};

/// Read ahead from the segment; a chunk with its header always fits.
const READ_BYTES: usize = CHUNK_BYTES_MAX + HEADER_BYTES;

/// Which of the agent's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// Bytes of one stream that were read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The logical offset of the first byte.
    pub offset: u64,
    /// Where the next item starts.
    pub next: u64,
    /// Which stream.
    pub stream: Stream,
    /// When it was read, in microseconds since the epoch.
    pub at_micros: i64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Bytes that are not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Where they would be.
    pub offset: u64,
    /// Where the next item starts.
    pub next: u64,
}

impl Gap {
    /// How many are missing.
    pub fn dropped_bytes(&self) -> u64 {
        self.next.saturating_sub(self.offset)
    }
}

/// What a reader finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Output.
    Chunk(Chunk),
    /// A hole.
    Gap(Gap),
}

/// A place in a run's output.
#[derive(Debug)]
pub struct OutputReader {
    dir: Utf8PathBuf,
    segment: Option<Segment>,
    /// The logical offset of what comes next.
    position: u64,
}

#[derive(Debug)]
struct Segment {
    start: u64,
    file: File,
    /// Where in the file the next header is.
    at: u64,
    /// A piece of the file, from `buffer_at`.
    buffer: Vec<u8>,
    buffer_at: u64,
}

impl OutputReader {
    /// Starts at the logical offset `from`, which may lie inside a chunk or a gap. A run without
    /// output so far is no error.
    pub fn open(dir: &Utf8Path, from: u64) -> io::Result<Self> {
        Ok(Self { dir: dir.to_owned(), segment: None, position: from })
    }

    /// The logical offset of what comes next.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next item; `None` when there is none so far. Reads at most one chunk.
    pub fn next_item(&mut self) -> io::Result<Option<Item>> {
        loop {
            if let Some(item) = self.next_in_segment()? {
                return Ok(Some(item));
            }
            // The writer never goes back to a segment: once a later one is there, this one is whole. It
            // is looked at once more, since it may have grown before the later one was made.
            let Some(start) = self.later_segment()? else {
                return Ok(None);
            };
            if let Some(item) = self.next_in_segment()? {
                return Ok(Some(item));
            }
            if !self.enter(start)? {
                return Ok(None);
            }
        }
    }

    /// The segment to go on with: at first the one that holds the position, else the next one.
    fn later_segment(&self) -> io::Result<Option<u64>> {
        let starts = match segments(&self.dir) {
            Ok(starts) => starts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(match &self.segment {
            Some(segment) => starts.into_iter().find(|start| *start > segment.start),
            None => {
                let holds = starts.iter().rev().find(|start| **start <= self.position);
                holds.or(starts.first()).copied()
            }
        })
    }

    /// False when it was dropped meanwhile.
    fn enter(&mut self, start: u64) -> io::Result<bool> {
        match Segment::open(&self.dir, start) {
            Ok(segment) => {
                self.segment = Some(segment);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn next_in_segment(&mut self) -> io::Result<Option<Item>> {
        let Some(segment) = &mut self.segment else {
            return Ok(None);
        };
        while let Some(header) = segment.header()? {
            let len = u64::from(header.len);
            let end = header.offset.saturating_add(len);
            let next_at = segment.at + HEADER_BYTES as u64 + len;
            if end <= self.position {
                // Skipped without reading it, but only when it is whole.
                if next_at > segment.file.metadata()?.len() {
                    return Ok(None);
                }
                segment.at = next_at;
                continue;
            }
            if header.offset > self.position {
                let gap = Gap { offset: self.position, next: header.offset };
                self.position = header.offset;
                return Ok(Some(Item::Gap(gap)));
            }
            let skip = self.position - header.offset;
            let Some(payload) =
                segment.bytes(segment.at + HEADER_BYTES as u64 + skip, len - skip)?
            else {
                return Ok(None);
            };
            let chunk = Chunk {
                offset: self.position,
                next: end,
                stream: header.stream,
                at_micros: header.at_micros,
                bytes: payload.to_vec(),
            };
            segment.at = next_at;
            self.position = end;
            return Ok(Some(Item::Chunk(chunk)));
        }
        Ok(None)
    }
}

/// The logical end of the segment that starts at `start`, as long as it is now: its writer may go on.
pub(super) fn segment_end(dir: &Utf8Path, start: u64) -> io::Result<u64> {
    let mut segment = Segment::open(dir, start)?;
    let bytes = segment.file.metadata()?.len();
    let mut end = start;
    while let Some(header) = segment.header()? {
        segment.at += HEADER_BYTES as u64 + u64::from(header.len);
        if segment.at > bytes {
            break;
        }
        end = header.offset.saturating_add(u64::from(header.len));
    }
    Ok(end)
}

impl Segment {
    fn open(dir: &Utf8Path, start: u64) -> io::Result<Self> {
        let file = open_read(&dir.join(OUTPUT_DIR).join(segment_name(start)))?;
        Ok(Self { start, file, at: 0, buffer: Vec::new(), buffer_at: 0 })
    }

    /// The header at the current place, when one is there.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let bytes = self.bytes(self.at, HEADER_BYTES as u64)?;
        Ok(bytes.and_then(|bytes| Header::decode(bytes.try_into().ok()?)))
    }

    /// `len` bytes (at most a chunk) at `at`; `None` when the file does not have them yet.
    fn bytes(&mut self, at: u64, len: u64) -> io::Result<Option<&[u8]>> {
        let wanted = at.checked_sub(self.buffer_at).and_then(|from| usize::try_from(from).ok());
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let have = wanted.is_some_and(|from| self.buffer.len().saturating_sub(from) >= len);
        if !have {
            self.buffer.resize(READ_BYTES, 0);
            let mut filled = 0;
            while let Some(rest) = self.buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match self.file.read_at(rest, at + filled as u64) {
                    Ok(0) => break,
                    Ok(more) => filled += more,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            self.buffer.truncate(filled);
            self.buffer_at = at;
        }
        let from = usize::try_from(at - self.buffer_at).unwrap_or(usize::MAX);
        Ok(self.buffer.get(from..from.saturating_add(len)))
    }
}
