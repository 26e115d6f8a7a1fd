//! The typed client of the runtime protocol, for Rust programs that talk to a daemon.
//!
//! [`Client::connect`] gives a handle that sends commands and a stream of [`Update`]s: the snapshot
//! and the events, in order. A task in the background reads the socket, answers heartbeats, brings
//! results to those who wait, and chunks together. Deliberately absent: persistence of the cursor; an
//! application stores [`Updates::last_applied`] with what it applied, acknowledges it, and resumes with it.
//!
//! ```no_run
//! # async fn example() -> Result<(), ostler_host::client::ClientError> {
//! use ostler_host::client::{Client, ConnectOptions, Update};
//!
//! let (client, mut updates) = Client::connect("/run/user/1000/daemon.sock".into(), ConnectOptions::default()).await?;
//! println!("{} tasks", client.list().await?.tasks.len());
//! while let Some(update) = updates.next().await? {
//!     match update {
//!         Update::Snapshot(snapshot) => println!("{} tasks as of {}", snapshot.tasks.len(), snapshot.last_sequence),
//!         Update::Task { sequence, task } => println!("{sequence}: {} is {:?}", task.task_id, task.status),
//!         Update::Limit { sequence, limit } => println!("{sequence}: the limit is {limit}"),
//!     }
//!     updates.acknowledge().await?;
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8Path;
use ostler_proto::framed::{
    self, Assembler, ClientMessage, Command, FRAME_BYTES_MAX, Hello, ListResult, ServerMessage,
    Snapshot, Submit, Task, TaskResult,
};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Updates that wait to be taken. When they are not, the socket is not read on: take them, or drop
/// the [`Updates`] if they are of no interest.
const UPDATES_MAX: usize = 1_024;

/// Messages that wait to be written.
const OUTBOX_MAX: usize = 1_024;

/// How long a connection and its handshake may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// A daemon that says nothing for so many of its heartbeats is gone.
const SILENT_HEARTBEATS_MAX: u32 = 4;

/// The largest frame a daemon may be configured to send.
const RECEIVED_FRAME_BYTES_MAX: usize = 16 * FRAME_BYTES_MAX;

/// What goes wrong between a client and a daemon.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers at the socket.
    #[error("no daemon answers at {socket}")]
    Unreachable {
        /// The socket's path.
        socket: String,
        /// Why.
        source: io::Error,
    },
    /// The daemon speaks other versions.
    #[error(
        "the daemon speaks protocol versions {supported:?}, this client speaks {}",
        framed::PROTOCOL_VERSION
    )]
    Version {
        /// The daemon's versions.
        supported: Vec<u32>,
    },
    /// The daemon refused a command; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The connection ended. What was sent may have happened: look before sending it again.
    #[error("the connection to the daemon ended: {0}")]
    Closed(String),
    /// The daemon said something that is no message of the protocol.
    #[error("the daemon broke the protocol: {0}")]
    Protocol(String),
}

/// How to connect.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// A stable name of this client.
    pub client_id: String,
    /// The last sequence that was applied; `None` for a snapshot.
    pub resume_after: Option<u64>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { client_id: format!("ostler-client-{}", std::process::id()), resume_after: None }
    }
}

/// What the daemon tells unasked.
#[derive(Debug, Clone)]
pub enum Update {
    /// The whole state; it replaces what was known.
    Snapshot(Snapshot),
    /// A task changed.
    Task {
        /// The event's sequence.
        sequence: u64,
        /// The whole task.
        task: Box<Task>,
    },
    /// The scheduler's limit changed.
    Limit {
        /// The event's sequence.
        sequence: u64,
        /// Tasks that may run at once.
        limit: u8,
    },
}

impl Update {
    /// The sequence that is applied with this update.
    pub fn sequence(&self) -> u64 {
        match self {
            Self::Snapshot(snapshot) => snapshot.last_sequence,
            Self::Task { sequence, .. } | Self::Limit { sequence, .. } => *sequence,
        }
    }
}

/// Calls by their id; `None` when nobody will be answered any more.
type Waiting = Arc<Mutex<Option<HashMap<String, oneshot::Sender<framed::CommandResult>>>>>;

/// What both halves of a connection share.
#[derive(Debug, Clone)]
struct Line {
    waiting: Waiting,
    ended: CancellationToken,
}

impl Line {
    /// Nobody will be answered any more: who waits, and who asks later, is told so.
    fn end(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.ended.cancel();
    }
}

/// Sends commands. Clones share one connection, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct Client {
    outbox: mpsc::Sender<ClientMessage>,
    waiting: Waiting,
    next_id: Arc<std::sync::atomic::AtomicU64>,
    daemon_pid: Option<u32>,
}

/// The snapshot and the events, in order.
#[derive(Debug)]
pub struct Updates {
    inbox: mpsc::Receiver<Result<Update, ClientError>>,
    outbox: mpsc::WeakSender<ClientMessage>,
    last: Option<u64>,
}

impl Client {
    /// Connects to the daemon at `socket` and shakes hands.
    pub async fn connect(
        socket: &Utf8Path,
        options: ConnectOptions,
    ) -> Result<(Self, Updates), ClientError> {
        timeout(CONNECT_DEADLINE, Self::shake_hands(socket, options))
            .await
            .map_err(|_| ClientError::Closed("the daemon did not answer in time".to_owned()))?
    }

    async fn shake_hands(
        socket: &Utf8Path,
        options: ConnectOptions,
    ) -> Result<(Self, Updates), ClientError> {
        let unreachable = |source| ClientError::Unreachable { socket: socket.to_string(), source };
        let stream = UnixStream::connect(socket).await.map_err(unreachable)?;
        let daemon_pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        let daemon_pid = daemon_pid.and_then(|pid| u32::try_from(pid).ok());
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::with_capacity(64 * 1024, read);
        let hello = Hello {
            client_id: options.client_id,
            versions: vec![i64::from(framed::PROTOCOL_VERSION)],
            resume_after: options.resume_after,
        };
        write_message(&mut write, &ClientMessage::Hello(hello)).await?;
        let heartbeat = match read_message(&mut read, CONNECT_DEADLINE).await? {
            ServerMessage::Welcome { welcome } => welcome.heartbeat_seconds,
            ServerMessage::VersionRejected { supported } => {
                return Err(ClientError::Version { supported });
            }
            other => {
                return Err(ClientError::Protocol(format!("{other:?} instead of welcome")));
            }
        };
        let (outbox, messages) = mpsc::channel(OUTBOX_MAX);
        let (updates, inbox) = mpsc::channel(UPDATES_MAX);
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let line = Line { waiting: Arc::clone(&waiting), ended: CancellationToken::new() };
        let pump = Pump {
            read,
            updates,
            outbox: outbox.downgrade(),
            line: line.clone(),
            assembler: Assembler::default(),
            last: 0,
            silence_max: Duration::from_secs(u64::from(heartbeat.max(1))) * SILENT_HEARTBEATS_MAX,
        };
        tokio::spawn(write_messages(write, messages, tokio::spawn(pump.run()), line));
        let updates = Updates { inbox, outbox: outbox.downgrade(), last: None };
        Ok((Self { outbox, waiting, next_id: Arc::default(), daemon_pid }, updates))
    }

    /// The daemon's process, as the kernel names the other end of the socket.
    pub fn daemon_pid(&self) -> Option<u32> {
        self.daemon_pid
    }

    /// All live tasks.
    pub async fn list(&self) -> Result<ListResult, ClientError> {
        self.call(&Command::List).await
    }

    /// Submits a task. When the connection ends before the answer, look for the id before sending it again.
    pub async fn submit(&self, submit: Submit) -> Result<TaskResult, ClientError> {
        self.call(&Command::Submit(submit)).await
    }

    /// Cancels a task; the answer comes when nothing of it is left.
    pub async fn cancel(&self, task_id: &str) -> Result<TaskResult, ClientError> {
        self.call(&Command::Cancel { task_id: task_id.to_owned() }).await
    }

    /// Queues a failed or cancelled task again.
    pub async fn retry(&self, task_id: &str) -> Result<TaskResult, ClientError> {
        self.call(&Command::Retry { task_id: task_id.to_owned() }).await
    }

    /// Sets how many tasks may run at once.
    pub async fn set_limit(&self, limit: u8) -> Result<framed::LimitResult, ClientError> {
        self.call(&Command::SetLimit { limit }).await
    }

    /// Sends any command and reads its result as `T`.
    pub async fn call<T: DeserializeOwned>(&self, command: &Command) -> Result<T, ClientError> {
        let number = self.next_id.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let id = format!("c{number}");
        let message = ClientMessage::command(id.clone(), command)
            .map_err(|error| ClientError::Refused(error.to_string()))?;
        // What fits no frame is refused here and does not end the connection.
        framed::encode_into(&mut Vec::new(), &message, FRAME_BYTES_MAX)
            .map_err(|error| ClientError::Refused(error.to_string()))?;
        let (sender, receiver) = oneshot::channel();
        let gone = || ClientError::Closed("the daemon is gone".to_owned());
        match self.waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(gone()),
        };
        self.outbox.send(message).await.map_err(|_| gone())?;
        let result = receiver.await.map_err(|_| gone())?;
        match (result.ok, result.result) {
            (true, Some(value)) => serde_json::from_str(value.get())
                .map_err(|error| ClientError::Protocol(error.to_string())),
            (true, None) => Err(ClientError::Protocol("a success without a result".to_owned())),
            (false, _) => Err(ClientError::Refused(result.error.unwrap_or_default())),
        }
    }
}

impl Updates {
    /// The next update; `None` when the connection has ended in good order.
    pub async fn next(&mut self) -> Result<Option<Update>, ClientError> {
        match self.inbox.recv().await {
            Some(Ok(update)) => {
                self.last = Some(update.sequence());
                Ok(Some(update))
            }
            Some(Err(error)) => Err(error),
            None => Ok(None),
        }
    }

    /// The sequence of the update that was taken last; what to resume with.
    pub fn last_applied(&self) -> Option<u64> {
        self.last
    }

    /// Tells the daemon that everything taken so far has been durably applied.
    pub async fn acknowledge(&self) -> Result<(), ClientError> {
        let (Some(sequence), Some(outbox)) = (self.last, self.outbox.upgrade()) else {
            return Ok(());
        };
        outbox
            .send(ClientMessage::Ack { sequence })
            .await
            .map_err(|_| ClientError::Closed("the daemon is gone".to_owned()))
    }
}

/// The writing half: until the last client is gone, which ends the reader too, or until either half fails.
async fn write_messages(
    mut write: OwnedWriteHalf,
    mut messages: mpsc::Receiver<ClientMessage>,
    pump: tokio::task::JoinHandle<()>,
    line: Line,
) {
    let write_all = async {
        while let Some(message) = messages.recv().await {
            write_message(&mut write, &message).await?;
        }
        Ok::<_, ClientError>(())
    };
    tokio::select! {
        biased;
        () = line.ended.cancelled() => {}
        written = write_all => match written {
            Ok(()) => pump.abort(),
            // The reader finds out by itself, when it has told what came before.
            Err(_) => line.end(),
        },
    }
}

async fn write_message(
    write: &mut OwnedWriteHalf,
    message: &ClientMessage,
) -> Result<(), ClientError> {
    let mut frame = Vec::new();
    framed::encode_into(&mut frame, message, FRAME_BYTES_MAX)
        .map_err(|error| ClientError::Refused(error.to_string()))?;
    write.write_all(&frame).await.map_err(|error| ClientError::Closed(error.to_string()))
}

async fn read_message(
    read: &mut BufReader<OwnedReadHalf>,
    silence_max: Duration,
) -> Result<ServerMessage, ClientError> {
    let closed = |error: io::Error| ClientError::Closed(error.to_string());
    let silent = |_| ClientError::Closed("the daemon fell silent".to_owned());
    let mut header = [0; framed::frame::HEADER_BYTES];
    timeout(silence_max, read.read_exact(&mut header)).await.map_err(silent)?.map_err(closed)?;
    let length = framed::frame_len(header, RECEIVED_FRAME_BYTES_MAX)
        .map_err(|error| ClientError::Protocol(error.to_string()))?;
    let mut body = vec![0; length];
    timeout(silence_max, read.read_exact(&mut body)).await.map_err(silent)?.map_err(closed)?;
    ServerMessage::parse(&body).map_err(|error| ClientError::Protocol(error.to_string()))
}

/// The reading half.
struct Pump {
    read: BufReader<OwnedReadHalf>,
    updates: mpsc::Sender<Result<Update, ClientError>>,
    outbox: mpsc::WeakSender<ClientMessage>,
    line: Line,
    assembler: Assembler,
    last: u64,
    silence_max: Duration,
}

impl Pump {
    async fn run(mut self) {
        let error = loop {
            if let Err(error) = self.turn().await {
                break error;
            }
        };
        self.line.end();
        // Whoever dropped the updates does not want to know.
        let _ = self.updates.send(Err(error)).await;
    }

    async fn turn(&mut self) -> Result<(), ClientError> {
        let message = read_message(&mut self.read, self.silence_max).await?;
        match message {
            ServerMessage::Heartbeat { sequence } => {
                if let Some(outbox) = self.outbox.upgrade() {
                    // A full outbox holds messages that say as much.
                    let _ = outbox.try_send(ClientMessage::Pong { sequence });
                }
            }
            ServerMessage::CommandResult(result) => {
                let waiting = self
                    .line
                    .waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .as_mut()
                    .and_then(|waiting| waiting.remove(&result.id));
                if let Some(waiting) = waiting {
                    let _ = waiting.send(result);
                }
            }
            ServerMessage::Event { event } => self.event(&event).await?,
            chunk @ (ServerMessage::SnapshotChunk { .. } | ServerMessage::EventChunk { .. }) => {
                self.chunk(chunk).await?
            }
            ServerMessage::Welcome { .. } | ServerMessage::VersionRejected { .. } => {
                return Err(ClientError::Protocol("a second handshake".to_owned()));
            }
        }
        Ok(())
    }
}

impl Drop for Pump {
    /// Also where it is aborted in the middle of something.
    fn drop(&mut self) {
        self.line.end();
    }
}

impl Pump {
    async fn event(&mut self, event: &framed::Event) -> Result<(), ClientError> {
        let sequence = event.sequence_number;
        let malformed = |error: serde_json::Error| ClientError::Protocol(error.to_string());
        let update = match event.event_type.as_str() {
            framed::EVENT_TASK_CHANGED => Update::Task {
                sequence,
                task: serde_json::from_str(event.payload.get()).map_err(malformed)?,
            },
            framed::EVENT_LIMIT_CHANGED => {
                let limit: framed::LimitResult =
                    serde_json::from_str(event.payload.get()).map_err(malformed)?;
                Update::Limit { sequence, limit: limit.limit }
            }
            // A later daemon may tell more; what this client does not know changes nothing it shows.
            _ => return self.follow(sequence),
        };
        self.tell(update).await
    }

    async fn chunk(&mut self, chunk: ServerMessage) -> Result<(), ClientError> {
        let (kind, sequence, index, count, data) = match chunk {
            ServerMessage::SnapshotChunk { sequence, chunk_index, chunk_count, snapshot_data } => {
                (framed::ChunkKind::Snapshot, sequence, chunk_index, chunk_count, snapshot_data)
            }
            ServerMessage::EventChunk { sequence, chunk_index, chunk_count, event_data } => {
                (framed::ChunkKind::Event, sequence, chunk_index, chunk_count, event_data)
            }
            _ => return Ok(()),
        };
        let protocol = |error: String| ClientError::Protocol(error);
        let Some(document) = self
            .assembler
            .push(kind, sequence, index, count, &data)
            .map_err(|error| protocol(error.to_string()))?
        else {
            return Ok(());
        };
        match kind {
            framed::ChunkKind::Snapshot => {
                let snapshot =
                    Snapshot::parse(&document).map_err(|error| protocol(error.to_string()))?;
                self.tell(Update::Snapshot(snapshot)).await
            }
            framed::ChunkKind::Event => {
                let event =
                    framed::Event::parse(&document).map_err(|error| protocol(error.to_string()))?;
                self.event(&event).await
            }
        }
    }

    /// Events come without a gap.
    fn follow(&mut self, sequence: u64) -> Result<(), ClientError> {
        if self.last != 0 && sequence != self.last + 1 {
            return Err(ClientError::Protocol(format!("event {sequence} after {}", self.last)));
        }
        self.last = sequence;
        Ok(())
    }

    /// Waits while nobody takes updates; goes on without them when nobody will.
    async fn tell(&mut self, update: Update) -> Result<(), ClientError> {
        match &update {
            Update::Snapshot(snapshot) => self.last = snapshot.last_sequence,
            Update::Task { sequence, .. } | Update::Limit { sequence, .. } => {
                self.follow(*sequence)?
            }
        }
        let _ = self.updates.send(Ok(update)).await;
        Ok(())
    }
}
