//! Figures with their targets, one row each, and percentiles.

use std::time::Duration;

/// Whether more or less is better.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// For comparison only.
    None,
}

pub(crate) fn heading() {
    println!("{:<58} {:>14}   {:<18} ", "what", "figure", "target");
}

/// Prints one row; `unit` follows the figure and the target.
pub(crate) fn row(what: &str, figure: f64, unit: &str, target: Target) {
    let (text, met) = match target {
        Target::AtLeast(bound) => (format!("at least {}", number(bound)), figure >= bound),
        Target::AtMost(bound) => (format!("at most {}", number(bound)), figure <= bound),
        Target::None => (String::new(), true),
    };
    let verdict = match (target, met) {
        (Target::None, _) => "",
        (_, true) => "met",
        (_, false) => "MISSED",
    };
    println!("{what:<58} {:>14}   {text:<18} {verdict}", format!("{} {unit}", number(figure)));
}

/// A line of detail below a row.
pub(crate) fn note(text: &str) {
    println!("    {text}");
}

fn number(value: f64) -> String {
    if value.abs() >= 1_000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Durations of one thing, measured many times.
#[derive(Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value that `percent` of the samples do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(index).copied().unwrap_or_default()
    }

    pub(crate) fn best(&self) -> Duration {
        self.0.iter().min().copied().unwrap_or_default()
    }

    /// `p50 … p99 …` in milliseconds.
    pub(crate) fn summary(&self) -> String {
        format!(
            "best {:.2} ms, p50 {:.2} ms, p99 {:.2} ms ({} times)",
            millis(self.best()),
            millis(self.percentile(50)),
            millis(self.percentile(99)),
            self.len()
        )
    }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// The middle one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
