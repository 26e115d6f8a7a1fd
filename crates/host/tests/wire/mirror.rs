//! A client that keeps what it is told, and checks that nothing is missing, doubled or out of order.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::raw::{DEADLINE, Raw, hello};

/// A document that comes in slices.
#[derive(Default)]
struct Slices {
    sequence: u64,
    count: u64,
    pieces: Vec<Vec<u8>>,
}

/// What a client knows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Known {
    /// The newest sequence that was applied.
    pub(crate) last: u64,
    pub(crate) tasks: BTreeMap<String, Value>,
}

pub(crate) struct Mirror {
    pub(crate) raw: Raw,
    pub(crate) known: Known,
    /// What the welcome said.
    pub(crate) current: u64,
    /// Each event, as it came: its sequence, its type and its payload.
    pub(crate) events: Vec<(u64, String, Value)>,
    pub(crate) snapshots: usize,
    /// Events that came in slices.
    pub(crate) sliced: usize,
    pub(crate) beats: usize,
    slices: Option<Slices>,
}

impl Mirror {
    /// Connects. With something known it resumes, else it starts from a snapshot.
    pub(crate) fn connect(socket: &Path, known: Option<Known>) -> Self {
        let mut raw = Raw::connect(socket);
        raw.send(&hello(known.as_ref().map(|known| known.last)));
        Self::greeted(raw, known)
    }

    /// A connection that has said hello with that, and waits for its welcome.
    pub(crate) fn greeted(mut raw: Raw, known: Option<Known>) -> Self {
        let current = raw.welcome();
        Self {
            raw,
            known: known.unwrap_or_default(),
            current,
            events: Vec::new(),
            snapshots: 0,
            sliced: 0,
            beats: 0,
            slices: None,
        }
    }

    /// Takes one message; `false` when the connection has ended.
    #[track_caller]
    pub(crate) fn take(&mut self) -> bool {
        let Some(message) = self.raw.message() else {
            return false;
        };
        let document = match message["type"].as_str().unwrap() {
            "heartbeat" => {
                let sequence = message["sequence"].clone();
                self.beats += 1;
                self.raw.send(&json!({"type": "pong", "sequence": sequence}));
                return true;
            }
            "event" => return self.event(&message["event"]),
            "snapshot_chunk" => self.slice(&message, "snapshot_data"),
            "event_chunk" => self.slice(&message, "event_data"),
            "command_result" => return true,
            other => panic!("{other} after the handshake"),
        };
        let Some(document) = document else {
            return true;
        };
        let value: Value = serde_json::from_slice(&document).expect("one JSON document");
        if message["type"] == "event_chunk" {
            self.sliced += 1;
            assert_eq!(value["sequenceNumber"], message["sequence"]);
            return self.event(&value);
        }
        assert_eq!(value["lastSequence"], message["sequence"]);
        self.snapshot(value);
        true
    }

    fn slice(&mut self, message: &Value, data: &str) -> Option<Vec<u8>> {
        let number = |key: &str| message[key].as_u64().unwrap();
        let slices = self.slices.get_or_insert_with(|| Slices {
            sequence: number("sequence"),
            count: number("chunk_count"),
            pieces: Vec::new(),
        });
        assert_eq!(slices.sequence, number("sequence"), "R-31");
        assert_eq!(slices.count, number("chunk_count"), "R-31");
        assert_eq!(slices.pieces.len() as u64, number("chunk_index"), "R-31");
        let piece = STANDARD.decode(message[data].as_str().unwrap()).unwrap();
        slices.pieces.push(piece);
        if (slices.pieces.len() as u64) < slices.count {
            return None;
        }
        self.slices.take().map(|slices| slices.pieces.concat())
    }

    fn snapshot(&mut self, mut snapshot: Value) {
        self.snapshots += 1;
        self.known.last = snapshot["lastSequence"].as_u64().unwrap();
        let tasks = snapshot["tasks"].take();
        let Value::Object(tasks) = tasks else { panic!("tasks of a snapshot: {tasks}") };
        self.known.tasks = tasks.into_iter().collect();
        for (id, task) in &self.known.tasks {
            assert_eq!(task["taskId"], **id);
        }
    }

    #[track_caller]
    fn event(&mut self, event: &Value) -> bool {
        let sequence = event["sequenceNumber"].as_u64().unwrap();
        assert_eq!(sequence, self.known.last + 1, "R-36: an event is missing or came twice");
        self.known.last = sequence;
        let kind = event["eventType"].as_str().unwrap().to_owned();
        let payload = event["payload"].clone();
        match kind.as_str() {
            "task_changed" => {
                let id = payload["taskId"].as_str().unwrap().to_owned();
                self.known.tasks.insert(id, payload.clone());
            }
            "scheduler_limit_changed" => assert_eq!(payload["version"], 1),
            other => panic!("an event of type {other}"),
        }
        self.events.push((sequence, kind, payload));
        true
    }

    /// Takes messages until this holds.
    #[track_caller]
    pub(crate) fn until(&mut self, wanted: impl Fn(&Known) -> bool) {
        let until = Instant::now() + DEADLINE;
        while !wanted(&self.known) {
            assert!(Instant::now() < until, "what was waited for did not come");
            assert!(self.take(), "the connection ended");
        }
    }

    #[track_caller]
    pub(crate) fn until_sequence(&mut self, sequence: u64) {
        self.until(|known| known.last >= sequence);
    }

    #[track_caller]
    pub(crate) fn until_status(&mut self, task: &str, status: &str) {
        self.until(|known| known.tasks.get(task).is_some_and(|it| it["status"] == status));
    }

    /// Takes everything up to the first snapshot, which a client without a cursor gets.
    #[track_caller]
    pub(crate) fn opened(mut self) -> Self {
        while self.snapshots == 0 {
            assert!(self.take(), "the connection ended");
        }
        self
    }

    /// The statuses that a task went through, as far as they were told.
    pub(crate) fn statuses(&self, task: &str) -> Vec<&str> {
        let of_task = self.events.iter().filter(|it| it.2["taskId"] == task);
        of_task.map(|it| it.2["status"].as_str().unwrap()).collect()
    }
}
