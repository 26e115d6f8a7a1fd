//! Repositories: what runs of a workspace may check out, and nothing else.

use serde::Serialize;
use serde_json::json;

use super::{Page, Part, part};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, args};
use crate::store::sql::lane::Tx;

/// A repository. Its URL holds no credential: such a one is refused before it comes here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Repository {
    pub(crate) id: i64,
    /// The folder of its checkout: owner and repository.
    pub(crate) name: String,
    pub(crate) url: String,
}

/// Repositories by name.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    page: Page,
) -> Result<Part<Repository>, StoreError> {
    let sql = "SELECT id, name, url FROM repositories WHERE workspace_id = $1 ORDER BY name, id";
    part(conn, sql, args![workspace_id], page, |row| {
        Ok(Repository { id: row.int()?, name: row.text()?, url: row.text()? })
    })
    .await
}

/// Adds a repository.
pub(crate) async fn add(
    tx: &mut Tx,
    workspace_id: i64,
    name: &str,
    url: &str,
) -> Result<Repository, StoreError> {
    let sql = "INSERT INTO repositories (workspace_id, name, url) VALUES ($1, $2, $3) \
               ON CONFLICT (workspace_id, name) DO NOTHING RETURNING id";
    let row = tx.conn.row(sql, args![workspace_id, name, url]).await?;
    let taken = || StoreError::Conflict(format!("The workspace has a repository {name} already."));
    let id = row.ok_or_else(taken)?.int()?;
    let data = json!({ "fields": ["repositories"] });
    tx.event(workspace_id, "workspace.changed", &data).await?;
    Ok(Repository { id, name: name.to_owned(), url: url.to_owned() })
}

/// Removes a repository.
pub(crate) async fn remove(tx: &mut Tx, workspace_id: i64, id: i64) -> Result<(), StoreError> {
    let sql = "DELETE FROM repositories WHERE workspace_id = $1 AND id = $2";
    if tx.conn.execute(sql, args![workspace_id, id]).await? == 0 {
        return Err(StoreError::NotFound);
    }
    let data = json!({ "fields": ["repositories"] });
    tx.event(workspace_id, "workspace.changed", &data).await?;
    Ok(())
}
