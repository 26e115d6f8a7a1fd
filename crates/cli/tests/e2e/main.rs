//! The program `ostler`, end to end: the real binary, real processes, real `kill -9`.
//!
//! Every test has a scratch folder of its own ([`rig`]) with its own daemon; whatever it started is gone when
//! it ends. Tests wait for conditions with a deadline and never for time. Deliberately absent: the wire byte by
//! byte (host's tests), the shim on its own (supervise's).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "helpers of tests"
)]

mod administer;
mod agent_cli;
mod claude;
mod crash;
mod endpoint;
mod follow;
mod help;
mod issue;
mod kill_failed;
mod lost;
mod mount;
mod options;
mod permissions;
mod replayed;
mod rig;
mod run;
mod server;
mod server_files;
mod stalled;
mod storage;
mod tasks;
mod tree;
mod user;
mod waiting_shim;
