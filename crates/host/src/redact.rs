//! Redaction: what the daemon journals, sends, shows and bundles carries no secrets that it can tell
//! by their names, and not the prompt.
//!
//! Owns: the rules of runtime.md ("Redaction"): log lines with a marker such as `token=`, JSON string
//! values under keys such as `api_key`, and the prompt inside a line ([`Input`]). Deliberately
//! absent: guessing secrets by how they look, and redacting what an agent keeps for itself.
//!
//! The scan is driven by `:` and `=`, before one of which everything of interest stands: text
//! without them is passed through after one vectorised search, and no text is parsed, so that a line
//! cut in the middle of its JSON is treated as well as a whole one. JSON inside a JSON string (with
//! its quotes escaped, at any depth) is seen in the same pass.

mod input;
mod json;

use std::borrow::Cow;

use memchr::memchr2_iter;

pub use input::{INPUT_REDACTED, Input};

/// What stands in the place of a secret.
pub const REDACTED: &str = "[REDACTED]";

/// A log line that contains one of these, before a `=`, is redacted.
const ASSIGNED_WORDS: [&[u8]; 5] = [b"api_key", b"apikey", b"password", b"token", b"secret"];
/// The header whose name, before a `:`, redacts a log line.
const HEADER_WORD: &[u8] = b"authorization";

/// Redacts one log line: all of it when it contains a marker, else the JSON in it.
pub fn line(text: &str) -> Cow<'_, str> {
    line_and_end(text).0
}

/// [`line`], and whether the text ends inside of what was redacted: then its continuation, when it
/// was cut off, is secret too.
pub(crate) fn line_and_end(text: &str) -> (Cow<'_, str>, bool) {
    if has_marker(text) { (Cow::Borrowed(REDACTED), true) } else { json::redact(text) }
}

/// Redacts JSON string values under sensitive keys in `json`, which may also be a part of a document
/// or have other text around it. A whole document stays a whole document.
pub fn json(json: &str) -> Cow<'_, str> {
    json::redact(json).0
}

/// Redacts a text of several lines, each like [`line()`].
pub fn text(text: &str) -> Cow<'_, str> {
    // First as a whole: a sensitive key and its value may stand on different lines.
    let text = json::redact(text).0;
    if !has_marker(&text) {
        return text;
    }
    let lines = text.split('\n').map(|line| if has_marker(line) { REDACTED } else { line });
    Cow::Owned(lines.collect::<Vec<_>>().join("\n"))
}

fn has_marker(text: &str) -> bool {
    let bytes = text.as_bytes();
    memchr2_iter(b'=', b':', bytes).any(|at| {
        let before = bytes.get(..at).unwrap_or_default();
        match bytes.get(at) {
            Some(b'=') => ASSIGNED_WORDS.iter().any(|word| ends_with_word(before, word)),
            _ => ends_with_word(before, HEADER_WORD),
        }
    })
}

fn ends_with_word(text: &[u8], word: &[u8]) -> bool {
    let end = text.len().checked_sub(word.len()).and_then(|start| text.get(start..));
    end.is_some_and(|end| end.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests;
