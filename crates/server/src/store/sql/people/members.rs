//! Members: the people of a workspace, and what they are there.

use serde::Serialize;
use serde_json::json;

use super::{At, Page, Part, at, invalid, part, tokens, workspaces};
use crate::auth::{Ability, Identity, TokenKind};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, DbError, Row, args};
use crate::store::sql::lane::Tx;

/// What a member can be.
pub(crate) const ROLES: [&str; 2] = ["admin", "member"];

/// A member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Member {
    /// Of the user.
    pub(crate) id: i64,
    pub(crate) email: String,
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) created_at: At,
}

fn read(row: &mut Row) -> Result<Member, DbError> {
    Ok(Member {
        id: row.int()?,
        email: row.text()?,
        name: row.text()?,
        role: row.text()?,
        created_at: at(row)?,
    })
}

const SELECT: &str = "SELECT u.id, u.email, u.name, m.role, u.created_at FROM members m \
     JOIN users u ON u.id = m.user_id WHERE m.workspace_id = $1";

fn check_role(role: &str) -> Result<(), StoreError> {
    if ROLES.contains(&role) {
        return Ok(());
    }
    Err(invalid("role", format!("must be one of {}", ROLES.join(", "))))
}

/// Members by name.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    page: Page,
) -> Result<Part<Member>, StoreError> {
    let sql = format!("{SELECT} ORDER BY u.name, u.id");
    part(conn, &sql, args![workspace_id], page, read).await
}

/// One member.
pub(crate) async fn show(
    conn: &mut Conn,
    workspace_id: i64,
    user_id: i64,
) -> Result<Member, StoreError> {
    let sql = format!("{SELECT} AND u.id = $2");
    let row = conn.row(&sql, args![workspace_id, user_id]).await?;
    Ok(read(&mut row.ok_or(StoreError::NotFound)?)?)
}

/// The member with this address.
pub(crate) async fn find(
    conn: &mut Conn,
    workspace_id: i64,
    email: &str,
) -> Result<Member, StoreError> {
    let sql = format!("{SELECT} AND u.email = $2");
    let row = conn.row(&sql, args![workspace_id, email.to_lowercase()]).await?;
    Ok(read(&mut row.ok_or(StoreError::NotFound)?)?)
}

/// The workspace's oldest administrator, with every ability; for commands on the same machine, which have no token.
pub(crate) async fn first_admin(
    conn: &mut Conn,
    workspace_id: i64,
) -> Result<Option<Identity>, StoreError> {
    let sql = "SELECT w.slug, w.name, w.prefix, u.id, u.name FROM workspaces w \
               JOIN members m ON m.workspace_id = w.id AND m.role = 'admin' \
               JOIN users u ON u.id = m.user_id WHERE w.id = $1 ORDER BY u.id LIMIT 1";
    let Some(mut row) = conn.row(sql, args![workspace_id]).await? else { return Ok(None) };
    Ok(Some(Identity {
        token_id: 0,
        kind: TokenKind::Api,
        abilities: Ability::ALL.to_vec(),
        expires_at: None,
        workspace_id,
        workspace_slug: row.text()?,
        workspace_name: row.text()?,
        workspace_prefix: row.text()?,
        user_id: row.int()?,
        user_name: row.text()?,
    }))
}

/// Whether the user administrates the workspace.
pub(crate) async fn is_admin(
    conn: &mut Conn,
    workspace_id: i64,
    user_id: i64,
) -> Result<bool, StoreError> {
    match show(conn, workspace_id, user_id).await {
        Ok(member) => Ok(member.role == "admin"),
        Err(StoreError::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Adds a member, and the user if nobody has the address; the user's id.
pub(crate) async fn add(
    tx: &mut Tx,
    workspace_id: i64,
    email: &str,
    name: Option<&str>,
    role: &str,
) -> Result<i64, StoreError> {
    check_role(role)?;
    match find(&mut tx.conn, workspace_id, email).await {
        Ok(_) => {
            let message = "The user is a member of this workspace already.".to_owned();
            return Err(StoreError::Conflict(message));
        }
        Err(StoreError::NotFound) => {}
        Err(error) => return Err(error),
    }
    let id = workspaces::ensure_user(tx, email, name).await?;
    let sql = "INSERT INTO members (workspace_id, user_id, role) VALUES ($1, $2, $3) \
               ON CONFLICT (workspace_id, user_id) DO NOTHING";
    tx.conn.execute(sql, args![workspace_id, id, role]).await?;
    let data = json!({ "user_id": id, "role": role });
    tx.event(workspace_id, "member.added", &data).await?;
    Ok(id)
}

/// Gives a member another role. A workspace keeps an administrator.
pub(crate) async fn set_role(
    tx: &mut Tx,
    workspace_id: i64,
    user_id: i64,
    role: &str,
) -> Result<(), StoreError> {
    check_role(role)?;
    lock(tx, workspace_id).await?;
    show(&mut tx.conn, workspace_id, user_id).await?;
    let sql = "UPDATE members SET role = $3 WHERE workspace_id = $1 AND user_id = $2";
    tx.conn.execute(sql, args![workspace_id, user_id, role]).await?;
    check_admin_left(tx, workspace_id).await?;
    // What a token may do depends on it.
    tokens::forget(tx).await?;
    let data = json!({ "user_id": user_id, "role": role });
    tx.event(workspace_id, "member.changed", &data).await?;
    Ok(())
}

/// Removes a member; its tokens for this workspace are revoked. What it wrote stays.
pub(crate) async fn remove(tx: &mut Tx, workspace_id: i64, user_id: i64) -> Result<(), StoreError> {
    lock(tx, workspace_id).await?;
    let sql = "DELETE FROM members WHERE workspace_id = $1 AND user_id = $2";
    if tx.conn.execute(sql, args![workspace_id, user_id]).await? == 0 {
        return Err(StoreError::NotFound);
    }
    check_admin_left(tx, workspace_id).await?;
    tokens::revoke_all(tx, workspace_id, user_id).await?;
    tx.event(workspace_id, "member.removed", &json!({ "user_id": user_id })).await?;
    Ok(())
}

/// Two administrators do not remove each other at the same moment.
async fn lock(tx: &mut Tx, workspace_id: i64) -> Result<(), StoreError> {
    let sql = format!("SELECT 1 FROM workspaces WHERE id = $1 {}", super::locking(&tx.conn));
    tx.conn.row(&sql, args![workspace_id]).await?;
    Ok(())
}

async fn check_admin_left(tx: &mut Tx, workspace_id: i64) -> Result<(), StoreError> {
    let sql = "SELECT 1 FROM members WHERE workspace_id = $1 AND role = 'admin' LIMIT 1";
    if tx.conn.row(sql, args![workspace_id]).await?.is_some() {
        return Ok(());
    }
    Err(StoreError::Conflict("A workspace keeps at least one administrator.".to_owned()))
}
