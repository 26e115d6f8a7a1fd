//! A person's decision comes to its machine soon, however it was made, and no longer than until the run has resumed.

use std::time::{Duration, Instant};

use ostler_testkit::postgres::ScratchPostgres;
use serde_json::{Value, json};

use super::child::{Made, start};
use super::clients::{Http, Manner};
use super::held::{Lease, PAUSE, claim, register};

/// A server looks every two seconds, and remembers a machine for thirty.
const SOON: Duration = Duration::from_secs(15);

/// A run that waits for approval.
async fn waiting(http: &Http) -> Lease {
    register(http).await;
    let task = claim(http).await.unwrap();
    let asks = json!({ "waiting_for": "approval", "summary": "Deploy?" });
    assert_eq!(http.post(&format!("tasks/{}/await", task.0), Some(&task.1), &asks).await[0].0, 200);
    assert_eq!(decisions(http).await, 0);
    task
}

/// A command on the server's machine, which is another process.
async fn approve(made: &Made, task: &Lease) {
    let path = ("POST", "/tasks/{task}/decision");
    let decision = json!({ "decision": "approved" });
    let params = [("task", task.0.as_str())];
    made.admin.one("acme", path.0, path.1, &params, decision).await.unwrap();
}

async fn decisions(http: &Http) -> usize {
    let (status, told) = http.post("heartbeat", None, &json!({ "daemon_id": "m" })).await.remove(0);
    assert_eq!(status, 200, "{told}");
    told["decisions"].as_array().map_or(0, Vec::len)
}

async fn wait_for(http: &Http, wanted: usize) {
    let until = Instant::now() + SOON;
    while decisions(http).await != wanted {
        assert!(Instant::now() < until, "not {wanted} within {SOON:?}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_097_a_decision_of_another_process_on_sqlite_comes_to_the_machine_within_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
    let made = Made::new(&database).await;
    made.queue(1).await;
    let server = start(&database).await;
    let token = made.daemon_token.clone();
    let http = Http::new(vec![server.address()], token, Manner::default());
    let task = waiting(&http).await;
    approve(&made, &task).await;
    wait_for(&http, 1).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_098_a_run_that_resumed_through_another_server_is_told_of_no_decision_any_more() {
    let Some(postgres) = ScratchPostgres::shared("reliability/decisions") else { return };
    let database = postgres.create_database("decisions");
    let made = Made::new(&database).await;
    made.queue(1).await;
    let (one, two) = (start(&database).await, start(&database).await);
    let client = |address| Http::new(vec![address], made.daemon_token.clone(), Manner::default());
    let (one_http, two_http) = (client(one.address()), client(two.address()));
    let task = waiting(&one_http).await;
    approve(&made, &task).await;
    wait_for(&one_http, 1).await;
    wait_for(&two_http, 1).await;
    let path = format!("tasks/{}/resume", task.0);
    let (status, told) = one_http.post(&path, None, &json!({ "daemon_id": "m" })).await.remove(0);
    assert_eq!((status, &told["status"]), (200, &Value::from("running")), "{told}");
    wait_for(&one_http, 0).await;
    wait_for(&two_http, 0).await;
    one.stop().await;
    two.stop().await;
}
