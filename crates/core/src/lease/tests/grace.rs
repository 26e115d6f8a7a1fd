//! When an absence ends, and what is none.

use std::time::Duration;

use crate::clock::{BootTime, Now, Timestamp};
use crate::lease::{Grace, Policy};

const POLICY: Policy = Policy::DEFAULT;

/// So many seconds after the start on the boot clock, and on the wall clock.
fn at(boot: u64, wall: i64) -> Now {
    Now {
        boot: BootTime::from_duration(Duration::from_secs(1_000 + boot)),
        wall: Timestamp::from_micros(1_767_323_045_000_000 + wall * 1_000_000),
    }
}

fn seconds(grace: &Grace, now: Now) -> u64 {
    grace.lasts(now, &POLICY).as_secs()
}

/// The database answers every second until then.
fn heard_until(grace: &mut Grace, from: u64, until: u64, ahead: i64) {
    for second in from..=until {
        let wall = i64::try_from(second).unwrap() + ahead;
        assert!(!grace.answered(at(second, wall), &POLICY), "{second}");
    }
}

#[test]
fn a_server_that_starts_waits() {
    let mut grace = Grace::new(at(0, 0));
    heard_until(&mut grace, 0, 300, 0);
    assert_eq!(seconds(&grace, at(299, 299)), 299);
    assert_eq!(seconds(&grace, at(301, 301)), 301);
}

#[test]
fn f_064_who_was_frozen_waits_again_whether_or_not_anything_answered_since() {
    let mut grace = Grace::new(at(0, 0));
    heard_until(&mut grace, 0, 1_000, 0);
    // Ten minutes on both clocks. The sweeper may be the first to look.
    assert_eq!(seconds(&grace, at(1_600, 1_600)), 0);
    assert!(grace.answered(at(1_601, 1_601), &POLICY));
    assert_eq!(seconds(&grace, at(1_602, 1_602)), 1);
    heard_until(&mut grace, 1_602, 1_901, 0);
    assert_eq!(seconds(&grace, at(1_901, 1_901)), 300);
}

#[test]
fn a_database_that_is_busy_for_some_seconds_is_no_absence() {
    let mut grace = Grace::new(at(0, 0));
    for second in (0..=400).step_by(10) {
        let wall = i64::try_from(second).unwrap();
        assert!(!grace.answered(at(second, wall), &POLICY));
    }
    assert_eq!(seconds(&grace, at(410, 410)), 410);
    assert_eq!(seconds(&grace, at(411, 411)), 0);
}

#[test]
fn a_clock_that_is_set_forward_is_one_and_one_that_is_set_back_is_none() {
    let mut grace = Grace::new(at(0, 0));
    heard_until(&mut grace, 0, 1_000, 0);
    assert_eq!(seconds(&grace, at(1_001, 1_006)), 1_001, "a little is let pass");
    assert_eq!(seconds(&grace, at(1_001, 1_007)), 0);
    assert!(!grace.answered(at(1_001, -3_600), &POLICY));
    assert_eq!(seconds(&grace, at(1_002, -3_599)), 1_002);
    assert!(grace.answered(at(1_003, 1_003), &POLICY), "and forward again");
}

#[test]
fn a_short_lease_has_a_short_absence() {
    let policy = Policy { lease: Duration::from_secs(8), ..POLICY };
    let grace = Grace::new(at(0, 0));
    assert_eq!(grace.lasts(at(4, 4), &policy), Duration::from_secs(4));
    assert_eq!(grace.lasts(at(5, 5), &policy), Duration::ZERO);
    let policy = Policy { lease: Duration::from_millis(100), ..POLICY };
    assert_eq!(grace.lasts(at(3, 3), &policy), Duration::from_secs(3));
    assert_eq!(grace.lasts(at(4, 4), &policy), Duration::ZERO);
}
