//! Projects: listed and made.

use axum::response::Response;

use super::call::{Call, created};
use super::form;
use crate::http::Fault;
use crate::store::sql::people::projects;

/// Characters of a project's name.
const NAME_CHARS_MAX: usize = 128;

/// `GET /projects`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let found = projects::list(&mut call.reader().await?, call.workspace(), page).await?;
    Ok(call.list(page, found))
}

/// `POST /projects`
pub(super) async fn create(call: Call) -> Result<Response, Fault> {
    let mut fields = call.fields();
    let name = form::line(&mut fields, "name", NAME_CHARS_MAX);
    fields.done(())?;
    let workspace_id = call.workspace();
    let made = call
        .write(move |tx| Box::pin(async move { projects::create(tx, workspace_id, &name).await }));
    Ok(created(&made.await?))
}
