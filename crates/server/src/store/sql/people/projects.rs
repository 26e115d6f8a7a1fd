//! Projects: what issues belong to.

use serde_json::json;

use super::{Named, Page, Part, part};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, args};
use crate::store::sql::lane::Tx;

/// Projects by name.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    page: Page,
) -> Result<Part<Named>, StoreError> {
    let sql = "SELECT id, name FROM projects WHERE workspace_id = $1 ORDER BY name, id";
    let read =
        |row: &mut crate::store::sql::db::Row| Ok(Named { id: row.int()?, name: row.text()? });
    part(conn, sql, args![workspace_id], page, read).await
}

/// Makes a project.
pub(crate) async fn create(
    tx: &mut Tx,
    workspace_id: i64,
    name: &str,
) -> Result<Named, StoreError> {
    let sql = "INSERT INTO projects (workspace_id, name, created_at) VALUES ($1, $2, $3) \
               ON CONFLICT (workspace_id, name) DO NOTHING RETURNING id";
    let row = tx.conn.row(sql, args![workspace_id, name, tx.now.as_micros()]).await?;
    let taken = || StoreError::Conflict("A project of this workspace has that name.".to_owned());
    let id = row.ok_or_else(taken)?.int()?;
    let data = json!({ "project_id": id, "name": name });
    tx.event(workspace_id, "project.created", &data).await?;
    Ok(Named { id, name: name.to_owned() })
}
