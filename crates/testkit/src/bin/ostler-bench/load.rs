//! The load generator: one thread, many connections, each with so many submissions on their way, and
//! each reading every event.
//!
//! What it checks on the way: on every connection the sequences follow one another without a gap, so
//! everybody saw everything. What it holds itself to: no more unfinished tasks than the daemon may hold, so
//! that a figure is what a daemon sustains and not what it can queue.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Fault;
use crate::report::Samples;
use crate::scan::{Frame, Scanner};
use crate::wire;

/// Bytes read from a socket at once.
const READ_BYTES: usize = 256 * 1024;
/// How long everything that was submitted may take to be over.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How long a wait for a socket may last.
const POLL_MS: i64 = 100;
/// Samples of the time to an answer that are kept.
const SAMPLES_MAX: usize = 200_000;

/// A load.
pub(crate) struct Plan {
    pub(crate) connections: usize,
    /// Submissions of one connection that are unanswered at once.
    pub(crate) depth: usize,
    pub(crate) time: Duration,
    /// Tasks that the daemon may have unanswered and unfinished; below what its live set takes.
    pub(crate) unfinished_max: u64,
}

/// What came of it.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    /// Until everything was over and everybody had seen it.
    pub(crate) seconds: f64,
    /// The daemon ended these connections.
    pub(crate) dropped: usize,
    /// Events seen by all connections together.
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) answers: Samples,
}

impl Outcome {
    pub(crate) fn rate(&self) -> f64 {
        self.accepted as f64 / self.seconds
    }
}

struct Connection {
    stream: UnixStream,
    scanner: Scanner,
    buffer: Box<[u8]>,
    out: Vec<u8>,
    sent_at: VecDeque<Instant>,
    last: u64,
    alive: bool,
}

struct Load {
    connections: Vec<Connection>,
    /// A client with one thing on its way waits in `read`, as simple clients do: `poll` would set and clear a
    /// timer for every answer.
    waits_in_read: bool,
    prefix: String,
    submitted: u64,
    completed: u64,
    outcome: Outcome,
}

/// Runs a load against the daemon at `socket`; `prefix` keeps its ids apart from those of others.
pub(crate) fn run(socket: &Path, prefix: &str, plan: &Plan) -> Result<Outcome, Fault> {
    let connections: Result<Vec<_>, Fault> =
        (0..plan.connections).map(|_| Connection::open(socket)).collect();
    let connections = connections?;
    let waits_in_read = plan.connections == 1 && plan.depth == 1;
    if let ([connection], true) = (&*connections, waits_in_read) {
        connection.stream.set_nonblocking(false)?;
        connection.stream.set_read_timeout(Some(Duration::from_millis(POLL_MS.unsigned_abs())))?;
    }
    let mut load = Load {
        connections,
        waits_in_read,
        prefix: prefix.to_owned(),
        submitted: 0,
        completed: 0,
        outcome: Outcome::default(),
    };
    let begin = Instant::now();
    let (end, drained) = (begin + plan.time, begin + plan.time + DRAIN_MAX);
    loop {
        let now = Instant::now();
        if now < end {
            load.submit(plan)?;
        } else if load.is_over() {
            break;
        } else if now >= drained {
            return Err(format!("not over after {DRAIN_MAX:?}: {}", load.state()).into());
        }
        load.turn()?;
    }
    load.outcome.seconds = begin.elapsed().as_secs_f64();
    Ok(load.outcome)
}

impl Load {
    fn state(&self) -> String {
        format!(
            "{} submitted, {} accepted, {} refused, {} completed",
            self.submitted, self.outcome.accepted, self.outcome.refused, self.completed
        )
    }

    fn unfinished(&self) -> u64 {
        self.submitted - self.outcome.refused - self.completed
    }

    /// Everything is answered and completed, and everybody alive has seen the same.
    fn is_over(&self) -> bool {
        let mut alive = self.connections.iter().filter(|connection| connection.alive);
        let last = self.connections.first().map_or(0, |connection| connection.last);
        self.unfinished() == 0 && alive.all(|it| it.sent_at.is_empty() && it.last == last)
    }

    fn submit(&mut self, plan: &Plan) -> Result<(), Fault> {
        for index in 0..self.connections.len() {
            while self.unfinished() < plan.unfinished_max
                && let Some(connection) = self.connections.get_mut(index)
                && connection.alive
                && connection.sent_at.len() < plan.depth
            {
                let (prefix, n) = (&self.prefix, self.submitted);
                let body = format!(
                    r#"{{"type":"command","id":"{n}","command":{{"version":1,"type":"submit","task_id":"{prefix}-{n}","prompt":"do it","cwd":"/work"}}}}"#
                );
                let length = u32::try_from(body.len())?;
                connection.out.extend_from_slice(&length.to_be_bytes());
                connection.out.extend_from_slice(body.as_bytes());
                connection.sent_at.push_back(Instant::now());
                self.submitted += 1;
            }
        }
        Ok(())
    }

    /// Writes what is to be written, waits for something to read, and reads it.
    fn turn(&mut self) -> Result<(), Fault> {
        for connection in &mut self.connections {
            connection.write();
        }
        if let ([connection], true) = (&mut *self.connections, self.waits_in_read) {
            return connection.read(&mut self.outcome, Some(&mut self.completed));
        }
        let mut fds: Vec<_> = self
            .connections
            .iter()
            .filter(|connection| connection.alive)
            .map(|connection| {
                let out =
                    if connection.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
                PollFd::new(&connection.stream, PollFlags::IN | out)
            })
            .collect();
        let timeout = Timespec::try_from(Duration::from_millis(POLL_MS.unsigned_abs()))?;
        poll(&mut fds, Some(&timeout))?;
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let alive = self.connections.iter_mut().filter(|connection| connection.alive);
        // The first one alive tells what was completed; the others only count.
        let mut tells = true;
        for (connection, ready) in alive.zip(ready) {
            if ready {
                connection.read(&mut self.outcome, tells.then_some(&mut self.completed))?;
            }
            tells = false;
        }
        Ok(())
    }
}

impl Connection {
    /// Shakes hands and takes the snapshot.
    fn open(socket: &Path) -> Result<Self, Fault> {
        let mut stream = UnixStream::connect(socket)?;
        let hello =
            br#"{"type":"hello","hello":{"clientId":"load","versions":[3],"resumeAfter":null}}"#;
        stream.write_all(&wire::encode(hello)?)?;
        stream.set_nonblocking(true)?;
        let mut this = Self {
            stream,
            scanner: Scanner::default(),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            out: Vec::new(),
            sent_at: VecDeque::new(),
            last: 0,
            alive: true,
        };
        let until = Instant::now() + DRAIN_MAX;
        // Chunks of a snapshot have its sequence; even an empty state has one.
        while !this.greeted()? {
            if Instant::now() >= until || !this.alive {
                return Err("no snapshot came".into());
            }
            this.fill()?;
        }
        Ok(this)
    }

    fn greeted(&mut self) -> Result<bool, Fault> {
        let mut last = None;
        while last.is_none()
            && let Some(frame) = self.scanner.next()?
        {
            if let Frame::Snapshot(sequence) = frame {
                last = Some(sequence);
            }
        }
        self.last = last.unwrap_or(0);
        Ok(last.is_some())
    }

    fn write(&mut self) {
        while self.alive && !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.alive = false,
            }
        }
    }

    /// Reads once; the number of bytes.
    fn fill(&mut self) -> Result<usize, Fault> {
        // Zeroing that much for every small read would be the generator's time and not the daemon's.
        let (count, alive) = match self.stream.read(&mut self.buffer) {
            Ok(0) => (0, false),
            Ok(count) => (count, true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => (0, true),
            Err(_) => (0, false),
        };
        self.scanner.push(self.buffer.get(..count).unwrap_or_default());
        self.alive &= alive;
        Ok(count)
    }

    fn read(
        &mut self,
        outcome: &mut Outcome,
        mut completed: Option<&mut u64>,
    ) -> Result<(), Fault> {
        outcome.bytes += self.fill()? as u64;
        if !self.alive {
            outcome.dropped += 1;
            return Ok(());
        }
        while let Some(frame) = self.scanner.next()? {
            match frame {
                Frame::Event(sequence, body) => {
                    if sequence != self.last + 1 {
                        return Err(format!("event {sequence} after {}", self.last).into());
                    }
                    self.last = sequence;
                    outcome.events += 1;
                    if let Some(completed) = &mut completed
                        && memchr::memmem::find(body, br#""status":"TaskCompleted""#).is_some()
                    {
                        **completed += 1;
                    }
                }
                Frame::Answer(ok, body) => {
                    if ok {
                        outcome.accepted += 1;
                    } else {
                        if outcome.refused == 0 {
                            eprintln!("refused: {}", String::from_utf8_lossy(body));
                        }
                        outcome.refused += 1;
                    }
                    if let Some(sent_at) = self.sent_at.pop_front()
                        && outcome.answers.len() < SAMPLES_MAX
                    {
                        outcome.answers.push(sent_at.elapsed());
                    }
                }
                Frame::Heartbeat(sequence) => {
                    let pong = format!(r#"{{"type":"pong","sequence":{sequence}}}"#);
                    self.out.extend_from_slice(&wire::encode(pong.as_bytes())?);
                }
                Frame::Snapshot(_) | Frame::Welcome => {}
            }
        }
        Ok(())
    }
}
