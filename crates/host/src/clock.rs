//! The real clock, and instants as text.
//!
//! Owns: reading wall clock and boot clock, RFC 3339 with exactly six digits of a second and `Z`.
//! Deliberately absent: waiting, and time zones.

use std::time::Duration;

use ostler_core::clock::{BootTime, Clock, Now, Timestamp};
use rustix::time::{ClockId, Timespec, clock_gettime};

const MICROS_PER_SECOND: i64 = 1_000_000;
const NANOS_PER_MICRO: i64 = 1_000;

/// The clocks of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let wall = clock_gettime(ClockId::Realtime);
        // Counts the time a machine slept; the monotonic clock does not.
        let boot = clock_gettime(ClockId::Boottime);
        Now {
            wall: Timestamp::from_micros(micros(wall)),
            boot: BootTime::from_duration(since_boot(boot)),
        }
    }
}

fn micros(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(MICROS_PER_SECOND).saturating_add(time.tv_nsec / NANOS_PER_MICRO)
}

fn since_boot(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The instant as `2026-01-02T03:04:05.678901Z`. One outside the years that RFC 3339 can say is
/// shown as the nearest that it can.
pub fn to_rfc3339(time: Timestamp) -> String {
    const FIRST_MICROS: i64 = -62_167_219_200_000_000; // 0000-01-01T00:00:00Z
    let micros = time.as_micros().max(FIRST_MICROS);
    let time = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
    format!("{time:.6}")
}

/// A text that is no instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time like 2026-01-02T03:04:05.678901Z")]
pub struct TimeError {
    text: String,
}

/// Reads what [`to_rfc3339`] writes, and any other RFC 3339 time; what is finer than a microsecond
/// is cut off.
pub fn from_rfc3339(text: &str) -> Result<Timestamp, TimeError> {
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => Ok(Timestamp::from_micros(time.as_microsecond())),
        Err(_) => Err(TimeError { text: text.chars().take(64).collect() }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_have_six_digits_of_a_second_and_z() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_767_323_045_678_901, "2026-01-02T03:04:05.678901Z"),
            (1_767_323_045_000_000, "2026-01-02T03:04:05.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(to_rfc3339(Timestamp::from_micros(micros)), text);
            assert_eq!(from_rfc3339(text), Ok(Timestamp::from_micros(micros)));
        }
    }

    #[test]
    fn an_offset_is_understood_and_garbage_is_an_error() {
        let two = from_rfc3339("1970-01-01T02:00:00+02:00").unwrap();
        assert_eq!(two, Timestamp::from_micros(0));
        for text in ["", "now", "2026-13-01T00:00:00Z", "2026-01-02T03:04:05"] {
            assert!(from_rfc3339(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_second_reading_is_not_before_the_first() {
        let first = SystemClock.now();
        let second = SystemClock.now();
        assert!(second.boot >= first.boot);
        assert!(first.wall > Timestamp::from_micros(1_577_836_800_000_000)); // 2020
    }

    proptest! {
        #[test]
        fn every_time_is_written_with_27_characters_and_read_back(micros in any::<i64>()) {
            let time = Timestamp::from_micros(micros);
            let text = to_rfc3339(time);
            prop_assert_eq!(text.len(), 27, "{}", text);
            let back = from_rfc3339(&text).unwrap();
            let shown = micros.clamp(-62_167_219_200_000_000, 253_402_300_799_999_999);
            // The last days of the year 9999 are beyond what the library can say.
            prop_assert!(back.as_micros() == shown || shown > 253_402_207_200_000_000);
        }
    }
}
