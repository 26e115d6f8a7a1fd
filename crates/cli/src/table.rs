//! Records of the server as people read them: rows that fit the terminal, or one record line by line.

use serde_json::{Map, Value};

use crate::error::Failure;
use crate::output::{self, PLAIN};

/// A heading and where its value is in a record.
pub(crate) type Column = (&'static str, &'static str);

/// Characters of a column, but for the last, which takes what is left.
const COLUMN_CHARS_MAX: usize = 32;
/// Characters that the last column has at least.
const LAST_CHARS: usize = 10;

/// Prints records, one a row.
pub(crate) fn rows(records: &[Value], columns: &[Column]) -> Result<(), Failure> {
    if records.is_empty() {
        output::note("there is nothing to show");
        return Ok(());
    }
    let cells = |record: &Value| {
        columns.iter().map(|(_, pointer)| cell(record.pointer(pointer))).collect::<Vec<_>>()
    };
    let cells: Vec<Vec<String>> = records.iter().map(cells).collect();
    let mut widths = Vec::new();
    for (at, (heading, _)) in columns.iter().enumerate() {
        let of = cells.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        let widest = of.max().unwrap_or(0).max(heading.chars().count());
        widths.push(widest.min(COLUMN_CHARS_MAX));
    }
    let before: usize = widths.iter().rev().skip(1).map(|width| width + 2).sum();
    if let Some(last) = widths.last_mut() {
        *last = output::width().saturating_sub(before).max(LAST_CHARS);
    }
    let headings: Vec<_> = columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    output::line(&format!("\x1b[1m{}{PLAIN}", row(&headings, &widths)))?;
    cells.iter().try_for_each(|cells| output::line(&row(cells, &widths)))
}

fn row(cells: &[String], widths: &[usize]) -> String {
    let fitted = cells.iter().zip(widths);
    let cells: Vec<_> =
        fitted.map(|(cell, width)| format!("{:width$}", output::fit(cell, *width))).collect();
    cells.join("  ").trim_end().to_owned()
}

/// Prints one record: a line a field; longer texts below.
pub(crate) fn record(record: &Value) -> Result<(), Failure> {
    let Value::Object(fields) = record else { return output::json_pretty(record) };
    let fields: Vec<_> = fields.iter().filter(|(_, value)| !is_nothing(value)).collect();
    let width = fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut texts = Vec::new();
    for (name, value) in fields {
        match value {
            Value::String(text) if text.contains('\n') => texts.push((name.clone(), text)),
            value => output::line(&format!("{name:width$}  {}", cell(Some(value))))?,
        }
        if let Value::Object(inner) = value {
            let long = inner.iter().filter_map(|(key, value)| match value {
                Value::String(text) if text.contains('\n') => Some((format!("{name} {key}"), text)),
                _ => None,
            });
            texts.extend(long);
        }
    }
    for (name, text) in texts {
        output::line(&format!("\n\x1b[1m{}{PLAIN}", output::safe(&name)))?;
        text.lines().try_for_each(|line| output::line(&output::safe(line)))?;
    }
    Ok(())
}

/// One value as a word, a name or a short list.
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(Value::String(text)) => output::safe(text).into_owned(),
        Some(Value::Array(values)) => {
            values.iter().map(|value| cell(Some(value))).collect::<Vec<_>>().join(", ")
        }
        Some(Value::Object(fields)) => {
            let told = ["name", "path", "message", "id"].iter().find_map(|name| fields.get(*name));
            told.map_or_else(|| phrase(fields), |told| cell(Some(told)))
        }
        Some(value) => value.to_string(),
    }
}

/// A record within a record: its fields in words, but for longer texts.
fn phrase(fields: &Map<String, Value>) -> String {
    let words = fields.iter().filter(|(_, value)| !is_nothing(value));
    let words = words.filter_map(|(name, value)| match (name.as_str(), value) {
        (_, Value::String(text)) if text.contains('\n') => None,
        ("cost_micros", value) => Some(format!("cost {}", output::dollars(value.as_u64()?))),
        (name, value) => {
            let name = name.replace('_', " ");
            Some(format!("{} {}", output::safe(&name), cell(Some(value))))
        }
    });
    words.collect::<Vec<_>>().join(", ")
}

/// What says nothing to a person.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_within_a_record_is_said_in_words() {
        let usage = json!({ "input_tokens": 12, "output_tokens": null, "cost_micros": 1_500_000 });
        assert_eq!(cell(Some(&usage)), "input tokens 12, cost $1.5000");
        let waiting = json!({ "waiting_for": "approval", "summary": "Deploy?", "decision": null });
        assert_eq!(cell(Some(&waiting)), "waiting for approval, summary Deploy?");
        assert_eq!(cell(Some(&json!({ "id": 7, "name": "Freya" }))), "Freya");
        let result = json!({ "summary": "one\ntwo", "usage": { "input_tokens": 1 } });
        assert_eq!(cell(Some(&result)), "usage input tokens 1");
        assert_eq!(cell(Some(&json!("a\u{1b}[2J"))), "a\\u{1b}[2J");
    }
}
