//! Time: what was spent on issues, and timers that run.

use serde::Serialize;
use serde_json::json;

use super::{Actor, At, Filter, Page, Part, actor, at, issues, minutes, part};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, DbError, Row, args};
use crate::store::sql::lane::Tx;

/// Time that was spent on an issue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct TimeEntry {
    pub(crate) id: i64,
    /// `ACM-231`
    pub(crate) issue: String,
    pub(crate) minutes: i64,
    pub(crate) note: String,
    pub(crate) author: Option<Actor>,
    /// The run that spent it.
    pub(crate) task_id: Option<String>,
    pub(crate) created_at: At,
}

/// A timer that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Timer {
    /// `ACM-231`
    pub(crate) issue: String,
    pub(crate) started_at: At,
}

/// Which entries.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TimeFilter {
    /// From this instant on (microseconds).
    pub(crate) from: Option<i64>,
    /// Before this one.
    pub(crate) until: Option<i64>,
    /// Of this user only.
    pub(crate) user_id: Option<i64>,
}

const SELECT: &str = "SELECT e.id, w.prefix, i.number, e.spent_ms, e.note, e.author_type, e.author_id, \
     COALESCE(u.name, a.name), e.task_id, e.created_at FROM time_entries e \
     JOIN issues i ON i.id = e.issue_id JOIN workspaces w ON w.id = e.workspace_id \
     LEFT JOIN users u ON e.author_type = 'user' AND u.id = e.author_id \
     LEFT JOIN agents a ON e.author_type = 'agent' AND a.id = e.author_id WHERE e.workspace_id = $1";

fn read(row: &mut Row) -> Result<TimeEntry, DbError> {
    let (id, prefix, number) = (row.int()?, row.text()?, row.int()?);
    Ok(TimeEntry {
        id,
        issue: format!("{prefix}-{number}"),
        minutes: minutes(row.int()?),
        note: row.text()?,
        author: actor(row)?,
        task_id: row.opt_text()?,
        created_at: at(row)?,
    })
}

/// Time entries of a workspace, the newest first.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    filter: TimeFilter,
    page: Page,
) -> Result<Part<TimeEntry>, StoreError> {
    let mut query = Filter::new(SELECT, args![workspace_id]);
    query.compare("e.created_at", ">=", filter.from);
    query.compare("e.created_at", "<", filter.until);
    query.and("e.author_type", filter.user_id.map(|_| "user"));
    query.and("e.author_id", filter.user_id);
    query.sql.push_str(" ORDER BY e.created_at DESC, e.id DESC");
    part(conn, &query.sql, query.args, page, read).await
}

/// Books time of a user on an issue.
pub(crate) async fn book(
    tx: &mut Tx,
    workspace_id: i64,
    issue: i64,
    user_id: i64,
    (spent_ms, note): (i64, &str),
) -> Result<TimeEntry, StoreError> {
    let issue_id = issues::find(&mut tx.conn, workspace_id, issue).await?;
    let now = tx.now.as_micros();
    let sql = "INSERT INTO time_entries (workspace_id, issue_id, author_type, author_id, spent_ms, note, \
               created_at) VALUES ($1, $2, 'user', $3, $4, $5, $6) RETURNING id";
    let args = args![workspace_id, issue_id, user_id, spent_ms, note, now];
    let id = tx.conn.number(sql, args).await?;
    let sql = "UPDATE issues SET spent_ms = spent_ms + $2, updated_at = $3 WHERE id = $1";
    tx.conn.execute(sql, args![issue_id, spent_ms, now]).await?;
    let data = json!({ "issue_number": issue, "fields": ["spent_minutes"] });
    tx.event(workspace_id, "issue.changed", &data).await?;
    let sql = format!("{SELECT} AND e.id = $2");
    let row = tx.conn.row(&sql, args![workspace_id, id]).await?;
    Ok(read(&mut row.ok_or(StoreError::NotFound)?)?)
}

/// The user's timer, if one runs.
pub(crate) async fn timer(
    conn: &mut Conn,
    workspace_id: i64,
    user_id: i64,
) -> Result<Option<Timer>, StoreError> {
    let sql = "SELECT w.prefix, i.number, t.started_at FROM timers t JOIN issues i ON i.id = t.issue_id \
               JOIN workspaces w ON w.id = t.workspace_id WHERE t.workspace_id = $1 AND t.user_id = $2";
    let Some(mut row) = conn.row(sql, args![workspace_id, user_id]).await? else {
        return Ok(None);
    };
    let (prefix, number) = (row.text()?, row.int()?);
    Ok(Some(Timer { issue: format!("{prefix}-{number}"), started_at: at(&mut row)? }))
}

/// Starts the user's timer on an issue. One that runs on another issue is stopped and booked; one that runs
/// on this issue goes on.
pub(crate) async fn timer_start(
    tx: &mut Tx,
    workspace_id: i64,
    issue: i64,
    user_id: i64,
) -> Result<Timer, StoreError> {
    let issue_id = issues::find(&mut tx.conn, workspace_id, issue).await?;
    let sql = "SELECT 1 FROM timers WHERE workspace_id = $1 AND user_id = $2 AND issue_id = $3";
    if tx.conn.row(sql, args![workspace_id, user_id, issue_id]).await?.is_none() {
        timer_stop(tx, workspace_id, user_id).await?;
        let sql = "INSERT INTO timers (workspace_id, user_id, issue_id, started_at) VALUES ($1, $2, $3, $4) \
                   ON CONFLICT (workspace_id, user_id) DO NOTHING";
        tx.conn.execute(sql, args![workspace_id, user_id, issue_id, tx.now.as_micros()]).await?;
    }
    timer(&mut tx.conn, workspace_id, user_id).await?.ok_or(StoreError::NotFound)
}

/// Stops the user's timer and books its time; nothing when none runs.
pub(crate) async fn timer_stop(
    tx: &mut Tx,
    workspace_id: i64,
    user_id: i64,
) -> Result<Option<TimeEntry>, StoreError> {
    // The row is taken by one transaction only: two that stop at once book once.
    let sql = "DELETE FROM timers WHERE workspace_id = $1 AND user_id = $2 RETURNING issue_id, started_at";
    let Some(mut row) = tx.conn.row(sql, args![workspace_id, user_id]).await? else {
        return Ok(None);
    };
    let (issue_id, started_at) = (row.int()?, row.int()?);
    let spent_ms = tx.now.as_micros().saturating_sub(started_at).max(0) / 1_000;
    let sql = "SELECT number FROM issues WHERE id = $1";
    let issue = tx.conn.number(sql, args![issue_id]).await?;
    book(tx, workspace_id, issue, user_id, (spent_ms, "")).await.map(Some)
}
