//! `claim`: the envelope of a task, at once, after a while, or not at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::Response;
use ostler_proto::lease;
use serde_json::json;

use super::{Call, envelope, register};
use crate::app::App;
use crate::http::{Fault, json, no_content, parse_json};
use crate::machines::{Known, LOOK_AGAIN};
use crate::store::{Claim, Claimed, LeaseStore as _, StoreError};

/// Times that a claim tries again at once when the board says that there is work: on PostgreSQL another
/// server may have held the agent for a moment, and a claim waits for nobody.
const BUSY_TRIES_MAX: u32 = 3;
/// The pause between them.
const BUSY_PAUSE: Duration = Duration::from_millis(3);

/// Gives the machine a task, if there is one for it.
pub(super) async fn claim(mut call: Call) -> Result<Response, Fault> {
    let body = std::mem::replace(&mut call.body, Ok(bytes::Bytes::new()));
    let sent = lease::Claim::parse(&parse_json(&body?, call.opaque)?)?;
    let waits = call.capabilities.has("long_poll") && sent.wait_seconds > 0;
    let until = Instant::now() + Duration::from_secs(if waits { sent.wait_seconds } else { 0 });
    match find(&call, &sent, until).await? {
        Some((known, claimed)) => answer(&call.app, &call.capabilities, &known, claimed).await,
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
async fn find(
    call: &Call,
    sent: &lease::Claim,
    until: Instant,
) -> Result<Option<(Known, Claimed)>, Fault> {
    let app = &call.app;
    let workspace_id = call.identity.workspace_id;
    loop {
        let known = app.machine_online(workspace_id, &sent.daemon_id).await;
        let known = known.map_err(register::unregistered)?;
        // Before the look: what appears after it wakes the wait.
        let wait = if until > Instant::now() && known.online {
            app.board.wait(workspace_id, &known.runtimes)
        } else {
            None
        };
        let claim = Claim {
            workspace_id,
            daemon_id: sent.daemon_id.clone(),
            // Nothing new for a machine that is offline; what it was given before it may ask for.
            runtimes: if known.online { known.runtimes.clone() } else { Vec::new() },
            request: sent.request_id.clone(),
            starts_soon: call.capabilities.has("start_deadline"),
        };
        if let Some(claimed) = look(app, &claim).await? {
            return Ok(Some((known, claimed)));
        }
        let asleep = async {
            match wait {
                Some(mut wait) => wait.until(until).await,
                None => until_heard_of(&known, until).await,
            }
        };
        let woken = tokio::select! {
            biased;
            () = app.stopping.cancelled() => false,
            woken = asleep => woken,
        };
        if !woken {
            return Ok(None);
        }
        // Much can happen in a minute: what this token and this machine are now is asked again.
        super::known_token(app, &call.headers).await?;
    }
}

/// A machine that is offline is looked at again after a moment: a beat may have come, here or on another server.
/// False when there is nothing to wait for, or no time.
async fn until_heard_of(known: &Known, until: Instant) -> bool {
    if known.online {
        return false;
    }
    let next = Instant::now() + LOOK_AGAIN;
    tokio::time::sleep_until(next.min(until).into()).await;
    next <= until
}

/// One look: none at the database when the board knows that there is nothing.
async fn look(app: &App, claim: &Claim) -> Result<Option<Claimed>, StoreError> {
    if claim.runtimes.is_empty() && claim.request.is_none() {
        return Ok(None);
    }
    for attempt in 0..BUSY_TRIES_MAX {
        let (generation, may) = app.board.may_have_work(claim.workspace_id, &claim.runtimes);
        // A claim that is repeated asks for what it was given, which is no longer work for others.
        if !may && (claim.request.is_none() || attempt > 0) {
            return Ok(None);
        }
        if let Some(claimed) = app.store.task_claim(claim.clone()).await? {
            return Ok(Some(claimed));
        }
        if claim.runtimes.is_empty() {
            return Ok(None);
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
