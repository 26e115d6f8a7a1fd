//! What became of a run of Claude Code.
//!
//! Read in this order: the reason it gives for its end (`terminal_reason`), whether it calls it an
//! error (`is_error`), whether there was a `result` at all, the exit status. `subtype` alone proves
//! nothing: an API error ends as `"subtype":"success"`. A run is completed only when its last
//! `result` says so without contradiction, or when it said so and was ended by us for lingering.
//!
//! Denials: a run that states success and has an answer is completed, with the denials in its
//! receipt. One that ends in an error of no other known cause, or without any answer, and was
//! denied something, could not finish without it: `permission_denied`.

use ostler_core::clock::Timestamp;
use ostler_core::outcome::{Exit, Failure, FailureClass, Proof};

use super::reset;
use super::spending::Spending;
use super::wire::Event;
use crate::kit::plain::exit_failure;
use crate::kit::reader::{
    Conclusion, MESSAGE_CHARS_MAX, Status, TEXT_BYTES_MAX, Terminal, beginning, one_line,
};

const NAME: &str = "claude_code";
/// The exit status of a program that handles TERM, INT or KILL as a shell reports it.
const SIGNAL_EXITS: [i32; 3] = [130, 137, 143];
/// The longest statement.
const STATEMENT_CHARS_MAX: usize = 80;

/// What the stream said, folded.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) session_id: Option<String>,
    pub(super) version: Option<String>,
    /// The newest time the stream told.
    pub(super) now: Option<jiff::Timestamp>,
    /// The last text of the main conversation.
    pub(super) last_text: String,
    /// Whether the model said anything.
    pub(super) answered: bool,
    pub(super) tools_called: u64,
    /// Id of the call, name of the tool.
    pub(super) denials: Vec<(String, String)>,
    /// The retry that nothing has followed yet.
    pub(super) retrying: Option<(FailureClass, String)>,
    /// What the made-up message for an API error calls it.
    pub(super) api_error: Option<String>,
    pub(super) limit_rejected: bool,
    pub(super) limit_resets_at: Option<Timestamp>,
    pub(super) last_stderr: Option<String>,
    pub(super) unknown_lines: u64,
    pub(super) overlong_lines: u64,
    pub(super) spending: Spending,
    /// The last `result`, while nothing has followed it.
    pub(super) closing: Option<Closing>,
}

/// The `result` event.
pub(super) struct Closing {
    pub(super) terminal: Terminal,
    reason: Option<String>,
    subtype: String,
    api_error_status: Option<u16>,
    text: String,
    errors: String,
}

impl Closing {
    pub(super) fn read(event: &Event<'_>) -> Self {
        let short = |text: &str| one_line(text, STATEMENT_CHARS_MAX);
        let reason = event.terminal_reason.as_deref().map(short);
        let subtype = short(event.subtype.as_deref().unwrap_or_default());
        // An older one gives no reason; it must at least deny that this is an error.
        let success = reason.as_deref().is_none_or(|reason| reason == "completed")
            && event.is_error == Some(false)
            && subtype == "success";
        let statement = match &reason {
            Some(reason) => reason.clone(),
            None if subtype.is_empty() => "result".to_owned(),
            None => subtype.clone(),
        };
        // Its notes for developers explain nothing to a person.
        let errors: Vec<&str> = event
            .errors
            .iter()
            .flat_map(|items| &items.0)
            .map(|error| &**error)
            .filter(|error| !error.starts_with("[ede_diagnostic]"))
            .collect();
        Self {
            terminal: Terminal { statement, success },
            reason,
            subtype,
            api_error_status: event.api_error_status,
            text: beginning(event.result.as_deref().unwrap_or_default(), TEXT_BYTES_MAX).to_owned(),
            errors: one_line(&errors.join("; "), MESSAGE_CHARS_MAX),
        }
    }

    /// Its own words.
    pub(super) fn message(&self) -> &str {
        if self.text.trim().is_empty() { &self.errors } else { self.text.trim() }
    }
}

/// Judges the run.
pub(super) fn conclude(facts: &mut Facts, exit: Option<Exit>, stopped: bool) -> Conclusion {
    let failure = match &facts.closing {
        Some(closing) if closing.terminal.success => contradiction(facts, closing, exit),
        Some(closing) => Some(stated_failure(facts, closing)),
        None => Some(unstated_failure(facts, exit, stopped)),
    };
    let failure = failure.map(|failure| with_retry_at(facts, failure));
    // What comes with a stated failure are words about the failure, not an answer.
    let answer = facts.closing.as_ref().filter(|closing| closing.terminal.success);
    let text = answer.map(|closing| closing.text.clone());
    let mut denials: Vec<String> = Vec::new();
    for (_, tool) in std::mem::take(&mut facts.denials) {
        if !denials.contains(&tool) {
            denials.push(tool);
        }
    }
    Conclusion {
        status: if failure.is_none() { Status::Completed } else { Status::Failed },
        failure,
        proof: facts.closing.as_ref().map(|_| Proof::TerminalEvent),
        statement: facts.closing.as_ref().map(|closing| closing.terminal.statement.clone()),
        session_id: facts.session_id.take(),
        text: text.filter(|text| !text.trim().is_empty()),
        usage: facts.spending.usage(),
        cost_micros: facts.spending.cost(),
        denials,
        version: facts.version.take(),
        unknown_lines: facts.unknown_lines,
    }
}

/// A stated success that something speaks against.
fn contradiction(facts: &Facts, closing: &Closing, exit: Option<Exit>) -> Option<Failure> {
    let silent = closing.text.trim().is_empty() && !facts.answered;
    if silent && !facts.denials.is_empty() {
        return Some(denied(facts));
    }
    if silent && facts.tools_called == 0 {
        let message = format!("{NAME} states success but said and did nothing");
        return Some(Failure::new(FailureClass::EmptyOutput, message));
    }
    match exit {
        // It lingered after its statement and was ended: the statement stands.
        Some(Exit::Code(code)) if code != 0 && !SIGNAL_EXITS.contains(&code) => {
            let message = format!("{NAME} states success but exited with status {code}");
            Some(Failure::new(FailureClass::ExitStatus, message))
        }
        _ => None,
    }
}

fn denied(facts: &Facts) -> Failure {
    let tool = facts.denials.first().map_or("a tool", |(_, tool)| tool);
    let message = format!("{NAME} could not finish without {tool}, which was denied");
    Failure::new(FailureClass::PermissionDenied, message)
}

/// The `result` says that it failed.
fn stated_failure(facts: &Facts, closing: &Closing) -> Failure {
    let words = closing.message();
    let class = stated_class(facts, closing, words);
    if class == FailureClass::Unknown && !facts.denials.is_empty() {
        return denied(facts);
    }
    let message = match (words.is_empty(), class) {
        (_, FailureClass::Signal) => format!("{NAME} was interrupted"),
        (true, _) => format!("{NAME} ended with {}", closing.terminal.statement),
        (false, _) => one_line(words, MESSAGE_CHARS_MAX),
    };
    Failure::new(class, message)
}

fn stated_class(facts: &Facts, closing: &Closing, words: &str) -> FailureClass {
    match closing.reason.as_deref() {
        Some("prompt_too_long" | "rapid_refill_breaker") => return FailureClass::ContextOverflow,
        Some("budget_exhausted" | "max_turns") => return FailureClass::Budget,
        Some("blocking_limit") => return FailureClass::Quota,
        Some("image_error" | "model_error" | "malformed_tool_use_exhausted") => {
            return FailureClass::Model;
        }
        Some("aborted_streaming" | "aborted_tools") => return FailureClass::Signal,
        _ => {}
    }
    if matches!(closing.subtype.as_str(), "error_max_budget_usd" | "error_max_turns") {
        return FailureClass::Budget;
    }
    let error = facts.api_error.as_deref().unwrap_or_default();
    let is_api_error = closing.reason.as_deref() == Some("api_error");
    if is_api_error || closing.api_error_status.is_some() || !error.is_empty() {
        let class = api_class(closing.api_error_status, error, words);
        if class == FailureClass::RateLimit && facts.limit_rejected {
            return FailureClass::Quota;
        }
        return class;
    }
    if is_overflow(words) { FailureClass::ContextOverflow } else { FailureClass::Unknown }
}

/// The class of an error of the API, by its status, its name and its words.
pub(super) fn api_class(status: Option<u16>, error: &str, words: &str) -> FailureClass {
    let lower = words.to_ascii_lowercase();
    let says = |part: &str| lower.contains(part);
    if is_overflow(words) {
        return FailureClass::ContextOverflow;
    }
    if says("credit balance") || says("out of usage credits") || error == "billing_error" {
        return FailureClass::Quota;
    }
    match (status, error) {
        (Some(401 | 403), _) => FailureClass::Authentication,
        (Some(402), _) => FailureClass::Quota,
        (Some(404), _) => FailureClass::Model,
        (Some(413), _) => FailureClass::ContextOverflow,
        (Some(429), _) | (None, "rate_limit") => {
            let is_limit = says("usage limit") || says(" resets ") || says("hit your");
            if is_limit { FailureClass::Quota } else { FailureClass::RateLimit }
        }
        // A gateway on the way, not the model.
        (Some(408 | 502 | 503 | 504), _) => FailureClass::Network,
        (Some(500..), _) => FailureClass::Model,
        (
            None,
            "authentication_failed"
            | "oauth_org_not_allowed"
            | "account_on_hold"
            | "verification_required"
            | "cloud_credential_error",
        ) => FailureClass::Authentication,
        (None, "model_not_found" | "server_error" | "overloaded") => FailureClass::Model,
        // Without a status there was no answer, or none that could be read.
        (None, "unknown" | "") => FailureClass::Network,
        _ => FailureClass::Unknown,
    }
}

fn is_overflow(words: &str) -> bool {
    words.to_ascii_lowercase().contains("prompt is too long")
}

/// There was no `result`, or work went on after it.
fn unstated_failure(facts: &Facts, exit: Option<Exit>, stopped: bool) -> Failure {
    if let Some((class, cause)) = &facts.retrying {
        return Failure::new(*class, format!("{NAME} ended while it was retrying: {cause}"));
    }
    let seen = match exit {
        _ if stopped => "it was stopped".to_owned(),
        Some(Exit::Code(code)) => format!("it exited with status {code}"),
        Some(Exit::Signal(signal)) => format!("signal {signal} ended it"),
        None => "nobody saw its end".to_owned(),
    };
    let killed = match exit {
        Some(Exit::Signal(_)) => true,
        Some(Exit::Code(code)) => SIGNAL_EXITS.contains(&code),
        None => false,
    };
    if stopped || killed {
        let message = format!("{NAME} made no closing statement: {seen}");
        return Failure::new(FailureClass::Signal, message);
    }
    if exit.is_some_and(|exit| !exit.is_success()) {
        return exited(facts, exit);
    }
    let (class, what) = if facts.answered || facts.tools_called > 0 || facts.overlong_lines > 0 {
        (FailureClass::TruncatedOutput, "its output stops without a closing statement")
    } else {
        (FailureClass::EmptyOutput, "it answered nothing")
    };
    Failure::new(class, format!("{NAME}: {what}; {seen}"))
}

/// It gave up on its own, and says why on stderr only.
fn exited(facts: &Facts, exit: Option<Exit>) -> Failure {
    let mut failure = exit_failure(NAME, exit);
    if let Some(words) = &facts.last_stderr {
        failure.message = one_line(&format!("{}: {words}", failure.message), MESSAGE_CHARS_MAX);
        if words.contains("unknown option") {
            failure.class = FailureClass::UnsupportedVersion;
        }
    }
    failure
}

fn with_retry_at(facts: &Facts, mut failure: Failure) -> Failure {
    if matches!(failure.class, FailureClass::RateLimit | FailureClass::Quota) {
        failure.retry_at =
            facts.limit_resets_at.or_else(|| reset::reset_time(&failure.message, facts.now));
    }
    failure
}
