//! The whole server over HTTP while what it stands on fails: PostgreSQL is killed, connections end, the
//! pool is empty, servers are killed, clients go away, everything is sent twice and out of order.
//!
//! In each test a fleet of clients ([`fleet`]) works off a queue, says again what was not answered, and
//! keeps an account of what it was told; in the end the database is compared with it ([`stored`]): nothing
//! is lost, nothing is there twice. Servers that are killed are processes of their own ([`child`]).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests"
)]

mod absence;
mod child;
mod clients;
mod clock;
mod cut;
mod decisions;
mod fleet;
mod full;
mod held;
mod killed;
#[path = "../common/made.rs"]
mod made;
mod opened;
mod postgres;
mod sqlite;
mod stored;
