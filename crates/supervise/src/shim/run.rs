//! One run from specification to the last report.
//!
//! A loop around `poll`: reap, decide, report, wait, read. The phases only go forward; how a run is
//! ended depends on who wants it ended:
//!
//! | cause | what happens |
//! |---|---|
//! | the leader exits | its pipes are read for `drain_ms` more, then the sweep |
//! | stop order, overflow | the plan's signals to the leader's group, KILL to it, then the sweep |
//! | stop order `Now` | KILL to everybody |
//! | the daemon is gone | TERM to everybody, its own grace, KILL |
//!
//! The sweep is TERM to everybody, a grace, then KILL in rounds until nothing is left. What is still
//! there after [`ShimHooks::kill_failed_ms`] is reported, and killing goes on.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ostler_core::outcome::Exit;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, WaitStatus};

use super::ShimHooks;
use super::launch::{self, Prepared};
use super::link::Link;
use super::log::{Directory, Log};
use super::pipes::{Pipe, buffer, now_micros};
use super::scrub::Secrets;
use super::talk::{
    exit_report, next_frame, receive_spec, record, report_last, spawn_failed, wait, write_exit,
};
use super::tree::{Reaped, Tree};
use crate::cgroup::Cgroup;
use crate::procfs::Stat;
use crate::protocol::{self, Encoder, StopOrder, tag};
use crate::rundir::{ExitRecord, Stream};
use crate::spec::{RunSpec, Stdin};

/// How long descendants have between TERM and KILL.
const SWEEP_GRACE_MS: u64 = 2_000;
/// A stop order takes at most this long before everybody gets KILL; [`SWEEP_GRACE_MS`] shrinks for it.
const STOP_MS_MAX: u64 = 5_000;
const SWEEP_GRACE_MS_MIN: u64 = 500;
/// Pauses between rounds of killing: at first, then, and once it was reported.
const KILL_PAUSE_MS: u64 = 2;
const KILL_PAUSE_SLOW_MS: u64 = 20;
const KILL_PAUSE_FAILED_MS: u64 = 1_000;
const KILL_FAST_MS: u64 = 1_000;
/// How long the keep-list is not looked at again; only its users pay for that.
const KEPT_PAUSE_MS: u64 = 50;
/// How often the pipes are emptied once nobody of the run is left; an outsider may hold them.
const LAST_DRAINS_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Step of the plan, and when it has had its grace.
    Stopping(usize, Instant),
    /// The leader is gone; its pipes may be held by others.
    Draining(Instant),
    /// Everybody got TERM.
    Terminating(Instant),
    /// Since when everybody gets KILL.
    Killing(Instant),
    Done,
}

struct Run {
    spec: RunSpec,
    link: Link,
    children: UnixStream,
    tree: Tree,
    directory: Directory,
    log: Log,
    pipes: [Pipe; 2],
    buffer: Box<[u8]>,
    phase: Phase,
    leader: i32,
    leader_alive: bool,
    exit: Option<Exit>,
    started_at_micros: i64,
    /// When a stop was first ordered.
    stop_at: Option<Instant>,
    stopped: bool,
    daemon_gone: bool,
    overflow: bool,
    kill_failed: bool,
    kill_failed_ms: u64,
}

/// Serves one run; an error means that not even a report was possible.
pub(super) fn run(
    control: UnixStream,
    children: UnixStream,
    cgroup: Option<&Cgroup>,
    hooks: ShimHooks,
) -> io::Result<()> {
    let mut link = Link::new(control);
    let Some(mut spec) = receive_spec(&mut link)? else {
        return Ok(());
    };
    let prepared = launch::prepare(&spec, cgroup);
    let Some((kind, _)) = next_frame(&mut link)? else {
        return Ok(());
    };
    let Prepared { directory, log, command } = match prepared {
        Ok(prepared) => prepared,
        Err(why) => return spawn_failed(&mut link, None, why),
    };
    if kind != protocol::START {
        // Stopped before it was started.
        let record = ExitRecord { stopped: true, empty: true, ..record() };
        let record = write_exit(&directory, record);
        return report_last(&mut link, protocol::ENDED, &record);
    }
    let (leader, stdout, stderr) = match command.and_then(launch::Ready::start) {
        Ok(started) => started,
        Err(why) => return spawn_failed(&mut link, Some(&directory), why),
    };
    let secrets = Secrets::new(&spec.scrub);
    let pipes = [
        Pipe::new(stdout, Stream::Stdout, Rc::clone(&secrets)),
        Pipe::new(stderr, Stream::Stderr, secrets),
    ];
    // What only the start needed is not kept in memory.
    (spec.args, spec.env, spec.scrub) = (Vec::new(), Vec::new(), Vec::new());
    spec.stdin = Stdin::Null;
    let mut run = Run {
        tree: Tree::new(leader, spec.keep.clone(), hooks.immortal),
        spec,
        link,
        children,
        directory,
        log,
        pipes,
        buffer: buffer(),
        phase: Phase::Running,
        leader,
        leader_alive: true,
        exit: None,
        started_at_micros: now_micros(),
        stop_at: None,
        stopped: false,
        daemon_gone: false,
        overflow: false,
        kill_failed: false,
        kill_failed_ms: hooks.kill_failed_ms,
    };
    run.report_started();
    run.live()
}

impl Run {
    fn live(&mut self) -> io::Result<()> {
        loop {
            let reaped = self.reap();
            self.decide(reaped);
            if self.phase == Phase::Done {
                return self.finish();
            }
            self.link.turn();
            let busy = reaped == Reaped::More;
            let until = if busy { Some(Instant::now()) } else { self.due() };
            if self.wait(until).is_err() {
                // Out of memory, say. Whoever gave up now would leave the tree alone.
                std::thread::sleep(Duration::from_millis(KILL_PAUSE_SLOW_MS));
            }
            self.read();
            self.obey();
        }
    }

    fn due(&self) -> Option<Instant> {
        let kept_looked_at = || Instant::now() + Duration::from_millis(KEPT_PAUSE_MS);
        let phase = match self.phase {
            Phase::Running | Phase::Done => None,
            Phase::Stopping(_, until) => Some(until),
            Phase::Draining(until) | Phase::Terminating(until) if self.spec.keep.is_empty() => {
                Some(until)
            }
            Phase::Draining(until) | Phase::Terminating(until) => Some(until.min(kept_looked_at())),
            Phase::Killing(since) => {
                let pause = match since.elapsed() {
                    _ if self.kill_failed => KILL_PAUSE_FAILED_MS,
                    long if long > Duration::from_millis(KILL_FAST_MS) => KILL_PAUSE_SLOW_MS,
                    _ => KILL_PAUSE_MS,
                };
                Some(Instant::now() + Duration::from_millis(pause))
            }
        };
        [phase, self.link.due()].into_iter().flatten().min()
    }

    fn wait(&self, until: Option<Instant>) -> io::Result<()> {
        let (link, children) = (self.link.fd(), self.children.as_fd());
        let mut fds = Vec::with_capacity(4);
        fds.push(PollFd::new(&children, PollFlags::IN));
        if !self.link.closed {
            let write = if self.link.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&link, PollFlags::IN | write));
        }
        let open: Vec<_> = self.pipes.iter().filter(|pipe| !pipe.closed).map(Pipe::fd).collect();
        fds.extend(open.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        wait(&mut fds, until)
    }

    /// Takes everything that is there: notices of ended children, orders, output.
    fn read(&mut self) {
        let mut notices = [0; 256];
        while matches!(io::Read::read(&mut &self.children, &mut notices), Ok(len) if len == notices.len())
        {
        }
        if !self.link.closed {
            self.link.receive();
        }
        self.drain();
    }

    /// True when nothing was left to read.
    fn drain(&mut self) -> bool {
        let before = self.log.end();
        let mut all = true;
        for pipe in &mut self.pipes {
            all &= pipe.drain(&mut self.buffer, &mut self.log);
        }
        if self.log.end() > before {
            self.link.report_end(self.log.end());
        }
        let long = self
            .spec
            .stream_bytes_max
            .is_some_and(|max| self.pipes.iter().any(|pipe| pipe.bytes > max));
        if long && !self.overflow {
            self.overflow = true;
            self.stop_by_plan();
        }
        all
    }

    fn obey(&mut self) {
        while let Some((kind, body)) = self.link.frame() {
            if kind != protocol::STOP {
                continue;
            }
            // Whoever had exited by now was not stopped.
            self.reap();
            self.stopped |= self.leader_alive;
            match StopOrder::decode(&body) {
                Ok(StopOrder::Plan) => self.stop_by_plan(),
                _ => self.kill(),
            }
        }
        if self.link.closed && !self.daemon_gone {
            self.daemon_gone = true;
            self.end_without_daemon();
        }
    }

    fn reap(&mut self) -> Reaped {
        let (leader, mut status) = (self.leader, None);
        let alive = self.leader_alive;
        let reaped = self.tree.reap(|pid, ended: WaitStatus| {
            if alive && pid == leader {
                status = Some(ended);
            }
        });
        if let Some(status) = status {
            self.leader_alive = false;
            let code = status.exit_status().map(Exit::Code);
            self.exit = code.or(status.terminating_signal().map(Exit::Signal));
            self.report_leader();
        }
        reaped
    }

    /// Goes to the phase that is due.
    fn decide(&mut self, reaped: Reaped) {
        let now = Instant::now();
        let empty = match reaped {
            Reaped::Empty => true,
            Reaped::Alive => !self.leader_alive && self.tree.only_kept_left(),
            Reaped::More => false,
        };
        if self.phase == Phase::Running && !self.leader_alive {
            self.phase = Phase::Draining(now + Duration::from_millis(self.spec.drain_ms));
        }
        match self.phase {
            Phase::Running | Phase::Done => {}
            Phase::Stopping(..) if !self.leader_alive => {
                // Who was asked to stop has no time for stragglers.
                if empty { self.phase = Phase::Done } else { self.terminate() }
            }
            Phase::Stopping(step, until) if now >= until => self.stop_step(step + 1),
            Phase::Stopping(..) => {}
            Phase::Draining(until) => {
                let drained = self.pipes.iter().all(|pipe| pipe.closed);
                if empty && (drained || now >= until) {
                    self.phase = Phase::Done;
                } else if now >= until {
                    self.terminate();
                }
            }
            Phase::Terminating(_) | Phase::Killing(_) if empty => self.phase = Phase::Done,
            Phase::Terminating(until) if now >= until => self.kill(),
            Phase::Terminating(_) => {}
            Phase::Killing(since) => self.kill_round(since),
        }
    }

    fn stop_by_plan(&mut self) {
        self.stop_at.get_or_insert_with(Instant::now);
        match self.phase {
            Phase::Running => self.stop_step(0),
            Phase::Draining(_) => self.terminate(),
            _ => {}
        }
    }

    /// Gives that step of the plan, or ends the leader's group when there is none.
    fn stop_step(&mut self, step: usize) {
        if let Some((signal, grace)) = self.spec.stop.steps.get(step).copied() {
            if let Some(signal) = Signal::from_named_raw(signal) {
                self.tree.signal_group_of(self.leader, signal, None);
            }
            self.phase = Phase::Stopping(step, Instant::now() + grace);
            return;
        }
        self.tree.signal_group_of(self.leader, Signal::KILL, Some("term"));
        self.terminate();
    }

    fn end_without_daemon(&mut self) {
        let until = Instant::now() + Duration::from_millis(self.spec.grace_after_daemon_ms);
        match self.phase {
            Phase::Running | Phase::Stopping(..) | Phase::Draining(_) => {
                self.tree.signal_all(Signal::TERM, None);
                self.phase = Phase::Terminating(until);
            }
            Phase::Terminating(before) => self.phase = Phase::Terminating(before.min(until)),
            Phase::Killing(_) | Phase::Done => {}
        }
    }

    /// The sweep begins: everybody gets TERM.
    fn terminate(&mut self) {
        let after = (!self.leader_alive).then_some("exit");
        self.tree.signal_all(Signal::TERM, after);
        let left = self.stop_at.map(|at| STOP_MS_MAX.saturating_sub(millis(at.elapsed())));
        let grace = left.unwrap_or(SWEEP_GRACE_MS).clamp(SWEEP_GRACE_MS_MIN, SWEEP_GRACE_MS);
        self.phase = Phase::Terminating(Instant::now() + Duration::from_millis(grace));
    }

    fn kill(&mut self) {
        if matches!(self.phase, Phase::Killing(_) | Phase::Done) {
            return;
        }
        let now = Instant::now();
        self.phase = Phase::Killing(now);
        self.kill_round(now);
    }

    fn kill_round(&mut self, since: Instant) {
        self.tree.signal_all(Signal::KILL, Some("term"));
        if !self.kill_failed && since.elapsed() >= Duration::from_millis(self.kill_failed_ms) {
            self.kill_failed = true;
            let record = ExitRecord { remaining: self.tree.remaining(), ..self.record(false) };
            self.log.sync();
            let record = write_exit(&self.directory, record);
            // A report that cannot be built is in `exit.json`.
            if let Ok(report) = exit_report(protocol::KILL_FAILED, &record) {
                self.link.report(report);
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        for _ in 0..LAST_DRAINS_MAX {
            if self.drain() {
                break;
            }
        }
        for pipe in &mut self.pipes {
            pipe.finish(&mut self.log);
        }
        self.link.report_end(self.log.end());
        // Whoever stopped a run waits for its end; flushing gigabytes for that could take minutes.
        if !self.stopped {
            self.log.sync();
        }
        let record = write_exit(&self.directory, self.record(true));
        let kind = if self.kill_failed { protocol::EMPTY } else { protocol::ENDED };
        report_last(&mut self.link, kind, &record)
    }

    fn record(&self, empty: bool) -> ExitRecord {
        let (code, signal) = match self.exit {
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        ExitRecord {
            code,
            signal,
            started_at_micros: Some(self.started_at_micros),
            stopped: self.stopped,
            daemon_gone: self.daemon_gone,
            overflow: self.overflow,
            empty,
            output_bytes: self.pipes.iter().map(|pipe| pipe.bytes).sum(),
            output_end: self.log.end(),
            truncated: self.log.truncated,
            write_error: self.log.write_error.clone(),
            killed: self.tree.killed(),
            kept: self.tree.kept(),
            ..record()
        }
    }

    fn report_started(&mut self) {
        let mut report = Encoder::new(protocol::STARTED);
        report.number(tag::PID, u64::from(self.leader.unsigned_abs()));
        let start_time = Stat::read(self.leader).map_or(0, |stat| stat.start_time);
        report.number(tag::START_TIME, start_time);
        report.number(tag::AT_MICROS, self.started_at_micros.unsigned_abs());
        self.link.report(report);
    }

    fn report_leader(&mut self) {
        let mut report = Encoder::new(protocol::LEADER_EXITED);
        match self.exit {
            Some(Exit::Code(code)) => report.number(tag::EXIT_CODE, u64::from(code.unsigned_abs())),
            Some(Exit::Signal(signal)) => {
                report.number(tag::EXIT_SIGNAL, u64::from(signal.unsigned_abs()))
            }
            None => {}
        }
        self.link.report(report);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
