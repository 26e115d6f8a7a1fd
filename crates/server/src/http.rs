//! Answers and bodies, the same for every endpoint: JSON always, errors with `message`.

use std::borrow::Cow;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use ostler_core::lease::Refusal;
use ostler_proto::json::NESTED_MAX;
use ostler_proto::lease::{ErrorBody, Faults};
use serde::Serialize;
use serde_json::Value;

use crate::rate::Standing;
use crate::store::StoreError;

/// Bytes of a body that is too large which are let arrive and thrown away; after more the connection ends.
const DISCARD_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How long such a body may take.
const DISCARD_WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(5);

/// A refusal, to become an answer.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    pub(crate) body: Box<ErrorBody>,
    /// What was used up.
    standing: Option<Standing>,
}

impl Fault {
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let body = ErrorBody {
            message: message.into(),
            code: Some(code.to_owned()),
            errors: None,
            retry_after: None,
            minimum_version: None,
            download_url: None,
        };
        Self { status, body: Box::new(body), standing: None }
    }

    /// When to come again.
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.body.retry_after = Some(seconds);
        self
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "There is no such thing here.")
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "The token is missing, unknown, revoked or expired. Send it as \
                       `Authorization: Bearer …`.";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub(crate) fn too_many(standing: Standing) -> Self {
        let message = "Too many requests. Retry after the interval in Retry-After.";
        let mut fault = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", message);
        fault.body.retry_after = standing.refused;
        fault.standing = Some(standing);
        fault
    }

    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub(crate) fn field(field: &str, fault: impl Into<String>) -> Self {
        let mut faults = Faults::default();
        faults.add(field, fault);
        faults.into()
    }

    pub(crate) fn into_response(self) -> Response {
        let retry_after = self.body.retry_after;
        let mut response = json(self.status, &*self.body);
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(standing) = self.standing {
            limits(&mut response, standing);
        }
        response
    }
}

/// Tells where the caller stands, unless the answer does already.
pub(crate) fn limits(response: &mut Response, standing: Standing) {
    let numbers =
        [("x-ratelimit-limit", standing.limit), ("x-ratelimit-remaining", standing.remaining)];
    for (name, number) in numbers {
        let name = HeaderName::from_static(name);
        response.headers_mut().entry(name).or_insert(HeaderValue::from(number));
    }
}

impl From<Faults> for Fault {
    fn from(faults: Faults) -> Self {
        let faults_said = faults.to_sentence();
        let end = if faults_said.ends_with('?') { "" } else { "." };
        let message = format!("The request is not valid: {faults_said}{end}");
        let mut fault = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message);
        fault.body.errors = Some(faults.to_json());
        fault
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let (message, code) = match refusal {
            Refusal::LeaseLost => (
                "You hold no lease on this task: send its X-Felagi-Lease, or stop working on it."
                    .to_owned(),
                "lease_lost",
            ),
            Refusal::LeaseExpired => (
                "Your lease on this task ran out and was taken. Stop working on it.".to_owned(),
                "lease_expired",
            ),
            Refusal::BadState(state) => {
                (format!("The task is {}, which does not allow this.", state.word()), "bad_state")
            }
            Refusal::OtherMachine => (
                "The run waits for the machine that ran it: only that one may resume it."
                    .to_owned(),
                "bad_state",
            ),
            Refusal::Decided(first) => (
                format!("The run is {} already, and the first decision stands.", first.word()),
                "bad_state",
            ),
        };
        Self::new(StatusCode::CONFLICT, code, message)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound => Self::not_found(),
            StoreError::Refused(refusal) => refusal.into(),
            StoreError::Conflict(message) => Self::new(StatusCode::CONFLICT, "conflict", message),
            StoreError::Invalid { field, fault } => Self::field(field, fault),
            StoreError::Database(_) | StoreError::Busy => {
                if let StoreError::Database(error) = &error {
                    tracing::warn!(%error, "the database did not answer");
                }
                let message = "The server cannot take this now; try again.";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).retry_after(1)
            }
        }
    }
}

/// Refuses what no route takes as everything else is refused.
pub(crate) fn json_refusals(router: Router) -> Router {
    let other = || async {
        Fault::method_not_allowed("This does not take that method; Allow says which.")
            .into_response()
    };
    router
        .fallback(|| async { Fault::not_found().into_response() })
        .method_not_allowed_fallback(other)
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// 204.
pub(crate) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// The value of a header, when it is one and readable.
pub(crate) fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// The bearer token.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = header_text(headers, "authorization")?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Lets a body that is not wanted arrive, within bounds: a client that still writes when the connection ends
/// sees that end, and not why.
pub(crate) async fn discard(mut body: Body) {
    let frames = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, bytes::Bytes::len);
            if bytes > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    // Whether it arrived in time matters to nobody: it is refused.
    let _ = tokio::time::timeout(DISCARD_WAIT_MAX, frames).await;
}

/// A JSON body without keys that the parser would take for orders; before anything else is done with it.
pub(crate) fn disarmed(body: Bytes) -> Bytes {
    match std::str::from_utf8(&body).map(ostler_proto::json::disarm) {
        Ok(Cow::Owned(text)) => text.into(),
        Ok(Cow::Borrowed(_)) | Err(_) => body,
    }
}

/// Parses a JSON body. An empty one is an empty object, for calls that need no field. In the field `opaque`, which is
/// kept as it comes, a doubled field is let be: refusing it would lose what somebody's agent did. What is JSON and no
/// value that we can hold is mended.
pub(crate) fn parse_json(bytes: &[u8], opaque: Option<&str>) -> Result<Value, Fault> {
    let bad = |message: &str| Fault::new(StatusCode::BAD_REQUEST, "bad_json", message);
    if bytes.is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| bad("The body is not UTF-8."))?;
    match ostler_proto::json::check(text, opaque) {
        Ok(()) => {}
        Err(ostler_proto::json::Problem::DuplicateKey) => {
            return Err(bad("The body has a field twice."));
        }
        Err(ostler_proto::json::Problem::TooDeep) => {
            return Err(bad("The body is nested too deeply."));
        }
    }
    let read = serde_json::from_str(text)
        .or_else(|_| serde_json::from_str(&ostler_proto::json::mend(text, NESTED_MAX)));
    read.map_err(|_| bad("The body is not JSON."))
}

/// An instant as the wires write it.
pub(crate) fn instant(at: ostler_core::clock::Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(at) => at.strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string(),
        Err(_) => String::new(),
    }
}
