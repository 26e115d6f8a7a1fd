//! The fleet server.

pub mod delivery;
pub mod github;
pub mod harness;
pub mod repository;
pub mod secrets;
pub mod skill;
pub mod text;
pub mod thread;
pub mod version;
