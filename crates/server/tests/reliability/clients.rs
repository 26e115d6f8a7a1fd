//! Requests: said until they are answered, and in worse ways.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

/// How long a request is said again and again.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long one try may take.
const TRY: Duration = Duration::from_secs(15);
/// The pause after a try that failed.
const PAUSE: Duration = Duration::from_millis(20);

/// How requests are sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// Each twice at once.
    pub(crate) twice: bool,
    /// Parts of the output in another order than they were made.
    pub(crate) unordered: bool,
    /// Before each the same on a connection that is dropped: before its end, or before the answer.
    pub(crate) drops: bool,
}

/// A client of one or several servers.
#[derive(Clone)]
pub(crate) struct Http {
    client: reqwest::Client,
    /// Where the servers are now.
    pub(crate) servers: Arc<RwLock<Vec<SocketAddr>>>,
    token: String,
    pub(crate) manner: Manner,
    turn: Arc<AtomicUsize>,
    /// Tries that were not answered, or answered that the server cannot.
    pub(crate) failed: Arc<AtomicU64>,
}

impl Http {
    pub(crate) fn new(servers: Vec<SocketAddr>, token: String, manner: Manner) -> Self {
        // A second installation in one process is refused and harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            client: reqwest::Client::builder().timeout(TRY).build().unwrap(),
            servers: Arc::new(RwLock::new(servers)),
            token,
            manner,
            turn: Arc::default(),
            failed: Arc::default(),
        }
    }

    /// One try may take so long.
    pub(crate) fn waits(&mut self, wait: Duration) {
        self.client = reqwest::Client::builder().timeout(wait).build().unwrap();
    }

    /// The servers, one after the other.
    fn server(&self) -> SocketAddr {
        let servers = self.servers.read().unwrap();
        servers[self.turn.fetch_add(1, Ordering::Relaxed) % servers.len()]
    }

    /// Says it until a server answers, in this client's manner; all answers there were.
    pub(crate) async fn post(
        &self,
        path: &str,
        lease: Option<&str>,
        body: &Value,
    ) -> Vec<(u16, Value)> {
        if self.manner.drops {
            self.drop_one(path, lease, body).await;
        }
        if self.manner.twice {
            let (one, two) = tokio::join!(self.say(path, lease, body), self.say(path, lease, body));
            return vec![one, two];
        }
        vec![self.say(path, lease, body).await]
    }

    async fn say(&self, path: &str, lease: Option<&str>, body: &Value) -> (u16, Value) {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.once(path, lease, body).await {
                Some((status, answer)) if status < 500 => return (status, answer),
                Some((status, answer)) => assert_eq!(status, 503, "{path}: {answer}"),
                None => {}
            }
            self.failed.fetch_add(1, Ordering::Relaxed);
            assert!(Instant::now() < until, "{path} was not answered for {PATIENCE:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Says it once; none when that is not answered.
    pub(crate) async fn once(
        &self,
        path: &str,
        lease: Option<&str>,
        body: &Value,
    ) -> Option<(u16, Value)> {
        let url = format!("http://{}/api/daemon/{path}", self.server());
        let mut request = self
            .client
            .post(url)
            .bearer_auth(&self.token)
            .header("X-Felagi-Client-Version", "0.3.0")
            .header("X-Felagi-Client-Capabilities", "streaming,resume,cancel,long_poll")
            .json(body);
        if let Some(lease) = lease {
            request = request.header("X-Felagi-Lease", lease);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await.ok()?;
        Some((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    /// Sends a request whose answer nobody reads: whole, or one of its halves. A server that is not there
    /// loses it.
    async fn drop_one(&self, path: &str, lease: Option<&str>, body: &Value) -> Option<()> {
        let body = body.to_string();
        let lease = lease.map(|lease| format!("X-Felagi-Lease: {lease}\r\n")).unwrap_or_default();
        let text = format!(
            "POST /api/daemon/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
             X-Felagi-Client-Version: 0.3.0\r\nContent-Type: application/json\r\n{lease}\
             Content-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        let whole = !self.turn.load(Ordering::Relaxed).is_multiple_of(3);
        let end = if whole { text.len() } else { text.len() - body.len() / 2 - 1 };
        let mut stream = TcpStream::connect(self.server()).await.ok()?;
        stream.write_all(&text.as_bytes()[..end]).await.ok()?;
        stream.shutdown().await.ok()
    }
}
