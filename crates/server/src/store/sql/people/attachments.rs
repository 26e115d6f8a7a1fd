//! Attachments: files of comments. Their bytes are kept in the database, so that a backup has them.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::json;

use super::{At, at, issues};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, DbError, Row, Value, args};
use crate::store::sql::lane::Tx;

/// Files of one comment.
const FILES_MAX: i64 = 20;

/// A file in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Attachment {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) content_type: String,
    pub(crate) bytes: i64,
    /// Where it can be downloaded, with a token: a path of this server.
    pub(crate) url: String,
    pub(crate) created_at: At,
}

/// A file with its bytes.
pub(crate) struct Content {
    pub(crate) name: String,
    pub(crate) content_type: String,
    pub(crate) bytes: Vec<u8>,
}

/// A new file. Its name was made harmless.
pub(crate) struct NewAttachment {
    pub(crate) name: String,
    pub(crate) content_type: String,
    pub(crate) bytes: Vec<u8>,
}

const SELECT: &str = "SELECT f.id, f.name, f.content_type, f.bytes, f.created_at, w.prefix, i.number, c.id \
     FROM attachments f JOIN comments c ON c.id = f.comment_id JOIN issues i ON i.id = c.issue_id \
     JOIN workspaces w ON w.id = i.workspace_id WHERE c.issue_id = $1 AND c.withdrawn_at IS NULL";

fn read(row: &mut Row) -> Result<(i64, Attachment), DbError> {
    let (id, name, content_type, bytes) = (row.int()?, row.text()?, row.text()?, row.int()?);
    let created_at = at(row)?;
    let (prefix, number, comment) = (row.text()?, row.int()?, row.int()?);
    let url = format!("/api/v1/issues/{prefix}-{number}/comments/{comment}/attachments/{id}");
    Ok((comment, Attachment { id, name, content_type, bytes, url, created_at }))
}

/// Files of comments of one issue, by comment.
pub(super) async fn of(
    conn: &mut Conn,
    issue_id: i64,
    comments: Vec<i64>,
) -> Result<HashMap<i64, Vec<Attachment>>, StoreError> {
    let sql = format!("{SELECT} AND {} ORDER BY f.id", conn.any("c.id", 2));
    let mut all: HashMap<i64, Vec<Attachment>> = HashMap::new();
    for mut row in conn.rows(&sql, args![issue_id, comments]).await? {
        let (comment, file) = read(&mut row)?;
        all.entry(comment).or_default().push(file);
    }
    Ok(all)
}

/// Adds a file to a comment.
pub(crate) async fn create(
    tx: &mut Tx,
    workspace_id: i64,
    issue: i64,
    comment: i64,
    new: NewAttachment,
) -> Result<Attachment, StoreError> {
    let issue_id = issues::find(&mut tx.conn, workspace_id, issue).await?;
    let sql = "SELECT (SELECT count(*) FROM attachments f WHERE f.comment_id = c.id) FROM comments c \
               WHERE c.issue_id = $1 AND c.id = $2 AND c.withdrawn_at IS NULL";
    let row = tx.conn.row(sql, args![issue_id, comment]).await?;
    if row.ok_or(StoreError::NotFound)?.int()? >= FILES_MAX {
        return Err(StoreError::Conflict(format!("A comment has at most {FILES_MAX} files.")));
    }
    let length = i64::try_from(new.bytes.len()).unwrap_or(i64::MAX);
    let sql = "INSERT INTO attachments (comment_id, name, content_type, bytes, content, created_at) \
               VALUES ($1, $2, $3, $4, $5, $6) RETURNING id";
    let mut args = args![comment, new.name, new.content_type, length];
    args.push(Value::Bytes(new.bytes));
    args.push(Value::from(tx.now.as_micros()));
    let id = tx.conn.number(sql, args).await?;
    issues::touch(tx, issue_id).await?;
    let data = json!({ "issue_number": issue, "comment_id": comment, "attachment_id": id });
    tx.event(workspace_id, "attachment.created", &data).await?;
    let sql = format!("{SELECT} AND f.id = $2");
    let row = tx.conn.row(&sql, args![issue_id, id]).await?;
    Ok(read(&mut row.ok_or(StoreError::NotFound)?)?.1)
}

/// A file of a comment with its bytes.
pub(crate) async fn content(
    conn: &mut Conn,
    workspace_id: i64,
    issue: i64,
    comment: i64,
    id: i64,
) -> Result<Content, StoreError> {
    let issue_id = issues::find(conn, workspace_id, issue).await?;
    let sql = "SELECT f.name, f.content_type, f.content FROM attachments f \
               JOIN comments c ON c.id = f.comment_id WHERE c.issue_id = $1 AND c.id = $2 AND f.id = $3 \
               AND c.withdrawn_at IS NULL";
    let row = conn.row(sql, args![issue_id, comment, id]).await?;
    let mut row = row.ok_or(StoreError::NotFound)?;
    Ok(Content { name: row.text()?, content_type: row.text()?, bytes: row.bytes()? })
}
