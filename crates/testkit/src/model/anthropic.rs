//! The Anthropic messages wire: reading a request and writing the answer's events.
//!
//! Only what coding agents use: text and tool calls, streaming or in one piece.

use serde_json::{Value, json};

use super::scenario::Turn;

/// Shell tools by name, and the name of their argument.
const SHELL_TOOLS: &[(&str, &str)] = &[("Bash", "command"), ("bash", "command")];
/// How many characters of text go into one event.
const TEXT_PIECE: usize = 12;
/// How many characters of tool arguments go into one event.
const JSON_PIECE: usize = 20;

/// What a request asks.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) tools: Vec<String>,
    /// The last user text.
    pub(super) user: String,
    /// The tool results that follow it, oldest first.
    pub(super) results: Vec<String>,
    /// How many user texts there are in all.
    pub(super) users: usize,
}

/// Reads the body of a request.
pub(super) fn read(body: &Value) -> Asked {
    let mut asked = Asked {
        model: text_of(body.get("model")),
        stream: body.get("stream").and_then(Value::as_bool) == Some(true),
        tools: list(body.get("tools")).map(|tool| text_of(tool.get("name"))).collect(),
        ..Asked::default()
    };
    let from_user = |message: &&Value| text_of(message.get("role")) == "user";
    for message in list(body.get("messages")).filter(from_user) {
        let is_result = |block: &&Value| text_of(block.get("type")) == "tool_result";
        let results: Vec<String> = list(message.get("content"))
            .filter(is_result)
            .map(|block| text_of(block.get("content")))
            .collect();
        if results.is_empty() {
            asked.user = text_of(message.get("content"));
            asked.results.clear();
            asked.users += 1;
        }
        asked.results.extend(results);
    }
    asked
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

/// The text of a string, or of an array of content blocks.
fn text_of(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => {
            let texts: Vec<String> = blocks.iter().map(|b| text_of(b.get("text"))).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// The tool call of a turn as name and input; an error when no shell tool was offered.
pub(super) fn tool_call(
    turn: &Turn,
    offered: &[String],
) -> Result<Option<(String, Value)>, String> {
    if let Some(tool) = &turn.tool {
        let named = match &tool.ends {
            Some(ends) => offered.iter().find(|name| name.ends_with(ends)).unwrap_or(ends),
            None => &tool.name,
        };
        let input = if tool.input.is_null() { json!({}) } else { tool.input.clone() };
        return Ok(Some((named.clone(), input)));
    }
    let Some(command) = &turn.shell else {
        return Ok(None);
    };
    let known = SHELL_TOOLS.iter().find(|(name, _)| offered.iter().any(|o| o == name));
    let (name, argument) = known.ok_or_else(|| format!("no known shell tool among {offered:?}"))?;
    let input = json!({ *argument: command, "description": "scripted command" });
    Ok(Some(((*name).to_owned(), input)))
}

/// The events of the answer; `type` is also the name of the server-sent event.
pub(super) fn events(turn: &Turn, call: Option<&(String, Value)>, model: &str) -> Vec<Value> {
    let mut events = vec![json!({"type": "message_start", "message": {
        "id": new_id("msg_"), "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage(turn, 1)}})];
    let mut index = 0;
    let mut block = |start: Value, deltas: Vec<Value>| {
        events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
        events.extend(
            deltas.into_iter().map(
                |delta| json!({"type": "content_block_delta", "index": index, "delta": delta}),
            ),
        );
        events.push(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    };
    if !turn.text.is_empty() {
        let deltas = pieces(&turn.text, TEXT_PIECE);
        block(
            json!({"type": "text", "text": ""}),
            deltas.map(|text| json!({"type": "text_delta", "text": text})).collect(),
        );
    }
    if let Some((name, input)) = call {
        let input = input.to_string();
        let deltas = pieces(&input, JSON_PIECE);
        block(
            json!({"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": {}}),
            deltas.map(|json| json!({"type": "input_json_delta", "partial_json": json})).collect(),
        );
    }
    events.push(json!({"type": "message_delta", "usage": usage(turn, turn.usage.output),
                       "delta": {"stop_reason": stop_reason(call), "stop_sequence": null}}));
    events.push(json!({"type": "message_stop"}));
    events
}

/// The same answer in one piece, for requests that do not stream.
pub(super) fn message(turn: &Turn, call: Option<&(String, Value)>, model: &str) -> Value {
    let mut content = Vec::new();
    if !turn.text.is_empty() {
        content.push(json!({"type": "text", "text": turn.text}));
    }
    if let Some((name, input)) = call {
        content.push(
            json!({"type": "tool_use", "id": new_id("toolu_"), "name": name, "input": input}),
        );
    }
    json!({"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model, "content": content,
           "stop_reason": stop_reason(call), "stop_sequence": null, "usage": usage(turn, turn.usage.output)})
}

fn stop_reason(call: Option<&(String, Value)>) -> &'static str {
    if call.is_some() { "tool_use" } else { "end_turn" }
}

fn usage(turn: &Turn, output: u64) -> Value {
    json!({"input_tokens": turn.usage.input, "cache_creation_input_tokens": turn.usage.cache_write,
           "cache_read_input_tokens": turn.usage.cache_read, "output_tokens": output})
}

/// An error answer.
pub(super) fn error_body(status: u16, message: &str) -> Value {
    let kind = match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

fn pieces(text: &str, size: usize) -> impl Iterator<Item = String> {
    let chars: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = chars.chunks(size).map(|piece| piece.iter().collect()).collect();
    pieces.into_iter()
}

/// A fresh id: clients tell messages apart by it, across restarts of the endpoint too.
fn new_id(prefix: &str) -> String {
    let random = crate::process::random_hex();
    format!("{prefix}{}", random.get(..20).unwrap_or(&random))
}
