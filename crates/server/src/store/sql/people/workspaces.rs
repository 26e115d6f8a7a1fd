//! Workspaces, and who belongs to them.

use crate::store::StoreError;
use crate::store::sql::db::{Conn, args};
use crate::store::sql::lane::Tx;

/// Characters of a slug.
const SLUG_CHARS_MAX: usize = 64;
/// Characters of an issue prefix.
const PREFIX_CHARS_MAX: usize = 6;

/// A slug: small letters, digits and dashes.
pub(crate) fn check_slug(slug: &str) -> Result<(), StoreError> {
    let good = !slug.is_empty()
        && slug.len() <= SLUG_CHARS_MAX
        && slug.chars().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '-')
        && !slug.starts_with('-');
    if good {
        return Ok(());
    }
    let fault = "must be small letters, digits and dashes, 64 at most".to_owned();
    Err(StoreError::Invalid { field: "slug", fault })
}

/// The prefix of a workspace's issues: `acme-industries` gives `ACME`.
fn prefix_of(slug: &str) -> String {
    let letters = slug.split('-').next().unwrap_or_default().chars();
    let prefix: String = letters.take(PREFIX_CHARS_MAX).collect();
    if prefix.is_empty() { "TASK".to_owned() } else { prefix.to_uppercase() }
}

/// The workspace with this slug, made if it is not there.
pub(crate) async fn ensure(tx: &mut Tx, slug: &str, name: &str) -> Result<i64, StoreError> {
    check_slug(slug)?;
    let sql = "INSERT INTO workspaces (slug, name, context, prefix, last_issue, created_at) \
               VALUES ($1, $2, '', $3, 0, $4) ON CONFLICT (slug) DO NOTHING";
    tx.conn.execute(sql, args![slug, name, prefix_of(slug), tx.now.as_micros()]).await?;
    Ok(tx.conn.number("SELECT id FROM workspaces WHERE slug = $1", args![slug]).await?)
}

/// The user with this address, made if it is not there, a member with this role.
pub(crate) async fn ensure_member(
    tx: &mut Tx,
    workspace_id: i64,
    email: &str,
    role: &str,
) -> Result<i64, StoreError> {
    let good = email.len() <= 254
        && email.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty())
        && !email.chars().any(|it| it.is_control() || it.is_whitespace());
    if !good {
        let fault = "must be an e-mail address".to_owned();
        return Err(StoreError::Invalid { field: "email", fault });
    }
    let name = email.split('@').next().unwrap_or(email);
    let sql = "INSERT INTO users (email, name, created_at) VALUES ($1, $2, $3) ON CONFLICT (email) DO NOTHING";
    tx.conn.execute(sql, args![email, name, tx.now.as_micros()]).await?;
    let id = tx.conn.number("SELECT id FROM users WHERE email = $1", args![email]).await?;
    let sql = "INSERT INTO members (workspace_id, user_id, role) VALUES ($1, $2, $3) \
               ON CONFLICT (workspace_id, user_id) DO NOTHING";
    tx.conn.execute(sql, args![workspace_id, id, role]).await?;
    Ok(id)
}

/// The workspace with this slug.
pub(crate) async fn find(conn: &mut Conn, slug: &str) -> Result<i64, StoreError> {
    let row = conn.row("SELECT id FROM workspaces WHERE slug = $1", args![slug]).await?;
    Ok(row.ok_or(StoreError::NotFound)?.int()?)
}
