//! Reading single fields of a command, each fault with its text.
//!
//! Owns how a field is read and how a fault is worded; which fields there are and how long they may be is
//! `command`'s. No text repeats what the client sent.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::message::present;

/// Every field of every command, unread.
#[derive(Deserialize)]
pub(super) struct Fields<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) version: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "type", deserialize_with = "present")]
    pub(super) kind: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) task_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) prompt: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) cwd: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) session_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) provider: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) model: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) effort: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) worktree: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) agent: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) argv: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) env: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) timeout_seconds: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) budget_micros: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) permissions: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) limit: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) approval_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) decision: Option<&'a RawValue>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(text: &'a str) -> Result<Self, String> {
        // serde's derive would take an array of the fields.
        if !text.starts_with('{') {
            return Err("command must be an object".into());
        }
        serde_json::from_str(text).map_err(|_| "command is malformed".into())
    }
}

/// The field, unless it is `null`.
pub(super) fn not_null(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get() != "null")
}

/// The text of a JSON string; `None` for anything else, unpaired surrogates included.
pub(super) fn string(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// A JSON integer; `None` for anything else, negative and fractional numbers included.
pub(super) fn integer(raw: &RawValue) -> Option<u64> {
    serde_json::from_str(raw.get()).ok()
}

/// A trimmed text of 1 to `chars_max` characters.
pub(super) fn required(
    name: &'static str,
    raw: Option<&RawValue>,
    chars_max: usize,
) -> Result<String, String> {
    text(name, raw.ok_or_else(|| format!("{name} is missing"))?, chars_max)
}

/// The same, when it is there and not `null`.
pub(super) fn optional(
    name: &'static str,
    raw: Option<&RawValue>,
    chars_max: usize,
) -> Result<Option<String>, String> {
    not_null(raw).map(|raw| text(name, raw, chars_max)).transpose()
}

fn text(name: &'static str, raw: &RawValue, chars_max: usize) -> Result<String, String> {
    let text = string(raw).ok_or_else(|| format!("{name} must be a string"))?;
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(format!("{name} is empty"));
    }
    if trimmed.chars().nth(chars_max).is_some() {
        return Err(format!("{name} is longer than {chars_max} characters"));
    }
    Ok(if trimmed.len() == text.len() { text } else { trimmed.to_owned() })
}

/// Refuses control characters.
pub(super) fn no_control(name: &'static str, text: String) -> Result<String, String> {
    if text.contains(char::is_control) {
        Err(format!("{name} contains control characters"))
    } else {
        Ok(text)
    }
}

/// Refuses NUL, which no path, argument or environment can carry.
pub(super) fn no_nul(name: &'static str, text: String) -> Result<String, String> {
    if text.contains('\0') { Err(format!("{name} contains NUL")) } else { Ok(text) }
}

/// A boolean that is false when absent.
pub(super) fn flag(name: &'static str, raw: Option<&RawValue>) -> Result<bool, String> {
    match not_null(raw).map(RawValue::get) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(format!("{name} must be true or false")),
    }
}

/// An integer from 1 to `max`.
pub(super) fn integer_within(name: &'static str, raw: &RawValue, max: u64) -> Result<u64, String> {
    integer(raw)
        .filter(|value| (1..=max).contains(value))
        .ok_or_else(|| format!("{name} must be an integer from 1 to {max}"))
}
