//! The daemon's side of a shim.
//!
//! Needs a tokio runtime with IO and time. Dropping a [`Shim`] closes its control socket, which tells
//! the shim to end the run (an [`IdleShim`]: to go); the shim is reaped by the runtime.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use ostler_core::outcome::{Exit, Killed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use crate::cgroup::Cgroup;
use crate::procfs::Identity;
use crate::protocol::{self, Encoder, Fields, SpawnErrorKind, StopOrder, tag};
use crate::rundir::ExitRecord;
use crate::spec::RunSpec;
use crate::{MARKER_ENV, SHIM_ARG};

/// How long a shim may take to accept an order.
const ORDER_MS_MAX: u64 = 10_000;
/// Read ahead from the socket.
const READ_BYTES: usize = 16 << 10;

/// A shim that has no run yet. It waits without waking, and goes when this is dropped.
#[derive(Debug)]
pub struct IdleShim {
    marker: String,
    child: Child,
    socket: std::os::unix::net::UnixStream,
    identity: Identity,
}

/// A shim with a run, and the socket to it.
#[derive(Debug)]
pub struct Shim {
    marker: String,
    child: Child,
    socket: UnixStream,
    identity: Identity,
    input: Vec<u8>,
}

/// How a run ended: the facts of its `exit.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How the leader ended.
    pub exit: Option<Exit>,
    /// When it was executed, in microseconds since the epoch.
    pub started_at_micros: Option<i64>,
    /// When nothing was left, in microseconds since the epoch.
    pub ended_at_micros: i64,
    /// What had to be killed, the first of them.
    pub killed: Vec<Killed>,
    /// What the keep-list let live.
    pub kept: Vec<Killed>,
    /// What the agent wrote on both streams.
    pub output_bytes: u64,
    /// The logical end of the output log.
    pub output_end: u64,
    /// Some of the output is not kept.
    pub truncated: bool,
    /// One stream was longer than the run was allowed.
    pub overflow: bool,
    /// A stop was ordered before the leader exited.
    pub stopped: bool,
    /// The shim ended it since the daemon was gone.
    pub daemon_gone: bool,
    /// The first failure to write into the run directory.
    pub write_error: Option<String>,
}

impl From<ExitRecord> for Ended {
    fn from(record: ExitRecord) -> Self {
        Self {
            exit: record.exit(),
            started_at_micros: record.started_at_micros,
            ended_at_micros: record.ended_at_micros,
            killed: record.killed.into_iter().map(Killed::from).collect(),
            kept: record.kept.into_iter().map(Killed::from).collect(),
            output_bytes: record.output_bytes,
            output_end: record.output_end,
            truncated: record.truncated,
            overflow: record.overflow,
            stopped: record.stopped,
            daemon_gone: record.daemon_gone,
            write_error: record.write_error,
        }
    }
}

/// What a shim says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The agent was executed.
    Started {
        /// Its number.
        pid: u32,
        /// When it started, in clock ticks since boot.
        start_time: u64,
        /// When that was, in microseconds since the epoch.
        at_micros: i64,
    },
    /// It could not be executed; final.
    SpawnFailed {
        /// Why.
        kind: SpawnErrorKind,
        /// One line for a person.
        message: String,
    },
    /// The output log now ends there; older such reports are left out.
    Output {
        /// Logical offset.
        end: u64,
    },
    /// The leader exited; others may be left.
    LeaderExited(Exit),
    /// Nothing is left; final.
    Ended(Ended),
    /// Something could not be killed. The shim stays and goes on killing.
    KillFailed {
        /// What is left, the first of them.
        remaining: Vec<Killed>,
        /// Everything else, as of now.
        ended: Ended,
    },
    /// After [`Self::KillFailed`]: now nothing is left; final.
    Empty(Ended),
    /// The shim is gone and had not said the last word: its tree may live. Final.
    Lost,
}

impl IdleShim {
    /// Starts the shim `exe __shim`. Nothing runs for it yet: meant to be done ahead, or while the intent to
    /// run is made durable. Must be called inside a runtime.
    pub fn spawn(exe: &Path, marker: &str) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        // The shim gets no environment: secrets of the daemon have no business there.
        let child = Command::new(exe)
            .arg(SHIM_ARG)
            .env_clear()
            .env(MARKER_ENV, marker)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let gone = || io::Error::new(io::ErrorKind::NotFound, "the shim is gone");
        let identity = Identity::of(child.id().ok_or_else(gone)?)?;
        Ok(Self { marker: marker.to_owned(), child, socket: ours, identity })
    }

    /// The shim as a process.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The marker that the shim and all of its run carry.
    pub fn marker(&self) -> &str {
        &self.marker
    }

    /// Whether it still waits: somebody may have killed it.
    pub fn is_alive(&mut self) -> bool {
        let alive = matches!(self.child.try_wait(), Ok(None));
        if !alive {
            Cgroup::remove_left(&self.marker);
        }
        alive
    }

    /// Tells the shim what to run; it prepares everything and waits for [`Shim::start`]. Blocks, for 10
    /// seconds at most, when the order is larger than the socket's buffer and the shim does not read. Must be
    /// called inside a runtime.
    pub fn prepare(mut self, spec: &RunSpec) -> io::Result<Shim> {
        self.socket.set_write_timeout(Some(Duration::from_millis(ORDER_MS_MAX)))?;
        self.socket.write_all(&spec.encode()?)?;
        self.socket.set_nonblocking(true)?;
        let Self { marker, child, socket, identity } = self;
        let socket = UnixStream::from_std(socket)?;
        Ok(Shim { marker, child, socket, identity, input: Vec::new() })
    }
}

impl Shim {
    /// The shim as a process.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The intent is durable: execute the agent now.
    pub async fn start(&mut self) -> io::Result<()> {
        self.send(&Encoder::new(protocol::START).finish()?).await
    }

    /// Stops the run. Orders may be repeated and made stronger; the last report says how it ended.
    pub async fn stop(&mut self, order: StopOrder) -> io::Result<()> {
        self.send(&order.encode()?).await
    }

    async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let patience = Duration::from_millis(ORDER_MS_MAX);
        tokio::time::timeout(patience, self.socket.write_all(frame))
            .await
            .map_err(io::Error::from)?
    }

    /// The next report. May be dropped and called again without losing one. After a final report it
    /// is [`Report::Lost`] or never returns.
    pub async fn report(&mut self) -> Report {
        loop {
            match self.buffered() {
                Ok(Some(report)) => return report,
                Ok(None) => {}
                Err(_) => return Report::Lost,
            }
            self.input.reserve(READ_BYTES);
            match self.socket.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return Report::Lost,
                Ok(_) => {}
            }
        }
    }

    /// The first report that was received; of several `Output` in a row, the last.
    fn buffered(&mut self) -> io::Result<Option<Report>> {
        let mut newest = None;
        while let Some((kind, body, used)) = protocol::split(&self.input)? {
            if newest.is_some() && kind != protocol::OUTPUT {
                break;
            }
            let report = decode(kind, body)?;
            self.input.drain(..used);
            match report {
                Some(report @ Report::Output { .. }) => newest = Some(report),
                Some(report) => return Ok(Some(report)),
                None => {}
            }
        }
        Ok(newest)
    }

    /// Waits until the shim process itself has gone, and removes the cgroup it was in.
    pub async fn wait(&mut self) -> io::Result<()> {
        self.child.wait().await?;
        Cgroup::remove_left(&self.marker);
        Ok(())
    }
}

/// `None` for a kind this daemon does not know.
pub(crate) fn decode(kind: u8, body: &[u8]) -> io::Result<Option<Report>> {
    let (mut pid, mut start_time, mut at_micros, mut end) = (0, 0, 0, 0);
    let (mut error_kind, mut message, mut exit, mut record) =
        (SpawnErrorKind::Other, String::new(), None, None);
    for field in Fields::new(body) {
        let (tag, bytes) = field?;
        let small =
            || protocol::number(bytes).map(|number| i32::try_from(number).unwrap_or(i32::MAX));
        match tag {
            tag::PID => pid = u32::try_from(protocol::number(bytes)?).unwrap_or(0),
            tag::START_TIME => start_time = protocol::number(bytes)?,
            tag::AT_MICROS => at_micros = i64::try_from(protocol::number(bytes)?).unwrap_or(0),
            tag::KIND => error_kind = SpawnErrorKind::parse(protocol::text(bytes)?),
            tag::MESSAGE => message = String::from_utf8_lossy(bytes).into_owned(),
            tag::END => end = protocol::number(bytes)?,
            tag::EXIT_CODE => exit = Some(Exit::Code(small()?)),
            tag::EXIT_SIGNAL => exit = Some(Exit::Signal(small()?)),
            tag::EXIT_JSON => record = Some(serde_json::from_slice::<ExitRecord>(bytes)?),
            _ => {}
        }
    }
    let record = || record.ok_or_else(|| protocol::malformed("no record"));
    Ok(Some(match kind {
        protocol::STARTED => Report::Started { pid, start_time, at_micros },
        protocol::SPAWN_FAILED => Report::SpawnFailed { kind: error_kind, message },
        protocol::OUTPUT => Report::Output { end },
        protocol::LEADER_EXITED => {
            Report::LeaderExited(exit.ok_or_else(|| protocol::malformed("no exit status"))?)
        }
        protocol::ENDED => Report::Ended(record()?.into()),
        protocol::KILL_FAILED => {
            let record = record()?;
            let remaining = record.remaining.iter().cloned().map(Killed::from).collect();
            Report::KillFailed { remaining, ended: record.into() }
        }
        protocol::EMPTY => Report::Empty(record()?.into()),
        _ => return Ok(None),
    }))
}
