//! Entry points for fuzz targets and property tests: arbitrary bytes, no panic.

use ostler_core::outcome::Exit;

use super::reader::{AgentEvent, Conclusion, Stream};
use crate::REGISTRY;

/// Reads `bytes` with every agent, cut at the places the bytes themselves name, and checks what no
/// input may break.
pub fn fuzz_readers(bytes: &[u8]) {
    for index in 0..REGISTRY.len() {
        let (events, _) = read_whole(
            index,
            bytes,
            usize::from(bytes.first().copied().unwrap_or(7)),
        );
        for event in events {
            if let AgentEvent::Line(line) = event {
                assert!(line.len() <= crate::PIECE_BYTES_MAX && !line.contains('\n'));
            }
        }
    }
}

/// What the agent at `index` makes of one stdout, given in pieces of `piece` bytes.
pub fn read_whole(
    index: usize,
    bytes: &[u8],
    piece: usize,
) -> (Vec<AgentEvent>, Option<Conclusion>) {
    let Some(agent) = REGISTRY.get(index) else {
        return (Vec::new(), None);
    };
    let (mut reader, mut events) = (agent.reader(), Vec::new());
    for piece in bytes.chunks(piece.max(1)) {
        reader.push(Stream::Stdout, piece, &mut events);
    }
    reader.finish_streams(&mut events);
    let conclusion = reader.conclude(Some(Exit::Code(0)), false);
    (events, Some(conclusion))
}
