//! The prompt inside of log lines.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// What stands in the place of the prompt.
pub const INPUT_REDACTED: &str = "[task input redacted]";

/// A prompt of fewer characters is replaced only where it is a whole line or a whole JSON string;
/// else it would shred the output.
const SHORT_CHARS: usize = 16;

/// A prompt to look for. Its `Debug` shows nothing of it.
pub struct Input {
    /// A short prompt: what a whole line must be.
    whole_line: Option<Box<str>>,
    /// Each text to look for, and what stands in its place.
    needles: Vec<(Box<str>, Box<str>)>,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Input")
    }
}

impl Input {
    /// Prepares to look for `prompt`: as it is, and as JSON writes it with and without other
    /// characters than ASCII.
    pub fn new(prompt: &str) -> Self {
        let prompt = prompt.trim();
        let mut input = Self { whole_line: None, needles: Vec::new() };
        if prompt.is_empty() {
            return input;
        }
        let quoted = serde_json::Value::from(prompt).to_string();
        let quoted_ascii = ascii_only(&quoted);
        if prompt.chars().count() < SHORT_CHARS {
            input.whole_line = Some(prompt.into());
            let replacement = format!("\"{INPUT_REDACTED}\"");
            input.look_for(&quoted, &replacement);
            input.look_for(&quoted_ascii, &replacement);
        } else {
            input.look_for(prompt, INPUT_REDACTED);
            for quoted in [quoted, quoted_ascii] {
                let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
                input.look_for(inner.unwrap_or(prompt), INPUT_REDACTED);
            }
        }
        input
    }

    fn look_for(&mut self, needle: &str, replacement: &str) {
        if self.needles.iter().all(|(known, _)| &**known != needle) {
            self.needles.push((needle.into(), replacement.into()));
        }
    }

    /// The line without the prompt.
    pub fn hide<'a>(&self, line: &'a str) -> Cow<'a, str> {
        if self.whole_line.as_deref().is_some_and(|whole| line.trim() == whole) {
            return Cow::Borrowed(INPUT_REDACTED);
        }
        let mut shown = Cow::Borrowed(line);
        for (needle, replacement) in &self.needles {
            // The comparison of lengths first: most lines are shorter than most prompts.
            if shown.len() >= needle.len() && shown.contains(&**needle) {
                shown = Cow::Owned(shown.replace(&**needle, replacement));
            }
        }
        shown
    }
}

/// JSON as encoders write it that avoid everything but ASCII.
fn ascii_only(json: &str) -> String {
    if json.is_ascii() {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            out.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing into a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}
