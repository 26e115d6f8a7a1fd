//! The words of Ostler and its pure state machines.
//!
//! Owns: identifiers, time, the vocabulary of results (failure, usage, receipt), the machines of tasks and of
//! leases, and how unknown words are told. Deliberately absent: async, clocks, randomness, environment, files and serde. A machine
//! here is a function of its state, an input and "now"; everything it wants done is an effect.

pub mod clock;
pub mod id;
pub mod lease;
pub mod outcome;
pub mod settings;
pub mod suggest;
pub mod task;
