//! Tokens: made and shown once, listed, revoked. Who does not administrate the workspace has its own only.

use axum::response::Response;
use serde::Serialize;

use super::call::{Call, created};
use super::{forbidden, form};
use crate::auth::TokenKind;
use crate::http::{Fault, no_content};
use crate::store::sql::people::members;
use crate::store::sql::people::tokens::{self, NewToken, Token};

/// Characters of a token's name.
const NAME_CHARS_MAX: usize = 128;
/// Days that a token may live.
const DAYS_MAX: i64 = 3_650;
/// What a token may be good for.
const ABILITIES: [&str; 3] = ["read", "write", "admin"];

/// A new token: the only time that its text is shown.
#[derive(Serialize)]
struct Made {
    token: String,
    #[serde(flatten)]
    listed: Token,
}

async fn is_admin(call: &Call, user_id: i64) -> Result<bool, Fault> {
    Ok(members::is_admin(&mut call.reader().await?, call.workspace(), user_id).await?)
}

/// `GET /tokens`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let own = call.identity.user_id;
    let only = (!is_admin(&call, own).await?).then_some(own);
    let found = tokens::list(&mut call.reader().await?, call.workspace(), only, page).await?;
    Ok(call.list(page, found))
}

/// `POST /tokens`
pub(super) async fn create(call: Call) -> Result<Response, Fault> {
    let mut fields = call.fields();
    let name = form::line(&mut fields, "name", NAME_CHARS_MAX);
    let kind = form::opt_choice(&mut fields, "kind", &["daemon", "api"]);
    if !fields.has("kind") {
        fields.fault("kind", "is required");
    }
    let days = fields.opt_int("days", 1..=DAYS_MAX).and_then(|days| u32::try_from(days).ok());
    let user_id = fields.opt_int("user_id", 1..=i64::MAX).unwrap_or(call.identity.user_id);
    let abilities = fields.opt_texts("abilities", ABILITIES.len(), 16);
    let kind = if kind.as_deref() == Some("daemon") { TokenKind::Daemon } else { TokenKind::Api };
    match &abilities {
        Some(_) if kind == TokenKind::Daemon => {
            fields.fault("abilities", "are of tokens of the kind api only");
        }
        Some(words)
            if words.is_empty() || !words.iter().all(|it| ABILITIES.contains(&it.as_str())) =>
        {
            fields.fault("abilities", format!("must be some of {}", ABILITIES.join(", ")));
        }
        _ => {}
    }
    fields.done(())?;
    let mut abilities = match kind {
        TokenKind::Daemon => Vec::new(),
        TokenKind::Api => abilities.unwrap_or_else(|| vec!["read".to_owned(), "write".to_owned()]),
    };
    abilities.sort_by_key(|word| ABILITIES.iter().position(|known| known == word));
    abilities.dedup();
    check_user(&call, user_id, &abilities).await?;
    let workspace_id = call.workspace();
    let new = NewToken { workspace_id, user_id, kind, name, abilities, days };
    let (id, token) = call.write(move |tx| Box::pin(tokens::make(tx, new))).await?;
    let listed = tokens::show(&mut call.reader().await?, workspace_id, id).await?;
    Ok(created(&Made { token, listed }))
}

/// Whoever does not administrate the workspace makes tokens for itself, and nobody gets more than it may.
async fn check_user(call: &Call, user_id: i64, abilities: &[String]) -> Result<(), Fault> {
    let own = call.identity.user_id;
    if user_id != own && !is_admin(call, own).await? {
        return Err(forbidden("Only an administrator of the workspace makes tokens for others."));
    }
    let member = members::show(&mut call.reader().await?, call.workspace(), user_id).await;
    let Ok(member) = member else {
        return Err(Fault::field("user_id", "is no member of this workspace"));
    };
    if member.role != "admin" && abilities.iter().any(|it| it == "admin") {
        return Err(Fault::field("abilities", "admin is for administrators of the workspace only"));
    }
    Ok(())
}

/// `DELETE /tokens/{token}`
pub(super) async fn revoke(call: Call) -> Result<Response, Fault> {
    let (workspace_id, id) = (call.workspace(), call.id("token")?);
    let token = tokens::show(&mut call.reader().await?, workspace_id, id).await?;
    let own = call.identity.user_id;
    if token.user.id != own && !is_admin(&call, own).await? {
        return Err(Fault::not_found());
    }
    call.write(move |tx| Box::pin(tokens::revoke(tx, workspace_id, id))).await?;
    Ok(no_content())
}
