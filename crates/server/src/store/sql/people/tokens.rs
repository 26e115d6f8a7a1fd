//! Tokens: made, listed, revoked. The token itself is returned once and kept nowhere.

use serde::Serialize;
use serde_json::json;

use super::{At, Named, Page, Part, at, opt_at, part};
use crate::auth::{Ability, Identity, TokenKind};
use crate::secrets;
use crate::store::sql::db::{Conn, DbError, Row, args};
use crate::store::sql::lane::Tx;
use crate::store::{StoreError, hex};

/// What a new token is for.
#[derive(Debug, Clone)]
pub(crate) struct NewToken {
    pub(crate) workspace_id: i64,
    pub(crate) user_id: i64,
    pub(crate) kind: TokenKind,
    pub(crate) name: String,
    /// Of an API token.
    pub(crate) abilities: Vec<Ability>,
    /// Days that it lives; for ever when nobody said.
    pub(crate) days: Option<u32>,
}

/// A token in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Token {
    pub(crate) id: i64,
    /// How it begins.
    pub(crate) prefix: String,
    pub(crate) name: String,
    /// `daemon` or `api`.
    pub(crate) kind: String,
    pub(crate) abilities: Vec<&'static str>,
    pub(crate) user: Named,
    pub(crate) created_at: At,
    pub(crate) expires_at: Option<At>,
    pub(crate) revoked_at: Option<At>,
}

const COLUMNS: &str = "t.id, t.prefix, t.name, t.kind, t.abilities, u.id, u.name, t.created_at, \
     t.expires_at, t.revoked_at";
const FROM: &str = "tokens t JOIN users u ON u.id = t.user_id";

fn read(row: &mut Row) -> Result<Token, DbError> {
    Ok(Token {
        id: row.int()?,
        prefix: row.text()?,
        name: row.text()?,
        kind: row.text()?,
        abilities: abilities(&row.text()?).map(Ability::word).collect(),
        user: Named { id: row.int()?, name: row.text()? },
        created_at: at(row)?,
        expires_at: opt_at(row)?,
        revoked_at: opt_at(row)?,
    })
}

/// The abilities in a row; words that are none give nothing.
fn abilities(row: &str) -> impl Iterator<Item = Ability> {
    row.split(',').filter_map(Ability::from_word)
}

/// Whose token has this hash, unless it was revoked. What a person may not do any more her tokens may not either.
pub(crate) async fn look_up(
    conn: &mut Conn,
    hash: &[u8; 32],
) -> Result<Option<Identity>, StoreError> {
    let sql = "SELECT t.id, t.kind, t.abilities, m.role, t.expires_at, t.workspace_id, w.slug, w.name, \
               w.prefix, t.user_id, u.name FROM tokens t JOIN workspaces w ON w.id = t.workspace_id \
               JOIN users u ON u.id = t.user_id \
               LEFT JOIN members m ON m.workspace_id = t.workspace_id AND m.user_id = t.user_id \
               WHERE t.hash = $1 AND t.revoked_at IS NULL";
    let Some(mut row) = conn.row(sql, args![hex(hash)]).await? else { return Ok(None) };
    let (token_id, kind, able, role) = (row.int()?, row.text()?, row.text()?, row.opt_text()?);
    let Some(kind) = TokenKind::from_word(&kind) else { return Ok(None) };
    let administrates = role.as_deref() == Some("admin");
    let may = |ability: &Ability| *ability != Ability::Admin || administrates;
    Ok(Some(Identity {
        token_id,
        kind,
        abilities: abilities(&able).filter(may).collect(),
        expires_at: row.opt_int()?,
        workspace_id: row.int()?,
        workspace_slug: row.text()?,
        workspace_name: row.text()?,
        workspace_prefix: row.text()?,
        user_id: row.int()?,
        user_name: row.text()?,
    }))
}

/// How many times tokens had to be looked up again, as text that is compared only.
pub(crate) async fn revocations(conn: &mut Conn) -> Result<Option<String>, StoreError> {
    match conn.row("SELECT value FROM meta WHERE name = 'tokens'", args![]).await? {
        Some(mut row) => Ok(Some(row.text()?)),
        None => Ok(None),
    }
}

/// Tokens of the workspace, the newest first.
pub(crate) async fn list(
    conn: &mut Conn,
    workspace_id: i64,
    page: Page,
) -> Result<Part<Token>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {FROM} WHERE t.workspace_id = $1 ORDER BY t.id DESC");
    part(conn, &sql, args![workspace_id], page, read).await
}

/// One token of the workspace.
pub(crate) async fn show(conn: &mut Conn, workspace_id: i64, id: i64) -> Result<Token, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM {FROM} WHERE t.workspace_id = $1 AND t.id = $2");
    let row = conn.row(&sql, args![workspace_id, id]).await?;
    Ok(read(&mut row.ok_or(StoreError::NotFound)?)?)
}

/// Makes a token; its text is known only now.
pub(crate) async fn create(tx: &mut Tx, new: NewToken) -> Result<String, StoreError> {
    make(tx, new).await.map(|(_, token)| token)
}

/// Makes a token; its id, and its text, which is known only now.
pub(crate) async fn make(tx: &mut Tx, new: NewToken) -> Result<(i64, String), StoreError> {
    let token = secrets::new_token(new.kind.prefix()).map_err(|_| StoreError::Busy)?;
    let day = 24 * 3600 * 1_000_000_i64;
    let now = tx.now.as_micros();
    let expires_at = new.days.map(|days| now.saturating_add(i64::from(days) * day));
    let sql = "INSERT INTO tokens (workspace_id, user_id, kind, name, prefix, hash, abilities, created_at, \
               expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id";
    let args = args![
        new.workspace_id,
        new.user_id,
        new.kind.word(),
        new.name,
        secrets::token_prefix(&token),
        hex(&secrets::hash_token(&token)),
        new.abilities.iter().map(|it| it.word()).collect::<Vec<_>>().join(","),
        now,
        expires_at
    ];
    let id = tx.conn.number(sql, args).await?;
    tx.event(new.workspace_id, "token.created", &json!({ "token_id": id })).await?;
    Ok((id, token))
}

/// Revokes a token of the workspace; again is no fault.
pub(crate) async fn revoke(tx: &mut Tx, workspace_id: i64, id: i64) -> Result<(), StoreError> {
    let sql = "UPDATE tokens SET revoked_at = COALESCE(revoked_at, $3) WHERE workspace_id = $1 AND id = $2";
    if tx.conn.execute(sql, args![workspace_id, id, tx.now.as_micros()]).await? == 0 {
        return Err(StoreError::NotFound);
    }
    tx.event(workspace_id, "token.revoked", &json!({ "token_id": id })).await?;
    Ok(forget(tx).await?)
}

/// Revokes all tokens of a user in the workspace.
pub(crate) async fn revoke_all(
    tx: &mut Tx,
    workspace_id: i64,
    user_id: i64,
) -> Result<(), StoreError> {
    let sql = "UPDATE tokens SET revoked_at = $3 WHERE workspace_id = $1 AND user_id = $2 \
               AND revoked_at IS NULL RETURNING id";
    for mut row in tx.conn.rows(sql, args![workspace_id, user_id, tx.now.as_micros()]).await? {
        let data = json!({ "token_id": row.int()? });
        tx.event(workspace_id, "token.revoked", &data).await?;
    }
    Ok(forget(tx).await?)
}

/// Makes every server look its tokens up again.
pub(super) async fn forget(tx: &mut Tx) -> Result<(), DbError> {
    // Every server reads this number once a second.
    let sql =
        "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = 'tokens'";
    tx.conn.execute(sql, args![]).await?;
    tx.hints.tokens = true;
    Ok(())
}
