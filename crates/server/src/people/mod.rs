//! The people's endpoints, `/api/v1/…`: one table, and one way in for all of them.
//!
//! Every request passes the same checks in the same order: credentials, rate, ability, body; then existence
//! and what the call asks for. The table also says which schema a body has (`schemas.json`): fields that it
//! does not name are refused, except on the endpoints that clients of others use, whose schemas are open. The
//! document at `/openapi.json` is made from the same table and the same schemas.

mod agents;
pub(crate) mod attachments;
mod call;
mod comments;
mod form;
mod issues;
mod members;
pub(crate) mod openapi;
mod projects;
mod runtimes;
mod skills;
mod table;
mod tasks;
mod time;
mod tokens;
mod usage;
mod workspace;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, any, get};
use ostler_core::suggest;
use ostler_proto::lease::{BODY_BYTES_MAX, Faults};
use serde_json::Value;

use crate::app::App;
pub use crate::auth::Ability;
use crate::auth::{Identity, TokenKind};
use crate::http::{Fault, disarmed, limits, parse_json};
use crate::observe::Scheme;
use crate::rate::Bucket;
use call::{Call, Sent};
pub use table::{Answer, ENDPOINTS, Endpoint, FILE, Shape};

/// The router of these endpoints, and of the document that describes them.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut paths: Vec<&'static str> = ENDPOINTS.iter().map(|endpoint| endpoint.path).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut router = Router::new();
    for path in paths {
        let rows: Vec<_> = ENDPOINTS.iter().filter(|endpoint| endpoint.path == path).collect();
        let mut methods = MethodRouter::new();
        for endpoint in &rows {
            let endpoint: &'static Endpoint = endpoint;
            let handler = move |State(app): State<Arc<App>>,
                                params: Result<RawPathParams, _>,
                                request: Request| {
                handle(app, endpoint, path_params(params), request)
            };
            methods = methods.on(filter(endpoint.method), handler);
        }
        let allowed = rows.iter().map(|endpoint| endpoint.method).collect::<Vec<_>>().join(", ");
        router = router.route(path, methods.fallback(move || refuse(allowed.clone())));
    }
    let unknown = || async { Fault::not_found().into_response() };
    let document = || async { openapi::answer() };
    router
        .route("/api/v1/{*rest}", any(unknown))
        .route("/openapi.json", get(document))
        .with_state(app)
}

fn filter(method: &str) -> MethodFilter {
    match method {
        "POST" => MethodFilter::POST,
        "PATCH" => MethodFilter::PATCH,
        "PUT" => MethodFilter::PUT,
        "DELETE" => MethodFilter::DELETE,
        _ => MethodFilter::GET,
    }
}

async fn refuse(allowed: String) -> Response {
    let message = format!("This takes {allowed} only.");
    let mut response = Fault::method_not_allowed(message).into_response();
    if let Ok(allowed) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

/// `None` when the path is not text.
fn path_params(
    params: Result<RawPathParams, axum::extract::rejection::RawPathParamsRejection>,
) -> Option<Vec<(String, String)>> {
    let params = params.ok()?;
    Some(params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

async fn handle(
    app: Arc<App>,
    endpoint: &'static Endpoint,
    params: Option<Vec<(String, String)>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let address = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let scheme = parts.extensions.get::<Scheme>().copied().unwrap_or(Scheme("http"));
    let identity = match app.identify(&parts.headers, address, TokenKind::Api).await {
        Ok(identity) => identity,
        Err(fault) => return fault.into_response(),
    };
    let standing = app.rates.count(Bucket::Api, identity.token_id);
    let answer = if standing.refused.is_some() {
        Err(Fault::too_many(standing))
    } else {
        run(app, endpoint, identity, (params, scheme), parts, body).await
    };
    let mut response = answer.unwrap_or_else(Fault::into_response);
    limits(&mut response, standing);
    response
}

/// The same for whoever administrates on this machine: without a connection, a token and a limit. `path` is
/// one of the table, `params` are what stands in its braces.
pub(crate) async fn locally(
    app: Arc<App>,
    identity: Arc<Identity>,
    (method, path): (&str, &str),
    params: Vec<(String, String)>,
    query: &str,
    sent: Value,
) -> Result<Response, Fault> {
    let mut rows = ENDPOINTS.iter();
    let endpoint = rows.find(|endpoint| (endpoint.method, endpoint.path) == (method, path));
    let endpoint = endpoint.ok_or_else(Fault::not_found)?;
    let sent = match endpoint.body {
        Some(schema) => {
            known_fields(schema, &sent)?;
            Sent::Json(sent)
        }
        None => Sent::Nothing,
    };
    let uri = format!("/?{query}").parse().map_err(|_| Fault::not_found())?;
    let (headers, scheme) = (HeaderMap::new(), Scheme("http"));
    (endpoint.run)(Call { app, identity, params, scheme, uri, headers, sent }).await
}

/// The token may not do this.
fn forbidden(message: impl Into<String>) -> Fault {
    Fault::new(StatusCode::FORBIDDEN, "forbidden", message)
}

async fn run(
    app: Arc<App>,
    endpoint: &'static Endpoint,
    identity: Arc<Identity>,
    (params, scheme): (Option<Vec<(String, String)>>, Scheme),
    parts: axum::http::request::Parts,
    body: Body,
) -> Result<Response, Fault> {
    if !identity.may(endpoint.ability) {
        let ability = endpoint.ability.word();
        return Err(forbidden(format!("This needs a token with the ability `{ability}`.")));
    }
    let params = params.ok_or_else(Fault::not_found)?;
    known_parameters(endpoint.query, parts.uri.query().unwrap_or_default())?;
    let sent = match endpoint.body {
        None => Sent::Nothing,
        Some(table::FILE) => Sent::Raw(Mutex::new(body)),
        Some(schema) => {
            let (body, _room) = app.bodies.read(&parts.headers, body, BODY_BYTES_MAX).await?;
            let value = parse_json(&disarmed(body), None)?;
            known_fields(schema, &value)?;
            Sent::Json(value)
        }
    };
    let call = Call { app, identity, params, scheme, uri: parts.uri, headers: parts.headers, sent };
    (endpoint.run)(call).await
}

/// Refuses fields that a closed schema does not name.
fn known_fields(schema: &str, value: &Value) -> Result<(), Fault> {
    let mut faults = Faults::default();
    for (name, meant) in openapi::unknown_fields(schema, value) {
        faults.add(name, unknown("field", meant));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.into()) }
}

/// Refuses parameters that the endpoint does not have: one that is misspelled would be a filter that is not there.
pub(crate) fn known_parameters(known: &[&str], query: &str) -> Result<(), Fault> {
    let mut faults = Faults::default();
    let sent = url::form_urlencoded::parse(query.as_bytes());
    let strange = sent.filter(|(name, _)| !known.contains(&name.as_ref()));
    for (name, _) in strange.take(openapi::UNKNOWN_MAX) {
        let meant = suggest::nearest(&name, known.iter().copied());
        faults.add(openapi::shown(&name), unknown("parameter", meant));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.into()) }
}

fn unknown(what: &str, meant: Option<&str>) -> String {
    let fault = format!("is not a {what} of this request");
    match meant {
        Some(meant) => format!("{fault}; did you mean {meant}?"),
        None => fault,
    }
}
