//! Frames and chunks at and around their bounds.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::io::{self, Read};

use ostler_proto::framed::chunk::chunk_count;
use ostler_proto::framed::{
    AssembleError, Assembler, ChunkKind, Event, FRAME_BYTES_MAX, FRAME_BYTES_MIN, FrameError,
    ReadError, ServerMessage, encode, encode_chunk, encode_event, encode_into, frame_len,
    read_frame, write_frame,
};
use proptest::prelude::*;

/// Hands out at most `step` bytes at a time.
struct Trickle<'a>(&'a [u8], usize);

impl Read for Trickle<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.len().min(to.len()).min(self.1);
        to[..bytes].copy_from_slice(&self.0[..bytes]);
        self.0 = &self.0[bytes..];
        Ok(bytes)
    }
}

/// Every frame in `out`, none of them above `max`.
fn bodies(out: &[u8], max: usize) -> Vec<Vec<u8>> {
    let mut rest = out;
    std::iter::from_fn(|| read_frame(&mut rest, max).unwrap()).collect()
}

/// What a client makes of frames that hold one event.
fn receive_event(out: &[u8], max: usize) -> (Event, usize) {
    let mut assembler = Assembler::default();
    let bodies = bodies(out, max);
    let mut found = None;
    for body in &bodies {
        assert!(found.is_none(), "nothing follows the event");
        found = match ServerMessage::parse(body).unwrap() {
            ServerMessage::Event { event } => Some(event),
            ServerMessage::EventChunk { sequence, chunk_index, chunk_count, event_data } => {
                assembler
                    .push(ChunkKind::Event, sequence, chunk_index, chunk_count, &event_data)
                    .unwrap()
                    .map(|document| Event::parse(&document).unwrap())
            }
            other => panic!("{other:?}"),
        };
    }
    (found.unwrap(), bodies.len())
}

#[test]
fn r_20_the_length_counts_bytes_not_characters() {
    let mut frame = Vec::new();
    encode_into(&mut frame, &"é😀", FRAME_BYTES_MAX).unwrap();
    assert_eq!(frame, [b"\0\0\0\x08\"".as_slice(), "é😀".as_bytes(), b"\""].concat());
}

#[test]
fn r_21_a_frame_of_exactly_the_maximum_is_read() {
    let body = vec![b' '; FRAME_BYTES_MAX];
    let frame = encode(&body, FRAME_BYTES_MAX).unwrap();
    assert_eq!(&frame[..4], b"\x00\x10\x00\x00");
    assert_eq!(read_frame(&mut frame.as_slice(), FRAME_BYTES_MAX).unwrap().unwrap(), body);
}

#[test]
fn r_22_lengths_0_and_above_the_maximum_are_refused_before_the_body() {
    assert_eq!(frame_len([0; 4], FRAME_BYTES_MAX), Err(FrameError::Empty));
    let too_large = FrameError::TooLarge { bytes: 1_048_577, max: FRAME_BYTES_MAX };
    assert_eq!(frame_len([0, 16, 0, 1], FRAME_BYTES_MAX), Err(too_large));
    assert!(frame_len([255; 4], FRAME_BYTES_MAX).is_err());
    for header in [[0, 0, 0, 0], [0, 16, 0, 1], [255; 4]] {
        let mut stream = [&header[..], b"body"].concat();
        let mut rest = stream.as_slice();
        assert!(matches!(read_frame(&mut rest, FRAME_BYTES_MAX), Err(ReadError::Frame(_))));
        assert_eq!(rest, b"body", "nothing of the body was taken");
        stream.clear();
    }
}

#[test]
fn r_23_nothing_empty_or_too_large_is_written() {
    let mut out = b"before".to_vec();
    assert_eq!(encode(b"", 8), Err(FrameError::Empty));
    let too_large = Err(FrameError::TooLarge { bytes: 9, max: 8 });
    assert_eq!(encode_into(&mut out, &"1234567", 8), too_large);
    let map = std::collections::BTreeMap::from([((1, 2), 3)]);
    assert_eq!(encode_into(&mut out, &map, 8), Err(FrameError::NotJson));
    assert_eq!(out, b"before");
    let error = write_frame(&mut out, b"123456789", 8).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(out, b"before");
}

#[test]
fn a_stream_that_ends_between_frames_ended_and_inside_one_broke() {
    let frame = encode(b"{}", FRAME_BYTES_MAX).unwrap();
    assert!(read_frame(&mut io::empty(), FRAME_BYTES_MAX).unwrap().is_none());
    for cut in 1..frame.len() {
        let read = read_frame(&mut &frame[..cut], FRAME_BYTES_MAX);
        assert!(matches!(read, Err(ReadError::Truncated)), "cut at {cut}");
    }
}

#[test]
fn r_38_an_event_is_chunked_exactly_when_its_frame_would_pass_the_maximum() {
    let bare = {
        let mut out = Vec::new();
        encode_event(&mut out, 7, "t", "\"\"", FRAME_BYTES_MAX).unwrap();
        out.len() - 4
    };
    for max in [FRAME_BYTES_MIN, 4096, FRAME_BYTES_MAX] {
        for (room, frames) in [(0, 1), (1, 2)] {
            let payload = format!("\"{}\"", "x".repeat(max - bare + room));
            let mut out = Vec::new();
            encode_event(&mut out, 7, "t", &payload, max).unwrap();
            let (event, count) = receive_event(&out, max);
            assert_eq!(count, frames, "max {max}, {room} over");
            assert_eq!((event.sequence_number, event.event_type.as_str()), (7, "t"));
            assert_eq!(event.payload.get(), payload);
        }
    }
}

#[test]
fn r_31_chunk_frames_fit_with_the_longest_numbers() {
    let document = vec![b'x'; 3 * FRAME_BYTES_MIN];
    let mut out = Vec::new();
    let count = chunk_count(document.len(), FRAME_BYTES_MIN);
    for index in 0..count {
        encode_chunk(&mut out, ChunkKind::Snapshot, u64::MAX, &document, index, FRAME_BYTES_MIN)
            .unwrap();
    }
    assert_eq!(bodies(&out, FRAME_BYTES_MIN).len(), count);
    let past = encode_chunk(&mut out, ChunkKind::Snapshot, 1, &document, count, FRAME_BYTES_MIN);
    assert_eq!(past, Err(FrameError::Empty));
}

#[test]
fn a_maximum_without_room_for_data_is_an_error_and_leaves_nothing() {
    let mut out = b"before".to_vec();
    assert!(encode_event(&mut out, 1, "t", "[1,2,3,4,5,6,7,8]", 32).is_err());
    assert_eq!(out, b"before");
}

#[test]
fn the_assembler_takes_one_document_in_order() {
    let push = |assembler: &mut Assembler, kind, sequence, index, count| {
        assembler.push(kind, sequence, index, count, "QUJD")
    };
    let fresh = || {
        let mut assembler = Assembler::new(9);
        assert_eq!(push(&mut assembler, ChunkKind::Snapshot, 5, 0, 3), Ok(None));
        assembler
    };
    for (kind, sequence, index, count) in [
        (ChunkKind::Snapshot, 5, 0, 3),
        (ChunkKind::Snapshot, 5, 2, 3),
        (ChunkKind::Snapshot, 5, 1, 2),
        (ChunkKind::Snapshot, 6, 1, 3),
        (ChunkKind::Event, 5, 1, 3),
    ] {
        let mut assembler = fresh();
        let error = push(&mut assembler, kind, sequence, index, count);
        assert_eq!(error, Err(AssembleError::OutOfOrder { index, count }));
        assert!(!assembler.is_open());
    }
    let mut assembler = fresh();
    assert_eq!(push(&mut assembler, ChunkKind::Snapshot, 5, 1, 3), Ok(None));
    let done = push(&mut assembler, ChunkKind::Snapshot, 5, 2, 3);
    assert_eq!(done, Ok(Some(b"ABCABCABC".to_vec())));
    for (index, count) in [(0, 0), (1, 1), (3, 2)] {
        let error = push(&mut Assembler::new(9), ChunkKind::Event, 5, index, count);
        assert_eq!(error, Err(AssembleError::OutOfOrder { index, count }));
    }
}

#[test]
fn the_assembler_is_bounded() {
    let mut assembler = Assembler::new(4);
    let mut push = |data: &str, index| assembler.push(ChunkKind::Event, 1, index, 9, data);
    assert_eq!(push("QUJDRA==", 0), Ok(None), "four bytes");
    assert_eq!(push("QQ==", 1), Err(AssembleError::TooLarge { max: 4 }));
    assert_eq!(push("QUJDREU=", 0), Err(AssembleError::TooLarge { max: 4 }), "five bytes");
    assert_eq!(push(&"*".repeat(4096), 0), Err(AssembleError::TooLarge { max: 4 }));
    for data in ["Q", "QUJ", "Q*JD", "QUJD\n", "ü"] {
        assert_eq!(push(data, 0), Err(AssembleError::NotBase64), "{data:?}");
    }
    // Endless chunks without data end with the count, at the latest.
    assert_eq!(push("", 0), Ok(None));
}

proptest! {
    #[test]
    fn r_21_frames_of_any_size_around_the_bound(
        bytes in 0_usize..40, max in 1_usize..40, step in 1_usize..9, more in any::<bool>(),
    ) {
        let body = vec![b'7'; bytes];
        let frame = encode(&body, max);
        prop_assert_eq!(frame.is_ok(), (1..=max).contains(&bytes));
        if let Ok(mut frame) = frame {
            prop_assert_eq!(frame.len(), bytes + 4);
            if more {
                frame.extend_from_slice(b"\0\0\0\x01x");
            }
            let mut stream = Trickle(&frame, step);
            prop_assert_eq!(read_frame(&mut stream, max).unwrap().unwrap(), body);
            prop_assert_eq!(read_frame(&mut stream, max).unwrap().is_some(), more);
        }
    }

    #[test]
    fn r_32_slices_cut_characters_anywhere_and_join_to_the_document(
        text in "[a-zé€😀\\\\\"\u{0}\n]{0,4000}", max in FRAME_BYTES_MIN..2048, sequence: u64,
    ) {
        let payload = serde_json::to_string(&text).unwrap();
        let mut out = Vec::new();
        encode_event(&mut out, sequence, "task_changed", &payload, max).unwrap();
        let (event, _) = receive_event(&out, max);
        prop_assert_eq!(event.sequence_number, sequence);
        prop_assert_eq!(event.payload.get(), payload);
    }

    #[test]
    fn r_31_any_document_at_any_maximum(
        document in prop::collection::vec(any::<u8>(), 1..5000), max in FRAME_BYTES_MIN..3000,
    ) {
        let count = chunk_count(document.len(), max);
        let mut assembler = Assembler::new(document.len());
        let mut joined = None;
        for index in 0..count {
            prop_assert!(joined.is_none());
            let mut out = Vec::new();
            encode_chunk(&mut out, ChunkKind::Snapshot, 9, &document, index, max).unwrap();
            prop_assert!(out.len() <= max + 4);
            let ServerMessage::SnapshotChunk { sequence, chunk_index, chunk_count, snapshot_data } =
                ServerMessage::parse(&out[4..]).unwrap()
            else {
                panic!("not a snapshot_chunk");
            };
            prop_assert_eq!((sequence, chunk_index, chunk_count), (9, index as u64, count as u64));
            joined = assembler
                .push(ChunkKind::Snapshot, sequence, chunk_index, chunk_count, &snapshot_data)
                .unwrap();
        }
        prop_assert_eq!(joined, Some(document));
    }
}
