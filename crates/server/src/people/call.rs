//! One request as an endpoint sees it, and how it is answered.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use futures_util::future::BoxFuture;
use ostler_core::clock::Timestamp;
use ostler_proto::lease::Fields;
use serde::Serialize;
use serde_json::Value;

use crate::app::App;
use crate::auth::{Ability, Identity};
use crate::http::{Fault, header_text, json};
use crate::observe::Scheme;
use crate::store::StoreError;
use crate::store::sql::db::Conn;
use crate::store::sql::lane::Tx;
use crate::store::sql::people::{Page, Part, issues};

/// Entries of a page when nobody said.
const PER_PAGE: i64 = 50;
/// Words of one list in a query.
const WORDS_MAX: usize = 20;

/// What came with a request.
pub(super) enum Sent {
    Nothing,
    Json(Value),
    /// Not read yet. The lock makes it shareable, which a body alone is not; nobody waits for it.
    Raw(Mutex<Body>),
}

/// A request of somebody who may make it.
pub(super) struct Call {
    pub(super) app: Arc<App>,
    pub(super) identity: Arc<Identity>,
    pub(super) params: Vec<(String, String)>,
    /// How the client reached us, or our proxy.
    pub(super) scheme: Scheme,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) sent: Sent,
}

impl Call {
    /// The caller's workspace.
    pub(super) fn workspace(&self) -> i64 {
        self.identity.workspace_id
    }

    /// A part of the path.
    pub(super) fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value.as_str())
    }

    /// A part of the path that is a number; what is none names nothing.
    pub(super) fn id(&self, name: &str) -> Result<i64, Fault> {
        self.param(name).parse().map_err(|_| Fault::not_found())
    }

    /// A part of the path that is a ULID; what is none names nothing.
    pub(super) fn ulid(&self, name: &str) -> Result<String, Fault> {
        let text = self.param(name);
        let good = text.len() == 26 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if good { Ok(text.to_ascii_lowercase()) } else { Err(Fault::not_found()) }
    }

    /// The number of the issue in the path.
    pub(super) fn issue(&self) -> Result<i64, Fault> {
        let prefix = &self.identity.workspace_prefix;
        issues::number_of(prefix, self.param("issue")).ok_or_else(Fault::not_found)
    }

    /// A parameter of the query; an empty one is none.
    pub(super) fn query(&self, name: &str) -> Option<String> {
        let query = self.uri.query().unwrap_or_default();
        url::form_urlencoded::parse(query.as_bytes())
            .find(|(own, value)| own == name && !value.is_empty())
            .map(|(_, value)| value.into_owned())
    }

    /// A number within a range.
    pub(super) fn query_int(
        &self,
        name: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, Fault> {
        let Some(text) = self.query(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            Fault::field(name, format!("must be an integer from {low} to {high}"))
        })
    }

    /// Words with commas between, each one of `known`.
    pub(super) fn query_words(&self, name: &str, known: &[&str]) -> Result<Vec<String>, Fault> {
        let Some(text) = self.query(name) else { return Ok(Vec::new()) };
        let words: Vec<String> =
            text.split(',').map(|word| word.trim().to_owned()).take(WORDS_MAX + 1).collect();
        if words.len() > WORDS_MAX || !words.iter().all(|word| known.contains(&word.as_str())) {
            let fault = format!("must be one or more of {}, with commas between", known.join(", "));
            return Err(Fault::field(name, fault));
        }
        Ok(words)
    }

    /// Yes or no; no when it is not there.
    pub(super) fn query_flag(&self, name: &str) -> Result<bool, Fault> {
        match self.query(name).as_deref() {
            Some("1" | "true") => Ok(true),
            None | Some("0" | "false") => Ok(false),
            Some(_) => Err(Fault::field(name, "must be 1, true, 0 or false")),
        }
    }

    /// An instant, or a day in UTC; `end` makes a day its end. Microseconds.
    pub(super) fn query_instant(&self, name: &str, end: bool) -> Result<Option<i64>, Fault> {
        let Some(text) = self.query(name) else { return Ok(None) };
        if let Ok(day) = text.parse::<jiff::civil::Date>()
            && text.len() <= 10
        {
            let day = if end { day.tomorrow() } else { Ok(day) };
            let start = day.and_then(|day| jiff::tz::Offset::UTC.to_timestamp(day.at(0, 0, 0, 0)));
            if let Ok(start) = start {
                return Ok(Some(start.as_microsecond()));
            }
        }
        match text.parse::<jiff::Timestamp>() {
            Ok(at) => Ok(Some(at.as_microsecond())),
            Err(_) => {
                let fault = "must be a day like 2026-07-31 or an instant like 2026-07-31T06:12:00Z";
                Err(Fault::field(name, fault))
            }
        }
    }

    /// The part of a list that is asked for.
    pub(super) fn page(&self) -> Result<Page, Fault> {
        let number = self.query_int("page", 1..=Page::NUMBER_MAX)?.unwrap_or(1);
        // More than there can be is no fault: a client asks for what fits.
        let size = self.query_int("per_page", 1..=i64::MAX).map_err(|_| {
            let most = Page::SIZE_MAX;
            Fault::field(
                "per_page",
                format!("must be an integer from 1 on; a page has {most} at most"),
            )
        })?;
        let size = size.unwrap_or(PER_PAGE);
        Ok(Page { number, size: size.min(Page::SIZE_MAX) })
    }

    /// The fields of the body.
    pub(super) fn fields(&self) -> Fields<'_> {
        match &self.sent {
            Sent::Json(value) => Fields::of(value),
            Sent::Nothing | Sent::Raw(_) => Fields::of(&Value::Null),
        }
    }

    /// The token has a further ability.
    pub(super) fn needs(&self, ability: Ability, what: &str) -> Result<(), Fault> {
        if self.identity.may(ability) {
            return Ok(());
        }
        let ability = ability.word();
        Err(super::forbidden(format!("{what} needs a token with the ability `{ability}`.")))
    }

    /// A connection to read with.
    pub(super) async fn reader(&self) -> Result<Conn, Fault> {
        Ok(self.app.store.reader().await?)
    }

    /// One transaction.
    pub(super) async fn write<T, F>(&self, work: F) -> Result<T, Fault>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(&'t mut Tx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
    {
        Ok(self.app.store.write(work).await?)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.app.store.now()
    }

    /// A page of a list; the link to the next keeps the other parameters.
    pub(super) fn list<T: Serialize>(&self, page: Page, part: Part<T>) -> Response {
        let next = part.more.then(|| self.link("page", page.number + 1));
        self.listed(part.items, next)
    }

    /// A list with a link that the caller made.
    pub(super) fn listed<T: Serialize>(&self, items: Vec<T>, next: Option<String>) -> Response {
        json(StatusCode::OK, &List { data: items, links: Links { next } })
    }

    /// This request's address with another value of one parameter.
    pub(super) fn link(&self, name: &str, value: i64) -> String {
        let query = self.uri.query().unwrap_or_default();
        let mut pairs = url::form_urlencoded::Serializer::new(String::new());
        for (own, value) in url::form_urlencoded::parse(query.as_bytes()) {
            if own != name {
                pairs.append_pair(&own, &value);
            }
        }
        pairs.append_pair(name, &value.to_string());
        format!("{}{}?{}", self.origin(), self.uri.path(), pairs.finish())
    }

    /// `http://host`, as the client wrote it; nothing when it did not, which leaves a path.
    fn origin(&self) -> String {
        let good = |host: &&str| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
            !host.is_empty() && host.bytes().all(known)
        };
        let Some(host) = header_text(&self.headers, "host").filter(good) else {
            return String::new();
        };
        format!("{}://{host}", self.scheme.0)
    }
}

#[derive(Serialize)]
struct List<T> {
    data: Vec<T>,
    links: Links,
}

#[derive(Serialize)]
struct Links {
    next: Option<String>,
}

#[derive(Serialize)]
struct Data<'a, T> {
    data: &'a T,
}

/// `{"data": …}` with 200.
pub(super) fn data(value: &impl Serialize) -> Response {
    json(StatusCode::OK, &Data { data: value })
}

/// `{"data": …}` with 201.
pub(super) fn created(value: &impl Serialize) -> Response {
    json(StatusCode::CREATED, &Data { data: value })
}
