//! The fleet server.

pub mod secrets;
