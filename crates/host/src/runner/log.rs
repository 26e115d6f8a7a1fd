//! The bounded queue between a runner and the log tail that clients see.
//!
//! A runner never waits for the tail: when lines come faster than the engine takes them they are
//! dropped, and one line says so. The run directory still has everything.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ostler_core::id::RunId;
use tokio::sync::mpsc;

use crate::engine::RunnerEvent;
use crate::redact::Input;

/// Lines that wait for the engine, for one run. Fewer than a tail holds, so that the mark of dropped ones
/// is seen.
pub const LOG_QUEUE_LINES_MAX: usize = 400;

/// The longest line in bytes; a longer one is cut into pieces (runtime.md, "Running a task").
pub const LOG_LINE_BYTES_MAX: usize = 4_096;

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<String>,
    /// Lines before these were dropped.
    overflowed: bool,
    /// The engine has been told and has not come yet.
    announced: bool,
}

/// What the engine takes at once.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) lines: VecDeque<String>,
    pub(crate) overflowed: bool,
}

/// Where a runner writes the lines that clients see in the task's `logTail`.
#[derive(Debug, Clone)]
pub struct LogSink {
    run: RunId,
    /// What no line may show.
    hidden: Arc<Input>,
    queue: Arc<Mutex<Queue>>,
    events: mpsc::Sender<RunnerEvent>,
}

impl LogSink {
    pub(crate) fn new(run: RunId, hidden: Arc<Input>, events: mpsc::Sender<RunnerEvent>) -> Self {
        Self { run, hidden, queue: Arc::default(), events }
    }

    /// Adds one line, without the task's prompt; a line above [`LOG_LINE_BYTES_MAX`] is cut, never inside
    /// a character. Never waits: when the queue is full its oldest line is dropped and the tail will say so.
    pub fn line(&self, text: &str) {
        // Before it is cut: no piece shows that it holds a part of the prompt.
        let text = self.hidden.hide(text);
        let mut queue = self.lock();
        for piece in pieces(&text) {
            if queue.lines.len() >= LOG_QUEUE_LINES_MAX {
                queue.overflowed = true;
                queue.lines.pop_front();
            }
            queue.lines.push_back(piece.to_owned());
        }
        self.announce(&mut queue);
    }

    /// Takes what waits. Only the engine calls it.
    pub(crate) fn take(&self) -> Taken {
        let mut queue = self.lock();
        queue.announced = false;
        Taken {
            lines: std::mem::take(&mut queue.lines),
            overflowed: std::mem::take(&mut queue.overflowed),
        }
    }

    /// Says that lines were left out here.
    pub(crate) fn left_out(&self) {
        let mut queue = self.lock();
        queue.overflowed = true;
        queue.lines.clear();
        self.announce(&mut queue);
    }

    fn announce(&self, queue: &mut Queue) {
        if !queue.announced {
            // A full channel is not an error: the flag stays down and the next line tries again.
            queue.announced =
                self.events.try_send(RunnerEvent::LogReady { run: self.run.clone() }).is_ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts a line into pieces of at most [`LOG_LINE_BYTES_MAX`] bytes at character borders.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        if text.len() <= LOG_LINE_BYTES_MAX {
            rest = None;
            return Some(text);
        }
        let (piece, tail) = text.split_at(text.floor_char_boundary(LOG_LINE_BYTES_MAX));
        rest = Some(tail);
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_core::id::TaskId;

    fn sink() -> (LogSink, mpsc::Receiver<RunnerEvent>) {
        let (events, receiver) = mpsc::channel(4);
        let run = RunId { task: TaskId::new("t").unwrap(), attempt: 1 };
        (LogSink::new(run, Arc::new(Input::new("")), events), receiver)
    }

    #[test]
    fn r_77_a_full_queue_drops_lines_and_says_so_once() {
        let (sink, mut events) = sink();
        for n in 0..LOG_QUEUE_LINES_MAX + 10 {
            sink.line(&n.to_string());
        }
        let taken = sink.take();
        assert_eq!(taken.lines.len(), LOG_QUEUE_LINES_MAX);
        assert!(taken.overflowed);
        assert_eq!(
            taken.lines.back().unwrap(),
            &(LOG_QUEUE_LINES_MAX + 9).to_string(),
            "the newest stays"
        );
        assert!(events.try_recv().is_ok(), "the engine is told");
        assert!(events.try_recv().is_err(), "once, however many lines");
        sink.line("more");
        assert!(!sink.take().overflowed, "the flag is taken with the lines");
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let text = "é".repeat(LOG_LINE_BYTES_MAX);
        let cut: Vec<_> = pieces(&text).collect();
        assert_eq!(cut.concat(), text);
        assert!(cut.iter().all(|piece| piece.len() <= LOG_LINE_BYTES_MAX));
        assert_eq!(pieces("").collect::<Vec<_>>(), [""]);
    }
}
