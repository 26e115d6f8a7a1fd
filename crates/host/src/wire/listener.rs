//! Accepts connections of the owner and gives each a task of its own.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection;
use crate::endpoint::is_same_user;
use crate::engine::EngineClient;
use crate::settings::WireSettings;

/// Connections at once, where the process may open twice as many files; else half of what it may. One more
/// is closed without a byte: what is left of the files is for journal, archive and runs.
const CONNECTIONS_MAX: usize = 512;

/// How long to wait when the process has no descriptor left for another connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Connections that were not served are told to the log at most this often.
const LOG_PAUSE: Duration = Duration::from_secs(1);

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
        self.accept(connections_max()).await;
    }

    async fn accept(self, connections_max: usize) {
        let mut unserved = Unserved::default();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                accepted = self.socket.accept() => match accepted {
                    Ok((stream, _)) => self.admit(stream, connections_max, &mut unserved),
                    Err(error) => {
                        // The connection goes on waiting, so the next try is not better at once.
                        unserved.note(&format!("it could not be accepted: {error}"), Instant::now());
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
    }

    /// A peer of another user is closed without a byte (R-10), and so is one too many.
    fn admit(&self, stream: UnixStream, connections_max: usize, unserved: &mut Unserved) {
        if !is_same_user(&stream) {
            return tracing::warn!("a connection of another user was closed");
        }
        if self.connections.len() >= connections_max {
            let why = format!("there are {connections_max} already");
            return unserved.note(&why, Instant::now());
        }
        let (client, settings) = (self.client.clone(), Arc::clone(&self.settings));
        self.connections.spawn(connection::serve(stream, client, settings, self.close.clone()));
    }
}

fn connections_max() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    CONNECTIONS_MAX.min(usize::try_from(files / 2).unwrap_or(usize::MAX))
}

/// Connections that were not served, for the log.
#[derive(Default)]
struct Unserved {
    count: u64,
    told_at: Option<Instant>,
}

impl Unserved {
    fn note(&mut self, why: &str, now: Instant) {
        self.count += 1;
        let pauses = self.told_at.is_some_and(|at| now.duration_since(at) < LOG_PAUSE);
        if !pauses {
            tracing::warn!(why, unserved = self.count, "a connection is not served");
            self.told_at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::engine::EngineHandle;
    use crate::engine::feed::Feed;
    use crate::settings::Settings;

    async fn is_served(client: &mut UnixStream) -> bool {
        let hello =
            br#"{"type":"hello","hello":{"clientId":"c","versions":[3],"resumeAfter":null}}"#;
        let length = u32::try_from(hello.len()).unwrap().to_be_bytes();
        let mut answer = [0; 64];
        // One that is closed may be closed before anything is said.
        let _ = client.write_all(&[&length[..], hello].concat()).await;
        client.read(&mut answer).await.is_ok_and(|bytes| bytes > 0)
    }

    #[tokio::test]
    async fn one_connection_too_many_is_closed_without_a_byte_and_the_others_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let settings = Settings::new(folder.path().to_str().unwrap().into());
        let (commands, _inbox) = mpsc::channel(1);
        let (shutdown, _) = oneshot::channel();
        let (_, recovered) = oneshot::channel();
        let feed = Arc::new(Feed::new(settings.feed));
        let connections = TaskTracker::new();
        let listener = Listener {
            socket: UnixListener::bind(&path).unwrap(),
            client: EngineHandle::new(commands, feed, shutdown, recovered).client(),
            settings: Arc::new(settings.wire),
            stop: CancellationToken::new(),
            close: CancellationToken::new(),
            connections: connections.clone(),
        };
        let accepting = tokio::spawn(listener.accept(3));
        let mut served = Vec::new();
        for _ in 0..3 {
            let mut client = UnixStream::connect(&path).await.unwrap();
            assert!(is_served(&mut client).await);
            served.push(client);
        }
        for _ in 0..3 {
            let mut client = UnixStream::connect(&path).await.unwrap();
            assert!(!is_served(&mut client).await);
        }
        assert_eq!(connections.len(), 3);
        // A place that becomes free is taken again.
        served.pop();
        loop {
            let mut client = UnixStream::connect(&path).await.unwrap();
            if is_served(&mut client).await {
                break;
            }
        }
        accepting.abort();
    }

    #[test]
    fn half_of_the_files_stay_for_journal_and_runs() {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(connections_max() as u64 <= files / 2 && connections_max() <= CONNECTIONS_MAX);
    }

    #[test]
    fn a_flood_is_told_once_a_second() {
        let mut unserved = Unserved::default();
        let begin = Instant::now();
        let told: Vec<_> = (0..2_000)
            .map(|ms| {
                unserved.note("full", begin + Duration::from_millis(ms));
                unserved.told_at.unwrap()
            })
            .collect();
        assert_eq!(
            (told[0], told[999], told[1_000], told[1_999]),
            (begin, begin, begin + LOG_PAUSE, begin + LOG_PAUSE)
        );
        assert_eq!(unserved.count, 2_000);
    }
}
