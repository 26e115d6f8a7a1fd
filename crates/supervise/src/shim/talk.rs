//! What the shim hears before the run and says at its ends.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::launch::error;
use super::link::Link;
use super::log::Directory;
use super::pipes::now_micros;
use crate::protocol::{self, Encoder, SpawnErrorKind, tag};
use crate::rundir::{ExitRecord, LAYOUT_VERSION, SpawnErrorRecord};
use crate::spec::RunSpec;

/// How long the last report waits for a daemon that does not read; `exit.json` has it too.
const LAST_REPORT_MS: u64 = 60_000;

pub(super) fn receive_spec(link: &mut Link) -> io::Result<Option<RunSpec>> {
    let Some((kind, body)) = next_frame(link)? else {
        return Ok(None);
    };
    let version = if kind == protocol::PREPARE { protocol::version(&body) } else { Ok(0) };
    let spec = match version {
        Ok(protocol::VERSION) => RunSpec::decode(&body).map_err(|cause| cause.to_string()),
        Ok(other) => Err(format!(
            "the daemon speaks version {other} of the shim protocol, this shim version {}",
            protocol::VERSION
        )),
        Err(cause) => Err(cause.to_string()),
    };
    match spec {
        Ok(spec) => Ok(Some(spec)),
        Err(why) => spawn_failed(link, None, error(SpawnErrorKind::Protocol, why)).map(|()| None),
    }
}

/// Waits for a frame that means something here; `None` when the daemon is gone.
pub(super) fn next_frame(link: &mut Link) -> io::Result<Option<(u8, Vec<u8>)>> {
    loop {
        while let Some((kind, body)) = link.frame() {
            if matches!(kind, protocol::PREPARE | protocol::START | protocol::STOP) {
                return Ok(Some((kind, body)));
            }
        }
        if link.closed {
            return Ok(None);
        }
        let fd = link.fd();
        wait(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
        link.receive();
    }
}

pub(super) fn wait(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
    // Rounded up, or a wait of less than the clock's grain would spin.
    let timeout =
        timeout.and_then(|timeout| Timespec::try_from(timeout + Duration::from_micros(1)).ok());
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn record() -> ExitRecord {
    ExitRecord { version: LAYOUT_VERSION, ended_at_micros: now_micros(), ..ExitRecord::default() }
}

/// Makes `record` durable; when that fails the record says so.
pub(super) fn write_exit(directory: &Directory, mut record: ExitRecord) -> ExitRecord {
    let written = serde_json::to_vec(&record)
        .map_err(io::Error::from)
        .and_then(|json| directory.write_exit(&json));
    if let Err(error) = written {
        record.write_error.get_or_insert_with(|| format!("exit.json: {error}"));
    }
    record
}

pub(super) fn exit_report(kind: u8, record: &ExitRecord) -> io::Result<Encoder> {
    let mut report = Encoder::new(kind);
    report.bytes(tag::EXIT_JSON, &serde_json::to_vec(record)?);
    Ok(report)
}

pub(super) fn report_last(link: &mut Link, kind: u8, record: &ExitRecord) -> io::Result<()> {
    link.report(exit_report(kind, record)?);
    flush(link)
}

pub(super) fn spawn_failed(
    link: &mut Link,
    directory: Option<&Directory>,
    why: SpawnErrorRecord,
) -> io::Result<()> {
    let mut report = Encoder::new(protocol::SPAWN_FAILED);
    report.bytes(tag::KIND, why.kind.as_bytes());
    report.bytes(tag::MESSAGE, why.message.as_bytes());
    if let Some(directory) = directory {
        write_exit(directory, ExitRecord { spawn_error: Some(why), empty: true, ..record() });
    }
    link.report(report);
    flush(link)
}

/// Waits until the last report is with the kernel.
fn flush(link: &mut Link) -> io::Result<()> {
    let until = Instant::now() + Duration::from_millis(LAST_REPORT_MS);
    while link.wants_write() && Instant::now() < until {
        let fd = link.fd();
        wait(&mut [PollFd::new(&fd, PollFlags::IN | PollFlags::OUT)], Some(until))?;
        link.receive();
        link.turn();
    }
    Ok(())
}
