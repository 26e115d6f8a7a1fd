//! Time as the machines see it: a wall-clock reading to show and a boot-clock reading to measure.
//!
//! The traits live here so that everybody shares them; the implementations that read a real clock
//! live in `host`, the ones that tests turn by hand in `testkit`.

use std::time::Duration;

/// A wall-clock instant in microseconds since 1970-01-01T00:00:00Z. Shown to people. One machine
/// measures with [`BootTime`] instead, since this jumps when the clock is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant `micros` microseconds after the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This instant moved forward; the far future when it does not fit.
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)))
    }

    /// This instant moved back; the far past when it does not fit.
    pub fn before(self, age: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long from `earlier` until this instant; zero when it lies before. For work that several machines
    /// see, which share no other clock.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// A reading of `CLOCK_BOOTTIME`: it only grows, and it counts the time a machine was suspended, so
/// that a laptop that slept through a deadline has passed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BootTime(Duration);

impl BootTime {
    /// The instant `since_boot` after the machine started.
    pub const fn from_duration(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// This instant moved forward; the far future when it does not fit.
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }

    /// How long from `earlier` until this instant; zero when it lies before.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Both readings, taken together: what every step of a machine is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// To show.
    pub wall: Timestamp,
    /// To measure.
    pub boot: BootTime,
}

/// Where "now" comes from.
pub trait Clock: Send + Sync {
    /// Reads both clocks.
    fn now(&self) -> Now;
}
