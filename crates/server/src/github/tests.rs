//! Against a small server that answers as GitHub does, or as it should not.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use serde_json::{Value, json};

use super::*;

/// Keys of no App: made for these tests.
const PKCS1: &str = include_str!("testdata/app-pkcs1.pem");
const PKCS8: &str = include_str!("testdata/app-pkcs8.pem");
const NOW: u64 = 1_800_000_000;
/// Long enough for a machine under load, short enough to wait for.
const SHORT_WAIT: Duration = Duration::from_millis(400);

/// What the server does with a request.
#[derive(Clone)]
enum Reply {
    Json(u16, Value),
    Text(u16, &'static str),
    Redirect(String),
    Hang,
    Flood,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
struct Seen {
    call: String,
    credential: String,
    headers: HeaderMap,
    body: Value,
}

struct GitHub {
    replies: HashMap<String, Reply>,
    seen: Mutex<Vec<Seen>>,
}

/// A GitHub where the App 7, called `felagi-agents`, is installed for `acme` as number 42.
fn replies() -> HashMap<String, Reply> {
    let installation = Reply::Json(200, json!({ "id": 42, "account": { "login": "Acme" } }));
    let expires_at = "2027-01-15T09:00:00Z";
    let token = json!({ "token": "ghs_lent", "expires_at": expires_at, "repository_selection": "selected" });
    HashMap::from([
        ("GET /repos/acme/api/installation".to_owned(), installation.clone()),
        ("GET /app/installations/42".to_owned(), installation),
        ("POST /app/installations/42/access_tokens".to_owned(), Reply::Json(201, token)),
        ("GET /app".to_owned(), Reply::Json(200, json!({ "id": 7, "slug": "felagi-agents" }))),
        (
            "GET /users/felagi-agents%5Bbot%5D".to_owned(),
            Reply::Json(200, json!({ "id": 198, "login": "felagi-agents[bot]", "type": "Bot" })),
        ),
    ])
}

async fn answer(State(github): State<Arc<GitHub>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1_000_000).await.unwrap();
    let call = format!("{} {}", parts.method, parts.uri.path());
    let credential = parts.headers.get("authorization").map_or("", |value| value.to_str().unwrap());
    github.seen.lock().unwrap().push(Seen {
        call: call.clone(),
        credential: credential.to_owned(),
        headers: parts.headers.clone(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    });
    let status = |code: u16| StatusCode::from_u16(code).unwrap();
    match github.replies.get(&call).cloned() {
        None => (StatusCode::NOT_FOUND, "{\"message\":\"Not Found\"}").into_response(),
        Some(Reply::Json(code, value)) => (status(code), value.to_string()).into_response(),
        Some(Reply::Text(code, text)) => (status(code), text).into_response(),
        Some(Reply::Redirect(to)) => {
            (StatusCode::MOVED_PERMANENTLY, [("location", to)]).into_response()
        }
        Some(Reply::Hang) => std::future::pending().await,
        Some(Reply::Flood) => {
            let piece = Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 65_536]));
            Body::from_stream(futures_util::stream::repeat_with(move || {
                piece.as_ref().map(Bytes::clone).map_err(|_| std::io::Error::other("never"))
            }))
            .into_response()
        }
    }
}

/// Serves, and makes an App that asks there.
async fn github(replies: HashMap<String, Reply>) -> (Arc<GitHub>, GitHubApp) {
    let github = Arc::new(GitHub { replies, seen: Mutex::new(Vec::new()) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(Arc::clone(&github));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (github, app(&base, None))
}

fn settings(base: &str) -> AppSettings {
    AppSettings {
        app_id: "7".to_owned(),
        private_key: Secret::new(PKCS8.to_owned()),
        base_url: base.to_owned(),
        installation_id: None,
    }
}

fn app(base: &str, installation_id: Option<u64>) -> GitHubApp {
    let settings = AppSettings { installation_id, ..settings(base) };
    GitHubApp::new(&settings, http_client().unwrap()).unwrap()
}

fn repositories(list: &[&str]) -> Vec<(String, String)> {
    let split =
        |text: &&str| text.split_once('/').map(|(owner, name)| (owner.to_owned(), name.to_owned()));
    list.iter().filter_map(split).collect()
}

fn calls(github: &GitHub) -> Vec<String> {
    github.seen.lock().unwrap().iter().map(|seen| seen.call.clone()).collect()
}

fn seen(github: &GitHub, call: &str) -> Seen {
    let seen = github.seen.lock().unwrap();
    seen.iter().find(|seen| seen.call == call).unwrap_or_else(|| panic!("{call}")).clone()
}

/// Serves with one answer changed, and lends for one repository.
async fn lent_with(call: &str, reply: Reply) -> Lent {
    let mut replies = replies();
    replies.insert(call.to_owned(), reply);
    let (_github, mut app) = github(replies).await;
    app.wait = SHORT_WAIT;
    let list = repositories(&["acme/api"]);
    let lent = tokio::time::timeout(2 * LENDING_WAIT, app.lend(&list, NOW)).await;
    lent.expect("an answer before the deadline")
}

fn bot() -> Committer {
    Committer {
        name: "felagi-agents[bot]".to_owned(),
        email: "198+felagi-agents[bot]@users.noreply.github.com".to_owned(),
    }
}

#[tokio::test]
async fn f_055_a_token_is_lent_for_exactly_the_repositories() {
    let (github, app) = github(replies()).await;
    let lent = app.lend(&repositories(&["acme/api", "Acme/web", "acme/API"]), NOW).await;
    assert_eq!(lent.token.unwrap().expose(), "ghs_lent");
    let minting = seen(&github, "POST /app/installations/42/access_tokens");
    assert_eq!(minting.body, json!({ "repositories": ["api", "web"] }));
    assert_eq!(minting.headers["x-github-api-version"], "2022-11-28");
    assert_eq!(minting.headers["accept"], "application/vnd.github+json");
    assert!(minting.headers["user-agent"].to_str().unwrap().starts_with("ostler/"));
}

#[tokio::test]
async fn f_055_the_app_proves_itself_with_a_short_signature() {
    let (github, app) = github(replies()).await;
    app.lend(&repositories(&["acme/api"]), NOW).await;
    for call in
        ["GET /repos/acme/api/installation", "POST /app/installations/42/access_tokens", "GET /app"]
    {
        let credential = seen(&github, call).credential;
        let proof = credential.strip_prefix("Bearer ").unwrap();
        let (message, signature) = proof.rsplit_once('.').unwrap();
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, app.key.public());
        key.verify(message.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
        let (head, claims) = message.split_once('.').unwrap();
        let read = |part: &str| -> Value {
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
        };
        assert_eq!(read(head), json!({ "alg": "RS256", "typ": "JWT" }));
        assert_eq!(read(claims), json!({ "iat": NOW - 60, "exp": NOW + 300, "iss": "7" }));
    }
    assert_eq!(seen(&github, "GET /users/felagi-agents%5Bbot%5D").credential, "Bearer ghs_lent");
}

#[tokio::test]
async fn f_053_the_committer_is_the_bot_by_number_and_login() {
    let (_github, app) = github(replies()).await;
    assert_eq!(app.lend(&repositories(&["acme/api"]), NOW).await.committer, Ok(bot()));
}

#[tokio::test]
async fn the_bot_is_asked_for_once() {
    let (github, app) = github(replies()).await;
    for _ in 0..3 {
        assert_eq!(app.lend(&repositories(&["acme/api"]), NOW).await.committer, Ok(bot()));
    }
    let count = |call: &str| calls(&github).iter().filter(|seen| *seen == call).count();
    assert_eq!((count("GET /app"), count("GET /users/felagi-agents%5Bbot%5D")), (1, 1));
    assert_eq!(
        count("POST /app/installations/42/access_tokens"),
        3,
        "each run gets a token of its own"
    );
}

#[tokio::test]
async fn an_installation_that_is_known_is_not_looked_for() {
    let (github, app) = github(replies()).await;
    let app = GitHubApp { installation_id: Some(42), ..app };
    assert!(app.lend(&repositories(&["acme/api"]), NOW).await.token.is_ok());
    assert!(!calls(&github).contains(&"GET /repos/acme/api/installation".to_owned()));
}

#[tokio::test]
async fn of_several_owners_the_token_has_the_repositories_of_one() {
    let list = repositories(&["other/lib", "acme/api", "acme/web"]);
    let expected = json!({ "repositories": ["api", "web"] });
    let (server, app) = github(replies()).await;
    assert!(app.lend(&list, NOW).await.token.is_ok());
    assert_eq!(seen(&server, "POST /app/installations/42/access_tokens").body, expected);

    let (server, app) = github(replies()).await;
    let app = GitHubApp { installation_id: Some(42), ..app };
    assert!(app.lend(&list, NOW).await.token.is_ok());
    assert_eq!(seen(&server, "POST /app/installations/42/access_tokens").body, expected);
}

#[tokio::test]
async fn f_057_without_a_repository_of_the_apps_owner_there_is_no_token() {
    let (server, app) = github(replies()).await;
    let lent = app.lend(&repositories(&["other/lib"]), NOW).await;
    assert_eq!((lent.token, lent.committer), (Err(Reason::NotInstalled), Ok(bot())));
    assert_eq!(
        seen(&server, "GET /users/felagi-agents%5Bbot%5D").credential,
        "",
        "anybody may ask"
    );

    let app = GitHubApp { installation_id: Some(42), ..app };
    let lent = app.lend(&repositories(&["other/lib", "third/lib"]), NOW).await;
    assert_eq!(lent.token, Err(Reason::NotInstalled));
    let many: Vec<String> = (0..50).map(|n| format!("owner{n}/lib")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (server, app) = github(replies()).await;
    assert_eq!(app.lend(&repositories(&many), NOW).await.token, Err(Reason::NotInstalled));
    let looked = calls(&server).iter().filter(|call| call.ends_with("/installation")).count();
    assert_eq!(looked, OWNERS_MAX);
}

#[tokio::test]
async fn f_057_without_a_repository_on_github_there_is_no_token() {
    let (_server, app) = github(replies()).await;
    let lent = app.lend(&[], NOW).await;
    assert_eq!((lent.token, lent.committer), (Err(Reason::NoRepository), Ok(bot())));
}

#[tokio::test]
async fn f_057_a_refusal_leaves_the_token_out() {
    let minting = "POST /app/installations/42/access_tokens";
    for status in [401, 403, 404, 422, 500, 503] {
        let lent = lent_with(minting, Reply::Json(status, json!({ "message": "no" }))).await;
        assert_eq!(lent.token, Err(Reason::Status { step: Step::Token, status }));
        assert_eq!(lent.committer, Ok(bot()));
    }
    let lent =
        lent_with("GET /repos/acme/api/installation", Reply::Text(401, "Bad credentials")).await;
    assert_eq!(lent.token, Err(Reason::Status { step: Step::Installation, status: 401 }));
}

#[tokio::test]
async fn f_057_garbage_leaves_the_token_out() {
    let minting = "POST /app/installations/42/access_tokens";
    let token = |token: &str| Reply::Json(201, json!({ "token": token }));
    for reply in [
        Reply::Text(201, "<html>"),
        Reply::Text(201, ""),
        Reply::Json(201, json!([])),
        Reply::Json(201, json!({ "token": 7 })),
        token(""),
        token("ghs\r\nX-Injected: 1"),
        token("a b"),
        Reply::Json(201, json!({ "token": "ghs_all", "repository_selection": "all" })),
        Reply::Flood,
    ] {
        assert_eq!(lent_with(minting, reply).await.token, Err(Reason::Answer(Step::Token)));
    }
    let lent =
        lent_with("GET /repos/acme/api/installation", Reply::Json(200, json!({ "id": "x" }))).await;
    assert_eq!(lent.token, Err(Reason::Answer(Step::Installation)));
}

#[tokio::test]
async fn f_054_a_bot_that_nobody_knows_leaves_the_committer_out() {
    let app = "GET /app";
    let user = "GET /users/felagi-agents%5Bbot%5D";
    let bots = |value: Value| (user, Reply::Json(200, value));
    for (call, reply) in [
        (user, Reply::Text(404, "{}")),
        (user, Reply::Text(200, "nonsense")),
        bots(json!({ "id": 1, "login": "somebody" })),
        bots(json!({ "id": "x", "login": "felagi-agents[bot]" })),
        bots(json!({ "id": 1, "login": "felagi-agents[bot]\nmail = x" })),
        (app, Reply::Text(401, "{}")),
        (app, Reply::Json(200, json!({ "slug": "../../x" }))),
        (app, Reply::Json(200, json!({ "slug": "" }))),
        (app, Reply::Json(200, json!({}))),
    ] {
        let lent = lent_with(call, reply).await;
        assert!(lent.committer.is_err(), "{call}: {:?}", lent.committer);
        assert!(lent.token.is_ok(), "the token does not depend on it");
    }
}

#[tokio::test]
async fn f_057_who_hangs_is_waited_for_until_the_deadline_only() {
    for (call, has_token) in [
        ("GET /repos/acme/api/installation", false),
        ("POST /app/installations/42/access_tokens", false),
        ("GET /app", true),
        ("GET /users/felagi-agents%5Bbot%5D", true),
    ] {
        let started = Instant::now();
        let lent = lent_with(call, Reply::Hang).await;
        assert_eq!(lent.token.is_ok(), has_token, "{call}");
        assert!(lent.token.is_ok() || lent.committer.is_err(), "no time was left for the bot");
        assert!(matches!(lent.token, Ok(_) | Err(Reason::TimedOut(_))), "{call}: {:?}", lent.token);
        assert!(matches!(lent.committer, Err(Reason::TimedOut(_))), "{call}: {:?}", lent.committer);
        assert!(started.elapsed() < LENDING_WAIT, "{call}");
    }
}

#[tokio::test]
async fn f_057_nobody_there_and_no_tls_leave_the_token_out() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let lent =
        app(&format!("http://{address}"), None).lend(&repositories(&["acme/api"]), NOW).await;
    assert_eq!(lent.token, Err(Reason::Unreachable(Step::Installation)));
    assert_eq!(lent.committer, Err(Reason::Unreachable(Step::App)));

    let (_server, plain) = github(replies()).await;
    let base = plain.base.replace("http:", "https:");
    let lent = app(&base, None).lend(&repositories(&["acme/api"]), NOW).await;
    assert_eq!(lent.token, Err(Reason::Unreachable(Step::Installation)));
}

#[tokio::test]
async fn a_repository_that_was_renamed_is_found() {
    let mut replies = replies();
    let found = replies.remove("GET /repos/acme/api/installation").unwrap();
    replies.insert("GET /repositories/1/installation".to_owned(), found);
    let to = Reply::Redirect("/repositories/1/installation".to_owned());
    replies.insert("GET /repos/acme/api/installation".to_owned(), to);
    let (_server, app) = github(replies).await;
    assert!(app.lend(&repositories(&["acme/api"]), NOW).await.token.is_ok());
}

#[tokio::test]
async fn a_name_that_would_be_another_path_is_asked_for_nowhere() {
    let (server, app) = github(replies()).await;
    for name in ["..", ".", "a/b", "a?b", "a#b", "a b", "%2e%2e", ""] {
        let list = [("acme".to_owned(), name.to_owned())];
        assert_eq!(app.lend(&list, NOW).await.token, Err(Reason::NotInstalled), "{name}");
    }
    assert!(calls(&server).iter().all(|call| !call.ends_with("/installation")));
}

#[test]
fn a_key_is_read_in_both_forms_and_with_escaped_line_breaks() {
    let http = http_client().unwrap();
    for pem in
        [PKCS1.to_owned(), PKCS8.to_owned(), PKCS8.replace('\n', "\\n"), format!("\n{PKCS1}")]
    {
        let settings = AppSettings { private_key: Secret::new(pem), ..settings(GITHUB_API) };
        let made = GitHubApp::new(&settings, http.clone()).unwrap();
        assert_eq!(made.key.public().as_ref(), app(GITHUB_API, None).key.public().as_ref());
    }
}

#[test]
fn what_is_no_app_is_refused_and_nothing_of_the_key_is_shown() {
    let http = http_client().unwrap();
    let broken = PKCS8.replace("MII", "MIX");
    for pem in
        ["", "hunter2", "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----", &broken]
    {
        let settings =
            AppSettings { private_key: Secret::new(pem.to_owned()), ..settings(GITHUB_API) };
        let fault = GitHubApp::new(&settings, http.clone()).unwrap_err();
        assert!(matches!(fault, AppFault::Key));
        assert!(!format!("{fault} {fault:?}").contains("hunter2"));
    }
    for id in ["", " ", "a b", "1/2", "1\n2", &"1".repeat(65)] {
        let settings = AppSettings { app_id: id.to_owned(), ..settings(GITHUB_API) };
        let odd = GitHubApp::new(&settings, http.clone());
        assert!(matches!(odd, Err(AppFault::Id)), "{id:?}");
    }
    for base in [
        "",
        "x",
        "ftp://a.example",
        "https://u:p@a.example",
        "https://a.example?x",
        "file:///etc",
        "http://a.example",
        "http://10.0.0.1",
        "http://localhost.a.example",
        "https://a.example#x",
    ] {
        let odd = GitHubApp::new(&settings(base), http.clone());
        assert!(matches!(odd, Err(AppFault::Base)), "{base}");
    }
    for (good, kept) in [
        ("https://ghe.example/api/v3/", "https://ghe.example/api/v3"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:1", "http://[::1]:1"),
        ("http://localhost", "http://localhost"),
    ] {
        assert_eq!(base_url(good).unwrap(), kept);
    }
}

#[tokio::test]
async fn f_058_nothing_that_is_shown_holds_a_token_or_key() {
    let (_server, app) = github(replies()).await;
    let lent = app.lend(&repositories(&["acme/api"]), NOW).await;
    let proof = app.proof(NOW).unwrap();
    let shown = format!("{lent:?} {app:?} {proof:?}");
    assert!(
        !shown.contains("ghs_lent") && !shown.contains("eyJ") && !shown.contains("MII"),
        "{shown}"
    );
}

#[tokio::test]
async fn a_base_with_a_path_is_kept() {
    let with_path =
        replies().into_iter().map(|(call, reply)| (call.replacen(" /", " /api/v3/", 1), reply));
    let (_server, made) = github(with_path.collect()).await;
    let app = app(&format!("{}/api/v3/", made.base), None);
    let lent = app.lend(&repositories(&["acme/api"]), NOW).await;
    assert!(lent.token.is_ok() && lent.committer.is_ok());
}
