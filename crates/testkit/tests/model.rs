//! The scripted model endpoint, asked over a plain socket.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ostler_testkit::model::{ModelEndpoint, Scenario, Turn, Usage};
use serde_json::{Value, json};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);

struct Answer {
    status: u16,
    head: String,
    body: String,
    /// The closing chunk arrived.
    whole: bool,
}

fn post(endpoint: &ModelEndpoint, path: &str, body: &Value) -> Answer {
    let mut stream = open(endpoint, path, body);
    let mut bytes = Vec::new();
    // A cut connection may end in a reset after what was sent.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let whole = !head.contains("chunked") || body.ends_with("0\r\n\r\n");
    Answer { status, head: head.to_lowercase(), body: body.to_owned(), whole }
}

fn open(endpoint: &ModelEndpoint, path: &str, body: &Value) -> TcpStream {
    let address = endpoint.url();
    let mut stream = TcpStream::connect(address.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(ANSWER)).unwrap();
    let body = body.to_string();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream
}

fn ask(stream: bool, messages: Value) -> Value {
    json!({"model": "m", "stream": stream, "tools": [{"name": "Bash"}, {"name": "mcp__x__ping"}], "messages": messages})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// The `data:` objects of a stream.
fn events(answer: &Answer) -> Vec<Value> {
    let lines = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

fn joined(events: &[Value], field: &str) -> String {
    events.iter().filter_map(|e| e["delta"][field].as_str()).collect()
}

#[test]
fn streams_text_and_the_shell_call_and_records_the_request() {
    let scenario = Scenario::turns([
        Turn {
            text: "I will write a file, ünïcode too.".into(), ..Turn::shell("echo hi > file")
        },
        Turn::text("done").usage(Usage { input: 203, output: 33, cache_read: 7, cache_write: 2 }),
    ]);
    let endpoint = ModelEndpoint::start(scenario);
    let first = post(&endpoint, "/v1/messages?beta=true", &ask(true, json!([user("go")])));
    assert_eq!(first.status, 200);
    assert!(first.whole && first.head.contains("text/event-stream"), "{}", first.head);
    let seen = events(&first);
    assert_eq!(joined(&seen, "text"), "I will write a file, ünïcode too.");
    let input: Value = serde_json::from_str(&joined(&seen, "partial_json")).unwrap();
    assert_eq!(input["command"], "echo hi > file");
    assert_eq!(seen[seen.len() - 2]["delta"]["stop_reason"], "tool_use");

    let result = json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]});
    let assistant = json!({"role": "assistant", "content": "…"});
    let second =
        post(&endpoint, "/v1/messages", &ask(false, json!([user("go"), assistant, result])));
    let message: Value = serde_json::from_str(&second.body).unwrap();
    assert_eq!(message["content"][0]["text"], "done");
    assert_eq!(message["stop_reason"], "end_turn");
    assert_eq!(
        message["usage"],
        json!({"input_tokens": 203, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 7, "output_tokens": 33})
    );

    let requests = endpoint.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[0].turn, requests[1].turn), (0, 1));
    assert_eq!((requests[1].user.as_str(), requests[1].users), ("go", 1));
    assert_eq!(requests[1].results, ["ok"]);
    assert_eq!(requests[0].tools, ["Bash", "mcp__x__ping"]);
    assert_eq!(requests[0].headers["host"], "test");
}

#[test]
fn names_a_tool_by_its_end_and_refuses_a_shell_nobody_offered() {
    let endpoint = ModelEndpoint::start(Scenario::from_json(json!({
        "rules": [{"match": "ping", "turns": [{"tool": {"ends": "ping", "input": {"word": "w"}}}]}],
        "turns": [{"shell": "true"}]})));
    let ping = post(&endpoint, "/v1/messages", &ask(false, json!([user("ping it")])));
    let message: Value = serde_json::from_str(&ping.body).unwrap();
    assert_eq!(message["content"][0]["name"], "mcp__x__ping");
    assert_eq!(message["content"][0]["input"], json!({"word": "w"}));
    let refused = post(
        &endpoint,
        "/v1/messages",
        &json!({"model": "m", "tools": [{"name": "Read"}], "messages": [user("x")]}),
    );
    assert_eq!(refused.status, 400, "{}", refused.body);
}

#[test]
fn fails_with_status_and_retry_after_as_often_as_told() {
    let endpoint = ModelEndpoint::start(Scenario::from_json(json!({"turns": [
        {"status": 429, "retry_after": 3, "message": "slow down", "times": 2}, {"text": "recovered"}]})));
    for _ in 0..2 {
        let refused = post(&endpoint, "/v1/messages", &ask(true, json!([user("go")])));
        assert_eq!(refused.status, 429);
        assert!(refused.head.contains("retry-after: 3"), "{}", refused.head);
        let body: Value = serde_json::from_str(&refused.body).unwrap();
        assert_eq!(body["error"], json!({"type": "rate_limit_error", "message": "slow down"}));
    }
    let fine = post(&endpoint, "/v1/messages", &ask(true, json!([user("go")])));
    assert_eq!(joined(&events(&fine), "text"), "recovered");
}

#[test]
fn cuts_garbles_and_serves_a_web_page() {
    let answer = |malformed: &str| {
        let turn = json!({"turns": [{"text": "abc abc abc abc abc", "malformed": malformed}]});
        let endpoint = ModelEndpoint::start(Scenario::from_json(turn));
        post(&endpoint, "/v1/messages", &ask(true, json!([user("go")])))
    };
    let cut = answer("truncate");
    assert_eq!(events(&cut).len(), 2, "what went before the cut arrives: {}", cut.body);
    assert!(!cut.whole, "no closing chunk");
    let garbage = answer("garbage");
    assert!(garbage.body.contains("data: {not json at all") && !garbage.whole);
    let html = answer("html");
    assert!(html.status == 200 && html.body.contains("<html>"), "{}", html.body);
}

#[test]
fn hangs_after_two_events_and_ends_at_once_when_dropped() {
    let endpoint = ModelEndpoint::start(Scenario::from_json(
        json!({"turns": [{"text": "half", "hang_s": 600}]}),
    ));
    let mut stream = open(&endpoint, "/v1/messages", &ask(true, json!([user("go")])));
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains("content_block_start") {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "ended early");
        seen.extend_from_slice(&piece[..count]);
    }
    let stopped = Instant::now();
    drop(endpoint);
    while stream.read(&mut piece).is_ok_and(|count| count > 0) {}
    assert!(stopped.elapsed() < Duration::from_secs(5), "{:?}", stopped.elapsed());
    assert!(!String::from_utf8_lossy(&seen).contains("text_delta"));
}

#[test]
fn counts_tokens_and_refuses_what_it_does_not_serve() {
    let endpoint = ModelEndpoint::start(Scenario::text("hi"));
    let counted = post(&endpoint, "/v1/messages/count_tokens", &json!({}));
    assert_eq!(counted.body, "{\"input_tokens\":10}");
    assert_eq!(post(&endpoint, "/api/hello", &json!({})).status, 404);
    assert_eq!(endpoint.requests().len(), 2);
    assert!(endpoint.turns().is_empty());
}
