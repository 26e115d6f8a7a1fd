//! The fleet server.

pub mod secrets;
pub mod text;
pub mod thread;
