//! Runtimes: one agent CLI on one machine, as the machine registered it.

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{At, Page, Part, at, part};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, DbError, Row, args};

/// A runtime.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Runtime {
    pub(crate) id: String,
    /// Which agent CLI.
    pub(crate) provider: String,
    /// Of the machine.
    pub(crate) name: String,
    /// The machine's own id.
    pub(crate) daemon_id: String,
    /// Of the machine's daemon.
    pub(crate) version: String,
    /// As the machine sent it: operating system, architecture and more.
    pub(crate) capabilities: Json,
    pub(crate) online: bool,
    /// `online` or `offline`.
    pub(crate) status: &'static str,
    pub(crate) last_seen: At,
    pub(crate) created_at: At,
}

const SELECT: &str = "SELECT id, provider, name, daemon_id, version, capabilities, online, listed, \
     last_seen, created_at FROM runtimes WHERE workspace_id = $1";

fn read(row: &mut Row) -> Result<Runtime, DbError> {
    let (id, provider, name) = (row.text()?, row.text()?, row.text()?);
    let (daemon_id, version) = (row.text()?, row.text()?);
    let capabilities = serde_json::from_str(&row.text()?).unwrap_or_else(|_| json!({}));
    let (online, listed) = (row.flag()?, row.flag()?);
    let online = online && listed;
    Ok(Runtime {
        id,
        provider,
        name,
        daemon_id,
        version,
        capabilities,
        online,
        status: if online { "online" } else { "offline" },
        last_seen: at(row)?,
        created_at: at(row)?,
    })
}

/// Runtimes by machine and provider.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    page: Page,
) -> Result<Part<Runtime>, StoreError> {
    let sql = format!("{SELECT} ORDER BY name, daemon_id, provider");
    part(conn, &sql, args![workspace_id], page, read).await
}

/// One runtime.
pub(crate) async fn show(
    conn: &mut Conn,
    workspace_id: i64,
    id: &str,
) -> Result<Runtime, StoreError> {
    let sql = format!("{SELECT} AND id = $2");
    let row = conn.row(&sql, args![workspace_id, id]).await?;
    Ok(read(&mut row.ok_or(StoreError::NotFound)?)?)
}
