//! `claim`: the envelope of a task, at once, after a while, or not at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::Response;
use ostler_proto::lease;
use serde_json::json;

use super::{Call, envelope, register};
use crate::app::{App, Known};
use crate::http::{Fault, json, no_content, parse_json};
use crate::store::{Claim, Claimed, LeaseStore as _, StoreError};

/// Times that a claim tries again at once when the board says that there is work: on PostgreSQL another
/// server may have held the agent for a moment, and a claim waits for nobody.
const BUSY_TRIES_MAX: u32 = 3;
/// The pause between them.
const BUSY_PAUSE: Duration = Duration::from_millis(3);

/// Gives the machine a task, if there is one for it.
pub(super) async fn claim(call: Call) -> Result<Response, Fault> {
    let sent = lease::Claim::parse(&parse_json(&call.body?, call.opaque)?)?;
    let workspace_id = call.identity.workspace_id;
    let app = &call.app;
    let known = app.machine_online(workspace_id, &sent.daemon_id).await;
    let known = known.map_err(register::unregistered)?;
    let waits = call.capabilities.has("long_poll") && sent.wait_seconds > 0;
    let until = Instant::now() + Duration::from_secs(if waits { sent.wait_seconds } else { 0 });
    let claim = Claim {
        workspace_id,
        daemon_id: sent.daemon_id,
        runtimes: known.runtimes.clone(),
        request: sent.request_id,
        starts_soon: call.capabilities.has("start_deadline"),
    };
    match find(app, claim, until).await? {
        Some(claimed) => answer(app, &call.capabilities, &known, claimed).await,
        None => Ok(no_content()),
    }
}

async fn answer(
    app: &Arc<App>,
    capabilities: &crate::version::Capabilities,
    known: &Known,
    claimed: Claimed,
) -> Result<Response, Fault> {
    let envelope = envelope::of(app, capabilities, claimed).await;
    let mut body = json!({ "data": envelope });
    if let (false, Some(body)) = (known.decisions.is_empty(), body.as_object_mut()) {
        body.insert("decisions".to_owned(), json!(known.decisions));
    }
    Ok(json(StatusCode::OK, &body))
}

/// Claims now, and whenever there may be work, until then.
async fn find(app: &App, claim: Claim, until: Instant) -> Result<Option<Claimed>, StoreError> {
    if claim.runtimes.is_empty() {
        return Ok(None);
    }
    loop {
        // Before the look: what appears after it wakes the wait.
        let wait = if until > Instant::now() {
            app.board.wait(claim.workspace_id, &claim.runtimes)
        } else {
            None
        };
        if let Some(claimed) = look(app, &claim).await? {
            return Ok(Some(claimed));
        }
        let Some(mut wait) = wait else { return Ok(None) };
        let woken = tokio::select! {
            biased;
            () = app.stopping.cancelled() => false,
            woken = wait.until(until) => woken,
        };
        if !woken {
            return Ok(None);
        }
    }
}

/// One look: none at the database when the board knows that there is nothing.
async fn look(app: &App, claim: &Claim) -> Result<Option<Claimed>, StoreError> {
    for attempt in 0..BUSY_TRIES_MAX {
        let (generation, may) = app.board.may_have_work(claim.workspace_id, &claim.runtimes);
        // A claim that is repeated asks for what it was given, which is no longer work for others.
        if !may && (claim.request.is_none() || attempt > 0) {
            return Ok(None);
        }
        if let Some(claimed) = app.store.task_claim(claim.clone()).await? {
            return Ok(Some(claimed));
        }
        if !app.store.is_postgres() {
            app.board.found_nothing(claim.workspace_id, &claim.runtimes, generation);
            return Ok(None);
        }
        if !may {
            return Ok(None);
        }
        tokio::time::sleep(BUSY_PAUSE).await;
    }
    Ok(None)
}
