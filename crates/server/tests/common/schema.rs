//! As much of JSON Schema as `/openapi.json` uses.

use serde_json::Value;

/// The part of the document that a reference names.
pub(crate) fn follow<'d>(document: &'d Value, reference: &str) -> &'d Value {
    let found = document.pointer(reference.trim_start_matches('#'));
    found.unwrap_or_else(|| panic!("{reference} names nothing"))
}

/// What of the value the schema does not allow.
pub(crate) fn faults(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    judge(document, schema, value, "", &mut faults);
    faults
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the schemas use the type {other}"),
    }
}

fn judge(document: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        return judge(document, follow(document, reference), value, at, faults);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = choices.iter().filter(|choice| self::faults(document, choice, value).is_empty());
        if fits.count() != 1 {
            faults.push(format!("{at}: {value} is not one of the choices"));
        }
        return;
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is_of(kind, value)) {
        faults.push(format!("{at}: {value} is not {kinds:?}"));
        return;
    }
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        faults.push(format!("{at}: {value} is none of {choices:?}"));
    }
    if let (Some(low), Some(number)) = (schema["minimum"].as_i64(), value.as_i64())
        && number < low
    {
        faults.push(format!("{at}: {number} is below {low}"));
    }
    if let (Some("date-time"), Some(text)) = (schema["format"].as_str(), value.as_str())
        && (text.len() != 25 || !text.ends_with("+00:00"))
    {
        faults.push(format!("{at}: {text} is no instant"));
    }
    if let Some(list) = value.as_array() {
        for (index, entry) in list.iter().enumerate() {
            judge(document, &schema["items"], entry, &format!("{at}/{index}"), faults);
        }
    }
    if let Some(object) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(name) {
                faults.push(format!("{at}: {name} is missing"));
            }
        }
        let known = schema["properties"].as_object();
        for (name, entry) in object {
            let at = format!("{at}/{name}");
            match known.and_then(|known| known.get(name)) {
                Some(schema) => judge(document, schema, entry, &at, faults),
                // Answers may gain fields, but in a test each must be described.
                None if known.is_some() => faults.push(format!("{at} is not described")),
                None => {}
            }
        }
    }
}
