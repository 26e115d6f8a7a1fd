//! Many daemons against the store in memory, in virtual time: delays, lost requests and answers, requests
//! that come twice or late, daemons that sleep, crash and come back, a server that restarts, a clock that
//! jumps.
//!
//! One seed is one world, and does one thing: `OSTLER_SIM_SEED=<seed>` runs it again,
//! `OSTLER_SIM_SEEDS=<count>` says how many are run, `OSTLER_SIM_BASE=<seed>` which is the first. [`truth`] holds what must be so after every step; a
//! failure prints its seed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "helpers of tests"
)]

mod daemon;
mod dice;
mod sim;
mod truth;

use std::sync::atomic::{AtomicU64, Ordering};

use sim::Sim;

/// Worlds when nobody says otherwise.
const SEEDS: u64 = 500;
/// The same where there is time, in CI.
const SEEDS_IN_CI: u64 = 3_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Says which world failed.
struct Names(u64);

impl Drop for Names {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("\nseed {}: run it again with OSTLER_SIM_SEED={}", self.0, self.0);
        }
    }
}

fn run(seed: u64) -> sim::Counts {
    let _names = Names(seed);
    Sim::new(seed).run()
}

#[test]
fn f_110_no_task_is_lost_or_held_twice_and_every_task_ends_whatever_fails() {
    if let Some(seed) = number("OSTLER_SIM_SEED") {
        let counts = run(seed);
        eprintln!("{counts:?}");
        assert_eq!(counts, run(seed), "one seed, one world");
        return;
    }
    let usual = if std::env::var_os("CI").is_some() { SEEDS_IN_CI } else { SEEDS };
    let seeds = number("OSTLER_SIM_SEEDS").unwrap_or(usual);
    let base = number("OSTLER_SIM_BASE").unwrap_or(0);
    let (next, mut all) = (AtomicU64::new(0), sim::Counts::default());
    let work = || {
        let mut counts = sim::Counts::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return counts;
            }
            counts.add(&run(base.wrapping_add(seed)));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(counts) => all.add(&counts),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    eprintln!("{seeds} worlds from {base} on: {all:?}");
    if seeds >= 100 {
        all.assert_enough();
    }
}
