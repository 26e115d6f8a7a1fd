//! The store on SQLite and on PostgreSQL: the same SQL, the same rules, two kinds of connection.
//!
//! Owns: opening and migrating a database, its pools, the [`lane`]s that write. On SQLite one lane writes
//! everything; on PostgreSQL a few lanes write what machines say, and other transactions have connections of
//! their own. A write never runs in the task of an HTTP request, which ends when its client goes away.

pub(crate) mod ahead;
pub(crate) mod backup;
pub(crate) mod batch;
mod claim;
pub(crate) mod counts;
pub(crate) mod db;
mod delivered;
pub(crate) mod events;
mod facts;
mod faults;
mod known;
pub(crate) mod lane;
mod machines;
mod migrate;
mod notify;
pub(crate) mod people;
pub(crate) mod presence;
pub(crate) mod queue;
pub(crate) mod retention;
pub(crate) mod rows;
pub(crate) mod sweep;
pub(crate) mod transfer;

use std::io::ErrorKind;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use ostler_core::clock::Timestamp;
use ostler_core::lease::Policy;
use rustix::fs::Access;
use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgConnection, PgPool, SqlitePool};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::db::{Conn, DbError};
use self::lane::{Lanes, Tx};
use super::{
    Claim, Claimed, LeaseStore, Registered, Registration, Runtime, Seen, Stepped, StoreError,
    Sweep, Swept, TaskCall,
};
use crate::board::Hints;
use crate::metrics::Metrics;
use crate::secrets::Keyring;

/// Connections that read from SQLite at once; more wait their turn.
const SQLITE_READERS_MAX: u32 = 4;
/// Connections to PostgreSQL, of one server; more wait their turn.
const POSTGRES_CONNECTIONS_MAX: u32 = 16;
/// A request waits for a connection for this part of `database_wait`, by default 5 s; then it is answered 503.
const ACQUIRE_WAIT_PARTS: u32 = 4;
/// How long SQLite waits for another process (a backup, a command) that writes.
const SQLITE_BUSY_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long to wait before a file that is locked is opened again.
const LOCKED_PAUSE: Duration = Duration::from_millis(20);
/// What makes PostgreSQL notice within a minute that a server is gone with its machine or network, and end what it
/// had begun.
const KEEPALIVES: &str = "SELECT set_config('tcp_keepalives_idle', '30', false), \
     set_config('tcp_keepalives_interval', '10', false), set_config('tcp_keepalives_count', '3', false)";
/// How long to wait before PostgreSQL is tried again.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);
/// What PostgreSQL says while it starts (`cannot_connect_now`) and while others have all its connections
/// (`too_many_connections`).
const NOT_YET: [&str; 2] = ["57P03", "53300"];
/// What it says of a database that it has not (`invalid_catalog_name`).
const NO_DATABASE: &str = "3D000";
/// Statements that a connection keeps prepared.
const STATEMENTS_MAX: usize = 512;

/// Where "now" comes from; a test turns it by hand.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Told what a transaction made, after its commit.
pub(crate) type OnHints = Arc<dyn Fn(Hints) + Send + Sync>;

#[derive(Clone)]
enum Pools {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// What all transactions share.
pub(crate) struct Shared {
    pools: Pools,
    database_wait: Duration,
    pub(crate) keyring: Keyring,
    pub(crate) policy: Policy,
    pub(crate) clock: Clock,
    pub(crate) on_hints: OnHints,
    pub(crate) metrics: Metrics,
    known: known::Known,
    pub(crate) ahead: Arc<ahead::Ahead>,
}

/// The store.
#[derive(Clone)]
pub(crate) struct SqlStore {
    shared: Arc<Shared>,
    lanes: Lanes,
    /// Holds SQLite's file open. When its last connection ends, SQLite removes the log and its index, which it could
    /// not make anew on a full disk: then nothing could be read either.
    anchor: Arc<Mutex<Option<Conn>>>,
}

/// How to open a store.
pub(crate) struct Opening<'a> {
    /// `sqlite:<file>` or `postgres://…`.
    pub(crate) url: &'a str,
    /// How long it may take over one thing.
    pub(crate) database_wait: Duration,
    pub(crate) keyring: Keyring,
    pub(crate) policy: Policy,
    pub(crate) clock: Clock,
    pub(crate) on_hints: OnHints,
}

impl SqlStore {
    /// Opens the database, makes it if it is a file that is not there, and brings its tables up to date.
    pub(crate) async fn open(opening: Opening<'_>) -> Result<Self, OpenError> {
        let (pools, anchor) = opened(&opening).await?;
        let tracker = TaskTracker::new();
        let stop = CancellationToken::new();
        let ahead = Arc::<ahead::Ahead>::default();
        let on_hints = match &pools {
            Pools::Sqlite(_) => opening.on_hints,
            Pools::Postgres(pool) => {
                tell_others(pool, (opening.on_hints, Arc::clone(&ahead)), &tracker, &stop)
            }
        };
        let shared = Arc::new(Shared {
            pools,
            database_wait: opening.database_wait,
            keyring: opening.keyring,
            policy: opening.policy,
            clock: opening.clock,
            on_hints,
            metrics: Metrics::new(),
            known: known::Known::default(),
            ahead,
        });
        let lanes = Lanes::start(&shared, tracker, stop);
        Ok(Self { shared, lanes, anchor: Arc::new(Mutex::new(anchor)) })
    }

    /// PostgreSQL, which other servers may use as well.
    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.shared.pools, Pools::Postgres(_))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.shared.clock)()
    }

    /// A connection to read with.
    pub(crate) async fn reader(&self) -> Result<Conn, StoreError> {
        Ok(self.shared.connect().await?.bounded(self.shared.database_wait))
    }

    /// Asks the database something, which fails when it cannot serve. The tables are up to date since the start;
    /// that they are there is a part of the question.
    pub(crate) async fn answers(&self) -> Result<(), StoreError> {
        let mut conn = self.reader().await?;
        conn.row("SELECT value FROM meta WHERE name = 'key'", Vec::new()).await?;
        Ok(())
    }

    /// Runs `work` in a transaction of its own; what it returns is answered when it is durable.
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
    {
        lane::write(&self.shared, &self.lanes, work).await
    }

    /// Finishes what was begun and closes the database.
    pub(crate) async fn close(&self) {
        self.lanes.close().await;
        drop(self.anchor.lock().unwrap_or_else(PoisonError::into_inner).take());
        match &self.shared.pools {
            Pools::Sqlite(pool) => pool.close().await,
            Pools::Postgres(pool) => pool.close().await,
        }
    }
}

/// What this server commits is told to its own board, and to the other servers.
fn tell_others(
    pool: &PgPool,
    (own, ahead): (OnHints, Arc<ahead::Ahead>),
    tracker: &TaskTracker,
    stop: &CancellationToken,
) -> OnHints {
    let told = Arc::clone(&own);
    let hear: OnHints = Arc::new(move |hints| {
        ahead.forget();
        told(hints);
    });
    let others = notify::start(pool.clone(), hear, tracker, stop.clone());
    Arc::new(move |hints: Hints| {
        if hints.is_empty() {
            return;
        }
        own(hints.clone());
        // A hint that does not fit is lost; the others look for themselves.
        let _ = others.try_send(hints);
    })
}

impl Shared {
    pub(crate) async fn connect(&self) -> Result<Conn, StoreError> {
        self.connect_raw().await.map_err(StoreError::Database)
    }

    /// A connection for a lane, which is closed when the lane gives it up. A lane's few statements find every row
    /// by an index, and should do so whatever PostgreSQL knows of the tables: planned once, at a time when a table
    /// may still be empty.
    async fn connect_lane(&self) -> Result<Conn, StoreError> {
        let mut conn = self.connect().await?;
        if conn.is_postgres() {
            conn.close_on_drop();
            let wait_ms = self.database_wait.as_millis();
            let set = format!(
                "SELECT set_config('statement_timeout', '{wait_ms}', false), \
                       set_config('plan_cache_mode', 'force_generic_plan', false), \
                       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false), \
                       set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false)"
            );
            conn.execute(&set, Vec::new()).await?;
        } else {
            // Another connection counts the file's versions anew.
            self.ahead.forget();
        }
        Ok(conn)
    }

    /// The same, for work that has errors of its own.
    pub(crate) async fn connect_raw(&self) -> Result<Conn, sqlx::Error> {
        let connected = match &self.pools {
            Pools::Sqlite(pool) => pool.acquire().await.map(Conn::sqlite),
            Pools::Postgres(pool) => pool.acquire().await.map(Conn::postgres),
        };
        connected.inspect_err(|_| {
            self.metrics.database_errors.inc();
        })
    }
}

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is none of ours. It may hold a password, so it is not shown.
    #[error("the database URL is not understood: write sqlite:<file> or postgres://user@host/name")]
    Url,
    /// It cannot be opened.
    #[error("cannot open the database")]
    Open(#[source] sqlx::Error),
    /// PostgreSQL does not answer there, or lets us not in.
    #[error("cannot connect to PostgreSQL at {place}: {why}")]
    Connect {
        /// Host and port, or the socket's folder.
        place: String,
        /// What the system or PostgreSQL says.
        why: String,
        /// There is no such database.
        is_missing: bool,
    },
    /// Its tables cannot be brought up to date.
    #[error("cannot bring the database's tables up to date")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// A newer program has changed its tables.
    #[error(
        "the database was made by a newer Ostler (its tables have version {found}, this program knows {known})"
    )]
    Newer {
        /// What it has.
        found: i64,
        /// What we know.
        known: i64,
    },
    /// Its secrets were sealed with another key.
    #[error("the database was made with another secret key")]
    OtherKey,
}

impl OpenError {
    /// Another program's tables are there.
    pub fn is_foreign(&self) -> bool {
        let Self::Migrate(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) =
            self
        else {
            return matches!(self, Self::Migrate(MigrateError::VersionMismatch(_)));
        };
        let error = error.as_database_error();
        // `duplicate_table`; SQLite has a text only.
        error.is_some_and(|it| {
            it.code().as_deref() == Some("42P07") || it.message().contains("already exists")
        })
    }
}

/// The file of a `sqlite:` URL.
pub(crate) fn sqlite_file(url: &str) -> Option<&str> {
    let file = url.strip_prefix("sqlite:")?;
    let file = file.strip_prefix("//").unwrap_or(file);
    Some(file).filter(|file| !file.is_empty())
}

/// SQLite gives the files that it puts beside a database the database's mode. A file that is there is not opened:
/// whoever closes it gives up all locks that SQLite holds on it for this process.
fn make_owner_only(file: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if rustix::fs::access(file, Access::READ_OK | Access::WRITE_OK).is_ok() {
        return Ok(());
    }
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(file)
        .map(drop)
}

/// The pools of a database whose tables are up to date. Several programs that open a new SQLite file at once find it
/// locked at moments in which SQLite does not wait by itself, as when its log is begun.
async fn opened(opening: &Opening<'_>) -> Result<(Pools, Option<Conn>), OpenError> {
    let open = async || {
        let pools = Pools::open(opening.url, opening.database_wait).await?;
        let anchor = pools.anchor().await.map_err(OpenError::Open)?;
        migrate::run(&pools, &opening.keyring).await?;
        Ok((pools, anchor))
    };
    let since = std::time::Instant::now();
    loop {
        match open().await {
            Err(error) if faults::is_locked(&error) && since.elapsed() < SQLITE_BUSY_WAIT_MAX => {
                tokio::time::sleep(LOCKED_PAUSE).await;
            }
            done => return done,
        }
    }
}

/// One connection. What is not there yet, as when both are just being started, is tried again for a while. (A pool
/// does that too, and then says only that it took too long.)
async fn connect(
    options: &PgConnectOptions,
    wait_max: Duration,
) -> Result<PgConnection, OpenError> {
    let since = std::time::Instant::now();
    let mut last = None;
    loop {
        let left = wait_max.saturating_sub(since.elapsed());
        let source = match tokio::time::timeout(left, options.connect()).await {
            Ok(Ok(conn)) => return Ok(conn),
            Ok(Err(error)) => error,
            // What it said before tells more than that there was no time for another try.
            Err(_) => last.unwrap_or_else(|| sqlx::Error::Io(ErrorKind::TimedOut.into())),
        };
        let is_soon = match &source {
            sqlx::Error::Io(_) => true,
            sqlx::Error::Database(error) => {
                error.code().is_some_and(|code| NOT_YET.contains(&&*code))
            }
            _ => false,
        };
        if !is_soon || left < CONNECT_PAUSE {
            let place = match options.get_socket() {
                Some(folder) => folder.display().to_string(),
                None => format!("{}:{}", options.get_host(), options.get_port()),
            };
            let (why, is_missing) = match &source {
                sqlx::Error::Io(error) => (error.to_string(), false),
                sqlx::Error::Database(error) => {
                    (error.message().to_owned(), error.code().as_deref() == Some(NO_DATABASE))
                }
                error => (error.to_string(), false),
            };
            return Err(OpenError::Connect { place, why, is_missing });
        }
        last = Some(source);
        tokio::time::sleep(CONNECT_PAUSE).await;
    }
}

impl Pools {
    async fn open(url: &str, database_wait: Duration) -> Result<Self, OpenError> {
        let acquire_wait = database_wait / ACQUIRE_WAIT_PARTS;
        if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            let options = PgConnectOptions::from_str(url).map_err(|_| OpenError::Url)?;
            let options =
                options.application_name("ostler").statement_cache_capacity(STATEMENTS_MAX);
            // Whether it can be closed well does not matter.
            let _ = connect(&options, acquire_wait).await?.close().await;
            let pool = PgPoolOptions::new()
                .max_connections(POSTGRES_CONNECTIONS_MAX)
                .after_connect(|conn, _| {
                    Box::pin(async move { conn.execute(KEEPALIVES).await.map(drop) })
                })
                .acquire_timeout(acquire_wait)
                .connect_with(options)
                .await
                .map_err(OpenError::Open)?;
            return Ok(Self::Postgres(pool));
        }
        let file = sqlite_file(url).ok_or(OpenError::Url)?;
        make_owner_only(file).map_err(|error| OpenError::Open(sqlx::Error::Io(error)))?;
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(SQLITE_BUSY_WAIT_MAX)
            .statement_cache_capacity(STATEMENTS_MAX);
        let pool = SqlitePoolOptions::new()
            // One more for the lane, which holds its own, and one that is only held.
            .max_connections(SQLITE_READERS_MAX + 2)
            .acquire_timeout(acquire_wait)
            .connect_with(options)
            .await
            .map_err(OpenError::Open)?;
        Ok(Self::Sqlite(pool))
    }

    /// On SQLite a connection that has opened the file, its log and the log's index.
    async fn anchor(&self) -> Result<Option<Conn>, DbError> {
        let Self::Sqlite(pool) = self else { return Ok(None) };
        let mut conn = Conn::sqlite(pool.acquire().await?);
        conn.rows("SELECT 1 FROM sqlite_schema LIMIT 1", Vec::new()).await?;
        Ok(Some(conn))
    }
}

impl LeaseStore for SqlStore {
    async fn machine_register(&self, registration: Registration) -> Result<Registered, StoreError> {
        self.write(move |tx| Box::pin(machines::register(tx, registration))).await
    }

    async fn machine_find(
        &self,
        workspace_id: i64,
        daemon_id: &str,
    ) -> Result<Vec<Runtime>, StoreError> {
        machines::find(&mut self.reader().await?, workspace_id, daemon_id).await
    }

    async fn machines_seen(&self, seen: Vec<Seen>) -> Result<(), StoreError> {
        self.write(move |tx| Box::pin(machines::seen(tx, seen))).await
    }

    async fn task_claim(&self, claim: Claim) -> Result<Option<Claimed>, StoreError> {
        self.lanes.claim(claim).await
    }

    async fn task_call(&self, call: TaskCall) -> Result<Stepped, StoreError> {
        self.lanes.call(call).await
    }

    async fn task_queue(
        &self,
        workspace_id: i64,
        issue_id: i64,
        agent_id: i64,
    ) -> Result<String, StoreError> {
        self.write(move |tx| Box::pin(rows::queue(tx, workspace_id, issue_id, agent_id))).await
    }

    async fn tasks_unpark(&self) -> Result<u64, StoreError> {
        self.write(|tx| Box::pin(sweep::unpark(tx))).await
    }

    async fn leases_sweep(&self, sweep: Sweep) -> Result<Swept, StoreError> {
        self.write(move |tx| Box::pin(sweep::run(tx, sweep))).await
    }
}
