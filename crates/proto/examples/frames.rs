//! What the runtime protocol looks like on the wire, without a socket: a client's first frames on one side,
//! a large event cut into chunks and joined again on the other.
//!
//! Run with `cargo run -p ostler-proto --example frames`.

use std::error::Error;
use std::io::{self, Write};

use ostler_proto::framed::{
    Assembler, ChunkKind, ClientMessage, Command, EVENT_TASK_CHANGED, Event, FRAME_BYTES_MAX,
    FRAME_BYTES_MIN, Hello, PROTOCOL_VERSION, ServerMessage, Submit, encode_event, encode_into,
    read_frame,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();

    // A client: hello, then a command.
    let hello = Hello {
        client_id: "frames-example".into(),
        versions: vec![PROTOCOL_VERSION.into()],
        resume_after: None,
    };
    let submit = Command::Submit(Submit {
        task_id: "inspect-1".into(),
        prompt: "Describe the top-level files.".into(),
        cwd: "/absolute/path/to/project".into(),
        ..Submit::default()
    });
    let mut sent = Vec::new();
    encode_into(&mut sent, &ClientMessage::Hello(hello), FRAME_BYTES_MAX)?;
    encode_into(&mut sent, &ClientMessage::command("submit-1", &submit)?, FRAME_BYTES_MAX)?;

    // A daemon: read the frames, judge the command.
    let mut stream = sent.as_slice();
    while let Some(body) = read_frame(&mut stream, FRAME_BYTES_MAX)? {
        match ClientMessage::parse(&body)? {
            ClientMessage::Command { id, command } => {
                writeln!(out, "command {id}: {:?}", Command::parse(&command))?;
            }
            other => writeln!(out, "{other:?}")?,
        }
    }

    // An event from a payload that is JSON already, with frames so small that it takes several.
    let payload = format!(r#"{{"logTail":["{}"]}}"#, "läuft ".repeat(500));
    let mut sent = Vec::new();
    encode_event(&mut sent, 43, EVENT_TASK_CHANGED, &payload, FRAME_BYTES_MIN)?;

    // A client: join the chunks; only the whole is JSON.
    let mut stream = sent.as_slice();
    let mut assembler = Assembler::default();
    while let Some(body) = read_frame(&mut stream, FRAME_BYTES_MIN)? {
        let message = ServerMessage::parse(&body)?;
        let ServerMessage::EventChunk { sequence, chunk_index, chunk_count, event_data } = message
        else {
            continue;
        };
        writeln!(out, "chunk {chunk_index} of {chunk_count}")?;
        let kind = ChunkKind::Event;
        let joined = assembler.push(kind, sequence, chunk_index, chunk_count, &event_data)?;
        if let Some(document) = joined {
            let event = Event::parse(&document)?;
            let bytes = event.payload.get().len();
            writeln!(out, "{} {}: {bytes} bytes", event.event_type, event.sequence_number)?;
        }
    }
    Ok(())
}
