//! The fleet server.

pub mod repository;
pub mod secrets;
pub mod text;
pub mod thread;
