//! A scripted model endpoint on 127.0.0.1 that speaks Anthropic's `/v1/messages`.
//!
//! Owns: the listener, its thread, and the record of what was asked. It runs on a thread with a runtime
//! of its own, so that plain tests can use it, and everything of it ends when the [`ModelEndpoint`] is
//! dropped. Deliberately absent: the other vendors' wires, until an agent needs them.

mod anthropic;
mod scenario;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::sleep;

use scenario::Script;
pub use scenario::{Malformed, Rule, Scenario, Tool, Turn, Usage};

/// The largest request body that is read; a larger one ends its connection.
const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How many requests are recorded; further ones are refused with 503, so that a client in a busy loop
/// fails its test instead of filling memory.
const REQUESTS_MAX: usize = 1_000;
/// How long the events before a cut get to reach the socket.
const FLUSH_MS: u64 = 50;

type Body = BoxBody<Bytes, io::Error>;

/// One request that arrived.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// `POST`, `GET`, …
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body, null when there was none or it was no JSON.
    pub body: Value,
    /// The model asked for.
    pub model: String,
    /// Which part of the scenario answered: `side`, `default` or a rule's index; empty for other paths.
    pub rule: String,
    /// The index of the turn that answered.
    pub turn: usize,
    /// Names of the tools offered.
    pub tools: Vec<String>,
    /// The last user text.
    pub user: String,
    /// The tool results since then.
    pub results: Vec<String>,
    /// How many user texts the request holds; more than one after a resume.
    pub users: usize,
}

impl Recorded {
    /// Whether this is a request for a message (not a token count or a probe).
    pub fn is_message(&self) -> bool {
        !self.rule.is_empty()
    }
}

#[derive(Debug)]
struct Shared {
    script: Mutex<Script>,
    requests: Mutex<Vec<Recorded>>,
}

/// The running endpoint; dropping it ends every connection.
#[derive(Debug)]
pub struct ModelEndpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ModelEndpoint {
    /// Starts it on a free port.
    pub fn start(scenario: Scenario) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        listener.set_nonblocking(true).expect("a nonblocking listener");
        let shared = Arc::new(Shared {
            script: Mutex::new(Script::new(scenario)),
            requests: Mutex::default(),
        });
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                tokio::select! {
                    biased;
                    _ = stopped => {}
                    () = accept(listener, served) => {}
                }
            });
        });
        Self { address, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// What `ANTHROPIC_BASE_URL` takes.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything asked so far, oldest first.
    pub fn requests(&self) -> Vec<Recorded> {
        lock(&self.shared.requests).clone()
    }

    /// The requests for messages that offered tools: the agent's own turns.
    pub fn turns(&self) -> Vec<Recorded> {
        let mut requests = self.requests();
        requests.retain(|request| request.is_message() && !request.tools.is_empty());
        requests
    }

    /// Replaces the scenario; requests that are being answered keep the old one.
    pub fn set_scenario(&self, scenario: Scenario) {
        *lock(&self.shared.script) = Script::new(scenario);
    }
}

impl Drop for ModelEndpoint {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&shared), request));
            // A client that goes away, and a stream cut on purpose, are no faults here.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, io::Error> {
    let (head, body) = request.into_parts();
    let limited = Limited::new(body, REQUEST_BYTES_MAX);
    let bytes = limited.collect().await.map_err(io::Error::other)?.to_bytes();
    let text =
        |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
    let mut recorded = Recorded {
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: headers.collect(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
        ..Recorded::default()
    };
    let path = head.uri.path();
    if lock(&shared.requests).len() >= REQUESTS_MAX {
        return Ok(reply(503, &anthropic::error_body(503, "too many requests for one test")));
    }
    if recorded.method != "POST" || !path.ends_with("/messages") {
        let counts = path.ends_with("count_tokens");
        lock(&shared.requests).push(recorded);
        return Ok(if counts {
            reply(200, &json!({"input_tokens": 10}))
        } else {
            reply(404, &anthropic::error_body(404, &format!("not served: {path}")))
        });
    }
    let asked = anthropic::read(&recorded.body);
    let offers_tools = !asked.tools.is_empty();
    let (place, turn) = lock(&shared.script).pick(&asked.user, asked.results.len(), offers_tools);
    let call = anthropic::tool_call(&turn, &asked.tools);
    (recorded.rule, recorded.turn, recorded.users) = (place.rule, place.turn, asked.users);
    (recorded.model, recorded.tools) = (asked.model, asked.tools);
    (recorded.user, recorded.results) = (asked.user, asked.results);
    let model = recorded.model.clone();
    lock(&shared.requests).push(recorded);
    sleep(Duration::from_millis(turn.delay_ms)).await;
    Ok(match call {
        _ if turn.status.is_some() => refuse(&turn),
        Err(message) => reply(400, &anthropic::error_body(400, &message)),
        _ if turn.malformed == Some(Malformed::Html) => {
            let page = Full::from("<html><body>proxy login page</body></html>");
            respond(200, "text/html", page.map_err(never).boxed())
        }
        Ok(call) if asked.stream => {
            let events = anthropic::events(&turn, call.as_ref(), &model);
            let (sender, body) = Channel::new(1);
            tokio::spawn(stream(sender, turn, events));
            respond(200, "text/event-stream", body.boxed())
        }
        Ok(call) => {
            let mut json = anthropic::message(&turn, call.as_ref(), &model).to_string();
            if turn.malformed.is_some() {
                json.truncate(40);
            }
            respond(200, "application/json", Full::from(json).map_err(never).boxed())
        }
    })
}

/// Sends the events of one answer; ends early when the client goes away.
async fn stream(mut sender: Sender<Bytes, io::Error>, turn: Turn, events: Vec<Value>) {
    for (n, event) in events.iter().enumerate() {
        if n == 2 && turn.malformed.is_some() {
            if turn.malformed == Some(Malformed::Garbage) {
                let _ = sender.send_data("data: {not json at all\n\n".into()).await;
            }
            // Without a closing chunk: the body is cut. What went before must have left by then.
            sleep(Duration::from_millis(FLUSH_MS)).await;
            sender.abort(io::Error::other("cut by the scenario"));
            return;
        }
        let name = event.get("type").and_then(Value::as_str).unwrap_or_default();
        let text = format!("event: {name}\ndata: {event}\n\n");
        if sender.send_data(text.into()).await.is_err() {
            return;
        }
        let hang = if n == 1 { turn.hang_s } else { 0 };
        let wait = Duration::from_secs(hang) + Duration::from_millis(turn.chunk_ms);
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

fn refuse(turn: &Turn) -> Response<Body> {
    let status = turn.status.unwrap_or(500);
    let message = turn.message.as_deref().unwrap_or("scripted error");
    let mut response = reply(status, &anthropic::error_body(status, message));
    if let Some(seconds) = turn.retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn reply(status: u16, body: &Value) -> Response<Body> {
    let body = Full::from(body.to_string()).map_err(never).boxed();
    respond(status, "application/json", body)
}

fn respond(status: u16, kind: &'static str, body: Body) -> Response<Body> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, kind)
        .body(body)
        .expect("a status between 100 and 999")
}

fn never(error: Infallible) -> io::Error {
    match error {}
}
