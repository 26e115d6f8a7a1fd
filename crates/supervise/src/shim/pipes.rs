//! The agent's two pipes: read always, whatever becomes of the bytes.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::log::Log;
use super::scrub::{Scrubber, Secrets};
use crate::rundir::Stream;

/// Read with one call.
const READ_BYTES: usize = 64 << 10;
/// The most reads of one pipe before something else gets a turn.
const READS_MAX: usize = 16;

/// One of the agent's streams.
pub(super) struct Pipe {
    file: std::fs::File,
    stream: Stream,
    scrubber: Scrubber,
    /// What the agent wrote.
    pub(super) bytes: u64,
    /// Its end was seen.
    pub(super) closed: bool,
}

impl Pipe {
    pub(super) fn new(fd: OwnedFd, stream: Stream, secrets: Rc<Secrets>) -> Self {
        Self { file: fd.into(), stream, scrubber: Scrubber::new(secrets), bytes: 0, closed: false }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reads what is there, within bounds, into the log. False when there may be more.
    pub(super) fn drain(&mut self, buffer: &mut [u8], log: &mut Log) -> bool {
        for _ in 0..READS_MAX {
            if self.closed {
                return true;
            }
            match self.file.read(buffer) {
                Ok(0) => self.closed = true,
                Ok(len) => {
                    self.bytes += len as u64;
                    let (stream, at) = (self.stream, now_micros());
                    let bytes = buffer.get(..len).unwrap_or_default();
                    self.scrubber.push(bytes, &mut |clean| log.append(stream, clean, at));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => self.closed = true,
            }
        }
        false
    }

    /// Nothing comes any more: gives out what was held back.
    pub(super) fn finish(&mut self, log: &mut Log) {
        let (stream, at) = (self.stream, now_micros());
        self.scrubber.finish(&mut |clean| log.append(stream, clean, at));
    }
}

pub(super) fn buffer() -> Box<[u8]> {
    vec![0; READ_BYTES].into_boxed_slice()
}

/// The wall clock in microseconds since the epoch.
pub(super) fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
