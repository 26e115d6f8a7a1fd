//! What several endpoints read in the same way from a body.

use ostler_core::lease::Priority;
use ostler_proto::lease::Fields;
use serde_json::{Map, Value};

use crate::text;

/// Bytes of a variable's value.
const VALUE_BYTES_MAX: usize = 32 * 1024;
/// Characters of the name of a variable or an MCP server.
const KEY_CHARS_MAX: usize = 128;
/// Characters of a provider.
const PROVIDER_CHARS_MAX: usize = 64;
/// Variables that an agent's environment cannot set: a daemon ignores them.
const RESERVED: [&str; 4] = ["FELAGI_TOKEN", "FELAGI_SERVER_URL", "PATH", "HOME"];

/// The field is there; null is a fault, for fields that always have a value.
pub(super) fn given(fields: &mut Fields<'_>, name: &str) -> bool {
    if fields.has(name) && fields.value(name).is_none() {
        fields.fault(name, "must not be null");
    }
    fields.value(name).is_some()
}

/// One line of text that must be there.
pub(super) fn line(fields: &mut Fields<'_>, name: &str, chars_max: usize) -> String {
    let sent = fields.text(name, chars_max);
    let line = text::plain_line(&sent, chars_max);
    if line.is_empty() && !sent.is_empty() {
        fields.fault(name, "must not be empty");
    }
    line
}

/// Such a line, or nothing.
pub(super) fn opt_line(fields: &mut Fields<'_>, name: &str, chars_max: usize) -> Option<String> {
    given(fields, name).then(|| line(fields, name, chars_max))
}

/// A longer text, perhaps empty; null empties it.
pub(super) fn opt_long(fields: &mut Fields<'_>, name: &str, chars_max: usize) -> Option<String> {
    fields.has(name).then(|| {
        let sent = fields.opt_text(name, chars_max).unwrap_or_default();
        text::printable(&sent).into_owned()
    })
}

/// A longer text in HTML, made clean; null empties it.
pub(super) fn opt_html(fields: &mut Fields<'_>, name: &str) -> Option<String> {
    fields.has(name).then(|| {
        let sent = fields.opt_text(name, text::HTML_BYTES_MAX).unwrap_or_default();
        html(fields, name, &sent)
    })
}

/// What was sent as HTML, made clean.
pub(super) fn html(fields: &mut Fields<'_>, name: &str, sent: &str) -> String {
    text::sanitize_whole(sent).unwrap_or_else(|| {
        let bytes_max = text::HTML_BYTES_MAX;
        let fault = format!("must be at most {bytes_max} bytes of HTML, also when it is clean");
        fields.fault(name, fault);
        String::new()
    })
}

/// A line that may be taken away with null.
pub(super) fn nullable_line(
    fields: &mut Fields<'_>,
    name: &str,
    chars_max: usize,
) -> Option<Option<String>> {
    let there = fields.value(name).is_some();
    fields.has(name).then(|| there.then(|| line(fields, name, chars_max)))
}

/// A number that may be taken away with null.
pub(super) fn nullable_int(
    fields: &mut Fields<'_>,
    name: &str,
    range: std::ops::RangeInclusive<i64>,
) -> Option<Option<i64>> {
    fields.has(name).then(|| fields.opt_int(name, range))
}

/// One of the words.
pub(super) fn opt_choice(fields: &mut Fields<'_>, name: &str, known: &[&str]) -> Option<String> {
    if !given(fields, name) {
        return None;
    }
    let word = fields.value(name).and_then(Value::as_str).filter(|word| known.contains(word));
    if word.is_none() {
        fields.fault(name, format!("must be one of {}", known.join(", ")));
    }
    word.map(str::to_owned)
}

/// A priority, or nothing.
pub(super) fn opt_priority(fields: &mut Fields<'_>) -> Option<Priority> {
    let words = Priority::ALL.map(Priority::word);
    opt_choice(fields, "priority", &words).and_then(|word| Priority::from_word(&word))
}

/// The id of an agent CLI.
pub(super) fn provider(fields: &mut Fields<'_>) -> String {
    let provider = fields.text("provider", PROVIDER_CHARS_MAX);
    let known =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if !provider.bytes().all(known) {
        fields.fault("provider", "must be small letters, digits, _ and -");
    }
    provider
}

/// An environment: texts by name, null for a variable that is to go.
pub(super) fn opt_env(fields: &mut Fields<'_>) -> Option<Map<String, Value>> {
    if !given(fields, "custom_env") {
        return None;
    }
    let object = fields.opt_object("custom_env")?;
    for (name, value) in object {
        if let Some(fault) = env_fault(name, value) {
            // A name may be a secret that somebody put in the wrong place: it is not repeated.
            fields.fault("custom_env", fault);
            return None;
        }
    }
    Some(object.clone())
}

fn env_fault(name: &str, value: &Value) -> Option<String> {
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let rest = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !first || !rest || name.len() > KEY_CHARS_MAX {
        return Some(format!(
            "must have names of letters, digits and _, of at most {KEY_CHARS_MAX} characters"
        ));
    }
    if RESERVED.contains(&name) {
        return Some(format!("cannot set {}", RESERVED.join(", ")));
    }
    match value {
        Value::Null => None,
        Value::String(text) if text.len() <= VALUE_BYTES_MAX && !text.contains('\0') => None,
        _ => Some(format!("must have values that are strings of at most {VALUE_BYTES_MAX} bytes")),
    }
}

/// MCP servers: objects by name, null for one that is to go.
pub(super) fn opt_mcp(fields: &mut Fields<'_>) -> Option<Map<String, Value>> {
    if !given(fields, "mcp_config") {
        return None;
    }
    let object = fields.opt_object("mcp_config")?;
    let good = |(name, value): (&String, &Value)| {
        let named = !name.is_empty()
            && name.chars().count() <= KEY_CHARS_MAX
            && !name.chars().any(char::is_control);
        named && (value.is_object() || value.is_null())
    };
    if !object.iter().all(good) {
        let fault = format!("must have objects by names of at most {KEY_CHARS_MAX} characters");
        fields.fault("mcp_config", fault);
        return None;
    }
    Some(object.clone())
}
