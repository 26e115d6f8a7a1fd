//! Repositories: what runs of a workspace may check out, and nothing else.

use serde::Serialize;
use serde_json::json;

use super::{Page, Part, part};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, args};
use crate::store::sql::lane::Tx;

/// Repositories of one workspace: all of them travel in the envelope of each claim.
const REPOSITORIES_MAX: usize = 100;

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

/// Adds a repository. Its name is its own in the workspace and stays.
pub(crate) async fn add(
    tx: &mut Tx,
    workspace_id: i64,
    new: &crate::repository::Repository,
) -> Result<Repository, StoreError> {
    let sql = "SELECT name, url FROM repositories WHERE workspace_id = $1";
    let mut names = Vec::new();
    for mut row in tx.conn.rows(sql, args![workspace_id]).await? {
        names.push(row.text()?);
        if row.text()? == new.url {
            return Err(StoreError::Conflict(
                "The workspace has this repository already.".to_owned(),
            ));
        }
    }
    if names.len() >= REPOSITORIES_MAX {
        let message = format!("A workspace has at most {REPOSITORIES_MAX} repositories.");
        return Err(StoreError::Conflict(message));
    }
    let name = new.name_beside(|name| names.iter().any(|it| it.eq_ignore_ascii_case(name)));
    let sql = "INSERT INTO repositories (workspace_id, name, url) VALUES ($1, $2, $3) \
               ON CONFLICT (workspace_id, name) DO NOTHING RETURNING id";
    let row = tx.conn.row(sql, args![workspace_id, &name, &new.url]).await?;
    let taken = || StoreError::Conflict("The workspace has this repository already.".to_owned());
    let id = row.ok_or_else(taken)?.int()?;
    let data = json!({ "fields": ["repositories"] });
    tx.event(workspace_id, "workspace.changed", &data).await?;
    Ok(Repository { id, name, url: new.url.clone() })
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
