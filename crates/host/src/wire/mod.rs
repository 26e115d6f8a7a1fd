//! The framed wire: the listener and one task a connection.
//!
//! Owns sockets, deadlines and the order of what a client is sent. Deliberately absent: what the
//! messages mean (`proto::framed`), what they do (`engine`).

mod connection;
pub(crate) mod convert;
mod listener;

pub(crate) use listener::Listener;
