//! Tasks in and out of the database.

use std::time::Duration;

use ostler_core::clock::Timestamp;
use ostler_core::lease::{
    Decided, Decision, End, Ended, Lease, LeaseHash, Priority, State, Task, WaitingFor, Waits,
};

use super::db::{Conn, DbError, Kind, Row, Value, Writes, args};
use super::lane::Tx;
use crate::store::plan::{self, Change};
use crate::store::{StoreError, TaskRecord, hex, unhex};

/// What [`read`] reads, of tasks `t` and their issues `i`.
pub(super) const COLUMNS: &str = "t.id, t.workspace_id, t.issue_id, i.number, t.agent_id, t.runtime_id, \
     t.rank, t.lease_nonce, t.lease_request, t.claimed_by, t.error, t.created_at, t.started_at, t.ended_at, t.line_bytes, \
     t.pruned, t.version, t.state, t.attempts, t.hand_backs, t.parks, t.not_before, t.cancel_requested, t.lease_hash, t.lease_expires_at, \
     t.lease_start_by, t.ended_hash, t.ended_how, t.ended_became, t.worked_us, t.working_since, t.wait_for, \
     t.wait_summary, t.wait_since, t.decision, t.decision_note, t.lines, t.lines_before";

/// The tables [`COLUMNS`] are of.
pub(super) const FROM: &str = "tasks t JOIN issues i ON i.id = t.issue_id";

/// What a change of a task is saved with: the columns of its groups, so that a start sends five columns to the database
/// and not all. Few groups make few different statements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    /// Changes with almost everything.
    Place,
    Lease,
    Work,
    End,
    Queue,
    Wait,
    Output,
}

/// What changes of a task, in the order of [`changed`], which has the id before.
const CHANGING: [(&str, Kind, Group); 32] = [
    ("state", Kind::Text, Group::Place),
    ("place", Kind::Text, Group::Place),
    ("lease_expires_at", Kind::Int, Group::Place),
    ("lease_start_by", Kind::Int, Group::Place),
    ("runtime_id", Kind::Text, Group::Lease),
    ("attempts", Kind::Int, Group::Lease),
    ("lease_hash", Kind::Text, Group::Lease),
    ("lease_nonce", Kind::Text, Group::Lease),
    ("lease_request", Kind::Text, Group::Lease),
    ("claimed_by", Kind::Text, Group::Lease),
    ("worked_us", Kind::Int, Group::Work),
    ("working_since", Kind::Int, Group::Work),
    ("started_at", Kind::Int, Group::Work),
    ("ended_hash", Kind::Text, Group::End),
    ("ended_how", Kind::Text, Group::End),
    ("ended_became", Kind::Text, Group::End),
    ("ended_at", Kind::Int, Group::End),
    ("error", Kind::Text, Group::End),
    ("not_before", Kind::Int, Group::Queue),
    ("hand_backs", Kind::Int, Group::Queue),
    ("parks", Kind::Int, Group::Queue),
    ("cancel_requested", Kind::Int, Group::Queue),
    ("rank", Kind::Int, Group::Queue),
    ("wait_for", Kind::Text, Group::Wait),
    ("wait_summary", Kind::Text, Group::Wait),
    ("wait_since", Kind::Int, Group::Wait),
    ("decision", Kind::Text, Group::Wait),
    ("decision_note", Kind::Text, Group::Wait),
    ("lines", Kind::Int, Group::Output),
    ("lines_before", Kind::Int, Group::Output),
    ("line_bytes", Kind::Int, Group::Output),
    ("pruned", Kind::Int, Group::Output),
];

fn corrupt(what: &'static str) -> DbError {
    DbError::Decode(format!("a task's {what} is none of ours").into())
}

fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn instant(value: Option<i64>) -> Option<Timestamp> {
    value.map(Timestamp::from_micros)
}

/// A task from a row of [`COLUMNS`].
pub(super) fn read(row: &mut Row) -> Result<TaskRecord, DbError> {
    let mut record = TaskRecord {
        id: row.text()?,
        workspace_id: row.int()?,
        issue_id: row.int()?,
        issue_number: row.int()?,
        agent_id: row.int()?,
        runtime_id: row.opt_text()?,
        rank: row.int()?,
        lease_nonce: row.opt_text()?,
        lease_request: row.opt_text()?,
        claimed_by: row.opt_text()?,
        error: row.opt_text()?,
        created_at: Timestamp::from_micros(row.int()?),
        started_at: instant(row.opt_int()?),
        ended_at: instant(row.opt_int()?),
        line_bytes: u64::try_from(row.int()?).unwrap_or(0),
        pruned: row.flag()?,
        version: row.int()?,
        machine: Task::new(),
    };
    record.machine = read_machine(row)?;
    Ok(record)
}

fn read_machine(row: &mut Row) -> Result<Task, DbError> {
    let state = State::from_word(&row.text()?).ok_or_else(|| corrupt("state"))?;
    let small = |value: i64| u32::try_from(value).map_err(|_| corrupt("count"));
    let (attempts, hand_backs, parks) =
        (small(row.int()?)?, small(row.int()?)?, small(row.int()?)?);
    let not_before = instant(row.opt_int()?);
    let cancel_requested = row.flag()?;
    let lease = read_lease(row)?;
    let ended = read_ended(row)?;
    let worked = Duration::from_micros(u64::try_from(row.int()?).unwrap_or(0));
    let working_since = instant(row.opt_int()?);
    let waits = read_waits(row)?;
    let large = |value: i64| u64::try_from(value).map_err(|_| corrupt("count"));
    Ok(Task {
        state,
        attempts,
        hand_backs,
        parks,
        not_before,
        cancel_requested,
        lease,
        ended,
        worked,
        working_since,
        waits,
        lines: large(row.int()?)?,
        lines_before: large(row.int()?)?,
    })
}

fn read_lease(row: &mut Row) -> Result<Option<Lease>, DbError> {
    let (hash, expires_at, start_by) = (row.opt_text()?, row.opt_int()?, row.opt_int()?);
    let Some(hash) = hash else { return Ok(None) };
    Ok(Some(Lease {
        hash: unhex(&hash).map(LeaseHash).ok_or_else(|| corrupt("lease"))?,
        expires_at: instant(expires_at).ok_or_else(|| corrupt("lease"))?,
        start_by: instant(start_by),
    }))
}

fn read_ended(row: &mut Row) -> Result<Option<Ended>, DbError> {
    let (hash, how, became) = (row.opt_text()?, row.opt_text()?, row.opt_text()?);
    let Some(hash) = hash else { return Ok(None) };
    Ok(Some(Ended {
        hash: unhex(&hash).map(LeaseHash).ok_or_else(|| corrupt("last lease"))?,
        end: how.as_deref().and_then(End::from_word).ok_or_else(|| corrupt("last lease"))?,
        became: became
            .as_deref()
            .and_then(State::from_word)
            .ok_or_else(|| corrupt("last lease"))?,
    }))
}

fn read_waits(row: &mut Row) -> Result<Option<Waits>, DbError> {
    let (what, summary, since) = (row.opt_text()?, row.opt_text()?, row.opt_int()?);
    let (decided, note) = (row.opt_text()?, row.opt_text()?);
    let Some(what) = what else { return Ok(None) };
    let decided = match decided.as_deref().map(Decided::from_word) {
        None => None,
        Some(Some(decided)) => Some(decided),
        Some(None) => return Err(corrupt("decision")),
    };
    Ok(Some(Waits {
        what: WaitingFor::from_word(&what).ok_or_else(|| corrupt("wait"))?,
        summary: summary.unwrap_or_default(),
        since: instant(since).ok_or_else(|| corrupt("wait"))?,
        decision: decided.map(|decided| Decision { decided, note: note.unwrap_or_default() }),
    }))
}

/// Where a task stands, for the indexes.
fn place(task: &Task) -> &'static str {
    match task.state {
        State::Queued if task.not_before.is_some() => "parked",
        State::Queued => "queue",
        State::Waiting => "waiting",
        state if state.is_held() => "held",
        _ => "ended",
    }
}

/// The id and the values of [`CHANGING`].
fn changed(record: &TaskRecord) -> Vec<Value> {
    let task = &record.machine;
    let at = |instant: Option<Timestamp>| instant.map(Timestamp::as_micros);
    let decision = task.waits.as_ref().and_then(|waits| waits.decision.as_ref());
    args![
        &record.id,
        task.state.word(),
        place(task),
        task.lease.map(|lease| lease.expires_at.as_micros()),
        at(task.lease.and_then(|lease| lease.start_by)),
        record.runtime_id.clone(),
        i64::from(task.attempts),
        task.lease.map(|lease| hex(&lease.hash.0)),
        record.lease_nonce.clone(),
        record.lease_request.clone(),
        record.claimed_by.clone(),
        i64::try_from(task.worked.as_micros()).unwrap_or(i64::MAX),
        at(task.working_since),
        at(record.started_at),
        task.ended.map(|ended| hex(&ended.hash.0)),
        task.ended.map(|ended| ended.end.word()),
        task.ended.map(|ended| ended.became.word()),
        at(record.ended_at),
        record.error.clone(),
        at(task.not_before),
        i64::from(task.hand_backs),
        i64::from(task.parks),
        task.cancel_requested,
        record.rank,
        task.waits.as_ref().map(|waits| waits.what.word()),
        task.waits.as_ref().map(|waits| waits.summary.clone()),
        task.waits.as_ref().map(|waits| waits.since.as_micros()),
        decision.map(|decision| decision.decided.word()),
        decision.map(|decision| decision.note.clone()),
        count(task.lines),
        count(task.lines_before),
        count(record.line_bytes),
        record.pruned,
    ]
}

/// Groups of columns of which something changed.
#[derive(Clone, Copy, Default)]
pub(super) struct Groups(u8);

impl Groups {
    /// Those in which the two differ.
    pub(super) fn between(before: &TaskRecord, after: &TaskRecord) -> Self {
        let (before, after) = (changed(before), changed(after));
        let pairs = before.iter().zip(&after).skip(1).zip(&CHANGING);
        let differ = pairs.filter(|((before, after), _)| before != after);
        Self(differ.fold(0, |all, (_, (_, _, group))| all | 1 << *group as u8))
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn has(self, group: Group) -> bool {
        self.0 & 1 << group as u8 != 0
    }
}

/// Saves what changed of tasks over the ones they were made from; nothing is written when one of these has changed
/// meanwhile.
pub(super) fn save(writes: &mut Writes<'_>, records: &[&TaskRecord], groups: Groups) {
    let is_saved = |at: &usize| {
        let changing = at.checked_sub(1).and_then(|at| CHANGING.get(at));
        changing.is_none_or(|(_, _, group)| groups.has(*group))
    };
    let mut columns = vec![("id", Kind::Text)];
    columns.extend(CHANGING.iter().filter(|it| groups.has(it.2)).map(|it| (it.0, it.1)));
    let set = |(at, (name, _)): (usize, &(&str, Kind))| format!("{name} = v.column{}", at + 1);
    let mut sets: Vec<_> = columns.iter().enumerate().skip(1).map(set).collect();
    sets.push("version = tasks.version + 1".to_owned());
    columns.push(("version", Kind::Int));
    let condition = format!("tasks.version = v.column{}", columns.len());
    let row = |record: &&TaskRecord| {
        let values = changed(record).into_iter().enumerate();
        let mut row: Vec<_> = values.filter(|(at, _)| is_saved(at)).map(|it| it.1).collect();
        row.push(record.version.into());
        row
    };
    let rows = records.iter().map(row).collect();
    writes.update_guarded("tasks", &columns, sets.join(", "), condition, rows);
}

/// Loads and locks tasks, always in the order of their ids, so that two transactions do not wait for each
/// other.
pub(super) async fn lock(conn: &mut Conn, ids: Vec<String>) -> Result<Vec<TaskRecord>, DbError> {
    let lock = if conn.is_postgres() { "FOR NO KEY UPDATE OF t" } else { "" };
    let any = conn.any("t.id", 1);
    let sql = format!("SELECT {COLUMNS} FROM {FROM} WHERE {any} ORDER BY t.id {lock}");
    conn.rows(&sql, args![ids]).await?.iter_mut().map(read).collect()
}

/// Queues a new task.
pub(crate) async fn queue(
    tx: &mut Tx,
    workspace_id: i64,
    issue_id: i64,
    agent_id: i64,
) -> Result<String, StoreError> {
    let sql = "SELECT i.number, i.priority FROM issues i JOIN agents a ON a.workspace_id = i.workspace_id \
               WHERE i.workspace_id = $1 AND i.id = $2 AND a.id = $3";
    let row = tx.conn.row(sql, args![workspace_id, issue_id, agent_id]).await?;
    let mut row = row.ok_or(StoreError::NotFound)?;
    let (number, priority) = (row.int()?, row.text()?);
    let priority = Priority::from_word(&priority).unwrap_or_default();
    let id = ulid::Ulid::generate().to_string().to_lowercase();
    let record = plan::queued(id, (workspace_id, issue_id, number, agent_id), priority, tx.now);
    insert(tx, &record).await?;
    tx.hints.queued(workspace_id, agent_id);
    if let Change::Event { kind, data } = plan::task_event(&record) {
        tx.events(vec![(workspace_id, kind.to_owned(), data)]).await?;
    }
    Ok(record.id)
}

async fn insert(tx: &mut Tx, record: &TaskRecord) -> Result<(), DbError> {
    let mut columns = vec![("id", Kind::Text)];
    columns.extend(CHANGING.map(|(name, kind, _)| (name, kind)));
    columns.extend([
        ("workspace_id", Kind::Int),
        ("issue_id", Kind::Int),
        ("agent_id", Kind::Int),
        ("created_at", Kind::Int),
    ]);
    let mut row = changed(record);
    let created_at = record.created_at.as_micros();
    row.extend(args![record.workspace_id, record.issue_id, record.agent_id, created_at]);
    tx.conn.insert_many("tasks", &columns, vec![row], "").await.map(drop)
}
