//! The order of the queue: priority, then age, and age in the end.

use proptest::prelude::*;

use super::kit::at;
use crate::clock::Timestamp;
use crate::lease::{Priority, rank};

/// Whoever has waited for so long is passed by nobody new.
const PATIENCE_SECONDS: i64 = 3 * 24 * 3_600;

#[test]
fn the_words_of_priorities_are_the_protocols_lowest_first() {
    assert_eq!(Priority::ALL.map(Priority::word), ["none", "low", "medium", "high", "urgent"]);
    assert!(Priority::ALL.is_sorted());
    for priority in Priority::ALL {
        assert_eq!(Priority::from_word(priority.word()), Some(priority));
    }
    assert_eq!(Priority::from_word("Urgent"), None);
    assert_eq!(Priority::default(), Priority::None);
}

#[test]
fn of_the_same_age_the_higher_priority_goes_first() {
    for pair in Priority::ALL.windows(2) {
        assert!(rank(pair[1], at(0)) < rank(pair[0], at(0)), "{pair:?}");
        // And of nearly the same: a minute does not turn the order around.
        assert!(rank(pair[1], at(60)) < rank(pair[0], at(0)), "{pair:?}");
    }
}

#[test]
fn of_the_same_priority_the_older_goes_first() {
    for priority in Priority::ALL {
        assert!(rank(priority, at(0)) < rank(priority, at(1)));
    }
}

#[test]
fn nothing_starves_whoever_waited_long_enough_goes_before_all_that_is_new() {
    for old in Priority::ALL {
        for new in Priority::ALL {
            assert!(rank(old, at(0)) < rank(new, at(PATIENCE_SECONDS)), "{old:?}, {new:?}");
        }
    }
}

#[test]
fn times_at_the_ends_of_the_range_do_not_overflow() {
    for micros in [i64::MIN, i64::MAX] {
        for priority in Priority::ALL {
            let place = rank(priority, Timestamp::from_micros(micros));
            assert!(place <= micros);
        }
    }
}

fn any_priority() -> impl Strategy<Value = Priority> {
    prop::sample::select(Priority::ALL.to_vec())
}

proptest! {
    /// A steady stream of urgent work, one a second, and one task that nobody finds important: served one a
    /// second, it is served.
    #[test]
    fn nothing_starves_in_a_queue_that_never_empties(
        old in any_priority(),
        stream in prop::collection::vec(any_priority(), 1..50),
    ) {
        let place = rank(old, at(0));
        let ahead = (0..=PATIENCE_SECONDS).step_by(60).filter(|second| {
            let next = stream[usize::try_from(*second).unwrap() % stream.len()];
            rank(next, at(*second)) < place
        });
        prop_assert!(ahead.max().unwrap_or(0) < PATIENCE_SECONDS);
    }
}
