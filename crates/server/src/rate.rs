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
/// Windows that are kept; when there are more, those that are over are dropped.
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
    /// Requests of one address whose token was not accepted.
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

/// Counts for keys of one sort.
struct Counts<K>(Mutex<HashMap<K, Window>>);

impl<K: Hash + Eq> Counts<K> {
    fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    fn count(&self, key: K, limit: u32, adds: bool) -> Standing {
        let now = Instant::now();
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= WINDOWS_MAX {
            windows.retain(|_, window| now.duration_since(window.since) < WINDOW);
        }
        let window = windows.entry(key).or_insert(Window { since: now, count: 0 });
        if now.duration_since(window.since) >= WINDOW {
            *window = Window { since: now, count: 0 };
        }
        let over = window.count >= limit;
        if !over && adds {
            window.count += 1;
        }
        let left = WINDOW.saturating_sub(now.duration_since(window.since));
        Standing {
            limit,
            remaining: limit.saturating_sub(window.count),
            refused: over.then(|| left.as_secs().max(1)),
        }
    }
}

/// All counts of one server.
pub(crate) struct Rates {
    limits: Limits,
    known: Counts<(Bucket, i64)>,
    unknown: Counts<IpAddr>,
    refused: Family<ByBucket, Counter>,
}

impl Rates {
    pub(crate) fn new(limits: Limits, refused: Family<ByBucket, Counter>) -> Self {
        Self { limits, known: Counts::new(), unknown: Counts::new(), refused }
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
        self.note(self.known.count((bucket, token_id), limit, true), word)
    }

    /// Whether an address has guessed too often; asked before its token is looked at.
    pub(crate) fn guesses(&self, address: IpAddr) -> Standing {
        self.note(self.unknown.count(prefix(address), self.limits.unknown, false), "unknown")
    }

    /// Counts a token that was not accepted.
    pub(crate) fn guessed(&self, address: IpAddr) {
        self.unknown.count(prefix(address), self.limits.unknown, true);
    }
}

/// Whoever has one IPv6 address has the whole /64.
fn prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into()),
    }
}
