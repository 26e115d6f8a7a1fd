//! The fleet server.
