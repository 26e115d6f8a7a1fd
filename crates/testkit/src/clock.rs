//! A clock that moves only when a test says so.
//!
//! Owns: [`ManualClock`], the test side of `core::clock::Clock`. Deliberately absent: timers; code that
//! waits is driven by handing it the new "now".

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostler_core::clock::{BootTime, Clock, Now, Timestamp};

/// Both clocks, turned by hand. Clones share one reading.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<Mutex<Now>>,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// A clock that shows 2026-01-02T03:04:05.678901Z, a thousand seconds after the machine started.
    pub fn new() -> Self {
        let now = Now {
            wall: Timestamp::from_micros(1_767_323_045_678_901),
            boot: BootTime::from_duration(Duration::from_secs(1_000)),
        };
        Self { now: Arc::new(Mutex::new(now)) }
    }

    /// Moves both clocks forward together and returns the new reading.
    pub fn advance(&self, by: Duration) -> Now {
        self.change(|now| {
            let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
            now.wall = Timestamp::from_micros(now.wall.as_micros().saturating_add(micros));
            now.boot = now.boot.after(by);
        })
    }

    /// Sets the wall clock alone, forward or back, as a person or a time server does.
    pub fn set_wall(&self, wall: Timestamp) -> Now {
        self.change(|now| now.wall = wall)
    }

    fn change(&self, change: impl FnOnce(&mut Now)) -> Now {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut now);
        *now
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        self.change(|_| {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advances_both_and_sets_the_wall_alone() {
        let clock = ManualClock::new();
        let shared = clock.clone();
        let before = clock.now();
        let after = shared.advance(Duration::from_millis(1_500));
        assert_eq!(
            after.wall.as_micros() - before.wall.as_micros(),
            1_500_000,
            "the wall clock moves"
        );
        assert_eq!(
            after.boot.since(before.boot),
            Duration::from_millis(1_500),
            "and so does the boot clock"
        );
        clock.set_wall(Timestamp::from_micros(5));
        assert_eq!(clock.now().wall.as_micros(), 5);
        assert_eq!(clock.now().boot, after.boot, "clones share one reading");
    }
}
