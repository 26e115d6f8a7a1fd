//! What a completed run hands back: artifacts, judged as what they are, words from a stranger that become
//! links in somebody's browser (F-081 to F-086).
//!
//! Pure. A malformed artifact is left out with a reason for the log, and the completion succeeds with the
//! rest. What is decided here: a pull request and a link need an address, a branch needs a reference, a file
//! needs either; a file's reference is a relative path. An address is kept as a browser would write it.
//!
//! Two artifacts are one delivery when their [`Delivery::key`] is the same: the address without its fragment,
//! its trailing slashes and its default port, with scheme, host and path in lower case. What has no address
//! is told apart by its kind and reference; branches always by their names, since many give the address of their
//! repository. A pull request that is named again as something else stays one. Absent on purpose: the issue, and
//! the row.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use url::Url;

use crate::skill::check_relative;
use crate::text::plain_line;

/// Deliveries of one completion. The first ones are kept.
pub const DELIVERIES_MAX: usize = 20;
/// Artifacts that are looked at; what comes after is one line of the log.
const ARTIFACTS_MAX: usize = 200;
/// Characters of an address.
pub const URL_CHARS_MAX: usize = 2_048;
/// Characters of a title.
pub const TITLE_CHARS_MAX: usize = 255;
/// Characters of a reference.
pub const REFERENCE_CHARS_MAX: usize = 255;

/// Parameters of an address that are credentials.
const SECRET_PARAMETERS: &[&str] = &[
    "access_token",
    "api_key",
    "apikey",
    "client_secret",
    "passwd",
    "password",
    "private_token",
    "secret",
    "token",
];

/// What an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A pull or merge request.
    PullRequest,
    /// A branch that was pushed.
    Branch,
    /// Any page.
    Link,
    /// A file of the run.
    File,
}

impl Kind {
    const ALL: [Self; 4] = [Self::PullRequest, Self::Branch, Self::Link, Self::File];

    /// The word of the wire, and of the database.
    pub const fn word(self) -> &'static str {
        match self {
            Self::PullRequest => "pull_request",
            Self::Branch => "branch",
            Self::Link => "link",
            Self::File => "file",
        }
    }

    /// The kind with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// How it stands with a pull request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryState {
    /// Open.
    Open,
    /// Closed without a merge.
    Closed,
    /// Merged.
    Merged,
    /// Not ready yet.
    Draft,
}

impl DeliveryState {
    const ALL: [Self; 4] = [Self::Open, Self::Closed, Self::Merged, Self::Draft];

    /// The word of the wire, and of the database.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Merged => "merged",
            Self::Draft => "draft",
        }
    }

    /// The state with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// An artifact that may be stored and shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// What it is.
    pub kind: Kind,
    /// Where it is: `http` or `https`, without credentials.
    pub url: Option<String>,
    /// A branch's name, a file's path, a pull request's number.
    pub reference: Option<String>,
    /// A line of plain text.
    pub title: Option<String>,
    /// How it stands.
    pub state: Option<DeliveryState>,
    /// By which it is the same as another one of its issue.
    pub key: String,
}

/// Why an artifact was left out. Says nothing of what it held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// `artifacts` is not an array.
    #[error("artifacts is not a list")]
    NotAList,
    /// Not an object.
    #[error("not an object")]
    NotAnObject,
    /// No type, or an unknown one.
    #[error("no known type")]
    Type,
    /// A field that is not text.
    #[error("a field that is not text")]
    NotText,
    /// Not a plain address.
    #[error("the url is not plain http or https")]
    Url,
    /// A user, password or token in the address.
    #[error("the url holds a credential")]
    Credential,
    /// No address where one is needed.
    #[error("no url")]
    NoUrl,
    /// No reference where one is needed.
    #[error("no reference")]
    NoReference,
    /// A reference that is not a name of a branch or path of a file.
    #[error("the reference is not a name or relative path")]
    Reference,
    /// An unknown state.
    #[error("no known state")]
    State,
    /// A field that is too long.
    #[error("a field that is too long")]
    TooLong,
    /// More than are kept.
    #[error("more than {DELIVERIES_MAX} artifacts")]
    TooMany,
}

/// What becomes of a completion's artifacts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Kept, no two with one key.
    pub deliveries: Vec<Delivery>,
    /// Left out: which one of the list, from 0, and why. Of very many the last stands for all that follow.
    pub dropped: Vec<(usize, Reason)>,
}

/// Whether the issue goes to review, when its status is one of [`REVIEW_FROM`].
pub fn has_pull_request(deliveries: &[Delivery]) -> bool {
    deliveries.iter().any(|delivery| delivery.kind == Kind::PullRequest)
}

/// Judges `result.artifacts`. Of two with one key the later one wins, in the place of the first; only a pull request
/// gives way to nothing but a pull request.
pub fn accept(artifacts: &Value) -> Accepted {
    let mut accepted = Accepted::default();
    let list = match artifacts {
        Value::Array(list) => list,
        Value::Null => return accepted,
        _ => {
            accepted.dropped.push((0, Reason::NotAList));
            return accepted;
        }
    };
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (index, artifact) in list.iter().take(ARTIFACTS_MAX).enumerate() {
        match judge(artifact) {
            Err(reason) => accepted.dropped.push((index, reason)),
            Ok(delivery) => match places.get(&delivery.key) {
                Some(place) => {
                    if let Some(earlier) = accepted.deliveries.get_mut(*place)
                        && (earlier.kind != Kind::PullRequest || delivery.kind == earlier.kind)
                    {
                        *earlier = delivery;
                    }
                }
                None if accepted.deliveries.len() == DELIVERIES_MAX => {
                    accepted.dropped.push((index, Reason::TooMany));
                }
                None => {
                    places.insert(delivery.key.clone(), accepted.deliveries.len());
                    accepted.deliveries.push(delivery);
                }
            },
        }
    }
    if list.len() > ARTIFACTS_MAX {
        accepted.dropped.push((ARTIFACTS_MAX, Reason::TooMany));
    }
    accepted
}

/// The statuses from which a pull request moves an issue to review: those before it (F-086, F-087). `on_hold` is not.
pub const REVIEW_FROM: [&str; 3] = ["backlog", "todo", "in_progress"];

fn judge(artifact: &Value) -> Result<Delivery, Reason> {
    let fields = artifact.as_object().ok_or(Reason::NotAnObject)?;
    let kind = match fields.get("type") {
        Some(Value::String(word)) => Kind::from_word(word).ok_or(Reason::Type)?,
        _ => return Err(Reason::Type),
    };
    let url = text(fields, "url", URL_CHARS_MAX)?.map(address).transpose()?;
    let reference = text(fields, "reference", REFERENCE_CHARS_MAX)?
        .map(|text| reference(kind, text))
        .transpose()?;
    let title =
        text(fields, "title", TITLE_CHARS_MAX)?.map(|title| plain_line(title, TITLE_CHARS_MAX));
    let state = text(fields, "state", REFERENCE_CHARS_MAX)?
        .map(|word| DeliveryState::from_word(word).ok_or(Reason::State))
        .transpose()?;
    let key = match (kind, &url, &reference) {
        (Kind::PullRequest | Kind::Link, None, _) => return Err(Reason::NoUrl),
        (Kind::Branch, _, None) => return Err(Reason::NoReference),
        (Kind::Branch, Some(url), Some(reference)) => {
            format!("{}:{reference} {}", kind.word(), identity(url))
        }
        (_, Some(url), _) => identity(url),
        (_, None, Some(reference)) => format!("{}:{reference}", kind.word()),
        (_, None, None) => return Err(Reason::NoReference),
    };
    let title = title.filter(|title| !title.is_empty());
    Ok(Delivery { kind, url: url.map(String::from), reference, title, state, key })
}

/// The field without space around it; `null` and nothing are as good as absent.
fn text<'a>(
    fields: &'a Map<String, Value>,
    name: &str,
    chars_max: usize,
) -> Result<Option<&'a str>, Reason> {
    let text = match fields.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.trim(),
        Some(_) => return Err(Reason::NotText),
    };
    if text.chars().count() > chars_max {
        return Err(Reason::TooLong);
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// The address that a browser would go to, when it is a plain one.
fn address(text: &str) -> Result<Url, Reason> {
    // The parser is a browser's: it repairs what should be refused.
    if text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err(Reason::Url);
    }
    let (scheme, rest) = text.split_once("://").ok_or(Reason::Url)?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err(Reason::Url);
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(Reason::Credential);
    }
    let url = Url::parse(text).map_err(|_| Reason::Url)?;
    // `http:///a` would be the host `a`.
    if authority.is_empty() || !url.has_host() {
        return Err(Reason::Url);
    }
    let fragment = url.fragment().unwrap_or_default().as_bytes();
    let mut parameters = url.query_pairs().chain(url::form_urlencoded::parse(fragment));
    if parameters.any(|(name, _)| SECRET_PARAMETERS.contains(&name.to_ascii_lowercase().as_str())) {
        return Err(Reason::Credential);
    }
    // Letters of other scripts become longer.
    if url.as_str().len() > URL_CHARS_MAX { Err(Reason::TooLong) } else { Ok(url) }
}

fn reference(kind: Kind, text: &str) -> Result<String, Reason> {
    let fits = match kind {
        Kind::File => check_relative(text).is_ok(),
        // What git refuses in a name, and what it would take for an option.
        Kind::Branch => {
            !text.starts_with('-')
                && !text.contains("..")
                && !text.contains([' ', '~', '^', ':', '\\'])
        }
        Kind::PullRequest | Kind::Link => true,
    };
    if fits && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(Reason::Reference)
    }
}

/// The address as it is compared.
fn identity(url: &Url) -> String {
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    let host = url.host_str().unwrap_or_default();
    let path = url.path().to_lowercase();
    let query = url.query().filter(|query| !query.is_empty());
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    format!("{}://{host}{port}{}{query}", url.scheme(), path.trim_end_matches('/'))
}

#[cfg(test)]
mod tests;
