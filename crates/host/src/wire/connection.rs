//! One client: the handshake, then a reader that takes its messages and a writer that sends answers,
//! events and heartbeats. Either one's end is the end of both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ostler_proto::framed::{self, ClientMessage, Command};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::convert;
use crate::engine::feed::{Cursor, Feed, FellBehind, Opening, Piece, render_stored};
use crate::engine::{CommandReply, CommandRequest, EngineClient, Reply};
use crate::settings::WireSettings;

/// Commands of one connection that may be unanswered or unsent, beyond as many as the engine's queue holds
/// (`wire.command_queue_max`); then no further one is read. So a client that pipelines too much is told so.
const ANSWERS_BEYOND_QUEUE_MAX: usize = 1_024;

/// Answers that are written together.
const ANSWERS_PER_TURN_MAX: usize = 256;

/// Bytes of events taken from the feed for one write.
const WRITE_BYTES: usize = 256 * 1024;

/// Shared frames up to this size are copied beside others, so that they leave in one write; larger ones are
/// written from where they are.
const COPIED_BYTES_MAX: usize = 32 * 1024;

/// Bytes read from a socket at once.
const READ_BYTES: usize = 64 * 1024;

/// Why a connection ended; only for the log.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the client left")]
    Left,
    #[error("the client sent nothing, or not a whole frame, in time")]
    Silent,
    #[error("the client took nothing in time")]
    Stuck,
    #[error("the client's cursor fell out of the retained events")]
    FellBehind,
    #[error("the client broke the protocol: {0}")]
    Protocol(String),
    #[error("the daemon is stopping")]
    Stopping,
    #[error("the socket failed: {0}")]
    Io(#[from] std::io::Error),
    #[error("a message could not be encoded: {0}")]
    Encode(String),
}

/// Serves one connection until it ends.
pub(super) async fn serve(
    stream: UnixStream,
    client: EngineClient,
    settings: Arc<WireSettings>,
    close: CancellationToken,
) {
    let gone = Arc::new(AtomicBool::new(false));
    let end = converse(stream, client, settings, Arc::clone(&gone), &close).await;
    gone.store(true, Ordering::Relaxed);
    match end {
        Ok(()) | Err(End::Left) => tracing::debug!("a client left"),
        // Nothing the client did.
        Err(end @ End::Encode(_)) => tracing::error!(reason = %end, "a connection ended"),
        Err(end) => tracing::debug!(reason = %end, "a connection ended"),
    }
}

async fn converse(
    stream: UnixStream,
    client: EngineClient,
    settings: Arc<WireSettings>,
    gone: Arc<AtomicBool>,
    close: &CancellationToken,
) -> Result<(), End> {
    let (read, write) = stream.into_split();
    let mut reader = Reader {
        stream: BufReader::with_capacity(READ_BYTES, read),
        settings: Arc::clone(&settings),
    };
    let mut writer = Writer { stream: write, settings: Arc::clone(&settings), out: Vec::new() };
    let Some(hello) = handshake(&mut reader, &mut writer).await? else {
        return Ok(());
    };
    let (opening, cursor) = client.feed.open(hello.resume_after);
    writer.welcome(&opening).await?;
    let (answers, inbox) =
        mpsc::channel(settings.command_queue_max.saturating_add(ANSWERS_BEYOND_QUEUE_MAX));
    let feed = Arc::clone(&client.feed);
    tokio::select! {
        biased;
        end = reader.run(client, answers, gone) => end,
        end = writer.run(inbox, cursor, &feed, close) => end,
    }
}

/// The first message must be a `hello` that offers our version; another valid message, or no common
/// version, is told what we speak. Garbage is just the end.
async fn handshake(reader: &mut Reader, writer: &mut Writer) -> Result<Option<framed::Hello>, End> {
    let body = reader.frame().await?;
    match ClientMessage::parse(&body) {
        Ok(ClientMessage::Hello(hello))
            if hello.versions.contains(&i64::from(framed::PROTOCOL_VERSION)) =>
        {
            Ok(Some(hello))
        }
        Ok(_) => {
            writer
                .send(&framed::ServerMessage::VersionRejected {
                    supported: vec![framed::PROTOCOL_VERSION],
                })
                .await?;
            Ok(None)
        }
        Err(error) => Err(End::Protocol(error.to_string())),
    }
}

struct Reader {
    stream: BufReader<OwnedReadHalf>,
    settings: Arc<WireSettings>,
}

impl Reader {
    /// The next whole frame: it may be long in coming, but not in arriving.
    async fn frame(&mut self) -> Result<Vec<u8>, End> {
        let begun = timeout(self.settings.silent_client, self.stream.fill_buf()).await;
        if begun.map_err(|_| End::Silent)??.is_empty() {
            return Err(End::Left);
        }
        timeout(self.settings.frame_deadline, self.read_frame()).await.map_err(|_| End::Silent)?
    }

    async fn read_frame(&mut self) -> Result<Vec<u8>, End> {
        let mut header = [0; framed::frame::HEADER_BYTES];
        if let Err(error) = self.stream.read_exact(&mut header).await {
            let left = error.kind() == std::io::ErrorKind::UnexpectedEof;
            return Err(if left { End::Left } else { End::Io(error) });
        }
        let length = framed::frame_len(header, self.settings.frame_bytes_max)
            .map_err(|error| End::Protocol(error.to_string()))?;
        // Memory follows what arrives, not what is announced.
        let mut body = Vec::with_capacity(length.min(READ_BYTES));
        (&mut self.stream).take(length as u64).read_to_end(&mut body).await?;
        if body.len() < length { Err(End::Left) } else { Ok(body) }
    }

    async fn run(
        &mut self,
        client: EngineClient,
        answers: mpsc::Sender<Answer>,
        gone: Arc<AtomicBool>,
    ) -> Result<(), End> {
        loop {
            // A client that does not take its answers is not read further.
            let place = answers.clone().reserve_owned().await.map_err(|_| End::Left)?;
            let body = self.frame().await?;
            match ClientMessage::parse(&body).map_err(|error| End::Protocol(error.to_string()))? {
                // Cursors are the client's own; retention does not wait for acknowledgements.
                ClientMessage::Hello(_)
                | ClientMessage::Ack { .. }
                | ClientMessage::Pong { .. } => {}
                ClientMessage::Command { id, command } => match Command::parse(&command) {
                    Ok(command) => {
                        let reply =
                            Reply::new(move |result| drop(place.send(Answer { id, result })));
                        client.send(CommandRequest { command, reply, gone: Arc::clone(&gone) });
                    }
                    Err(error) => drop(place.send(Answer { id, result: Err(error.to_string()) })),
                },
            }
        }
    }
}

/// What a command came to.
struct Answer {
    id: String,
    result: Result<CommandReply, String>,
}

struct Writer {
    stream: OwnedWriteHalf,
    settings: Arc<WireSettings>,
    /// Encoded and not yet written.
    out: Vec<u8>,
}

impl Writer {
    async fn send(&mut self, message: &framed::ServerMessage) -> Result<(), End> {
        self.encode(message)?;
        self.flush().await
    }

    fn encode(&mut self, message: &framed::ServerMessage) -> Result<(), End> {
        framed::encode_into(&mut self.out, message, self.settings.frame_bytes_max)
            .map_err(|error| End::Encode(error.to_string()))
    }

    async fn flush(&mut self) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        let result = self.write(&out).await;
        self.out = out;
        self.out.clear();
        self.out.shrink_to(WRITE_BYTES);
        result
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), End> {
        for piece in bytes.chunks(self.settings.frame_bytes_max) {
            timeout(self.settings.frame_deadline, self.stream.write_all(piece))
                .await
                .map_err(|_| End::Stuck)??;
        }
        Ok(())
    }

    async fn welcome(&mut self, opening: &Opening) -> Result<(), End> {
        let (Opening::Snapshot { last, .. } | Opening::Replay { last }) = opening;
        let heartbeat_seconds =
            u32::try_from(self.settings.heartbeat.as_secs()).unwrap_or(u32::MAX);
        self.encode(&framed::ServerMessage::Welcome {
            welcome: framed::Welcome {
                version: framed::PROTOCOL_VERSION,
                current_sequence: *last,
                heartbeat_seconds,
            },
        })?;
        if let Opening::Snapshot { last, tasks } = opening {
            let document = convert::snapshot_document(*last, tasks)
                .map_err(|error| End::Encode(error.to_string()))?;
            let max = self.settings.frame_bytes_max;
            for index in 0..framed::chunk::chunk_count(document.len(), max) {
                framed::encode_chunk(
                    &mut self.out,
                    framed::ChunkKind::Snapshot,
                    *last,
                    &document,
                    index,
                    max,
                )
                .map_err(|error| End::Encode(error.to_string()))?;
                self.flush().await?;
            }
        }
        self.flush().await
    }

    async fn run(
        &mut self,
        mut answers: mpsc::Receiver<Answer>,
        mut cursor: Cursor,
        feed: &Feed,
        close: &CancellationToken,
    ) -> Result<(), End> {
        let mut heartbeat_at = Instant::now() + self.settings.heartbeat;
        let mut waiting = Vec::new();
        loop {
            // Answers that are there are written after the events that are there: whoever gets the
            // answer to a change has been told the change.
            while waiting.len() < ANSWERS_PER_TURN_MAX
                && let Ok(answer) = answers.try_recv()
            {
                waiting.push(answer);
            }
            let pieces = cursor.take(WRITE_BYTES).map_err(|_| End::FellBehind)?;
            let idle = pieces.is_empty() && waiting.is_empty();
            self.take_pieces(pieces, feed).await?;
            self.write_answers(&mut waiting).await?;
            if Instant::now() >= heartbeat_at {
                heartbeat_at = Instant::now() + self.settings.heartbeat;
                self.send(&framed::ServerMessage::Heartbeat { sequence: cursor.sent() }).await?;
            }
            if !idle {
                continue;
            }
            tokio::select! {
                biased;
                answer = answers.recv() => waiting.push(answer.ok_or(End::Left)?),
                more = cursor.wait() => if !more { return Err(End::Stopping) },
                () = tokio::time::sleep_until(heartbeat_at) => {}
                () = close.cancelled() => return Err(End::Stopping),
            }
        }
    }

    async fn write_answers(&mut self, answers: &mut Vec<Answer>) -> Result<(), End> {
        for answer in answers.drain(..) {
            convert::encode_answer(
                &mut self.out,
                &answer.id,
                answer.result,
                self.settings.frame_bytes_max,
            )
            .map_err(End::Encode)?;
            if self.out.len() >= WRITE_BYTES {
                self.flush().await?;
            }
        }
        self.flush().await
    }

    /// Takes events in order; what is not written yet leaves with the answers that follow.
    async fn take_pieces(&mut self, pieces: Vec<Piece>, feed: &Feed) -> Result<(), End> {
        let max = self.settings.frame_bytes_max;
        for piece in pieces {
            match piece {
                Piece::Frames { bytes, .. } if bytes.len() <= COPIED_BYTES_MAX => {
                    self.out.extend_from_slice(&bytes);
                }
                Piece::Frames { bytes, .. } => {
                    self.flush().await?;
                    self.write(&bytes).await?;
                }
                Piece::Event { sequence, task } => {
                    convert::encode_event(&mut self.out, sequence, &task, max)
                        .map_err(End::Encode)?;
                }
                Piece::Stored { sequence, record } => {
                    let event = render_stored(feed, sequence, &record)
                        .map_err(|FellBehind| End::FellBehind)?;
                    convert::encode_stored(&mut self.out, sequence, &event, max)
                        .map_err(End::Encode)?;
                }
            }
            if self.out.len() >= WRITE_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }
}
