//! Bodies of requests, read within bounds of bytes and time, and of answers that are files; and how many bytes of
//! either the server holds at once. What does not fit is answered that the server is busy.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::http::{Fault, discard, header_text};
use crate::store::StoreError;

/// Bytes of all files together that are on their way to clients. Apart from the room of requests: who takes files
/// slowly keeps no machine from sending its output.
const FILES_BYTES_MAX: usize = 128 << 20;
/// Bytes of a file that are given to a connection at once.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes of all bodies of requests together.
const BODIES_BYTES_MAX: usize = 256 << 20;
/// What is counted: a KiB.
const UNIT_BYTES: usize = 1 << 10;
/// What a slow line carries. The largest body takes about as long as a lease lasts then, and who sends a byte now and
/// then gains nothing.
const BYTES_A_SECOND_MIN: usize = 64 << 10;

/// The room for bodies.
pub(crate) struct Bodies {
    room: Arc<Semaphore>,
    files: Arc<Semaphore>,
    /// How long a body may take to arrive, beside what its bytes take on a slow line.
    wait_max: Duration,
}

/// The room that a body takes, given back when this is dropped.
pub(crate) type Room = OwnedSemaphorePermit;

impl Bodies {
    pub(crate) fn new(wait_max: Duration) -> Self {
        let room = |bytes| Arc::new(Semaphore::new(bytes / UNIT_BYTES));
        Self { room: room(BODIES_BYTES_MAX), files: room(FILES_BYTES_MAX), wait_max }
    }

    /// Reads a body of at most `bytes_max`.
    pub(crate) async fn read(
        &self,
        headers: &HeaderMap,
        mut body: Body,
        bytes_max: usize,
    ) -> Result<(Bytes, Room), Fault> {
        if let Err(fault) = self.check(headers, bytes_max) {
            // Who asked first has not begun to send.
            let asked = header_text(headers, "expect");
            if !asked.is_some_and(|word| word.eq_ignore_ascii_case("100-continue")) {
                discard(body).await;
            }
            return Err(fault);
        }
        let read = self.arrive(&mut body, bytes_max).await;
        // Who was too slow is not waited for again.
        if read.as_ref().is_err_and(|it| it.status != StatusCode::REQUEST_TIMEOUT) {
            discard(body).await;
        }
        read
    }

    /// Whether a body with such a head may begin. Compressed ones are refused: a small one can become any size.
    fn check(&self, headers: &HeaderMap, bytes_max: usize) -> Result<(), Fault> {
        if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            let message = "Compressed bodies are not accepted: send it without Content-Encoding.";
            return Err(Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported", message));
        }
        let said = header_text(headers, "content-length").and_then(|text| text.parse().ok());
        let bytes: usize = said.unwrap_or(0);
        if bytes > bytes_max {
            return Err(too_large(bytes_max));
        }
        let free = self.room.available_permits() * UNIT_BYTES;
        if bytes > free { Err(StoreError::Busy.into()) } else { Ok(()) }
    }

    /// Takes room for what has arrived and not for what was said, or a few that send nothing would keep out all
    /// others. The pieces are copied: each holds more memory than its bytes.
    async fn arrive(&self, body: &mut Body, bytes_max: usize) -> Result<(Bytes, Room), Fault> {
        let begun = Instant::now();
        let mut bytes = BytesMut::new();
        let mut room = take(&self.room, 0)?;
        loop {
            let deadline = begun + self.wait_max + time_of(bytes.len());
            let late = |_| {
                Fault::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "too_slow",
                    "The body did not arrive in time.",
                )
            };
            let frame = tokio::time::timeout_at(deadline, body.frame()).await.map_err(late)?;
            let Some(frame) = frame else { return Ok((bytes.freeze(), room)) };
            let early =
                |_| Fault::new(StatusCode::BAD_REQUEST, "bad_body", "The body ended early.");
            let Ok(piece) = frame.map_err(early)?.into_data() else { continue };
            if bytes.len() + piece.len() > bytes_max {
                return Err(too_large(bytes_max));
            }
            bytes.extend_from_slice(&piece);
            room.merge(take(&self.room, bytes.len().div_ceil(UNIT_BYTES) - room.num_permits())?);
        }
    }

    /// Room for a file of at most so many bytes, to be taken before it is read.
    pub(crate) fn room_for_file(&self, bytes_max: usize) -> Result<Room, Fault> {
        take(&self.files, bytes_max.div_ceil(UNIT_BYTES))
    }
}

fn take(room: &Arc<Semaphore>, units: usize) -> Result<Room, Fault> {
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    Arc::clone(room).try_acquire_many_owned(units).map_err(|_| StoreError::Busy.into())
}

/// A file on its way, which has its room until a connection has taken nearly all of it: in pieces of their own, since a
/// part of it holds the memory of all.
pub(crate) fn file(bytes: Vec<u8>, mut room: Room) -> Body {
    let held = room.split(bytes.len().div_ceil(UNIT_BYTES)).unwrap_or(room);
    let pieces = futures_util::stream::unfold((bytes, 0, held), async |(bytes, at, held)| {
        let piece = bytes.get(at..bytes.len().min(at + PIECE_BYTES))?;
        if piece.is_empty() {
            return None;
        }
        let piece = Ok::<_, Infallible>(Bytes::copy_from_slice(piece));
        Some((piece, (bytes, at + PIECE_BYTES, held)))
    });
    Body::from_stream(pieces)
}

/// How much longer a body may take of which so much has arrived.
fn time_of(bytes: usize) -> Duration {
    Duration::from_millis((bytes * 1_000 / BYTES_A_SECOND_MIN) as u64)
}

fn too_large(bytes_max: usize) -> Fault {
    let message = format!("The body is larger than {bytes_max} bytes.");
    Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    /// More than one of the largest bodies.
    const LARGE: usize = 20 << 20;

    fn length(bytes: usize) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_LENGTH, bytes.into())])
    }

    #[tokio::test]
    async fn bodies_beyond_the_room_are_refused_until_others_are_done() {
        let bodies = Bodies::new(Duration::from_secs(60));
        let none = HeaderMap::new();
        let read = async |headers: &HeaderMap, bytes: usize| {
            bodies.read(headers, Body::from(vec![0; bytes]), LARGE).await
        };
        let mut held = Vec::new();
        for _ in 0..BODIES_BYTES_MAX / LARGE {
            held.push(read(&none, LARGE).await.unwrap());
        }
        for refused in [read(&none, LARGE).await, read(&length(LARGE), LARGE).await] {
            assert_eq!(refused.unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        }
        // There is room for small ones still, and for a large one when another is done.
        assert_eq!(read(&none, 1_000).await.unwrap().0.len(), 1_000);
        held.pop();
        assert_eq!(read(&length(LARGE), LARGE).await.unwrap().0.len(), LARGE);
    }

    #[tokio::test]
    async fn files_beyond_the_room_are_refused_until_others_are_taken() {
        const FILE: usize = 4 << 20;
        let bodies = Bodies::new(Duration::from_secs(60));
        let whole: Vec<u8> = (0..FILE + 1).map(|at| (at % 251) as u8).collect();
        let mut files = Vec::new();
        while let Ok(room) = bodies.room_for_file(2 * FILE) {
            // What the file does not need is free again.
            files.push(file(whole.clone(), room));
        }
        assert_eq!(files.len(), (FILES_BYTES_MAX - 2 * FILE) / (FILE + UNIT_BYTES) + 1);
        let mut last = files.pop().unwrap().into_data_stream();
        let mut taken = last.next().await.unwrap().unwrap().to_vec();
        assert!(bodies.room_for_file(2 * FILE).is_err(), "a part was taken");
        while let Some(piece) = last.next().await {
            taken.extend_from_slice(&piece.unwrap());
        }
        assert!(taken == whole);
        assert!(bodies.room_for_file(2 * FILE).is_ok());
        let nothing = file(Vec::new(), bodies.room_for_file(1).unwrap());
        assert_eq!(nothing.collect().await.unwrap().to_bytes().len(), 0);
    }

    /// A body of `first`, and what `rest` comes to be.
    fn slowly(first: usize, rest: impl Future<Output = usize> + Send + 'static) -> Body {
        let piece = |bytes: usize| Ok::<_, std::io::Error>(vec![0_u8; bytes]);
        let first = futures_util::stream::once(async move { piece(first) });
        Body::from_stream(first.chain(futures_util::stream::once(async move { piece(rest.await) })))
    }

    #[tokio::test]
    async fn a_body_may_take_longer_when_much_of_it_has_arrived() {
        let wait_max = Duration::from_millis(20);
        let bodies = Bodies::new(wait_max);
        let none = HeaderMap::new();
        let late = bodies.read(&none, slowly(1, std::future::pending()), LARGE).await;
        assert_eq!(late.unwrap_err().status, StatusCode::REQUEST_TIMEOUT);
        let longer = async move {
            tokio::time::sleep(5 * wait_max).await;
            1
        };
        let read = bodies.read(&none, slowly(LARGE - 1, longer), LARGE).await.unwrap();
        assert_eq!(read.0.len(), LARGE);
        assert!(time_of(16 << 20) < Duration::from_secs(300));
    }
}
