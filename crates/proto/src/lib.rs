//! The wires of Ostler as plain serde types, with their gates and golden files.
//!
//! One module a wire: [`framed`] is the per-user runtime daemon's, [`lease`] the fleet's. The types here are what clients and
//! servers exchange, spelled as on the wire; they know no type of the core, and the processes that use
//! them convert at their edge. Deliberately absent: sockets, async, clocks, scheduling rules.

pub mod framed;
pub mod json;
pub mod lease;
