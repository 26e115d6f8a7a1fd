//! PostgreSQL: it is killed, its connections end or do not suffice, and several servers share it.

use std::time::{Duration, Instant};

use ostler_testkit::postgres::{Options, ScratchPostgres};
use serde_json::json;

use super::child::{Made, OwnProcess, keyring, settings, start, start_impatient};
use super::clients::{Http, Manner};
use super::fleet::Fleet;
use super::held;
use super::stored::Stored;
use ostler_server::{Server, system_clock};

/// How long a server waits for a database that says nothing.
const SILENCE: Duration = Duration::from_secs(2);
/// By when it has said so, on a busy machine too.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// A PostgreSQL of this test's own.
pub(crate) fn own_postgres(
    name: &str,
    settings: Vec<(&'static str, String)>,
) -> Option<ScratchPostgres> {
    let options = Options { settings, ..Options::default() };
    ScratchPostgres::start(&format!("reliability/{name}"), options)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_when_postgres_is_killed_under_load() {
    let Some(mut postgres) = own_postgres("postgres_killed", Vec::new()) else { return };
    let database = postgres.create_database("fleet");
    let made = Made::new(&database).await;
    let tasks = 90;
    made.queue(tasks).await;
    made.admin.close().await;
    let server = start(&database).await;
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    let fleet = Fleet::new(http, tasks);
    let work = fleet.start(8);
    let mut kills = 0;
    while fleet.answers(60 + (kills * 37) % 83).await {
        kills += 1;
        tokio::task::block_in_place(|| {
            if kills % 3 == 0 {
                postgres.stop_fast();
            } else {
                postgres.kill();
            }
            postgres.restart();
        });
    }
    let known = work.await.unwrap();
    server.stop().await;
    println!("{kills} kills, {} tries failed, {} runs lost", fleet.failed(), known.lost);
    assert!(kills >= 3, "{kills} kills");
    Stored::read(&database).await.compare(&known, tasks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_when_connections_are_ended_all_the_time() {
    let Some(postgres) = ScratchPostgres::shared("reliability/postgres_terminated") else { return };
    let database = postgres.create_database("terminated");
    let made = Made::new(&database).await;
    let tasks = 80;
    made.queue(tasks).await;
    made.admin.close().await;
    let server = start(&database).await;
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    let fleet = Fleet::new(http, tasks);
    let work = fleet.start(8);
    let mut ended = 0;
    while fleet.answers(31).await {
        ended += tokio::task::block_in_place(|| postgres.terminate_backends("terminated"));
    }
    let known = work.await.unwrap();
    server.stop().await;
    println!("{ended} ended, {} tries failed, {} runs lost", fleet.failed(), known.lost);
    assert!(ended >= 20, "{ended} connections were ended");
    Stored::read(&database).await.compare(&known, tasks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_goes_on_when_there_are_fewer_connections_than_servers_want() {
    // Three are for superusers. A server cannot do with less than five: three lanes, one that listens, one more.
    let few = vec![("max_connections", "13".to_owned())];
    let Some(postgres) = own_postgres("postgres_pool", few) else { return };
    let database = postgres.create_database("fleet");
    let made = Made::new(&database).await;
    let tasks = 12;
    made.queue(tasks).await;
    made.admin.close().await;
    let one = start_impatient(settings(&database)).await;
    let two = start_impatient(settings(&database)).await;
    let servers = vec![one.address(), two.address()];
    let fleet = Fleet::new(Http::new(servers, made.daemon_token, Manner::default()), tasks);
    let known = fleet.start(8).await.unwrap();
    println!("{} tries failed, {} runs lost", fleet.failed(), known.lost);
    one.stop().await;
    two.stop().await;
    Stored::read(&database).await.compare(&known, tasks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_servers_one_may_be_killed_at_any_time() {
    let Some(postgres) = ScratchPostgres::shared("reliability/two_servers") else { return };
    let database = postgres.create_database("two_servers");
    let made = Made::new(&database).await;
    let tasks = 100;
    made.queue(tasks).await;
    made.admin.close().await;
    let stays = start(&database).await;
    let mut dies = OwnProcess::start(&database);
    let servers = vec![stays.address(), dies.address];
    let http = Http::new(servers, made.daemon_token, Manner::default());
    let servers = http.servers.clone();
    let fleet = Fleet::new(http, tasks);
    let work = fleet.start(8);
    let mut kills = 0;
    while fleet.answers(29 + (kills * 37) % 83).await {
        dies.kill();
        kills += 1;
        dies = OwnProcess::start(&database);
        *servers.write().unwrap() = vec![stays.address(), dies.address];
    }
    let known = work.await.unwrap();
    dies.kill();
    stays.stop().await;
    println!("{kills} kills, {} tries failed, {} runs lost", fleet.failed(), known.lost);
    assert!(kills >= 4, "{kills} kills");
    Stored::read(&database).await.compare(&known, tasks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_two_servers_everything_may_come_twice_out_of_order_and_over_connections_that_drop() {
    let Some(postgres) = ScratchPostgres::shared("reliability/twice") else { return };
    let database = postgres.create_database("twice");
    let made = Made::new(&database).await;
    let tasks = 40;
    made.queue(tasks).await;
    let (one, two) = (start(&database).await, start(&database).await);
    let manner = Manner { twice: true, unordered: true, drops: true };
    let servers = vec![one.address(), two.address()];
    let fleet = Fleet::new(Http::new(servers, made.daemon_token, manner), tasks);
    let known = fleet.start(6).await.unwrap();
    assert_eq!(known.lost, 0, "nobody was silent for as long as a lease");
    one.stop().await;
    two.stop().await;
    Stored::read(&database).await.compare(&known, tasks);
}

/// A database that neither answers nor closes its connections, as one that vanished with its machine: who asks is
/// told within a time, and a server that stops does not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_says_nothing_holds_up_nobody_for_ever() {
    let Some(postgres) = own_postgres("postgres_held", Vec::new()) else { return };
    let database = postgres.create_database("fleet");
    let made = Made::new(&database).await;
    made.queue(1).await;
    made.admin.close().await;
    let mut settings = settings(&database);
    settings.policy.lease = Duration::from_secs(600);
    assert_eq!(settings.database_wait, Duration::from_secs(20));
    settings.database_wait = SILENCE;
    let server = Server::start(settings, keyring(), system_clock()).await.unwrap();
    let mut http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    http.waits(SILENCE_MAX);
    held::register(&http).await;
    let lease = held::claim(&http).await.unwrap();
    let path = format!("tasks/{}/start", lease.0);
    tokio::task::block_in_place(|| postgres.hold());
    let answered = http.once(&path, Some(&lease.1), &json!({})).await;
    let (status, answer) = answered.expect("an answer in time");
    assert_eq!(status, 503, "{answer}");
    tokio::task::block_in_place(|| postgres.release());
    assert_eq!(held::start(&http, &lease).await.0, 200);
    tokio::task::block_in_place(|| postgres.hold());
    let stopped = tokio::time::timeout(SILENCE_MAX, server.stop()).await;
    tokio::task::block_in_place(|| postgres.release());
    stopped.expect("the server stops in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_on_one_server_is_woken_by_work_that_another_queued() {
    let Some(postgres) = ScratchPostgres::shared("reliability/wake") else { return };
    let database = postgres.create_database("wake");
    let made = Made::new(&database).await;
    let server = start(&database).await;
    let http = Http::new(vec![server.address()], made.daemon_token.clone(), Manner::default());
    let machine = json!({ "daemon_id": "m", "name": "m", "version": "0.3.0",
        "providers": ["claude_code"], "capabilities": {} });
    assert_eq!(http.post("register", None, &machine).await[0].0, 201);
    let mut fastest = Duration::MAX;
    for round in 0..8 {
        let waiting = {
            let http = http.clone();
            let claim =
                json!({ "daemon_id": "m", "wait_seconds": 25, "request_id": round.to_string() });
            tokio::spawn(async move { http.post("tasks/claim", None, &claim).await })
        };
        // It waits by now, or finds the task at its first look: then this round shows nothing.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let queued = Instant::now();
        made.queue(1).await;
        let (status, answer) = waiting.await.unwrap().remove(0);
        fastest = fastest.min(queued.elapsed());
        assert_eq!(status, 200, "{answer}");
    }
    // A server that was not told would look for itself after two seconds.
    println!("woken within {fastest:?}");
    assert!(fastest < Duration::from_millis(500), "woken after {fastest:?}");
    server.stop().await;
}
