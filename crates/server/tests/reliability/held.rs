//! A task that a machine holds on a server whose sweeper surely takes leases, and whether it still does after the
//! server was away.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::clients::Http;

/// For what takes a moment on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// Between two looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
/// The lease of these tests. Shorter is none: a server that does not answer for three seconds was away.
pub(crate) const LEASE: Duration = Duration::from_secs(4);

/// A task and the lease on it.
pub(crate) type Lease = (String, String);

pub(crate) async fn register(http: &Http) {
    register_as(http, "m").await;
}

pub(crate) async fn register_as(http: &Http, daemon_id: &str) {
    let machine = json!({ "daemon_id": daemon_id, "name": daemon_id, "version": "0.3.0",
        "providers": ["claude_code"], "capabilities": {} });
    assert_eq!(http.post("register", None, &machine).await[0].0, 201);
}

pub(crate) async fn claim(http: &Http) -> Option<Lease> {
    let (status, answer) =
        http.post("tasks/claim", None, &json!({ "daemon_id": "m" })).await.remove(0);
    let text = |name: &str| answer["data"][name].as_str().unwrap().to_owned();
    (status == 200).then(|| (text("id"), text("lease_token")))
}

pub(crate) async fn start(http: &Http, (task, lease): &Lease) -> (u16, Value) {
    http.post(&format!("tasks/{task}/start"), Some(lease), &json!({})).await.remove(0)
}

/// Of two tasks one is held and renewed, the other not heard of until its lease is taken; from there on the sweeper
/// takes leases.
pub(crate) struct Held {
    http: Http,
    kept: Lease,
    /// The other one's, claimed again and never renewed.
    silent: Lease,
    renewed: Instant,
}

impl Held {
    /// With two tasks in the queue.
    pub(crate) async fn new(http: Http) -> Self {
        register(&http).await;
        let (kept, silent) = (claim(&http).await.unwrap(), claim(&http).await.unwrap());
        let mut held = Self { http, kept, silent, renewed: Instant::now() };
        held.taken_within(SOON).await;
        held
    }

    /// The one that nobody renews is taken, and claimed again.
    pub(crate) async fn taken_within(&mut self, wait: Duration) {
        let until = Instant::now() + wait;
        loop {
            self.renew().await;
            if let Some(again) = claim(&self.http).await {
                assert_eq!(again.0, self.silent.0);
                self.silent = again;
                return;
            }
            assert!(Instant::now() < until, "no lease was taken within {wait:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The holder says that it is there, and is believed.
    pub(crate) async fn renew(&mut self) {
        let (status, answer) = start(&self.http, &self.kept).await;
        assert_eq!(status, 200, "{answer}");
        self.renewed = Instant::now();
    }

    /// Waits until its lease has run out by every clock.
    pub(crate) async fn run_out(&self) {
        tokio::time::sleep_until((self.renewed + LEASE + Duration::from_secs(1)).into()).await;
    }

    /// The server is back: whatever its sweeper did, the holder may go on. `metrics` is where its sweeps are
    /// counted.
    pub(crate) async fn goes_on(&mut self, metrics: SocketAddr) {
        sweeps(metrics, 2).await;
        self.renew().await;
    }
}

/// Waits until the server has swept so many times more.
pub(crate) async fn sweeps(metrics: SocketAddr, more: u64) {
    let until = Instant::now() + SOON;
    let goal = count(metrics, SWEEPS).await + more;
    while count(metrics, SWEEPS).await < goal {
        assert!(Instant::now() < until, "no sweep came");
        tokio::time::sleep(PAUSE).await;
    }
}

const SWEEPS: &str = "ostler_sweeps_total";

/// A number of the server's own.
pub(crate) async fn count(metrics: SocketAddr, name: &str) -> u64 {
    let page = reqwest::get(format!("http://{metrics}/metrics")).await.unwrap();
    let page = page.text().await.unwrap();
    let line = page.lines().find_map(|line| line.strip_prefix(name));
    line.expect("a count").trim().parse().unwrap()
}
