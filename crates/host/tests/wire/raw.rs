//! A client that knows frames and JSON and nothing else.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// No test waits longer for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

/// The largest frame (R-21).
pub(crate) const FRAME_BYTES_MAX: usize = 1_048_576;

/// Keeps asking until there is an answer.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Four bytes of length, then the bytes (R-20).
pub(crate) fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_be_bytes(), body].concat()
}

pub(crate) struct Raw {
    stream: UnixStream,
    /// Messages that came while something else was waited for.
    kept: VecDeque<Value>,
    next_id: u64,
    /// Every byte that ever came.
    pub(crate) received: Vec<u8>,
    /// The bodies' lengths.
    pub(crate) lengths: Vec<usize>,
}

impl Raw {
    /// Connects and says nothing.
    pub(crate) fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self {
            stream,
            kept: VecDeque::new(),
            next_id: 0,
            received: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// Connects, shakes hands, and checks the welcome.
    pub(crate) fn hello(socket: &Path, resume_after: Option<u64>) -> (Self, u64) {
        let mut raw = Self::connect(socket);
        raw.send(&hello(resume_after));
        let current = raw.welcome();
        (raw, current)
    }

    /// The newest sequence that the welcome names, checked.
    pub(crate) fn welcome(&mut self) -> u64 {
        let welcome = self.message().expect("a welcome");
        assert_eq!(welcome["type"], "welcome", "{welcome}");
        assert_eq!(welcome["welcome"]["version"], 3);
        welcome["welcome"]["currentSequence"].as_u64().unwrap()
    }

    /// Whether all of it could be sent; the other side may have closed.
    pub(crate) fn try_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    #[track_caller]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    #[track_caller]
    pub(crate) fn text(&mut self, body: &str) {
        self.bytes(&frame(body.as_bytes()));
    }

    #[track_caller]
    pub(crate) fn send(&mut self, message: &Value) {
        self.text(&message.to_string());
    }

    /// Another handle to the same socket.
    pub(crate) fn stream(&self) -> UnixStream {
        self.stream.try_clone().unwrap()
    }

    /// Fills `buffer`; `false` when the connection ended before its first byte.
    fn fill(&mut self, buffer: &mut [u8]) -> bool {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.stream.read(&mut buffer[filled..]) {
                Ok(0) => {
                    assert_eq!(filled, 0, "the connection ended inside of a frame");
                    return false;
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("nothing came in time: {error}"),
            }
        }
        self.received.extend_from_slice(buffer);
        true
    }

    /// One frame's body; `None` when the connection has ended.
    pub(crate) fn body(&mut self) -> Option<Vec<u8>> {
        let mut header = [0; 4];
        if !self.fill(&mut header) {
            return None;
        }
        let length = u32::from_be_bytes(header) as usize;
        assert!((1..=FRAME_BYTES_MAX).contains(&length), "R-23: a frame of {length} bytes");
        let mut body = vec![0; length];
        assert!(self.fill(&mut body), "a frame without its body");
        self.lengths.push(length);
        Some(body)
    }

    /// The next message, kept ones first; `None` when the connection has ended.
    pub(crate) fn message(&mut self) -> Option<Value> {
        match self.kept.pop_front() {
            Some(message) => Some(message),
            None => self.fresh(),
        }
    }

    fn fresh(&mut self) -> Option<Value> {
        let body = self.body()?;
        let text = std::str::from_utf8(&body).expect("UTF-8");
        Some(serde_json::from_str(text).expect("JSON"))
    }

    /// The first message for which `wanted` holds; the others are kept.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.kept.iter().position(&wanted) {
            return self.kept.remove(at).unwrap();
        }
        let until = Instant::now() + DEADLINE;
        loop {
            // Heartbeats alone would go on for ever.
            assert!(Instant::now() < until, "what was waited for did not come");
            let message = self.fresh().expect("the connection ended");
            if message["type"] == "heartbeat" {
                self.send(&json!({"type": "pong", "sequence": message["sequence"]}));
            }
            if wanted(&message) {
                return message;
            }
            self.kept.push_back(message);
        }
    }

    /// What came and has not been taken.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Value> {
        self.kept.iter()
    }

    /// Sends a command; its id.
    pub(crate) fn command(&mut self, command: &Value) -> String {
        self.command_text(&command.to_string())
    }

    /// The same with the command's text as it is.
    pub(crate) fn command_text(&mut self, command: &str) -> String {
        self.next_id += 1;
        let id = format!("{}", self.next_id);
        self.text(&format!(r#"{{"type":"command","id":"{id}","command":{command}}}"#));
        id
    }

    /// The result of the command with that id, checked for its shape (R-46).
    #[track_caller]
    pub(crate) fn result(&mut self, id: &str) -> Result<Value, String> {
        let message = self.until(|it| it["type"] == "command_result" && it["id"] == id);
        let keys: Vec<_> = message.as_object().unwrap().keys().cloned().collect();
        for key in ["type", "id", "ok", "error", "result"] {
            assert!(keys.iter().any(|it| it == key), "R-46: {key} in {message}");
        }
        match (&message["ok"], &message["error"], &message["result"]) {
            (Value::Bool(true), Value::Null, result) => {
                assert_eq!(result["version"], 1, "R-48: {message}");
                Ok(result.clone())
            }
            (Value::Bool(false), Value::String(error), Value::Null) => {
                assert!(!error.is_empty(), "{message}");
                Err(error.clone())
            }
            _ => panic!("R-46: {message}"),
        }
    }

    #[track_caller]
    pub(crate) fn call(&mut self, command: &Value) -> Result<Value, String> {
        let id = self.command(command);
        self.result(&id)
    }

    #[track_caller]
    pub(crate) fn call_text(&mut self, command: &str) -> Result<Value, String> {
        let id = self.command_text(command);
        self.result(&id)
    }

    /// The live tasks.
    #[track_caller]
    pub(crate) fn list(&mut self) -> Vec<Value> {
        let list = self.call(&json!({"version": 1, "type": "list"})).unwrap();
        list["tasks"].as_array().unwrap().clone()
    }

    /// One of them.
    #[track_caller]
    pub(crate) fn task(&mut self, task: &str) -> Value {
        let found = self.list().into_iter().find(|it| it["taskId"] == task);
        found.unwrap_or_else(|| panic!("{task} is not listed"))
    }

    #[track_caller]
    pub(crate) fn submit(&mut self, task: &str) -> Result<Value, String> {
        self.call(&submit(task))
    }

    #[track_caller]
    pub(crate) fn on(&mut self, kind: &str, task: &str) -> Result<Value, String> {
        self.call(&on(kind, task))
    }

    /// Reads on until the connection ends; the messages before that.
    #[track_caller]
    pub(crate) fn end(&mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        let until = Instant::now() + DEADLINE;
        while let Some(message) = self.message() {
            assert!(Instant::now() < until, "it was not closed");
            messages.push(message);
        }
        messages
    }

    /// Waits until `list` shows the task with that status.
    #[track_caller]
    pub(crate) fn until_status(&mut self, task: &str, status: &str) -> Value {
        let mut last = Value::Null;
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            last = self.task(task);
            if last["status"] == status {
                return last;
            }
        }
        panic!("{task} is not {status}: {last}");
    }
}

pub(crate) fn hello(resume_after: Option<u64>) -> Value {
    json!({"type": "hello", "hello": {
        "clientId": "raw", "versions": [3], "resumeAfter": resume_after
    }})
}

pub(crate) fn submit(task: &str) -> Value {
    json!({
        "version": 1, "type": "submit", "task_id": task, "prompt": "do it", "cwd": "/work"
    })
}

pub(crate) fn on(kind: &str, task: &str) -> Value {
    json!({"version": 1, "type": kind, "task_id": task})
}
