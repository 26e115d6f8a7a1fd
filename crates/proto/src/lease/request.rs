//! What a machine sends.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::fields::{Faults, Fields};
use crate::json;

use super::{CONTENT_BYTES_MAX, CUT_MARK, LINES_MAX, WAIT_SECONDS_MAX};

/// Characters of a `daemon_id`.
const DAEMON_ID_CHARS_MAX: usize = 128;
/// Characters of a name, a version or a provider.
const NAME_CHARS_MAX: usize = 128;
/// Agent CLIs of one machine.
const PROVIDERS_MAX: usize = 64;
/// Agents of its own that a machine may bring.
const ACTORS_MAX: usize = 200;
/// Characters of an actor's description.
const DESCRIPTION_CHARS_MAX: usize = 4_096;
/// Bytes of a registration's capabilities.
const CAPABILITIES_BYTES_MAX: usize = 4_096;
/// Characters of the caller's own word for a claim.
const REQUEST_ID_CHARS_MAX: usize = 128;
/// Characters of a line's type.
const TYPE_CHARS_MAX: usize = 32;
/// Characters of a tool's name; a longer one is cut, not refused.
const TOOL_CHARS_MAX: usize = 255;
/// Characters of an agent session id.
const SESSION_CHARS_MAX: usize = 512;
/// Characters of a directory.
const WORK_DIR_CHARS_MAX: usize = 4_096;
/// Characters of an error or of what a run waits for; longer ones are cut, not refused.
const ERROR_CHARS_MAX: usize = 16_384;
/// The highest number of a line.
const SEQ_MAX: i64 = 1 << 40;
/// How deep a line's payload may nest, so that the whole body stays within [`json::NESTED_MAX`].
const PAYLOAD_NESTED_MAX: usize = json::NESTED_MAX - 3;

/// `POST /register`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Register {
    /// The machine's own id.
    pub daemon_id: String,
    /// How people know it.
    pub name: String,
    /// The daemon's version.
    pub version: String,
    /// Its agent CLIs, each once.
    pub providers: Vec<String>,
    /// Operating system, architecture and more: a JSON object.
    pub capabilities: String,
    /// Agents it runs of its own.
    pub actors: Option<Vec<ActorSent>>,
}

/// An agent that a machine brings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ActorSent {
    /// Its id there.
    pub external_id: String,
    /// How it is called.
    pub name: String,
    /// What it does.
    pub description: String,
}

impl Register {
    /// Reads the body.
    pub fn parse(body: &Value) -> Result<Self, Faults> {
        let mut fields = Fields::of(body);
        let daemon_id = fields.word("daemon_id", DAEMON_ID_CHARS_MAX);
        let name = fields.word("name", NAME_CHARS_MAX);
        let version = fields.opt_word("version", NAME_CHARS_MAX).unwrap_or_default();
        let providers = providers(&mut fields);
        let capabilities = capabilities(&mut fields);
        let actors = fields.opt_list("actors", ACTORS_MAX).map(|list| actors(&mut fields, list));
        fields.done(Self { daemon_id, name, version, providers, capabilities, actors })
    }
}

fn providers(fields: &mut Fields<'_>) -> Vec<String> {
    let mut providers: Vec<String> = Vec::new();
    for value in fields.list("providers", PROVIDERS_MAX) {
        let word = value.as_str().filter(|word| {
            !word.is_empty()
                && word.chars().count() <= NAME_CHARS_MAX
                && !word.chars().any(char::is_control)
        });
        match word {
            Some(word) if providers.iter().any(|known| known == word) => {}
            Some(word) => providers.push(word.to_owned()),
            None => fields.fault("providers", "must be a list of names"),
        }
    }
    providers
}

fn capabilities(fields: &mut Fields<'_>) -> String {
    let text = match fields.value("capabilities") {
        // Some languages write an empty object as an empty list.
        Some(Value::Array(list)) if list.is_empty() => return "{}".to_owned(),
        Some(_) => fields
            .opt_object("capabilities")
            .map(|object| serde_json::to_string(object).unwrap_or_default()),
        None => None,
    };
    let text = text.unwrap_or_else(|| "{}".to_owned());
    if text.len() > CAPABILITIES_BYTES_MAX {
        fields.fault("capabilities", format!("must have at most {CAPABILITIES_BYTES_MAX} bytes"));
    }
    text
}

fn actors(fields: &mut Fields<'_>, list: &[Value]) -> Vec<ActorSent> {
    let mut actors: Vec<ActorSent> = Vec::new();
    for (at, value) in list.iter().enumerate() {
        let mut part = Fields::entry(value, "actors", at);
        let external_id = part.word("external_id", DAEMON_ID_CHARS_MAX);
        let name = part.word("name", NAME_CHARS_MAX);
        let description = part.opt_text("description", DESCRIPTION_CHARS_MAX).unwrap_or_default();
        if actors.iter().any(|known| known.external_id == external_id) {
            part.fault("external_id", "is there twice");
        }
        actors.push(fields.take(part.done(ActorSent { external_id, name, description })));
    }
    actors
}

/// `POST /heartbeat`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Which machine.
    pub daemon_id: String,
}

impl Heartbeat {
    /// Reads the body.
    pub fn parse(body: &Value) -> Result<Self, Faults> {
        let mut fields = Fields::of(body);
        let daemon_id = fields.word("daemon_id", DAEMON_ID_CHARS_MAX);
        fields.done(Self { daemon_id })
    }
}

/// `POST /tasks/claim`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Which machine.
    pub daemon_id: String,
    /// How long the answer may wait for work; for clients with `long_poll`.
    pub wait_seconds: u64,
    /// The same word again gives the same task and lease.
    pub request_id: Option<String>,
}

impl Claim {
    /// Reads the body.
    pub fn parse(body: &Value) -> Result<Self, Faults> {
        let mut fields = Fields::of(body);
        let daemon_id = fields.word("daemon_id", DAEMON_ID_CHARS_MAX);
        let wait = fields.opt_int("wait_seconds", 0..=86_400).unwrap_or(0);
        let request_id = fields.opt_word("request_id", REQUEST_ID_CHARS_MAX);
        let wait_seconds = u64::try_from(wait).unwrap_or(0).min(WAIT_SECONDS_MAX);
        fields.done(Self { daemon_id, wait_seconds, request_id })
    }
}

/// `POST /tasks/{id}/messages`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Messages {
    /// 1 to 200 lines, as they came.
    pub lines: Vec<Line>,
}

/// A line of output.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Line {
    /// Its number, from 1.
    pub seq: u64,
    /// `assistant`, `user`, `tool_use`, `tool_result`, `system`, `stderr` or another word.
    pub kind: String,
    /// Its text, cut when it was too long.
    pub content: Option<String>,
    /// Which tool.
    pub tool: Option<String>,
    /// JSON.
    pub payload: Option<String>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("seq", &self.seq)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// A batch as it usually comes, read without a tree of values. What stands beside it was not looked at for doubled
/// fields and depth, so there must be nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessagesSent<'a> {
    #[serde(borrow)]
    messages: Vec<Object<LineSent<'a>>>,
}

/// What must be an object: a derived reader takes the list of its fields, too.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OfObject(PhantomData)).map(Self)
    }
}

struct OfObject<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OfObject<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

#[derive(Deserialize)]
struct LineSent<'a> {
    seq: i64,
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    tool: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    payload: Option<&'a RawValue>,
}

impl LineSent<'_> {
    fn is_sound(&self) -> bool {
        let is_text =
            |text: &Option<Cow<'_, str>>| !text.as_ref().is_some_and(|it| it.contains('\0'));
        (1..=SEQ_MAX).contains(&self.seq)
            && !self.kind.is_empty()
            && self.kind.chars().count() <= TYPE_CHARS_MAX
            // The careful reader takes the picture of a NUL for one.
            && !self.kind.contains(|c: char| c.is_control() || c == '\u{2400}')
            && is_text(&self.content)
            && is_text(&self.tool)
    }
}

impl Messages {
    /// Reads a body that is sound and usual, fast; `None` for any other, which [`parse`](Self::parse) judges.
    pub fn read(body: &[u8]) -> Option<Self> {
        // Parsers of bytes look only at the texts that they keep.
        let body = std::str::from_utf8(body).ok()?;
        let sent: Object<MessagesSent<'_>> = serde_json::from_str(body).ok()?;
        let Object(MessagesSent { messages }) = sent;
        let is_sound = (1..=LINES_MAX).contains(&messages.len())
            && messages.iter().all(|Object(line)| line.is_sound());
        if !is_sound {
            return None;
        }
        let line = |Object(line): Object<LineSent<'_>>| Line {
            seq: u64::try_from(line.seq).unwrap_or(1),
            kind: line.kind.into_owned(),
            content: line.content.map(|content| cut(content.into_owned())),
            tool: line.tool.map(|tool| cut_chars(tool.into_owned(), TOOL_CHARS_MAX)),
            payload: line.payload.map(|payload| mended(payload.get())),
        };
        Some(Self { lines: messages.into_iter().map(line).collect() })
    }

    /// Reads the body. A line is refused only when nobody could say which one it is: refusing its batch would
    /// block what comes after it for ever.
    pub fn parse(body: &Value) -> Result<Self, Faults> {
        let mut fields = Fields::of(body);
        let mut lines = Vec::new();
        for (at, value) in fields.list("messages", LINES_MAX).iter().enumerate() {
            let mut part = Fields::entry(value, "messages", at);
            let seq = part.int("seq", 1..=SEQ_MAX);
            let kind = part.word("type", TYPE_CHARS_MAX);
            let content = part.opt_text("content", usize::MAX).map(cut);
            let tool =
                part.opt_text("tool", usize::MAX).map(|tool| cut_chars(tool, TOOL_CHARS_MAX));
            let payload = part.value("payload").map(|payload| mended(&payload.to_string()));
            let seq = u64::try_from(seq).unwrap_or(1);
            lines.push(fields.take(part.done(Line { seq, kind, content, tool, payload })));
        }
        fields.done(Self { lines })
    }
}

/// A line's payload as it is kept.
fn mended(payload: &str) -> String {
    json::mend(payload, PAYLOAD_NESTED_MAX).into_owned()
}

/// Cuts a text that is too long, at a character, with a mark.
fn cut(mut text: String) -> String {
    if text.len() > CONTENT_BYTES_MAX {
        let mut end = CONTENT_BYTES_MAX - CUT_MARK.len();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(CUT_MARK);
    }
    text
}

/// Cuts a text to so many characters.
fn cut_chars(text: String, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned(),
        None => text,
    }
}

/// `POST /tasks/{id}/session`, and part of `complete`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Session {
    /// The CLI's id.
    pub session_id: Option<String>,
    /// The directory on the machine.
    pub work_dir: Option<String>,
}

impl Session {
    /// Reads the body; one of the two must be there.
    pub fn parse(body: &Value) -> Result<Self, Faults> {
        let mut fields = Fields::of(body);
        let session = Self::read(&mut fields);
        // What is there and wrong has its fault already.
        let has_one = ["session_id", "work_dir"].iter().any(|name| fields.value(name).is_some());
        if session == Self::default() && !has_one {
            fields.fault("session_id", "or work_dir is required");
        }
        fields.done(session)
    }

    fn read(fields: &mut Fields<'_>) -> Self {
        Self {
            session_id: fields
                .opt_text("session_id", SESSION_CHARS_MAX)
                .filter(|it| !it.is_empty()),
            work_dir: fields.opt_text("work_dir", WORK_DIR_CHARS_MAX).filter(|it| !it.is_empty()),
        }
    }
}

/// What a run used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens in.
    pub input_tokens: Option<i64>,
    /// Tokens out.
    pub output_tokens: Option<i64>,
    /// Tokens read from a cache.
    pub cached_tokens: Option<i64>,
    /// Tokens written to a cache.
    pub cache_write_tokens: Option<i64>,
    /// Millionths of a dollar.
    pub cost_micros: Option<i64>,
}

/// `POST /tasks/{id}/complete`
#[derive(Clone, PartialEq, Eq)]
pub struct Complete {
    /// As it came: JSON.
    pub result: String,
    /// The agent's last message.
    pub summary: Option<String>,
    /// The server judges each.
    pub artifacts: Value,
    /// What it used, if it said so.
    pub usage: Option<Usage>,
    /// Where it can be resumed.
    pub session: Session,
    /// What could not be kept, and why; says nothing of what was sent.
    pub left_out: Vec<String>,
}

impl fmt::Debug for Complete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Complete")
            .field("usage", &self.usage)
            .field("left_out", &self.left_out)
            .finish_non_exhaustive()
    }
}

/// The one field of a completion that is kept as it came.
#[derive(Deserialize)]
struct CompleteSent<'a> {
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
}

impl Complete {
    /// Reads the body, of which `text` is the text. Whatever is odd in it is left out, not refused: that would lose
    /// a run which has done its work.
    pub fn parse(body: &Value, text: &str) -> Result<Self, Faults> {
        Fields::of(body).done(())?;
        let mut left_out = Vec::new();
        let mut fields = Fields::of(body);
        let session = Session::read(&mut fields);
        if let Err(faults) = fields.done(()) {
            left_out.push(faults.to_sentence());
        }
        let empty = Value::Object(serde_json::Map::new());
        let result = body.get("result").filter(|it| !it.is_null()).unwrap_or(&empty);
        let summary = result.get("summary").and_then(Value::as_str);
        let summary = summary.map(|it| it.replace('\0', "\u{2400}"));
        let artifacts = result.get("artifacts").cloned().unwrap_or(Value::Null);
        let usage = result.get("usage").filter(|usage| !usage.is_null());
        let usage = usage.and_then(|usage| read_usage(usage, &mut left_out));
        // A key that is no text is not understood here; it was mended in `body`.
        let as_it_came =
            serde_json::from_str::<CompleteSent<'_>>(text).ok().and_then(|it| it.result);
        let result = as_it_came.map_or_else(|| result.to_string(), |it| it.get().to_owned());
        let summary = summary.filter(|text| !text.trim().is_empty());
        Ok(Self { result, summary, artifacts, usage, session, left_out })
    }
}

fn read_usage(usage: &Value, left_out: &mut Vec<String>) -> Option<Usage> {
    let mut fields = Fields::within(usage, "result.usage");
    let mut counter = |name: &str| fields.opt_int(name, 0..=i64::MAX);
    let usage = Usage {
        input_tokens: counter("input_tokens"),
        output_tokens: counter("output_tokens"),
        cached_tokens: counter("cached_tokens"),
        cache_write_tokens: counter("cache_write_tokens"),
        cost_micros: counter("cost_micros"),
    };
    if let Err(faults) = fields.done(()) {
        left_out.push(faults.to_sentence());
    }
    (usage != Usage::default()).then_some(usage)
}

/// `POST /tasks/{id}/fail`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fail {
    /// What went wrong.
    pub error: String,
    /// May be tried again.
    pub retryable: bool,
    /// The machine gave it back without a fault of the task.
    pub handed_back: bool,
    /// Not before: a usage limit. RFC 3339, as it came; what is no text is empty.
    pub not_before: Option<String>,
}

impl Fail {
    /// Reads the body.
    pub fn parse(body: &Value) -> Result<Self, Faults> {
        let mut fields = Fields::of(body);
        let error = fields.opt_text("error", usize::MAX);
        let error = cut_chars(error.unwrap_or_default(), ERROR_CHARS_MAX);
        let retryable = fields.opt_bool("retryable").unwrap_or(false);
        let reason = fields.opt_text("reason", NAME_CHARS_MAX);
        let handed_back = reason.as_deref() == Some("handed_back");
        let not_before = fields.value("not_before");
        let not_before = not_before.map(|it| it.as_str().unwrap_or_default().to_owned());
        fields.done(Self { error, retryable, handed_back, not_before })
    }
}

/// `POST /tasks/{id}/await`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Await {
    /// `approval` or `input`.
    pub waiting_for: String,
    /// In the agent's words.
    pub summary: String,
}

impl Await {
    /// Reads the body.
    pub fn parse(body: &Value) -> Result<Self, Faults> {
        let mut fields = Fields::of(body);
        let waiting_for = fields.text("waiting_for", NAME_CHARS_MAX);
        if !matches!(waiting_for.as_str(), "" | "approval" | "input") {
            fields.fault("waiting_for", "must be approval or input");
        }
        let summary = cut_chars(fields.text("summary", usize::MAX), ERROR_CHARS_MAX);
        fields.done(Self { waiting_for, summary })
    }
}

/// `POST /tasks/{id}/resume`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The machine that ran it.
    pub daemon_id: String,
    /// The same word again gives the same lease.
    pub request_id: Option<String>,
}

impl Resume {
    /// Reads the body.
    pub fn parse(body: &Value) -> Result<Self, Faults> {
        let mut fields = Fields::of(body);
        let daemon_id = fields.word("daemon_id", DAEMON_ID_CHARS_MAX);
        let request_id = fields.opt_word("request_id", REQUEST_ID_CHARS_MAX);
        fields.done(Self { daemon_id, request_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_machines_send_and_are_given_is_not_shown_by_debug() {
        let line = r#"[{"seq":1,"type":"tool_use","tool":"hunter2","content":"hunter2","payload":{"a":"hunter2"}}]"#;
        let messages = Messages::read(format!(r#"{{"messages":{line}}}"#).as_bytes()).unwrap();
        let complete = serde_json::json!({ "result": { "summary": "hunter2",
            "artifacts": [{ "url": "https://hunter2@a.example" }] } });
        let complete = Complete::parse(&complete, "hunter2").unwrap();
        let agent = serde_json::json!({ "id": 1, "name": "Freya", "provider": "p", "command": "c",
            "model": null, "instructions": "hunter2", "custom_env": { "A": "hunter2" },
            "custom_args": ["hunter2"], "mcp_config": { "a": "hunter2" } });
        let agent: crate::lease::Agent = serde_json::from_value(agent).unwrap();
        let resumed = crate::lease::Resumed {
            status: "running".to_owned(),
            lease_token: "hunter2".to_owned(),
            lease_expires_at: None,
            cancel_requested: false,
        };
        let envelope = serde_json::json!({ "id": "01k", "status": "dispatched", "lease_expires_at": null,
            "lease_token": "hunter2", "session_id": null, "work_dir": null, "agent": agent,
            "workspace": { "slug": "acme", "context": "hunter2", "repositories": [] },
            "issue": { "identifier": "ACME-1", "title": "hunter2", "description": "hunter2",
                "acceptance_criteria": [] }, "harness": [], "skills": [], "context": {} });
        let envelope: crate::lease::Envelope = serde_json::from_value(envelope).unwrap();
        let shown = format!("{messages:?} {complete:?} {agent:?} {resumed:?} {envelope:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("tool_use") && shown.contains("Freya") && shown.contains("01k"));
    }

    /// Both ways of reading give the same, or only the slow one gives anything.
    fn same(body: &str) -> bool {
        let value: Value = serde_json::from_str(body).unwrap();
        match (Messages::read(body.as_bytes()), Messages::parse(&value)) {
            (Some(fast), Ok(slow)) => fast == slow,
            (None, _) => true,
            (Some(_), Err(_)) => false,
        }
    }

    #[test]
    fn f_071_the_fast_reader_reads_what_the_careful_one_reads() {
        let usual = r#"{"messages":[{"seq":1,"type":"assistant","content":"a\nb"},
            {"seq":2,"type":"tool_use","tool":"Bash","payload":{"command":"ls"},"more":1}]}"#;
        let read = Messages::read(usual.as_bytes()).unwrap();
        assert_eq!(read.lines.len(), 2);
        assert_eq!(read.lines[0].content.as_deref(), Some("a\nb"));
        assert_eq!(read.lines[1].payload.as_deref(), Some(r#"{"command":"ls"}"#));
        let long = format!(
            r#"{{"messages":[{{"seq":1,"type":"x","content":"{}"}}]}}"#,
            "é".repeat(40_000)
        );
        for body in [usual, &long, r#"{"messages":[{"seq":1,"type":"x","content":null}]}"#] {
            assert!(same(body), "{body}");
        }
    }

    #[test]
    fn f_070_what_is_wrong_or_unusual_is_left_to_the_careful_reader() {
        for body in [
            r#"{"messages":[]}"#,
            r#"{}"#,
            r#"{"messages":[{"seq":0,"type":"x"}]}"#,
            r#"{"messages":[{"seq":1,"type":""}]}"#,
            r#"{"messages":[{"seq":1,"type":"a\u0007"}]}"#,
            r#"{"messages":[{"seq":1.5,"type":"x"}]}"#,
            r#"{"messages":[{"seq":1,"type":"x","content":5}]}"#,
            r#"{"messages":[{"seq":1,"type":"x","content":"a\u0000b"}]}"#,
            r#"{"messages":[{"seq":1,"type":"␀"}]}"#,
            r#"[[{"seq":1,"type":"x"}]]"#,
            r#"{"messages":[[1,"x",null,null,{}]]}"#,
            r#"{"messages":[{"seq":1,"type":"x"}],"more":1,"more":2}"#,
        ] {
            assert_eq!(Messages::read(body.as_bytes()), None, "{body}");
        }
        let no_text = b"{\"messages\":[{\"seq\":1,\"type\":\"x\",\"more\":\"\xff\"}]}";
        assert_eq!(Messages::read(no_text), None);
        let nul = r#"{"messages":[{"seq":1,"type":"x","content":"a\u0000b"}]}"#;
        let careful = Messages::parse(&serde_json::from_str(nul).unwrap()).unwrap();
        assert_eq!(careful.lines[0].content.as_deref(), Some("a\u{2400}b"));
    }

    #[test]
    fn f_071_both_readers_keep_an_odd_line_alike() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for line in [
            format!(r#""tool":"{}""#, "é".repeat(300)),
            format!(r#""payload":{}"#, nested(200)),
            // A parser takes it as it is, and it is too deep for whom it is shown.
            format!(r#""payload":{}"#, nested(PAYLOAD_NESTED_MAX + 1)),
            r#""payload":{"a":"\ud800","b":1e400}"#.to_owned(),
        ] {
            let body = format!(r#"{{"messages":[{{"seq":1,"type":"x",{line}}}]}}"#);
            let fast = Messages::read(body.as_bytes()).unwrap();
            let value = serde_json::from_str(&body)
                .or_else(|_| serde_json::from_str(&json::mend(&body, json::NESTED_MAX)))
                .unwrap();
            assert_eq!(
                Messages::parse(&value).map(|it| it.lines[0].tool.clone()),
                Ok(fast.lines[0].tool.clone())
            );
            let slow = Messages::parse(&value).unwrap();
            let payload = |it: &Messages| {
                let text = it.lines[0].payload.clone();
                text.map(|text| serde_json::from_str::<Value>(&text).unwrap())
            };
            assert_eq!(payload(&fast), payload(&slow), "{line}");
        }
    }
}
