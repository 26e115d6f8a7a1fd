//! Rate limits: so many requests a minute, counted by token, or by address while nobody is known.
//!
//! They stop a loop that has gone wrong; they do not pace work. A window begins with the first request and
//! lasts a minute.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::metrics::{ByBucket, Word};

/// How long a window lasts.
const WINDOW: Duration = Duration::from_secs(60);
/// Windows that are kept; when there are more, those that are over are dropped, and all of them when that does
/// not halve their number: then everybody begins anew.
const WINDOWS_MAX: usize = 200_000;

/// What is counted on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Bucket {
    Register,
    Heartbeat,
    Claim,
    Tasks,
    /// Everything under `/api/v1`.
    Api,
}

/// Requests a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `FELAGI_DAEMON_THROTTLE_REGISTER`
    pub register: u32,
    /// `FELAGI_DAEMON_THROTTLE_HEARTBEAT`
    pub heartbeat: u32,
    /// `FELAGI_DAEMON_THROTTLE_CLAIM`
    pub claim: u32,
    /// `FELAGI_DAEMON_THROTTLE_TASKS`
    pub tasks: u32,
    /// Of a person or program.
    pub api: u32,
    /// Tokens from one address that were not accepted, and requests with each of them.
    pub unknown: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { register: 120, heartbeat: 600, claim: 1_200, tasks: 6_000, api: 6_000, unknown: 60 }
    }
}

/// Where a caller stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    /// The request is over the limit; seconds until the next window.
    pub(crate) refused: Option<u64>,
}

struct Window {
    since: Instant,
    count: u32,
}

impl Window {
    fn lasts(&self, now: Instant) -> bool {
        now.duration_since(self.since) < WINDOW
    }

    fn standing(&self, now: Instant, limit: u32) -> Standing {
        let left = WINDOW.saturating_sub(now.duration_since(self.since));
        // Rounded up: who comes again after it must not come too early.
        let seconds = u64::try_from(left.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
        Standing {
            limit,
            remaining: limit.saturating_sub(self.count),
            refused: (self.count >= limit).then(|| seconds.max(1)),
        }
    }
}

/// Counts for keys of one sort.
struct Counts<K>(Mutex<HashMap<K, Window>>);

impl<K: Hash + Eq> Counts<K> {
    fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// Counts one more.
    fn count(&self, key: K, limit: u32) -> Standing {
        let now = Instant::now();
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= WINDOWS_MAX {
            windows.retain(|_, window| window.lasts(now));
            // So that not every request looks through all of them.
            if windows.len() > WINDOWS_MAX / 2 {
                windows.clear();
            }
        }
        let window = windows.entry(key).or_insert(Window { since: now, count: 0 });
        if !window.lasts(now) {
            *window = Window { since: now, count: 0 };
        }
        let standing = window.standing(now, limit);
        if standing.refused.is_some() {
            return standing;
        }
        window.count += 1;
        Standing { remaining: standing.remaining - 1, ..standing }
    }

    /// Where a key stands; it is not remembered for the question.
    fn look(&self, key: &K, limit: u32) -> Standing {
        let now = Instant::now();
        let windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unknown = Window { since: now, count: 0 };
        windows.get(key).filter(|it| it.lasts(now)).unwrap_or(&unknown).standing(now, limit)
    }
}

/// All counts of one server.
pub(crate) struct Rates {
    limits: Limits,
    known: Counts<(Bucket, i64)>,
    /// Different tokens that were not accepted.
    unknown: Counts<IpAddr>,
    /// Requests with each of them, by the token's hash.
    again: Counts<(IpAddr, [u8; 32])>,
    refused: Family<ByBucket, Counter>,
}

impl Rates {
    pub(crate) fn new(limits: Limits, refused: Family<ByBucket, Counter>) -> Self {
        Self { limits, known: Counts::new(), unknown: Counts::new(), again: Counts::new(), refused }
    }

    fn note(&self, standing: Standing, bucket: &'static str) -> Standing {
        if standing.refused.is_some() {
            self.refused.get_or_create(&ByBucket { bucket: Word(bucket) }).inc();
        }
        standing
    }

    /// Counts a request of a token.
    pub(crate) fn count(&self, bucket: Bucket, token_id: i64) -> Standing {
        let (limit, word) = match bucket {
            Bucket::Register => (self.limits.register, "register"),
            Bucket::Heartbeat => (self.limits.heartbeat, "heartbeat"),
            Bucket::Claim => (self.limits.claim, "claim"),
            Bucket::Tasks => (self.limits.tasks, "tasks"),
            Bucket::Api => (self.limits.api, "api"),
        };
        self.note(self.known.count((bucket, token_id), limit), word)
    }

    /// Where an address stands, when it has guessed too often; asked before an unknown token is looked up.
    ///
    /// One token that is sent again and again, as by a machine that knows no better, is one guess: it must not lock out
    /// others behind its address (F-111).
    pub(crate) fn guesses(&self, address: IpAddr, hash: [u8; 32]) -> Option<Standing> {
        let (address, limit) = (prefix(address), self.limits.unknown);
        let own = self.again.look(&(address, hash), limit);
        let is_new = own.remaining == limit;
        let standing = if is_new { self.unknown.look(&address, limit) } else { own };
        Some(self.note(standing, "unknown")).filter(|it| it.refused.is_some())
    }

    /// Counts a token that was not accepted.
    pub(crate) fn guessed(&self, address: IpAddr, hash: [u8; 32]) {
        let (address, limit) = (prefix(address), self.limits.unknown);
        let is_first = self.again.count((address, hash), limit).remaining + 1 == limit;
        if is_first {
            self.unknown.count(address, limit);
        }
    }
}

/// Whoever has one IPv6 address has the whole /64.
fn prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_not_remembered() {
        let counts = Counts::new();
        assert_eq!(counts.look(&7, 2), Standing { limit: 2, remaining: 2, refused: None });
        assert!(counts.0.lock().unwrap().is_empty());
        assert_eq!(counts.count(7, 2), Standing { limit: 2, remaining: 1, refused: None });
        assert_eq!(counts.count(7, 2).remaining, 0);
        assert!(counts.look(&7, 2).refused.is_some());
    }

    #[test]
    fn windows_are_bounded_also_when_all_of_them_last() {
        let counts = Counts::new();
        for key in 0..=WINDOWS_MAX {
            counts.count(key, 1);
        }
        assert_eq!(counts.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn f_116_who_comes_again_after_the_interval_is_not_too_early() {
        let now = Instant::now();
        let window =
            |ms| Window { since: now.checked_sub(Duration::from_millis(ms)).unwrap(), count: 1 };
        assert_eq!(window(0).standing(now, 1).refused, Some(60));
        assert_eq!(window(1).standing(now, 1).refused, Some(60));
        assert_eq!(window(1_001).standing(now, 1).refused, Some(59));
        assert_eq!(window(59_999).standing(now, 1).refused, Some(1));
    }
}
