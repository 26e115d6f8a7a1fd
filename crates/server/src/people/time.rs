//! Time: booked by hand or by a timer.

use axum::response::Response;

use super::call::{Call, created, data};
use super::form;
use crate::http::Fault;
use crate::store::sql::people::time::{self, TimeFilter};

/// Minutes of one entry: ten weeks.
const MINUTES_MAX: i64 = 100_800;
/// Characters of a note.
const NOTE_CHARS_MAX: usize = 1_000;

/// `POST /issues/{issue}/time`
pub(super) async fn book(call: Call) -> Result<Response, Fault> {
    let issue = call.issue()?;
    let mut fields = call.fields();
    let minutes = fields.int("minutes", 1..=MINUTES_MAX);
    let note = form::opt_long(&mut fields, "note", NOTE_CHARS_MAX).unwrap_or_default();
    fields.done(())?;
    let (workspace_id, user_id) = (call.workspace(), call.identity.user_id);
    let booked = call.write(move |tx| {
        Box::pin(async move {
            time::book(tx, workspace_id, issue, user_id, (minutes * 60_000, &note)).await
        })
    });
    Ok(created(&booked.await?))
}

/// `GET /time-entries`
pub(super) async fn list(call: Call) -> Result<Response, Fault> {
    let page = call.page()?;
    let mine = call.query_flag("mine")?;
    let filter = TimeFilter {
        from: call.query_instant("from", false)?,
        until: call.query_instant("to", true)?,
        user_id: mine.then_some(call.identity.user_id),
    };
    let found = time::list(&mut call.reader().await?, call.workspace(), filter, page).await?;
    Ok(call.list(page, found))
}

/// `GET /timer`
pub(super) async fn timer(call: Call) -> Result<Response, Fault> {
    let (workspace_id, user_id) = (call.workspace(), call.identity.user_id);
    Ok(data(&time::timer(&mut call.reader().await?, workspace_id, user_id).await?))
}

/// `POST /issues/{issue}/timer`
pub(super) async fn start(call: Call) -> Result<Response, Fault> {
    let issue = call.issue()?;
    let (workspace_id, user_id) = (call.workspace(), call.identity.user_id);
    let timer = call.write(move |tx| Box::pin(time::timer_start(tx, workspace_id, issue, user_id)));
    Ok(created(&timer.await?))
}

/// `DELETE /timer`
pub(super) async fn stop(call: Call) -> Result<Response, Fault> {
    let (workspace_id, user_id) = (call.workspace(), call.identity.user_id);
    let booked = call.write(move |tx| Box::pin(time::timer_stop(tx, workspace_id, user_id)));
    Ok(data(&booked.await?))
}
