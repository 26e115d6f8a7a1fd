//! A server that was away for longer than a lease: it was frozen or not running, or its database was away. What
//! machines hold is not taken before they could renew it; and what is no absence puts nothing off.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use ostler_server::settings::Settings;
use ostler_server::{Server, system_clock};
use ostler_testkit::postgres::ScratchPostgres;
use rustix::process::Signal;
use serde_json::json;

use super::child::{Made, OwnProcess, keyring, settings, start_impatient};
use super::clients::{Http, Manner};
use super::held::{Held, LEASE, Lease, PAUSE, SOON, claim, count, register, register_as, sweeps};
use super::postgres::own_postgres;

/// Two tasks wait in a new database on SQLite.
async fn two_tasks(dir: &tempfile::TempDir) -> (String, Made) {
    let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
    let made = Made::new(&database).await;
    made.queue(2).await;
    (database, made)
}

fn short(database: &str) -> Settings {
    let mut settings = settings(database);
    settings.policy.lease = LEASE;
    settings
}

async fn start(database: &str) -> Server {
    Server::start(short(database), keyring(), system_clock()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_064_a_server_that_was_frozen_takes_no_lease_before_its_holder_could_renew() {
    let dir = tempfile::tempdir().unwrap();
    let (database, made) = two_tasks(&dir).await;
    made.admin.close().await;
    let server = OwnProcess::with_lease(&database, LEASE);
    let http = Http::new(vec![server.address], made.daemon_token, Manner::default());
    let mut held = Held::new(http).await;
    held.renew().await;
    server.signal(Signal::STOP);
    held.run_out().await;
    server.signal(Signal::CONT);
    held.goes_on(server.metrics).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_064_a_server_that_starts_again_takes_no_lease_before_its_holder_could_renew() {
    let dir = tempfile::tempdir().unwrap();
    let (database, made) = two_tasks(&dir).await;
    made.admin.close().await;
    let server = start(&database).await;
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    let servers = http.servers.clone();
    let mut held = Held::new(http).await;
    held.renew().await;
    server.stop().await;
    held.run_out().await;
    let server = start(&database).await;
    *servers.write().unwrap() = vec![server.address()];
    held.goes_on(server.metrics_address().unwrap()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_064_after_a_gap_in_the_database_no_lease_is_taken_before_its_holder_could_renew() {
    let Some(mut postgres) = own_postgres("postgres_away", Vec::new()) else { return };
    let database = postgres.create_database("fleet");
    let made = Made::new(&database).await;
    made.queue(2).await;
    made.admin.close().await;
    let server = start(&database).await;
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    let mut held = Held::new(http).await;
    held.renew().await;
    tokio::task::block_in_place(|| postgres.kill());
    held.run_out().await;
    tokio::task::block_in_place(|| postgres.restart());
    held.goes_on(server.metrics_address().unwrap()).await;
    server.stop().await;
}

/// One sweep after the other fails, and the database answers everything else: its locks are held, or it is busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_110_a_sweep_that_fails_puts_no_lease_off() {
    let dir = tempfile::tempdir().unwrap();
    let (database, made) = two_tasks(&dir).await;
    made.admin.close().await;
    let pool = sqlx::SqlitePool::connect(&database).await.unwrap();
    let fails = "CREATE TRIGGER fails BEFORE UPDATE OF online ON runtimes WHEN NEW.online = 0 \
                 BEGIN SELECT RAISE(ABORT, 'no'); END";
    sqlx::query(fails).execute(&pool).await.unwrap();
    let mut settings = short(&database);
    // The machine is soon silent, and each sweep fails over that.
    settings.offline_after = Duration::from_millis(300);
    let server = Server::start(settings, keyring(), system_clock()).await.unwrap();
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    register(&http).await;
    let silent = claim(&http).await.unwrap();
    claim(&http).await.unwrap();
    // Both run out, and the server is there since before they were claimed.
    let last = "SELECT max(lease_expires_at) FROM tasks";
    while system_clock()().as_micros() <= sqlx::query_scalar(last).fetch_one(&pool).await.unwrap() {
        tokio::time::sleep(PAUSE).await;
    }
    assert_eq!(state(&pool, &silent).await, "dispatched");
    sqlx::query("DROP TRIGGER fails").execute(&pool).await.unwrap();
    let mended = Instant::now();
    while state(&pool, &silent).await != "queued" {
        assert!(mended.elapsed() < LEASE / 2, "the sweeper waits for another lease");
        tokio::time::sleep(PAUSE).await;
    }
    pool.close().await;
    server.stop().await;
}

/// The server that swept is gone; nobody says anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_108_a_server_sweeps_by_itself_and_takes_over_from_one_that_is_gone() {
    assert_eq!(Settings::new(String::new()).sweep_every, Duration::from_secs(30));
    let Some(postgres) = ScratchPostgres::shared("reliability/takes_over") else { return };
    let database = postgres.create_database("takes_over");
    let made = Made::new(&database).await;
    made.queue(1).await;
    made.admin.close().await;
    let (swept, other) = (start(&database).await, start(&database).await);
    let http = Http::new(vec![swept.address()], made.daemon_token, Manner::default());
    register(&http).await;
    claim(&http).await.unwrap();
    sweeps(swept.metrics_address().unwrap(), 1).await;
    swept.stop().await;
    let until = Instant::now() + 2 * LEASE + Duration::from_secs(10);
    while postgres.sql("takes_over", "SELECT state FROM tasks").trim() != "queued" {
        assert!(Instant::now() < until, "nobody took it");
        tokio::time::sleep(PAUSE).await;
    }
    other.stop().await;
}

async fn state(pool: &sqlx::SqlitePool, task: &Lease) -> String {
    let sql = "SELECT state FROM tasks WHERE id = $1";
    sqlx::query_scalar(sql).bind(&task.0).fetch_one(pool).await.unwrap()
}

/// What a beat said while the database was away is written down when it is back, and who could not beat for that
/// long is not called silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_025_signs_of_life_outlive_a_gap_in_the_database() {
    let Some(mut postgres) = own_postgres("postgres_beats", Vec::new()) else { return };
    let database = postgres.create_database("fleet");
    let made = Made::new(&database).await;
    made.admin.close().await;
    let mut settings = short(&database);
    settings.offline_after = Duration::from_secs(3);
    let server = start_impatient(settings).await;
    let metrics = server.metrics_address().unwrap();
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    register(&http).await;
    register_as(&http, "gone").await;
    // Both are heard for some seconds more, since the server remembers token and machine.
    let (stays, gone) = (Beats::start(&http, "m"), Beats::start(&http, "gone"));
    gone.heard().await;
    tokio::task::block_in_place(|| postgres.kill());
    let errors = count(metrics, ERRORS).await;
    let away = Instant::now();
    while away.elapsed() < LEASE || count(metrics, ERRORS).await < errors + 10 {
        tokio::time::sleep(PAUSE).await;
    }
    let last_heard = gone.stop();
    tokio::task::block_in_place(|| postgres.restart());
    let back = system_clock()().as_micros();
    sweeps(metrics, 2).await;
    let seen = postgres.sql("fleet", "SELECT last_seen FROM runtimes WHERE daemon_id = 'gone'");
    assert!(seen.trim().parse::<i64>().unwrap() >= last_heard, "a beat was lost");
    // It is silent from now on, but could not have said so before the database was back.
    let offline = "SELECT COALESCE(MAX(at), 0) FROM events WHERE data LIKE '%\"name\":\"gone\"%' \
                   AND type = 'runtime.changed'";
    let until = Instant::now() + SOON;
    let marked = loop {
        let marked: i64 = postgres.sql("fleet", offline).trim().parse().unwrap();
        if marked > 0 {
            break marked;
        }
        assert!(Instant::now() < until, "never marked offline");
        tokio::time::sleep(PAUSE).await;
    };
    // The server may have noticed that a little earlier than this test.
    assert!(marked >= back + 1_000_000, "marked {} ms after", (marked - back) / 1_000);
    stays.heard().await;
    stays.stop();
    server.stop().await;
}

const ERRORS: &str = "ostler_database_errors_total";

/// A machine that beats all the time, whether it is heard or not.
struct Beats {
    task: tokio::task::JoinHandle<()>,
    last_heard: Arc<AtomicI64>,
}

impl Beats {
    fn start(http: &Http, daemon_id: &'static str) -> Self {
        let (http, last_heard) = (http.clone(), Arc::new(AtomicI64::new(0)));
        let heard = Arc::clone(&last_heard);
        let task = tokio::spawn(async move {
            loop {
                let began = system_clock()().as_micros();
                let beat = json!({ "daemon_id": daemon_id });
                if let Some((200, _)) = http.once("heartbeat", None, &beat).await {
                    heard.store(began, Ordering::SeqCst);
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { task, last_heard }
    }

    /// Waits until a beat that begins from now on was heard.
    async fn heard(&self) {
        let now = system_clock()().as_micros();
        let until = Instant::now() + SOON;
        while self.last_heard.load(Ordering::SeqCst) < now {
            assert!(Instant::now() < until, "not heard");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// When its last beat that was heard began.
    fn stop(self) -> i64 {
        self.task.abort();
        self.last_heard.load(Ordering::SeqCst)
    }
}
