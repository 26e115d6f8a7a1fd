//! The feed: the durable state that clients may see, and the retained events they replay.
//!
//! Owns the published tasks and the event log; both change together under one lock, so that
//! subscribing and reading a snapshot or a replay is atomic with respect to appends. Only the
//! engine publishes, and only what is on disk. Each client is a cursor: nothing is queued for
//! it, and a slow one delays nobody. Deliberately absent: encoding of frames into sockets (`wire`).
//!
//! Events without log lines, the bulk of a busy feed, are encoded once and shared by all clients.
//! Events that show a tail hold a position in it and are rendered when sent, so that retention costs
//! no memory for text; events from before this start stay in the journal's files until somebody asks.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ostler_core::id::{RunId, TaskId};
use ostler_core::task::Task;
use ostler_journal::{Place, SegmentFile};
use tokio::sync::watch;

use super::record;
use crate::settings::FeedBounds;
use crate::tail::Tail;

/// A tail that the engine fills while clients read it.
pub(crate) type SharedTail = Arc<Mutex<Tail>>;

/// A task as clients see it.
#[derive(Debug, Clone)]
pub(crate) struct Published {
    pub(crate) task: Task,
    pub(crate) tail: Option<SharedTail>,
}

/// Events that follow one another, kept together.
#[derive(Debug, Clone)]
enum Chunk {
    /// Encoded frames, back to back; `ends` are their ends in `bytes`.
    Frames { ends: Vec<u32>, bytes: Bytes },
    /// One event whose tail is rendered when it is sent.
    Lazy(Box<Published>),
    /// One journaled record of an earlier start.
    Stored(StoredRecord),
}

/// A record that is on disk only. Its file stays readable when the journal drops the segment.
#[derive(Debug, Clone)]
pub(crate) struct StoredRecord {
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) place: Place,
}

#[derive(Debug)]
struct Stretch {
    first: u64,
    chunk: Chunk,
}

impl Stretch {
    fn count(&self) -> u64 {
        match &self.chunk {
            Chunk::Frames { ends, .. } => ends.len() as u64,
            Chunk::Lazy(_) | Chunk::Stored(_) => 1,
        }
    }

    fn bytes(&self) -> usize {
        match &self.chunk {
            Chunk::Frames { bytes, .. } => bytes.len(),
            Chunk::Stored(record) => record.place.bytes as usize,
            Chunk::Lazy(_) => LAZY_EVENT_BYTES,
        }
    }

    fn end(&self) -> u64 {
        self.first + self.count()
    }
}

/// All tails of settled tasks together; the oldest lose their lines first.
const SETTLED_TAILS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What a lazily rendered event is counted as.
const LAZY_EVENT_BYTES: usize = 512;

#[derive(Debug, Default)]
struct State {
    tasks: HashMap<TaskId, Published>,
    order: BTreeMap<u64, TaskId>,
    /// What `set_limit` set; `None` leaves it to the configuration.
    limit: Option<u8>,
    stretches: VecDeque<Stretch>,
    bytes: usize,
    /// The newest sequence.
    last: u64,
    /// Tails of settled tasks, oldest first, with their bytes.
    settled_tails: VecDeque<(SharedTail, usize)>,
    settled_tails_bytes: usize,
    /// Connected cursors and how many there are at each next sequence.
    cursors: BTreeMap<u64, usize>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Feed {
    state: Mutex<State>,
    bounds: FeedBounds,
    newest: watch::Sender<u64>,
}

/// What a client gets first.
#[derive(Debug)]
pub(crate) enum Opening {
    /// The whole state as of `last`.
    Snapshot { last: u64, tasks: Vec<Published> },
    /// The retained events after its cursor.
    Replay { last: u64 },
}

/// A piece of the feed, ready to be written or rendered.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    /// `count` whole frames.
    Frames { bytes: Bytes, last: u64 },
    /// One event to render.
    Event { sequence: u64, task: Box<Published> },
    /// One record to render.
    Stored { sequence: u64, record: StoredRecord },
}

/// The cursor fell out of what is kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FellBehind;

/// What one commit publishes.
#[derive(Debug)]
pub(crate) enum Publication {
    /// A task changed.
    Task { published: Published, frame: Option<std::ops::Range<usize>> },
    /// The scheduler's limit changed.
    Limit { limit: u8, frame: std::ops::Range<usize> },
    /// A task left the live set; no event of its own.
    Gone(TaskId),
}

impl Feed {
    pub(crate) fn new(bounds: FeedBounds) -> Self {
        let state = State::default();
        Self { state: Mutex::new(state), bounds, newest: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what was recovered in place: the state as of `last`, and the records that lead to it.
    pub(crate) fn restore(
        &self,
        tasks: Vec<Published>,
        limit: Option<u8>,
        records: VecDeque<(u64, StoredRecord)>,
        last: u64,
    ) {
        let mut state = self.lock();
        for published in tasks {
            state.insert(published);
        }
        state.limit = limit;
        state.last = last;
        for (first, record) in records {
            state.push(Stretch { first, chunk: Chunk::Stored(record) });
        }
        state.trim(&self.bounds);
        drop(state);
        self.newest.send_replace(last);
    }

    /// Publishes what one commit made durable: `frames` holds the encoded frames that the
    /// publications point into, in the order of their sequences.
    pub(crate) fn publish(&self, publications: Vec<Publication>, frames: Bytes) {
        let mut state = self.lock();
        let mut run = FrameRun::default();
        for publication in publications {
            match publication {
                Publication::Gone(task) => state.remove(&task),
                Publication::Limit { limit, frame } => {
                    state.limit = Some(limit);
                    state.last += 1;
                    run.add(&mut state, &frames, frame);
                }
                Publication::Task { published, frame } => {
                    state.last += 1;
                    match frame {
                        Some(frame) => run.add(&mut state, &frames, frame),
                        None => {
                            run.flush(&mut state, &frames);
                            let first = state.last;
                            let chunk = Chunk::Lazy(Box::new(published.clone()));
                            state.push(Stretch { first, chunk });
                        }
                    }
                    state.insert(published);
                }
            }
        }
        run.flush(&mut state, &frames);
        state.trim(&self.bounds);
        let last = state.last;
        drop(state);
        self.newest.send_replace(last);
    }

    /// Opens a cursor for a client whose last applied sequence is `resume_after`.
    pub(crate) fn open(self: &Arc<Self>, resume_after: Option<u64>) -> (Opening, Cursor) {
        let mut state = self.lock();
        let last = state.last;
        let replayable = resume_after
            .filter(|after| *after <= last && *after + 1 >= state.resumable_from(&self.bounds));
        let (opening, next) = match replayable {
            Some(after) => (Opening::Replay { last }, after + 1),
            None => (Opening::Snapshot { last, tasks: state.tasks_in_order() }, last + 1),
        };
        *state.cursors.entry(next).or_default() += 1;
        drop(state);
        (opening, Cursor { feed: Arc::clone(self), next, newest: self.newest.subscribe() })
    }

    /// The newest durable sequence.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.lock().last
    }

    /// The published tasks in the order of their submission, and the limit that was set.
    pub(crate) fn view(&self) -> (Vec<Published>, Option<u8>) {
        let state = self.lock();
        (state.tasks_in_order(), state.limit)
    }

    /// A task as it is published.
    pub(crate) fn task(&self, id: &TaskId) -> Option<Published> {
        self.lock().tasks.get(id).cloned()
    }

    /// The tail of a run, when it is the one that its task shows.
    pub(crate) fn tail_of(&self, run: &RunId) -> Option<SharedTail> {
        let state = self.lock();
        let published = state.tasks.get(&run.task)?;
        if published.task.attempt == run.attempt { published.tail.clone() } else { None }
    }

    /// Drops what is kept up to a sequence. Whoever has not got past it gets a snapshot on its next
    /// connection. `false` when nothing of it was there any more.
    fn lose(&self, upto: u64) -> bool {
        let mut state = self.lock();
        let before = state.stretches.len();
        while let Some(oldest) = state.stretches.front().filter(|oldest| oldest.first <= upto) {
            let bytes = oldest.bytes();
            state.bytes -= bytes;
            state.stretches.pop_front();
        }
        state.stretches.len() < before
    }

    fn read(&self, next: u64, bytes_max: usize) -> Result<Vec<Piece>, FellBehind> {
        let state = self.lock();
        if next > state.last {
            return Ok(Vec::new());
        }
        let index = state.stretches.partition_point(|stretch| stretch.end() <= next);
        match state.stretches.get(index) {
            Some(stretch) if stretch.first <= next => {}
            _ => return Err(FellBehind),
        }
        let mut pieces = Vec::new();
        let mut bytes = 0;
        for stretch in state.stretches.range(index..) {
            if bytes >= bytes_max {
                break;
            }
            let piece = stretch.piece_from(next);
            bytes += piece.bytes();
            pieces.push(piece);
        }
        Ok(pieces)
    }

    fn move_cursor(&self, from: u64, to: Option<u64>) {
        let mut state = self.lock();
        if let Some(count) = state.cursors.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                state.cursors.remove(&from);
            }
        }
        if let Some(to) = to {
            *state.cursors.entry(to).or_default() += 1;
        }
    }
}

impl Stretch {
    fn piece_from(&self, next: u64) -> Piece {
        match &self.chunk {
            Chunk::Lazy(task) => Piece::Event { sequence: self.first, task: task.clone() },
            Chunk::Stored(record) => Piece::Stored { sequence: self.first, record: record.clone() },
            Chunk::Frames { ends, bytes } => {
                let skip = usize::try_from(next.saturating_sub(self.first)).unwrap_or(usize::MAX);
                let start = match skip.checked_sub(1) {
                    None => 0,
                    Some(before) => ends.get(before).map_or(bytes.len(), |end| *end as usize),
                };
                Piece::Frames { bytes: bytes.slice(start..), last: self.end() - 1 }
            }
        }
    }
}

impl Piece {
    fn bytes(&self) -> usize {
        match self {
            Self::Frames { bytes, .. } => bytes.len(),
            Self::Stored { record, .. } => record.place.bytes as usize,
            Self::Event { .. } => LAZY_EVENT_BYTES,
        }
    }

    /// The last sequence in this piece.
    pub(crate) fn last(&self) -> u64 {
        match self {
            Self::Frames { last, .. } => *last,
            Self::Event { sequence, .. } | Self::Stored { sequence, .. } => *sequence,
        }
    }
}

/// Frames that follow one another in one commit's buffer.
#[derive(Default)]
struct FrameRun {
    start: usize,
    first: u64,
    ends: Vec<u32>,
    end: usize,
}

impl FrameRun {
    fn add(&mut self, state: &mut State, frames: &Bytes, frame: std::ops::Range<usize>) {
        if self.ends.is_empty() {
            self.start = frame.start;
            self.first = state.last;
        } else if frame.start != self.end {
            // Not contiguous: cannot happen while publications keep their order; stay correct anyway.
            let sequence = state.last;
            self.flush(state, frames);
            self.start = frame.start;
            self.first = sequence;
        }
        self.end = frame.end;
        self.ends.push(u32::try_from(frame.end - self.start).unwrap_or(u32::MAX));
    }

    fn flush(&mut self, state: &mut State, frames: &Bytes) {
        if self.ends.is_empty() {
            return;
        }
        let chunk = Chunk::Frames {
            ends: std::mem::take(&mut self.ends),
            bytes: frames.slice(self.start..self.end),
        };
        state.push(Stretch { first: self.first, chunk });
    }
}

impl State {
    fn insert(&mut self, published: Published) {
        if let (true, Some(tail)) = (published.task.status.is_settled(), &published.tail) {
            self.keep_tail(Arc::clone(tail));
        }
        let id = published.task.spec.id.clone();
        let order = published.task.order;
        if let Some(old) = self.tasks.insert(id.clone(), published) {
            self.order.remove(&old.task.order);
        }
        self.order.insert(order, id);
    }

    fn keep_tail(&mut self, tail: SharedTail) {
        let bytes = tail.lock().unwrap_or_else(PoisonError::into_inner).bytes();
        self.settled_tails_bytes += bytes;
        self.settled_tails.push_back((tail, bytes));
        while self.settled_tails_bytes > SETTLED_TAILS_BYTES_MAX && self.settled_tails.len() > 1 {
            let Some((oldest, bytes)) = self.settled_tails.pop_front() else { break };
            self.settled_tails_bytes -= bytes;
            oldest.lock().unwrap_or_else(PoisonError::into_inner).forget_lines();
        }
    }

    fn remove(&mut self, task: &TaskId) {
        if let Some(old) = self.tasks.remove(task) {
            self.order.remove(&old.task.order);
        }
    }

    fn tasks_in_order(&self) -> Vec<Published> {
        self.order.values().filter_map(|id| self.tasks.get(id).cloned()).collect()
    }

    fn push(&mut self, stretch: Stretch) {
        self.bytes += stretch.bytes();
        self.stretches.push_back(stretch);
    }

    /// The oldest sequence that a new client may still replay.
    fn resumable_from(&self, bounds: &FeedBounds) -> u64 {
        let kept = self.stretches.front().map_or(self.last + 1, |stretch| stretch.first);
        kept.max((self.last + 1).saturating_sub(bounds.events_max))
    }

    /// Drops the oldest stretches: those outside retention, unless a connected client still reads
    /// them and the backlog's own bound allows it.
    fn trim(&mut self, bounds: &FeedBounds) {
        let wanted = self.cursors.keys().next().copied().unwrap_or(u64::MAX);
        while let Some(oldest) = self.stretches.front() {
            let after = self.bytes - oldest.bytes();
            let outside = oldest.end() + bounds.events_max <= self.last + 1
                || self.bytes > bounds.events_bytes_max;
            let read = wanted < oldest.end()
                && self.bytes <= bounds.events_bytes_max.saturating_add(bounds.backlog_bytes_max);
            if !outside || read {
                break;
            }
            self.bytes = after;
            self.stretches.pop_front();
        }
    }
}

/// One client's place in the feed.
#[derive(Debug)]
pub(crate) struct Cursor {
    feed: Arc<Feed>,
    next: u64,
    newest: watch::Receiver<u64>,
}

impl Cursor {
    /// The next pieces, at most about `bytes_max` of them; moves past them. Empty when up to date.
    pub(crate) fn take(&mut self, bytes_max: usize) -> Result<Vec<Piece>, FellBehind> {
        let pieces = self.feed.read(self.next, bytes_max)?;
        if let Some(last) = pieces.last().map(Piece::last) {
            self.feed.move_cursor(self.next, Some(last + 1));
            self.next = last + 1;
        }
        Ok(pieces)
    }

    /// Waits until there is something after the cursor. `false` when the engine is gone.
    pub(crate) async fn wait(&mut self) -> bool {
        let next = self.next;
        self.newest.wait_for(|newest| *newest >= next).await.is_ok()
    }

    /// The newest sequence this client has been given.
    pub(crate) fn sent(&self) -> u64 {
        self.next - 1
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.feed.move_cursor(self.next, None);
    }
}

/// Renders a stored record of an earlier start, looking for its tail where the state still has it. A record
/// that is no longer what was verified at the start is told nobody, and falls out of what is kept.
pub(crate) fn render_stored(
    feed: &Feed,
    sequence: u64,
    stored: &StoredRecord,
) -> Result<record::Event, FellBehind> {
    let decoded = stored.file.read(stored.place).map_err(record::RecordError::from);
    let mut event = match decoded.and_then(|payload| record::Event::decode(&payload)) {
        Ok(event) => event,
        Err(error) => {
            if feed.lose(sequence) {
                let segment = stored.place.segment;
                tracing::error!(sequence, segment, %error, "a stored event is lost; check the disk");
            }
            return Err(FellBehind);
        }
    };
    if let record::Event::Task { published, .. } = &mut event
        && published.tail.is_none()
    {
        let run = RunId { task: published.task.spec.id.clone(), attempt: published.task.attempt };
        published.tail = feed.tail_of(&run);
    }
    Ok(event)
}

#[cfg(test)]
mod tests;
