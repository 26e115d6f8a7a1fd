//! The daemon over its socket, as a client meets it.
//!
//! Everything here speaks to the socket byte by byte ([`raw`]): the message types of `ostler-proto` are
//! not used, since what the daemon makes of them is what is tested. Runs are performed by a runner that
//! the test drives ([`runner`]). Deliberately absent: processes and `kill -9` (the binary's tests).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "helpers of tests"
)]

mod client;
mod commands;
mod examples;
mod flush;
mod frames;
mod handshake;
mod ids;
mod inline;
mod list;
mod load;
mod logged;
mod mirror;
mod output;
mod raw;
mod replay;
mod reserve;
mod restart;
mod rig;
mod runner;
mod schedule;
mod start;
mod stored;
