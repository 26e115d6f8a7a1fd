//! The calls to GitHub's REST API, each bounded in time and in the length of its answer.

use std::sync::Arc;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Response};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::{AppFault, Committer, GitHubApp, Reason, Step};
use crate::secrets::Secret;

/// Bytes of an answer. A token's lists its repositories at length.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Redirections that are followed: a repository that was renamed has one.
const REDIRECTS_MAX: usize = 3;
/// Bytes of a token or name in an answer.
const WORD_BYTES_MAX: usize = 1_024;

#[derive(Deserialize)]
struct Installation {
    id: u64,
    account: Option<Account>,
}

#[derive(Deserialize)]
struct Account {
    login: String,
}

#[derive(Deserialize)]
struct Minted {
    token: String,
    repository_selection: Option<String>,
}

#[derive(Deserialize)]
struct App {
    slug: String,
}

#[derive(Deserialize)]
struct User {
    id: u64,
    login: String,
}

/// A client for HTTP with the roots of this machine. It holds no secret; one is enough for all Apps.
pub fn http_client() -> Result<reqwest::Client, AppFault> {
    let mut roots = RootCertStore::empty();
    // Without any root every call fails, and the claim goes on.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let tls =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(AppFault::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
    let headers = HeaderMap::from_iter([
        (ACCEPT, HeaderValue::from_static("application/vnd.github+json")),
        (USER_AGENT, HeaderValue::from_static(concat!("ostler/", env!("CARGO_PKG_VERSION")))),
        (HeaderName::from_static("x-github-api-version"), HeaderValue::from_static("2022-11-28")),
    ]);
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .default_headers(headers)
        .redirect(Policy::limited(REDIRECTS_MAX))
        .build()
        .map_err(AppFault::Client)
}

impl GitHubApp {
    /// The installation that has this repository, if there is one.
    pub(super) async fn installation_of(
        &self,
        owner: &str,
        name: &str,
        proof: &Secret,
        until: Instant,
    ) -> Result<Option<u64>, Reason> {
        if !is_plain(owner) || !is_plain(name) {
            return Err(Reason::NotInstalled);
        }
        let step = Step::Installation;
        let path = format!("repos/{owner}/{name}/installation");
        match ask::<Installation>(step, self.get(&path, Some(proof)), until).await {
            Ok(installation) => Ok(Some(installation.id)),
            Err(Reason::Status { status: 404, .. }) => Ok(None),
            Err(reason) => Err(reason),
        }
    }

    /// Whose repositories an installation has.
    pub(super) async fn owner_of(
        &self,
        id: u64,
        proof: &Secret,
        until: Instant,
    ) -> Result<String, Reason> {
        let step = Step::Installation;
        let request = self.get(&format!("app/installations/{id}"), Some(proof));
        let account = ask::<Installation>(step, request, until).await?.account;
        account.map(|account| account.login).ok_or(Reason::Answer(step))
    }

    /// A token for these repositories of an installation, by their names.
    pub(super) async fn token_for(
        &self,
        id: u64,
        names: &[String],
        proof: &Secret,
        until: Instant,
    ) -> Result<Secret, Reason> {
        let url = format!("{}/app/installations/{id}/access_tokens", self.base);
        let request = self.http.post(url).json(&serde_json::json!({ "repositories": names }));
        let minted = ask::<Minted>(Step::Token, with(request, Some(proof)), until).await?;
        let printable = minted.token.bytes().all(|b| b.is_ascii_graphic());
        let fits = (1..=WORD_BYTES_MAX).contains(&minted.token.len());
        // Who ignores the list gives a token for everything.
        let everything = minted.repository_selection.as_deref() == Some("all");
        if printable && fits && !everything {
            Ok(Secret::new(minted.token))
        } else {
            Err(Reason::Answer(Step::Token))
        }
    }

    /// The App's name in addresses; its bot is called after it.
    pub(super) async fn slug(&self, proof: &Secret, until: Instant) -> Result<String, Reason> {
        let app = ask::<App>(Step::App, self.get("app", Some(proof)), until).await?;
        if is_plain(&app.slug) { Ok(app.slug) } else { Err(Reason::Answer(Step::App)) }
    }

    /// The App's bot. Users are not told to Apps but to their installations, or to anybody.
    pub(super) async fn bot_of(
        &self,
        slug: &str,
        token: Option<&Secret>,
        until: Instant,
    ) -> Result<Committer, Reason> {
        let request = self.get(&format!("users/{slug}%5Bbot%5D"), token);
        let user = ask::<User>(Step::Bot, request, until).await?;
        if !user.login.eq_ignore_ascii_case(&format!("{slug}[bot]")) {
            return Err(Reason::Answer(Step::Bot));
        }
        let email = format!("{}+{}@users.noreply.github.com", user.id, user.login);
        Ok(Committer { name: user.login, email })
    }

    fn get(&self, path: &str, secret: Option<&Secret>) -> RequestBuilder {
        with(self.http.get(format!("{}/{path}", self.base)), secret)
    }
}

/// The request with its credential, which reqwest shows to nobody.
fn with(request: RequestBuilder, secret: Option<&Secret>) -> RequestBuilder {
    let Some(secret) = secret else { return request };
    match HeaderValue::from_str(&format!("Bearer {}", secret.expose())) {
        Ok(mut value) => {
            value.set_sensitive(true);
            request.header(AUTHORIZATION, value)
        }
        Err(_) => request,
    }
}

/// Whether it can stand in a path as it is.
fn is_plain(word: &str) -> bool {
    let letters = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (1..=WORD_BYTES_MAX).contains(&word.len())
        && word.bytes().all(letters)
        && word != "."
        && word != ".."
}

async fn ask<T: DeserializeOwned>(
    step: Step,
    request: RequestBuilder,
    until: Instant,
) -> Result<T, Reason> {
    let answered = async {
        let response = request.send().await.map_err(|_| Reason::Unreachable(step))?;
        let status = response.status();
        if !status.is_success() {
            return Err(Reason::Status { step, status: status.as_u16() });
        }
        let body = read(step, response).await?;
        serde_json::from_slice(&body).map_err(|_| Reason::Answer(step))
    };
    timeout_at(until, answered).await.unwrap_or(Err(Reason::TimedOut(step)))
}

async fn read(step: Step, mut response: Response) -> Result<Vec<u8>, Reason> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|_| Reason::Unreachable(step))? {
        if body.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(Reason::Answer(step));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}
