//! What all agents share: the traits, line splitting, the plain reader, the environment.
//!
//! In a folder of its own, so that every other file beside `lib.rs` is an agent.

pub(crate) mod agent;
pub(crate) mod environment;
pub mod fuzzing;
pub(crate) mod lines;
pub(crate) mod plain;
pub(crate) mod program;
pub(crate) mod reader;
