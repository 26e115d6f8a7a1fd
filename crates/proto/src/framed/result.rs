//! Results of commands, and how they and snapshots are made to fit.
//!
//! Owns the shapes and the order in which things are left out of a result: the oldest lines of the tails,
//! evenly; then the agents' final answers; then the oldest settled tasks. And of a snapshot, where no task
//! may be missing: tails and answers, then the lists of receipts, of the oldest tasks first. Deliberately absent: which tasks there are.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::COMMAND_VERSION;
use super::frame::{self, FrameError};
use super::task::Task;

/// `,"truncated":true`.
const TRUNCATED_MARK_BYTES: usize = 17;

/// What became of a submit, cancel or retry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Always 1.
    pub version: u32,
    /// In a word.
    pub state: TaskState,
    /// The task as of then.
    pub task: Task,
}

/// The `state` of a [`TaskResult`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Answer to `submit`.
    Submitted,
    /// Answer to `cancel`: nothing of the task is left.
    Cancelled,
    /// Answer to `retry`.
    Queued,
}

/// The live tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListResult {
    /// Always 1.
    pub version: u32,
    /// In order of submission.
    pub tasks: Vec<Task>,
    /// Whether tasks were left out; absent when not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// The limit of tasks that run at once; also the payload of `scheduler_limit_changed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitResult {
    /// Always 1.
    pub version: u32,
    /// 1 to 32.
    pub limit: u8,
}

impl LimitResult {
    /// The result with this limit.
    pub const fn new(limit: u8) -> Self {
        Self { version: COMMAND_VERSION, limit }
    }
}

#[derive(Serialize)]
struct ResultRef<'a, T> {
    r#type: &'static str,
    id: &'a str,
    ok: bool,
    error: Option<&'a str>,
    result: Option<&'a T>,
}

/// Appends the `command_result` frame for command `id`: a result, or the error's text.
///
/// # Errors
/// A frame above `max` bytes, or a `T` without JSON form; `out` is then as it was.
pub fn encode_result<T: Serialize>(
    out: &mut Vec<u8>,
    id: &str,
    result: Result<&T, &str>,
    max: usize,
) -> Result<(), FrameError> {
    let (ok, error, result) = match result {
        Ok(result) => (true, None, Some(result)),
        Err(error) => (false, Some(error), None),
    };
    frame::encode_into(out, &ResultRef { r#type: "command_result", id, ok, error, result }, max)
}

/// Bytes that the result itself may have, so that its `command_result` frame has at most `max`.
pub fn result_bytes_max(id: &str, max: usize) -> usize {
    let empty = ResultRef { r#type: "command_result", id, ok: true, error: None, result: Some(&0) };
    // One byte of the frame is the 0 in the result's place.
    max.saturating_sub(json_bytes(&empty).saturating_sub(1))
}

/// The answer to `submit`, `cancel` or `retry` in at most `max_bytes` (see [`result_bytes_max`]): the oldest
/// lines of the tail are left out, then the receipt's text. A task that is too large without them stays so.
pub fn fit_task(state: TaskState, task: Task, max_bytes: usize) -> TaskResult {
    let mut result = TaskResult { version: COMMAND_VERSION, state, task };
    let excess = |result: &TaskResult| json_bytes(result).saturating_sub(max_bytes);
    let too_much = excess(&result);
    fit_tails(std::slice::from_mut(&mut result.task), too_much);
    if excess(&result) > 0 {
        drop_text(&mut result.task);
    }
    result
}

/// The answer to `list` in at most `max_bytes` (see [`result_bytes_max`]; at least 41). `tasks` are in order
/// of submission.
///
/// While it is too large: the oldest lines of all tails are left out, so that every tail keeps the same
/// number of bytes or all it has; then the receipts' texts; then the oldest settled tasks; then, if even that
/// is not enough, the last in the queue. With a task left out, `truncated` is set.
pub fn fit_list(tasks: Vec<Task>, max_bytes: usize) -> ListResult {
    let mut list = ListResult { version: COMMAND_VERSION, tasks, truncated: false };
    // Cheaply, by length alone, what is far too much in any spelling; the rest is measured.
    cut_tails(&mut list.tasks, |line| line.len() + 2, |_| max_bytes.saturating_mul(4));
    let excess = |list: &ListResult| json_bytes(list).saturating_sub(max_bytes);
    let too_much = excess(&list);
    fit_tails(&mut list.tasks, too_much);
    if too_much == 0 || excess(&list) == 0 {
        return list;
    }
    list.tasks.iter_mut().for_each(drop_text);
    let too_much = excess(&list);
    if too_much > 0 {
        list.truncated = true;
        drop_tasks(&mut list.tasks, too_much + TRUNCATED_MARK_BYTES);
    }
    list
}

/// Makes the tasks of a snapshot fit, in order of submission; all stay. Tails and answers together get at most
/// `texts_bytes_max`; the oldest tasks lose theirs first, of each the oldest lines first. Where the tasks are
/// above `bytes_max` even so, the oldest lose texts and the lists of their receipts. `extra` is what a task
/// takes besides its own JSON.
pub fn fit_snapshot(
    tasks: &mut [Task],
    extra: impl Fn(&Task) -> usize,
    texts_bytes_max: usize,
    bytes_max: usize,
) {
    let texts: usize = tasks.iter().map(texts_bytes).sum();
    shed(tasks, texts.saturating_sub(texts_bytes_max), shed_texts);
    let all: usize = tasks.iter().map(|task| json_bytes(task) + extra(task)).sum();
    shed(tasks, all.saturating_sub(bytes_max), |task, excess| {
        let saved = shed_texts(task, excess);
        if saved < excess { saved + shed_lists(task) } else { saved }
    });
}

/// Saves bytes task by task until `excess` are saved.
fn shed(tasks: &mut [Task], mut excess: usize, one: impl Fn(&mut Task, usize) -> usize) {
    for task in tasks {
        if excess == 0 {
            return;
        }
        excess = excess.saturating_sub(one(task, excess));
    }
}

/// The bytes of its tail's lines and its answer.
fn texts_bytes(task: &Task) -> usize {
    let tail = tail_costs(&task.log_tail, |line| json_bytes(&line)).last().copied();
    let text = task.receipt.as_ref().and_then(|receipt| receipt.text.as_ref());
    tail.unwrap_or(0) + text.map_or(0, json_bytes)
}

fn shed_texts(task: &mut Task, excess: usize) -> usize {
    let costs = tail_costs(&task.log_tail, |line| json_bytes(&line));
    let full = costs.last().copied().unwrap_or(0);
    let kept = costs.partition_point(|&cost| cost + excess <= full);
    let cost = kept.checked_sub(1).and_then(|last| costs.get(last)).copied().unwrap_or(0);
    task.log_tail.drain(..task.log_tail.len() - kept);
    let mut saved = full - cost;
    if saved < excess
        && let Some(text) = task.receipt.as_mut().and_then(|receipt| receipt.text.take())
    {
        saved += json_bytes(&text);
    }
    saved
}

fn shed_lists(task: &mut Task) -> usize {
    let Some(receipt) = &mut task.receipt else { return 0 };
    let before = json_bytes(receipt);
    receipt.denials.clear();
    receipt.killed.clear();
    receipt.kept.clear();
    before - json_bytes(receipt)
}

fn drop_text(task: &mut Task) {
    if let Some(receipt) = &mut task.receipt {
        receipt.text = None;
    }
}

/// Removes tasks until at least `excess` bytes are saved: settled ones from the front, then from the back.
fn drop_tasks(tasks: &mut Vec<Task>, excess: usize) {
    let mut saved = 0;
    tasks.retain(|task| {
        let goes = saved < excess && task.status.is_settled();
        if goes {
            saved += json_bytes(task) + 1;
        }
        !goes
    });
    while saved < excess
        && let Some(last) = tasks.pop()
    {
        saved += json_bytes(&last) + 1;
    }
}

/// Leaves out the oldest lines of the tails until at least `excess_bytes` of JSON are saved, or none is left.
/// Evenly: every tail keeps the newest lines within one common number of bytes, the largest that will do.
pub fn fit_tails(tasks: &mut [Task], excess_bytes: usize) {
    if excess_bytes > 0 {
        cut_tails(tasks, |line| json_bytes(&line), |full| full.saturating_sub(excess_bytes));
    }
}

/// Cuts the tails evenly to the `goal` for all of them, which is worked out from what they take in full.
fn cut_tails(
    tasks: &mut [Task],
    line_bytes: impl Fn(&str) -> usize,
    goal: impl FnOnce(usize) -> usize,
) {
    let costs = |task: &Task| tail_costs(&task.log_tail, &line_bytes);
    let tails: Vec<Vec<usize>> = tasks.iter().map(costs).collect();
    let full: usize = tails.iter().filter_map(|costs| costs.last()).sum();
    let goal = goal(full);
    if full <= goal {
        return;
    }
    let kept = |costs: &[usize], share: usize| costs.partition_point(|&cost| cost <= share);
    let total = |share: usize| -> usize {
        let cost = |costs: &Vec<usize>| {
            kept(costs, share).checked_sub(1).and_then(|last| costs.get(last)).copied().unwrap_or(0)
        };
        tails.iter().map(cost).sum()
    };
    // The largest share whose total is within the goal; 0 keeps nothing, so it always is.
    let (mut share, mut above) = (0, goal + 1);
    while above - share > 1 {
        let middle = share + (above - share) / 2;
        if total(middle) <= goal { share = middle } else { above = middle }
    }
    for (task, costs) in tasks.iter_mut().zip(&tails) {
        let gone = task.log_tail.len() - kept(costs, share);
        task.log_tail.drain(..gone);
    }
}

/// For 1, 2, … newest lines: the bytes they take between the brackets.
fn tail_costs(tail: &[String], line_bytes: impl Fn(&str) -> usize) -> Vec<usize> {
    let lines = tail.iter().rev();
    lines
        .scan(0, |sum, line| {
            let comma = usize::from(*sum > 0);
            *sum += line_bytes(line) + comma;
            Some(*sum)
        })
        .collect()
}

/// The length of a value's JSON, without keeping it.
fn json_bytes(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // The types here always have a JSON form; if one had not, it would never be sent either.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}
