//! Comments: what is said on an issue, by people and by agents.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::json;

use super::attachments::{self, Attachment};
use super::{Actor, At, Page, Part, actor, at, issues, part};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, DbError, Row, args};
use crate::store::sql::lane::Tx;

/// A comment that was not withdrawn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Comment {
    pub(crate) id: i64,
    pub(crate) author: Option<Actor>,
    pub(crate) is_agent: bool,
    /// HTML.
    pub(crate) body: String,
    /// The run it came from.
    pub(crate) task_id: Option<String>,
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) created_at: At,
}

const SELECT: &str = "SELECT c.id, c.author_type, c.author_id, COALESCE(u.name, a.name), c.body, c.task_id, \
     c.created_at FROM comments c \
     LEFT JOIN users u ON c.author_type = 'user' AND u.id = c.author_id \
     LEFT JOIN agents a ON c.author_type = 'agent' AND a.id = c.author_id \
     WHERE c.issue_id = $1 AND c.withdrawn_at IS NULL";

fn read(row: &mut Row) -> Result<Comment, DbError> {
    let id = row.int()?;
    let author = actor(row)?;
    Ok(Comment {
        id,
        is_agent: author.as_ref().is_some_and(|author| author.kind == "agent"),
        author,
        body: row.text()?,
        task_id: row.opt_text()?,
        attachments: Vec::new(),
        created_at: at(row)?,
    })
}

async fn with_attachments(
    conn: &mut Conn,
    issue: i64,
    comments: &mut [Comment],
) -> Result<(), StoreError> {
    let ids = comments.iter().map(|comment| comment.id).collect();
    let mut all: HashMap<i64, Vec<Attachment>> = attachments::of(conn, issue, ids).await?;
    for comment in comments {
        comment.attachments = all.remove(&comment.id).unwrap_or_default();
    }
    Ok(())
}

/// Comments of an issue, the oldest first.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    issue: i64,
    page: Page,
) -> Result<Part<Comment>, StoreError> {
    let issue_id = issues::find(conn, workspace_id, issue).await?;
    let sql = format!("{SELECT} ORDER BY c.id");
    let mut found = part(conn, &sql, args![issue_id], page, read).await?;
    with_attachments(conn, issue_id, &mut found.items).await?;
    Ok(found)
}

/// One comment of an issue.
pub(crate) async fn show(
    conn: &mut Conn,
    workspace_id: i64,
    issue: i64,
    id: i64,
) -> Result<Comment, StoreError> {
    let issue_id = issues::find(conn, workspace_id, issue).await?;
    let sql = format!("{SELECT} AND c.id = $2");
    let row = conn.row(&sql, args![issue_id, id]).await?;
    let mut comments = [read(&mut row.ok_or(StoreError::NotFound)?)?];
    with_attachments(conn, issue_id, &mut comments).await?;
    let [comment] = comments;
    Ok(comment)
}

/// Says something on an issue as this user; `body` is sanitised HTML. The comment's id.
pub(crate) async fn create(
    tx: &mut Tx,
    workspace_id: i64,
    issue: i64,
    user_id: i64,
    body: &str,
) -> Result<i64, StoreError> {
    let issue_id = issues::find(&mut tx.conn, workspace_id, issue).await?;
    let sql = "INSERT INTO comments (workspace_id, issue_id, author_type, author_id, body, created_at) \
               VALUES ($1, $2, 'user', $3, $4, $5) RETURNING id";
    let args = args![workspace_id, issue_id, user_id, body, tx.now.as_micros()];
    let id = tx.conn.number(sql, args).await?;
    issues::touch(tx, issue_id).await?;
    let data = json!({ "issue_number": issue, "comment_id": id });
    tx.event(workspace_id, "comment.created", &data).await?;
    Ok(id)
}

/// Withdraws a comment: it is in no thread any more, for people and for agents.
pub(crate) async fn withdraw(
    tx: &mut Tx,
    workspace_id: i64,
    issue: i64,
    id: i64,
) -> Result<(), StoreError> {
    let issue_id = issues::find(&mut tx.conn, workspace_id, issue).await?;
    let sql = "UPDATE comments SET withdrawn_at = $3 \
               WHERE issue_id = $1 AND id = $2 AND withdrawn_at IS NULL";
    if tx.conn.execute(sql, args![issue_id, id, tx.now.as_micros()]).await? == 0 {
        return Err(StoreError::NotFound);
    }
    issues::touch(tx, issue_id).await?;
    let data = json!({ "issue_number": issue, "comment_id": id });
    tx.event(workspace_id, "comment.withdrawn", &data).await?;
    Ok(())
}
