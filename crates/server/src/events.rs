//! `GET /api/v1/events`: what happens in a workspace, as server-sent events that can be resumed.
//!
//! Each event's id is a place in the order of commits. A client that comes back with `Last-Event-ID` gets
//! everything after it; when that was pruned meanwhile it gets `reset` first, and must read anew what it shows.
//! The first event of a stream is `ready` (or `reset`), so that even a client that saw nothing can come back.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::app::App;
use crate::auth::{Ability, Identity, TokenKind};
use crate::http::{Fault, bearer, header_text, instant, limits};
use crate::people;
use crate::rate::{Bucket, Standing};
use crate::store::sql::events::{Cursor, Event};

/// Streams of one server at once; a further one is refused.
const STREAMS_MAX: usize = 1_000;
/// Streams of one token at once; a further one is refused.
const STREAMS_PER_TOKEN_MAX: usize = 32;
/// When who found no place may come again.
const NO_PLACE_WAIT_SECONDS: u64 = 5;
/// How long a stream looks away when nothing told it to look; also how often it judges its token again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How soon it looks after it was told: what comes meanwhile is read with it.
const GATHER: Duration = Duration::from_millis(10);
/// How often a stream without events shows that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The streams that are open, by token.
pub(crate) struct Streams(Mutex<HashMap<i64, usize>>);

impl Streams {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(HashMap::new())))
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<i64, usize>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(self: &Arc<Self>, token_id: i64) -> Result<Place, Fault> {
        self.with(|open| {
            if open.values().sum::<usize>() >= STREAMS_MAX {
                let message = "Too many streams are open on this server.";
                let fault = Fault::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message);
                return Err(fault.retry_after(NO_PLACE_WAIT_SECONDS));
            }
            let own = open.entry(token_id).or_default();
            if *own >= STREAMS_PER_TOKEN_MAX {
                let mut fault = Fault::too_many(Standing {
                    limit: u32::try_from(STREAMS_PER_TOKEN_MAX).unwrap_or(u32::MAX),
                    remaining: 0,
                    refused: Some(NO_PLACE_WAIT_SECONDS),
                });
                fault.body.message = format!(
                    "A token has at most {STREAMS_PER_TOKEN_MAX} streams at once: end one."
                );
                return Err(fault);
            }
            *own += 1;
            Ok(Place { streams: Arc::clone(self), token_id })
        })
    }
}

/// One of them; dropped with its stream.
struct Place {
    streams: Arc<Streams>,
    token_id: i64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.streams.with(|open| {
            if let Some(own) = open.get_mut(&self.token_id) {
                *own -= 1;
                if *own == 0 {
                    open.remove(&self.token_id);
                }
            }
        });
    }
}

struct Stream {
    app: Arc<App>,
    identity: Arc<Identity>,
    token: String,
    told: watch::Receiver<u64>,
    at: Cursor,
    waiting: VecDeque<sse::Event>,
    _place: Place,
}

/// Opens a stream.
pub(crate) async fn follow(State(app): State<Arc<App>>, request: Request) -> Response {
    let address = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let headers = request.headers();
    let identity = match app.identify(headers, address, TokenKind::Api).await {
        Ok(identity) => identity,
        Err(fault) => return fault.into_response(),
    };
    let standing = app.rates.count(Bucket::Api, identity.token_id);
    let stream = if standing.refused.is_some() {
        Err(Fault::too_many(standing))
    } else {
        match people::known_parameters(&[], request.uri().query().unwrap_or_default()) {
            Ok(()) => open(app, identity, headers).await,
            Err(fault) => Err(fault),
        }
    };
    let mut response = match stream {
        Ok(stream) => {
            let events = futures_util::stream::unfold(stream, next);
            Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
        }
        Err(fault) => fault.into_response(),
    };
    limits(&mut response, standing);
    response
}

async fn open(
    app: Arc<App>,
    identity: Arc<Identity>,
    headers: &HeaderMap,
) -> Result<Stream, Fault> {
    if !identity.may(Ability::Read) {
        let message = "This token may not read.";
        return Err(Fault::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    let place = app.streams.take(identity.token_id)?;
    // Before the look: what is committed after it tells the stream to look again.
    let told = app.board.follow_events();
    let (at, first) = begin(&app, identity.workspace_id, headers).await?;
    let token = bearer(headers).unwrap_or_default().to_owned();
    Ok(Stream { app, identity, token, told, at, waiting: VecDeque::from([first]), _place: place })
}

/// Where the stream begins, and the event that says so.
async fn begin(
    app: &App,
    workspace_id: i64,
    headers: &HeaderMap,
) -> Result<(Cursor, sse::Event), Fault> {
    let event =
        |kind: &str, at: Cursor| sse::Event::default().event(kind).id(at.to_string()).data("{}");
    let Some(last) = header_text(headers, "last-event-id").filter(|it| !it.is_empty()) else {
        let at = app.store.events_end(workspace_id).await?;
        return Ok((at, event("ready", at)));
    };
    let Some(at) = Cursor::parse(last) else {
        return Err(Fault::field("Last-Event-ID", "is none of this server's"));
    };
    if app.store.event_is_kept(workspace_id, at).await? {
        return Ok((at, event("ready", at)));
    }
    let end = app.store.events_end(workspace_id).await?;
    Ok((end, event("reset", end)))
}

async fn next(mut stream: Stream) -> Option<(Result<sse::Event, Infallible>, Stream)> {
    loop {
        if let Some(event) = stream.waiting.pop_front() {
            return Some((Ok(event), stream));
        }
        stream.told.borrow_and_update();
        let app = &stream.app;
        let identity = app.tokens.identify(&app.store, Some(&stream.token), TokenKind::Api).await;
        // A token that was revoked, or a database that is gone: the client comes back, and is told why.
        if !matches!(identity, Ok(Some(_))) {
            return None;
        }
        let events = app.store.events_after(stream.identity.workspace_id, stream.at).await.ok()?;
        for event in events {
            stream.at = event.at;
            stream.waiting.push_back(shown(event, &stream.identity.workspace_prefix));
        }
        if !stream.waiting.is_empty() {
            continue;
        }
        tokio::select! {
            biased;
            () = app.stopping.cancelled() => return None,
            changed = stream.told.changed() => {
                changed.ok()?;
                tokio::time::sleep(GATHER).await;
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// As people know it: issues by their identifier.
fn shown(event: Event, prefix: &str) -> sse::Event {
    let mut data: Value = serde_json::from_str(&event.data).unwrap_or_else(|_| json!({}));
    if let Some(data) = data.as_object_mut() {
        if let Some(number) = data.remove("issue_number") {
            data.insert("issue".to_owned(), json!(format!("{prefix}-{number}")));
        }
        data.insert("at".to_owned(), json!(instant(event.when)));
    }
    sse::Event::default().event(event.kind).id(event.at.to_string()).data(data.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Texts of the form `word.word` in the sources below a folder: kinds of events. (Columns have a table's
    /// one letter before them.)
    fn kinds(folder: &Path, found: &mut BTreeSet<String>) {
        let is_word = |text: &str| text.len() > 2 && text.bytes().all(|it| it.is_ascii_lowercase());
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("tests") {
                kinds(&path, found);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                let texts = source.lines().flat_map(|line| line.split('"').skip(1).step_by(2));
                let kinds = texts.filter(|text| {
                    text.split_once('.').is_some_and(|(of, what)| is_word(of) && is_word(what))
                });
                found.extend(kinds.map(str::to_owned));
            }
        }
    }

    #[test]
    fn every_kind_of_event_is_in_the_page_of_the_api_and_no_other() {
        let mut made = BTreeSet::new();
        kinds(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store"), &mut made);
        let page = include_str!("../../../docs/api.md");
        let (_, table) = page.split_once("| kind | data | when |").unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let told: BTreeSet<String> = rows.map(str::to_owned).collect();
        assert!(made.len() > 20, "{made:?}");
        assert_eq!(made, told);
    }
}
