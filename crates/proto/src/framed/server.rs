//! What the daemon sends.
//!
//! Owns the shapes; encoding events and results without a copy is in `chunk` and `result`. Clients read
//! with [`ServerMessage::parse`]. Deliberately absent: the order of messages, which is the daemon's.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A message from the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", try_from = "Envelope")]
pub enum ServerMessage {
    /// The handshake is done.
    Welcome {
        /// What was negotiated.
        welcome: Welcome,
    },
    /// No common version, or no handshake; the connection ends.
    VersionRejected {
        /// What the daemon speaks.
        supported: Vec<u32>,
    },
    /// A slice of a snapshot; see [`Assembler`](super::Assembler).
    SnapshotChunk {
        /// The snapshot's sequence, the same in all its slices.
        sequence: u64,
        /// From 0.
        chunk_index: u64,
        /// How many there are.
        chunk_count: u64,
        /// Base64.
        snapshot_data: String,
    },
    /// A change.
    Event {
        /// What changed.
        event: Event,
    },
    /// A slice of an event whose own frame would be too large.
    EventChunk {
        /// The event's sequence, the same in all its slices.
        sequence: u64,
        /// From 0.
        chunk_index: u64,
        /// How many there are.
        chunk_count: u64,
        /// Base64.
        event_data: String,
    },
    /// The one answer to a command.
    CommandResult(CommandResult),
    /// To be answered with a `pong` of the same sequence.
    Heartbeat {
        /// The newest sequence sent on this connection.
        sequence: u64,
    },
}

/// What the handshake settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Welcome {
    /// The negotiated version: 3.
    pub version: u32,
    /// The newest sequence.
    pub current_sequence: u64,
    /// Seconds from one heartbeat to the next.
    pub heartbeat_seconds: u32,
}

/// One change, in the order of its sequence.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Grows; the cursor to acknowledge and to resume after.
    pub sequence_number: u64,
    /// `task_changed` or `scheduler_limit_changed`.
    pub event_type: String,
    /// A [`Task`](super::Task) or a [`LimitResult`](super::LimitResult).
    pub payload: Box<RawValue>,
}

/// The answer to a command: `error` when not `ok`, else `result`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CommandResult {
    /// The command's own id.
    pub id: String,
    /// Whether it was done.
    pub ok: bool,
    /// Why not.
    pub error: Option<String>,
    /// What came of it: a `TaskResult`, `ListResult` or `LimitResult`.
    pub result: Option<Box<RawValue>>,
}

impl Event {
    /// Reads an event document joined from its chunks.
    ///
    /// # Errors
    /// Text that is no event.
    pub fn parse(document: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(document)
    }
}

impl ServerMessage {
    /// Reads a frame's body.
    ///
    /// # Errors
    /// Text that is no message of this protocol.
    pub fn parse(body: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }
}

/// The fields of every type. Serde's own tagged enums cannot hold a [`RawValue`] when reading.
#[derive(Deserialize)]
struct Envelope {
    r#type: String,
    welcome: Option<Welcome>,
    supported: Option<Vec<u32>>,
    sequence: Option<u64>,
    chunk_index: Option<u64>,
    chunk_count: Option<u64>,
    snapshot_data: Option<String>,
    event_data: Option<String>,
    event: Option<Event>,
    id: Option<String>,
    ok: Option<bool>,
    error: Option<String>,
    result: Option<Box<RawValue>>,
}

impl TryFrom<Envelope> for ServerMessage {
    type Error = String;

    fn try_from(from: Envelope) -> Result<Self, String> {
        let kind = from.r#type.as_str();
        let missing = |name: &str| format!("{kind} without {name}");
        let sequence = from.sequence.ok_or_else(|| missing("sequence"));
        let chunk_index = from.chunk_index.ok_or_else(|| missing("chunk_index"));
        let chunk_count = from.chunk_count.ok_or_else(|| missing("chunk_count"));
        Ok(match kind {
            "welcome" => Self::Welcome { welcome: from.welcome.ok_or_else(|| missing("welcome"))? },
            "version_rejected" => {
                Self::VersionRejected { supported: from.supported.unwrap_or_default() }
            }
            "snapshot_chunk" => Self::SnapshotChunk {
                sequence: sequence?,
                chunk_index: chunk_index?,
                chunk_count: chunk_count?,
                snapshot_data: from.snapshot_data.ok_or_else(|| missing("snapshot_data"))?,
            },
            "event" => Self::Event { event: from.event.ok_or_else(|| missing("event"))? },
            "event_chunk" => Self::EventChunk {
                sequence: sequence?,
                chunk_index: chunk_index?,
                chunk_count: chunk_count?,
                event_data: from.event_data.ok_or_else(|| missing("event_data"))?,
            },
            "command_result" => Self::CommandResult(CommandResult {
                id: from.id.ok_or_else(|| missing("id"))?,
                ok: from.ok.ok_or_else(|| missing("ok"))?,
                error: from.error,
                result: from.result,
            }),
            "heartbeat" => Self::Heartbeat { sequence: sequence? },
            _ => return Err("unknown message type".into()),
        })
    }
}
