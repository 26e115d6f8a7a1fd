//! What a workspace's GitHub App adds to a claim, by a GitHub that is played here (F-052 to F-058).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use serde_json::{Value, json};

use crate::world::World;

/// Of no App: made for tests.
const KEY: &str = include_str!("../../src/github/testdata/app-pkcs8.pem");
const MINT: &str = "POST /app/installations/42/access_tokens";
const BOT: &str = "GET /users/felagi-agents%5Bbot%5D";

/// What it answers, and what it was asked.
#[derive(Default)]
struct GitHub {
    replies: Mutex<HashMap<&'static str, (u16, Value)>>,
    seen: Mutex<Vec<(String, Value)>>,
}

impl GitHub {
    /// The App 7, called `felagi-agents`, is installed for `acme` as number 42.
    async fn start() -> (Arc<Self>, String) {
        let installation = json!({ "id": 42, "account": { "login": "acme" } });
        let token = json!({ "token": "ghs_lent", "expires_at": "2099-01-15T09:00:00Z" });
        let bot = json!({ "id": 198, "login": "felagi-agents[bot]", "type": "Bot" });
        let replies = HashMap::from([
            ("GET /repos/acme/api/installation", (200, installation.clone())),
            ("GET /app/installations/42", (200, installation)),
            (MINT, (201, token)),
            ("GET /app", (200, json!({ "id": 7, "slug": "felagi-agents" }))),
            (BOT, (200, bot)),
        ]);
        let github = Arc::new(Self { replies: Mutex::new(replies), seen: Mutex::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(Self::answer).with_state(Arc::clone(&github));
        tokio::spawn(async move { axum::serve(listener, router).await });
        (github, base)
    }

    async fn answer(
        State(github): State<Arc<Self>>,
        method: Method,
        uri: Uri,
        body: Bytes,
    ) -> (StatusCode, String) {
        let call = format!("{method} {}", uri.path());
        let read = serde_json::from_slice(&body).unwrap_or_default();
        github.seen.lock().unwrap().push((call.clone(), read));
        let replies = github.replies.lock().unwrap();
        let (status, body) = replies
            .get(call.as_str())
            .cloned()
            .unwrap_or_else(|| (404, json!({ "message": "Not Found" })));
        (StatusCode::from_u16(status).unwrap(), body.to_string())
    }

    fn fail(&self, call: &'static str) {
        self.replies.lock().unwrap().insert(call, (500, json!({ "message": "no" })));
    }

    fn minted_for(&self) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(call, _)| call == MINT).map(|(_, body)| body.clone()).collect()
    }
}

async fn with_app(world: &World) -> Arc<GitHub> {
    let (github, base) = GitHub::start().await;
    let app = json!({ "app_id": "7", "private_key": KEY, "base_url": base });
    world.patch("/workspace", json!({ "github_app": app })).await;
    world.make("/repositories", json!({ "url": "https://github.com/acme/api.git" })).await;
    github
}

on_both! {
    async fn f_052_f_053_f_055_f_058_with_an_app_the_claim_says_who_commits_and_lends_a_token(world) {
        crate::shown::capture();
        let github = with_app(&world).await;
        let machine = world.registered("m-1").await;
        let freya = json!({ "name": "Freya", "provider": "claude_code", "custom_env": { "OWN": "1" } });
        let agent = world.agent_with(freya).await;
        let issue = world.issue("Commit", agent).await;
        let task = machine.claim().await;
        assert_eq!(task.envelope["workspace"]["committer"], json!({ "name": "felagi-agents[bot]",
            "email": "198+felagi-agents[bot]@users.noreply.github.com" }));
        let lent = json!({ "OWN": "1", "GH_TOKEN": "ghs_lent", "GITHUB_TOKEN": "ghs_lent" });
        assert_eq!(task.envelope["agent"]["custom_env"], lent);
        assert_eq!(github.minted_for(), [json!({ "repositories": ["api"] })]);
        // It is in no later answer.
        machine.start(&task).await;
        machine.complete(&task, json!({ "summary": "Done" })).await;
        for path in [format!("/agents/{agent}"), format!("/tasks/{}", task.id), format!("/issues/{issue}"),
            "/workspace".to_owned()] {
            let shown = world.get(&path).await.to_string();
            assert!(!shown.contains("ghs_lent") && !shown.contains("PRIVATE KEY"), "{path}: {shown}");
        }
        // Nor in a row or a log; the key is sealed.
        let part_of_key = KEY.lines().nth(1).unwrap();
        crate::shown::nowhere(&world.database, &["ghs_lent", part_of_key], "s1.").await;
        world.stop().await;
    }

    async fn f_052_f_054_f_057_a_checkout_that_is_not_on_github_has_a_committer_and_no_token(world) {
        let (github, base) = GitHub::start().await;
        let app = json!({ "app_id": "7", "private_key": KEY, "base_url": base });
        world.patch("/workspace", json!({ "github_app": app })).await;
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        world.issue("No checkout", agent).await;
        let none = machine.claim().await.envelope;
        assert!(none["workspace"].get("committer").is_none(), "{none}");
        assert!(github.seen.lock().unwrap().is_empty());
        world.make("/repositories", json!({ "url": "https://git.example.com/acme/api.git" })).await;
        world.issue("Elsewhere", agent).await;
        let envelope = machine.claim().await.envelope;
        assert_eq!(envelope["workspace"]["committer"]["name"], "felagi-agents[bot]");
        assert_eq!(envelope["agent"]["custom_env"], json!({}));
        assert!(github.minted_for().is_empty());
        world.stop().await;
    }

    async fn f_056_a_value_that_the_agent_set_itself_wins(world) {
        with_app(&world).await;
        let machine = world.registered("m-1").await;
        let both = json!({ "GH_TOKEN": "own-1", "GITHUB_TOKEN": "own-2" });
        let sets = [
            (json!({ "GH_TOKEN": "own-1" }), json!({ "GH_TOKEN": "own-1", "GITHUB_TOKEN": "ghs_lent" })),
            (json!({ "GITHUB_TOKEN": "own-2" }), json!({ "GH_TOKEN": "ghs_lent", "GITHUB_TOKEN": "own-2" })),
            (both.clone(), both),
        ];
        for (number, (own, expected)) in sets.into_iter().enumerate() {
            let body = json!({ "name": format!("A {number}"), "provider": "claude_code", "custom_env": own });
            let agent = world.agent_with(body).await;
            world.issue("Commit", agent).await;
            assert_eq!(machine.claim().await.envelope["agent"]["custom_env"], expected);
        }
        world.stop().await;
    }

    async fn f_054_f_057_what_github_does_not_say_is_left_out_and_the_claim_succeeds(world) {
        let github = with_app(&world).await;
        github.fail(MINT);
        github.fail(BOT);
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        world.issue("Refused", agent).await;
        let task = machine.claim().await;
        assert_eq!(task.envelope["agent"]["custom_env"], json!({}));
        assert!(task.envelope["workspace"].get("committer").is_none(), "{}", task.envelope);
        machine.start(&task).await;
        machine.complete(&task, json!({})).await;
        // Without an App nothing is asked.
        world.patch("/workspace", json!({ "github_app": null })).await;
        let asked = github.seen.lock().unwrap().len();
        world.issue("Without", agent).await;
        let task = machine.claim().await;
        assert_eq!(task.envelope["agent"]["custom_env"], json!({}));
        assert!(task.envelope["workspace"].get("committer").is_none(), "{}", task.envelope);
        assert_eq!(github.seen.lock().unwrap().len(), asked);
        world.stop().await;
    }
}
