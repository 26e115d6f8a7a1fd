//! `register` and `heartbeat`.

use axum::http::StatusCode;
use axum::response::Response;
use ostler_proto::lease::{
    Actor, Heartbeat, Register, Registered, Runtime, Status, WorkspaceBrief,
};

use super::Call;
use crate::http::{Fault, json, parse_json};
use crate::store::{self, LeaseStore as _, Registration, StoreError};

/// A machine says what it is; as often as it likes.
pub(super) async fn register(call: Call) -> Result<Response, Fault> {
    let sent = Register::parse(&parse_json(&call.body?, call.opaque)?)?;
    let sent_actors = sent.actors.is_some();
    let actors = sent.actors.map(|actors| {
        let actor = |it: ostler_proto::lease::ActorSent| store::Actor {
            external_id: it.external_id,
            name: it.name,
            description: it.description,
        };
        actors.into_iter().map(actor).collect()
    });
    let registration = Registration {
        workspace_id: call.identity.workspace_id,
        daemon_id: sent.daemon_id,
        name: sent.name,
        version: sent.version,
        providers: sent.providers,
        capabilities: sent.capabilities,
        actors,
    };
    let done = call.app.store.machine_register(registration).await?;
    let runtimes = done.runtimes.into_iter().map(|it| Runtime {
        id: it.id,
        provider: it.provider,
        status: "online".to_owned(),
    });
    let agents = done.agents.into_iter().map(|it| Actor {
        id: it.id,
        external_id: it.external_id,
        name: it.name,
    });
    let workspace = WorkspaceBrief {
        slug: call.identity.workspace_slug.clone(),
        name: call.identity.workspace_name.clone(),
    };
    let agents = sent_actors.then(|| agents.collect());
    let body = Registered { workspace, runtimes: runtimes.collect(), agents };
    Ok(json(StatusCode::CREATED, &body))
}

/// A sign of life; the answer carries decisions that wait for this machine.
pub(super) async fn heartbeat(call: Call) -> Result<Response, Fault> {
    let sent = Heartbeat::parse(&parse_json(&call.body?, call.opaque)?)?;
    let known = call.app.machine_beats(call.identity.workspace_id, &sent.daemon_id).await;
    let known = known.map_err(unregistered)?;
    let body = Status { status: "ok".to_owned(), decisions: known.decisions };
    Ok(json(StatusCode::OK, &body))
}

/// A machine that is not known must register.
pub(super) fn unregistered(error: StoreError) -> Fault {
    match error {
        StoreError::NotFound => {
            let message = "This machine is not registered here: register it again.";
            Fault::new(StatusCode::GONE, "not_registered", message)
        }
        error => error.into(),
    }
}
