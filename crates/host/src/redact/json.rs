//! JSON string values under sensitive keys, found without parsing.
//!
//! The quote that ends a key stands before a `:`. How many backslashes precede a quote says at which
//! level of strings in strings it is: none in a document itself, one in a document inside a string,
//! three in one inside that; see [`level_of`]. So one pass treats all levels, and a text that was cut
//! anywhere.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memrchr};

use super::REDACTED;

/// Keys that contain one of these, in any case, hide their string values.
const KEY_WORDS: [&str; 6] = ["authorization", "password", "secret", "token", "api_key", "apikey"];
/// Counts of tokens end in this, and are no secrets.
const COUNTED: &str = "_tokens";
/// How far back a key is looked for; of a longer one the end decides.
const KEY_BYTES_MAX: usize = 256;

/// The redacted text, and whether it ends inside of what was redacted.
pub(super) fn redact(text: &str) -> (Cow<'_, str>, bool) {
    let bytes = text.as_bytes();
    let mut out = Output { text, copied: 0, redacted: None };
    let mut done = 0;
    let mut open = false;
    for colon in memchr_iter(b':', bytes) {
        // A colon inside of what was redacted already, or that belongs to a value's end.
        if colon < done {
            continue;
        }
        let Some(level) = sensitive_key_before(bytes, colon) else {
            continue;
        };
        (done, open) = redact_value(&mut out, colon + 1, level);
    }
    (out.finish(), open && done >= bytes.len())
}

/// The text with parts replaced; nothing is copied before the first replacement.
struct Output<'a> {
    text: &'a str,
    copied: usize,
    redacted: Option<String>,
}

impl<'a> Output<'a> {
    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    fn replace(&mut self, start: usize, end: usize) {
        // Both are next to an ASCII quote, so always on a character's border.
        if self.text.get(start..end).is_none_or(|old| old == REDACTED) {
            return;
        }
        let redacted = self.redacted.get_or_insert_with(|| String::with_capacity(self.text.len()));
        redacted.push_str(self.text.get(self.copied..start).unwrap_or_default());
        redacted.push_str(REDACTED);
        self.copied = end;
    }

    fn finish(self) -> Cow<'a, str> {
        match self.redacted {
            None => Cow::Borrowed(self.text),
            Some(mut redacted) => {
                redacted.push_str(self.text.get(self.copied..).unwrap_or_default());
                Cow::Owned(redacted)
            }
        }
    }
}

/// How deep in strings of strings a quote with `run` backslashes before it is. Each level doubles a
/// backslash and adds one to a quote: the quotes of level n have 2ⁿ-1, and each backslash that ends the
/// string before them is 2ⁿ⁺¹ more. Both together, plus one, are an odd multiple of 2ⁿ.
fn level_of(run: usize) -> u32 {
    (run + 1).trailing_zeros()
}

/// The backslashes before a quote of `level`.
fn escapes_at(level: u32) -> usize {
    1_usize.checked_shl(level).unwrap_or(1) - 1
}

fn backslashes_at_end(bytes: &[u8]) -> usize {
    bytes.iter().rev().take_while(|&&byte| byte == b'\\').count()
}

/// If a sensitive key ends before the colon: its level.
fn sensitive_key_before(bytes: &[u8], colon: usize) -> Option<u32> {
    let before = bytes.get(..colon)?.trim_ascii_end();
    let (b'"', before) = before.split_last()? else {
        return None;
    };
    let level = level_of(backslashes_at_end(before));
    let key_end = before.len().checked_sub(escapes_at(level))?;
    let near = before.get(key_end.saturating_sub(KEY_BYTES_MAX)..key_end)?;
    // A key whose beginning was cut off reaches back to the beginning of the text.
    let mut start = 0;
    let mut end = near.len();
    while let Some(quote) = memrchr(b'"', near.get(..end)?) {
        if level_of(backslashes_at_end(near.get(..quote)?)) <= level {
            start = quote + 1;
            break;
        }
        end = quote;
    }
    is_sensitive(near.get(start..)?).then_some(level)
}

fn is_sensitive(key: &[u8]) -> bool {
    let mut key = String::from_utf8_lossy(key).to_ascii_lowercase();
    if key.contains("u00") {
        key = unescape(&key);
    }
    let key = key.strip_suffix(COUNTED).unwrap_or(&key);
    KEY_WORDS.iter().any(|word| key.contains(word))
}

/// Undoes `\u00xx`, with which any of the words can be written differently.
fn unescape(key: &str) -> String {
    let mut parts = key.split("u00");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let escaped = plain.ends_with('\\').then(|| part.get(..2)).flatten();
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                plain.truncate(plain.trim_end_matches('\\').len());
                plain.push(char::from(byte).to_ascii_lowercase());
                plain.push_str(part.get(2..).unwrap_or_default());
            }
            None => {
                plain.push_str("u00");
                plain.push_str(part);
            }
        }
    }
    plain
}

/// Redacts the value that begins at `start`: a string, or all string values in an array or object.
/// Says where it ends, and whether the text ended first.
fn redact_value(out: &mut Output<'_>, start: usize, level: u32) -> (usize, bool) {
    let bytes = out.bytes();
    let mut at = start;
    let mut brackets = 0_usize;
    loop {
        at += space(bytes.get(at..).unwrap_or_default(), level);
        match bytes.get(at) {
            None => return (at, true),
            Some(b'[' | b'{') => brackets += 1,
            Some(b']' | b'}') => brackets = brackets.saturating_sub(1),
            Some(b'"' | b'\\') => {
                // None: a quote of the document around this one, which was cut.
                let Some(string) = string_at(bytes, at, level) else {
                    return (at, false);
                };
                if brackets == 0 || !string.is_key {
                    out.replace(string.start, string.end);
                }
                at = string.after;
                if brackets == 0 || string.is_cut {
                    return (at, string.is_cut);
                }
                continue;
            }
            Some(_) => {}
        }
        if brackets == 0 {
            return (at, false);
        }
        at += 1;
    }
}

/// How much white space the text begins with, also of the escaped kind of a document in a string.
fn space(bytes: &[u8], level: u32) -> usize {
    let escapes = escapes_at(level).div_ceil(2);
    let mut len = 0;
    loop {
        let rest = bytes.get(len..).unwrap_or_default();
        len += match rest.first() {
            Some(b' ' | b'\t' | b'\n' | b'\r') => 1,
            Some(b'\\') if is_escaped_space(rest, escapes) => escapes + 1,
            _ => return len,
        };
    }
}

fn is_escaped_space(bytes: &[u8], escapes: usize) -> bool {
    let run = bytes.get(..escapes).unwrap_or_default();
    !run.is_empty()
        && run.iter().all(|&byte| byte == b'\\')
        && matches!(bytes.get(escapes), Some(b'n' | b'r' | b't'))
}

struct JsonString {
    /// Where its content begins.
    start: usize,
    /// Where its content ends.
    end: usize,
    /// Behind its closing quote.
    after: usize,
    is_key: bool,
    /// The text ended before its closing quote.
    is_cut: bool,
}

/// The string of `level` whose opening quote, with its backslashes, is at `at`.
fn string_at(bytes: &[u8], at: usize, level: u32) -> Option<JsonString> {
    let start = at + escapes_at(level) + 1;
    let (b'"', escapes) = bytes.get(at..start)?.split_last()? else {
        return None;
    };
    if escapes.iter().any(|&byte| byte != b'\\') {
        return None;
    }
    let mut from = start;
    while let Some(quote) = memchr(b'"', bytes.get(from..)?).map(|found| from + found) {
        let found = level_of(backslashes_at_end(bytes.get(start..quote)?));
        if found <= level {
            let after = quote + 1;
            let rest = bytes.get(after..)?;
            let is_key = rest.get(space(rest, level)..)?.first() == Some(&b':');
            let end = quote - escapes_at(found);
            return Some(JsonString { start, end, after, is_key, is_cut: false });
        }
        from = quote + 1;
    }
    let end = bytes.len();
    Some(JsonString { start, end, after: end, is_key: false, is_cut: true })
}
