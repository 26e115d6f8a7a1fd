//! Lanes: who writes. A lane owns a connection and does what waits for it in one transaction, so that
//! many requests share one commit.
//!
//! What machines say about tasks ([`Hot`]) is done by few statements for the whole batch. Other work
//! ([`Tx`]) is done one by one, each in a savepoint, so that what fails takes nothing else with it. When a
//! batch fails for a reason that may be one request's, each is done again alone.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ostler_core::clock::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::db::{Conn, DbError, Kind, Writes, args};
use super::faults::{Chain, is_answer, is_lost_race};
use super::{Shared, batch};
use crate::board::Hints;
use crate::metrics::{ByWhat, Word};
use crate::store::{Claim, Claimed, Stepped, StoreError, TaskCall, TaskRecord};

/// Requests that one commit takes.
const BATCH_MAX: usize = 64;
/// Requests that wait for a lane; more are answered that the server is busy.
const WAITING_MAX: usize = 4_096;
/// Lanes on PostgreSQL that take calls: while one writes much output the other goes on; more of them would only make
/// batches smaller. One more takes claims, which are longer; on SQLite that one does everything.
const POSTGRES_CALL_LANES: usize = 2;
/// Times that a transaction which lost a race is done again.
const RACES_MAX: u32 = 5;
/// How long a lane that lost its database waits before it tries the next batch.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// What machines say, and ask.
pub(crate) enum Hot {
    Call(TaskCall, oneshot::Sender<Result<Stepped, StoreError>>),
    Claim(Claim, oneshot::Sender<Result<Option<Claimed>, StoreError>>),
}

/// A transaction, for work that is done one by one.
pub(crate) struct Tx {
    pub(crate) conn: Conn,
    pub(crate) shared: Arc<Shared>,
    pub(crate) now: Timestamp,
    /// What others must learn when it is durable.
    pub(crate) hints: Hints,
    /// Tasks as they are stored when it is durable.
    pub(super) saved: Vec<TaskRecord>,
}

impl Tx {
    /// Records an event.
    pub(crate) async fn event(
        &mut self,
        workspace_id: i64,
        kind: &str,
        data: &serde_json::Value,
    ) -> Result<(), DbError> {
        self.events(vec![(workspace_id, kind.to_owned(), data.to_string())]).await
    }

    /// Records events.
    pub(crate) async fn events(
        &mut self,
        events: Vec<(i64, String, String)>,
    ) -> Result<(), DbError> {
        let mut writes = Writes::default();
        self.write_events(&mut writes, events);
        self.conn.write(writes).await.map(drop)
    }

    /// Records events with other things that are written.
    pub(super) fn write_events(
        &mut self,
        writes: &mut Writes<'_>,
        events: Vec<(i64, String, String)>,
    ) {
        for (workspace_id, _, _) in &events {
            self.hints.events_in(*workspace_id);
        }
        let columns = [
            ("workspace_id", Kind::Int),
            ("type", Kind::Text),
            ("data", Kind::Text),
            ("at", Kind::Int),
        ];
        let at = self.now.as_micros();
        let rows = events
            .into_iter()
            .map(|(workspace_id, kind, data)| args![workspace_id, kind, data, at])
            .collect();
        writes.insert("events", &columns, rows, "");
    }
}

/// Told whether the transaction was committed.
type Finish = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Work with a transaction; `None` when it failed and was answered.
type Work = Box<dyn for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Option<Finish>> + Send>;

enum Job {
    Hot(Hot),
    Work(Work),
}

/// The lanes of a store.
#[derive(Clone)]
pub(crate) struct Lanes {
    /// For claims, and on SQLite for everything.
    first: mpsc::Sender<Job>,
    /// For calls.
    others: Arc<[mpsc::Sender<Job>]>,
    tracker: TaskTracker,
    stop: tokio_util::sync::CancellationToken,
    /// How long a request waits for its batch and those before it.
    answer_wait: Duration,
}

impl Lanes {
    pub(super) fn start(
        shared: &Arc<Shared>,
        tracker: TaskTracker,
        stop: tokio_util::sync::CancellationToken,
    ) -> Self {
        let start = || {
            let (sender, jobs) = mpsc::channel(WAITING_MAX);
            let lane = Lane { shared: Arc::clone(shared), conn: None, is_lane: true };
            tracker.spawn(lane.run(jobs, stop.clone()));
            sender
        };
        let is_postgres = matches!(shared.pools, super::Pools::Postgres(_));
        let others = if is_postgres { POSTGRES_CALL_LANES } else { 0 };
        let (first, others) = (start(), (0..others).map(|_| start()).collect());
        Self { first, others, tracker, stop, answer_wait: shared.database_wait * 3 / 2 }
    }

    /// Calls of one task come to one lane.
    pub(crate) async fn call(&self, call: TaskCall) -> Result<Stepped, StoreError> {
        let (sender, answer) = oneshot::channel();
        let mut hasher = DefaultHasher::new();
        call.task_id.hash(&mut hasher);
        let at = hasher.finish() % self.others.len().max(1) as u64;
        let lane = self.others.get(usize::try_from(at).unwrap_or(0)).unwrap_or(&self.first);
        send(lane, Job::Hot(Hot::Call(call, sender)))?;
        answered(answer, self.answer_wait).await
    }

    /// Claims come to one lane, so that they do not pass one another's agents over.
    pub(crate) async fn claim(&self, claim: Claim) -> Result<Option<Claimed>, StoreError> {
        let (sender, answer) = oneshot::channel();
        send(&self.first, Job::Hot(Hot::Claim(claim, sender)))?;
        answered(answer, self.answer_wait).await
    }

    /// Ends the lanes when what waits is done.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Runs `work` in a transaction: on SQLite in the lane, on PostgreSQL on a connection of its own.
pub(super) async fn write<T, F>(
    shared: &Arc<Shared>,
    lanes: &Lanes,
    work: F,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
{
    let (sender, answer) = oneshot::channel();
    let work: Work = Box::new(move |tx| {
        Box::pin(async move {
            match work(tx).await {
                Ok(value) => {
                    let finish: Finish = Box::new(move |committed| {
                        // A requester that went away does not read the answer.
                        let _ = sender.send(committed.map(|()| value));
                    });
                    Some(finish)
                }
                Err(error) => {
                    let _ = sender.send(Err(error));
                    None
                }
            }
        })
    });
    if matches!(shared.pools, super::Pools::Postgres(_)) {
        let mut lane = Lane { shared: Arc::clone(shared), conn: None, is_lane: false };
        lanes.tracker.spawn(async move { lane.bounded_turn(vec![Job::Work(work)]).await });
    } else {
        send(&lanes.first, Job::Work(work))?;
    }
    answered(answer, lanes.answer_wait).await
}

/// What came of it, or that the server is busy: then it may be done later, or may have been.
async fn answered<T>(
    answer: oneshot::Receiver<Result<T, StoreError>>,
    wait: Duration,
) -> Result<T, StoreError> {
    match tokio::time::timeout(wait, answer).await {
        Ok(Ok(answer)) => answer,
        _ => Err(StoreError::Busy),
    }
}

fn send(lane: &mpsc::Sender<Job>, job: Job) -> Result<(), StoreError> {
    lane.try_send(job).map_err(|_| StoreError::Busy)
}

struct Lane {
    shared: Arc<Shared>,
    conn: Option<Conn>,
    /// Lives on, with a connection that is set up for it; else it does one thing with one of the pool.
    is_lane: bool,
}

impl Lane {
    async fn connect(&self) -> Result<Conn, StoreError> {
        if self.is_lane { self.shared.connect_lane().await } else { self.shared.connect().await }
    }

    async fn run(
        mut self,
        mut jobs: mpsc::Receiver<Job>,
        stop: tokio_util::sync::CancellationToken,
    ) {
        loop {
            let first = tokio::select! {
                biased;
                job = jobs.recv() => job,
                () = stop.cancelled() => None,
            };
            let Some(first) = first else { return };
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && let Ok(job) = jobs.try_recv()
            {
                batch.push(job);
            }
            self.bounded_turn(batch).await;
        }
    }

    /// Does a batch, or gives up a database that does not answer. Nobody is told anything then, which says that
    /// the server cannot take it now.
    async fn bounded_turn(&mut self, jobs: Vec<Job>) {
        let wait = self.shared.database_wait;
        if tokio::time::timeout(wait, self.turn(jobs)).await.is_err() {
            self.shared.metrics.database_errors.inc();
            tracing::warn!("the database does not answer; the connection to it is given up");
        }
    }

    /// Does a batch in one transaction; every job is answered.
    async fn turn(&mut self, jobs: Vec<Job>) {
        let (mut hot, mut works) = (Vec::new(), Vec::new());
        for job in jobs {
            match job {
                // A task would be given to somebody who went away, and be held for a whole lease.
                Job::Hot(Hot::Claim(_, answer)) if answer.is_closed() => {}
                Job::Hot(job) => hot.push(job),
                Job::Work(work) => works.push(work),
            }
        }
        // Whoever says something and goes away is not waited for, but it is still done once it is here.
        if !hot.is_empty() {
            self.shared.metrics.batches.observe(hot.len() as f64);
            self.hot(hot).await;
        }
        if !works.is_empty() {
            self.shared.metrics.batches.observe(works.len() as f64);
            self.works(works).await;
        }
    }

    async fn begin(&mut self) -> Result<Tx, StoreError> {
        let conn = self.begun().await?;
        Ok(self.tx(conn))
    }

    fn tx(&self, conn: Conn) -> Tx {
        Tx {
            conn,
            shared: Arc::clone(&self.shared),
            now: (self.shared.clock)(),
            hints: Hints::default(),
            saved: Vec::new(),
        }
    }

    /// A connection that has begun a transaction. The one that was kept may be dead by now; nothing was
    /// done on it yet, so another one may begin instead.
    async fn begun(&mut self) -> Result<Conn, StoreError> {
        if let Some(mut conn) = self.conn.take() {
            match conn.begin().await {
                Ok(()) => return Ok(conn),
                Err(error) => tracing::debug!(%error, "a lane's connection is replaced"),
            }
        }
        let mut conn = self.connect().await?;
        conn.begin().await?;
        Ok(conn)
    }

    /// Commits; afterwards tells others.
    async fn commit(&mut self, mut tx: Tx) -> Result<(), StoreError> {
        tx.conn.commit().await?;
        self.shared.ahead.forget();
        self.committed(tx);
        Ok(())
    }

    /// What a transaction did is durable: others may know.
    fn committed(&mut self, tx: Tx) {
        self.conn = Some(tx.conn);
        self.shared.known.learn(tx.saved);
        (self.shared.on_hints)(tx.hints);
    }

    /// Gives up a transaction; a connection that cannot is closed.
    async fn rollback(&mut self, mut tx: Tx) {
        if tx.conn.rollback().await.is_ok() {
            self.conn = Some(tx.conn);
        }
    }

    async fn hot(&mut self, jobs: Vec<Hot>) {
        let jobs = self.guessed(jobs).await;
        if !jobs.is_empty() {
            self.read_and_done(jobs).await;
        }
    }

    /// Does what can be done with one statement; what is left.
    async fn guessed(&mut self, jobs: Vec<Hot>) -> Vec<Hot> {
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => match self.connect().await {
                Ok(conn) => conn,
                Err(error) => {
                    self.refuse(jobs, &error).await;
                    return Vec::new();
                }
            },
        };
        let mut tx = self.tx(conn);
        let written = match batch::guess(&mut tx, &jobs).await {
            Ok(None) => {
                self.conn = Some(tx.conn);
                return jobs;
            }
            Ok(Some(guess)) => {
                let written = tx.conn.write_alone(guess.writes).await;
                let ids = guess.tasks.iter().map(|task| task.id.as_str());
                if written.is_err() {
                    self.shared.known.forget(ids);
                }
                written
                    .map(|()| (guess.outcomes, guess.tasks, guess.left))
                    .map_err(StoreError::Database)
            }
            Err(error) => Err(error),
        };
        let (outcomes, tasks, left) = match written {
            Ok(written) => written,
            Err(error) => {
                self.guessed_as("outdated");
                tracing::debug!(error = %Chain(&error), "a guess was not saved");
                // When the connection broke it may be done: doing it again gives the first answer.
                if is_answer(&error) {
                    self.conn = Some(tx.conn);
                }
                return jobs;
            }
        };
        self.guessed_as("saved");
        self.shared.ahead.changed(&tasks);
        if let Some(left) = left {
            self.shared.ahead.keep(left);
        }
        tx.saved = tasks;
        self.committed(tx);
        let mut left = Vec::new();
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            match outcome {
                Some(outcome) => outcome.tell(job),
                None => left.push(job),
            }
        }
        left
    }

    fn guessed_as(&self, what: &'static str) {
        self.shared.metrics.guesses.get_or_create(&ByWhat { what: Word(what) }).inc();
    }

    /// Reads the tasks and does all of it in one transaction.
    async fn read_and_done(&mut self, jobs: Vec<Hot>) {
        let mut lost = 0;
        loop {
            let tx = match self.begin().await {
                Ok(tx) => tx,
                Err(error) => return self.refuse(jobs, &error).await,
            };
            let error = match self.try_hot(tx, &jobs).await {
                Ok(outcomes) => {
                    for (job, outcome) in jobs.into_iter().zip(outcomes) {
                        outcome.tell(job);
                    }
                    return;
                }
                Err(error) => error,
            };
            if is_lost_race(&error) && lost < RACES_MAX {
                lost += 1;
                continue;
            }
            return self.hot_failed(jobs, error).await;
        }
    }

    async fn hot_failed(&mut self, jobs: Vec<Hot>, error: StoreError) {
        if jobs.len() > 1 && is_answer(&error) {
            for job in jobs {
                Box::pin(self.read_and_done(vec![job])).await;
            }
            return;
        }
        self.refuse(jobs, &error).await;
    }

    async fn refuse(&mut self, jobs: Vec<Hot>, error: &StoreError) {
        self.shared.metrics.database_errors.inc();
        tracing::warn!(error = %Chain(error), requests = jobs.len(), "a transaction failed");
        self.conn = None;
        for job in jobs {
            job.refuse();
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }

    async fn try_hot(
        &mut self,
        mut tx: Tx,
        jobs: &[Hot],
    ) -> Result<Vec<batch::Outcome>, StoreError> {
        match batch::run(&mut tx, jobs).await {
            Ok(outcomes) => {
                self.commit(tx).await?;
                Ok(outcomes)
            }
            Err(error) => {
                self.rollback(tx).await;
                Err(error)
            }
        }
    }

    async fn works(&mut self, works: Vec<Work>) {
        let mut tx = match self.begin().await {
            Ok(tx) => tx,
            // Dropping the work answers that the server cannot take it now.
            Err(error) => {
                self.shared.metrics.database_errors.inc();
                tracing::warn!(error = %Chain(&error), "no transaction could begin");
                return tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        };
        let mut finishes = Vec::new();
        for work in works {
            if tx.conn.execute("SAVEPOINT work", Vec::new()).await.is_err() {
                continue;
            }
            let (hints, saved) = (tx.hints.clone(), tx.saved.len());
            let end = match work(&mut tx).await {
                Some(finish) => {
                    finishes.push(finish);
                    "RELEASE SAVEPOINT work"
                }
                None => {
                    tx.hints = hints;
                    tx.saved.truncate(saved);
                    "ROLLBACK TO SAVEPOINT work"
                }
            };
            if tx.conn.execute(end, Vec::new()).await.is_err() {
                break;
            }
        }
        if finishes.is_empty() {
            return self.rollback(tx).await;
        }
        let committed = self.commit(tx).await;
        if let Err(error) = &committed {
            self.shared.metrics.database_errors.inc();
            tracing::warn!(error = %Chain(error), "a commit failed");
            self.conn = None;
        }
        for finish in finishes {
            finish(committed.as_ref().copied().map_err(|_| StoreError::Busy));
        }
    }
}

impl Hot {
    fn refuse(self) {
        // A requester that went away does not read the answer.
        match self {
            Self::Call(_, answer) => drop(answer.send(Err(StoreError::Busy))),
            Self::Claim(_, answer) => drop(answer.send(Err(StoreError::Busy))),
        }
    }
}
