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
pub(super) const REDACTED: &[u8] = b"[task input redacted]";
/// Secrets shorter than this are replaced only as a whole line or string.
const WHOLE_CHARS: usize = 16;
/// So much of a long secret is taken for it, and then whatever goes on as the secret does: bounds what is
/// held back and the tables, and a copy that is cut off is replaced too.
const BEGINNING_BYTES_MAX: usize = 4 << 10;

/// Secrets, ready to be looked for.
pub(super) struct Secrets(Vec<Secret>);

struct Secret {
    bytes: Vec<u8>,
    /// For each prefix of the beginning the length of its longest border.
    borders: Vec<u16>,
    whole: bool,
}

impl Secrets {
    /// White space around a secret does not belong to it; an empty one is none.
    pub(super) fn new(secrets: &[Vec<u8>]) -> Rc<Self> {
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
pub(super) struct Scrubber {
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
    pub(super) fn new(secrets: Rc<Secrets>) -> Self {
        let lanes = vec![[Lane::default(); 2]; secrets.0.len()];
        Self { secrets, lanes, held: Vec::new(), looked: 0, before: None, rest: None }
    }

    /// Takes output and gives out what is certain.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut dyn FnMut(&[u8])) {
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
    pub(super) fn finish(&mut self, out: &mut dyn FnMut(&[u8])) {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scrub(secret: &str, pieces: &[&[u8]]) -> Vec<u8> {
        let mut scrubber = Scrubber::new(Secrets::new(&[secret.as_bytes().to_vec()]));
        let mut out = Vec::new();
        for piece in pieces {
            scrubber.push(piece, &mut |bytes| out.extend_from_slice(bytes));
        }
        scrubber.finish(&mut |bytes| out.extend_from_slice(bytes));
        out
    }

    /// Whole, cut at every single place, and byte by byte: always the same.
    fn check(secret: &str, text: &str, wanted: &str) {
        let text = text.as_bytes();
        for cut in 0..=text.len() {
            let (one, two) = text.split_at(cut);
            assert_eq!(
                String::from_utf8_lossy(&scrub(secret, &[one, two])),
                wanted,
                "cut at {cut}"
            );
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(String::from_utf8_lossy(&scrub(secret, &bytes)), wanted, "byte by byte");
    }

    const PROMPT: &str = "fix the \"bug\" in a/b\\c\nand é😀 too";

    #[test]
    fn r_81_the_prompt_is_replaced_raw_and_in_every_json_spelling() {
        check(PROMPT, &format!("a {PROMPT} b"), "a [task input redacted] b");
        for spelling in [
            r#"fix the \"bug\" in a/b\\c\nand é😀 too"#,
            r#"fix the \"bug\" in a\/b\\c\nand \u00e9\ud83d\ude00 too"#,
            r#"fix the \u0022bug\u0022 in a\u002fb\u005Cc\u000Aand \u00E9\uD83D\uDE00 too"#,
            r#"\u0066ix the \"bug\" in a/b\\c\nand \u00e9😀 to\u006f"#,
        ] {
            check(PROMPT, &format!(r#"{{"p":"{spelling}"}}"#), r#"{"p":"[task input redacted]"}"#);
        }
    }

    #[test]
    fn r_81_twice_in_a_row_overlapping_and_after_a_false_start() {
        let p = "abcabcabcabcabcabd";
        check(p, &format!("{p}{p}"), "[task input redacted][task input redacted]");
        check(p, &format!("abcabc{p}abc"), "abcabc[task input redacted]abc");
        check(p, r"abcabc\u0061bcabcabcabcabcabdx", "abcabc[task input redacted]x");
        check(p, &p[..17], &p[..17]);
    }

    #[test]
    fn r_81_short_prompts_only_as_a_whole_line_or_string() {
        check(
            "say hi",
            "say hi\nI say hi\nsay hi!\nsay hi",
            "[task input redacted]\nI say hi\nsay hi!\n[task input redacted]",
        );
        check(
            "say hi",
            r#"{"a":"say hi","b":"say hi you"}"#,
            r#"{"a":"[task input redacted]","b":"say hi you"}"#,
        );
        check("a\"b", r#"["a\"b","xa\"b"]"#, r#"["[task input redacted]","xa\"b"]"#);
        check(" a\r\n", "banana\na\r\na", "banana\n[task input redacted]\r\n[task input redacted]");
        check("é", r#"["\u00e9"]"#, r#"["[task input redacted]"]"#);
        check("", "untouched", "untouched");
        check(" \n ", "un touched", "un touched");
    }

    #[test]
    fn text_that_is_no_json_passes_unchanged() {
        let text = "\\ \\u12 \\ud83d \\ud83d\\u0041 \\x \\\\\" fix the \\";
        check(PROMPT, text, text);
    }

    #[test]
    fn only_a_possible_beginning_is_held_back() {
        let mut scrubber = Scrubber::new(Secrets::new(&[PROMPT.into()]));
        let mut out = Vec::new();
        scrubber.push(b"a line\nand fix the", &mut |bytes| out.extend_from_slice(bytes));
        assert_eq!(out, b"a line\nand ");
        scrubber.push(b" house\n", &mut |bytes| out.extend_from_slice(bytes));
        assert_eq!(out, b"a line\nand fix the house\n");
    }

    #[test]
    fn r_81_a_long_prompt_goes_whole_and_a_cut_copy_as_far_as_it_goes() {
        let prompt: String = (0..3_000).map(|n| format!("line {n} \"é\"\n")).collect();
        let prompt = prompt.trim();
        let escaped = serde_json::to_string(prompt).unwrap();
        let text = format!("<{prompt}> {escaped} <{}> <{}>", &prompt[..20_000], &prompt[..100]);
        let wanted = format!(
            "<[task input redacted]> \"[task input redacted]\" <[task input redacted]> <{}>",
            &prompt[..100]
        );
        for size in [1, 7, 4_096, text.len()] {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            assert_eq!(
                String::from_utf8_lossy(&scrub(prompt, &pieces)),
                wanted,
                "in pieces of {size}"
            );
        }
        let mut scrubber = Scrubber::new(Secrets::new(&[prompt.as_bytes().to_vec()]));
        scrubber.push(&prompt.as_bytes()[..30_000], &mut |_| {});
        assert_eq!(scrubber.held.len(), 0, "what is swallowed is not held");
    }

    #[test]
    fn several_secrets_are_looked_for_together() {
        let secrets = Secrets::new(&[
            b"the first of the secrets".to_vec(),
            b"second of the secrets".to_vec(),
        ]);
        let mut scrubber = Scrubber::new(secrets);
        let mut out = Vec::new();
        let text = b"the second of the secrets, the first of the secrets.";
        scrubber.push(text, &mut |bytes| out.extend_from_slice(bytes));
        scrubber.finish(&mut |bytes| out.extend_from_slice(bytes));
        assert_eq!(out, b"the [task input redacted], [task input redacted].");
    }

    /// An agent that writes the worst there is costs linear time: quadratic would take minutes.
    #[test]
    fn the_worst_output_takes_linear_time() {
        let secret = "a".repeat(BEGINNING_BYTES_MAX - 1) + "b";
        let text = ("a".repeat(BEGINNING_BYTES_MAX - 2) + "c").repeat(75);
        assert_eq!(scrub(&secret, &[text.as_bytes()]).len(), text.len());
        let escaped = ("\\u0061".repeat(BEGINNING_BYTES_MAX - 2) + "c").repeat(20);
        assert_eq!(scrub(&secret, &[escaped.as_bytes()]).len(), escaped.len());
    }

    fn spell(prompt: &str, choices: &[u8]) -> String {
        let mut spelled = String::new();
        for (index, c) in prompt.chars().enumerate() {
            let choice = choices[index % choices.len()];
            match (c, choice % 3) {
                ('"' | '\\', 0 | 1) => spelled.extend(['\\', c]),
                ('\n', 0 | 1) => spelled.push_str("\\n"),
                (_, 0 | 1) => spelled.push(c),
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        spelled.push_str(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        spelled
    }

    proptest! {
        #[test]
        fn r_81_however_it_is_spelled_and_cut_it_is_gone(
            prompt in "[ab\"\\\\\né😀]{16,24}x",
            choices in proptest::collection::vec(any::<u8>(), 1..8),
            cuts in proptest::collection::vec(1_usize..9, 1..30),
            noise in "[ab\"\né]{0,20}",
        ) {
            let prompt = prompt.trim();
            prop_assume!(prompt.chars().count() >= WHOLE_CHARS);
            let text = format!("{noise}\n\"{}\"{noise}", spell(prompt, &choices));
            let (mut pieces, mut rest) = (Vec::new(), text.as_bytes());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, more) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = more;
            }
            let wanted = format!("{noise}\n\"[task input redacted]\"{noise}");
            prop_assert_eq!(String::from_utf8(scrub(prompt, &pieces)).unwrap(), wanted);
        }

        #[test]
        fn what_is_no_secret_passes_whole(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(scrub("a prompt that is in no random text", &[&text]), text);
        }
    }
}
