//! Retention's transactions, each a small one: output of ended tasks, and events. Totals, usage and results
//! are other tables and stay.

use std::collections::BTreeMap;

use ostler_core::clock::Timestamp;
use serde_json::json;

use super::SqlStore;
use super::db::{Conn, DbError, args};
use super::lane::Tx;
use crate::store::StoreError;

/// Rows that one transaction removes; then others have their turn.
const ROWS_MAX: i64 = 1_000;
/// Tasks that one transaction looks at.
const TASKS_MAX: usize = 50;
/// What servers on one PostgreSQL agree on, so that one prunes at a time: "ostprune" as a number.
const LOCK: i64 = 0x6f73_7470_7275_6e65;

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    /// Tasks whose output is gone now.
    pub(crate) tasks: u64,
    pub(crate) lines: u64,
    pub(crate) bytes: u64,
    pub(crate) events: u64,
}

impl Removed {
    pub(crate) fn add(&mut self, other: Self) {
        self.tasks += other.tasks;
        self.lines += other.lines;
        self.bytes += other.bytes;
        self.events += other.events;
    }
}

/// One transaction's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) removed: Removed,
    /// There is more to remove.
    pub(crate) more: bool,
}

/// Where retention stands in one workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) workspace_id: i64,
    /// Bytes of output of ended tasks.
    pub(crate) bytes: u64,
}

impl SqlStore {
    /// The workspaces with output that could be removed.
    pub(crate) async fn output_kept(&self) -> Result<Vec<Kept>, StoreError> {
        let sql = "SELECT workspace_id, CAST(SUM(line_bytes) AS BIGINT) FROM tasks \
                   WHERE ended_at IS NOT NULL AND pruned = 0 GROUP BY workspace_id ORDER BY workspace_id";
        let mut kept = Vec::new();
        for mut row in self.reader().await?.rows(sql, args![]).await? {
            let workspace_id = row.int()?;
            kept.push(Kept { workspace_id, bytes: u64::try_from(row.int()?).unwrap_or(0) });
        }
        Ok(kept)
    }

    /// When something was last written down, or heard of a machine.
    pub(crate) async fn newest(&self) -> Result<Option<Timestamp>, StoreError> {
        let mut conn = self.reader().await?;
        let mut newest = None;
        for sql in [
            "SELECT at FROM events ORDER BY id DESC LIMIT 1",
            "SELECT last_seen FROM runtimes \
             ORDER BY last_seen DESC LIMIT 1",
        ] {
            if let Some(mut row) = conn.row(sql, args![]).await? {
                newest = newest.max(Some(Timestamp::from_micros(row.int()?)));
            }
        }
        Ok(newest)
    }

    /// Removes output of tasks that ended before `before`, and of older ones until `excess` bytes are gone.
    pub(crate) async fn output_prune(
        &self,
        workspace_id: i64,
        before: Timestamp,
        excess: u64,
    ) -> Result<Step, StoreError> {
        self.write(move |tx| Box::pin(prune_output(tx, workspace_id, before, excess))).await
    }

    /// Records what a round removed in a workspace.
    pub(crate) async fn output_pruned(
        &self,
        workspace_id: i64,
        removed: Removed,
    ) -> Result<(), StoreError> {
        self.write(move |tx| {
            Box::pin(async move {
                let data = json!({ "tasks": removed.tasks, "lines": removed.lines,
                    "bytes": removed.bytes });
                Ok(tx.event(workspace_id, "messages.pruned", &data).await?)
            })
        })
        .await
    }

    /// The last event that may go: older than `before`, or with `events_max` after it once there are a hundredth more.
    /// (A round is an event itself: by the exact number each would make room for that and never end.)
    pub(crate) async fn events_last_old(
        &self,
        before: Timestamp,
        events_max: u64,
    ) -> Result<Option<i64>, StoreError> {
        let mut conn = self.reader().await?;
        let by_age = last_before(&mut conn, before).await?;
        let mut behind = async |skipped: u64| {
            let skipped = i64::try_from(skipped).unwrap_or(i64::MAX);
            let sql = "SELECT id FROM events ORDER BY id DESC LIMIT 1 OFFSET $1";
            conn.row(sql, args![skipped]).await?.map(|mut row| row.int()).transpose()
        };
        let by_number = match behind(events_max + events_max / 100).await? {
            Some(_) => behind(events_max).await?,
            None => None,
        };
        Ok(by_age.max(by_number))
    }

    /// Removes events up to this one; how many of which workspace is counted in `gone`.
    pub(crate) async fn events_prune(
        &self,
        end: i64,
        gone: BTreeMap<i64, u64>,
    ) -> Result<(Step, BTreeMap<i64, u64>), StoreError> {
        self.write(move |tx| Box::pin(prune_events(tx, end, gone))).await
    }

    /// Records what a round removed.
    pub(crate) async fn events_pruned(&self, gone: BTreeMap<i64, u64>) -> Result<(), StoreError> {
        self.write(move |tx| {
            Box::pin(async move {
                let event = |(workspace_id, events)| {
                    let data = json!({ "events": events }).to_string();
                    (workspace_id, "events.pruned".to_owned(), data)
                };
                Ok(tx.events(gone.into_iter().map(event).collect()).await?)
            })
        })
        .await
    }
}

/// The last event before `before`. Events are found by their numbers, which follow time as closely as it matters here:
/// an index by time would cost every event something.
async fn last_before(conn: &mut Conn, before: Timestamp) -> Result<Option<i64>, DbError> {
    let ends = "SELECT COALESCE(min(id), 1), COALESCE(max(id), 0) FROM events";
    let mut ends = conn.row(ends, args![]).await?.ok_or(DbError::RowNotFound)?;
    let (first, mut last) = (ends.int()?, ends.int()?);
    let mut next = first;
    while next <= last {
        let middle = next + (last - next) / 2;
        // There may be no event with that number.
        let sql = "SELECT id, at FROM events WHERE id <= $1 ORDER BY id DESC LIMIT 1";
        let mut row = conn.row(sql, args![middle]).await?.ok_or(DbError::RowNotFound)?;
        let (id, at) = (row.int()?, Timestamp::from_micros(row.int()?));
        if at < before {
            next = middle + 1;
        } else {
            last = id - 1;
        }
    }
    Ok((last >= first).then_some(last))
}

/// Whether this transaction may prune: another server may be at it.
async fn may_prune(tx: &mut Tx) -> Result<bool, StoreError> {
    if !tx.conn.is_postgres() {
        return Ok(true);
    }
    let sql = "SELECT CAST(CASE WHEN pg_try_advisory_xact_lock($1) THEN 1 ELSE 0 END AS BIGINT)";
    Ok(tx.conn.number(sql, args![LOCK]).await? == 1)
}

async fn prune_output(
    tx: &mut Tx,
    workspace_id: i64,
    before: Timestamp,
    excess: u64,
) -> Result<Step, StoreError> {
    let mut step = Step::default();
    if !may_prune(tx).await? {
        return Ok(step);
    }
    // A person may retry one of them just now.
    let lock = if tx.conn.is_postgres() { "FOR UPDATE SKIP LOCKED" } else { "" };
    let sql = format!(
        "SELECT id, ended_at, line_bytes FROM tasks WHERE workspace_id = $1 AND ended_at IS NOT NULL \
         AND pruned = 0 ORDER BY ended_at LIMIT {TASKS_MAX} {lock}"
    );
    let candidates = tx.conn.rows(&sql, args![workspace_id]).await?;
    let is_full = candidates.len() == TASKS_MAX;
    let mut room = ROWS_MAX;
    for mut row in candidates {
        let (id, ended_at) = (row.text()?, Timestamp::from_micros(row.int()?));
        let bytes = row.int()?;
        let bytes = u64::try_from(bytes).unwrap_or(0);
        if ended_at >= before && step.removed.bytes >= excess {
            return Ok(step);
        }
        let sql = "DELETE FROM messages WHERE task_id = $1 AND seq IN \
                   (SELECT seq FROM messages WHERE task_id = $1 ORDER BY seq LIMIT $2)";
        let lines = tx.conn.execute(sql, args![&id, room]).await?;
        step.removed.lines += lines;
        room -= i64::try_from(lines).unwrap_or(room);
        if room <= 0 {
            // Perhaps not all of this one: the next step sees.
            step.more = true;
            return Ok(step);
        }
        let sql =
            "UPDATE tasks SET pruned = 1, line_bytes = 0, version = version + 1 WHERE id = $1";
        tx.conn.execute(sql, args![&id]).await?;
        // One without output is passed over once and never again.
        step.removed.tasks += u64::from(bytes > 0);
        step.removed.bytes += bytes;
    }
    step.more = is_full;
    Ok(step)
}

async fn prune_events(
    tx: &mut Tx,
    end: i64,
    mut gone: BTreeMap<i64, u64>,
) -> Result<(Step, BTreeMap<i64, u64>), StoreError> {
    let mut step = Step::default();
    if !may_prune(tx).await? {
        return Ok((step, gone));
    }
    let sql = "DELETE FROM events WHERE id IN \
               (SELECT id FROM events WHERE id <= $1 ORDER BY id LIMIT $2) RETURNING workspace_id";
    let rows = tx.conn.rows(sql, args![end, ROWS_MAX]).await?;
    step.removed.events = rows.len() as u64;
    step.more = i64::try_from(rows.len()).unwrap_or(0) == ROWS_MAX;
    for mut row in rows {
        *gone.entry(row.int()?).or_default() += 1;
    }
    Ok((step, gone))
}
