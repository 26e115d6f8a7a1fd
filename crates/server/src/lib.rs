//! The fleet server: issues, agents and leases over HTTP, on SQLite or PostgreSQL.
//!
//! Owns: the database, the machines' endpoints (`/api/daemon`), the people's (`/api/v1`), the sweeper and the
//! administration on the same machine. Deliberately absent: running agents (that is the machine's daemon), and any
//! rule about what may become of a task (that is `ostler_core::lease`).

mod admin;
mod app;
mod auth;
mod board;
mod bodies;
pub mod config;
pub mod delivery;
mod events;
#[doc(hidden)]
pub mod fuzzing;
pub mod github;
pub mod harness;
mod health;
mod hex;
mod http;
mod impatient;
pub mod lock;
pub mod machine;
mod machines;
mod metrics;
pub mod new_file;
mod observe;
pub mod people;
mod rate;
pub mod repository;
mod retention;
pub mod secrets;
mod serve;
mod server;
pub mod settings;
pub mod skill;
pub mod store;
mod sweeper;
pub mod text;
pub mod thread;
pub mod version;

pub use admin::{Admin, AdminFault, FirstStart, Initialised};
pub use rate::Limits;
pub use serve::{TlsError, use_ring};
pub use server::{Server, StartError, system_clock};
pub use store::sql::backup::{BackupError, backup};
pub use store::sql::presence::has_tables;
pub use store::sql::transfer::{Moved, TransferError};
pub use store::sql::{Clock, OpenError};
