//! What the server remembers, and the operations on it.
//!
//! [`LeaseStore`] is what machines and the queue need: each method is one transaction. It has three
//! implementations, [`memory`] (the model), and `sql` on SQLite and on PostgreSQL. What may happen to a task
//! is decided by the core's lease machine through `plan` for all three; a store selects, locks and saves.
//! What people administrate (issues, agents, skills, …) is SQL only and lives beside it in `sql`.

pub mod memory;
pub(crate) mod plan;
pub(crate) mod sql;
#[cfg(test)]
mod tests;
pub mod types;

use std::future::Future;

use ostler_core::lease::Refusal;

pub(crate) use crate::hex::{hex, unhex};
pub use types::*;

/// Why an operation was not done. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such thing in this workspace.
    #[error("not found")]
    NotFound,
    /// The lease machine refused.
    #[error("the task's state or lease does not allow it")]
    Refused(Refusal),
    /// It would contradict something that is there.
    #[error("{0}")]
    Conflict(String),
    /// What was asked for is not possible, field by field.
    #[error("{field}: {fault}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        fault: String,
    },
    /// The database did not do it. Whether it was done is unknown only when a commit failed.
    #[error("the database did not answer")]
    Database(#[source] sqlx::Error),
    /// The server stops, or has too much to do.
    #[error("the server cannot take this now")]
    Busy,
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// What machines and the queue need of a store; each method is one transaction.
pub trait LeaseStore: Send + Sync {
    /// Registers a machine: one runtime a provider, known ones keep their id.
    fn machine_register(
        &self,
        registration: Registration,
    ) -> impl Future<Output = Result<Registered, StoreError>> + Send;

    /// The runtimes of a machine, or `NotFound` for one that is not registered.
    fn machine_find(
        &self,
        workspace_id: i64,
        daemon_id: &str,
    ) -> impl Future<Output = Result<Vec<Runtime>, StoreError>> + Send;

    /// Machines were heard of at these instants: their listed runtimes are online.
    fn machines_seen(&self, seen: Vec<Seen>)
    -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Gives a task to a machine, if there is one for it.
    fn task_claim(
        &self,
        claim: Claim,
    ) -> impl Future<Output = Result<Option<Claimed>, StoreError>> + Send;

    /// Does one thing to one task: everything but claiming.
    fn task_call(&self, call: TaskCall)
    -> impl Future<Output = Result<Stepped, StoreError>> + Send;

    /// Queues a task for an agent on an issue. The id is new.
    fn task_queue(
        &self,
        workspace_id: i64,
        issue_id: i64,
        agent_id: i64,
    ) -> impl Future<Output = Result<String, StoreError>> + Send;

    /// Ends pauses that are over, so that their tasks can be claimed; how many there were.
    fn tasks_unpark(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Takes leases that ran out, and marks machines offline that were not heard of.
    fn leases_sweep(&self, sweep: Sweep) -> impl Future<Output = Result<Swept, StoreError>> + Send;
}
