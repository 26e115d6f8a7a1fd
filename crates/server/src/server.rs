//! One server, from start to end: opens the store, listens, sweeps, and stops in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use ostler_core::clock::Timestamp;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::Admin;
use crate::app::App;
use crate::auth::{self, Tokens};
use crate::board::{Board, Hints, LOOK_EVERY};
use crate::lock::LockFile;
use crate::machines::{Machines, WRITE_SEEN_EVERY};
use crate::secrets::Keyring;
use crate::serve::{self, TlsError};
use crate::settings::Settings;
use crate::store::StoreError;
use crate::store::sql::{Clock, OpenError, Opening, SqlStore, sqlite_file};
use crate::sweeper;
use crate::{events, health, http, machine, observe, people, retention};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database cannot be used.
    #[error("cannot use the database")]
    Database(#[from] OpenError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address} for {what}")]
    Listen {
        /// `requests` or `metrics`.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another server serves the SQLite file.
    #[error("another server serves {file}")]
    Taken {
        /// The database.
        file: Utf8PathBuf,
    },
    /// It is not known whether another server serves the SQLite file.
    #[error("cannot lock {file}")]
    Lock {
        /// The file that is locked.
        file: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Certificate or key cannot be used.
    #[error("there is no TLS")]
    Tls(#[from] TlsError),
}

/// A server that serves.
pub struct Server {
    pub(crate) app: Arc<App>,
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    stop: CancellationToken,
    tracker: TaskTracker,
    /// Of a SQLite file; free when the database is closed.
    _lock: Option<LockFile>,
}

/// The machine's own clock.
pub fn system_clock() -> Clock {
    Arc::new(|| Timestamp::from_micros(jiff::Timestamp::now().as_microsecond()))
}

impl Server {
    /// Opens the database, brings its tables up to date and listens.
    pub async fn start(
        settings: Settings,
        keyring: Keyring,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let tls = match &settings.tls {
            Some((cert, key)) => Some(serve::tls(cert, key)?),
            None => None,
        };
        let lock = sqlite_file(&settings.database).map(lock).transpose()?;
        let board = Arc::new(Board::new());
        let tokens = Arc::new(Tokens::new());
        let machines = Arc::new(Machines::new());
        let hear = {
            let (board, tokens, machines) =
                (Arc::clone(&board), Arc::clone(&tokens), Arc::clone(&machines));
            move |hints: Hints| heard(&board, &tokens, &machines, &hints)
        };
        let store = SqlStore::open(Opening {
            url: &settings.database,
            database_wait: settings.database_wait,
            keyring,
            policy: settings.policy,
            clock,
            on_hints: Arc::new(hear),
        });
        let store = store.await?;
        let (address, listener) = listen("requests", settings.listen).await?;
        let metrics_listener = match settings.metrics_listen {
            Some(address) => Some(listen("metrics", address).await?),
            None => None,
        };
        let stopping = CancellationToken::new();
        let waits = settings.waits;
        let app = App::new(settings, store, (board, tokens, machines), stopping.clone());
        let app = Arc::new(app);
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        let streams = axum::Router::new()
            .route("/api/v1/events", axum::routing::get(events::follow))
            .with_state(Arc::clone(&app));
        let router = machine::router(Arc::clone(&app))
            .merge(people::router(Arc::clone(&app)))
            .merge(streams)
            .merge(health::router(Arc::clone(&app)));
        let router = http::json_refusals(router);
        let router = observe::observed(router, Arc::clone(&app));
        // Before machines are heard of by a clock that is perhaps wrong.
        let trust = retention::Trust::of(&app).await.ok();
        tracker.spawn(serve::run(listener, tls, router, waits, stopping.clone()));
        let mut metrics_address = None;
        if let Some((address, listener)) = metrics_listener {
            metrics_address = Some(address);
            let router = http::json_refusals(health::metrics_router(Arc::clone(&app)));
            tracker.spawn(serve::run(listener, None, router, waits, stopping.clone()));
        }
        tracker.spawn(every(LOOK_EVERY, stop.clone(), Arc::clone(&app), Chore::Look));
        tracker.spawn(every(auth::ASK_EVERY, stop.clone(), Arc::clone(&app), Chore::Ask));
        tracker.spawn(every(WRITE_SEEN_EVERY, stop.clone(), Arc::clone(&app), Chore::Seen));
        tracker.spawn(sweeper::run(stop.clone(), Arc::clone(&app)));
        tracker.spawn(retention::run(stop.clone(), Arc::clone(&app), trust));
        Ok(Self { app, address, metrics_address, stop, tracker, _lock: lock })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its metrics are.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Administration with the server's own connections.
    pub fn admin(&self) -> Admin {
        Admin::of(Arc::clone(&self.app))
    }

    /// Finishes requests that are on their way, writes down what is known, and closes the database. Leases
    /// stay with their machines. What the database has not answered in time is left to it: it may be done, or not, as
    /// with a server that is killed.
    pub async fn stop(self) {
        let wait = self.app.settings.database_wait * 3 / 2;
        self.app.stopping.cancel();
        self.stop.cancel();
        self.tracker.close();
        let ended = async {
            self.tracker.wait().await;
            if let Err(error) = self.app.write_seen().await {
                tracing::warn!(%error, "cannot write down which machines were heard of");
            }
            self.app.store.close().await;
        };
        if tokio::time::timeout(wait, ended).await.is_err() {
            tracing::warn!("the database does not answer; the server stops without it");
        }
    }
}

/// A server remembers what it has read; two on one SQLite file would believe what the other has changed.
fn lock(database: &str) -> Result<LockFile, StartError> {
    let file = Utf8PathBuf::from(format!("{database}.lock"));
    match LockFile::take(&file) {
        Ok(Some(lock)) => Ok(lock),
        Ok(None) => Err(StartError::Taken { file: database.into() }),
        Err(source) => Err(StartError::Lock { file, source }),
    }
}

async fn listen(
    what: &'static str,
    address: SocketAddr,
) -> Result<(SocketAddr, TcpListener), StartError> {
    let listen =
        async { TcpListener::bind(address).await.and_then(|it| Ok((it.local_addr()?, it))) };
    listen.await.map_err(|source| StartError::Listen { what, address, source })
}

/// A transaction was committed, here or on another server.
fn heard(board: &Board, tokens: &Tokens, machines: &Machines, hints: &Hints) {
    if hints.is_empty() {
        return;
    }
    board.hear(hints);
    for (workspace_id, daemon_id) in &hints.machines {
        machines.forget(*workspace_id, daemon_id);
    }
    if hints.tokens {
        tokens.forget();
    }
}

#[derive(Clone, Copy)]
enum Chore {
    Look,
    Ask,
    Seen,
}

async fn every(period: Duration, stop: CancellationToken, app: Arc<App>, chore: Chore) {
    let mut failed = false;
    loop {
        let done = match chore {
            Chore::Look => look(&app).await.inspect(|()| app.presence.answered()),
            Chore::Ask => app.tokens.ask(&app.store).await.inspect(|()| app.presence.answered()),
            Chore::Seen => app.write_seen().await,
        };
        // Once for each outage, not once a round.
        match done {
            Ok(()) => failed = false,
            Err(error) if !failed => {
                failed = true;
                tracing::warn!(%error, "the database cannot be asked");
            }
            Err(_) => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(period) => {}
        }
    }
}

/// Looks which agents have work, ends pauses that are over, and looks for which machines decisions wait.
async fn look(app: &App) -> Result<(), StoreError> {
    let generation = app.board.generation();
    let (offers, is_all) = app.store.offers().await?;
    app.board.looked(offers, is_all, generation);
    if let Some(decisions) = app.store.decisions().await? {
        app.machines.compare(&decisions);
    }
    Ok(())
}
