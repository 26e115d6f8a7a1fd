//! What clients send, and the daemon's strict parser for it.
//!
//! Owns the rule what ends a connection: text that is not JSON or not UTF-8, a duplicate key, nesting
//! beyond 128, an unknown type, a missing or mistyped field. The `command` inside a good frame is kept as
//! text and judged by [`Command::parse`], because its faults are answered instead.

use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::command::{Command, RawCommand};
use super::frame::FrameError;
use crate::json::{self, Problem};

/// The longest `id` of a command, in bytes. It comes back in the answer, so it may not fill a frame.
pub const COMMAND_ID_BYTES_MAX: usize = 4_096;
/// The longest `clientId`, in bytes.
pub const CLIENT_ID_BYTES_MAX: usize = 4_096;

/// A message from a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientMessage {
    /// The first message.
    Hello(Hello),
    /// Everything up to `sequence` is durably applied. No reply.
    Ack {
        /// The newest applied sequence.
        sequence: u64,
    },
    /// The answer to a heartbeat. No reply.
    Pong {
        /// The heartbeat's sequence.
        sequence: u64,
    },
    /// A command; exactly one `command_result` carries the same `id`.
    Command {
        /// Chosen by the client.
        id: String,
        /// Not yet judged: see [`Command::parse`].
        command: RawCommand,
    },
}

/// Who connects, what it speaks, and where it left off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// Stable over reconnects.
    pub client_id: String,
    /// The protocol versions it can speak; the highest common one wins.
    pub versions: Vec<i64>,
    /// The last durably applied sequence; `None` asks for a snapshot. Always present on the wire.
    #[serde(deserialize_with = "nullable")]
    pub resume_after: Option<u64>,
}

/// Why a frame's body is not a message. Each ends the connection.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Not JSON, not UTF-8, or a field of the wrong type.
    #[error("malformed JSON")]
    Malformed(#[source] serde_json::Error),
    /// An object has a key twice.
    #[error("duplicate key")]
    DuplicateKey,
    /// Nested deeper than 128.
    #[error("nested too deeply")]
    TooDeep,
    /// JSON, but no object.
    #[error("the message is not an object")]
    NotAnObject,
    /// A `type` that does not exist.
    #[error("unknown message type")]
    UnknownType,
    /// A field that this type must have.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// An `id` or `clientId` above its bound.
    #[error("{0} is too long")]
    TooLong(&'static str),
}

/// The fields of every type, unread; which of them matter depends on `type`.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, rename = "type", deserialize_with = "present")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    hello: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    sequence: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    command: Option<&'a RawValue>,
}

/// A field that is there, `null` included; `default` covers the one that is not.
pub(super) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A field that may be `null` but must be there (serde alone takes a missing `Option` for `None`).
fn nullable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Option::deserialize(deserializer)
}

impl ClientMessage {
    /// The message with this command, for clients.
    ///
    /// # Errors
    /// None in practice; [`FrameError::NotJson`] if the command has no JSON form.
    pub fn command(id: impl Into<String>, command: &Command) -> Result<Self, FrameError> {
        let command = RawCommand::new(command).map_err(|_| FrameError::NotJson)?;
        Ok(Self::Command { id: id.into(), command })
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// Everything that ends the connection; see [`MessageError`].
    pub fn parse(body: &[u8]) -> Result<Self, MessageError> {
        // serde_json words the error of bytes that are not UTF-8; the text is what the rest needs.
        let Ok(text) = std::str::from_utf8(body) else {
            return Err(malformed_utf8(body));
        };
        json::check(text, Some("command")).map_err(|problem| match problem {
            Problem::DuplicateKey => MessageError::DuplicateKey,
            Problem::TooDeep => MessageError::TooDeep,
        })?;
        let envelope: Envelope<'_> = match text.trim_start_matches([' ', '\t', '\n', '\r']) {
            object if object.starts_with('{') => serde_json::from_str(object),
            // serde's derive would take an array of the fields.
            other => match serde_json::from_str::<&RawValue>(other) {
                Ok(_) => return Err(MessageError::NotAnObject),
                Err(error) => Err(error),
            },
        }
        .map_err(MessageError::Malformed)?;
        Self::from_envelope(&envelope)
    }

    fn from_envelope(envelope: &Envelope<'_>) -> Result<Self, MessageError> {
        let kind: String = field(envelope.kind, "type")?;
        match kind.as_str() {
            "hello" => {
                let hello: Object<Hello> = field(envelope.hello, "hello")?;
                bounded(hello.0.client_id.len(), CLIENT_ID_BYTES_MAX, "clientId")?;
                Ok(Self::Hello(hello.0))
            }
            "ack" => Ok(Self::Ack { sequence: field(envelope.sequence, "sequence")? }),
            "pong" => Ok(Self::Pong { sequence: field(envelope.sequence, "sequence")? }),
            "command" => {
                let id: String = field(envelope.id, "id")?;
                bounded(id.len(), COMMAND_ID_BYTES_MAX, "id")?;
                let raw = envelope.command.ok_or(MessageError::Missing("command"))?;
                Ok(Self::Command { id, command: RawCommand::from_raw(raw.to_owned()) })
            }
            _ => Err(MessageError::UnknownType),
        }
    }
}

fn field<T: DeserializeOwned>(
    raw: Option<&RawValue>,
    name: &'static str,
) -> Result<T, MessageError> {
    let raw = raw.ok_or(MessageError::Missing(name))?;
    serde_json::from_str(raw.get()).map_err(MessageError::Malformed)
}

fn bounded(bytes: usize, max: usize, name: &'static str) -> Result<(), MessageError> {
    if bytes > max { Err(MessageError::TooLong(name)) } else { Ok(()) }
}

fn malformed_utf8(body: &[u8]) -> MessageError {
    let error = serde_json::from_slice::<&RawValue>(body).err();
    MessageError::Malformed(error.unwrap_or_else(|| serde::de::Error::custom("invalid UTF-8")))
}

/// A struct that comes as an object; serde's derive alone also takes an array of its fields.
struct Object<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        if !raw.get().starts_with('{') {
            return Err(serde::de::Error::custom("expected an object"));
        }
        serde_json::from_str(raw.get()).map(Self).map_err(serde::de::Error::custom)
    }
}

impl Serialize for ClientMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Hello(hello) => {
                map.serialize_entry("type", "hello")?;
                map.serialize_entry("hello", hello)?;
            }
            Self::Ack { sequence } => {
                map.serialize_entry("type", "ack")?;
                map.serialize_entry("sequence", sequence)?;
            }
            Self::Pong { sequence } => {
                map.serialize_entry("type", "pong")?;
                map.serialize_entry("sequence", sequence)?;
            }
            Self::Command { id, command } => {
                map.serialize_entry("type", "command")?;
                map.serialize_entry("id", id)?;
                map.serialize_entry("command", command)?;
            }
        }
        map.end()
    }
}
