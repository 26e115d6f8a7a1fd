//! How an agent is read: bytes in, events out, and one conclusion at the end.
//!
//! A reader owns its line buffers, all of them bounded. It never sees a process: the host tells it
//! how the leader ended.

use ostler_core::outcome::{CostMicros, Exit, Failure, FailureClass, Proof, Usage};

/// The longest final answer that is kept; the whole one is in the run directory.
pub const TEXT_BYTES_MAX: usize = 65_536;
/// At most this many names of denied tools; more are only counted by the agent.
pub const DENIALS_MAX: usize = 100;
/// The longest message of a failure.
pub(crate) const MESSAGE_CHARS_MAX: usize = 500;

/// Where bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What a reader noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEvent {
    /// A line to show, of at most [`PIECE_BYTES_MAX`](crate::PIECE_BYTES_MAX) bytes. Control
    /// characters are still in it: whoever displays it escapes them.
    Line(String),
    /// The agent's own session id.
    Session(String),
    /// The agent is trying again; it lives, but it gets nowhere.
    Retry {
        /// What went wrong.
        class: FailureClass,
        /// The same in its words.
        message: String,
        /// How long it waits.
        delay_ms: Option<u64>,
    },
    /// A tool was denied.
    Denied {
        /// The tool's name.
        tool: String,
    },
    /// A tool was called.
    Tool {
        /// The tool's name.
        name: String,
    },
    /// A line longer than [`LINE_BYTES_MAX`](crate::LINE_BYTES_MAX) was dropped.
    Overlong {
        /// Its length.
        bytes: u64,
    },
}

/// The agent's closing statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    /// The statement in a word or two.
    pub statement: String,
    /// Whether it claims success.
    pub success: bool,
}

/// What became of a run, as far as its output and exit say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It did what it was asked, and proved it.
    Completed,
    /// It did not, or did not prove it.
    Failed,
}

/// The judgement of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    /// Completed or failed.
    pub status: Status,
    /// Why it failed; always there when it did.
    pub failure: Option<Failure>,
    /// What the judgement rests on; `None` when nothing proved anything.
    pub proof: Option<Proof>,
    /// The closing statement in a word or two.
    pub statement: Option<String>,
    /// The agent's own session id.
    pub session_id: Option<String>,
    /// The final answer, at most [`TEXT_BYTES_MAX`] bytes.
    pub text: Option<String>,
    /// Tokens of this run alone.
    pub usage: Option<Usage>,
    /// Money of this run alone.
    pub cost_micros: Option<CostMicros>,
    /// Tools that were denied, each once.
    pub denials: Vec<String>,
    /// The agent's version, when its stream says so.
    pub version: Option<String>,
    /// Lines it could make nothing of: a sign that the agent's format has changed.
    pub unknown_lines: u64,
}

impl Conclusion {
    /// Nothing known yet but the status.
    pub(crate) fn new(status: Status) -> Self {
        Self {
            status,
            failure: None,
            proof: None,
            statement: None,
            session_id: None,
            text: None,
            usage: None,
            cost_micros: None,
            denials: Vec::new(),
            version: None,
            unknown_lines: 0,
        }
    }

    /// A failure, and nothing else known.
    pub(crate) fn failed(failure: Failure) -> Self {
        Self { failure: Some(failure), ..Self::new(Status::Failed) }
    }
}

/// Reads one run.
pub trait Reader: Send {
    /// Takes the next bytes of a stream, cut anywhere, and adds what they complete to `out`.
    fn push(&mut self, stream: Stream, bytes: &[u8], out: &mut Vec<AgentEvent>);

    /// Both streams have ended: what was still unfinished is a line.
    fn finish_streams(&mut self, out: &mut Vec<AgentEvent>);

    /// The closing statement, once it was seen. It is withdrawn when the agent goes on after all.
    fn terminal(&self) -> Option<&Terminal>;

    /// Judges the run. `exit` is how the leader ended, `None` when nobody saw it; `stopped` says
    /// that we ordered the end before the leader came to its own.
    fn conclude(&mut self, exit: Option<Exit>, stopped: bool) -> Conclusion;
}

/// `text` cut to `chars_max` characters, on one line, with a mark when something is missing.
pub(crate) fn one_line(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    for (count, character) in text.trim().chars().enumerate() {
        if count == chars_max {
            line.push('…');
            break;
        }
        line.push(if matches!(character, '\n' | '\r' | '\t') { ' ' } else { character });
    }
    line
}

/// The longest beginning of `text` that has at most `bytes_max` bytes.
pub(crate) fn beginning(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}
