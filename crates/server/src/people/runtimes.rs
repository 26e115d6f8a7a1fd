//! Runtimes: read only; machines register them.

use axum::response::Response;

use super::call::{Call, data};
use crate::http::Fault;
use crate::store::sql::people::runtimes;

/// `GET /runtimes`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let found = runtimes::list(&mut call.reader().await?, call.workspace(), page).await?;
    Ok(call.list(page, found))
}

/// `GET /runtimes/{runtime}`
pub(super) async fn show(call: Call) -> Result<Response, Fault> {
    let id = call.ulid("runtime")?;
    Ok(data(&runtimes::show(&mut call.reader().await?, call.workspace(), &id).await?))
}
