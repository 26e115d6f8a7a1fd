//! One shim that waits for a run, so that an agent's start does not wait for its supervisor's.
//!
//! Started with the daemon and replaced when a run has taken it. It has no run directory and no order,
//! sleeps in a read, and goes when the daemon goes.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ostler_supervise::IdleShim;

/// See the module's documentation.
pub(super) struct SpareShim {
    program: PathBuf,
    waiting: Mutex<Option<IdleShim>>,
}

impl SpareShim {
    pub(super) fn new(program: PathBuf) -> Self {
        Self { program, waiting: Mutex::default() }
    }

    /// The shim that waits, or a new one when there is none or somebody killed it.
    pub(super) fn take(&self) -> io::Result<IdleShim> {
        let waiting = self.waiting().take();
        if let Some(mut waiting) = waiting
            && waiting.is_alive()
        {
            return Ok(waiting);
        }
        self.spawn()
    }

    /// Sees to it that one waits. Without it the next start is slower, and nothing else.
    pub(super) fn refill(&self) {
        if self.waiting().is_some() {
            return;
        }
        match self.spawn() {
            // Another refill may have come first; then this one goes again.
            Ok(waiting) => drop(self.waiting().get_or_insert(waiting)),
            Err(error) => tracing::debug!(%error, "no supervisor could be started ahead"),
        }
    }

    fn spawn(&self) -> io::Result<IdleShim> {
        let marker = ostler_supervise::new_marker()?;
        IdleShim::spawn(&self.program, &marker)
    }

    fn waiting(&self) -> MutexGuard<'_, Option<IdleShim>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
