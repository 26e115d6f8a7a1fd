//! What people and programs read: safe text, small tables, JSON lines.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use ostler_proto::framed::{Task, TaskStatus};
use serde::Serialize;

use crate::error::Failure;

/// Makes control characters visible, so that what an agent printed cannot move the cursor, change
/// colours or worse. Tabs stay.
pub(crate) fn safe(line: &str) -> Cow<'_, str> {
    let line = line.strip_suffix('\r').unwrap_or(line);
    if !line.chars().any(is_unsafe) {
        return Cow::Borrowed(line);
    }
    let mut shown = String::with_capacity(line.len() + 16);
    for character in line.chars() {
        if is_unsafe(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Controls, and the characters that turn the direction of text around.
fn is_unsafe(character: char) -> bool {
    (character.is_control() && character != '\t')
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Prints one JSON value on a line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(value).map_err(std::io::Error::other)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()?;
    Ok(())
}

/// Prints one JSON value over several lines, for people and `jq` alike.
pub(crate) fn json_pretty(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_vec_pretty(value).map_err(std::io::Error::other)?;
    text.push(b'\n');
    std::io::stdout().write_all(&text)?;
    Ok(())
}

/// Writes a line to standard output.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Tells a person something beside the output, on standard error.
pub(crate) fn note(text: &str) {
    let mut out = anstream::stderr().lock();
    // A note is worth nothing when nobody can read it.
    let _ = writeln!(out, "{text}");
}

/// The width that text may take: the terminal's, or what a file can have.
pub(crate) fn width() -> usize {
    const WIDE: usize = 160;
    if !std::io::stdout().is_terminal() {
        return WIDE;
    }
    rustix::termios::tcgetwinsize(std::io::stdout())
        .map_or(80, |size| usize::from(size.ws_col).clamp(40, 400))
}

/// One word for a status, and the colour it has on terminals.
pub(crate) fn status_word(status: TaskStatus) -> (&'static str, &'static str) {
    match status {
        TaskStatus::Queued => ("queued", "\x1b[2m"),
        TaskStatus::Running => ("running", "\x1b[36m"),
        TaskStatus::Completed => ("completed", "\x1b[32m"),
        TaskStatus::Failed => ("failed", "\x1b[31m"),
        TaskStatus::Cancelled => ("cancelled", "\x1b[33m"),
        TaskStatus::Interrupted => ("interrupted", "\x1b[33m"),
    }
}

/// The end of a colour.
pub(crate) const PLAIN: &str = "\x1b[0m";

/// Cuts text to a width in characters, with a mark.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// A duration the way people say it.
pub(crate) fn duration(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        s @ 3_600..86_400 => format!("{}h{:02}m", s / 3_600, s % 3_600 / 60),
        s => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// Micro-dollars as dollars.
pub(crate) fn dollars(micros: u64) -> String {
    format!("${}.{:04}", micros / 1_000_000, micros % 1_000_000 / 100)
}

/// What there is to say of a settled task in one line, without the status itself.
pub(crate) fn summary(task: &Task) -> String {
    let mut parts = Vec::new();
    if let Some(failure) = &task.failure {
        parts.push(safe(&failure.message).into_owned());
    }
    if let Some(receipt) = &task.receipt {
        if let Some(seconds) = receipt
            .started_at
            .as_deref()
            .and_then(|start| seconds_between(start, &receipt.ended_at))
        {
            parts.push(duration(seconds));
        }
        // A tree that was dirty before is not this run's doing.
        let is_effect = receipt.verdict != ostler_proto::framed::Verdict::SucceededNoVisibleEffect;
        if let Some(git) = receipt.git.as_ref().filter(|_| is_effect)
            && (git.changed_files > 0 || git.head_before != git.head_after)
        {
            let files = if git.changed_files == 1 { "file" } else { "files" };
            parts.push(format!(
                "{} {files} changed, +{} −{}",
                git.changed_files, git.insertions, git.deletions
            ));
        }
        if receipt.verdict == ostler_proto::framed::Verdict::SucceededNoVisibleEffect {
            parts.push("no visible effect".to_owned());
        }
        if !receipt.denials.is_empty() {
            parts.push(format!("denied: {}", safe(&receipt.denials.join(", "))));
        }
        if !receipt.killed.is_empty() {
            parts.push(match receipt.killed.len() {
                1 => "1 process had to be killed".to_owned(),
                n => format!("{n} processes had to be killed"),
            });
        }
        if let Some(cost) = receipt.cost_micros {
            parts.push(format!(
                "{}{}",
                if cost.estimated { "about " } else { "" },
                dollars(cost.amount)
            ));
        }
    }
    parts.join(" · ")
}

/// Whole seconds between two times of the wire.
pub(crate) fn seconds_between(start: &str, end: &str) -> Option<i64> {
    let start = ostler_host::clock::from_rfc3339(start).ok()?;
    let end = ostler_host::clock::from_rfc3339(end).ok()?;
    Some((end.as_micros() - start.as_micros()) / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_prints_cannot_command_the_terminal() {
        assert_eq!(safe("plain\tüñï"), "plain\tüñï");
        assert_eq!(safe("\u{1b}[2Jgone\u{0}"), "\\u{1b}[2Jgone\\u{0}");
        assert_eq!(safe("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(safe("dos\r"), "dos");
    }

    #[test]
    fn figures_are_said_the_way_people_say_them() {
        assert_eq!(duration(59), "59s");
        assert_eq!(duration(61), "1m01s");
        assert_eq!(duration(90_061), "1d01h");
        assert_eq!(dollars(1_234_567), "$1.2345");
        assert_eq!(fit("abcdef", 4), "abc…");
    }
}
