//! Usage: sums of what runs cost.

use axum::response::Response;

use super::call::Call;
use crate::http::Fault;
use crate::store::sql::people::usage::{self, By};

/// `GET /usage`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let word = call.query("by").unwrap_or_else(|| "day".to_owned());
    let by = By::ALL.into_iter().find(|(known, _)| *known == word);
    let (_, by) =
        by.ok_or_else(|| Fault::field("by", "must be one of issue, agent, project, day"))?;
    let range = (call.query_instant("from", false)?, call.query_instant("to", true)?);
    let found = usage::list(&mut call.reader().await?, call.workspace(), by, range, page).await?;
    Ok(call.list(page, found))
}
