//! The machines' endpoints, `/api/daemon/…`: one table, and one way in for all of them.
//!
//! Every request passes the same checks in the same order: credentials, client version, rate; then, in the
//! store and in one transaction, existence, lease and state; the body last. (A body is read and parsed before,
//! but a fault in it is told only when nothing else was wrong.)

mod calls;
mod claim;
pub(crate) mod envelope;
pub(crate) mod lend;
mod register;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{any, post};
use ostler_proto::lease::{
    BODY_BYTES_MAX, CAPABILITIES_HEADER, CLIENT_HEADER, MESSAGES_BYTES_MAX, PROTOCOL_HEADER,
    PROTOCOL_VERSION, VERSION_HEADER,
};

use crate::app::App;
use crate::auth::{Identity, TokenKind};
use crate::http::{Fault, bearer, header_text, limits};
use crate::rate::Bucket;
use crate::version;

/// What an endpoint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A machine says what it is.
    Register,
    /// A sign of life.
    Heartbeat,
    /// Asks for work.
    Claim,
    /// The process runs.
    Start,
    /// Output.
    Messages,
    /// The agent's session.
    Session,
    /// The run ended well.
    Complete,
    /// The run ended badly.
    Fail,
    /// The process was stopped.
    CancelAck,
    /// The run waits for a person.
    Await,
    /// The run goes on.
    Resume,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    /// What it does.
    pub action: Action,
    /// Its path; `{task}` is a task's id.
    pub path: &'static str,
    /// Needs the task's lease.
    pub leased: bool,
    bucket: Bucket,
    /// Bytes of its body.
    pub body_bytes_max: usize,
    /// A field that is kept as it comes.
    pub(crate) opaque: Option<&'static str>,
}

const fn row(action: Action, path: &'static str, leased: bool, bucket: Bucket) -> Endpoint {
    let (body_bytes_max, opaque) = match action {
        Action::Messages => (MESSAGES_BYTES_MAX, Some("messages")),
        Action::Complete => (BODY_BYTES_MAX, Some("result")),
        _ => (BODY_BYTES_MAX, None),
    };
    Endpoint { action, path, leased, bucket, body_bytes_max, opaque }
}

/// All of them.
pub const ENDPOINTS: &[Endpoint] = &[
    row(Action::Register, "/api/daemon/register", false, Bucket::Register),
    row(Action::Heartbeat, "/api/daemon/heartbeat", false, Bucket::Heartbeat),
    row(Action::Claim, "/api/daemon/tasks/claim", false, Bucket::Claim),
    row(Action::Start, "/api/daemon/tasks/{task}/start", true, Bucket::Tasks),
    row(Action::Messages, "/api/daemon/tasks/{task}/messages", true, Bucket::Tasks),
    row(Action::Session, "/api/daemon/tasks/{task}/session", true, Bucket::Tasks),
    row(Action::Complete, "/api/daemon/tasks/{task}/complete", true, Bucket::Tasks),
    row(Action::Fail, "/api/daemon/tasks/{task}/fail", true, Bucket::Tasks),
    row(Action::CancelAck, "/api/daemon/tasks/{task}/cancel-ack", true, Bucket::Tasks),
    row(Action::Await, "/api/daemon/tasks/{task}/await", true, Bucket::Tasks),
    row(Action::Resume, "/api/daemon/tasks/{task}/resume", false, Bucket::Tasks),
];

/// What an endpoint is given.
struct Call {
    app: Arc<App>,
    identity: Arc<Identity>,
    capabilities: version::Capabilities,
    headers: HeaderMap,
    task_id: String,
    body: Result<bytes::Bytes, Fault>,
    /// A field of the body that is kept as it comes.
    opaque: Option<&'static str>,
}

/// The router of these endpoints.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        let handler = move |State(app): State<Arc<App>>,
                            path: Result<Path<String>, PathRejection>,
                            request: Request| async move {
            // What is no text is no task's id; a path without a task has none.
            let task_id = path.map(|Path(task)| task).unwrap_or_default();
            // PostgreSQL has no text with a NUL in it, so it is no task's id either.
            let task_id = if task_id.contains('\0') { String::new() } else { task_id };
            handle(app, *endpoint, task_id, request).await
        };
        let refuse = || async {
            tagged(Fault::method_not_allowed("Machine endpoints take POST only.").into_response())
        };
        router = router.route(endpoint.path, post(handler).fallback(refuse));
    }
    let unknown = || async { tagged(Fault::not_found().into_response()) };
    for path in ["/api/daemon", "/api/daemon/", "/api/daemon/{*rest}"] {
        router = router.route(path, any(unknown));
    }
    router.with_state(app)
}

/// Every answer tells the protocol's version.
fn tagged(mut response: Response) -> Response {
    response.headers_mut().insert(PROTOCOL_HEADER, HeaderValue::from(PROTOCOL_VERSION));
    response
}

async fn handle(app: Arc<App>, endpoint: Endpoint, task_id: String, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let address = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let identity = match app.identify(&parts.headers, address, TokenKind::Daemon).await {
        Ok(identity) => identity,
        Err(fault) => return refuse_early(fault, body).await,
    };
    let judged = version::judge(
        header_text(&parts.headers, CLIENT_HEADER),
        header_text(&parts.headers, VERSION_HEADER),
        &app.settings.minimums,
    );
    if let Err(upgrade) = judged {
        return refuse_early(too_old(upgrade), body).await;
    }
    let standing = app.rates.count(endpoint.bucket, identity.token_id);
    let answer = if standing.refused.is_some() {
        crate::http::discard(body).await;
        Err(Fault::too_many(standing))
    } else {
        dispatch(app, endpoint, identity, task_id, parts.headers, body).await
    };
    let mut response = tagged(answer.unwrap_or_else(Fault::into_response));
    limits(&mut response, standing);
    response
}

/// Refuses before the body was looked at: it is let arrive, or the client sees the connection end, takes it for
/// an outage and says the same again.
async fn refuse_early(fault: Fault, body: Body) -> Response {
    crate::http::discard(body).await;
    tagged(fault.into_response())
}

/// Whose token this is now; 401 for one that is unknown, revoked or expired.
async fn known_token(app: &App, headers: &HeaderMap) -> Result<Arc<Identity>, Fault> {
    let identity = app.tokens.identify(&app.store, bearer(headers), TokenKind::Daemon).await?;
    identity.ok_or_else(Fault::unauthorized)
}

fn too_old(upgrade: version::Upgrade) -> Fault {
    let mut fault = Fault::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", upgrade.message);
    fault.body.minimum_version = Some(upgrade.minimum_version);
    fault.body.download_url = Some(upgrade.download_url);
    fault
}

async fn dispatch(
    app: Arc<App>,
    endpoint: Endpoint,
    identity: Arc<Identity>,
    task_id: String,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let read = app.bodies.read(&headers, body, endpoint.body_bytes_max).await;
    // The room is given back when all is done.
    let (body, _room) = match read {
        Ok((body, room)) => (Ok(crate::http::disarmed(body)), Some(room)),
        Err(fault) => (Err(fault), None),
    };
    let capabilities = version::Capabilities::parse(header_text(&headers, CAPABILITIES_HEADER));
    let call =
        Call { app, identity, capabilities, headers, task_id, body, opaque: endpoint.opaque };
    match endpoint.action {
        Action::Register => register::register(call).await,
        Action::Heartbeat => register::heartbeat(call).await,
        Action::Claim => claim::claim(call).await,
        Action::Start => calls::start(call).await,
        Action::Messages => calls::messages(call).await,
        Action::Session => calls::session(call).await,
        Action::Complete => calls::complete(call).await,
        Action::Fail => calls::fail(call).await,
        Action::CancelAck => calls::cancel_ack(call).await,
        Action::Await => calls::wait(call).await,
        Action::Resume => calls::resume(call).await,
    }
}
