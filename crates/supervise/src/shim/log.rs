//! Writes the output log and the records of a run directory.
//!
//! Everything is opened below the descriptor of the run directory and never through a link. A
//! failed write never stops the run: the bytes are counted as dropped, which the reader sees as a gap,
//! and the next write is tried after [`RETRY_MS`].

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use serde::Serialize;

use crate::rundir::format::{CHUNK_BYTES_MAX, HEADER_BYTES, Header, segment_name};
use crate::rundir::{EXIT_JSON, EXIT_TMP, OUTPUT_DIR, RUN_JSON, SHIM_JSON, Stream};
use crate::spec::KeptBytes;

/// The size of a segment, when what is kept is not smaller.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
const SEGMENT_BYTES_MIN: u64 = 4 << 10;
/// How long nothing is written after a write failed.
const RETRY_MS: u64 = 1_000;
/// Space kept for `exit.json` while the run lasts, so that a full disk does not hide how it ended.
const EXIT_BYTES_RESERVED: u64 = 32 << 10;

const CREATE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const OPEN_DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// The run directory, held open.
pub(super) struct Directory {
    dir: OwnedFd,
}

impl Directory {
    pub(super) fn open(path: &Utf8Path) -> io::Result<Self> {
        Ok(Self { dir: rustix::fs::open(path.as_std_path(), OPEN_DIR, Mode::empty())? })
    }

    /// Writes a new file; not durable by itself.
    pub(super) fn write_new(&self, name: &str, record: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_vec(record)?;
        let mut file = File::from(rustix::fs::openat(&self.dir, name, CREATE, OWNER_ONLY)?);
        file.write_all(&json)
    }

    /// Keeps space for `exit.json`. Where the file system cannot, it is left out; a full disk is an
    /// error.
    pub(super) fn reserve_exit(&self) -> io::Result<()> {
        let file = rustix::fs::openat(&self.dir, EXIT_TMP, CREATE, OWNER_ONLY)?;
        match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, EXIT_BYTES_RESERVED) {
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            _ => Ok(()),
        }
    }

    /// Replaces `exit.json`, durably, with everything beside it.
    pub(super) fn write_exit(&self, json: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.dir, EXIT_TMP, flags, OWNER_ONLY)?);
        file.write_all(json)?;
        // A shorter record than the one before must not keep its end.
        file.set_len(json.len() as u64)?;
        file.sync_data()?;
        for beside in [RUN_JSON, SHIM_JSON] {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            match rustix::fs::openat(&self.dir, beside, flags, Mode::empty()) {
                Ok(file) => rustix::fs::fdatasync(&file)?,
                Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        rustix::fs::renameat(&self.dir, EXIT_TMP, &self.dir, EXIT_JSON)?;
        rustix::fs::fsync(&self.dir)?;
        let parent = rustix::fs::openat(&self.dir, "..", OPEN_DIR, Mode::empty())?;
        Ok(rustix::fs::fsync(&parent)?)
    }
}

struct Segment {
    start: u64,
    bytes: u64,
    synced: bool,
}

/// The log of one run.
pub(super) struct Log {
    dir: OwnedFd,
    kept: KeptBytes,
    segment_bytes: u64,
    /// Oldest first; the last one is written.
    segments: VecDeque<Segment>,
    file: Option<File>,
    /// Bytes on disk, framing included.
    total: u64,
    end: u64,
    pub(super) truncated: bool,
    pub(super) write_error: Option<String>,
    retry_at: Option<Instant>,
}

impl Log {
    pub(super) fn create(run: &Directory, kept: KeptBytes) -> io::Result<Self> {
        rustix::fs::mkdirat(&run.dir, OUTPUT_DIR, Mode::RWXU)?;
        let dir = rustix::fs::openat(&run.dir, OUTPUT_DIR, OPEN_DIR, Mode::empty())?;
        // At least four segments on either side of the gap, so that dropping one drops little.
        let segment_bytes = kept.head.min(kept.total.saturating_sub(kept.head)) / 4;
        let mut log = Self {
            dir,
            kept,
            segment_bytes: segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
            segments: VecDeque::new(),
            file: None,
            total: 0,
            end: 0,
            truncated: false,
            write_error: None,
            retry_at: None,
        };
        log.open_segment()?;
        Ok(log)
    }

    /// The logical end.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Takes output; never fails, see above.
    pub(super) fn append(&mut self, stream: Stream, bytes: &[u8], at_micros: i64) {
        for payload in bytes.chunks(CHUNK_BYTES_MAX) {
            let waits = self.retry_at.is_some_and(|at| Instant::now() < at);
            let written =
                if waits { None } else { Some(self.write_chunk(stream, payload, at_micros)) };
            match written {
                Some(Ok(())) => self.retry_at = None,
                None => self.truncated = true,
                Some(Err(error)) => {
                    self.truncated = true;
                    self.retry_at = Some(Instant::now() + Duration::from_millis(RETRY_MS));
                    self.write_error.get_or_insert_with(|| format!("output: {error}"));
                }
            }
            self.end += payload.len() as u64;
        }
    }

    fn write_chunk(&mut self, stream: Stream, payload: &[u8], at_micros: i64) -> io::Result<()> {
        let size = (HEADER_BYTES + payload.len()) as u64;
        let full =
            self.segments.back().is_none_or(|segment| segment.bytes + size > self.segment_bytes);
        if self.file.is_none()
            || (full && self.segments.back().is_some_and(|segment| segment.bytes > 0))
        {
            self.open_segment()?;
        }
        self.drop_middle(size);
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let header = Header { stream, len, at_micros, offset: self.end }.encode();
        let Some(file) = &mut self.file else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        let written = write_both(file, &header, payload);
        let bytes = match &written {
            Ok(()) => size,
            Err((bytes, _)) => *bytes,
        };
        self.total += bytes;
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += bytes;
            segment.synced = false;
        }
        written.map_err(|(bytes, error)| {
            // A torn chunk ends its segment: a reader then takes the next one for what follows.
            if bytes > 0 {
                self.file = None;
            }
            error
        })
    }

    fn open_segment(&mut self) -> io::Result<()> {
        let file = rustix::fs::openat(&self.dir, segment_name(self.end), CREATE, OWNER_ONLY)?;
        self.file = Some(File::from(file));
        self.segments.push_back(Segment { start: self.end, bytes: 0, synced: false });
        Ok(())
    }

    /// Makes room by removing the oldest segments that do not belong to the head.
    fn drop_middle(&mut self, size: u64) {
        while self.total + size > self.kept.total {
            let newest = self.segments.len().saturating_sub(1);
            let oldest = self.segments.iter().position(|segment| segment.start >= self.kept.head);
            let Some(index) = oldest.filter(|index| *index < newest) else {
                return;
            };
            let Some(segment) = self.segments.remove(index) else {
                return;
            };
            let name = segment_name(segment.start);
            if let Err(error) = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
                self.write_error.get_or_insert_with(|| format!("output: {error}"));
            }
            self.total = self.total.saturating_sub(segment.bytes);
            self.truncated = true;
        }
    }

    /// Everything appended so far is durable afterwards, or [`Self::write_error`] says why not.
    pub(super) fn sync(&mut self) {
        let result =
            self.segments.iter_mut().filter(|segment| !segment.synced).try_for_each(|segment| {
                let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(
                    &self.dir,
                    segment_name(segment.start),
                    flags,
                    Mode::empty(),
                )?;
                rustix::fs::fdatasync(&file)?;
                segment.synced = true;
                Ok(())
            });
        let result = result.and_then(|()| rustix::fs::fsync(&self.dir));
        if let Err(error) = result {
            self.write_error.get_or_insert_with(|| format!("output: {error}"));
        }
    }
}

/// Writes header and payload with one call where the kernel takes both; an error comes with the
/// number of bytes that were written before it.
fn write_both(file: &mut File, header: &[u8], payload: &[u8]) -> Result<(), (u64, io::Error)> {
    let size = header.len() + payload.len();
    let mut done = 0;
    while done < size {
        let parts = [
            IoSlice::new(header.get(done..).unwrap_or_default()),
            IoSlice::new(payload.get(done.saturating_sub(header.len())..).unwrap_or_default()),
        ];
        match file.write_vectored(&parts) {
            Ok(0) => return Err((done as u64, io::Error::from(io::ErrorKind::WriteZero))),
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((done as u64, error)),
        }
    }
    Ok(())
}
