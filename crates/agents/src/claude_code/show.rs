//! What people see of a run: short readable lines, never the raw JSON.

use super::wire::{Block, Content, Event, ToolInput};
use crate::kit::lines::PIECE_BYTES_MAX;
use crate::kit::reader::{AgentEvent, beginning, one_line};

/// The longest summary of a tool's input or answer.
const SUMMARY_CHARS_MAX: usize = 200;
/// The most lines shown of one text; the run directory has all of it.
const TEXT_LINES_MAX: usize = 10_000;

/// One line.
pub(super) fn line(text: &str, out: &mut Vec<AgentEvent>) {
    out.push(AgentEvent::Line(beginning(text, PIECE_BYTES_MAX).to_owned()));
}

/// The lines of a text; what a helper agent says is set in.
pub(super) fn text(text: &str, nested: bool, out: &mut Vec<AgentEvent>) {
    let margin = if nested { "  │ " } else { "" };
    let mut lines = text.trim_end_matches('\n').split('\n');
    for content in lines.by_ref().take(TEXT_LINES_MAX) {
        let mut rest = content;
        loop {
            let piece = beginning(rest, PIECE_BYTES_MAX - margin.len());
            out.push(AgentEvent::Line(format!("{margin}{piece}")));
            rest = rest.get(piece.len()..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
        }
    }
    let left = lines.count();
    if left > 0 {
        out.push(AgentEvent::Line(format!("{margin}[{left} more lines of this answer]")));
    }
}

/// `⏺ Bash: echo hi`.
pub(super) fn tool_call(name: &str, input: Option<&ToolInput<'_>>, nested: bool) -> String {
    let margin = if nested { "  │ " } else { "" };
    let name = one_line(name, SUMMARY_CHARS_MAX);
    match input.and_then(summary) {
        Some(summary) => format!("{margin}⏺ {name}: {}", one_line(summary, SUMMARY_CHARS_MAX)),
        None => format!("{margin}⏺ {name}"),
    }
}

fn summary<'a>(input: &'a ToolInput<'_>) -> Option<&'a str> {
    let known = [
        &input.command,
        &input.file_path,
        &input.notebook_path,
        &input.pattern,
        &input.url,
        &input.query,
        &input.skill,
        &input.path,
        &input.description,
    ];
    known.into_iter().find_map(|field| field.as_deref()).filter(|text| !text.is_empty())
}

/// The first line of a tool's answer, and how many follow.
pub(super) fn tool_answer(block: &Block<'_>, nested: bool) -> Option<String> {
    let margin = if nested { "  │ " } else { "" };
    let answer = match block.content.as_ref()? {
        Content::Text(text) => text.as_ref(),
        Content::Blocks(blocks) => blocks.iter().find_map(|block| block.text.as_deref())?,
    };
    let answer = answer.trim();
    let (first, rest) = answer.split_once('\n').unwrap_or((answer, ""));
    if first.is_empty() {
        return None;
    }
    let error = if block.is_error == Some(true) { "error: " } else { "" };
    let more = match rest.split('\n').filter(|line| !line.is_empty()).count() {
        0 => String::new(),
        count => format!(" (+{count} lines)"),
    };
    Some(format!("{margin}  ⎿ {error}{}{more}", one_line(first, SUMMARY_CHARS_MAX)))
}

/// `● session … (model, version)`.
pub(super) fn init(event: &Event<'_>) -> String {
    let session = event.session_id.as_deref().unwrap_or("without an id");
    let model = event.model.as_deref().unwrap_or("unknown model");
    let version = event.claude_code_version.as_deref().unwrap_or("of unknown version");
    one_line(&format!("● session {session} ({model}, Claude Code {version})"), SUMMARY_CHARS_MAX)
}

/// What went wrong in a retry: `rate_limit (HTTP 429)`.
pub(super) fn retry_cause(event: &Event<'_>) -> String {
    let error = one_line(event.error.as_deref().unwrap_or("unknown"), SUMMARY_CHARS_MAX);
    match event.error_status {
        Some(status) => format!("{error} (HTTP {status})"),
        None => error,
    }
}

/// `↻ retry 1/10 in 0.6 s: rate_limit (HTTP 429)`.
pub(super) fn retry(event: &Event<'_>, delay_ms: Option<u64>) -> String {
    let attempt = event.attempt.unwrap_or_default();
    let of = event.max_retries.map(|max| format!("/{max}")).unwrap_or_default();
    let delay =
        delay_ms.map(|ms| format!(" in {}.{} s", ms / 1_000, ms % 1_000 / 100)).unwrap_or_default();
    format!("↻ retry {attempt}{of}{delay}: {}", retry_cause(event))
}

/// `✗ Bash denied: …`.
pub(super) fn denied(tool: &str, why: Option<&str>) -> String {
    let tool = one_line(tool, SUMMARY_CHARS_MAX);
    match why {
        Some(why) => format!("✗ {tool} denied: {}", one_line(why, SUMMARY_CHARS_MAX)),
        None => format!("✗ {tool} denied"),
    }
}
