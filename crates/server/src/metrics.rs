//! What a server counts, and the page that shows it. Names and labels are few and fixed: no id, no path of a
//! task, nothing a client chose becomes a label.
//!
//! Owns: the counters. Deliberately absent: who listens ([`crate::serve`]), and numbers that only the
//! database knows, which [`crate::store::sql::SqlStore`] is asked for when somebody looks.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds that bound the latencies' buckets; a waiting claim may take half a minute.
const SECONDS: [f64; 14] =
    [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];
/// Requests that share one commit.
const BATCH: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// A word of ours as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Word(pub(crate) &'static str);

impl EncodeLabelValue for Word {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.encode(encoder)
    }
}

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Answered {
    pub(crate) method: Word,
    /// The path as the router has it.
    pub(crate) endpoint: String,
    pub(crate) status: u16,
}

/// Where a request went.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Endpoint {
    pub(crate) endpoint: String,
}

macro_rules! one_label {
    ($name:ident, $label:ident) => {
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub(crate) struct $name {
            pub(crate) $label: Word,
        }
    };
}

one_label!(ByState, state);
one_label!(ByBucket, bucket);
one_label!(ByWhat, what);

type SecondsOf = Family<Endpoint, Histogram, fn() -> Histogram>;

/// The counters of one server. Clones of a metric count together.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) requests: Family<Answered, Counter>,
    pub(crate) seconds: SecondsOf,
    pub(crate) requests_now: Gauge,
    pub(crate) claims_waiting: Gauge,
    pub(crate) tasks: Family<ByState, Gauge>,
    pub(crate) runtimes_online: Gauge,
    pub(crate) refused: Family<ByBucket, Counter>,
    pub(crate) sweeps: Counter,
    pub(crate) leases_taken: Counter,
    /// Seconds; negative when behind.
    pub(crate) clock_ahead: Gauge,
    pub(crate) database_errors: Counter,
    pub(crate) batches: Histogram,
    /// Batches decided without reading their tasks first, by what came of it.
    pub(crate) guesses: Family<ByWhat, Counter>,
    pub(crate) connections: Family<ByState, Gauge>,
    pub(crate) retention_rounds: Counter,
    pub(crate) removed: Family<ByWhat, Counter>,
    /// Bytes of output that retention removed.
    pub(crate) removed_bytes: Counter<u64, AtomicU64>,
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut it = Self {
            registry: Registry::with_prefix("ostler"),
            requests: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            requests_now: Gauge::default(),
            claims_waiting: Gauge::default(),
            tasks: Family::default(),
            runtimes_online: Gauge::default(),
            refused: Family::default(),
            sweeps: Counter::default(),
            leases_taken: Counter::default(),
            clock_ahead: Gauge::default(),
            database_errors: Counter::default(),
            batches: Histogram::new(BATCH),
            guesses: Family::default(),
            connections: Family::default(),
            retention_rounds: Counter::default(),
            removed: Family::default(),
            removed_bytes: Counter::default(),
        };
        let to = &mut it.registry;
        to.register("http_requests", "Requests answered", it.requests.clone());
        to.register("http_request_seconds", "How long answers took", it.seconds.clone());
        to.register("http_requests_now", "Requests being answered", it.requests_now.clone());
        to.register("claims_waiting", "Claims that wait for work", it.claims_waiting.clone());
        to.register("tasks", "Tasks that have not ended, by state", it.tasks.clone());
        to.register("runtimes_online", "Runtimes heard of lately", it.runtimes_online.clone());
        to.register("rate_refusals", "Requests refused by a rate limit", it.refused.clone());
        to.register("sweeps", "Rounds of the sweeper", it.sweeps.clone());
        to.register("leases_taken", "Leases that ran out and were taken", it.leases_taken.clone());
        let what = "Seconds that this server's clock is ahead of the database's";
        to.register("clock_ahead_seconds", what, it.clock_ahead.clone());
        to.register("database_errors", "What the database refused", it.database_errors.clone());
        to.register("batch_size", "Requests that shared one commit", it.batches.clone());
        to.register(
            "guesses",
            "Batches decided without reading first: saved, or outdated and done again",
            it.guesses.clone(),
        );
        to.register("connections", "Connections to the database", it.connections.clone());
        to.register("retention_rounds", "Rounds of retention", it.retention_rounds.clone());
        to.register("removed", "What retention removed, in rows", it.removed.clone());
        to.register(
            "removed_message_bytes",
            "Bytes of output that retention removed",
            it.removed_bytes.clone(),
        );
        it
    }

    /// The page, as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
