//! When a usage limit ends, as texts like "You've hit your session limit · resets 2pm (Europe/Berlin)"
//! and the older "usage limit reached|1749924000" say it.
//!
//! The text names an hour, not a day: it is the next such hour after the newest time the stream
//! itself has told. Without such a time, or with a zone that is not known here, nothing is claimed.

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{Span, ZonedDateTime};
use ostler_core::clock::Timestamp;

/// The end of the limit that `text` speaks of; `now` is the newest time in the stream.
pub(super) fn reset_time(text: &str, now: Option<jiff::Timestamp>) -> Option<Timestamp> {
    if let Some(epoch) = text.split_once("limit reached|").map(|(_, rest)| rest) {
        return seconds(leading_number(epoch)?.0 as f64);
    }
    let (_, rest) = text.split_once("resets ")?;
    let rest = rest.strip_prefix("at ").unwrap_or(rest);
    let (clock, zone) = rest.split_once('(')?;
    let zone = TimeZone::get(zone.split(')').next()?.trim()).ok()?;
    let now = now?.to_zoned_datetime(zone);
    let (date, clock) = match clock
        .trim()
        .rsplit_once([',', ' '])
        .map(|(d, c)| (d.trim_end_matches([',', ' ']), c))
    {
        Some((date, clock)) => (Some(date.trim_end_matches(" at").trim_end_matches(',')), clock),
        None => (None, clock.trim()),
    };
    let time = clock_time(clock.trim())?;
    let end = match date {
        Some(date) => on_date(&now, date, time)?,
        None => at_hour(&now, time)?,
    };
    Some(Timestamp::from_micros(end.timestamp().as_microsecond()))
}

/// A time given in seconds since the epoch.
pub(super) fn seconds(seconds: f64) -> Option<Timestamp> {
    // Years 2001 to 2286: everything else is no time of ours.
    let plausible = (1e9..1e10).contains(&seconds);
    plausible.then(|| Timestamp::from_micros((seconds * 1e6) as i64))
}

/// The next time it is `time`.
fn at_hour(now: &ZonedDateTime, time: Time) -> Option<ZonedDateTime> {
    let today = now.date().to_datetime(time).to_zoned_datetime(now.time_zone().clone()).ok()?;
    if today > *now { Some(today) } else { today.checked_add(Span::new().days(1)).ok() }
}

/// `time` on the next day that is `Nov 3`.
fn on_date(now: &ZonedDateTime, date: &str, time: Time) -> Option<ZonedDateTime> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let (month, day) = date.trim().split_once(' ')?;
    let month = month.get(..3)?.to_ascii_lowercase();
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let day: i8 = day.trim().parse().ok()?;
    [now.year(), now.year().checked_add(1)?].into_iter().find_map(|year| {
        let date = jiff::civil::Date::new(year, i8::try_from(month).ok()?, day).ok()?;
        let end = date.to_datetime(time).to_zoned_datetime(now.time_zone().clone()).ok()?;
        (end > *now).then_some(end)
    })
}

/// `2pm`, `3:30am`, `14:00`.
fn clock_time(text: &str) -> Option<Time> {
    let (hour, rest) = leading_number(text)?;
    let (minute, rest) = match rest.strip_prefix(':') {
        Some(rest) => leading_number(rest)?,
        None => (0, rest),
    };
    let hour = match rest.trim().to_ascii_lowercase().as_str() {
        "am" if (1..=12).contains(&hour) => hour % 12,
        "pm" if (1..=12).contains(&hour) => hour % 12 + 12,
        "" => hour,
        _ => return None,
    };
    Time::new(i8::try_from(hour).ok()?, i8::try_from(minute).ok()?, 0, 0).ok()
}

fn leading_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    Some((number.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset(text: &str) -> Option<String> {
        let now = "2026-11-30T09:40:44.262Z".parse().unwrap();
        let end = reset_time(text, Some(now))?;
        Some(jiff::Timestamp::from_microsecond(end.as_micros()).unwrap().to_string())
    }

    #[test]
    fn a_reset_hour_is_the_next_one_in_its_zone() {
        let limit = "You've hit your session limit · resets ";
        for (text, end) in [
            ("2pm (UTC)", "2026-11-30T14:00:00Z"),
            ("2am (UTC)", "2026-12-01T02:00:00Z"),
            ("3:30pm (Europe/Berlin)", "2026-11-30T14:30:00Z"),
            ("12am (America/New_York)", "2026-12-01T05:00:00Z"),
            ("at 14:05 (UTC)", "2026-11-30T14:05:00Z"),
            ("Dec 3, 2pm (UTC)", "2026-12-03T14:00:00Z"),
            ("Dec 3 at 2pm (UTC)", "2026-12-03T14:00:00Z"),
            ("Jan 2, 12pm (UTC)", "2027-01-02T12:00:00Z"),
        ] {
            assert_eq!(reset(&format!("{limit}{text}")).as_deref(), Some(end), "{text}");
        }
        assert_eq!(
            reset("Claude AI usage limit reached|1749924000").as_deref(),
            Some("2025-06-14T18:00:00Z")
        );
    }

    #[test]
    fn what_is_not_known_is_not_claimed() {
        for text in [
            "resets 2pm",
            "resets 25pm (UTC)",
            "resets 2pm (Mars/Base)",
            "resets (UTC)",
            "resets ",
            "limit reached|x",
            "resets Foo 3, 2pm (UTC)",
            "resets é, 2pm (UTC)",
            "rate limited",
        ] {
            assert_eq!(reset(text), None, "{text}");
        }
        assert_eq!(reset_time("resets 2pm (UTC)", None), None);
        assert_eq!(seconds(f64::NAN), None);
    }
}
