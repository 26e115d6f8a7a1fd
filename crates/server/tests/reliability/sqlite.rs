//! SQLite: the server is killed at any moment, and what it had answered is there.

use super::child::{Made, OwnProcess, start};
use super::clients::{Http, Manner};
use super::fleet::Fleet;
use super::stored::Stored;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_a_server_that_is_killed_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
    let made = Made::new(&database).await;
    let tasks = 120;
    made.queue(tasks).await;
    made.admin.close().await;

    let mut server = OwnProcess::start(&database);
    let http = Http::new(vec![server.address], made.daemon_token, Manner::default());
    let servers = http.servers.clone();
    let fleet = Fleet::new(http, tasks);
    let work = fleet.start(8);
    let mut kills = 0;
    // Numbers without a common rhythm, so that it is killed at ever other places.
    while fleet.answers(17 + (kills * 37) % 83).await {
        server.kill();
        kills += 1;
        server = OwnProcess::start(&database);
        *servers.write().unwrap() = vec![server.address];
    }
    let known = work.await.unwrap();
    server.kill();
    println!("{kills} kills, {} tries failed, {} runs lost", fleet.failed(), known.lost);
    assert!(kills >= 8, "{kills} kills");
    Stored::read(&database).await.compare(&known, tasks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_everything_may_come_twice_out_of_order_and_over_connections_that_drop() {
    let dir = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
    let made = Made::new(&database).await;
    let tasks = 40;
    made.queue(tasks).await;
    let server = start(&database).await;
    let manner = Manner { twice: true, unordered: true, drops: true };
    let fleet = Fleet::new(Http::new(vec![server.address()], made.daemon_token, manner), tasks);
    let known = fleet.start(6).await.unwrap();
    assert_eq!(known.lost, 0, "nobody was silent for as long as a lease");
    server.stop().await;
    Stored::read(&database).await.compare(&known, tasks);
}
