//! Signals that end what runs in the foreground: the first in good order, the second at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::signal::unix::{SignalKind, signal};

use crate::error::{Code, Failure};

/// TERM, INT and HUP.
pub(crate) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    /// From now on none of them ends the process.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Code::Failed, "signals cannot be received").because(error)
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The number of the next one.
    pub(crate) async fn next(&mut self) -> i32 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.hang_up.recv() => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// The second signal ends the process in its handler, whatever a disk does to its threads. (A daemon's shims
/// notice that it is gone and end their runs.)
pub(crate) fn end_at_the_second_signal() -> Result<(), Failure> {
    let is_second = Arc::new(AtomicBool::new(false));
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let numbers = kinds.map(|kind| kind.as_raw_value());
    let register = || {
        for number in numbers {
            let flag = Arc::clone(&is_second);
            signal_hook::flag::register_conditional_shutdown(number, 128 + number, flag)?;
        }
        for number in numbers {
            signal_hook::flag::register(number, Arc::clone(&is_second))?;
        }
        Ok(())
    };
    register().map_err(|error: std::io::Error| {
        Failure::new(Code::Failed, "signals cannot be received").because(error)
    })
}
