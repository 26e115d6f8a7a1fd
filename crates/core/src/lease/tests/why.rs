//! Why a task is queued: every obstacle alone, and the most lasting of several.

use super::kit::at;
use crate::lease::{QueueFacts, WhyQueued, why_queued};

const FREE: QueueFacts = QueueFacts {
    agent_archived: false,
    agent_paused: false,
    runtimes: 2,
    runtimes_online: 1,
    held: 1,
    limit: 2,
    ahead: 0,
    not_before: None,
};

type Obstacle = (fn(&mut QueueFacts), WhyQueued);

/// The most lasting first: what a person must undo, what a machine must, what time does.
fn obstacles() -> [Obstacle; 7] {
    [
        (|facts| facts.agent_archived = true, WhyQueued::AgentArchived),
        (|facts| facts.agent_paused = true, WhyQueued::AgentPaused),
        (|facts| (facts.runtimes, facts.runtimes_online) = (0, 0), WhyQueued::NoRuntime),
        (|facts| facts.runtimes_online = 0, WhyQueued::RuntimesOffline),
        (|facts| facts.not_before = Some(at(11)), WhyQueued::Parked(at(11))),
        (|facts| facts.held = 2, WhyQueued::AgentBusy { held: 2, limit: 2 }),
        (|facts| facts.ahead = 4, WhyQueued::Behind(4)),
    ]
}

#[test]
fn every_queued_task_has_its_reason() {
    assert_eq!(why_queued(&FREE, at(10)), WhyQueued::Next);
    for (stand_in_the_way, reason) in obstacles() {
        let mut facts = FREE;
        stand_in_the_way(&mut facts);
        assert_eq!(why_queued(&facts, at(10)), reason);
    }
}

#[test]
fn of_several_reasons_the_most_lasting_is_told() {
    for first in 0..obstacles().len() {
        let mut facts = FREE;
        // From the back, since the coarser obstacle overwrites what the finer one has set.
        for (stand_in_the_way, _) in obstacles().iter().skip(first).rev() {
            stand_in_the_way(&mut facts);
        }
        assert_eq!(why_queued(&facts, at(10)), obstacles()[first].1);
    }
}

#[test]
fn a_task_is_parked_until_it_is_due_and_not_longer() {
    let facts = QueueFacts { not_before: Some(at(10)), ..FREE };
    assert_eq!(why_queued(&facts, at(9)), WhyQueued::Parked(at(10)));
    assert_eq!(why_queued(&facts, at(10)), WhyQueued::Next);
}

#[test]
fn f_033_an_agent_whose_limit_was_lowered_or_is_nought_is_busy() {
    for (held, limit) in [(5, 3), (0, 0)] {
        let facts = QueueFacts { held, limit, ..FREE };
        assert_eq!(why_queued(&facts, at(0)), WhyQueued::AgentBusy { held, limit });
    }
}
