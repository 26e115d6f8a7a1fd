//! Shims on real processes: the fixture binary is the shim, the agent and, where one is killed, the
//! daemon.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod ending;
mod lost;
mod output;
mod probe;
mod rig;
mod speed;
mod start;
