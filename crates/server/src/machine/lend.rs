//! What a workspace's GitHub App lends a run: a token for its repositories, and a name to commit with.
//!
//! Asked after the claim was committed, outside any transaction. Whatever goes wrong, the run goes without.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ostler_proto::lease::Committer;
use serde_json::{Map, Value};

use crate::app::App;
use crate::github::{self, AppFault, AppSettings, GitHubApp};
use crate::repository::Repository;
use crate::secrets::{Purpose, Secret};
use crate::store::{Facts, GithubFacts};

/// The names the token is lent under. One that the agent's own environment sets is left to it.
const TOKEN_NAMES: [&str; 2] = ["GH_TOKEN", "GITHUB_TOKEN"];

/// Apps that are kept; when there are more all are made anew, and GitHub is asked again who their bots are.
const APPS_MAX: usize = 1_000;

/// The Apps of workspaces that lent something, kept because GitHub's answers about the bot are.
pub(crate) struct Apps {
    http: Option<reqwest::Client>,
    apps: Mutex<HashMap<i64, (GithubFacts, Arc<GitHubApp>)>>,
}

impl Apps {
    pub(crate) fn new() -> Self {
        let http = github::http_client();
        if let Err(error) = &http {
            tracing::error!(%error, "GitHub cannot be asked; runs go without its tokens");
        }
        Self { http: http.ok(), apps: Mutex::new(HashMap::new()) }
    }

    /// The workspace's App as it is set now.
    fn of(&self, app: &App, workspace_id: i64, facts: &GithubFacts) -> Option<Arc<GitHubApp>> {
        let mut apps = self.apps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, github)) = apps.get(&workspace_id)
            && known == facts
        {
            return Some(Arc::clone(github));
        }
        match self.make(app, workspace_id, facts) {
            Ok(github) => {
                let github = Arc::new(github?);
                if apps.len() >= APPS_MAX {
                    apps.clear();
                }
                apps.insert(workspace_id, (facts.clone(), Arc::clone(&github)));
                Some(github)
            }
            Err(error) => {
                tracing::warn!(workspace_id, %error, "the workspace's GitHub App cannot be used");
                None
            }
        }
    }

    fn make(
        &self,
        app: &App,
        workspace_id: i64,
        facts: &GithubFacts,
    ) -> Result<Option<GitHubApp>, AppFault> {
        let Some(http) = self.http.clone() else { return Ok(None) };
        let keyring = &app.store.shared().keyring;
        let key = keyring.open(Purpose::GithubKey(workspace_id), &facts.sealed_key).ok();
        let Some(key) = key.and_then(|key| String::from_utf8(key).ok()) else {
            tracing::error!("the key of a workspace's GitHub App cannot be opened");
            return Ok(None);
        };
        let settings = AppSettings {
            app_id: facts.app_id.clone(),
            private_key: Secret::new(key),
            base_url: facts.base_url.clone(),
            installation_id: facts.installation_id.as_deref().and_then(|id| id.parse().ok()),
        };
        GitHubApp::new(&settings, http).map(Some)
    }
}

/// What was lent.
#[derive(Default)]
pub(super) struct Loan {
    pub(super) committer: Option<Committer>,
    pub(super) has_token: bool,
}

/// Asks the workspace's App, if there is something to ask for, and puts its token into `env`.
pub(super) async fn lend(
    app: &App,
    workspace_id: i64,
    facts: &Facts,
    env: &mut Map<String, Value>,
) -> Loan {
    let repositories: Vec<_> = facts
        .repositories
        .iter()
        .filter_map(|(_, url)| Repository::parse(url).ok()?.github)
        .collect();
    // A checkout that is not on GitHub has commits too, and the bot is who makes them.
    let has_checkout = !facts.repositories.is_empty();
    let Some(github) = facts.github.as_ref().filter(|_| has_checkout) else {
        return Loan::default();
    };
    let Some(github) = app.github.of(app, workspace_id, github) else { return Loan::default() };
    let now_seconds = u64::try_from(app.store.now().as_micros() / 1_000_000).unwrap_or(0);
    let lent = github.lend(&repositories, now_seconds).await;
    lent.log(&facts.workspace_slug);
    let mut loan = Loan::default();
    if let Ok(token) = &lent.token {
        for name in TOKEN_NAMES {
            env.entry(name).or_insert_with(|| Value::String(token.expose().to_owned()));
        }
        loan.has_token = true;
    }
    loan.committer = lent.committer.ok().map(|it| Committer { name: it.name, email: it.email });
    loan
}
