//! The disk's own rate: what any program gets that writes 512 bytes and flushes them, one after the other.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::report::Samples;

/// As large as a segment of the journal.
const FILE_BYTES: u64 = 8 * 1024 * 1024;
/// One write.
const WRITE_BYTES: u64 = 512;

/// A preallocated file whose every byte was written before, as the journal's segments are.
pub(crate) struct Probe {
    file: File,
    offset: u64,
}

impl Probe {
    pub(crate) fn new(dir: &Path) -> io::Result<Self> {
        let path = dir.join("probe");
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
        file.write_all_at(&vec![0; usize::try_from(FILE_BYTES).unwrap_or(0)], 0)?;
        file.sync_all()?;
        Ok(Self { file, offset: 0 })
    }

    /// One write and one fdatasync.
    pub(crate) fn once(&mut self) -> io::Result<Duration> {
        let bytes = [0x5a; WRITE_BYTES as usize];
        let begin = Instant::now();
        self.file.write_all_at(&bytes, self.offset)?;
        rustix::fs::fdatasync(&self.file)?;
        let took = begin.elapsed();
        self.offset = (self.offset + WRITE_BYTES) % FILE_BYTES;
        Ok(took)
    }

    /// As many as go into `time`.
    pub(crate) fn for_a_while(&mut self, time: Duration) -> io::Result<Samples> {
        let mut samples = Samples::default();
        let until = Instant::now() + time;
        while Instant::now() < until {
            samples.push(self.once()?);
        }
        Ok(samples)
    }
}
