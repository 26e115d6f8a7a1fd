//! The lease machine: what may become of a fleet task, who may say so, and what follows.
//!
//! Pure. The server's stores load a [`Task`], call [`step()`] and save what it became together with the
//! effects, in one transaction; the rule is here and nowhere else. A task that is `dispatched` or `running`
//! belongs to whoever knows the token of its [`Lease`]; all other tasks belong to nobody.
//!
//! Absent on purpose: tokens (the server makes them, this knows their hashes), which agent a task belongs to
//! and how many it may hold (the store selects among agents), the words of the wire.

mod grace;
mod order;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod why;

pub use grace::Grace;
pub use order::{Priority, rank};
pub use state::{
    CLOCKS_DIFFER_MAX, Decided, Decision, End, Ended, Lease, LeaseHash, Policy, State, Task,
    WaitingFor, Waits,
};
pub use step::{Answer, Call, Effect, Failing, Input, Refusal, Step, step};
pub use why::{QueueFacts, WhyQueued, why_queued};
