//! The store: journal and archive, the thread that works on them, and the engine's handle to both.
//!
//! Disk calls block, so they have a thread; the engine goes on reading sockets meanwhile, and what
//! arrives is the next batch (group commit). At most one job is with the thread at a time, which
//! makes the order of commits the order of steps. One kind of append is made on the engine's own thread:
//! a small one that a single client waits for, on a disk that has lately been fast. Handing it over and
//! back would cost as much as the flush.
//!
//! The archive is read by a second thread, which ends then: reading it takes as long as it is large, and
//! appends must not wait for that. Journal and archive fail apart. A write or flush that failed poisons the
//! one it happened to until the next start; a full disk or an append that is too large poisons neither,
//! though a failed append is the last the engine asks for, since its steps are ahead of the disk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use ostler_core::clock::Clock;
use ostler_journal::{AppendError, Journal, Options, RealDisk};
use tokio::sync::mpsc;

use super::archive::{Archive, ArchiveIndex, Leaving};
use crate::settings::ArchiveBounds;

/// Records of one commit, back to back.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) records: Vec<u8>,
    pub(crate) ends: Vec<usize>,
    pub(crate) leaving: Vec<Leaving>,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn clear(&mut self) {
        self.records.clear();
        self.ends.clear();
        self.leaving.clear();
    }

    fn payloads(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).filter_map(|(start, end)| self.records.get(start..*end)).collect()
    }
}

/// What the engine asks of the thread.
enum Job {
    Append(Batch),
    Snapshot(Vec<u8>),
    EnsureRoom,
}

/// Where the journal stands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Standing {
    /// Bytes that are sure to fit without a new allocation.
    pub(crate) room: u64,
    /// Bytes written since the last snapshot.
    pub(crate) since_snapshot: u64,
    /// The archive cannot be written until the next start, so the journal can forget nothing any more.
    pub(crate) archive_failed: bool,
}

/// What the thread answers.
#[derive(Debug)]
pub(crate) enum Done {
    /// The archive's index is complete and ids can be judged from now on, or the archive cannot be used.
    ArchiveReady(Result<(), String>),
    /// The batch is durable, or could not be made so: what is on disk of it is unknown where a write
    /// failed, whole appends of it or nothing where the disk stayed full. The empty batch comes back.
    Appended(Result<(), String>, Batch, Standing),
    /// A snapshot was installed, or could not be (the old one stands).
    Snapshotted(Result<(), String>, Standing),
    /// The journal tried to allocate ahead.
    Room(Result<(), String>, Standing),
}

/// The engine's side.
pub(crate) struct Store {
    jobs: Option<blocking::SyncSender<Job>>,
    done: mpsc::Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
    /// Closed by the threads' ends.
    ended: blocking::Receiver<()>,
    stop: Arc<AtomicBool>,
    worker: Arc<Mutex<Worker>>,
    busy: bool,
    gone: bool,
}

/// Everything the threads start with.
pub(crate) struct StoreParts {
    pub(crate) journal: Journal<RealDisk>,
    pub(crate) archive_dir: Utf8PathBuf,
    pub(crate) archive_options: Options,
    pub(crate) archive_bounds: ArchiveBounds,
    pub(crate) index: Arc<ArchiveIndex>,
    /// Tasks that the journal says left after its snapshot.
    pub(crate) leaving: Vec<Leaving>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// How often an append is tried again when the disk has no space, and the pause between: together
/// less than a shutdown waits.
const FULL_RETRIES_MAX: u32 = 25;
const FULL_RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Bytes of tasks that are written to the archive at once.
const ARCHIVE_WRITE_BYTES: usize = 2 * 1024 * 1024;

/// The largest append that is made on the engine's thread.
const INLINE_BYTES_MAX: usize = 32 * 1024;

/// What a fast append takes at most, and how many in a row must have been fast before one is made on the
/// engine's thread. A disk that stalls holds the engine up once, and is then left to the thread.
const FAST_APPEND_MAX: Duration = Duration::from_millis(1);
const FAST_APPENDS_MIN: u32 = 16;

/// Tasks that may wait for the archive before the thread has to take the next append, and them.
const UNARCHIVED_INLINE_MAX: usize = 64;

/// Answers that can wait for the engine: one job at a time, and the archive's one word.
const DONE_MAX: usize = 4;

/// How long an end waits for the disk: once for the last answer, once for the threads. What hangs then is
/// left to the end of the process; nothing that was reported depends on it.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

impl Store {
    pub(crate) fn start(parts: StoreParts) -> std::io::Result<Self> {
        let (jobs, inbox) = blocking::sync_channel(1);
        let (outbox, done) = mpsc::channel(DONE_MAX);
        let (alive, ended) = blocking::channel();
        let stop = Arc::new(AtomicBool::new(false));
        // Ids that are on their way to the archive are taken before it has been read.
        parts.leaving.iter().for_each(|task| parts.index.announce(&task.id));
        let worker = Arc::new(Mutex::new(Worker {
            archive: ArchiveState::Opening,
            journal: parts.journal,
            unarchived: parts.leaving,
            clock: parts.clock,
            fast_appends: 0,
        }));
        let opening = ArchiveParts {
            dir: parts.archive_dir,
            options: parts.archive_options,
            bounds: parts.archive_bounds,
            index: parts.index,
            stop: Arc::clone(&stop),
        };
        let mut store = Self {
            jobs: Some(jobs),
            done,
            threads: Vec::new(),
            ended,
            stop,
            worker: Arc::clone(&worker),
            busy: false,
            gone: false,
        };
        // Each lets go of the files before it says that it has ended.
        let (shared, words, guard) = (Arc::clone(&worker), outbox.clone(), alive.clone());
        store.spawn("archive", move || {
            open_archive(&shared, opening, &words);
            drop(shared);
            drop(guard);
        })?;
        store.spawn("journal", move || {
            work(&worker, &inbox, &outbox);
            drop(worker);
            drop(alive);
        })?;
        Ok(store)
    }

    fn spawn(&mut self, name: &str, act: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(act)?);
        Ok(())
    }

    /// Appends at once, on the caller's thread, where that is sure to be short; gives the batch back where
    /// it is not.
    pub(crate) fn append_now(&mut self, batch: Batch) -> Result<Done, Batch> {
        if self.busy || batch.records.len() > INLINE_BYTES_MAX {
            return Err(batch);
        }
        let mut worker = match self.worker.try_lock() {
            Ok(worker) => worker,
            // The thread is making the next segment, or has panicked and will be missed.
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => return Err(batch),
        };
        if worker.is_fast() { Ok(worker.append_batch(batch)) } else { Err(batch) }
    }

    /// Whether a job is with the thread.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    pub(crate) fn append(&mut self, batch: Batch) {
        self.send(Job::Append(batch));
    }

    pub(crate) fn snapshot(&mut self, payload: Vec<u8>) {
        self.send(Job::Snapshot(payload));
    }

    pub(crate) fn ensure_room(&mut self) {
        self.send(Job::EnsureRoom);
    }

    fn send(&mut self, job: Job) {
        // One job at a time, so the channel always has a place; a thread that is gone shows in `done`.
        self.busy = self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok());
    }

    /// The next answer; `None`, once, when the thread is gone. Safe to drop and call again.
    pub(crate) async fn done(&mut self) -> Option<Done> {
        if self.gone {
            std::future::pending::<()>().await;
        }
        let done = self.done.recv().await;
        self.gone = done.is_none();
        if !matches!(done, Some(Done::ArchiveReady(_))) {
            self.busy = false;
        }
        done
    }

    /// The answer to the job that is with the thread, for an engine that ends; `None` when the disk does not
    /// give it in time.
    pub(crate) async fn last_done(&mut self) -> Option<Done> {
        let answer = async {
            loop {
                match self.done().await {
                    Some(Done::ArchiveReady(_)) => {}
                    other => return other,
                }
            }
        };
        tokio::time::timeout(CLOSE_WAIT, answer).await.ok().flatten()
    }

    /// Lets the threads finish and waits for them; journal and archive are closed then. A disk that hangs
    /// does not keep the daemon.
    pub(crate) fn close(mut self) {
        self.jobs = None;
        self.stop.store(true, Ordering::Relaxed);
        if self.ended.recv_timeout(CLOSE_WAIT) == Err(blocking::RecvTimeoutError::Timeout) {
            return tracing::error!(
                wait = ?CLOSE_WAIT,
                "the disk does not answer; leaving without it"
            );
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the journal panicked");
            }
        }
    }
}

/// A store that is dropped is not waited for, but does not go on reading either.
impl Drop for Store {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What is opened beside the first appends.
struct ArchiveParts {
    dir: Utf8PathBuf,
    options: Options,
    bounds: ArchiveBounds,
    index: Arc<ArchiveIndex>,
    stop: Arc<AtomicBool>,
}

/// Reads the archive, without the worker's lock, and hands it over with what has come to wait for it.
fn open_archive(worker: &Mutex<Worker>, parts: ArchiveParts, outbox: &mpsc::Sender<Done>) {
    let ArchiveParts { dir, options, bounds, index, stop } = parts;
    let opened = Archive::open(RealDisk::new(), &dir, options, bounds, index, &stop);
    let ready = match opened {
        Ok(archive) => {
            let mut worker = lock(worker);
            worker.archive = ArchiveState::Open(Box::new(archive));
            worker.archive_waiting();
            Ok(())
        }
        Err(error) => {
            lock(worker).archive = ArchiveState::Unusable;
            Err(error_text(&error))
        }
    };
    // An engine that has gone wants no answer.
    let _ = outbox.blocking_send(Done::ArchiveReady(ready));
}

/// What the journal's thread does, until the engine has gone.
fn work(worker: &Mutex<Worker>, inbox: &blocking::Receiver<Job>, outbox: &mpsc::Sender<Done>) {
    while let Ok(job) = inbox.recv() {
        let done = lock(worker).perform(job);
        if outbox.blocking_send(done).is_err() {
            break;
        }
        // The next segment is made while nobody waits; where the disk is full, admission asks again.
        let _ = lock(worker).journal.ensure_room();
    }
    let mut worker = lock(worker);
    if let ArchiveState::Open(_) = worker.archive
        && let Err(error) = worker.sync_archive()
    {
        tracing::error!(%error, "the archive could not be flushed");
    }
}

fn lock(worker: &Mutex<Worker>) -> MutexGuard<'_, Worker> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

enum ArchiveState {
    Opening,
    Open(Box<Archive>),
    Unusable,
}

struct Worker {
    /// Before the journal, whose lock is the last to go: whoever gets that one gets the archive too.
    archive: ArchiveState,
    journal: Journal<RealDisk>,
    /// Tasks that left the live set and are not in the archive yet. Bounded by the journal, which cannot
    /// forget them meanwhile and stops admission when it is full.
    unarchived: Vec<Leaving>,
    clock: Arc<dyn Clock>,
    /// How many appends in a row were fast.
    fast_appends: u32,
}

impl Worker {
    /// Whether an append is sure to be short: no allocation, nothing for the archive, a fast disk.
    fn is_fast(&self) -> bool {
        self.fast_appends >= FAST_APPENDS_MIN
            && self.journal.has_reserve()
            && self.unarchived.len() < UNARCHIVED_INLINE_MAX
    }

    /// Makes a batch durable. What leaves the live set with it waits for the archive.
    fn append_batch(&mut self, mut batch: Batch) -> Done {
        let began = Instant::now();
        let result = self.append(&batch);
        let fast = began.elapsed() <= FAST_APPEND_MAX;
        self.fast_appends = if fast { self.fast_appends.saturating_add(1) } else { 0 };
        if result.is_ok() {
            self.unarchived.append(&mut batch.leaving);
        }
        batch.clear();
        Done::Appended(result, batch, self.standing())
    }

    fn perform(&mut self, job: Job) -> Done {
        match job {
            Job::Append(batch) => {
                let done = self.append_batch(batch);
                self.archive_waiting();
                done
            }
            Job::Snapshot(payload) => {
                let result = self.sync_archive().and_then(|()| {
                    self.journal.install_snapshot(&payload).map_err(|error| error_text(&error))
                });
                Done::Snapshotted(result, self.standing())
            }
            Job::EnsureRoom => {
                let result =
                    self.journal.ensure_room().map(drop).map_err(|error| error_text(&error));
                Done::Room(result, self.standing())
            }
        }
    }

    fn append(&mut self, batch: &Batch) -> Result<(), String> {
        for payloads in self.appends(&batch.payloads()) {
            self.append_when_there_is_room(payloads).map_err(|error| error_text(&error))?;
        }
        Ok(())
    }

    /// Writes what waits for the archive. What cannot be written goes on waiting: the journal has it, and
    /// no snapshot forgets it before the archive has it too.
    fn archive_waiting(&mut self) {
        let ArchiveState::Open(archive) = &mut self.archive else { return };
        while !self.unarchived.is_empty() {
            let mut bytes = 0;
            let fits = |task: &&Leaving| {
                bytes += task.record.len();
                bytes <= ARCHIVE_WRITE_BYTES
            };
            let count = self.unarchived.iter().take_while(fits).count().max(1);
            let (part, _) = self.unarchived.split_at(count.min(self.unarchived.len()));
            if let Err(error) = archive.write(part) {
                tracing::warn!(
                    error = error_text(&error),
                    waiting = self.unarchived.len(),
                    "the archive takes nothing"
                );
                return;
            }
            self.unarchived.drain(..count);
        }
    }

    /// The reserve is there so that this never has to wait. Should it be used up all the same, nothing was
    /// written: the disk gets some time to find space before the engine is told.
    fn append_when_there_is_room(&mut self, payloads: &[&[u8]]) -> Result<(), AppendError> {
        for _ in 0..FULL_RETRIES_MAX {
            match self.journal.append(payloads) {
                Err(AppendError::Full(full)) => {
                    tracing::warn!(%full, "the journal waits for space");
                    std::thread::sleep(FULL_RETRY_PAUSE);
                }
                other => return other.map(drop),
            }
        }
        self.journal.append(payloads).map(drop)
    }

    /// Parts a batch that is too large for one append. Nothing is shown before all of it is durable,
    /// and a crash in between leaves whole steps.
    fn appends<'a>(&self, payloads: &'a [&'a [u8]]) -> Vec<&'a [&'a [u8]]> {
        let max = self.journal.batch_bytes_max();
        let (mut parts, mut rest) = (Vec::new(), payloads);
        let (mut count, mut bytes) = (0_usize, 0_u64);
        for payload in payloads {
            let len = payload.len() as u64;
            if count > 0 && ostler_journal::batch_cost(count as u64 + 1, bytes + len) > max {
                let (part, left) = rest.split_at(count);
                parts.push(part);
                (rest, count, bytes) = (left, 0, 0);
            }
            count += 1;
            bytes += len;
        }
        parts.push(rest);
        parts
    }

    /// Makes everything that left the live set durable in the archive.
    fn sync_archive(&mut self) -> Result<(), String> {
        let now = self.clock.now().wall;
        self.archive_waiting();
        let nothing_waits = self.unarchived.is_empty();
        match &mut self.archive {
            ArchiveState::Open(archive) if nothing_waits => {
                archive.sync(now).map_err(|error| error_text(&error))
            }
            ArchiveState::Open(_) => Err("the archive takes nothing".to_owned()),
            ArchiveState::Opening if nothing_waits => Ok(()),
            ArchiveState::Opening => Err("the archive is still being read".to_owned()),
            ArchiveState::Unusable => Err("the archive has failed".to_owned()),
        }
    }

    fn standing(&self) -> Standing {
        Standing {
            room: self.journal.room(),
            since_snapshot: self.journal.bytes_since_snapshot(),
            archive_failed: match &self.archive {
                ArchiveState::Opening => false,
                ArchiveState::Open(archive) => archive.has_failed(),
                ArchiveState::Unusable => true,
            },
        }
    }
}

/// An error with its causes, in one line: what the engine and the clients are told.
fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod archive_tests;
#[cfg(test)]
mod tests;
