//! What the log says of what machines report: which request, and nothing of what was sent. A process of its own, for
//! the log is the process's.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod common;

use std::io;
use std::sync::{Arc, Mutex};

use common::World;
use serde_json::json;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines_with(&self, words: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_083_what_is_left_out_of_a_completion_is_logged_once_with_its_request() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let world = World::start().await;
    world.register("m-1", "claude_code").await;
    let agent = world.agent("Freya", "claude_code").await;
    world.issue_for("Odd", agent).await;
    let (task, lease) = world.claim("m-1").await.unwrap();
    let artifacts = json!([{ "type": "link", "url": "https://user:hunter2@example.com/" },
        { "type": "link", "url": "https://example.com/" }, { "type": "hunter2" }]);
    let body = json!({ "result": { "artifacts": artifacts, "usage": "hunter2" },
        "session_id": "hunter2".repeat(100) });
    let send = async |request: &str, lease: &str| {
        let sent = world
            .client
            .post(world.url(&format!("/api/daemon/tasks/{task}/complete")))
            .bearer_auth(&world.daemon_token)
            .header("X-Felagi-Client-Version", "0.3.0")
            .header("X-Felagi-Lease", lease)
            .header("X-Request-Id", request);
        world.send(sent.json(&body)).await.status
    };
    // Whoever holds no lease writes nothing.
    assert_eq!(send("r-0", "x").await, 409);
    for request in ["r-1", "r-2"] {
        assert_eq!(send(request, &lease).await, 200);
    }
    let told = log.lines_with("left out");
    assert_eq!(told.len(), 4, "{told:#?}");
    assert!(told.iter().all(|line| line.contains(r#"request_id="r-1""#)), "{told:#?}");
    let of = |words: &str| told.iter().filter(|line| line.contains(words)).count();
    assert_eq!((of("artifact"), of("result.usage"), of("session_id")), (2, 1, 1), "{told:#?}");
    assert!(log.lines_with("hunter2").is_empty());
    world.stop().await;
}
