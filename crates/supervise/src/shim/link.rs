//! The shim's end of the control socket.
//!
//! Never blocks. Reports wait in memory while the daemon does not read: a handful of fixed ones, and of
//! `OUTPUT` only the newest.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::protocol::{self, Encoder, tag};

/// The most bytes read before something else gets a turn.
const READ_BYTES: usize = 64 << 10;
/// At most one `OUTPUT` in this time, so that a chatty agent does not keep the daemon awake.
const OUTPUT_REPORT_MS: u64 = 5;

pub(super) struct Link {
    socket: UnixStream,
    /// Received, not yet a whole frame.
    input: Vec<u8>,
    /// Not yet sent.
    output: Vec<u8>,
    /// The newest end of the log that was not reported.
    end: Option<u64>,
    end_reported_at: Option<Instant>,
    /// The daemon is gone.
    pub(super) closed: bool,
}

impl Link {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            input: Vec::new(),
            output: Vec::new(),
            end: None,
            end_reported_at: None,
            closed: false,
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn wants_write(&self) -> bool {
        !self.closed && !self.output.is_empty()
    }

    /// Reads what is there.
    pub(super) fn receive(&mut self) {
        let mut buffer = [0; 4096];
        let mut taken = 0;
        while !self.closed && taken < READ_BYTES {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(len) => {
                    taken += len;
                    self.input.extend_from_slice(buffer.get(..len).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.closed = true,
            }
        }
    }

    /// The next whole frame. What is no frame is the end of the connection.
    pub(super) fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        match protocol::split(&self.input) {
            Ok(Some((kind, body, used))) => {
                let body = body.to_vec();
                self.input.drain(..used);
                if self.input.is_empty() {
                    self.input = Vec::new();
                }
                Some((kind, body))
            }
            Ok(None) => None,
            Err(_) => {
                self.closed = true;
                None
            }
        }
    }

    pub(super) fn report(&mut self, report: Encoder) {
        // The end of the log goes before whatever is reported after it.
        self.flush_end();
        if let Ok(frame) = report.finish() {
            self.output.extend_from_slice(&frame);
        }
        self.send();
    }

    /// Reports where the log ends, now or soon.
    pub(super) fn report_end(&mut self, end: u64) {
        self.end = Some(end);
        self.turn();
    }

    /// When [`Self::turn`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.end.is_none() || self.closed || !self.output.is_empty() {
            return None;
        }
        self.end_reported_at.map(|at| at + Duration::from_millis(OUTPUT_REPORT_MS))
    }

    /// Sends what can be sent and is due.
    pub(super) fn turn(&mut self) {
        self.send();
        if self.output.is_empty() && self.due().is_none_or(|due| due <= Instant::now()) {
            self.flush_end();
            self.send();
        }
    }

    fn flush_end(&mut self) {
        let Some(end) = self.end.take() else { return };
        let mut report = Encoder::new(protocol::OUTPUT);
        report.number(tag::END, end);
        if let Ok(frame) = report.finish() {
            self.output.extend_from_slice(&frame);
        }
        self.end_reported_at = Some(Instant::now());
    }

    fn send(&mut self) {
        while self.wants_write() {
            match self.socket.write(&self.output) {
                Ok(len) => {
                    self.output.drain(..len);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Reading notices that the daemon is gone.
                Err(_) => self.output.clear(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Fields;

    /// The daemon reads nothing for long: what waits for it stays small, and it gets the newest end.
    #[test]
    fn r_77_a_daemon_that_does_not_read_costs_no_memory_and_gets_the_newest() {
        const ENDS: u64 = 200_000;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut link = Link::new(ours);
        for end in 1..=ENDS {
            link.end_reported_at = None;
            link.report_end(end);
            assert!(link.output.len() < 1_024, "{} bytes wait", link.output.len());
        }
        let (mut received, mut newest) = (Vec::new(), 0);
        let mut buffer = [0; 4096];
        let began = Instant::now();
        while newest < ENDS && began.elapsed() < Duration::from_secs(10) {
            link.turn();
            let len = theirs.read(&mut buffer).unwrap_or(0);
            received.extend_from_slice(&buffer[..len]);
            while let Some((_, body, used)) = protocol::split(&received).unwrap() {
                let (_, end) = Fields::new(body).next().unwrap().unwrap();
                newest = protocol::number(end).unwrap();
                received.drain(..used);
            }
        }
        assert_eq!(newest, ENDS);
    }
}
