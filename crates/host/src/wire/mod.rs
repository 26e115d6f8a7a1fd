//! The framed wire: the listener and one task a connection.
//!
//! Owns sockets, deadlines and the order of what a client is sent. Deliberately absent: what the
//! messages mean (`proto::framed`), what they do (`engine`).

mod connection;
pub(crate) mod convert;
mod listener;

pub(crate) use listener::Listener;

use std::time::Duration;

/// Numbers of the wire (runtime.md, "Frames"); each is the default of a setting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WireSettings {
    /// The largest frame, both ways.
    pub(crate) frame_bytes_max: usize,
    /// How long one frame may take, and how long a client may say nothing.
    pub(crate) frame_deadline: Duration,
    /// How often a client gets a heartbeat.
    pub(crate) heartbeat: Duration,
}
