//! Tokens: made and shown once, listed, revoked. The ability `admin` is needed, which only administrators have.

use axum::response::Response;
use ostler_proto::lease::Fields;
use serde::Serialize;

use super::call::{Call, created};
use super::form;
use super::members::check_admin;
use crate::auth::{Ability, TokenKind};
use crate::http::{Fault, no_content};
use crate::store::sql::people::members;
use crate::store::sql::people::tokens::{self, NewToken, Token};

/// Characters of a token's name.
const NAME_CHARS_MAX: usize = 128;
/// Days that a token may live.
const DAYS_MAX: i64 = 3_650;

/// A new token: the only time that its text is shown.
#[derive(Serialize)]
struct Made {
    token: String,
    #[serde(flatten)]
    listed: Token,
}

/// `GET /tokens`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let found = tokens::list(&mut call.reader().await?, call.workspace(), page).await?;
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
    let kind = kind.and_then(|word| TokenKind::from_word(&word)).unwrap_or(TokenKind::Api);
    let abilities = abilities(&mut fields, kind);
    fields.done(())?;
    check_admin(&call).await?;
    check_user(&call, user_id, &abilities).await?;
    let workspace_id = call.workspace();
    let new = NewToken { workspace_id, user_id, kind, name, abilities, days };
    let (id, token) = call.write(move |tx| Box::pin(tokens::make(tx, new))).await?;
    let listed = tokens::show(&mut call.reader().await?, workspace_id, id).await?;
    Ok(created(&Made { token, listed }))
}

/// What the token is to be good for; of a token for machines nothing.
fn abilities(fields: &mut Fields<'_>, kind: TokenKind) -> Vec<Ability> {
    let sent = fields.opt_texts("abilities", Ability::ALL.len(), 16);
    let Some(words) = sent else {
        return match kind {
            TokenKind::Daemon => Vec::new(),
            TokenKind::Api => vec![Ability::Read, Ability::Write],
        };
    };
    if kind == TokenKind::Daemon {
        fields.fault("abilities", "are of tokens of the kind api only");
    }
    let known: Option<Vec<_>> = words.iter().map(|word| Ability::from_word(word)).collect();
    let mut abilities = known.unwrap_or_default();
    if abilities.is_empty() {
        let all = Ability::ALL.map(Ability::word).join(", ");
        fields.fault("abilities", format!("must be some of {all}"));
    }
    abilities.sort_unstable();
    abilities.dedup();
    abilities
}

/// Nobody gets more than it may.
async fn check_user(call: &Call, user_id: i64, abilities: &[Ability]) -> Result<(), Fault> {
    let member = members::show(&mut call.reader().await?, call.workspace(), user_id).await;
    let Ok(member) = member else {
        return Err(Fault::field("user_id", "is no member of this workspace"));
    };
    if member.role != "admin" && abilities.contains(&Ability::Admin) {
        return Err(Fault::field("abilities", "admin is for administrators of the workspace only"));
    }
    Ok(())
}

/// `DELETE /tokens/{token}`
pub(super) async fn revoke(call: Call) -> Result<Response, Fault> {
    let (workspace_id, id) = (call.workspace(), call.id("token")?);
    check_admin(&call).await?;
    call.write(move |tx| Box::pin(tokens::revoke(tx, workspace_id, id))).await?;
    Ok(no_content())
}
