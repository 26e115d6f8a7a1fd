//! Tasks as people see them: lists, one with all that is known of it, its output.

use ostler_core::lease::Input;
use ostler_proto::json::{NESTED_MAX, mend};
use serde::Serialize;
use serde_json::Value as Json;

use super::issues::{Waiting, wait_for_others, waiting};
use super::usage::{self, Usage};
use super::why::{self, Why};
use super::{At, Filter, IssueBrief, Named, Page, Part, at, opt_at, part};
use crate::store::sql::batch;
use crate::store::sql::db::{Conn, DbError, Row, args};
use crate::store::sql::lane::Tx;
use crate::store::{Payload, StoreError, TaskCall, What};

/// Bytes of output that one answer carries; a longer line comes alone.
const MESSAGES_BYTES_MAX: i64 = 4 * 1024 * 1024;
/// Lines of output that one answer carries.
pub(crate) const MESSAGES_MAX: i64 = 1_000;

/// A task in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Task {
    pub(crate) id: String,
    pub(crate) status: String,
    pub(crate) issue: IssueBrief,
    pub(crate) agent: Named,
    /// Where it runs or ran last.
    pub(crate) runtime: Option<RuntimeBrief>,
    pub(crate) attempts: i64,
    pub(crate) cancel_requested: bool,
    /// Not to be claimed before.
    pub(crate) not_before: Option<At>,
    pub(crate) lease_expires_at: Option<At>,
    /// What it waits for, while it waits.
    pub(crate) waiting: Option<Waiting>,
    /// Of its last failure.
    pub(crate) error: Option<String>,
    /// Lines of output, of all attempts.
    pub(crate) lines: i64,
    pub(crate) created_at: At,
    pub(crate) started_at: Option<At>,
    pub(crate) ended_at: Option<At>,
}

/// A runtime that is named beside a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct RuntimeBrief {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) provider: String,
}

/// A task with all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TaskDetail {
    #[serde(flatten)]
    pub(crate) task: Task,
    /// Claims that were given back and did not count as attempts.
    pub(crate) hand_backs: i64,
    /// Claims that ended in a usage limit and did not count as attempts.
    pub(crate) parks: i64,
    /// Seconds of work of its last attempt, without waiting.
    pub(crate) worked_seconds: i64,
    /// Of its agent on its issue, as reported last.
    pub(crate) session_id: Option<String>,
    pub(crate) work_dir: Option<String>,
    /// As the machine sent it, of the last completion.
    pub(crate) result: Option<Json>,
    /// The evidence that the machine sent with it.
    pub(crate) receipt: Option<Json>,
    /// Of all its completions; null when none said anything.
    pub(crate) usage: Option<Usage>,
    /// While it is queued.
    pub(crate) why_queued: Option<Why>,
}

/// A line of output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Message {
    /// Counted through all attempts.
    pub(crate) seq: i64,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) content: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) payload: Option<Json>,
    pub(crate) at: At,
}

/// A run that waits for a person.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Approval {
    pub(crate) issue: IssueBrief,
    pub(crate) agent: Named,
    #[serde(flatten)]
    pub(crate) waiting: Waiting,
}

/// Which tasks.
#[derive(Debug, Clone, Default)]
pub(crate) struct TaskFilter {
    /// Any of these; all when empty.
    pub(crate) states: Vec<String>,
    pub(crate) agent_id: Option<i64>,
    /// The issue's number.
    pub(crate) issue: Option<i64>,
}

const COLUMNS: &str = "t.id, t.state, w.prefix, i.number, i.title, a.id, a.name, r.id, r.name, r.provider, \
     t.attempts, t.cancel_requested, t.not_before, t.lease_expires_at, t.wait_for, t.wait_summary, \
     t.wait_since, t.decision, t.decision_note, t.error, t.lines, t.created_at, t.started_at, t.ended_at";
const FROM: &str = "tasks t JOIN issues i ON i.id = t.issue_id JOIN agents a ON a.id = t.agent_id \
     JOIN workspaces w ON w.id = t.workspace_id LEFT JOIN runtimes r ON r.id = t.runtime_id";

fn brief(row: &mut Row) -> Result<IssueBrief, DbError> {
    let (prefix, number) = (row.text()?, row.int()?);
    Ok(IssueBrief { id: format!("{prefix}-{number}"), title: row.text()? })
}

fn runtime(row: &mut Row) -> Result<Option<RuntimeBrief>, DbError> {
    let (id, name, provider) = (row.opt_text()?, row.opt_text()?, row.opt_text()?);
    Ok(id.map(|id| RuntimeBrief {
        id,
        name: name.unwrap_or_default(),
        provider: provider.unwrap_or_default(),
    }))
}

fn read(row: &mut Row) -> Result<Task, DbError> {
    let (id, status) = (row.text()?, row.text()?);
    let issue = brief(row)?;
    let agent = Named { id: row.int()?, name: row.text()? };
    let runtime = runtime(row)?;
    let (attempts, cancel_requested) = (row.int()?, row.flag()?);
    let (not_before, lease_expires_at) = (opt_at(row)?, opt_at(row)?);
    let waiting = waiting(id.clone(), row)?;
    Ok(Task {
        id,
        status,
        issue,
        agent,
        runtime,
        attempts,
        cancel_requested,
        not_before,
        lease_expires_at,
        waiting,
        error: row.opt_text()?,
        lines: row.int()?,
        created_at: at(row)?,
        started_at: opt_at(row)?,
        ended_at: opt_at(row)?,
    })
}

/// Tasks, the newest first.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    filter: &TaskFilter,
    page: Page,
) -> Result<Part<Task>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {FROM} WHERE t.workspace_id = $1");
    let mut query = Filter::new(&sql, args![workspace_id]);
    query.any(conn, "t.state", &filter.states);
    query.and("t.agent_id", filter.agent_id);
    query.and("i.number", filter.issue);
    query.sql.push_str(" ORDER BY t.id DESC");
    part(conn, &query.sql, query.args, page, read).await
}

/// Runs that wait for a person, the longest first.
pub(crate) async fn approvals(
    conn: &mut Conn,
    workspace_id: i64,
    page: Page,
) -> Result<Part<Approval>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM {FROM} WHERE t.workspace_id = $1 AND t.place = 'waiting' \
         AND t.wait_for IS NOT NULL ORDER BY t.wait_since, t.id"
    );
    let found = part(conn, &sql, args![workspace_id], page, read).await?;
    let approval = |task: Task| {
        task.waiting.map(|waiting| Approval { issue: task.issue, agent: task.agent, waiting })
    };
    Ok(Part { items: found.items.into_iter().filter_map(approval).collect(), more: found.more })
}

/// One task. `now` is for a pause that is over.
pub(crate) async fn show(
    conn: &mut Conn,
    workspace_id: i64,
    id: &str,
    now: ostler_core::clock::Timestamp,
) -> Result<TaskDetail, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS}, t.hand_backs, t.parks, t.worked_us, t.working_since, s.session_id, s.work_dir \
         FROM {FROM} LEFT JOIN sessions s ON s.agent_id = t.agent_id AND s.issue_id = t.issue_id \
         WHERE t.workspace_id = $1 AND t.id = $2"
    );
    let row = conn.row(&sql, args![workspace_id, id]).await?;
    let mut row = row.ok_or(StoreError::NotFound)?;
    let task = read(&mut row)?;
    let (hand_backs, parks, worked) = (row.int()?, row.int()?, row.int()?);
    let working = row.opt_int()?.map_or(0, |since| now.as_micros().saturating_sub(since).max(0));
    let (session_id, work_dir) = (row.opt_text()?, row.opt_text()?);
    let sql = "SELECT result FROM results WHERE task_id = $1 ORDER BY id DESC LIMIT 1";
    let result: Option<Json> = match conn.row(sql, args![id]).await? {
        Some(mut row) => read_json(&row.text()?),
        None => None,
    };
    let receipt = result.as_ref().and_then(|it| it.get("receipt")).filter(|it| it.is_object());
    let receipt = receipt.cloned();
    let usage = usage::of_task(conn, id).await?;
    let why_queued =
        if task.status == "queued" { Some(why::of(conn, id, now).await?) } else { None };
    Ok(TaskDetail {
        task,
        hand_backs,
        parks,
        worked_seconds: worked.saturating_add(working) / 1_000_000,
        session_id,
        work_dir,
        result,
        receipt,
        usage,
        why_queued,
    })
}

/// What a machine sent, which is kept as it came, as far as it can be shown.
fn read_json(text: &str) -> Option<Json> {
    serde_json::from_str(&mend(text, NESTED_MAX)).ok()
}

/// Whether a task is of this workspace.
async fn check(conn: &mut Conn, workspace_id: i64, id: &str) -> Result<(), StoreError> {
    let sql = "SELECT 1 FROM tasks WHERE workspace_id = $1 AND id = $2";
    conn.row(sql, args![workspace_id, id]).await?.map(drop).ok_or(StoreError::NotFound)
}

/// Lines of a task's output above `after`, in their order.
pub(crate) async fn messages(
    conn: &mut Conn,
    workspace_id: i64,
    id: &str,
    after: i64,
    limit: i64,
) -> Result<Part<Message>, StoreError> {
    check(conn, workspace_id, id).await?;
    let sql = format!(
        "SELECT seq, CAST(COALESCE(length(content), 0) + COALESCE(length(payload), 0) AS BIGINT) \
         FROM messages WHERE task_id = $1 AND seq > $2 ORDER BY seq LIMIT {}",
        limit + 1
    );
    let (mut bytes, mut count, mut more, mut last) = (0_i64, 0, false, after);
    for mut row in conn.rows(&sql, args![id, after]).await? {
        let (seq, length) = (row.int()?, row.int()?);
        bytes = bytes.saturating_add(length);
        if count == limit || (count > 0 && bytes > MESSAGES_BYTES_MAX) {
            more = true;
            break;
        }
        (count, last) = (count + 1, seq);
    }
    let sql = "SELECT seq, type, content, tool, payload, at FROM messages \
               WHERE task_id = $1 AND seq > $2 AND seq <= $3 ORDER BY seq";
    let mut items = Vec::new();
    for mut row in conn.rows(sql, args![id, after, last]).await? {
        items.push(Message {
            seq: row.int()?,
            kind: row.text()?,
            content: row.opt_text()?,
            tool: row.opt_text()?,
            payload: row.opt_text()?.and_then(|text| read_json(&text)),
            at: at(&mut row)?,
        });
    }
    Ok(Part { items, more })
}

/// Puts a task that ended back into the queue, unless its agent has another one on its issue.
pub(crate) async fn retry(tx: &mut Tx, workspace_id: i64, id: &str) -> Result<(), StoreError> {
    let sql = "SELECT issue_id, agent_id FROM tasks WHERE workspace_id = $1 AND id = $2";
    let row = tx.conn.row(sql, args![workspace_id, id]).await?;
    let mut row = row.ok_or(StoreError::NotFound)?;
    let (issue_id, agent_id) = (row.int()?, row.int()?);
    wait_for_others(tx, issue_id).await?;
    let sql = "SELECT 1 FROM tasks WHERE issue_id = $1 AND agent_id = $2 AND id <> $3 \
               AND place <> 'ended' LIMIT 1";
    if tx.conn.row(sql, args![issue_id, agent_id, id]).await?.is_some() {
        let message = "Another task of this agent on this issue is still open.".to_owned();
        return Err(StoreError::Conflict(message));
    }
    let call = TaskCall {
        workspace_id,
        task_id: id.to_owned(),
        what: What::Input(Input::Retry),
        with: Payload::None,
    };
    let mut outcomes = batch::calls_run(tx, &[&call]).await?;
    outcomes.pop().unwrap_or(Err(StoreError::Busy)).map(drop)
}
