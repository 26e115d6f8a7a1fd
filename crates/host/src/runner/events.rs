//! `events.jsonl` in the run directory: what the agent did, one JSON object a line, and last how the
//! run was judged. The readable lines are not repeated here; the output log has them.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use camino::Utf8Path;
use ostler_agents::AgentEvent;
use ostler_core::task::RunEnd;
use serde_json::{Value, json};

use crate::wire::convert;

/// The file's name.
const EVENTS_JSONL: &str = "events.jsonl";

/// Events of one run that are written; then one says that there were more.
const EVENTS_MAX: usize = 10_000;

/// See the module's documentation.
pub(super) struct EventFile {
    file: Option<File>,
    count: usize,
}

impl EventFile {
    /// Makes the file. Without one the run goes on; its output is elsewhere.
    pub(super) fn create(run_dir: &Utf8Path) -> Self {
        let path = run_dir.join(EVENTS_JSONL);
        let file = File::options().create_new(true).append(true).mode(0o600).open(&path);
        let file =
            file.inspect_err(|error| tracing::warn!(%path, %error, "events are not written")).ok();
        Self { file, count: 0 }
    }

    pub(super) fn event(&mut self, event: &AgentEvent) {
        let value = match event {
            AgentEvent::Line(_) => return,
            AgentEvent::Session(id) => json!({"event": "session", "session_id": id}),
            AgentEvent::Tool { name } => json!({"event": "tool", "name": name}),
            AgentEvent::Denied { tool } => json!({"event": "denied", "tool": tool}),
            AgentEvent::Overlong { bytes } => json!({"event": "overlong", "bytes": bytes}),
            AgentEvent::Retry { class, message, delay_ms } => {
                json!({"event": "retry", "class": class.as_str(), "message": message, "delay_ms": delay_ms})
            }
        };
        self.count += 1;
        match self.count {
            ..=EVENTS_MAX => self.write(&value),
            n if n == EVENTS_MAX + 1 => self.write(&json!({"event": "truncated"})),
            _ => {}
        }
    }

    /// The last line: the judgement and its evidence.
    pub(super) fn end(&mut self, end: &RunEnd) {
        let receipt = convert::receipt(&end.outcome);
        let failure = end.outcome.failure.as_ref().map(convert::failure);
        self.write(&json!({"event": "end", "failure": failure, "receipt": receipt}));
    }

    fn write(&mut self, value: &Value) {
        let Some(file) = &mut self.file else { return };
        let mut line = crate::redact::json(&value.to_string()).into_owned();
        line.push('\n');
        if let Err(error) = file.write_all(line.as_bytes()) {
            tracing::warn!(%error, "events are no longer written");
            self.file = None;
        }
    }
}
