//! The server's clock is set forward, or its machine slept: holders have the time of a lease to renew.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use ostler_core::clock::Timestamp;
use ostler_server::{Server, system_clock};
use serde_json::{Value, json};

use super::child::{Made, keyring, settings};
use super::clients::{Http, Manner};

/// For what takes a moment on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const HOUR: i64 = 3_600_000_000;

async fn claim(http: &Http) -> Option<(String, String)> {
    let (status, answer) =
        http.post("tasks/claim", None, &json!({ "daemon_id": "m" })).await.remove(0);
    let text = |name: &str| answer["data"][name].as_str().unwrap().to_owned();
    (status == 200).then(|| (text("id"), text("lease_token")))
}

async fn start(http: &Http, (task, lease): &(String, String)) -> (u16, Value) {
    http.post(&format!("tasks/{task}/start"), Some(lease), &json!({})).await.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_064_a_clock_that_is_set_forward_takes_no_lease_before_its_holder_could_renew() {
    let dir = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
    let made = Made::new(&database).await;
    made.queue(2).await;
    let ahead = Arc::new(AtomicI64::new(0));
    let (real, shown) = (system_clock(), Arc::clone(&ahead));
    let clock =
        Arc::new(move || Timestamp::from_micros(real().as_micros() + shown.load(Ordering::SeqCst)));
    let mut settings = settings(&database);
    settings.policy.lease = Duration::from_secs(4);
    settings.sweep_every = Duration::from_millis(50);
    let server = Server::start(settings, keyring(), clock).await.unwrap();
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    let machine = json!({ "daemon_id": "m", "name": "m", "version": "0.3.0",
        "providers": ["claude_code"], "capabilities": {} });
    assert_eq!(http.post("register", None, &machine).await[0].0, 201);

    // One is not heard of again, until the sweeper takes its lease: from here on it takes leases.
    let (kept, silent) = (claim(&http).await.unwrap(), claim(&http).await.unwrap());
    let until = Instant::now() + SOON;
    loop {
        assert_eq!(start(&http, &kept).await.0, 200);
        if let Some(again) = claim(&http).await {
            assert_eq!(again.0, silent.0);
            break;
        }
        assert!(Instant::now() < until, "no lease was taken");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ahead.store(HOUR, Ordering::SeqCst);
    // A sweep has come by when the machine is marked offline.
    let pool = sqlx::SqlitePool::connect(&database).await.unwrap();
    loop {
        let swept = "SELECT COUNT(*) FROM runtimes WHERE online = 0";
        let (swept,): (i64,) = sqlx::query_as(swept).fetch_one(&pool).await.unwrap();
        if swept > 0 {
            break;
        }
        assert!(Instant::now() < until, "no sweep came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    pool.close().await;
    let (status, answer) = start(&http, &kept).await;
    assert_eq!(status, 200, "{answer}");
    server.stop().await;
}
