//! Entry points for fuzzers: each takes any bytes and must return.
//!
//! They also hold what must be true of whatever was accepted, as `debug_assert`s.

use super::chunk::{Assembler, ChunkKind};
use super::command::{Command, RawCommand};
use super::message::ClientMessage;
use super::server::{Event, ServerMessage};
use super::task::Snapshot;

/// What the daemon does with a frame of a client, the command included.
pub fn fuzz_client_message(body: &[u8]) {
    let Ok(message) = ClientMessage::parse(body) else {
        return;
    };
    let again = serde_json::to_vec(&message).ok().and_then(|text| ClientMessage::parse(&text).ok());
    debug_assert_eq!(again.as_ref(), Some(&message), "what was read can be written and read");
    let ClientMessage::Command { command, .. } = message else {
        return;
    };
    judge(&command);
}

/// The gate alone, for text that is JSON.
pub fn fuzz_command(text: &[u8]) {
    if let Ok(raw) = serde_json::from_slice(text) {
        judge(&RawCommand::from_raw(raw));
    }
}

fn judge(raw: &RawCommand) {
    let Ok(command) = Command::parse(raw) else {
        return;
    };
    let again = RawCommand::new(&command).ok().and_then(|raw| Command::parse(&raw).ok());
    debug_assert_eq!(again.as_ref(), Some(&command), "the gate takes what it gave");
}

/// What a client does with a frame of the daemon.
pub fn fuzz_server_message(body: &[u8]) {
    let _ = ServerMessage::parse(body);
}

/// What a client does with a joined document.
pub fn fuzz_document(document: &[u8]) {
    let _ = Snapshot::parse(document);
    let _ = Event::parse(document);
}

/// Chunks in any order: the first bytes choose kind, sequence, index and count, a line each.
pub fn fuzz_assembler(script: &[u8]) {
    let mut assembler = Assembler::new(1024);
    for line in script.split(|&byte| byte == b'\n') {
        let [choice, index, count, data @ ..] = line else {
            continue;
        };
        let kind = if choice % 2 == 0 { ChunkKind::Snapshot } else { ChunkKind::Event };
        let data = String::from_utf8_lossy(data);
        let done =
            assembler.push(kind, u64::from(choice / 64), (*index).into(), (*count).into(), &data);
        debug_assert!(!matches!(done, Ok(Some(document)) if document.len() > 1024));
    }
}
