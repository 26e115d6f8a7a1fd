//! Issues: what is to be done, and who does it. Assigning one to an agent queues a task.

use serde_json::json;

use crate::store::StoreError;
use crate::store::sql::db::args;
use crate::store::sql::lane::Tx;
use crate::store::sql::rows;

/// A new issue.
#[derive(Debug, Clone)]
pub(crate) struct NewIssue {
    pub(crate) workspace_id: i64,
    pub(crate) title: String,
    /// HTML, sanitised.
    pub(crate) description: String,
    pub(crate) acceptance_criteria: Vec<String>,
    pub(crate) priority: String,
}

/// Makes an issue; its id and its number.
pub(crate) async fn create(tx: &mut Tx, new: NewIssue) -> Result<(i64, i64), StoreError> {
    let sql =
        "UPDATE workspaces SET last_issue = last_issue + 1 WHERE id = $1 RETURNING last_issue";
    let number = tx.conn.number(sql, args![new.workspace_id]).await?;
    let sql = "INSERT INTO issues (workspace_id, number, title, description, acceptance_criteria, status, priority, \
               type, spent_ms, created_at, updated_at) \
               VALUES ($1, $2, $3, $4, $5, 'todo', $6, 'task', 0, $7, $7) RETURNING id";
    let criteria = json!(new.acceptance_criteria).to_string();
    let args = args![
        new.workspace_id,
        number,
        &new.title,
        &new.description,
        criteria,
        &new.priority,
        tx.now.as_micros()
    ];
    let id = tx.conn.number(sql, args).await?;
    tx.event(new.workspace_id, "issue.created", &json!({ "issue_number": number })).await?;
    Ok((id, number))
}

/// Assigns an issue to an agent and queues a task; its id.
pub(crate) async fn assign_agent(
    tx: &mut Tx,
    workspace_id: i64,
    issue_id: i64,
    agent_id: i64,
) -> Result<String, StoreError> {
    let task_id = rows::queue(tx, workspace_id, issue_id, agent_id).await?;
    let sql = "UPDATE issues SET assignee_type = 'agent', assignee_id = $3, updated_at = $4 \
               WHERE workspace_id = $1 AND id = $2";
    tx.conn.execute(sql, args![workspace_id, issue_id, agent_id, tx.now.as_micros()]).await?;
    Ok(task_id)
}
