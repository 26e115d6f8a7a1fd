//! The engine: the one actor that owns the task machine and performs its effects in order.
//!
//! Order (invariant 5): step → write and fdatasync → publish → answers and events → effects. Steps
//! run ahead of the disk; what they want done waits in a batch until the batch is durable. While one
//! batch is being synced the next one gathers, so everything that waits shares one write and one
//! fdatasync. Deliberately absent: rules about tasks (`core::task`), bytes on disk (`store`), what
//! clients see (`feed`), processes (`runner`).

mod archive;
mod batch;
mod commands;
pub(crate) mod feed;
pub(crate) mod record;
mod recover;
pub(crate) mod reserve;
mod runs;
mod store;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ostler_core::clock::Clock;
use ostler_core::id::{RunId, TaskId};
use ostler_core::task::{self, Effect, Input, RunEnd, StopReason, TaskState, TaskStatus};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub(crate) use archive::ArchiveIndex;
pub(crate) use commands::EngineHandle;
pub(crate) use commands::{CommandReply, CommandRequest, EngineClient, Reply};
pub(crate) use recover::{RecoverError, Recovered, recover};

use crate::runner::{RunOrder, TaskInput, TaskRunner};
use batch::Pending;
use feed::Feed;
use reserve::Reserve;
use runs::LiveRuns;
use store::{Done, Standing, Store};

/// Words from runners that wait for the engine: two a run and some slack. A runner waits for a place
/// with its end, and tries again later with its lines.
const RUNNER_EVENTS_MAX: usize = 256;

/// Commands taken in one turn, before the batch is handed to the disk and others get theirs.
const COMMANDS_PER_TURN_MAX: usize = 512;

/// Bytes of journal after which the state is written as a snapshot.
const SNAPSHOT_EVERY_BYTES: u64 = 4 * 1024 * 1024;

/// Room that one admission must find beyond the reserves: its two records and what it then reserves, when
/// every character of its fields has to be escaped.
const ADMISSION_BYTES: u64 = 192 * 1024;

/// How long changes that nobody waits for, such as ends, wait for company: the flush they share with the
/// next command is one flush less. Nothing is started later for it.
const LINGER: Duration = Duration::from_millis(1);

/// How long the thread does not sleep when a lone client has its answer: its next command is most likely
/// on its way, and waking a processor that sleeps takes as long as a third of a flush.
const STAY_AWAKE: Duration = Duration::from_micros(100);

/// The longest wait for a deadline without looking at the clock that counts suspension.
const NAP_MAX: Duration = Duration::from_secs(30);

/// How long a shutdown waits for runs to end. With what the disk and the clients are given then it stays below
/// the ten seconds in which a daemon is to be gone.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(7);

/// What runners tell the engine.
#[derive(Debug)]
pub(crate) enum RunnerEvent {
    /// The run's log queue has lines.
    LogReady {
        /// Which run.
        run: RunId,
    },
    /// Nothing of the run is left.
    Ended {
        /// Which run.
        run: RunId,
        /// How it ended.
        end: Box<RunEnd>,
    },
}

/// See the module's documentation.
pub(crate) struct Engine {
    state: TaskState,
    feed: Arc<Feed>,
    store: Store,
    standing: Standing,
    clock: Arc<dyn Clock>,
    runner: Arc<dyn TaskRunner>,
    archive: Arc<ArchiveIndex>,
    archive_ready: bool,
    /// Prompts, arguments and environments, as long as a retry is possible.
    inputs: HashMap<TaskId, Arc<TaskInput>>,
    runs: LiveRuns,
    requests: HashMap<u64, Reply>,
    next_request: u64,
    pending: Pending,
    reserve: Reserve,
    in_flight: Option<Pending>,
    in_flight_bytes: u64,
    /// Bytes since the last snapshot at which the next is tried.
    snapshot_at_bytes: u64,
    command_queue_max: usize,
    /// Admissions that wait for the archive's index or for room on the disk.
    held: VecDeque<CommandRequest>,
    asked_for_room: bool,
    failed: Option<String>,
    commands: mpsc::Receiver<CommandRequest>,
    events: mpsc::Receiver<RunnerEvent>,
    shutdown: oneshot::Receiver<()>,
    /// Told once the recovered state is durable and shown.
    recovered: Option<oneshot::Sender<()>>,
    stopping_until: Option<Instant>,
    /// Until when the pending batch waits for company.
    linger_until: Option<Instant>,
    /// A batch became durable without waiting; what it led to has not been looked at.
    flush_again: bool,
    /// Until when the thread does not sleep.
    awake_until: Option<Instant>,
}

impl Engine {
    /// An engine on recovered state, and the handle that reaches it. It does nothing until
    /// [`Engine::run`] is polled.
    pub(crate) fn new(
        recovered: Recovered,
        runner: Arc<dyn TaskRunner>,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<(Self, EngineHandle)> {
        let (command_sender, commands) = mpsc::channel(recovered.command_queue_max);
        let (event_sender, events) = mpsc::channel(RUNNER_EVENTS_MAX);
        let (shutdown_sender, shutdown) = oneshot::channel();
        let (recovered_sender, is_recovered) = oneshot::channel();
        let feed = Arc::new(recovered.feed);
        let pending = Pending::new(feed.last_sequence() + 1, recovered.frame_bytes_max);
        let engine = Self {
            state: recovered.state,
            feed: Arc::clone(&feed),
            store: Store::start(recovered.store)?,
            standing: recovered.standing,
            clock,
            runner,
            archive: recovered.archive,
            archive_ready: false,
            inputs: HashMap::new(),
            runs: LiveRuns::new(event_sender, recovered.tail),
            requests: HashMap::new(),
            next_request: 0,
            pending,
            reserve: Reserve::default(),
            in_flight: None,
            in_flight_bytes: 0,
            snapshot_at_bytes: SNAPSHOT_EVERY_BYTES,
            command_queue_max: recovered.command_queue_max,
            held: VecDeque::new(),
            asked_for_room: false,
            failed: None,
            commands,
            events,
            shutdown,
            recovered: Some(recovered_sender),
            stopping_until: None,
            linger_until: None,
            flush_again: false,
            awake_until: None,
        };
        let handle = EngineHandle::new(command_sender, feed, shutdown_sender, is_recovered);
        Ok((engine, handle))
    }

    /// Runs until a shutdown is over. Everything durable is on disk when it returns.
    pub(crate) async fn run(mut self) {
        self.recover();
        while !self.is_finished() {
            self.flush();
            self.tell_recovered();
            self.turn().await;
        }
        self.close().await;
    }

    fn is_finished(&self) -> bool {
        let Some(until) = self.stopping_until else {
            return false;
        };
        let settled = self.runs.is_empty() && self.pending.is_empty() && self.in_flight.is_none();
        settled || Instant::now() >= until
    }

    /// Nobody is let in before what this start made of the tasks is what they are shown.
    fn tell_recovered(&mut self) {
        let is_shown = !self.pending.changes_something() && self.in_flight.is_none();
        if (is_shown || self.failed.is_some())
            && let Some(recovered) = self.recovered.take()
        {
            // Whoever does not wait has no listener.
            let _ = recovered.send(());
        }
    }

    /// Waits for one thing and takes it. Fixed order: shutdown, disk, timers, runners, commands.
    async fn turn(&mut self) {
        let deadline = self.next_deadline();
        let takes_commands = self.pending.takes_more();
        tokio::select! {
            biased;
            _ = &mut self.shutdown, if self.stopping_until.is_none() => self.begin_shutdown(),
            done = self.store.done() => self.finish(done),
            () = sleep_until(deadline) => self.step(Input::Tick),
            event = self.events.recv() => self.take_events(event),
            command = self.commands.recv(), if takes_commands => self.take_commands(command),
            // Everybody else gets a turn first: a queue of short runs must not hold the sockets up.
            () = tokio::task::yield_now(), if self.flush_again || self.awake_until.is_some() => {
                self.awake_until = self.awake_until.filter(|until| Instant::now() < *until);
            }
        }
    }

    /// When something is due. The machine's own time counts suspension, the runtime's does not, so a long
    /// wait is looked at again in between.
    fn next_deadline(&self) -> Option<Instant> {
        let due = self.state.next_deadline().filter(|_| self.failed.is_none());
        let machine = due.map(|due| Instant::now() + due.since(self.clock.now().boot).min(NAP_MAX));
        // While the disk is busy a wait for company is over when it is done.
        let linger = self.linger_until.filter(|_| !self.store.is_busy());
        [machine, self.stopping_until, linger].into_iter().flatten().min()
    }

    fn begin_shutdown(&mut self) {
        self.stopping_until = Some(Instant::now() + SHUTDOWN_WAIT);
        self.refuse_held("the daemon is shutting down");
        self.step(Input::Shutdown);
    }

    fn take_events(&mut self, first: Option<RunnerEvent>) {
        let mut next = first;
        for _ in 0..RUNNER_EVENTS_MAX {
            match next {
                Some(RunnerEvent::LogReady { run }) => self.take_log(run),
                Some(RunnerEvent::Ended { run, end }) => self.end_run(run, *end),
                None => break,
            }
            next = self.events.try_recv().ok();
        }
    }

    /// Output alone is worth an event only while there is room for more than the ends.
    fn take_log(&mut self, run: RunId) {
        if let Some(log_lines) = self.runs.drain(&run)
            && self.has_room(0)
        {
            self.step(Input::Output { run, log_lines });
        }
    }

    fn end_run(&mut self, run: RunId, end: RunEnd) {
        let end = self.runs.redacted(&run, end);
        self.runs.drain(&run);
        if self.failed.is_some() {
            self.runs.forget(&run);
        }
        self.step(Input::Ended { run, end });
    }

    /// Nothing is run again; what an earlier daemon left is ended, and its last words are kept.
    fn recover(&mut self) {
        let running = self.state.iter().filter(|task| task.status == TaskStatus::Running);
        let left: Vec<_> = running
            .map(|task| RunId { task: task.spec.id.clone(), attempt: task.attempt })
            .collect();
        for run in left {
            let lines = self.runner.abandoned(&run);
            self.runs.remember(run, &lines);
        }
        // Their ends are recorded now, each within what it may take.
        for task in self.state.iter().filter(|task| !task.status.is_settled()) {
            self.reserve.changed(&task.spec.id, task.status, record::task_bytes(task) as u64);
        }
        self.step(Input::Recover);
    }

    /// One step of the machine; its effects join the pending batch.
    fn step(&mut self, input: Input) {
        if self.failed.is_some() && !matches!(input, Input::Shutdown) {
            return;
        }
        let effects = task::step(&mut self.state, input, self.clock.now());
        for effect in effects {
            self.gather(effect);
        }
    }

    fn gather(&mut self, effect: Effect) {
        match effect {
            Effect::Archived { mut task } => {
                let tail = self.feed_tail(&task);
                if let Some(tail) = &tail {
                    // The machine does not count the last line of a failure, which names its reason.
                    let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
                    task.log_lines = tail.lines_total();
                }
                self.archive.announce(&task.spec.id);
                self.pending.archive(task, tail);
            }
            Effect::Changed { task } => {
                let (task, tail) = self.runs.shown(task);
                let (task, tail_bytes_max) = self.fitted(task);
                let (spec, status) = (Arc::clone(&task.spec), task.status);
                let before = self.pending.bytes();
                self.pending.change(task, tail, tail_bytes_max);
                self.reserve.changed(&spec.id, status, self.pending.bytes() - before);
            }
            Effect::LimitChanged { limit } => self.pending.limit(limit),
            later => self.pending.later(later),
        }
    }

    fn feed_tail(&self, task: &task::Task) -> Option<feed::SharedTail> {
        self.feed.tail_of(&RunId { task: task.spec.id.clone(), attempt: task.attempt })
    }

    /// Hands the pending batch to the disk, or performs it at once when it changes nothing.
    fn flush(&mut self) {
        self.flush_again = false;
        if self.in_flight.is_some() || self.store.is_busy() {
            return;
        }
        if self.failed.is_some() {
            self.drop_pending();
        } else if self.standing.since_snapshot > self.snapshot_at_bytes {
            // Before the next batch: under load there always is one, and the journal must not outgrow
            // its bound.
            self.write_snapshot();
        } else if self.pending.changes_something() {
            if self.lingers() {
                return;
            }
            self.append();
        } else {
            if !self.pending.is_empty() {
                let batch = self.pending.take();
                self.perform(batch);
            }
            self.ask_for_room();
        }
    }

    /// Makes the pending batch durable. What starts with it gets ready meanwhile.
    fn append(&mut self) {
        self.in_flight_bytes = self.pending.bytes();
        let alone = self.requests.len() <= 1 && self.commands.is_empty() && self.events.is_empty();
        let mut batch = self.pending.take();
        let records = batch.take_records();
        let answers = batch.is_awaited();
        for run in batch.starts() {
            self.prepare(run);
        }
        self.in_flight = Some(batch);
        let appended = if alone { self.store.append_now(records) } else { Err(records) };
        match appended {
            Ok(done) => {
                self.finish(Some(done));
                self.flush_again = true;
                self.awake_until = answers.then(|| Instant::now() + STAY_AWAKE);
            }
            Err(records) => self.store.append(records),
        }
    }

    /// Whether the pending batch is to wait a moment longer.
    fn lingers(&mut self) -> bool {
        let awaited =
            self.recovered.is_some() || self.pending.is_awaited() || !self.pending.takes_more();
        if !awaited && self.stopping_until.is_none() {
            let until = *self.linger_until.get_or_insert_with(|| Instant::now() + LINGER);
            if Instant::now() < until {
                return true;
            }
        }
        self.linger_until = None;
        false
    }

    fn write_snapshot(&mut self) {
        let (tasks, limit) = self.feed.view();
        match record::encode_snapshot(&tasks, limit) {
            Ok(payload) => self.store.snapshot(payload),
            Err(error) => tracing::error!(%error, "the snapshot could not be encoded"),
        }
        self.standing.since_snapshot = 0;
    }

    fn finish(&mut self, done: Option<Done>) {
        match done {
            Some(Done::ArchiveReady(result)) => self.archive_opened(result),
            Some(Done::Appended(result, records, standing)) => {
                self.appended(result, records, standing)
            }
            Some(Done::Snapshotted(result, standing)) => {
                self.standing = standing;
                self.snapshot_at_bytes = SNAPSHOT_EVERY_BYTES;
                if let Err(error) = result {
                    tracing::warn!(%error, "no snapshot was written; the journal goes on");
                    self.snapshot_at_bytes += standing.since_snapshot;
                }
            }
            Some(Done::Room(result, standing)) => self.room_answered(result, standing),
            None => {
                self.fail("the journal's thread is gone".to_owned());
                let batch = self.in_flight.take();
                batch.into_iter().for_each(|batch| self.drop_batch(batch));
            }
        }
    }

    fn archive_opened(&mut self, result: Result<(), String>) {
        match result {
            Ok(()) => {
                self.archive_ready = true;
                self.retry_held();
            }
            Err(error) => self.fail(format!("the archive cannot be used: {error}")),
        }
    }

    fn appended(&mut self, result: Result<(), String>, records: store::Batch, standing: Standing) {
        self.standing = standing;
        self.in_flight_bytes = 0;
        self.pending.reuse(records);
        let Some(batch) = self.in_flight.take() else {
            return;
        };
        match result {
            Ok(()) => {
                self.asked_for_room = false;
                self.perform(batch);
            }
            Err(error) => {
                for request in batch.requests() {
                    self.refuse(request, &error);
                }
                self.fail(error);
            }
        }
    }

    /// Publishes a durable batch, then answers and performs what it holds, in the order of its steps.
    fn perform(&mut self, mut batch: Pending) {
        batch.publish(&self.feed);
        let mut tasks = None;
        for effect in batch.into_effects() {
            match effect {
                batch::Later::List(reply) => {
                    let tasks = tasks.get_or_insert_with(|| self.feed.view().0.into());
                    reply.send(Ok(CommandReply::List(Arc::clone(tasks))));
                }
                batch::Later::Refusal(reply, text) => reply.send(Err(text)),
                batch::Later::Effect(Effect::Start { run }) => self.start(run),
                batch::Later::Effect(Effect::Stop { run, reason }) => self.runs.stop(&run, reason),
                batch::Later::Effect(Effect::DropInput { task }) => drop(self.inputs.remove(&task)),
                batch::Later::Effect(Effect::Answer { request, result }) => {
                    self.answer(request.0, result)
                }
                batch::Later::Effect(_) => {}
            }
        }
    }

    fn order(&self, run: &RunId) -> Option<RunOrder> {
        let task = self.state.get(&run.task)?;
        let input = self.inputs.get(&run.task)?;
        Some(RunOrder { run: run.clone(), spec: Arc::clone(&task.spec), input: Arc::clone(input) })
    }

    fn prepare(&self, run: &RunId) {
        if let Some(order) = self.order(run) {
            self.runner.prepare(&order);
        }
    }

    fn start(&mut self, run: RunId) {
        let Some(order) = self.order(&run) else {
            return tracing::error!(%run, "a run without an input was not started");
        };
        if let Some(end) = self.runs.start(order, &self.runner) {
            self.end_run(run, end);
        }
    }

    /// The journal has failed: nothing further can be recorded, so nothing further is done.
    fn fail(&mut self, error: String) {
        if self.failed.is_some() {
            return;
        }
        tracing::error!(%error, "the journal has failed; restart the daemon when the disk is well");
        self.failed = Some(error.clone());
        self.runs.stop_all(StopReason::Shutdown);
        self.drop_pending();
        let waiting: Vec<_> = self.requests.keys().copied().collect();
        waiting.into_iter().for_each(|request| self.refuse(request, &error));
        self.refuse_held("the journal has failed; restart the daemon");
    }

    fn drop_pending(&mut self) {
        self.linger_until = None;
        let pending = self.pending.take();
        self.drop_batch(pending);
    }

    /// Nothing of what was gathered happens; lists are answered all the same.
    fn drop_batch(&mut self, batch: Pending) {
        let error = self.failed.clone().unwrap_or_default();
        for request in batch.requests() {
            self.refuse(request, &error);
        }
        for later in batch.into_effects() {
            match later {
                batch::Later::List(reply) => {
                    reply.send(Ok(CommandReply::List(self.feed.view().0.into())));
                }
                batch::Later::Refusal(reply, text) => reply.send(Err(text)),
                batch::Later::Effect(_) => {}
            }
        }
    }

    async fn close(mut self) {
        if self.failed.is_none() && !self.store.is_busy() {
            self.write_snapshot();
            let done = self.store.last_done().await;
            if done.is_some() {
                self.finish(done);
            }
        }
        self.runs.abandon();
        self.store.close();
    }
}

/// Sleeps until then, or for ever.
async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
