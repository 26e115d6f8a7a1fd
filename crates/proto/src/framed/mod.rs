//! The runtime protocol, version 3: length-prefixed JSON between clients and the per-user daemon.
//!
//! A **frame** is a four-byte big-endian length and that many bytes of UTF-8 JSON, at most
//! [`FRAME_BYTES_MAX`]. A client opens with [`ClientMessage::Hello`], is answered
//! [`ServerMessage::Welcome`], gets the state as a [`Snapshot`] in chunks (or the events after its
//! cursor), then live [`Event`]s; it sends [`Command`]s and gets one [`CommandResult`] each.
//!
//! | layer | module | who uses it |
//! |---|---|---|
//! | bytes | [`frame`] | both sides |
//! | messages | [`message`] | both sides; [`ClientMessage::parse`] is the daemon's strict gate |
//! | commands | [`command`] | [`Command::parse`] is the daemon's gate with the wire's error texts |
//! | tasks and results | [`task`], [`result`] | both sides; [`fit_list`] keeps an answer inside a frame |
//! | chunks | [`chunk`] | the daemon cuts, the client's [`Assembler`] joins |
//!
//! Everything is synchronous and without IO, except the two blocking helpers [`read_frame`] and
//! [`write_frame`] for simple clients. Times on the wire are RFC 3339 strings in UTC with microseconds;
//! other units are the last word of a name. Unknown fields are ignored everywhere.
//!
//! ```
//! use ostler_proto::framed::{ClientMessage, Command, FRAME_BYTES_MAX, Hello, encode_into};
//!
//! let mut out = Vec::new();
//! let hello = Hello { client_id: "docs".into(), versions: vec![3], resume_after: None };
//! encode_into(&mut out, &ClientMessage::Hello(hello), FRAME_BYTES_MAX)?;
//! encode_into(&mut out, &ClientMessage::command("list-1", &Command::List)?, FRAME_BYTES_MAX)?;
//! # Ok::<(), ostler_proto::framed::FrameError>(())
//! ```

pub mod chunk;
pub mod command;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
pub mod message;
pub mod result;
pub mod server;
pub mod task;

pub use chunk::{AssembleError, Assembler, ChunkKind, encode_chunk, encode_event};
pub use command::{Command, Decision, Permissions, RawCommand, Submit};
pub use frame::{
    FRAME_BYTES_MAX, FRAME_BYTES_MIN, FrameError, ReadError, encode, encode_into, frame_len,
    read_frame, write_frame,
};
pub use message::{ClientMessage, Hello, MessageError};
pub use result::{
    LimitResult, ListResult, TaskResult, TaskState, encode_result, fit_list, fit_snapshot,
    fit_tails, fit_task, result_bytes_max,
};
pub use server::{CommandResult, Event, ServerMessage, Welcome};
pub use task::{
    CostMicros, Exit, Failure, FailureClass, GitChange, Killed, Proof, Receipt, Snapshot, Task,
    TaskStatus, Usage, Verdict, encode_snapshot,
};

/// The version of the protocol; the only one there is.
pub const PROTOCOL_VERSION: u32 = 3;
/// The `version` of every command and of every successful result.
pub const COMMAND_VERSION: u32 = 1;
/// The `eventType` of a changed task; the payload is the whole [`Task`].
pub const EVENT_TASK_CHANGED: &str = "task_changed";
/// The `eventType` of a changed limit; the payload is a [`LimitResult`].
pub const EVENT_LIMIT_CHANGED: &str = "scheduler_limit_changed";
