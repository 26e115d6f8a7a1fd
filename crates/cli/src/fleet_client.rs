//! A client of a server's `/api/v1`: where it is, the token, one request, a page after the other.
//!
//! The token comes from the environment or from a file that only its owner reads, never from an argument, and
//! goes over the network only with TLS.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_server::secrets::Secret;
use reqwest::{Client, Method, StatusCode, Url};
use serde_json::Value;

use crate::args::issue::ClientArgs;
use crate::context::Context;
use crate::error::{Code, Failure};

/// The variable with the token.
const TOKEN_ENV: &str = "OSTLER_TOKEN";
/// The variable with the name of a file with the token.
const TOKEN_FILE_ENV: &str = "OSTLER_TOKEN_FILE";
/// The file with the token, beside the configuration.
const TOKEN_FILE: &str = "token";
/// Where a server is when nobody says.
const URL_DEFAULT: &str = "http://127.0.0.1:4180";
/// Bytes of a token's file.
const TOKEN_BYTES_MAX: u64 = 4_096;
/// How long one request may take.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(60);
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Pages of one list.
const PAGES_MAX: usize = 100;

/// A server and who asks.
pub(crate) struct Fleet {
    client: Client,
    url: Url,
    token: Secret,
}

impl Fleet {
    /// From arguments, environment and files.
    pub(crate) fn of(context: &Context, args: &ClientArgs) -> Result<Self, Failure> {
        let url = server_url(context, args)?;
        let token = Secret::new(token(context, args)?);
        ostler_server::use_ring();
        let mut client = Client::builder()
            .timeout(REQUEST_WAIT_MAX)
            // A token follows nobody to another address.
            .redirect(reqwest::redirect::Policy::none());
        if url.scheme() == "http" {
            // A proxy would read it; through TLS it sees only where it goes.
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| {
            Failure::new(Code::Failed, "there is no HTTP client").because(error)
        })?;
        Ok(Self { client, url, token })
    }

    /// What an answer has as `data`.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let asked = self.ask(method, self.at(path)?, body).await;
        let mut answer = asked.map_err(|refusal| refusal.about(path))?;
        Ok(answer.get_mut("data").map(Value::take).unwrap_or_default())
    }

    /// Up to `limit` entries of a list.
    pub(crate) async fn list(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        limit: usize,
    ) -> Result<Vec<Value>, Failure> {
        let mut all = Vec::new();
        for page in 1..=PAGES_MAX {
            let mut url = self.at(path)?;
            url.query_pairs_mut()
                .extend_pairs(query)
                .append_pair("per_page", &limit.min(100).to_string())
                .append_pair("page", &page.to_string());
            let asked = self.ask(Method::GET, url, None).await;
            let mut answer = asked.map_err(|refusal| refusal.about(path))?;
            if let Some(Value::Array(entries)) = answer.get_mut("data") {
                all.append(entries);
            }
            if all.len() >= limit || answer.pointer("/links/next").is_none_or(Value::is_null) {
                break;
            }
        }
        all.truncate(limit);
        Ok(all)
    }

    /// Who asks: `GET /me`, which has no envelope.
    pub(crate) async fn me(&self) -> Result<Value, Failure> {
        let path = ["me"];
        let asked = self.ask(Method::GET, self.at(&path)?, None).await;
        asked.map_err(|refusal| refusal.about(&path))
    }

    fn at(&self, path: &[&str]) -> Result<Url, Failure> {
        let mut url = self.url.clone();
        match url.path_segments_mut() {
            // Each is one segment, whatever is in it.
            Ok(mut segments) => segments.pop_if_empty().extend(["api", "v1"]).extend(path),
            Err(()) => return Err(bad_url(self.url.as_str())),
        };
        Ok(url)
    }

    async fn ask(&self, method: Method, url: Url, body: Option<&Value>) -> Result<Value, Refusal> {
        let mut request = self.client.request(method, url).bearer_auth(self.token.expose());
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable = |error: reqwest::Error| Refusal::Other(self.unreachable(error));
        let mut answer = request.send().await.map_err(unreachable)?;
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > ANSWER_BYTES_MAX {
                let heading = "the server's answer is too long";
                return Err(Refusal::Other(Failure::new(Code::Failed, heading)));
            }
        }
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if answer.status().is_success() {
            return Ok(value);
        }
        Err(Refusal::Status(answer.status(), value))
    }

    fn unreachable(&self, error: reqwest::Error) -> Failure {
        let hint = if is_about_certificate(&error) {
            "it answers with a certificate that this machine does not trust; SSL_CERT_FILE names a file with its \
             authority's, PEM"
        } else {
            "is it running there? --server URL or OSTLER_SERVER_URL names another"
        };
        let heading = format!("the server at {} does not answer", self.url);
        Failure::new(Code::Unreachable, heading).because(error.without_url()).hint(hint)
    }
}

/// The error itself has no kind for it.
fn is_about_certificate(error: &reqwest::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains("certificate") {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Why there is no answer.
enum Refusal {
    Status(StatusCode, Value),
    Other(Failure),
}

impl Refusal {
    /// For a person, who asked about that.
    fn about(self, path: &[&str]) -> Failure {
        let (status, body) = match self {
            Self::Status(status, body) => (status, body),
            Self::Other(failure) => return failure,
        };
        let message = body.get("message").and_then(Value::as_str);
        let message = match (status.as_u16(), message, path) {
            (404, Some(_), ["issues", issue, ..]) => {
                format!("there is no issue {}", crate::output::safe(issue))
            }
            (_, Some(message), _) => crate::output::safe(message).into_owned(),
            (_, None, _) => format!("the server answered {status}; is it an Ostler server?"),
        };
        let code = match status.as_u16() {
            401 | 403 | 404 | 409 => Code::Refused,
            400 | 422 => Code::Usage,
            _ => Code::Failed,
        };
        let failure = Failure::new(code, message);
        match (status.as_u16(), body.get("retry_after").and_then(Value::as_u64)) {
            (401, _) => {
                failure.hint("put a token of the kind api into OSTLER_TOKEN or the token file")
            }
            (429, Some(seconds)) => failure.hint(format!("ask again in {seconds} s")),
            _ => failure,
        }
    }
}

fn bad_url(text: &str) -> Failure {
    Failure::new(Code::Usage, format!("{text} is no address of a server"))
        .hint("write it as https://ostler.example.com")
}

fn server_url(context: &Context, args: &ClientArgs) -> Result<Url, Failure> {
    let here = || std::fs::read_to_string(context.paths.state_dir.join("server/url")).ok();
    let text = args.server.clone().or_else(here).unwrap_or_else(|| URL_DEFAULT.to_owned());
    let text = text.trim();
    let url = Url::parse(text).map_err(|_| bad_url(text))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Failure::new(Code::Usage, "the server's address has a password in it")
            .hint("leave it out; the token is enough"));
    }
    let is_here = url.host_str().is_some_and(|host| {
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
    });
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_here => Ok(url),
        "http" => Err(Failure::new(Code::Usage, "the token would travel in clear")
            .hint("use https:// for a server on another machine")),
        _ => Err(bad_url(text)),
    }
}

/// Where a token is when nobody says.
pub(crate) fn token_file(context: &Context) -> Utf8PathBuf {
    context.paths.config_file.with_file_name(TOKEN_FILE)
}

/// What was named on the command line wins, as everywhere.
fn token(context: &Context, args: &ClientArgs) -> Result<String, Failure> {
    if let Some(file) = &args.token_file {
        return read_token(file);
    }
    let said = |name| {
        let said = context.env.get_os(name).and_then(|text| text.to_str());
        said.map(str::trim).filter(|text| !text.is_empty())
    };
    if let Some(token) = said(TOKEN_ENV) {
        return Ok(token.to_owned());
    }
    if let Some(file) = said(TOKEN_FILE_ENV) {
        return read_token(Utf8Path::new(file));
    }
    let file = token_file(context);
    if !file.exists() {
        return Err(Failure::new(Code::Usage, "there is no token").hint(format!(
            "set OSTLER_TOKEN, or put the token into {file} and run `chmod 600` on it"
        )));
    }
    read_token(&file)
}

fn read_token(file: &Utf8Path) -> Result<String, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::new(Code::Usage, format!("the token file {file} cannot be read")).because(error)
    };
    // NONBLOCK: a named pipe in its place must not make us wait.
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(file);
    let opened = opened.map_err(cannot)?;
    let facts = opened.metadata().map_err(cannot)?;
    let is_own = facts.uid() == rustix::process::geteuid().as_raw() || facts.uid() == 0;
    if !facts.is_file() || !is_own || facts.mode() & 0o077 != 0 {
        return Err(Failure::new(Code::Usage, format!("the token file {file} is open to others"))
            .hint(format!(
                "run `chmod 600 {file}`; if others may have read it, make another token"
            )));
    }
    let mut text = String::new();
    opened.take(TOKEN_BYTES_MAX).read_to_string(&mut text).map_err(cannot)?;
    match text.trim() {
        "" => Err(Failure::new(Code::Usage, format!("the token file {file} is empty"))),
        token => Ok(token.to_owned()),
    }
}
