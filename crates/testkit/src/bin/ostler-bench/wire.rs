//! A plain client that blocks, for everything that is not load.

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ostler_proto::framed::{FRAME_BYTES_MAX, read_frame};
use serde_json::{Value, json};

use crate::Fault;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Wire {
    stream: UnixStream,
    input: BufReader<UnixStream>,
    next_id: u64,
}

impl Wire {
    /// Connects and shakes hands.
    pub(crate) fn connect(socket: &Path) -> Result<Self, Fault> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let input = BufReader::with_capacity(256 * 1024, stream.try_clone()?);
        let mut wire = Self { stream, input, next_id: 0 };
        wire.send(&json!({"type": "hello", "hello":
            {"clientId": "bench", "versions": [3], "resumeAfter": null}}))?;
        match wire.message()? {
            welcome if welcome["type"] == "welcome" => Ok(wire),
            other => Err(format!("no welcome but {other}").into()),
        }
    }

    /// Connects as soon as somebody serves there.
    pub(crate) fn connect_soon(socket: &Path) -> Result<Self, Fault> {
        let until = Instant::now() + PATIENCE;
        loop {
            match Self::connect(socket) {
                Ok(wire) => return Ok(wire),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    /// One frame of the client.
    pub(crate) fn send(&mut self, message: &Value) -> Result<(), Fault> {
        Ok(self.stream.write_all(&encode(message.to_string().as_bytes())?)?)
    }

    /// The frame of a command, ready to be written, and its id.
    pub(crate) fn frame(&mut self, command: &Value) -> Result<(Vec<u8>, String), Fault> {
        self.next_id += 1;
        let id = self.next_id.to_string();
        let message = json!({"type": "command", "id": id, "command": command});
        Ok((encode(message.to_string().as_bytes())?, id))
    }

    pub(crate) fn write(&mut self, frame: &[u8]) -> Result<(), Fault> {
        Ok(self.stream.write_all(frame)?)
    }

    /// The next message; heartbeats are answered.
    pub(crate) fn message(&mut self) -> Result<Value, Fault> {
        loop {
            let body = read_frame(&mut self.input, FRAME_BYTES_MAX)?;
            let body = body.ok_or("the daemon closed the connection")?;
            let message: Value = serde_json::from_slice(&body)?;
            if message["type"] != "heartbeat" {
                return Ok(message);
            }
            self.send(&json!({"type": "pong", "sequence": message["sequence"]}))?;
        }
    }

    /// Sends a command and waits for its result; other messages are left out.
    pub(crate) fn call(&mut self, command: &Value) -> Result<Value, Fault> {
        let (frame, id) = self.frame(command)?;
        self.write(&frame)?;
        loop {
            let message = self.message()?;
            if message["type"] == "command_result" && message["id"] == id.as_str() {
                return match message["ok"].as_bool() {
                    Some(true) => Ok(message["result"].clone()),
                    _ => Err(format!("{command} was refused: {}", message["error"]).into()),
                };
            }
        }
    }

    /// Waits for the event that shows `task` settled; its payload.
    pub(crate) fn until_settled(&mut self, task: &str) -> Result<Value, Fault> {
        loop {
            let message = self.message()?;
            let payload = &message["event"]["payload"];
            let settled = payload["taskId"] == task
                && payload["status"] != "TaskQueued"
                && payload["status"] != "TaskRunning";
            if settled {
                return Ok(payload.clone());
            }
        }
    }
}

/// Four bytes of length, and the body.
pub(crate) fn encode(body: &[u8]) -> Result<Vec<u8>, Fault> {
    Ok(ostler_proto::framed::encode(body, FRAME_BYTES_MAX)?)
}

/// The submission of a program.
pub(crate) fn submit_program(task: &str, argv: &[&str]) -> Value {
    json!({"version": 1, "type": "submit", "task_id": task, "prompt": "bench: run it", "cwd": "/",
        "agent": "command", "argv": argv, "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}})
}
