//! Accepts connections of the owner and gives each a task of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection;
use crate::endpoint::is_same_user;
use crate::engine::EngineClient;
use crate::settings::WireSettings;

/// How long to wait when the process has no descriptor left for another connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// See the module's documentation.
pub(crate) struct Listener {
    pub(crate) socket: UnixListener,
    pub(crate) client: EngineClient,
    pub(crate) settings: Arc<WireSettings>,
    /// Ends accepting.
    pub(crate) stop: CancellationToken,
    /// Ends the connections.
    pub(crate) close: CancellationToken,
    pub(crate) connections: TaskTracker,
}

impl Listener {
    /// Accepts until told to stop.
    pub(crate) async fn run(self) {
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                accepted = self.socket.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
    }

    /// A peer of another user is closed without a byte.
    fn admit(&self, stream: UnixStream) {
        if !is_same_user(&stream) {
            return tracing::warn!("a connection of another user was closed");
        }
        let (client, settings) = (self.client.clone(), Arc::clone(&self.settings));
        self.connections.spawn(connection::serve(stream, client, settings, self.close.clone()));
    }
}
