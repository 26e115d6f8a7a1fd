//! Issues: what is to be done, and who does it. Assigning one to an agent queues a task.
//!
//! What an assignment does to tasks: an agent gets one, unless a task of this agent on this issue is still
//! open. Tasks of the agent that had the issue before are cancelled as long as nobody has taken them; a run
//! that a machine has, or that waits for a person, goes on until somebody cancels it.

use ostler_core::lease::{Input, Priority, State, rank};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{
    Actor, At, Filter, Named, Page, Part, actor, at, invalid, locking, minutes, named, part, update,
};
use crate::store::sql::db::{Conn, DbError, Row, Value, args};
use crate::store::sql::lane::Tx;
use crate::store::sql::{batch, rows};
use crate::store::{Payload, StoreError, TaskCall, What};

/// Where an issue can be.
pub(crate) const STATUSES: [&str; 7] =
    ["backlog", "todo", "in_progress", "in_review", "on_hold", "done", "canceled"];
/// What an issue is when nobody said.
const TYPE: &str = "task";
/// Where it begins when nobody said.
const STATUS: &str = "todo";

/// Where the numbers begin that issues are locked by: "ostissue" as a number.
const ISSUES_LOCK: i64 = 0x6f73_7469_7373_7565;

/// An issue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Issue {
    /// `ACM-231`
    pub(crate) id: String,
    pub(crate) number: i64,
    pub(crate) title: String,
    /// HTML.
    pub(crate) description: String,
    pub(crate) acceptance_criteria: Json,
    pub(crate) status: String,
    pub(crate) priority: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) estimate_minutes: Option<i64>,
    pub(crate) spent_minutes: i64,
    pub(crate) project: Option<Named>,
    pub(crate) assignee: Option<Actor>,
    /// The run that waits for a person, the oldest if there are several.
    pub(crate) waiting: Option<Waiting>,
    pub(crate) created_at: At,
    pub(crate) updated_at: At,
}

/// What a run waits for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Waiting {
    pub(crate) task_id: String,
    /// `approval` or `input`.
    pub(crate) waiting_for: String,
    pub(crate) summary: String,
    pub(crate) since: At,
    /// Decided, but the machine has not gone on yet.
    pub(crate) decision: Option<String>,
    pub(crate) note: Option<String>,
}

/// Reads five columns of a task that waits.
pub(super) fn waiting(task_id: String, row: &mut Row) -> Result<Option<Waiting>, DbError> {
    let (what, summary, since) = (row.opt_text()?, row.opt_text()?, row.opt_int()?);
    let (decision, note) = (row.opt_text()?, row.opt_text()?);
    Ok(what.zip(since).map(|(waiting_for, since)| Waiting {
        task_id,
        waiting_for,
        summary: summary.unwrap_or_default(),
        since: At(since),
        decision,
        note,
    }))
}

/// Which issues.
#[derive(Debug, Clone, Default)]
pub(crate) struct IssueFilter {
    pub(crate) assignee: Option<Assignee>,
    pub(crate) project_id: Option<i64>,
    /// Any of these; all when empty.
    pub(crate) statuses: Vec<String>,
}

/// Who is to do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Assignee {
    Nobody,
    User(i64),
    Agent(i64),
}

impl Assignee {
    fn columns(self) -> (Option<&'static str>, Option<i64>) {
        match self {
            Self::Nobody => (None, None),
            Self::User(id) => (Some("user"), Some(id)),
            Self::Agent(id) => (Some("agent"), Some(id)),
        }
    }
}

/// A new issue.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewIssue {
    pub(crate) workspace_id: i64,
    pub(crate) title: String,
    /// HTML, sanitised.
    pub(crate) description: String,
    pub(crate) acceptance_criteria: Vec<String>,
    /// `none` when empty.
    pub(crate) priority: String,
    /// One of [`STATUSES`]; `todo` when nobody said.
    pub(crate) status: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) estimate_minutes: Option<i64>,
    pub(crate) project_id: Option<i64>,
}

/// What changes of an issue.
#[derive(Debug, Clone, Default)]
pub(crate) struct IssueChange {
    pub(crate) title: Option<String>,
    /// HTML, sanitised.
    pub(crate) description: Option<String>,
    pub(crate) acceptance_criteria: Option<Vec<String>>,
    pub(crate) status: Option<String>,
    pub(crate) priority: Option<Priority>,
    pub(crate) kind: Option<String>,
    pub(crate) estimate_minutes: Option<Option<i64>>,
    pub(crate) project_id: Option<Option<i64>>,
    pub(crate) assignee: Option<Assignee>,
}

const COLUMNS: &str = "i.id, w.prefix, i.number, i.title, i.description, i.acceptance_criteria, i.status, \
     i.priority, i.type, i.estimate_minutes, i.spent_ms, p.id, p.name, i.assignee_type, i.assignee_id, \
     COALESCE(u.name, a.name), i.created_at, i.updated_at";
const FROM: &str = "issues i JOIN workspaces w ON w.id = i.workspace_id \
     LEFT JOIN projects p ON p.id = i.project_id \
     LEFT JOIN users u ON i.assignee_type = 'user' AND u.id = i.assignee_id \
     LEFT JOIN agents a ON i.assignee_type = 'agent' AND a.id = i.assignee_id";

fn read(row: &mut Row) -> Result<(i64, Issue), DbError> {
    let row_id = row.int()?;
    let (prefix, number) = (row.text()?, row.int()?);
    let issue = Issue {
        id: format!("{prefix}-{number}"),
        number,
        title: row.text()?,
        description: row.text()?,
        acceptance_criteria: serde_json::from_str(&row.text()?).unwrap_or_else(|_| json!([])),
        status: row.text()?,
        priority: row.text()?,
        kind: row.text()?,
        estimate_minutes: row.opt_int()?,
        spent_minutes: minutes(row.int()?),
        project: named(row)?,
        assignee: actor(row)?,
        waiting: None,
        created_at: at(row)?,
        updated_at: at(row)?,
    };
    Ok((row_id, issue))
}

/// Issues, those with the newest activity first.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    filter: &IssueFilter,
    page: Page,
) -> Result<Part<Issue>, StoreError> {
    let mut query = Filter::new(
        &format!("SELECT {COLUMNS} FROM {FROM} WHERE i.workspace_id = $1"),
        args![workspace_id],
    );
    match filter.assignee.map(Assignee::columns) {
        Some((None, _)) => query.sql.push_str(" AND i.assignee_type IS NULL"),
        Some((kind, id)) => {
            query.and("i.assignee_type", kind);
            query.and("i.assignee_id", id);
        }
        None => {}
    }
    query.and("i.project_id", filter.project_id);
    query.any(conn, "i.status", &filter.statuses);
    query.sql.push_str(" ORDER BY i.updated_at DESC, i.id DESC");
    let found = part(conn, &query.sql, query.args, page, read).await?;
    let items = with_waiting(conn, found.items).await?;
    Ok(Part { items, more: found.more })
}

/// The issue with this number.
pub(crate) async fn show(
    conn: &mut Conn,
    workspace_id: i64,
    number: i64,
) -> Result<Issue, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {FROM} WHERE i.workspace_id = $1 AND i.number = $2");
    let row = conn.row(&sql, args![workspace_id, number]).await?;
    let found = read(&mut row.ok_or(StoreError::NotFound)?)?;
    with_waiting(conn, vec![found]).await?.pop().ok_or(StoreError::NotFound)
}

async fn with_waiting(
    conn: &mut Conn,
    issues: Vec<(i64, Issue)>,
) -> Result<Vec<Issue>, StoreError> {
    let ids: Vec<i64> = issues.iter().map(|(id, _)| *id).collect();
    let any = conn.any("issue_id", 1);
    let sql = format!(
        "SELECT issue_id, id, wait_for, wait_summary, wait_since, decision, decision_note FROM tasks \
         WHERE {any} AND place = 'waiting' ORDER BY wait_since DESC, id DESC"
    );
    let mut waits = std::collections::HashMap::new();
    for mut row in conn.rows(&sql, args![ids]).await? {
        let (issue_id, task_id) = (row.int()?, row.text()?);
        waits.insert(issue_id, waiting(task_id, &mut row)?);
    }
    let joined = issues
        .into_iter()
        .map(|(id, issue)| Issue { waiting: waits.remove(&id).flatten(), ..issue });
    Ok(joined.collect())
}

/// The row of the issue with this number.
pub(crate) async fn find(
    conn: &mut Conn,
    workspace_id: i64,
    number: i64,
) -> Result<i64, StoreError> {
    let sql = "SELECT id FROM issues WHERE workspace_id = $1 AND number = $2";
    let row = conn.row(sql, args![workspace_id, number]).await?;
    Ok(row.ok_or(StoreError::NotFound)?.int()?)
}

/// `ACM-231`, in any case, as a number; none when it is no issue of a workspace with this prefix.
pub(crate) fn number_of(prefix: &str, identifier: &str) -> Option<i64> {
    let (own, number) = identifier.rsplit_once('-')?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (own.eq_ignore_ascii_case(prefix) && digits).then(|| number.parse().ok())?
}

/// Something happened on the issue: it comes first in lists.
pub(super) async fn touch(tx: &mut Tx, issue_id: i64) -> Result<(), DbError> {
    let sql = "UPDATE issues SET updated_at = $2 WHERE id = $1";
    tx.conn.execute(sql, args![issue_id, tx.now.as_micros()]).await.map(drop)
}

async fn check_project(conn: &mut Conn, workspace_id: i64, id: i64) -> Result<(), StoreError> {
    let sql = "SELECT 1 FROM projects WHERE workspace_id = $1 AND id = $2";
    match conn.row(sql, args![workspace_id, id]).await? {
        Some(_) => Ok(()),
        None => Err(invalid("project_id", "is no project of this workspace")),
    }
}

fn check_status(status: &str) -> Result<(), StoreError> {
    if STATUSES.contains(&status) {
        return Ok(());
    }
    Err(invalid("status", format!("must be one of {}", STATUSES.join(", "))))
}

/// Makes an issue; its id and its number.
pub(crate) async fn create(tx: &mut Tx, new: NewIssue) -> Result<(i64, i64), StoreError> {
    let status = new.status.as_deref().unwrap_or(STATUS);
    check_status(status)?;
    let priority = if new.priority.is_empty() { "none" } else { &new.priority };
    if Priority::from_word(priority).is_none() {
        return Err(invalid("priority", "must be one of none, low, medium, high, urgent"));
    }
    if let Some(project_id) = new.project_id {
        check_project(&mut tx.conn, new.workspace_id, project_id).await?;
    }
    let sql =
        "UPDATE workspaces SET last_issue = last_issue + 1 WHERE id = $1 RETURNING last_issue";
    let number = tx.conn.number(sql, args![new.workspace_id]).await?;
    let sql = "INSERT INTO issues (workspace_id, number, project_id, title, description, \
               acceptance_criteria, status, priority, type, estimate_minutes, spent_ms, created_at, \
               updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, $11, $11) RETURNING id";
    let args = args![
        new.workspace_id,
        number,
        new.project_id,
        &new.title,
        &new.description,
        json!(new.acceptance_criteria).to_string(),
        status,
        priority,
        new.kind.as_deref().unwrap_or(TYPE),
        new.estimate_minutes,
        tx.now.as_micros()
    ];
    let id = tx.conn.number(sql, args).await?;
    tx.event(new.workspace_id, "issue.created", &json!({ "issue_number": number })).await?;
    Ok((id, number))
}

/// Changes an issue; the id of the task that this queued, if any.
pub(crate) async fn change(
    tx: &mut Tx,
    workspace_id: i64,
    number: i64,
    change: IssueChange,
) -> Result<Option<String>, StoreError> {
    let issue_id = find(&mut tx.conn, workspace_id, number).await?;
    // Tasks before the issue, as a machine's calls lock them.
    let tasks = if change.priority.is_some() || change.assignee.is_some() {
        wait_for_others(tx, issue_id).await?;
        open_tasks(tx, issue_id).await?
    } else {
        Vec::new()
    };
    let sql = format!("SELECT priority FROM issues WHERE id = $1 {}", locking(&tx.conn));
    let before = tx.conn.row(&sql, args![issue_id]).await?.ok_or(StoreError::NotFound)?.text()?;
    if let Some(Some(project_id)) = change.project_id {
        check_project(&mut tx.conn, workspace_id, project_id).await?;
    }
    if let Some(status) = &change.status {
        check_status(status)?;
    }
    if let Some(assignee) = change.assignee {
        check_assignee(&mut tx.conn, workspace_id, assignee).await?;
    }
    let fields = save(tx, issue_id, &change).await?;
    if let Some(priority) = change.priority {
        reorder(tx, issue_id, Priority::from_word(&before).unwrap_or_default(), priority).await?;
    }
    if !fields.is_empty() {
        let data = json!({ "issue_number": number, "fields": fields });
        tx.event(workspace_id, "issue.changed", &data).await?;
    }
    match change.assignee {
        Some(assignee) => hand_over(tx, workspace_id, issue_id, assignee, &tasks).await,
        None => Ok(None),
    }
}

/// Sets the columns that change; their names.
async fn save(
    tx: &mut Tx,
    issue_id: i64,
    change: &IssueChange,
) -> Result<Vec<&'static str>, StoreError> {
    let mut sets: Vec<(&'static str, Value)> = Vec::new();
    let mut set = |name, value: Option<Value>| sets.extend(value.map(|value| (name, value)));
    set("title", change.title.as_ref().map(Value::from));
    set("description", change.description.as_ref().map(Value::from));
    let criteria = change.acceptance_criteria.as_ref();
    set("acceptance_criteria", criteria.map(|it| Value::from(json!(it).to_string())));
    set("status", change.status.as_ref().map(Value::from));
    set("priority", change.priority.map(|it| Value::from(it.word())));
    set("type", change.kind.as_ref().map(Value::from));
    set("estimate_minutes", change.estimate_minutes.map(Value::from));
    set("project_id", change.project_id.map(Value::from));
    if let Some((kind, id)) = change.assignee.map(Assignee::columns) {
        set("assignee_type", Some(Value::from(kind)));
        set("assignee_id", Some(Value::from(id)));
    }
    update(tx, "issues", issue_id, sets, true).await
}

/// Who gives an issue's tasks out waits for others who do: what one of them queued, the next one sees. Without it
/// two at once give an agent two tasks. (The issue's row is locked after its tasks, which is too late for that.)
pub(super) async fn wait_for_others(tx: &mut Tx, issue_id: i64) -> Result<(), DbError> {
    if tx.conn.is_postgres() {
        let lock = "SELECT 1 FROM pg_advisory_xact_lock($1)";
        tx.conn.rows(lock, args![ISSUES_LOCK.wrapping_add(issue_id)]).await?;
    }
    Ok(())
}

/// Locks the issue's tasks that have not ended: id, agent and state.
async fn open_tasks(tx: &mut Tx, issue_id: i64) -> Result<Vec<(String, i64, String)>, DbError> {
    let sql = format!(
        "SELECT id, agent_id, state FROM tasks WHERE issue_id = $1 \
         AND place <> 'ended' ORDER BY id {}",
        locking(&tx.conn)
    );
    let rows = tx.conn.rows(&sql, args![issue_id]).await?;
    rows.into_iter().map(|mut row| Ok((row.text()?, row.int()?, row.text()?))).collect()
}

async fn check_assignee(
    conn: &mut Conn,
    workspace_id: i64,
    assignee: Assignee,
) -> Result<(), StoreError> {
    let (sql, id, fault) = match assignee {
        Assignee::Nobody => return Ok(()),
        Assignee::User(id) => (
            "SELECT 1 FROM members WHERE workspace_id = $1 AND user_id = $2",
            id,
            "is no member of this workspace",
        ),
        Assignee::Agent(id) => (
            "SELECT 1 FROM agents WHERE workspace_id = $1 AND id = $2 AND archived_at IS NULL",
            id,
            "is no agent of this workspace, or an archived one",
        ),
    };
    match conn.row(sql, args![workspace_id, id]).await? {
        Some(_) => Ok(()),
        None => Err(invalid("assignee_id", fault)),
    }
}

/// The tasks of an issue keep their age and take its new priority.
async fn reorder(
    tx: &mut Tx,
    issue_id: i64,
    from: Priority,
    to: Priority,
) -> Result<(), StoreError> {
    let shift = rank(to, tx.now) - rank(from, tx.now);
    if shift == 0 {
        return Ok(());
    }
    let sql = "UPDATE tasks SET rank = rank + $2, version = version + 1 WHERE issue_id = $1 \
               AND place <> 'ended'";
    tx.conn.execute(sql, args![issue_id, shift]).await?;
    Ok(())
}

/// Ends what nobody has begun for others, and queues a task for an agent that has none here.
async fn hand_over(
    tx: &mut Tx,
    workspace_id: i64,
    issue_id: i64,
    assignee: Assignee,
    tasks: &[(String, i64, String)],
) -> Result<Option<String>, StoreError> {
    let own = |agent_id: i64| assignee == Assignee::Agent(agent_id);
    let queued = State::Queued.word();
    let cancels: Vec<_> = tasks
        .iter()
        .filter(|(_, agent_id, state)| !own(*agent_id) && state == queued)
        .map(|(id, _, _)| TaskCall {
            workspace_id,
            task_id: id.clone(),
            what: What::Input(Input::Cancel),
            with: Payload::None,
        })
        .collect();
    batch::calls_run(tx, &cancels.iter().collect::<Vec<_>>()).await?;
    match assignee {
        Assignee::Agent(agent_id) if !tasks.iter().any(|(_, agent, _)| *agent == agent_id) => {
            rows::queue(tx, workspace_id, issue_id, agent_id).await.map(Some)
        }
        _ => Ok(None),
    }
}
