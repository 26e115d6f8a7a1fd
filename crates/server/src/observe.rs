//! What is seen of each request: its id, its line in the log, its place in the metrics, and whose it is when
//! a proxy stands in front.
//!
//! Deliberately absent: bodies, tokens, queries and the ids in paths, which are in no log and no metric;
//! paths are written as the router has them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tracing::Instrument as _;

use crate::app::App;
use crate::metrics::{Answered, Endpoint, Word};

/// The header of a request's id, both ways.
const ID_HEADER: &str = "x-request-id";
/// Characters of an id that a client may choose.
const ID_CHARS_MAX: usize = 128;
/// Addresses that are read of a forwarding header, from its end.
const HOPS_MAX: usize = 32;

/// How the client reached us, or our proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scheme(pub(crate) &'static str);

/// The router with all of this around each of its routes.
pub(crate) fn observed(router: Router, app: Arc<App>) -> Router {
    router.layer(from_fn_with_state(app, observe))
}

async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    identify(&app, &mut request);
    let id = request_id(&app, request.headers());
    let method = word(request.method());
    let path = request.extensions().get::<MatchedPath>().cloned();
    let metrics = &app.store.shared().metrics;
    metrics.requests_now.inc();
    // Dropped with the request when its client goes away.
    let leaves = Leaves(&metrics.requests_now);
    // What is logged on the way says of which request.
    let span = tracing::error_span!("request", request_id = id.as_str());
    let mut response = next.run(request).instrument(span).await;
    drop(leaves);
    let (status, took) = (response.status(), began.elapsed());
    let endpoint = path.as_ref().map_or("other", MatchedPath::as_str);
    let answered = Answered { method, endpoint: endpoint.to_owned(), status: status.as_u16() };
    metrics.requests.get_or_create(&answered).inc();
    let place = Endpoint { endpoint: endpoint.to_owned() };
    metrics.seconds.get_or_create(&place).observe(took.as_secs_f64());
    log(&answered, &id, took.as_secs_f64() * 1_000.0);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(ID_HEADER, value);
    }
    response
}

struct Leaves<'m>(&'m prometheus_client::metrics::gauge::Gauge);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What every machine does every few seconds is for `debug`; everything else is a line.
fn log(it: &Answered, request_id: &str, ms: f64) {
    let status = it.status;
    let (method, path) = (it.method.0, it.endpoint.as_str());
    let ms = (ms * 1_000.0).round() / 1_000.0;
    let is_routine = path.starts_with("/healthz")
        || path.starts_with("/readyz")
        || (path == "/api/daemon/heartbeat" && status == 200)
        || (path == "/api/daemon/tasks/claim" && status == 204)
        || (path == "/api/daemon/tasks/{task}/messages" && status == 202);
    if status >= StatusCode::INTERNAL_SERVER_ERROR.as_u16() {
        tracing::warn!(request_id, method, path, status, ms, "request");
    } else if is_routine {
        tracing::debug!(request_id, method, path, status, ms, "request");
    } else {
        tracing::info!(request_id, method, path, status, ms, "request");
    }
}

/// The client's own id when it is a sane one, else a new one.
fn request_id(app: &App, headers: &HeaderMap) -> String {
    let own = headers.get(ID_HEADER).and_then(|value| value.to_str().ok());
    let is_sane = |id: &&str| {
        !id.is_empty() && id.len() <= ID_CHARS_MAX && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match own.filter(is_sane) {
        Some(own) => own.to_owned(),
        None => {
            let ms = u64::try_from(app.store.now().as_micros() / 1_000).unwrap_or(0);
            let mut random = [0; 16];
            // Without randomness an id says less, and nothing depends on it.
            let _ = getrandom::fill(&mut random);
            ulid::Ulid::from_parts(ms, u128::from_be_bytes(random)).to_string().to_lowercase()
        }
    }
}

/// Puts the client's address in the place of the proxy's, when the proxy is one of ours.
fn identify(app: &App, request: &mut Request) {
    let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>().copied()
    else {
        return;
    };
    let own = if app.settings.tls.is_some() { "https" } else { "http" };
    let (client, scheme) = seen_by(&app.settings.proxies, peer.ip(), request.headers(), own);
    if client != peer.ip() {
        request.extensions_mut().insert(ConnectInfo(SocketAddr::new(client, 0)));
    }
    request.extensions_mut().insert(Scheme(scheme));
}

/// Who the client is. A header is believed only from a proxy that was named, and of its list only what our
/// proxies have added: the last address that is none of theirs.
fn seen_by(
    proxies: &[IpAddr],
    peer: IpAddr,
    headers: &HeaderMap,
    own: &'static str,
) -> (IpAddr, &'static str) {
    let peer = peer.to_canonical();
    if !proxies.contains(&peer) {
        return (peer, own);
    }
    let said = |name: &str| {
        let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.collect::<Vec<_>>().join(",")
    };
    let forwarded = said("x-forwarded-for");
    let hops = forwarded.rsplit(',').take(HOPS_MAX).map(|hop| parse_hop(hop.trim()));
    let mut client = peer;
    for hop in hops {
        // What cannot be read was not written by us; nothing before it can be believed either.
        let Some(hop) = hop else { break };
        client = hop;
        if !proxies.contains(&hop) {
            break;
        }
    }
    let scheme = match said("x-forwarded-proto").rsplit(',').next().map(str::trim) {
        Some("https") => "https",
        Some("http") => "http",
        _ => own,
    };
    (client, scheme)
}

/// An address, with or without a port.
fn parse_hop(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let ip = bare.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|it| it.ip()));
    ip.ok().map(|ip| ip.to_canonical())
}

fn word(method: &Method) -> Word {
    Word(match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PATCH" => "PATCH",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn client(peer: &str, list: &[(&'static str, &str)]) -> (String, &'static str) {
        let proxies = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let (ip, scheme) = seen_by(&proxies, peer.parse().unwrap(), &headers(list), "http");
        (ip.to_string(), scheme)
    }

    #[test]
    fn f_112_forwarding_headers_are_believed_from_named_proxies_only() {
        let forged = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-proto", "https")];
        assert_eq!(client("9.9.9.9", &forged), ("9.9.9.9".to_owned(), "http"));
        assert_eq!(client("10.0.0.1", &forged), ("1.1.1.1".to_owned(), "https"));
        assert_eq!(client("::ffff:10.0.0.1", &forged), ("1.1.1.1".to_owned(), "https"));
        assert_eq!(client("10.0.0.1", &[]), ("10.0.0.1".to_owned(), "http"));
    }

    #[test]
    fn of_a_chain_only_what_our_proxies_added_is_believed() {
        let chain = [("x-forwarded-for", "6.6.6.6, 1.2.3.4, 10.0.0.2")];
        assert_eq!(client("10.0.0.1", &chain).0, "1.2.3.4");
        let two = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "1.2.3.4:5678")];
        assert_eq!(client("10.0.0.1", &two).0, "1.2.3.4");
        let junk = [("x-forwarded-for", "6.6.6.6, unknown, 10.0.0.2")];
        assert_eq!(client("10.0.0.1", &junk).0, "10.0.0.2");
        let six = [("x-forwarded-for", "[2001:db8::1]:443")];
        assert_eq!(client("10.0.0.1", &six).0, "2001:db8::1");
    }
}
