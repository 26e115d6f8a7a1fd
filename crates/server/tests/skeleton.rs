//! One thin path through the server, over HTTP and without any code of a client.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests")]

#[path = "common/made.rs"]
mod made;

use std::net::SocketAddr;

use ostler_server::secrets::Keyring;
use ostler_server::settings::Settings;
use ostler_server::{Admin, Server, system_clock};
use serde_json::{Value, json};

struct Http {
    client: reqwest::Client,
    address: SocketAddr,
    token: String,
}

impl Http {
    async fn post(&self, path: &str, lease: Option<&str>, body: Value) -> (u16, Value) {
        let url = format!("http://{}/api/daemon/{path}", self.address);
        let mut request = self
            .client
            .post(url)
            .bearer_auth(&self.token)
            .header("X-Felagi-Client-Version", "0.3.0")
            .header("X-Felagi-Client-Capabilities", "streaming,resume,cancel,thread")
            .json(&body);
        if let Some(lease) = lease {
            request = request.header("X-Felagi-Lease", lease);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        assert_eq!(answer.headers()["x-felagi-protocol-version"], "7");
        let bytes = answer.bytes().await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }
}

async fn path_works(database: &str) {
    let keyring = || Keyring::new(&[7; 32]).unwrap();
    let admin = Admin::open(database, keyring()).await.unwrap();
    let made = admin.init("acme", "admin@example.com").await.unwrap();
    let agent = made::agent(&admin, "Freya", 1).await;
    made::issue_for(&admin, "Fix the redirect", agent).await;
    let tasks = admin.list("acme", "/tasks", &[]).await.unwrap();
    let task = tasks[0]["id"].as_str().unwrap();
    admin.close().await;

    let mut settings = Settings::new(database.to_owned());
    settings.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(settings, keyring(), system_clock()).await.unwrap();
    // A second installation in one process is refused and harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::new();
    let http = Http { client, address: server.address(), token: made.daemon_token };

    let machine = json!({ "daemon_id": "m-1", "name": "one", "version": "0.3.0",
        "providers": ["claude_code"], "capabilities": { "os": "linux", "arch": "x86_64" } });
    let (status, registered) = http.post("register", None, machine).await;
    assert_eq!(
        (status, &registered["runtimes"][0]["status"]),
        (201, &json!("online")),
        "{registered}"
    );
    let (status, _) = http.post("heartbeat", None, json!({ "daemon_id": "m-1" })).await;
    assert_eq!(status, 200);

    let (status, claimed) = http.post("tasks/claim", None, json!({ "daemon_id": "m-1" })).await;
    assert_eq!((status, &claimed["data"]["id"]), (200, &json!(task)), "{claimed}");
    let lease = claimed["data"]["lease_token"].as_str().unwrap();
    let (status, _) = http.post("tasks/claim", None, json!({ "daemon_id": "m-1" })).await;
    assert_eq!(status, 204);

    let at = |what: &str| format!("tasks/{task}/{what}");
    let (status, lost) = http.post(&at("start"), None, json!({})).await;
    assert_eq!((status, &lost["code"]), (409, &json!("lease_lost")));
    let (status, started) = http.post(&at("start"), Some(lease), json!({})).await;
    assert_eq!((status, &started["status"]), (200, &json!("running")), "{started}");

    let lines = json!({ "messages": [
        { "seq": 1, "type": "assistant", "content": "Reading." },
        { "seq": 2, "type": "tool_use", "tool": "Bash", "payload": { "command": "ls" } },
    ] });
    let (status, kept) = http.post(&at("messages"), Some(lease), lines.clone()).await;
    assert_eq!(
        (status, &kept["accepted"], &kept["next_seq"]),
        (202, &json!(2), &json!(3)),
        "{kept}"
    );
    let (_, again) = http.post(&at("messages"), Some(lease), lines).await;
    assert_eq!((&again["accepted"], &again["next_seq"]), (&json!(0), &json!(3)), "{again}");

    let result = json!({ "result": { "summary": "Done.", "usage": { "cost_micros": 130_720 } },
        "session_id": "s-1", "work_dir": "/w" });
    for _ in 0..2 {
        let (status, done) = http.post(&at("complete"), Some(lease), result.clone()).await;
        assert_eq!((status, &done["status"]), (200, &json!("completed")), "{done}");
    }
    let (status, bad) = http.post(&at("fail"), Some(lease), json!({ "error": "no" })).await;
    assert_eq!((status, &bad["code"]), (409, &json!("bad_state")), "{bad}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_claimed_started_streamed_and_completed_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    path_works(&format!("sqlite:{}", dir.path().join("ostler.db").display())).await;
}
