//! The grace after an absence: machines that could not reach the server have the time of a lease to renew before
//! any of theirs is taken, and are not called silent before they could have said something.
//!
//! Pure. A server says when its database answered it, with both clocks; an absence shows as a gap between two such
//! moments (a start, a database that was away, a process that was frozen, a machine that slept), or as a wall clock
//! that went further than the boot clock.

use std::time::Duration;

use super::state::Policy;
use crate::clock::Now;

/// Between two moments at which the database answered, half a lease may pass, but not more than this; beyond it
/// nobody could renew. Less is a busy database.
const QUIET_MAX: Duration = Duration::from_secs(10);
/// With a lease so short that tests use it, this much is still no absence.
const QUIET_MIN: Duration = Duration::from_secs(3);
/// How much further the wall clock may go than the boot clock between two moments. Beyond it the clock was set
/// forward, and leases seem older than they are.
const CLOCK_JUMP_MAX: Duration = Duration::from_secs(5);

/// Since when machines can be heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    since: Now,
    last: Now,
}

impl Grace {
    /// Of a server that starts.
    pub const fn new(now: Now) -> Self {
        Self { since: now, last: now }
    }

    /// The database answers. Whether that ends an absence.
    pub fn answered(&mut self, now: Now, policy: &Policy) -> bool {
        let absent = self.is_absence(now, policy);
        if absent {
            self.since = now;
        }
        self.last = now;
        absent
    }

    /// How long machines could be heard without an absence. Leases may be taken once that is a lease.
    pub fn lasts(&self, now: Now, policy: &Policy) -> Duration {
        if self.is_absence(now, policy) {
            return Duration::ZERO;
        }
        now.boot.since(self.since.boot)
    }

    fn is_absence(&self, now: Now, policy: &Policy) -> bool {
        let quiet = now.boot.since(self.last.boot);
        let quiet_max = (policy.lease / 2).clamp(QUIET_MIN, QUIET_MAX);
        quiet > quiet_max || now.wall.since(self.last.wall) > quiet + CLOCK_JUMP_MAX
    }
}
