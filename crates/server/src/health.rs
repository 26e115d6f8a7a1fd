//! `/healthz`, `/readyz`, and `/metrics` on a listener of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use serde_json::json;
use tokio::sync::Mutex;

use crate::app::App;
use crate::http::json as answer;
use crate::metrics::{ByState, Word};

/// How long the database may take to answer.
const DATABASE_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long an answer of the database is good for: anybody may ask, and not each is worth a query.
const ANSWER_KEPT: Duration = Duration::from_millis(250);
/// How long counts of the database are good for.
const COUNTS_KEPT: Duration = Duration::from_secs(5);

struct Health {
    app: Arc<App>,
    database: Mutex<Option<(Instant, bool)>>,
}

/// What load balancers and systemd ask. `/healthz` says that the process answers, `/readyz` that it can
/// serve.
pub(crate) fn router(app: Arc<App>) -> Router {
    let health = Arc::new(Health { app, database: Mutex::new(None) });
    Router::new()
        .route("/healthz", get(async || answer(StatusCode::OK, &json!({ "status": "ok" }))))
        .route("/readyz", get(ready))
        .with_state(health)
}

async fn ready(State(health): State<Arc<Health>>) -> Response {
    let (status, word) = if health.app.stopping.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if health.database_answers().await {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer")
    };
    answer(status, &json!({ "status": word }))
}

impl Health {
    /// One asks at a time; the others take its answer.
    async fn database_answers(&self) -> bool {
        let mut known = self.database.lock().await;
        if let Some((at, answers)) = *known
            && at.elapsed() < ANSWER_KEPT
        {
            return answers;
        }
        let asked = tokio::time::timeout(DATABASE_WAIT_MAX, self.app.store.answers()).await;
        let answers = matches!(asked, Ok(Ok(())));
        *known = Some((Instant::now(), answers));
        answers
    }
}

struct Page {
    app: Arc<App>,
    counted: Mutex<Option<Instant>>,
}

/// The metrics' own router: whoever may scrape sees no other endpoint, and the other way round.
pub(crate) fn metrics_router(app: Arc<App>) -> Router {
    let page = Arc::new(Page { app, counted: Mutex::new(None) });
    Router::new().route("/metrics", get(metrics)).with_state(page)
}

async fn metrics(State(page): State<Arc<Page>>) -> Response {
    let metrics = &page.app.store.shared().metrics;
    metrics.claims_waiting.set(i64::try_from(page.app.board.waiting()).unwrap_or(i64::MAX));
    for (state, count) in page.app.store.connections() {
        let state = ByState { state: Word(state) };
        metrics.connections.get_or_create(&state).set(i64::from(count));
    }
    page.count().await;
    let mut response = Response::new(Body::from(metrics.text()));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

impl Page {
    /// Brings what only the database knows up to date, unless it is lately; what it does not say stays.
    async fn count(&self) {
        let mut counted = self.counted.lock().await;
        if counted.is_some_and(|at| at.elapsed() < COUNTS_KEPT) {
            return;
        }
        match tokio::time::timeout(DATABASE_WAIT_MAX, self.app.store.counts()).await {
            Ok(Ok(counts)) => {
                let metrics = &self.app.store.shared().metrics;
                for (state, count) in counts.tasks {
                    metrics.tasks.get_or_create(&ByState { state: Word(state) }).set(count);
                }
                metrics.runtimes_online.set(counts.runtimes_online);
                *counted = Some(Instant::now());
            }
            Ok(Err(_)) | Err(_) => tracing::debug!("the database did not count its tasks"),
        }
    }
}
