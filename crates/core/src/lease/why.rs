//! Why a task is still queued: the one reason a person can do something about.

use crate::clock::Timestamp;

/// What the store knows about a queued task's surroundings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFacts {
    /// Its agent was archived.
    pub agent_archived: bool,
    /// Its agent is paused.
    pub agent_paused: bool,
    /// Machines that could run it were ever registered.
    pub runtimes: u64,
    /// Of those, the ones that are online.
    pub runtimes_online: u64,
    /// Tasks of its agent that are held.
    pub held: u64,
    /// Tasks its agent may hold at once.
    pub limit: u64,
    /// Tasks of its agent that come before it and can be claimed.
    pub ahead: u64,
    /// It is not to be claimed before.
    pub not_before: Option<Timestamp>,
}

/// The reason, the most lasting first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyQueued {
    /// Its agent is archived: it will not be claimed at all.
    AgentArchived,
    /// Its agent is paused.
    AgentPaused,
    /// No machine that could run it was ever registered.
    NoRuntime,
    /// Every machine that could run it is offline.
    RuntimesOffline,
    /// Parked, most likely by a usage limit.
    Parked(Timestamp),
    /// Its agent holds as many as it may.
    AgentBusy {
        /// How many it holds.
        held: u64,
        /// How many it may.
        limit: u64,
    },
    /// Others of its agent come first.
    Behind(u64),
    /// Nothing stands in its way: the next machine that asks gets it.
    Next,
}

/// Picks the reason.
pub fn why_queued(facts: &QueueFacts, now: Timestamp) -> WhyQueued {
    if facts.agent_archived {
        WhyQueued::AgentArchived
    } else if facts.agent_paused {
        WhyQueued::AgentPaused
    } else if facts.runtimes == 0 {
        WhyQueued::NoRuntime
    } else if facts.runtimes_online == 0 {
        WhyQueued::RuntimesOffline
    } else if let Some(at) = facts.not_before.filter(|&at| at > now) {
        WhyQueued::Parked(at)
    } else if facts.held >= facts.limit {
        WhyQueued::AgentBusy { held: facts.held, limit: facts.limit }
    } else if facts.ahead > 0 {
        WhyQueued::Behind(facts.ahead)
    } else {
        WhyQueued::Next
    }
}
