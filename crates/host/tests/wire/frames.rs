//! Frames: their bounds, their deadlines, and what is no frame at all.

use std::time::Duration;

use serde_json::json;

use super::raw::{FRAME_BYTES_MAX, Raw, frame, submit, wait_for};
use super::rig::Rig;

const LIST: &str = r#"{"version":1,"type":"list"}"#;

/// R-01
#[test]
fn r_01_other_protocols_get_no_answer_and_the_end() {
    let rig = Rig::new();
    let foreign = [
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /tasks HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        "list\n",
        "{\"type\":\"hello\",\"hello\":{\"clientId\":\"c\",\"versions\":[3],\"resumeAfter\":null}}\n",
        "{}\n\n",
        "\n\n\n\n",
    ];
    for text in foreign {
        let mut raw = Raw::connect(&rig.socket());
        raw.bytes(text.as_bytes());
        assert_eq!(raw.end(), Vec::<serde_json::Value>::new(), "{text:?}");
        assert_eq!(raw.received, b"", "{text:?}");
    }
    assert_eq!(rig.client().list().len(), 0);
}

/// R-20
#[test]
fn r_20_the_length_counts_bytes_not_characters() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let mut command = submit("größe-日本語-🙂");
    command["cwd"] = json!("/ä/日本/🙂");
    let body = json!({"type": "command", "id": "é", "command": command}).to_string();
    assert!(body.len() > body.chars().count());
    raw.text(&body);
    raw.result("é").unwrap();
    assert_eq!(raw.task("größe-日本語-🙂")["workingDirectory"], "/ä/日本/🙂");
}

/// R-20
#[test]
fn r_20_frames_may_be_cut_anywhere_and_come_together() {
    let rig = Rig::new();
    let mut raw = rig.client();
    let mut bytes = Vec::new();
    for n in 0..50 {
        let body = format!(r#"{{"type":"command","id":"p{n}","command":{LIST}}}"#);
        bytes.extend(frame(body.as_bytes()));
    }
    let (together, cut) = bytes.split_at(bytes.len() * 4 / 5);
    raw.bytes(together);
    for byte in cut {
        raw.bytes(&[*byte]);
    }
    for n in 0..50 {
        raw.result(&format!("p{n}")).unwrap();
    }
}

fn list_of_exactly(bytes: usize) -> String {
    let head = r#"{"type":"command","id":"big","command":{"version":1,"type":"list","ignored":""#;
    let tail = r#""}}"#;
    let filler = "x".repeat(bytes - head.len() - tail.len());
    format!("{head}{filler}{tail}")
}

/// R-21
#[test]
fn r_21_a_frame_of_exactly_the_maximum_is_read() {
    let rig = Rig::new();
    let mut raw = rig.client();
    raw.text(&list_of_exactly(FRAME_BYTES_MAX));
    raw.result("big").unwrap();
}

/// R-22. Nothing of a body is ever sent here: the end comes from the length alone.
#[test]
fn r_22_a_length_of_zero_or_above_the_maximum_ends_the_connection() {
    let rig = Rig::new();
    for length in [0, FRAME_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX] {
        for after_the_handshake in [false, true] {
            let mut raw = if after_the_handshake {
                rig.mirror().opened().raw
            } else {
                Raw::connect(&rig.socket())
            };
            let before = raw.received.len();
            raw.bytes(&length.to_be_bytes());
            raw.end();
            assert_eq!(raw.received.len(), before, "{length}: no answer");
        }
    }
    let mut raw = rig.client();
    // The daemon may close before all of it is written.
    let _ = raw.try_bytes(&frame(list_of_exactly(FRAME_BYTES_MAX + 1).as_bytes()));
    assert!(raw.end().iter().all(|it| it["type"] != "command_result"));
}

fn address_space_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split(' ').next().unwrap().parse::<usize>().unwrap();
    pages * rustix::param::page_size()
}

/// R-22: memory follows what arrives, not what is announced.
#[test]
fn r_22_an_announced_body_takes_no_memory() {
    let rig = Rig::new();
    const CLIENTS: usize = 300;
    let mut probe = rig.client();
    let before = address_space_bytes();
    let clients: Vec<Raw> = (0..CLIENTS)
        .map(|_| {
            let mut raw = Raw::connect(&rig.socket());
            raw.bytes(&(FRAME_BYTES_MAX as u32).to_be_bytes());
            raw.bytes(b"{");
            raw
        })
        .collect();
    // Accepted and read after the others, so that those were read too.
    probe.list();
    rig.client().list();
    let grown = address_space_bytes().saturating_sub(before);
    assert!(grown < CLIENTS * FRAME_BYTES_MAX / 2, "{grown} bytes more");
    drop(clients);
}

/// R-24
#[test]
fn r_24_a_frame_that_never_completes_ends_its_connection_alone() {
    let rig = Rig::with(|settings| settings.wire.frame_deadline = Duration::from_millis(100));
    let mut idle = rig.client();
    for part in [&b"\0"[..], b"\0\0\0\x10", b"\0\0\0\x10{\"type\":"] {
        let mut raw = Raw::connect(&rig.socket());
        raw.bytes(part);
        raw.end();
        let mut raw = rig.mirror().opened().raw;
        raw.bytes(part);
        raw.end();
    }
    // Silence between frames is no unfinished frame.
    idle.list();
}

/// R-24: a byte now and then does not extend it.
#[test]
fn r_24_trickling_does_not_extend_the_deadline() {
    let rig = Rig::with(|settings| settings.wire.frame_deadline = Duration::from_millis(100));
    let mut raw = rig.mirror().opened().raw;
    raw.bytes(&1_000_u32.to_be_bytes());
    let mut sent = 0;
    wait_for("the end of a trickling client", || {
        sent += 1;
        (!raw.try_bytes(b" ")).then_some(())
    });
    assert!(sent < 1_000, "the frame was complete");
}

/// R-42: a client that sends nothing at all is closed, one that does is not.
#[test]
fn r_42_a_silent_client_is_closed_though_it_reads() {
    let rig = Rig::with(|settings| {
        settings.wire.silent_client = Duration::from_millis(400);
        settings.wire.heartbeat = Duration::from_millis(50);
    });
    // Before the handshake as well.
    let mut mute = Raw::connect(&rig.socket());
    let mut reader = rig.mirror().opened().raw;
    let messages = reader.end();
    assert!(messages.len() > 2, "it was told heartbeats: {messages:?}");
    assert!(messages.iter().all(|it| it["type"] == "heartbeat"));
    assert_eq!(mute.end().len(), 0);
}
