//! Deliveries: what runs handed back for an issue.

use serde::Serialize;

use super::{At, Page, Part, at, issues, part};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, args};

/// Something a run handed back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Delivery {
    pub(crate) id: i64,
    /// The run that reported it last.
    pub(crate) task_id: String,
    /// `pull_request`, `branch`, `link` or `file`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) url: Option<String>,
    pub(crate) reference: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) created_at: At,
    pub(crate) updated_at: At,
}

/// Deliveries of an issue, the oldest first.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    issue: i64,
    page: Page,
) -> Result<Part<Delivery>, StoreError> {
    let issue_id = issues::find(conn, workspace_id, issue).await?;
    let sql = "SELECT id, task_id, type, url, reference, title, state, created_at, updated_at \
               FROM deliveries WHERE issue_id = $1 ORDER BY id";
    part(conn, sql, args![issue_id], page, |row| {
        Ok(Delivery {
            id: row.int()?,
            task_id: row.text()?,
            kind: row.text()?,
            url: row.opt_text()?,
            reference: row.opt_text()?,
            title: row.opt_text()?,
            state: row.opt_text()?,
            created_at: at(row)?,
            updated_at: at(row)?,
        })
    })
    .await
}
