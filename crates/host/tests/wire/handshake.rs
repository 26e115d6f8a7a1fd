//! Hello, welcome, and what ends a connection.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::raw::{Raw, hello, submit};
use super::rig::Rig;
use super::runner::AT_ONCE;

/// R-25, R-26
#[test]
fn r_26_a_hello_that_offers_3_is_welcome() {
    let rig = Rig::new();
    for versions in [json!([3]), json!([1, 2, 3]), json!([3, 4, 99]), json!([3, 3]), json!([-1, 3])]
    {
        let mut raw = Raw::connect(&rig.socket());
        let mut hello = hello(None);
        hello["hello"]["versions"] = versions.clone();
        raw.send(&hello);
        let welcome = raw.message().expect("a welcome");
        let expected = json!({"type": "welcome", "welcome": {
            "version": 3, "currentSequence": 0, "heartbeatSeconds": 15
        }});
        assert_eq!(welcome, expected, "{versions}");
    }
}

/// R-27
#[test]
fn r_27_no_common_version_is_told_and_closed() {
    let rig = Rig::new();
    for versions in [json!([]), json!([2]), json!([4]), json!([1, 2, 4, 30]), json!([-3])] {
        let mut raw = Raw::connect(&rig.socket());
        let mut hello = hello(None);
        hello["hello"]["versions"] = versions.clone();
        raw.send(&hello);
        let expected = json!({"type": "version_rejected", "supported": [3]});
        assert_eq!(raw.end(), [expected], "{versions}");
    }
}

/// R-28
#[test]
fn r_28_a_command_before_the_handshake_is_not_executed() {
    let rig = Rig::new();
    let firsts = [
        json!({"type": "command", "id": "1", "command": submit("early")}),
        json!({"type": "command", "id": "1", "command": {"nonsense": true}}),
        json!({"type": "ack", "sequence": 0}),
        json!({"type": "pong", "sequence": 0}),
    ];
    for first in firsts {
        let mut raw = Raw::connect(&rig.socket());
        raw.send(&first);
        let expected = json!({"type": "version_rejected", "supported": [3]});
        assert_eq!(raw.end(), [expected], "{first}");
    }
    let (mut raw, current) = Raw::hello(&rig.socket(), None);
    assert_eq!((raw.list().len(), current), (0, 0));
    assert_eq!(rig.runner.started(), []);
}

/// Bodies that are no message, whenever they come.
fn no_messages() -> Vec<Vec<u8>> {
    let deep =
        format!(r#"{{"type":"ack","sequence":1,"x":{}{}}}"#, "[".repeat(130), "]".repeat(130));
    let deeper = "[".repeat(200_000);
    let texts = [
        "nonsense",
        "",
        " ",
        "{}",
        "[]",
        "null",
        "3",
        "\"hello\"",
        "{",
        "{\"type\":",
        "{}{}",
        r#"{"type":"ack","sequence":1} x"#,
        r#"{"type":"ack"}"#,
        r#"{"type":"ack","sequence":"1"}"#,
        r#"{"type":"ack","sequence":null}"#,
        r#"{"type":"pong"}"#,
        r#"{"type":3,"sequence":1}"#,
        r#"{"type":null}"#,
        r#"{"sequence":1}"#,
        r#"{"type":"welcome","welcome":{"version":3,"currentSequence":0,"heartbeatSeconds":15}}"#,
        r#"{"type":"event","event":{}}"#,
        r#"{"type":"Ack","sequence":1}"#,
        r#"{"type":"command"}"#,
        r#"{"type":"command","id":"1"}"#,
        r#"{"type":"command","command":{"version":1,"type":"list"}}"#,
        r#"{"type":"command","id":1,"command":{"version":1,"type":"list"}}"#,
        r#"{"type":"command","id":null,"command":{"version":1,"type":"list"}}"#,
        r#"{"type":"ack","type":"ack","sequence":1}"#,
        r#"{"type":"ack","sequence":1,"sequence":1}"#,
        r#"{"type":"ack","\u0074ype":"ack","sequence":1}"#,
        r#"{"type":"ack","sequence":1,"other":{"a":1,"a":2}}"#,
        r#"{"type":"command","id":"1","id":"1","command":{"version":1,"type":"list"}}"#,
        r#"{"type":"hello"}"#,
        r#"{"type":"hello","hello":{}}"#,
        r#"{"type":"hello","hello":[]}"#,
        r#"{"type":"hello","hello":{"versions":[3],"resumeAfter":null}}"#,
        r#"{"type":"hello","hello":{"clientId":"c","resumeAfter":null}}"#,
        r#"{"type":"hello","hello":{"clientId":"c","versions":[3]}}"#,
        r#"{"type":"hello","hello":{"clientId":7,"versions":[3],"resumeAfter":null}}"#,
        r#"{"type":"hello","hello":{"clientId":"c","versions":3,"resumeAfter":null}}"#,
        r#"{"type":"hello","hello":{"clientId":"c","versions":["3"],"resumeAfter":null}}"#,
        r#"{"type":"hello","hello":{"clientId":"c","versions":[3],"resumeAfter":"0"}}"#,
        r#"{"type":"hello","hello":{"clientId":"c","versions":[3],"resumeAfter":-1}}"#,
        r#"{"type":"hello","hello":{"clientId":"c","versions":[3],"resumeAfter":0.5}}"#,
        r#"{"type":"hello","hello":{"clientId":"c","clientId":"c","versions":[3],"resumeAfter":null}}"#,
        &deep,
        &deeper,
    ];
    let mut bodies: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    bodies.push(b"\xff\xfe\x00".to_vec());
    bodies.push(b"{\"type\":\"ack\",\"sequence\":1,\"x\":\"\xff\"}".to_vec());
    bodies.push(b"\xef\xbb\xbf{\"type\":\"ack\",\"sequence\":1}".to_vec());
    bodies.retain(|body| !body.is_empty());
    bodies
}

/// R-25, R-29
#[test]
fn r_29_what_is_no_message_ends_the_connection_and_changes_nothing() {
    let rig = Rig::new();
    let mut watcher = rig.mirror().opened();
    for body in no_messages() {
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
        let mut raw = Raw::connect(&rig.socket());
        raw.bytes(&super::raw::frame(&body));
        assert_eq!(raw.end(), Vec::<Value>::new(), "before the handshake: {shown}");
        let mut raw = rig.mirror().opened().raw;
        raw.bytes(&super::raw::frame(&body));
        assert_eq!(raw.end(), Vec::<Value>::new(), "after it: {shown}");
    }
    assert_eq!(watcher.raw.list().len(), 0);
    assert_eq!(rig.mirror().current, 0);
}

/// R-29
#[test]
fn r_29_a_second_hello_is_ignored() {
    let rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    for versions in [json!([3]), json!([2])] {
        let mut second = hello(Some(0));
        second["hello"]["versions"] = versions;
        mirror.raw.send(&second);
    }
    mirror.raw.list();
    assert_eq!(mirror.raw.kept().count(), 0, "neither a welcome nor a snapshot");
}

/// R-39, R-40
#[test]
fn r_39_acks_and_pongs_of_any_value_have_no_reply() {
    let rig = Rig::new();
    let mut raw = rig.mirror().opened().raw;
    for sequence in [0, 1, 7, u64::from(u32::MAX), 1 << 53, i64::MAX as u64, u64::MAX, 0] {
        raw.send(&json!({"type": "ack", "sequence": sequence}));
        raw.send(&json!({"type": "pong", "sequence": sequence}));
    }
    raw.submit("after").unwrap();
    assert!(raw.kept().all(|it| it["type"] == "event"), "{:?}", raw.kept().collect::<Vec<_>>());
}

/// R-41
#[test]
fn r_41_heartbeats_come_at_the_announced_interval_with_what_was_sent() {
    let rig = Rig::with(|settings| settings.wire.heartbeat = Duration::from_secs(1));
    let mut raw = Raw::connect(&rig.socket());
    let begin = Instant::now();
    raw.send(&hello(None));
    let welcome = raw.message().unwrap();
    assert_eq!(welcome["welcome"]["heartbeatSeconds"], 1);
    let id = raw.command(&submit("one"));
    raw.result(&id).unwrap();
    let beat = raw.until(|it| it["type"] == "heartbeat");
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(900), "after {took:?}");
    assert!(took < Duration::from_secs(3), "after {took:?}");
    let newest = raw.kept().filter_map(|it| it["event"]["sequenceNumber"].as_u64()).max();
    assert_eq!(beat["sequence"].as_u64(), newest);
    assert_eq!(newest, Some(2), "queued and running");
}

/// R-40, R-42: never an ack, only pongs; on a quiet feed, then on a busy one.
#[test]
fn r_42_a_client_that_answers_heartbeats_stays() {
    let rig = Rig::with(|settings| {
        settings.wire.heartbeat = Duration::from_millis(40);
        settings.wire.silent_client = Duration::from_millis(400);
    });
    let mut mirror = rig.mirror().opened();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1_000) {
        assert!(mirror.take(), "closed on a quiet feed");
    }
    let socket = rig.socket();
    let busy = std::thread::spawn(move || {
        let (mut raw, _) = Raw::hello(&socket, None);
        let mut n = 0;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(1_000) {
            let mut command = submit(&format!("busy-{n}"));
            command["prompt"] = json!(AT_ONCE);
            raw.call(&command).unwrap();
            n += 1;
        }
        n
    });
    let before = mirror.beats;
    while !busy.is_finished() {
        assert!(mirror.take(), "closed on a busy feed");
    }
    let beats = mirror.beats - before;
    assert!(beats >= 10, "{beats} heartbeats in a busy second at 40 ms each");
    let tasks: u64 = busy.join().unwrap();
    mirror.until_sequence(3 * tasks);
}
