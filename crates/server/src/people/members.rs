//! Members: listed by everybody, administrated by administrators.

use axum::response::Response;

use super::call::{Call, created, data};
use super::{forbidden, form};
use crate::http::{Fault, no_content};
use crate::store::sql::people::members::{self, Member, ROLES};

/// Characters of a name.
const NAME_CHARS_MAX: usize = 128;
/// Characters of an e-mail address.
const EMAIL_CHARS_MAX: usize = 254;

async fn one(call: &Call, id: i64) -> Result<Member, Fault> {
    Ok(members::show(&mut call.reader().await?, call.workspace(), id).await?)
}

/// The person administrates the workspace now. Her token's ability says the same, but a server believes that for
/// some seconds, in which she could make herself an administrator again.
pub(super) async fn check_admin(call: &Call) -> Result<(), Fault> {
    let (workspace_id, own) = (call.workspace(), call.identity.user_id);
    if members::is_admin(&mut call.reader().await?, workspace_id, own).await? {
        return Ok(());
    }
    Err(forbidden("Only an administrator of the workspace does this."))
}

/// `GET /members`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let found = members::list(&mut call.reader().await?, call.workspace(), page).await?;
    Ok(call.list(page, found))
}

/// `POST /members`
pub(super) async fn add(call: Call) -> Result<Response, Fault> {
    let mut fields = call.fields();
    let email = fields.text("email", EMAIL_CHARS_MAX);
    let name = form::opt_line(&mut fields, "name", NAME_CHARS_MAX);
    let role = form::opt_choice(&mut fields, "role", &ROLES);
    fields.done(())?;
    check_admin(&call).await?;
    let workspace_id = call.workspace();
    let id = call.write(move |tx| {
        Box::pin(async move {
            let role = role.as_deref().unwrap_or("member");
            members::add(tx, workspace_id, &email, name.as_deref(), role).await
        })
    });
    let id = id.await?;
    Ok(created(&one(&call, id).await?))
}

/// `PATCH /members/{user}`
pub(super) async fn update(call: Call) -> Result<Response, Fault> {
    let id = call.id("user")?;
    let mut fields = call.fields();
    let role = form::opt_choice(&mut fields, "role", &ROLES);
    if !fields.has("role") {
        fields.fault("role", "is required");
    }
    let role = fields.done(role)?.unwrap_or_default();
    check_admin(&call).await?;
    let workspace_id = call.workspace();
    call.write(move |tx| {
        Box::pin(async move { members::set_role(tx, workspace_id, id, &role).await })
    })
    .await?;
    Ok(data(&one(&call, id).await?))
}

/// `DELETE /members/{user}`
pub(super) async fn remove(call: Call) -> Result<Response, Fault> {
    let (workspace_id, id) = (call.workspace(), call.id("user")?);
    check_admin(&call).await?;
    call.write(move |tx| Box::pin(members::remove(tx, workspace_id, id))).await?;
    Ok(no_content())
}
