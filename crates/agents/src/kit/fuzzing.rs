//! Entry points for fuzz targets and property tests: arbitrary bytes, no panic, and the same events
//! however the bytes are cut.

use ostler_core::outcome::Exit;

use super::agent::Agent;
use super::reader::{AgentEvent, Conclusion, Stream};
use crate::REGISTRY;

/// Reads `bytes` as the stdout of every agent, whole and in pieces as long as the first byte says,
/// and checks what no input may break.
pub fn fuzz_readers(bytes: &[u8]) {
    let piece = usize::from(bytes.first().copied().unwrap_or_default());
    for agent in REGISTRY {
        let whole = read(*agent, bytes, bytes.len());
        assert!(whole == read(*agent, bytes, piece), "{}: a cut shows", agent.id());
        for event in whole.0 {
            if let AgentEvent::Line(line) = event {
                assert!(line.len() <= crate::PIECE_BYTES_MAX && !line.contains('\n'));
            }
        }
    }
}

fn read(agent: &dyn Agent, bytes: &[u8], piece: usize) -> (Vec<AgentEvent>, Conclusion) {
    let (mut reader, mut events) = (agent.reader(), Vec::new());
    for piece in bytes.chunks(piece.max(1)) {
        reader.push(Stream::Stdout, piece, &mut events);
    }
    reader.finish_streams(&mut events);
    let conclusion = reader.conclude(Some(Exit::Code(0)), false);
    (events, conclusion)
}
