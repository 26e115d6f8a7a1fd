//! The machines' endpoints by the protocol's document alone: raw JSON over HTTP, on SQLite and on PostgreSQL.
//!
//! Written from the specification and not from the server: no type of a client, of the store or of the rules
//! is used, and what people do is done through `/api/v1`. Every answer, whatever is tested, is held against
//! what holds for all of them ([`world::Answer`]): the protocol's version, a `message` in every refusal, and
//! no 5xx.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

#[macro_use]
mod world;

#[path = "../common/database.rs"]
mod database;
#[path = "../common/shown.rs"]
mod shown;

mod actors;
mod beyond;
mod claims;
mod envelope;
mod github;
mod limits;
mod odd;
mod refusals;
mod register;
mod tasks;
mod tokens;
mod waiting;
