//! Development only: what tests of the other crates share.
//!
//! Owns: a scripted model endpoint ([`model`]), the real Claude Code ([`claude`]) and a private
//! PostgreSQL ([`postgres`]) for tests, what becomes of a test without its real program ([`real`]),
//! helpers around processes and scratch folders ([`process`], [`scratch`]), a clock turned by hand
//! ([`clock`]) and the checks that hold the workspace in shape ([`tidy`]). The binary `fake-agent`
//! plays agents that misbehave. Deliberately absent: anything that ships. No crate depends on this one
//! other than as a dev-dependency.
//!
//! A helper that cannot do its work panics: it runs inside a test, and a broken helper is a failed
//! test.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "these helpers run inside tests, where a panic is how a test fails and stderr is its log"
)]

pub mod claude;
pub mod clock;
pub mod model;
pub mod postgres;
pub mod process;
pub mod real;
pub mod scratch;
pub mod tidy;
