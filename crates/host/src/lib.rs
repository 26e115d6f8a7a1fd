//! The local daemon: engine, persistence, framed listener and runner.
//!
//! `daemon` puts it together; `engine` owns the tasks, `wire` the clients, `runner` the agents;
//! `client` is the other side of the wire. Deliberately absent: command-line, signals, logging
//! set-up (the binary), and any rule about tasks (`ostler_core::task`).

pub mod client;
pub mod clock;
pub mod config;
pub mod daemon;
pub mod endpoint;
mod engine;
pub mod git;
pub mod history;
pub mod paths;
pub mod redact;
pub mod runner;
pub mod settings;
pub mod tail;
mod wire;

pub use daemon::{Daemon, StartError};
pub use settings::Settings;
