//! Which task comes first: priority, then age, and with age every priority.

use std::time::Duration;

use crate::clock::Timestamp;

/// How urgent an issue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Nobody said.
    #[default]
    None,
    /// Some day.
    Low,
    /// As usual.
    Medium,
    /// Soon.
    High,
    /// Now.
    Urgent,
}

impl Priority {
    /// All of them, lowest first.
    pub const ALL: [Self; 5] = [Self::None, Self::Low, Self::Medium, Self::High, Self::Urgent];

    /// The word of the wires, and of the database.
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Urgent => "urgent",
        }
    }

    /// The priority with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.word() == word)
    }

    /// The start this priority has over one that nobody set. Whoever has waited that much longer goes first
    /// all the same, so that nothing starves.
    const fn head_start(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Low => Duration::from_secs(5 * 60),
            Self::Medium => Duration::from_secs(60 * 60),
            Self::High => Duration::from_secs(6 * 60 * 60),
            Self::Urgent => Duration::from_secs(48 * 60 * 60),
        }
    }
}

/// A task's place in the queue: the lowest goes first. It never changes while the task waits, so an index
/// can hold the order.
pub fn rank(priority: Priority, queued_at: Timestamp) -> i64 {
    let head_start = i64::try_from(priority.head_start().as_micros()).unwrap_or(i64::MAX);
    queued_at.as_micros().saturating_sub(head_start)
}
