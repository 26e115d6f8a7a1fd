//! Replaces the prompt in output before it is written.
//!
//! Finds each secret as it is and as a JSON string would carry it (`\n`, `\"`, `\/`, `\u00e9`,
//! surrogate pairs, in any mixture), however the output is cut into reads. Two Knuth-Morris-Pratt
//! matchers run side by side, over the bytes and over what the bytes mean inside a JSON string, so that
//! time is linear whatever the agent writes. What may be the beginning of a secret is held back until
//! that is known; nothing else is. A secret below [`WHOLE_CHARS`] characters is replaced only where it
//! is a whole line or a whole JSON string, or it would shred the output. Not looked for: JSON inside a
//! JSON string, other encodings, and a prompt the agent has rephrased.

use std::rc::Rc;

/// What stands where the prompt was.
pub(crate) const REDACTED: &[u8] = b"[task input redacted]";
/// Secrets shorter than this are replaced only as a whole line or string.
pub(crate) const WHOLE_CHARS: usize = 16;
/// So much of a long secret is taken for it, and then whatever goes on as the secret does: bounds what is
/// held back and the tables, and a copy that is cut off is replaced too.
const BEGINNING_BYTES_MAX: usize = 4 << 10;

/// Secrets, ready to be looked for.
pub(crate) struct Secrets(Vec<Secret>);

struct Secret {
    bytes: Vec<u8>,
    /// For each prefix of the beginning the length of its longest border.
    borders: Vec<u16>,
    whole: bool,
}

impl Secrets {
    /// White space around a secret does not belong to it; an empty one is none.
    pub(crate) fn new(secrets: &[Vec<u8>]) -> Rc<Self> {
        let trimmed =
            secrets.iter().map(|secret| secret.trim_ascii()).filter(|secret| !secret.is_empty());
        Rc::new(Self(trimmed.map(Secret::new).collect()))
    }
}

/// How much of a secret is looked for: whole characters.
fn beginning(secret: &[u8]) -> usize {
    let end = secret.len().min(BEGINNING_BYTES_MAX);
    let starts_char = |at: &usize| secret.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    (0..4).map(|back| end.saturating_sub(back)).find(starts_char).unwrap_or(end)
}

impl Secret {
    fn new(bytes: &[u8]) -> Self {
        let mut secret =
            Self { bytes: bytes.to_vec(), borders: Vec::with_capacity(bytes.len()), whole: false };
        let chars = std::str::from_utf8(bytes).map_or(bytes.len(), |text| text.chars().count());
        secret.whole = chars < WHOLE_CHARS;
        secret.borders.push(0);
        let mut border = 0;
        for byte in bytes.iter().take(beginning(bytes)).skip(1) {
            while border > 0 && secret.at(border) != Some(*byte) {
                border = secret.border(border);
            }
            border += usize::from(secret.at(border) == Some(*byte));
            secret.borders.push(u16::try_from(border).unwrap_or(0));
        }
        secret
    }

    fn at(&self, index: usize) -> Option<u8> {
        self.bytes.get(index).copied()
    }

    /// How much of it is looked for.
    fn beginning(&self) -> usize {
        self.borders.len()
    }

    /// The longest border of the first `len` bytes.
    fn border(&self, len: usize) -> usize {
        len.checked_sub(1)
            .and_then(|last| self.borders.get(last))
            .map_or(0, |border| usize::from(*border))
    }
}

/// How far one secret has been seen, in one of the two readings.
#[derive(Clone, Copy, Default)]
struct Lane {
    /// Bytes of the secret.
    len: usize,
    /// Where in the held bytes they begin.
    start: usize,
}

/// A long secret whose beginning was replaced: how far it was seen in either reading.
struct Rest {
    secret: usize,
    lens: [Option<usize>; 2],
}

/// The smallest piece of text: a byte, or an escape and what it means.
struct Unit {
    len: usize,
    meaning: [u8; 4],
    meaning_len: usize,
}

impl Unit {
    fn byte(byte: u8) -> Self {
        Self { len: 1, meaning: [byte, 0, 0, 0], meaning_len: 1 }
    }

    fn char(len: usize, meant: char) -> Self {
        let mut meaning = [0; 4];
        let meaning_len = meant.encode_utf8(&mut meaning).len();
        Self { len, meaning, meaning_len }
    }

    fn meaning(&self) -> &[u8] {
        self.meaning.get(..self.meaning_len).unwrap_or_default()
    }

    /// The unit `text` begins with; `None` when that takes more text to say.
    fn first(text: &[u8], at_end: bool) -> Option<Self> {
        let (first, rest) = text.split_first()?;
        if *first != b'\\' {
            return Some(Self::byte(*first));
        }
        let meant = match rest.first() {
            None if !at_end => return None,
            Some(b'u') => match unicode(text) {
                Escape::Char(len, meant) => return Some(Self::char(len, meant)),
                Escape::Unfinished if !at_end => return None,
                _ => None,
            },
            Some(same @ (b'"' | b'\\' | b'/')) => Some(*same),
            Some(b'b') => Some(8),
            Some(b'f') => Some(12),
            Some(b'n') => Some(b'\n'),
            Some(b'r') => Some(b'\r'),
            Some(b't') => Some(b'\t'),
            _ => None,
        };
        // A backslash that begins no escape is one.
        Some(meant.map_or_else(|| Self::byte(b'\\'), |meant| Self { len: 2, ..Self::byte(meant) }))
    }
}

enum Escape {
    Char(usize, char),
    Unfinished,
    No,
}

/// Reads `\uXXXX`, or two of them that are a surrogate pair.
fn unicode(text: &[u8]) -> Escape {
    let first = match code_unit(text) {
        Ok(unit) => unit,
        Err(escape) => return escape,
    };
    if let Some(meant) = char::from_u32(first) {
        return Escape::Char(6, meant);
    }
    match code_unit(text.get(6..).unwrap_or_default()) {
        Ok(second) if (0xd800..0xdc00).contains(&first) && (0xdc00..0xe000).contains(&second) => {
            let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            char::from_u32(code).map_or(Escape::No, |meant| Escape::Char(12, meant))
        }
        Err(Escape::Unfinished) => Escape::Unfinished,
        _ => Escape::No,
    }
}

fn code_unit(text: &[u8]) -> Result<u32, Escape> {
    let mut code = 0;
    for (index, wanted) in b"\\uxxxx".iter().enumerate() {
        match (text.get(index), wanted) {
            (None, _) => return Err(Escape::Unfinished),
            (Some(digit), b'x') => {
                let digit = char::from(*digit).to_digit(16).ok_or(Escape::No)?;
                code = code * 16 + digit;
            }
            (Some(byte), wanted) if byte == wanted => {}
            _ => return Err(Escape::No),
        }
    }
    Ok(code)
}

/// One stream.
pub(crate) struct Scrubber {
    secrets: Rc<Secrets>,
    /// Per secret: as it is, and as JSON.
    lanes: Vec<[Lane; 2]>,
    /// Not given out yet; only its end may still become a secret.
    held: Vec<u8>,
    /// So much of it was looked at.
    looked: usize,
    /// The byte before it.
    before: Option<u8>,
    /// What is being swallowed.
    rest: Option<Rest>,
}

impl Scrubber {
    pub(crate) fn new(secrets: Rc<Secrets>) -> Self {
        let lanes = vec![[Lane::default(); 2]; secrets.0.len()];
        Self { secrets, lanes, held: Vec::new(), looked: 0, before: None, rest: None }
    }

    /// Takes output and gives out what is certain.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut dyn FnMut(&[u8])) {
        if self.lanes.is_empty() {
            return out(bytes);
        }
        self.held.extend_from_slice(bytes);
        self.look(false, out);
        let partial =
            self.lanes.iter().flatten().filter(|lane| lane.len > 0).map(|lane| lane.start);
        let safe = partial.min().unwrap_or(self.looked);
        self.give(safe, safe, out);
    }

    /// Nothing comes any more: gives out the rest.
    pub(crate) fn finish(&mut self, out: &mut dyn FnMut(&[u8])) {
        self.look(true, out);
        self.give(self.held.len(), self.held.len(), out);
    }

    /// Gives out the first `len` held bytes and forgets the first `upto`.
    fn give(&mut self, len: usize, upto: usize, out: &mut dyn FnMut(&[u8])) {
        if let Some(bytes) = self.held.get(..len).filter(|bytes| !bytes.is_empty()) {
            out(bytes);
        }
        if let Some(last) = upto.checked_sub(1) {
            self.before = self.held.get(last).copied();
        }
        self.held.drain(..upto);
        self.looked = self.looked.saturating_sub(upto);
        for lane in self.lanes.iter_mut().flatten() {
            lane.start = lane.start.saturating_sub(upto);
        }
    }

    fn look(&mut self, at_end: bool, out: &mut dyn FnMut(&[u8])) {
        loop {
            if self.rest.is_none() {
                self.skip();
            }
            let text = self.held.get(self.looked..).unwrap_or_default();
            let unit = Unit::first(text, at_end);
            if self.rest.is_some() && !unit.as_ref().is_some_and(|unit| self.goes_on(unit)) {
                // Swallowed up to here, all at once.
                self.give(0, self.looked, out);
                if unit.is_none() {
                    return;
                }
                self.rest = None;
                continue;
            }
            let Some(unit) = unit else { return };
            let next = self.looked + unit.len;
            if self.rest.is_some() {
                self.looked = next;
                continue;
            }
            if !at_end && next >= self.held.len() && self.must_see_more(&unit) {
                return;
            }
            match self.step(&unit, at_end) {
                Some((start, end, rest)) => {
                    self.give(start, end, out);
                    out(REDACTED);
                    self.lanes.fill([Lane::default(); 2]);
                    self.looked = 0;
                    self.rest = rest;
                }
                None => self.looked = next,
            }
        }
    }

    /// Whether the secret that is being swallowed goes on with `unit`.
    fn goes_on(&mut self, unit: &Unit) -> bool {
        let Some(Rest { secret, lens: [raw, json] }) = &mut self.rest else {
            return false;
        };
        let Some(secret) = self.secrets.0.get(*secret) else {
            return false;
        };
        let text = self.held.get(self.looked..self.looked + unit.len).unwrap_or_default();
        let follow = |len: &mut Option<usize>, bytes: &[u8]| {
            let goes_on = len
                .and_then(|len| secret.bytes.get(len..))
                .is_some_and(|rest| rest.starts_with(bytes));
            *len = len.filter(|_| goes_on).map(|len| len + bytes.len());
        };
        follow(raw, text);
        follow(json, unit.meaning());
        raw.is_some() || json.is_some()
    }

    /// Passes over what cannot begin a secret, as long as none has begun.
    fn skip(&mut self) {
        let [secret] = self.secrets.0.as_slice() else {
            return;
        };
        let Some(first) = secret.at(0) else { return };
        if self.lanes.iter().flatten().all(|lane| lane.len == 0) {
            let text = self.held.get(self.looked..).unwrap_or_default();
            self.looked += memchr::memchr2(first, b'\\', text).unwrap_or(text.len());
        }
    }

    /// Whether `unit` may complete a secret of which the byte after it decides.
    fn must_see_more(&self, unit: &Unit) -> bool {
        self.secrets.0.iter().zip(&self.lanes).any(|(secret, lanes)| {
            secret.whole && lanes.iter().any(|lane| lane.len + unit.len >= secret.beginning())
        })
    }

    /// Feeds one unit to every lane. When it completes a secret: the held bytes that are one, and what
    /// may follow.
    fn step(&mut self, unit: &Unit, at_end: bool) -> Option<(usize, usize, Option<Rest>)> {
        let Self { secrets, lanes, held, looked, before, .. } = self;
        let after = *looked + unit.len;
        for (index, (secret, [raw, json])) in secrets.0.iter().zip(lanes).enumerate() {
            for at in *looked..after {
                let byte = held.get(at).copied()?;
                raw.feed(secret, byte, at, |start, len| start + len);
                if raw.len == secret.beginning() {
                    if accepted(secret, held, *before, raw.start, at + 1, at_end) {
                        // Read as JSON it is the same so far, unless an escape said something else.
                        let same = unit.len == 1 && json.len + 1 == raw.len;
                        return Some((raw.start, at + 1, rest(index, secret, [true, same])));
                    }
                    raw.fall(secret, |start, len| start + len);
                }
            }
            for byte in unit.meaning() {
                json.feed(secret, *byte, *looked, |start, len| forward(held, start, len));
                if json.len == secret.beginning() {
                    if accepted(secret, held, *before, json.start, after, at_end) {
                        return Some((json.start, after, rest(index, secret, [false, true])));
                    }
                    json.fall(secret, |start, len| forward(held, start, len));
                }
            }
        }
        None
    }
}

fn rest(index: usize, secret: &Secret, seen: [bool; 2]) -> Option<Rest> {
    let len = secret.beginning();
    (secret.bytes.len() > len)
        .then(|| Rest { secret: index, lens: seen.map(|seen| seen.then_some(len)) })
}

impl Lane {
    /// `forward` finds the place so many bytes of the secret further on.
    fn feed(
        &mut self,
        secret: &Secret,
        byte: u8,
        at: usize,
        forward: impl Fn(usize, usize) -> usize,
    ) {
        while self.len > 0 && secret.at(self.len) != Some(byte) {
            self.fall(secret, &forward);
        }
        if secret.at(self.len) == Some(byte) {
            if self.len == 0 {
                self.start = at;
            }
            self.len += 1;
        }
    }

    fn fall(&mut self, secret: &Secret, forward: impl Fn(usize, usize) -> usize) {
        let border = secret.border(self.len);
        if border > 0 {
            self.start = forward(self.start, self.len - border);
        }
        self.len = border;
    }
}

/// The place after the units from `start` that mean `len` bytes.
fn forward(held: &[u8], mut start: usize, mut len: usize) -> usize {
    while len > 0 {
        let Some(unit) = Unit::first(held.get(start..).unwrap_or_default(), true) else {
            break;
        };
        start += unit.len;
        len = len.saturating_sub(unit.meaning_len);
    }
    start
}

/// Whether what lies around a match lets it be replaced.
fn accepted(
    secret: &Secret,
    held: &[u8],
    before: Option<u8>,
    start: usize,
    end: usize,
    at_end: bool,
) -> bool {
    let previous = start.checked_sub(1).map_or(before, |at| held.get(at).copied());
    match (previous, held.get(end)) {
        _ if !secret.whole => true,
        (None | Some(b'\n'), None) => at_end,
        (None | Some(b'\n'), Some(b'\n' | b'\r')) | (Some(b'"'), Some(b'"')) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
