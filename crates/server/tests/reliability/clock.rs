//! The server's clock is set: forward, then holders have the time of a lease to renew; back, then who vanished
//! holds nothing for longer than else. And servers that share a database have different clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ostler_core::clock::Timestamp;

use ostler_server::{Clock, Server, system_clock};
use ostler_testkit::postgres::ScratchPostgres;

use super::child::{Made, keyring, settings};
use super::clients::{Http, Manner};
use super::held::{Held, LEASE, count, sweeps};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_110_a_clock_that_is_set_back_leaves_no_task_with_who_vanished() {
    let dir = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
    let made = Made::new(&database).await;
    made.queue(2).await;
    let (clock, ahead) = turned();
    let server = start(&database, clock).await;
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    let mut held = Held::new(http).await;
    ahead.store(-HOUR, Ordering::SeqCst);
    // A lease and a sweep, and what a busy machine takes.
    held.taken_within(2 * LEASE + Duration::from_secs(10)).await;
    server.stop().await;
}

/// One that sweeps for both is ten minutes ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_108_a_server_whose_clock_is_ahead_takes_nothing_that_has_not_run_out() {
    let Some(postgres) = ScratchPostgres::shared("reliability/ahead") else { return };
    let database = postgres.create_database("ahead");
    let made = Made::new(&database).await;
    made.queue(2).await;
    let (clock, ahead) = turned();
    ahead.store(HOUR / 6, Ordering::SeqCst);
    let sweeps_ahead = start(&database, clock).await;
    let mut settings = settings(&database);
    settings.policy.lease = LEASE;
    settings.sweep_every = Duration::from_secs(3_600);
    let right = Server::start(settings, keyring(), system_clock()).await.unwrap();
    let http = Http::new(vec![right.address()], made.daemon_token, Manner::default());
    let mut held = Held::new(http).await;
    for _ in 0..3 {
        sweeps(sweeps_ahead.metrics_address().unwrap(), 2).await;
        held.renew().await;
    }
    // It is seen, too.
    let seconds =
        count(sweeps_ahead.metrics_address().unwrap(), "ostler_clock_ahead_seconds ").await;
    assert!((590..=600).contains(&seconds), "{seconds}");
    sweeps_ahead.stop().await;
    right.stop().await;
}
