//! Records of the server as people read them: rows that fit the terminal, or one record line by line.

use serde_json::Value;

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
    let width = fields.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    let (mut lines, mut texts) = (Vec::new(), Vec::new());
    for (name, value) in fields {
        match value {
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            Value::Array(values) if values.is_empty() => {}
            Value::String(text) if text.contains('\n') => texts.push((name, text)),
            value => lines.push(format!("{name:width$}  {}", cell(Some(value)))),
        }
    }
    lines.iter().try_for_each(|line| output::line(line))?;
    for (name, text) in texts {
        output::line(&format!("\n\x1b[1m{name}{PLAIN}"))?;
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
        Some(record @ Value::Object(fields)) => {
            let told = ["name", "path", "message", "id"].iter().find_map(|name| fields.get(*name));
            match told {
                Some(told) => cell(Some(told)),
                None => output::safe(&record.to_string()).into_owned(),
            }
        }
        Some(value) => value.to_string(),
    }
}
