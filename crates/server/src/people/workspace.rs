//! The workspace: who I am in it, its settings, what its runs may check out.

use axum::http::StatusCode;
use axum::response::Response;
use ostler_proto::lease::Fields;
use serde_json::json;

use super::call::{Call, created, data};
use super::form;
use crate::github;
use crate::http::{Fault, json, no_content};
use crate::repository::{Repository, URL_BYTES_MAX};
use crate::secrets::Secret;
use crate::store::sql::people::repositories;
use crate::store::sql::people::workspaces::{self, NewGithubApp, WorkspaceChange};
use crate::text;

/// Characters of a name.
const NAME_CHARS_MAX: usize = 128;
/// Characters of what every agent is told.
const CONTEXT_CHARS_MAX: usize = 50_000;
/// Characters of an id that GitHub gave.
const GITHUB_ID_CHARS_MAX: usize = 64;
/// Characters of a private key.
const KEY_CHARS_MAX: usize = 16_384;

/// `GET /me`, without an envelope.
pub(super) async fn me(call: Call) -> Result<Response, Fault> {
    let identity = &call.identity;
    let body = json!({
        "user": { "id": identity.user_id, "name": identity.user_name },
        "workspace": { "name": identity.workspace_name, "slug": identity.workspace_slug },
        "token": { "abilities": identity.abilities.iter().map(|it| it.word()).collect::<Vec<_>>() },
    });
    Ok(json(StatusCode::OK, &body))
}

/// `GET /workspace`
pub(super) async fn show(call: Call) -> Result<Response, Fault> {
    Ok(data(&workspaces::show(&mut call.reader().await?, call.workspace()).await?))
}

/// `PATCH /workspace`
pub(super) async fn update(call: Call) -> Result<Response, Fault> {
    let mut fields = call.fields();
    let name = form::opt_line(&mut fields, "name", NAME_CHARS_MAX);
    let context = form::opt_long(&mut fields, "context", CONTEXT_CHARS_MAX);
    let app = fields.value("github_app").map(|value| {
        let read = github_app(Fields::within(value, "github_app"));
        fields.take(read.map(Some))
    });
    let github_app = if fields.has("github_app") { Some(app.flatten()) } else { None };
    fields.done(())?;
    let (id, change) = (call.workspace(), WorkspaceChange { name, context, github_app });
    call.write(move |tx| Box::pin(workspaces::change(tx, id, change))).await?;
    show(call).await
}

fn github_app(mut fields: Fields<'_>) -> Result<NewGithubApp, ostler_proto::lease::Faults> {
    let app_id = fields.word("app_id", GITHUB_ID_CHARS_MAX);
    let installation_id = fields.opt_word("installation_id", GITHUB_ID_CHARS_MAX);
    let sent = fields.opt_word("base_url", URL_BYTES_MAX);
    let base_url = github::base_url(sent.as_deref().unwrap_or(github::GITHUB_API));
    let base_url = base_url.unwrap_or_else(|_| {
        fields.fault("base_url", "must be an https address without user, query or fragment");
        String::new()
    });
    let key = fields.opt_text("private_key", KEY_CHARS_MAX);
    if key.as_ref().is_some_and(|key| github::check_key(key).is_err()) {
        fields.fault("private_key", "must be an RSA key in PEM, as GitHub gives it");
    }
    let private_key = key.map(Secret::new);
    fields.done(NewGithubApp { app_id, installation_id, base_url, private_key })
}

/// `GET /repositories`
pub(super) async fn repositories(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let found = repositories::list(&mut call.reader().await?, call.workspace(), page).await?;
    Ok(call.list(page, found))
}

/// `POST /repositories`
pub(super) async fn repository_add(call: Call) -> Result<Response, Fault> {
    let mut fields = call.fields();
    let url = text::plain_line(&fields.text("url", URL_BYTES_MAX), URL_BYTES_MAX);
    fields.done(())?;
    // The fault never repeats the address, which may hold a password.
    let repository =
        Repository::parse(&url).map_err(|fault| Fault::field("url", fault.to_string()))?;
    let id = call.workspace();
    let added =
        call.write(move |tx| Box::pin(async move { repositories::add(tx, id, &repository).await }));
    Ok(created(&added.await?))
}

/// `DELETE /repositories/{repository}`
pub(super) async fn repository_remove(call: Call) -> Result<Response, Fault> {
    let (workspace_id, id) = (call.workspace(), call.id("repository")?);
    call.write(move |tx| Box::pin(repositories::remove(tx, workspace_id, id))).await?;
    Ok(no_content())
}
