//! Comments: read, written, withdrawn.

use axum::response::Response;

use super::call::{Call, created};
use super::{forbidden, form};
use crate::auth::Ability;
use crate::http::{Fault, no_content};
use crate::store::sql::people::comments::{self, Comment};
use crate::text;

async fn one(call: &Call, issue: i64, id: i64) -> Result<Comment, Fault> {
    Ok(comments::show(&mut call.reader().await?, call.workspace(), issue, id).await?)
}

/// `GET /issues/{issue}/comments`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let (issue, page) = (call.issue()?, call.page()?);
    let found = comments::list(&mut call.reader().await?, call.workspace(), issue, page).await?;
    Ok(call.list(page, found))
}

/// `POST /issues/{issue}/comments`
pub(super) async fn create(call: Call) -> Result<Response, Fault> {
    let issue = call.issue()?;
    let mut fields = call.fields();
    let sent = fields.text("body", text::HTML_BYTES_MAX);
    let body = form::html(&mut fields, "body", &sent);
    fields.done(())?;
    if text::is_blank(&body) {
        return Err(Fault::field("body", "shows nothing once it is clean"));
    }
    let (workspace_id, user_id) = (call.workspace(), call.identity.user_id);
    let id = call.write(move |tx| {
        Box::pin(async move { comments::create(tx, workspace_id, issue, user_id, &body).await })
    });
    let id = id.await?;
    Ok(created(&one(&call, issue, id).await?))
}

/// The caller may change this comment: its own, an agent's when `agents`, or any with `admin`.
pub(super) async fn check_own(call: &Call, issue: i64, id: i64, agents: bool) -> Result<(), Fault> {
    let comment = one(call, issue, id).await?;
    let own = comment
        .author
        .as_ref()
        .is_some_and(|author| author.kind == "user" && author.id == call.identity.user_id);
    if own || (agents && comment.is_agent) || call.identity.may(Ability::Admin) {
        return Ok(());
    }
    let message = "This is somebody else's comment: a token with the ability `admin` is needed.";
    Err(forbidden(message))
}

/// `DELETE /issues/{issue}/comments/{comment}`
pub(super) async fn withdraw(call: Call) -> Result<Response, Fault> {
    let (issue, id) = (call.issue()?, call.id("comment")?);
    check_own(&call, issue, id, true).await?;
    let workspace_id = call.workspace();
    call.write(move |tx| Box::pin(comments::withdraw(tx, workspace_id, issue, id))).await?;
    Ok(no_content())
}
