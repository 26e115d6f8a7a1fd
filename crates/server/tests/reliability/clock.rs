//! The server's clock is set forward: holders have the time of a lease to renew.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ostler_core::clock::Timestamp;

use ostler_server::{Clock, Server, system_clock};

use super::child::{Made, keyring, settings};
use super::clients::{Http, Manner};
use super::held::{Held, LEASE};

const HOUR: i64 = 3_600_000_000;

/// The system's clock, and by how much it is turned.
fn turned() -> (Clock, Arc<AtomicI64>) {
    let ahead = Arc::new(AtomicI64::new(0));
    let (real, shown) = (system_clock(), Arc::clone(&ahead));
    let clock = move || Timestamp::from_micros(real().as_micros() + shown.load(Ordering::SeqCst));
    (Arc::new(clock), ahead)
}

async fn start(database: &str, clock: Clock) -> Server {
    let mut settings = settings(database);
    settings.policy.lease = LEASE;
    settings.sweep_every = Duration::from_millis(50);
    Server::start(settings, keyring(), clock).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_064_a_clock_that_is_set_forward_takes_no_lease_before_its_holder_could_renew() {
    let dir = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
    let made = Made::new(&database).await;
    made.queue(2).await;
    let (clock, ahead) = turned();
    let server = start(&database, clock).await;
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    let mut held = Held::new(http).await;
    ahead.store(HOUR, Ordering::SeqCst);
    held.goes_on(server.metrics_address().unwrap()).await;
    server.stop().await;
}
