//! The reader: folds the events of one run into lines to show and the facts the judge needs.

use ostler_core::outcome::Exit;

use super::judge::{self, Closing, Facts};
use super::wire::{Block, Content, Event, Message};
use super::{reset, show};
use crate::kit::lines::{Found, Pieces, Whole};
use crate::kit::reader::{
    AgentEvent, Conclusion, DENIALS_MAX, MESSAGE_CHARS_MAX, Reader, Stream, TEXT_BYTES_MAX,
    Terminal, beginning, one_line,
};

/// A longer name or id is cut.
const NAME_CHARS_MAX: usize = 200;

/// `system` events that are known and say nothing that is shown.
const QUIET_SYSTEM: &[&str] = &[
    "compact_boundary",
    "files_persisted",
    "hook_progress",
    "hook_response",
    "hook_started",
    "status",
    "task_notification",
    "task_progress",
    "task_started",
];
/// Other events that are known and say nothing that is shown.
const QUIET: &[&str] =
    &["auth_status", "control_response", "stream_event", "tool_progress", "tool_use_summary"];

/// Reads one run.
#[derive(Default)]
pub(super) struct ClaudeReader {
    stdout: Whole,
    /// What on stdout is no JSON, in pieces like any text.
    plain: Pieces,
    stderr: Pieces,
    facts: Facts,
}

impl Reader for ClaudeReader {
    fn push(&mut self, stream: Stream, bytes: &[u8], out: &mut Vec<AgentEvent>) {
        let Self { stdout, plain, stderr, facts } = self;
        match stream {
            Stream::Stdout => stdout.push(bytes, &mut |found| found_line(facts, plain, found, out)),
            Stream::Stderr => stderr.push(bytes, &mut |line| stderr_line(facts, line, out)),
        }
    }

    fn finish_streams(&mut self, out: &mut Vec<AgentEvent>) {
        let Self { stdout, plain, stderr, facts } = self;
        stdout.finish(&mut |found| found_line(facts, plain, found, out));
        stderr.finish(&mut |line| stderr_line(facts, line, out));
    }

    fn terminal(&self) -> Option<&Terminal> {
        self.facts.closing.as_ref().map(|closing| &closing.terminal)
    }

    fn conclude(&mut self, exit: Option<Exit>, stopped: bool) -> Conclusion {
        judge::conclude(&mut self.facts, exit, stopped)
    }
}

fn stderr_line(facts: &mut Facts, line: String, out: &mut Vec<AgentEvent>) {
    // Its notes for developers explain no failure.
    if !line.trim().is_empty() && !line.starts_with("[claude-code:") {
        facts.last_stderr = Some(one_line(&line, MESSAGE_CHARS_MAX));
    }
    out.push(AgentEvent::Line(line));
}

fn found_line(facts: &mut Facts, plain: &mut Pieces, found: Found<'_>, out: &mut Vec<AgentEvent>) {
    let line = match found {
        Found::Line(line) => line,
        Found::Overlong(bytes) => {
            facts.overlong_lines += 1;
            show::line(&format!("[a line of {bytes} bytes was too long to read]"), out);
            return out.push(AgentEvent::Overlong { bytes });
        }
    };
    if line.iter().all(u8::is_ascii_whitespace) {
        return;
    }
    let text = String::from_utf8_lossy(line);
    match serde_json::from_str::<Event<'_>>(&text) {
        Ok(event) => facts.take(&event, out),
        Err(_) if text.trim_start().starts_with(['{', '[']) => {
            facts.unknown_lines += 1;
            show::line(&format!("[an unreadable event of {} bytes]", line.len()), out);
        }
        Err(_) => {
            facts.unknown_lines += 1;
            plain.push(line, &mut |piece| out.push(AgentEvent::Line(piece)));
            plain.push(b"\n", &mut |piece| out.push(AgentEvent::Line(piece)));
        }
    }
}

impl Facts {
    fn take(&mut self, event: &Event<'_>, out: &mut Vec<AgentEvent>) {
        if let Some(time) = event.timestamp.as_deref().and_then(|text| text.parse().ok()) {
            self.now = Some(time);
        }
        let subtype = event.subtype.as_deref().unwrap_or_default();
        match event.kind.as_deref().unwrap_or_default() {
            "system" => self.system(subtype, event, out),
            "assistant" => self.assistant(event, out),
            "user" => self.user(event, out),
            "result" => self.result(event, out),
            "rate_limit_event" => self.rate_limit(event, out),
            kind if QUIET.contains(&kind) => {}
            _ => self.unknown_lines += 1,
        }
    }

    fn system(&mut self, subtype: &str, event: &Event<'_>, out: &mut Vec<AgentEvent>) {
        match subtype {
            "init" => {
                self.closing = None;
                self.session(event, out);
                if let Some(version) = event.claude_code_version.as_deref() {
                    self.version = Some(one_line(version, NAME_CHARS_MAX));
                }
                show::line(&show::init(event), out);
            }
            "api_retry" => self.retry(event, out),
            "permission_denied" => {
                let why =
                    event.message.and_then(|raw| serde_json::from_str::<String>(raw.get()).ok());
                let id = event.tool_use_id.as_deref();
                self.denied(event.tool_name.as_deref(), id, why.as_deref(), out);
            }
            _ if QUIET_SYSTEM.contains(&subtype) => {}
            _ => self.unknown_lines += 1,
        }
    }

    fn session(&mut self, event: &Event<'_>, out: &mut Vec<AgentEvent>) {
        let Some(id) = event.session_id.as_deref().filter(|id| !id.is_empty()) else {
            return;
        };
        let id = one_line(id, NAME_CHARS_MAX);
        if self.session_id.as_ref() != Some(&id) {
            self.session_id = Some(id.clone());
            out.push(AgentEvent::Session(id));
        }
    }

    fn retry(&mut self, event: &Event<'_>, out: &mut Vec<AgentEvent>) {
        let error = event.error.as_deref().unwrap_or_default();
        let class = judge::api_class(event.error_status, error, "");
        let message = show::retry_cause(event);
        let delay_ms = event.retry_delay_ms.filter(|ms| *ms >= 0.0).map(|ms| ms as u64);
        show::line(&show::retry(event, delay_ms), out);
        self.retrying = Some((class, message.clone()));
        out.push(AgentEvent::Retry { class, message, delay_ms });
    }

    fn denied(
        &mut self,
        tool: Option<&str>,
        id: Option<&str>,
        why: Option<&str>,
        out: &mut Vec<AgentEvent>,
    ) {
        let tool = one_line(tool.unwrap_or("a tool"), NAME_CHARS_MAX);
        let id = one_line(id.unwrap_or(&tool), NAME_CHARS_MAX);
        if self.denials.len() >= DENIALS_MAX || self.denials.iter().any(|(seen, _)| *seen == id) {
            return;
        }
        show::line(&show::denied(&tool, why), out);
        self.denials.push((id, tool.clone()));
        out.push(AgentEvent::Denied { tool });
    }

    fn assistant(&mut self, event: &Event<'_>, out: &mut Vec<AgentEvent>) {
        let nested = event.parent_tool_use_id.is_some();
        if !nested {
            // It goes on after all: what it stated before was not the end.
            self.closing = None;
        }
        self.session(event, out);
        match event.error.as_deref() {
            // A message made up for an error of the API: no answer of the model.
            Some(error) => self.api_error = Some(one_line(error, NAME_CHARS_MAX)),
            None => self.retrying = None,
        }
        for block in blocks(event).iter() {
            match block.kind.as_deref() {
                Some("text") => {
                    let text = block.text.as_deref().unwrap_or_default();
                    show::text(text, nested, out);
                    if !nested {
                        self.last_text = beginning(text, TEXT_BYTES_MAX).to_owned();
                        self.answered |= event.error.is_none() && !text.trim().is_empty();
                    }
                }
                Some("tool_use") => {
                    let name = block.name.as_deref().unwrap_or("a tool");
                    show::line(&show::tool_call(name, block.input.as_ref(), nested), out);
                    self.tools_called += 1;
                    out.push(AgentEvent::Tool { name: one_line(name, NAME_CHARS_MAX) });
                }
                _ => {}
            }
        }
    }

    fn user(&mut self, event: &Event<'_>, out: &mut Vec<AgentEvent>) {
        let nested = event.parent_tool_use_id.is_some();
        for block in blocks(event).iter().filter(|b| b.kind.as_deref() == Some("tool_result")) {
            let id = block.tool_use_id.as_deref();
            if self.denials.iter().any(|(denied, _)| Some(denied.as_str()) == id) {
                continue; // Shown as a denial already.
            }
            if let Some(answer) = show::tool_answer(block, nested) {
                show::line(&answer, out);
            }
        }
    }

    fn rate_limit(&mut self, event: &Event<'_>, out: &mut Vec<AgentEvent>) {
        let Some(info) = &event.rate_limit_info else {
            return;
        };
        if info.status.as_deref() != Some("rejected") {
            return;
        }
        self.limit_rejected = true;
        self.limit_resets_at = info.resets_at.and_then(reset::seconds);
        let limit = info.limit.as_deref().unwrap_or("usage");
        show::line(&format!("✗ the {} limit is reached", one_line(limit, NAME_CHARS_MAX)), out);
    }

    fn result(&mut self, event: &Event<'_>, out: &mut Vec<AgentEvent>) {
        for denial in event.permission_denials.iter().flat_map(|items| &items.0) {
            self.denied(denial.tool_name.as_deref(), denial.tool_use_id.as_deref(), None, out);
        }
        self.spending.add(event);
        let closing = Closing::read(event);
        if !closing.terminal.success {
            let message = closing.message();
            // The text of an API error was shown as a message already.
            let shown = self.last_text.trim() == message;
            let statement = &closing.terminal.statement;
            let status =
                event.api_error_status.map(|code| format!(" (HTTP {code})")).unwrap_or_default();
            let message = if shown || message.is_empty() {
                format!("✗ {statement}{status}")
            } else {
                format!("✗ {statement}{status}: {}", one_line(message, MESSAGE_CHARS_MAX))
            };
            show::line(&message, out);
        }
        self.closing = Some(closing);
    }
}

fn blocks<'a>(event: &Event<'a>) -> Vec<Block<'a>> {
    let message = event.message.and_then(|raw| serde_json::from_str::<Message<'a>>(raw.get()).ok());
    match message.and_then(|message| message.content) {
        Some(Content::Blocks(blocks)) => blocks,
        // A message of a person or of a hook; nothing of the agent's.
        Some(Content::Text(_)) | None => Vec::new(),
    }
}
