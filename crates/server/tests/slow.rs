//! Clients that are slow, on purpose or not: each is cut in the end, and until then others are served.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests"
)]

#[macro_use]
mod common;

use std::io::ErrorKind;
use std::time::Duration;

use common::World;
use ostler_server::settings::Waits;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What the bound is set to that a test waits for.
const SHORT: Duration = Duration::from_millis(500);
/// Between two bytes of a client that is slow and not silent.
const TRICKLE: Duration = Duration::from_millis(50);
/// For what takes a moment on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// Slow clients of each kind at once.
const CLIENTS: usize = 70;
/// Bytes of a body of output, the most there may be.
const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// Bytes of a file, and how often it is asked for: no buffers between server and client hold as much.
const FILE_BYTES: usize = 1 << 20;
const FILES: usize = 16;
/// What a client is told that asks whether to send its body.
const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

async fn connect(world: &World, sent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    stream
}

/// The head of a machine's request, whose body is to come.
fn head(world: &World, path: &str, bytes: usize) -> String {
    format!(
        "POST /api/daemon/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\
         X-Felagi-Client-Version: 0.3.0\r\nContent-Length: {bytes}\r\nExpect: 100-continue\r\n\r\n",
        world.daemon_token
    )
}

/// Reads until `wanted` comes; what came before it.
async fn hear(stream: &mut TcpStream, wanted: &str) -> String {
    let mut heard = Vec::new();
    let come = async {
        while !String::from_utf8_lossy(&heard).contains(wanted) {
            let bytes = stream.read_buf(&mut heard).await.unwrap();
            assert!(bytes > 0, "cut after {}", String::from_utf8_lossy(&heard));
        }
    };
    tokio::time::timeout(SOON, come).await.expect("the server says it");
    String::from_utf8(heard).unwrap()
}

/// Sends a byte now and then until the server answers or ends the connection; what it said.
async fn trickle(mut stream: TcpStream) -> String {
    let mut heard = Vec::new();
    let ended = async {
        loop {
            tokio::select! {
                biased;
                read = stream.read_buf(&mut heard) => match read {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
                () = tokio::time::sleep(TRICKLE) => {
                    // When it is ended, reading says so.
                    let _ = stream.write_all(b"x").await;
                }
            }
        }
    };
    tokio::time::timeout(SOON, ended).await.expect("the server cuts a slow client");
    String::from_utf8(heard).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_a_head_too_slowly_is_cut_even_when_it_trickles() {
    let world = World::start_with(|settings| settings.waits.head_max = SHORT).await;
    let first = trickle(connect(&world, "GET /healthz HTTP/1.1\r\nX-Slow: ").await).await;
    assert!(!first.contains("200 OK"), "{first}");
    // The second request of a connection has no more time than the first.
    let whole = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nX-Slow: ";
    let second = trickle(connect(&world, whole).await).await;
    assert_eq!(second.matches("200 OK").count(), 1, "{second}");
    world.stop().await;
}

/// A body that trickles, until it is cut: as long as a body may take.
async fn trickle_a_body(world: &World) {
    let heard = trickle(connect(world, &head(world, "register", 1_000_000)).await).await;
    assert!(heard.contains(" 408 ") && heard.contains("\"too_slow\""), "{heard}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_a_body_too_slowly_is_told_and_cut_even_when_it_trickles() {
    let world = World::start_with(|settings| settings.waits.body_max = SHORT).await;
    trickle_a_body(&world).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_whether_to_send_too_much_is_refused_before_it_sends() {
    let world = World::start().await;
    let mut large = connect(&world, &head(&world, "register", OUTPUT_BYTES_MAX)).await;
    let heard = hear(&mut large, "too_large").await;
    assert!(heard.contains(" 413 ") && !heard.contains("100 Continue"), "{heard}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_much_on_a_slow_line_is_let() {
    let world = World::start_with(|settings| settings.waits.body_max = SHORT).await;
    let mut large = connect(&world, &head(&world, "tasks/01j/messages", OUTPUT_BYTES_MAX)).await;
    let half = vec![b' '; OUTPUT_BYTES_MAX / 2];
    large.write_all(&half).await.unwrap();
    // Another, begun later, has no time left meanwhile.
    trickle_a_body(&world).await;
    large.write_all(&half).await.unwrap();
    // The whole body was read: there is no such task.
    hear(&mut large, " 404 ").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_something_to_happen_is_not_cut() {
    let waits = Waits { head_max: LONG, body_max: SHORT, stall_max: SHORT };
    let world = World::start_with(|settings| settings.waits = waits).await;
    world.register("m-1", "claude_code").await;
    let follow = format!(
        "GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        world.token
    );
    let mut stream = connect(&world, &follow).await;
    hear(&mut stream, "event: ready").await;
    let body = r#"{"daemon_id":"m-1","wait_seconds":25}"#;
    let claim = head(&world, "tasks/claim", body.len());
    let claim = claim.replace("Expect: 100-continue", "X-Felagi-Client-Capabilities: long_poll");
    let mut claim = connect(&world, &(claim + body)).await;
    trickle_a_body(&world).await;
    let agent = world.agent("Freya", "claude_code").await;
    world.issue_for("One", agent).await;
    hear(&mut stream, "event: issue.created").await;
    let claimed = hear(&mut claim, "\r\n\r\n").await;
    // On a machine that was very busy the claim's wait is over before.
    assert!(claimed.contains(" 200 ") || claimed.contains(" 204 "), "{claimed}");
    world.stop().await;
}

/// Where a large file is downloaded.
async fn download(world: &World) -> String {
    let issue = world.post("/issues", json!({ "title": "Large" })).await["id"].clone();
    let comments = format!("/issues/{}/comments", issue.as_str().unwrap());
    let comment = world.post(&comments, json!({ "body": "<p>x</p>" })).await["id"].clone();
    let files = format!("{comments}/{comment}/attachments");
    let file = world.attach(&files, "a", &"x".repeat(FILE_BYTES)).await.data()["id"].clone();
    format!(
        "GET /api/v1{files}/{file} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        world.token
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_no_answer_is_cut() {
    let world = World::start_with(|settings| settings.waits.stall_max = SHORT).await;
    let request = download(&world).await;
    let mut stream = connect(&world, "").await;
    let cut = async {
        loop {
            if let Err(error) = stream.write_all(request.as_bytes()).await {
                return error.kind();
            }
        }
    };
    let error = tokio::time::timeout(SOON, cut).await.expect("the server cuts a client");
    assert!(matches!(error, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_slow_clients_keep_nobody_from_being_served() {
    let waits = Waits { head_max: LONG, body_max: LONG, stall_max: LONG };
    let world = World::start_with(|settings| settings.waits = waits).await;
    let download = download(&world).await.repeat(FILES);
    let mut slow = Vec::new();
    for _ in 0..CLIENTS {
        slow.push(connect(&world, "GET /healthz HTTP/1.1\r\nX-Slow: x").await);
        slow.push(connect(&world, &download).await);
        let mut body = connect(&world, &head(&world, "tasks/01j/messages", OUTPUT_BYTES_MAX)).await;
        let mut told = [0; CONTINUE.len()];
        body.read_exact(&mut told).await.unwrap();
        assert_eq!(std::str::from_utf8(&told), Ok(CONTINUE), "a body is not waited for");
        body.write_all(b"{\"messages\":[").await.unwrap();
        slow.push(body);
    }
    let others = async {
        let agent = world.agent("Freya", "claude_code").await;
        world.register("m-1", "claude_code").await;
        world.issue_for("One", agent).await;
        let (task, lease) = world.claim("m-1").await.unwrap();
        let say = async |what: &str, body| {
            world.machine(&format!("tasks/{task}/{what}"), Some(&lease), body).await.status
        };
        assert_eq!(say("start", json!({})).await, 200);
        let line = json!({ "seq": 1, "type": "assistant", "content": "x".repeat(60_000) });
        assert_eq!(say("messages", json!({ "messages": [line] })).await, 202);
        assert_eq!(say("complete", json!({ "result": { "summary": "Done" } })).await, 200);
    };
    tokio::time::timeout(SOON, others).await.expect("others are served");
    // All of them were there all the time. What the downloads have been sent says nothing.
    for stream in slow.iter().step_by(3).chain(slow.iter().skip(2).step_by(3)) {
        let read = stream.try_read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::WouldBlock), "a slow client was cut");
    }
    world.stop().await;
}
