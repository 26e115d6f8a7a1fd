//! Tokens: made, listed, revoked. The token itself is returned once and kept nowhere.

use crate::auth::TokenKind;
use crate::secrets;
use crate::store::sql::db::args;
use crate::store::sql::lane::Tx;
use crate::store::{StoreError, hex};

/// What a new token is for.
#[derive(Debug, Clone)]
pub(crate) struct NewToken {
    pub(crate) workspace_id: i64,
    pub(crate) user_id: i64,
    pub(crate) kind: TokenKind,
    pub(crate) name: String,
    /// Of an API token: `read`, `write`, `admin`.
    pub(crate) abilities: Vec<String>,
    /// Days that it lives; for ever when nobody said.
    pub(crate) days: Option<u32>,
}

/// Makes a token; its text is known only now.
pub(crate) async fn create(tx: &mut Tx, new: NewToken) -> Result<String, StoreError> {
    let token = secrets::new_token(new.kind.prefix()).map_err(|_| StoreError::Busy)?;
    let day = 24 * 3600 * 1_000_000_i64;
    let now = tx.now.as_micros();
    let expires_at = new.days.map(|days| now.saturating_add(i64::from(days) * day));
    let sql = "INSERT INTO tokens (workspace_id, user_id, kind, name, prefix, hash, abilities, created_at, expires_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let args = args![
        new.workspace_id,
        new.user_id,
        new.kind.word(),
        new.name,
        secrets::token_prefix(&token),
        hex(&secrets::hash_token(&token)),
        new.abilities.join(","),
        now,
        expires_at
    ];
    tx.conn.execute(sql, args).await?;
    Ok(token)
}

/// Revokes a token of the workspace; whether it was valid until now.
pub(crate) async fn revoke(tx: &mut Tx, workspace_id: i64, id: i64) -> Result<(), StoreError> {
    let sql = "UPDATE tokens SET revoked_at = COALESCE(revoked_at, $3) WHERE workspace_id = $1 AND id = $2";
    if tx.conn.execute(sql, args![workspace_id, id, tx.now.as_micros()]).await? == 0 {
        return Err(StoreError::NotFound);
    }
    // Every server reads this number once a second.
    let sql =
        "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = 'tokens'";
    tx.conn.execute(sql, args![]).await?;
    tx.hints.tokens = true;
    Ok(())
}
