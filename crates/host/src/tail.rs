//! The log tail of one attempt: the last lines of its output, as the framed wire shows them.
//!
//! Owns: the bounds of the tail, the position of each line, and that no line enters unredacted.
//! Deliberately absent: the output itself (the run directory has all of it), and when to send.
//!
//! A position counts the lines of the attempt from 1. An event carries a position; what is sent with
//! it are the lines up to there that are still kept.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::redact::{self, Input, REDACTED};

/// Longer lines come in pieces of this many bytes, never cut inside a character.
pub const PIECE_BYTES_MAX: usize = 4_096;
/// A piece of at least this length may be one of several: a character has up to four bytes.
const CUT_PIECE_BYTES_MIN: usize = PIECE_BYTES_MAX - 3;
/// How much of a cut piece is looked at together with the next: longer than any marker or key.
const CARRY_BYTES_MAX: usize = 64;

/// Says that lines are missing from the tail.
pub const DROP_MARK: &str = "[output truncated: scheduler log queue was full]";

/// How much of an attempt's output is kept for showing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailBounds {
    /// The most lines.
    pub lines_max: usize,
    /// The most characters, of all lines together.
    pub chars_max: usize,
}

impl Default for TailBounds {
    fn default() -> Self {
        Self { lines_max: 500, chars_max: 256_000 }
    }
}

/// The last lines of one attempt. Empty it takes no memory of its own.
#[derive(Debug, Clone, Default)]
pub struct Tail {
    bounds: TailBounds,
    lines: VecDeque<Box<str>>,
    chars: usize,
    lines_total: u64,
    input: Option<Arc<Input>>,
    cut: Option<Box<Cut>>,
}

/// What has to be known of a piece that may go on in the next one.
#[derive(Debug, Clone)]
struct Cut {
    /// It ended inside of something secret.
    is_secret: bool,
    /// Its last bytes, for what the cut went through.
    carry: String,
}

impl Tail {
    /// An empty tail that hides `input` in what is pushed.
    pub fn new(bounds: TailBounds, input: Option<Arc<Input>>) -> Self {
        Self { bounds, input, ..Self::default() }
    }

    /// A tail as it was stored: its lines were redacted when they were first pushed.
    pub fn restore<I>(bounds: TailBounds, lines_total: u64, lines: I) -> Self
    where
        I: IntoIterator<Item: Into<Box<str>>>,
    {
        let mut tail = Self::new(bounds, None);
        lines.into_iter().for_each(|line| tail.keep(line.into()));
        tail.lines_total = lines_total.max(tail.lines_total);
        tail
    }

    /// Adds a line, or a piece of one, of at most [`PIECE_BYTES_MAX`] bytes, redacted.
    pub fn push(&mut self, piece: &str) {
        let line = self.redacted(piece);
        self.keep(line);
    }

    /// Says once that lines were dropped here; a mark that is the last line already is enough.
    pub fn mark_dropped(&mut self) {
        if self.lines.back().is_none_or(|last| &**last != DROP_MARK) {
            self.keep(DROP_MARK.into());
        }
    }

    /// How many lines were pushed: the position of the newest.
    pub fn lines_total(&self) -> u64 {
        self.lines_total
    }

    /// The kept lines at or before a position, oldest first.
    pub fn view(
        &self,
        upto: u64,
    ) -> impl ExactSizeIterator<Item = &str> + DoubleEndedIterator + Clone {
        let newer = usize::try_from(self.lines_total.saturating_sub(upto)).unwrap_or(usize::MAX);
        self.lines.iter().take(self.lines.len().saturating_sub(newer)).map(|line| &**line)
    }

    /// The newest lines of [`Tail::view`] whose JSON array has at most `json_bytes_max` bytes.
    pub fn view_within(
        &self,
        upto: u64,
        json_bytes_max: usize,
    ) -> impl ExactSizeIterator<Item = &str> + DoubleEndedIterator + Clone {
        let view = self.view(upto);
        // The brackets; each line brings its comma, of which the last is none.
        let mut bytes = 1_usize;
        let fit = view.clone().rev().take_while(|line| {
            bytes = bytes.saturating_add(json_str_bytes(line) + 1);
            bytes <= json_bytes_max
        });
        let left_out = view.len() - fit.count();
        view.skip(left_out)
    }

    /// The size of the JSON array of [`Tail::view`].
    pub fn json_bytes(&self, upto: u64) -> usize {
        let lines: usize = self.view(upto).map(|line| json_str_bytes(line) + 1).sum();
        2 + lines.saturating_sub(1)
    }

    /// The memory of the lines, about.
    pub fn bytes(&self) -> usize {
        self.lines.iter().map(|line| line.len() + size_of::<Box<str>>()).sum()
    }

    /// Forgets the lines, not their number: the run directory still has them.
    pub fn forget_lines(&mut self) {
        self.lines = VecDeque::new();
        self.chars = 0;
    }

    /// The attempt has ended: nothing is pushed any more, and nothing of the input is needed.
    pub fn settle(&mut self) {
        self.input = None;
        self.cut = None;
        self.lines.shrink_to_fit();
    }

    fn keep(&mut self, line: Box<str>) {
        self.chars += line.chars().count();
        self.lines.push_back(line);
        self.lines_total += 1;
        while self.lines.len() > self.bounds.lines_max || self.chars > self.bounds.chars_max {
            let Some(oldest) = self.lines.pop_front() else {
                break;
            };
            self.chars -= oldest.chars().count();
        }
    }

    /// The piece as it may be shown. Pieces of a long line are told by their length, and what was
    /// secret at the end of one is secret in the next. A line of the other stream in between ends
    /// that: it is the best that can be done behind the cut.
    fn redacted(&mut self, piece: &str) -> Box<str> {
        let hidden = match &self.input {
            Some(input) => input.hide(piece),
            None => Cow::Borrowed(piece),
        };
        let (mut shown, mut is_secret) = redact::line_and_end(&hidden);
        if let Some(cut) = self.cut.take()
            && (cut.is_secret || (shown == hidden && is_redacted(&(cut.carry + &hidden))))
        {
            shown = Cow::Borrowed(REDACTED);
            is_secret = true;
        }
        if piece.len() >= CUT_PIECE_BYTES_MIN {
            let from = piece.ceil_char_boundary(piece.len() - CARRY_BYTES_MAX);
            let mut carry = piece.get(from..).unwrap_or_default().to_owned();
            if is_redacted(&carry) {
                // Found already; it must not be found again in the next piece.
                carry.clear();
            }
            self.cut = Some(Box::new(Cut { is_secret, carry }));
        }
        shown.into()
    }
}

fn is_redacted(line: &str) -> bool {
    redact::line(line) != line
}

/// How many bytes the line takes as a JSON string, quotes included.
pub fn json_str_bytes(line: &str) -> usize {
    let escapes = line.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0x00..0x20 => 5,
        _ => 0,
    });
    line.len() + 2 + escapes.sum::<usize>()
}

#[cfg(test)]
mod tests;
