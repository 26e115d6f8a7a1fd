//! The local daemon: engine, persistence, framed listener and runner.
//!
//! `daemon` puts it together; `engine` owns the tasks, `wire` the clients, `runner` the agents;
//! `client` is the other side of the wire. Deliberately absent: command-line, signals, logging
//! set-up (the binary), and any rule about tasks (`ostler_core::task`).

pub mod client;
pub mod clock;
pub mod daemon;
pub mod endpoint;
mod engine;
/// Stand-in until the module lands.
pub(crate) mod git {
    pub(crate) struct Head;
    pub(crate) fn head(_: &camino::Utf8Path) -> Option<Head> {
        None
    }
    pub(crate) async fn change_since(
        _: &Head,
        _: &camino::Utf8Path,
        _: &[(std::ffi::OsString, std::ffi::OsString)],
    ) -> Option<ostler_core::outcome::GitChange> {
        None
    }
}
pub mod history;
pub mod paths;
pub mod redact;
pub mod runner;
pub mod tail;
mod wire;

pub use daemon::{Daemon, Settings, StartError};
