//! A workspace's GitHub App: what a run is lent of it, a token for its repositories and a name for its
//! commits (F-052 to F-058).
//!
//! Owns: the App's key in memory, the calls to GitHub's REST API, and how long they may take. A claim never
//! fails because of it: what cannot be had within [`LENDING_WAIT`] is absent, with a reason for the log. What
//! is lent is kept nowhere. Absent on purpose: the sealed key at rest, and what the envelope does with the
//! answer.

mod api;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::Instant;
use url::{Host, Url};

pub use api::http_client;

use crate::secrets::Secret;

/// How long a claim waits for GitHub, for everything together.
pub const LENDING_WAIT: Duration = Duration::from_secs(3);
/// Where GitHub answers, unless the settings say otherwise.
pub const GITHUB_API: &str = "https://api.github.com";
/// Repositories of one token: what GitHub takes.
const REPOSITORIES_MAX: usize = 500;
/// Owners that are asked after one another for an installation of the App. The rest are not asked.
const OWNERS_MAX: usize = 4;
/// Bytes of an App's id.
const APP_ID_BYTES_MAX: usize = 64;
/// Seconds before now that a proof of being the App begins, for clocks that differ.
const PROOF_BEFORE_SECONDS: u64 = 60;
/// Seconds that it holds; GitHub refuses more than ten minutes.
const PROOF_AFTER_SECONDS: u64 = 300;

/// Why a workspace's App cannot be used at all. Never shows the key.
#[derive(Debug, thiserror::Error)]
pub enum AppFault {
    /// The key is no RSA key in PEM.
    #[error("the App's private key is not an RSA key in PEM; GitHub gives one as a .pem file")]
    Key,
    /// The id is none.
    #[error("the App's id is neither its number nor its client id")]
    Id,
    /// The base address is none.
    #[error(
        "the address of GitHub's API is not https (http is for this machine itself), or it has a user, a query \
         or a fragment"
    )]
    Base,
    /// No client for HTTP can be made.
    #[error("no client for HTTP can be made")]
    Client(#[source] reqwest::Error),
    /// No TLS can be spoken.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
}

/// Why something was not lent. Says nothing of keys, tokens or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Nothing on the list lies on GitHub.
    #[error("no repository on GitHub")]
    NoRepository,
    /// More than a token can have.
    #[error("more than {REPOSITORIES_MAX} repositories")]
    TooManyRepositories,
    /// The App is not installed where the repositories are.
    #[error("the App is not installed for these repositories")]
    NotInstalled,
    /// GitHub was not reached.
    #[error("GitHub was not reached while {0}")]
    Unreachable(Step),
    /// The time is up.
    #[error("GitHub did not answer in time while {0}")]
    TimedOut(Step),
    /// GitHub refused.
    #[error("GitHub answered {status} while {step}")]
    Status {
        /// Doing what.
        step: Step,
        /// The status of the answer.
        status: u16,
    },
    /// The answer is not what it should be.
    #[error("GitHub's answer was not understood while {0}")]
    Answer(Step),
    /// The proof could not be signed.
    #[error("the App's key does not sign")]
    Signing,
}

/// What GitHub was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Where the App is installed.
    Installation,
    /// A token.
    Token,
    /// What the App is called.
    App,
    /// Who its bot is.
    Bot,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Installation => "looking for the installation",
            Self::Token => "minting a token",
            Self::App => "asking for the App's name",
            Self::Bot => "asking for the App's bot",
        })
    }
}

/// Whose work the commits of a run are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committer {
    /// The bot's login, as `felagi-agents[bot]`.
    pub name: String,
    /// `<id>+<login>@users.noreply.github.com`: GitHub knows the bot by this only.
    pub email: String,
}

/// What a run is lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lent {
    /// A token for exactly the repositories asked for, or why there is none.
    pub token: Result<Secret, Reason>,
    /// Who commits, or why nobody is known.
    pub committer: Result<Committer, Reason>,
}

impl Lent {
    /// Writes to the log why something is absent.
    pub fn log(&self, workspace: &str) {
        match &self.token {
            // A list without GitHub is no fault.
            Ok(_) | Err(Reason::NoRepository) => {}
            Err(reason) => tracing::warn!(workspace, %reason, "no GitHub token was lent"),
        }
        if let Err(reason) = &self.committer {
            tracing::warn!(workspace, %reason, "the GitHub App's bot is not known");
        }
    }
}

/// How a workspace's App is set up.
#[derive(Clone)]
pub struct AppSettings {
    /// The App's number or client id.
    pub app_id: String,
    /// Its private key, PEM of PKCS#1 or PKCS#8.
    pub private_key: Secret,
    /// Where GitHub's REST API answers; [`GITHUB_API`] unless it is somebody's own.
    pub base_url: String,
    /// The installation, when there is one to use for all repositories; else it is looked for.
    pub installation_id: Option<u64>,
}

/// A workspace's App.
pub struct GitHubApp {
    http: reqwest::Client,
    base: String,
    app_id: String,
    key: RsaKeyPair,
    installation_id: Option<u64>,
    /// The bot, once GitHub has told. It never changes while the App exists.
    bot: Mutex<Option<Committer>>,
    wait: Duration,
}

impl fmt::Debug for GitHubApp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitHubApp")
            .field("base", &self.base)
            .field("app_id", &self.app_id)
            .finish_non_exhaustive()
    }
}

impl GitHubApp {
    /// Reads the key; asks nobody anything. `http` is [`http_client`], one for the whole server.
    pub fn new(settings: &AppSettings, http: reqwest::Client) -> Result<Self, AppFault> {
        let app_id = settings.app_id.trim();
        let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'.';
        if !(1..=APP_ID_BYTES_MAX).contains(&app_id.len()) || !app_id.bytes().all(letters) {
            return Err(AppFault::Id);
        }
        Ok(Self {
            http,
            base: base_url(&settings.base_url)?,
            app_id: app_id.to_owned(),
            key: read_key(settings.private_key.expose())?,
            installation_id: settings.installation_id,
            bot: Mutex::new(None),
            wait: LENDING_WAIT,
        })
    }

    /// Asks GitHub for a token for exactly these repositories, as owner and name, and for the App's bot.
    /// Always answers within [`LENDING_WAIT`]. `now_seconds` is the time since 1970.
    pub async fn lend(&self, repositories: &[(String, String)], now_seconds: u64) -> Lent {
        let until = Instant::now() + self.wait;
        let proof = match self.proof(now_seconds) {
            Ok(proof) => proof,
            Err(reason) => {
                return Lent { token: Err(reason), committer: self.known_bot().ok_or(reason) };
            }
        };
        let token = self.mint(repositories, &proof, until);
        if let Some(bot) = self.known_bot() {
            return Lent { token: token.await, committer: Ok(bot) };
        }
        let (token, slug) = tokio::join!(token, self.slug(&proof, until));
        let committer = match slug {
            Ok(slug) => self.bot_of(&slug, token.as_ref().ok(), until).await,
            Err(reason) => Err(reason),
        };
        if let Ok(bot) = &committer {
            *self.bot.lock().unwrap_or_else(PoisonError::into_inner) = Some(bot.clone());
        }
        Lent { token, committer }
    }

    /// A short-lived proof of being the App, a JWT.
    fn proof(&self, now_seconds: u64) -> Result<Secret, Reason> {
        let claims = serde_json::json!({
            "iat": now_seconds.saturating_sub(PROOF_BEFORE_SECONDS),
            "exp": now_seconds.saturating_add(PROOF_AFTER_SECONDS),
            "iss": self.app_id,
        });
        let head = URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","typ":"JWT"}"#);
        let message = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let mut signature = vec![0; self.key.public().modulus_len()];
        self.key
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature)
            .map_err(|_| Reason::Signing)?;
        Ok(Secret::new(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))))
    }

    /// A token for the repositories of one owner: an installation has one. Of a list with several owners it
    /// is the first where the App is installed.
    async fn mint(
        &self,
        repositories: &[(String, String)],
        proof: &Secret,
        until: Instant,
    ) -> Result<Secret, Reason> {
        let mut owners: Vec<&str> = Vec::new();
        for (owner, _) in repositories {
            if !owners.iter().any(|known| known.eq_ignore_ascii_case(owner)) {
                owners.push(owner);
            }
        }
        let of = |wanted: &str| {
            let mut names: Vec<String> = Vec::new();
            for (owner, name) in repositories {
                let listed = names.iter().any(|known| known.eq_ignore_ascii_case(name));
                if owner.eq_ignore_ascii_case(wanted) && !listed {
                    names.push(name.clone());
                }
            }
            names
        };
        let (installation, names) = match (owners.as_slice(), self.installation_id) {
            ([], _) => return Err(Reason::NoRepository),
            ([owner], Some(id)) => (id, of(owner)),
            (_, Some(id)) => (id, of(&self.owner_of(id, proof, until).await?)),
            (owners, None) => {
                let mut found = None;
                for owner in owners.iter().take(OWNERS_MAX) {
                    let names = of(owner);
                    let Some(name) = names.first() else { continue };
                    if let Some(id) = self.installation_of(owner, name, proof, until).await? {
                        found = Some((id, names));
                        break;
                    }
                }
                found.ok_or(Reason::NotInstalled)?
            }
        };
        match names.len() {
            0 => Err(Reason::NotInstalled),
            1..=REPOSITORIES_MAX => self.token_for(installation, &names, proof, until).await,
            _ => Err(Reason::TooManyRepositories),
        }
    }

    fn known_bot(&self) -> Option<Committer> {
        self.bot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The address of an API of GitHub, as it is kept and asked. Proofs of being the App go there, so it is https;
/// http is for what runs on this machine.
pub fn base_url(text: &str) -> Result<String, AppFault> {
    let base = Url::parse(text).map_err(|_| AppFault::Base)?;
    let local = match base.host() {
        None => return Err(AppFault::Base),
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
    };
    let safe = base.scheme() == "https" || (base.scheme() == "http" && local);
    let plain = base.username().is_empty()
        && base.password().is_none()
        && base.query().is_none()
        && base.fragment().is_none();
    if !safe || !plain {
        return Err(AppFault::Base);
    }
    Ok(base.as_str().trim_end_matches('/').to_owned())
}

/// Whether an App's key can be used: it is judged when it is saved, not when a run needs it.
pub fn check_key(pem: &str) -> Result<(), AppFault> {
    read_key(pem).map(drop)
}

fn read_key(pem: &str) -> Result<RsaKeyPair, AppFault> {
    // An environment variable or a JSON file often holds the line breaks as `\n`.
    let pem = pem.replace("\\n", "\n");
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| AppFault::Key)?;
    let key = match &key {
        PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
        PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
        _ => return Err(AppFault::Key),
    };
    key.map_err(|_| AppFault::Key)
}
