//! The daemon: takes the endpoint, recovers, serves, and ends in good order.
//!
//! Owns the order of start and stop. Deliberately absent: signals and logging, which belong to the
//! program around it, so that an application can embed a daemon.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ostler_core::clock::Clock;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::clock::SystemClock;
use crate::endpoint::{Claim, Endpoint, EndpointError};
use crate::engine::{Engine, EngineHandle, RecoverError, recover};
use crate::runner::TaskRunner;
use crate::settings::Settings;
use crate::wire::Listener;

/// How long connections may take to be told the last events.
const GOODBYE_WAIT: Duration = Duration::from_millis(500);

/// Why a daemon did not start. Nothing was changed that was in use.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The runtime directory, its lock or the socket cannot be had.
    #[error("the endpoint cannot be used")]
    Endpoint(#[from] EndpointError),
    /// The journal cannot be used.
    #[error("the recovery data cannot be used")]
    Recover(#[from] RecoverError),
    /// The system refused something.
    #[error("the daemon could not be set up")]
    Io(#[from] std::io::Error),
}

impl StartError {
    /// Whether another daemon has the place; it may be about to leave it.
    pub fn is_another_daemon(&self) -> bool {
        matches!(self, Self::Endpoint(EndpointError::Held { .. } | EndpointError::Live { .. }))
    }

    /// What to do about it, where there is something to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Endpoint(error) => Some(error.hint()),
            Self::Recover(RecoverError::Journal(error)) => Some(error.hint().to_owned()),
            Self::Io(_) => None,
        }
    }
}

/// A daemon that holds its endpoint and has recovered its state; clients that connect wait until it
/// serves.
pub struct Daemon {
    endpoint: Endpoint,
    listener: tokio::net::UnixListener,
    engine: Engine,
    handle: EngineHandle,
    settings: Settings,
}

impl Daemon {
    /// Takes the endpoint and recovers. Must be called inside a tokio runtime.
    pub fn start(settings: Settings, runner: Arc<dyn TaskRunner>) -> Result<Self, StartError> {
        Self::start_with_clock(settings, runner, Arc::new(SystemClock))
    }

    /// The same with a clock of the caller's.
    pub fn start_with_clock(
        settings: Settings,
        runner: Arc<dyn TaskRunner>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let claim = Claim::open(&settings.runtime_dir, settings.home.as_deref())?;
        let recovered = recover(&settings, Arc::clone(&clock))?;
        let (engine, handle) = Engine::new(recovered, runner, clock)?;
        let (listener, endpoint) = claim.listen()?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        Ok(Self { endpoint, listener, engine, handle, settings })
    }

    /// Serves until `stop` is ready, then ends: no admission, runs ended, everything flushed, the
    /// socket removed.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let Self { endpoint, listener, engine, mut handle, settings } = self;
        let stop_accepting = CancellationToken::new();
        let close = CancellationToken::new();
        let connections = TaskTracker::new();
        let listener = Listener {
            socket: listener,
            client: handle.client(),
            settings: Arc::new(settings.wire),
            stop: stop_accepting.clone(),
            close: close.clone(),
            connections: connections.clone(),
        };
        let recovered = handle.recovered();
        let accepting = tokio::spawn(async move {
            recovered.await;
            listener.run().await;
        });
        // A task, and not part of this future: waking what `block_on` polls costs two more system calls.
        let mut engine = AbortOnDropHandle::new(tokio::spawn(engine.run()));
        tokio::select! {
            biased;
            () = stop => {
                stop_accepting.cancel();
                handle.shut_down();
                ended(engine.await);
            }
            result = &mut engine => ended(result),
        }
        stop_accepting.cancel();
        close.cancel();
        connections.close();
        // What is left then did not take its last events in time; it resumes with its cursor.
        let _ = tokio::time::timeout(GOODBYE_WAIT, connections.wait()).await;
        accepting.abort();
        match endpoint.remove_socket() {
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the socket could not be removed"),
        }
    }
}

/// A panic of the engine is the daemon's.
fn ended(engine: Result<(), JoinError>) {
    if let Err(error) = engine
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
