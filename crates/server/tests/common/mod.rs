//! What tests of the people's side share: a server on SQLite, a client that holds every answer against
//! `/openapi.json`, a machine, and a world with one of everything.

#![allow(dead_code, reason = "no test file uses all of it")]

pub(crate) mod database;
pub(crate) mod schema;
pub(crate) mod shown;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;

use ostler_server::people::ENDPOINTS;
use ostler_server::secrets::Keyring;
use ostler_server::settings::Settings;
use ostler_server::{Admin, Limits, Server, system_clock};
use ostler_testkit::postgres::ScratchPostgres;
use serde_json::{Value, json};

/// Each test twice: on SQLite, and on PostgreSQL where the machine has it.
#[macro_export]
macro_rules! on_both {
    ($(async fn $name:ident($world:ident) $body:block)*) => { $(
        mod $name {
            use super::*;

            async fn run($world: World) $body

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                run(World::start().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                let Some(world) = World::start_on_postgres(stringify!($name)).await else { return };
                run(world).await;
            }
        }
    )* };
}

/// In every text of the world, so that it is found where it must not be.
pub(crate) const MARK: &str = "xyzzy";

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    /// What was answered, which must be a success.
    pub(crate) fn data(self) -> Value {
        assert!(self.status < 300, "{}: {}", self.status, self.body);
        self.body["data"].clone()
    }

    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

pub(crate) struct World {
    server: Option<Server>,
    /// A second one on the same database.
    second: Option<Server>,
    _dir: Option<tempfile::TempDir>,
    pub(crate) database: String,
    pub(crate) address: SocketAddr,
    pub(crate) client: reqwest::Client,
    pub(crate) token: String,
    pub(crate) daemon_token: String,
    pub(crate) document: Value,
    succeeded: Mutex<BTreeSet<(String, String)>>,
}

pub(crate) fn keyring() -> Keyring {
    Keyring::new(&[7; 32]).unwrap()
}

/// A server on this database, with so many requests a minute that no test reaches them.
async fn serve(database: &str, set: impl FnOnce(&mut Settings)) -> Server {
    let mut settings = Settings::new(database.to_owned());
    settings.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let many = 10_000_000;
    settings.limits = Limits { api: many, unknown: many, tasks: many, ..Limits::default() };
    set(&mut settings);
    Server::start(settings, keyring(), system_clock()).await.unwrap()
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(set: impl FnOnce(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
        Self::start_on(database, Some(dir), set).await
    }

    /// On a database of its own in the PostgreSQL that the tests of a process share.
    pub(crate) async fn start_on_postgres(test: &str) -> Option<Self> {
        Self::start_on_postgres_with(test, |_| {}).await
    }

    pub(crate) async fn start_on_postgres_with(
        test: &str,
        set: impl FnOnce(&mut Settings),
    ) -> Option<Self> {
        let postgres = ScratchPostgres::shared(test)?;
        let name: String = test.chars().filter(char::is_ascii_alphanumeric).take(60).collect();
        let database = postgres.create_database(&format!("p{}", name.to_lowercase()));
        Some(Self::start_on(database, None, set).await)
    }

    async fn start_on(
        database: String,
        dir: Option<tempfile::TempDir>,
        set: impl FnOnce(&mut Settings),
    ) -> Self {
        let admin = Admin::open(&database, keyring()).await.unwrap();
        let made = admin.init("acme", "admin@example.com").await.unwrap();
        admin.close().await;
        let server = serve(&database, set).await;
        // A second installation in one process is refused and harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::new();
        let address = server.address();
        let url = format!("http://{address}/openapi.json");
        let document = client.get(url).send().await.unwrap().json().await.unwrap();
        Self {
            server: Some(server),
            second: None,
            _dir: dir,
            database,
            address,
            client,
            token: made.api_token,
            daemon_token: made.daemon_token,
            document,
            succeeded: Mutex::default(),
        }
    }

    /// Stops the server and starts one anew.
    pub(crate) async fn restart(&mut self) {
        self.server.take().unwrap().stop().await;
        let server = serve(&self.database, |_| {}).await;
        self.address = server.address();
        self.server = Some(server);
    }

    /// A second server on the database, when it is one that several can share.
    pub(crate) async fn one_more_where_possible(&mut self) {
        if self.database.starts_with("postgres") {
            self.second = Some(serve(&self.database, |_| {}).await);
        }
    }

    /// Where the servers listen.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        std::iter::once(self.address).chain(self.second.iter().map(Server::address)).collect()
    }

    pub(crate) async fn stop(mut self) {
        self.server.take().unwrap().stop().await;
        if let Some(second) = self.second.take() {
            second.stop().await;
        }
    }

    /// Tokens of another workspace.
    pub(crate) async fn other(&self, slug: &str) -> (String, String) {
        let admin = Admin::open(&self.database, keyring()).await.unwrap();
        let made = admin.init(slug, "else@example.com").await.unwrap();
        admin.close().await;
        (made.api_token, made.daemon_token)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> Reply {
        let (client, request) = request.build_split();
        let request = request.unwrap();
        let (method, path) = (request.method().to_string(), request.url().path().to_owned());
        let answer = client.execute(request).await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = answer.bytes().await.unwrap().to_vec();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let reply = Reply { status, headers, body, bytes };
        self.check(&method, &path, &reply);
        reply
    }

    /// The answer is one that the document describes.
    fn check(&self, method: &str, path: &str, reply: &Reply) {
        let Some(template) = self.template(path) else { return };
        let operation = &self.document["paths"][&template][method.to_lowercase()];
        if operation.is_null() {
            assert_eq!(reply.status, 405, "{method} {path} is not described");
            return;
        }
        let mut described = &operation["responses"][reply.status.to_string()];
        assert!(
            !described.is_null(),
            "{method} {template} answered {}: {}",
            reply.status,
            reply.body
        );
        if let Some(reference) = described["$ref"].as_str() {
            described = schema::follow(&self.document, reference);
        }
        let schema = &described["content"]["application/json"]["schema"];
        if !schema.is_null() {
            let faults = schema::faults(&self.document, schema, &reply.body);
            assert!(faults.is_empty(), "{method} {template}: {faults:?} in {}", reply.body);
        }
        if reply.status < 300 {
            self.succeeded.lock().unwrap().insert((method.to_owned(), template));
        }
    }

    /// The path of the document that this is one of.
    fn template(&self, path: &str) -> Option<String> {
        let parts: Vec<_> = path.split('/').collect();
        let fits = |template: &&String| {
            let own: Vec<_> = template.split('/').collect();
            own.len() == parts.len()
                && own.iter().zip(&parts).all(|(own, part)| own.starts_with('{') || own == part)
        };
        let mut found: Vec<_> = self.document["paths"].as_object()?.keys().filter(fits).collect();
        found.sort_by_key(|template| template.matches('{').count());
        found.first().map(|template| (*template).clone())
    }

    /// Endpoints that have not succeeded yet.
    pub(crate) fn untried(&self) -> Vec<String> {
        let tried = self.succeeded.lock().unwrap();
        let all = ENDPOINTS.iter().map(|it| (it.method.to_owned(), it.path.to_owned()));
        all.filter(|it| !tried.contains(it))
            .map(|(method, path)| format!("{method} {path}"))
            .collect()
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        self.call_as(&self.token, method, path, body).await
    }

    pub(crate) async fn call_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Reply {
        let path =
            if path.starts_with("/api/") { path.to_owned() } else { format!("/api/v1{path}") };
        let mut request =
            self.client.request(method.parse().unwrap(), self.url(&path)).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        self.send(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.call("GET", path, None).await.data()
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        self.call("POST", path, Some(body)).await.data()
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Value {
        self.call("PATCH", path, Some(body)).await.data()
    }

    /// What a machine says.
    pub(crate) async fn machine(&self, path: &str, lease: Option<&str>, body: Value) -> Reply {
        let url = self.url(&format!("/api/daemon/{path}"));
        let mut request = self
            .client
            .post(url)
            .bearer_auth(&self.daemon_token)
            .header("X-Felagi-Client-Version", "0.3.0")
            .header("X-Felagi-Client-Capabilities", "streaming,resume,cancel,thread,long_poll")
            .json(&body);
        if let Some(lease) = lease {
            request = request.header("X-Felagi-Lease", lease);
        }
        self.send(request).await
    }

    /// Registers a machine; the id of its runtime.
    pub(crate) async fn register(&self, daemon: &str, provider: &str) -> String {
        let body = json!({ "daemon_id": daemon, "name": format!("{MARK}-{daemon}"), "version": "0.3.0",
            "providers": [provider], "capabilities": { "os": "linux", "arch": "x86_64" } });
        let reply = self.machine("register", None, body).await;
        assert_eq!(reply.status, 201, "{}", reply.body);
        reply.body["runtimes"][0]["id"].as_str().unwrap().to_owned()
    }

    /// Claims a task; its id and lease.
    pub(crate) async fn claim(&self, daemon: &str) -> Option<(String, String)> {
        let reply = self.machine("tasks/claim", None, json!({ "daemon_id": daemon })).await;
        let data = &reply.body["data"];
        (reply.status == 200).then(|| {
            let text = |name: &str| data[name].as_str().unwrap().to_owned();
            (text("id"), text("lease_token"))
        })
    }

    pub(crate) async fn agent(&self, name: &str, provider: &str) -> i64 {
        let made = self.post("/agents", json!({ "name": name, "provider": provider })).await;
        made["id"].as_i64().unwrap()
    }

    /// An issue for an agent; its identifier.
    pub(crate) async fn issue_for(&self, title: &str, agent: i64) -> String {
        let body = json!({ "title": title, "assignee_type": "agent", "assignee_id": agent });
        self.post("/issues", body).await["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn tasks_of(&self, issue: &str) -> Vec<Value> {
        self.get(&format!("/tasks?issue={issue}")).await.as_array().unwrap().clone()
    }

    /// A token of a user, with these abilities.
    pub(crate) async fn token_with(&self, abilities: &[&str]) -> String {
        let body = json!({ "name": "part", "kind": "api", "abilities": abilities });
        self.post("/tokens", body).await["token"].as_str().unwrap().to_owned()
    }

    /// A member who is no administrator, and a token of hers.
    pub(crate) async fn member(&self, email: &str) -> (i64, String) {
        let id = self.post("/members", json!({ "email": email })).await["id"].as_i64().unwrap();
        let body = json!({ "name": "hers", "kind": "api", "user_id": id });
        let token = self.post("/tokens", body).await["token"].as_str().unwrap().to_owned();
        (id, token)
    }

    pub(crate) async fn attach(&self, path: &str, name: &str, content: &str) -> Reply {
        self.attach_as(&self.token, path, name, content).await
    }

    pub(crate) async fn attach_as(
        &self,
        token: &str,
        path: &str,
        name: &str,
        content: &str,
    ) -> Reply {
        let edge = "edge-of-a-part";
        let body = format!(
            "--{edge}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             Content-Type: text/html\r\n\r\n{content}\r\n--{edge}--\r\n"
        );
        let request = self
            .client
            .post(self.url(&format!("/api/v1{path}")))
            .bearer_auth(token)
            .header("Content-Type", format!("multipart/form-data; boundary={edge}"))
            .body(body);
        self.send(request).await
    }
}

/// What stands for the parts of a path, in a world that has one of everything.
pub(crate) struct Things(pub Vec<(&'static str, String)>);

impl Things {
    /// The path with our things in it.
    pub(crate) fn path(&self, template: &str) -> String {
        let mut path = template.to_owned();
        for (name, value) in &self.0 {
            path = path.replace(&format!("{{{name}}}"), value);
        }
        assert!(!path.contains('{'), "{path}");
        path
    }

    pub(crate) fn of(&self, name: &str) -> &str {
        &self.0.iter().find(|(own, _)| *own == name).unwrap().1
    }
}

/// Makes one of everything.
pub(crate) async fn furnish(world: &World) -> Things {
    let id = |value: &Value| value["id"].as_i64().unwrap().to_string();
    let runtime = world.register("m-1", "claude_code").await;
    let agent = world.agent(&format!("Freya {MARK}"), "claude_code").await;
    let project = world.post("/projects", json!({ "name": format!("Web {MARK}") })).await;
    let issue = world.issue_for(&format!("Redirect {MARK}"), agent).await;
    let comments = format!("/issues/{issue}/comments");
    let comment = world.post(&comments, json!({ "body": format!("<p>Look {MARK}</p>") })).await;
    let files = format!("{comments}/{}/attachments", id(&comment));
    let attachment = world.attach(&files, "a.txt", MARK).await.data();
    let skill =
        world.post("/skills", json!({ "name": MARK, "content": format!("# {MARK}") })).await;
    let url = format!("https://github.com/acme/{MARK}.git");
    let repository = world.post("/repositories", json!({ "url": url })).await;
    let member = world.post("/members", json!({ "email": format!("{MARK}@example.com") })).await;
    let token = world.post("/tokens", json!({ "name": MARK, "kind": "daemon" })).await;
    let task = world.tasks_of(&issue).await[0]["id"].as_str().unwrap().to_owned();
    Things(vec![
        ("issue", issue),
        ("comment", id(&comment)),
        ("attachment", id(&attachment)),
        ("agent", agent.to_string()),
        ("skill", id(&skill)),
        ("runtime", runtime),
        ("task", task),
        ("repository", id(&repository)),
        ("user", id(&member)),
        ("token", id(&token)),
        ("project", id(&project)),
    ])
}

/// A body that is right, by its schema.
pub(crate) fn sample(schema: &str) -> Value {
    match schema {
        "NewProject" => json!({ "name": "Other" }),
        "NewIssue" => {
            json!({ "title": "T", "description": "<p>x</p>", "acceptance_criteria": ["a"],
            "status": "todo", "priority": "high", "type": "bug", "estimate_minutes": 5 })
        }
        "IssueChange" => json!({ "title": "U", "status": "done" }),
        "NewComment" => json!({ "body": "<p>y</p>" }),
        "NewTime" => json!({ "minutes": 5, "note": "n" }),
        "NewAgent" => json!({ "name": "B", "provider": "codex", "concurrency": 2 }),
        "AgentChange" => json!({ "description": "d" }),
        "NewSkill" => {
            json!({ "name": "deploy", "content": "c", "files": [{ "path": "a/b.md", "content": "d" }] })
        }
        "SkillChange" => json!({ "content": "e" }),
        "NewDecision" => json!({ "decision": "approved", "note": "n" }),
        "WorkspaceChange" => json!({ "context": "c" }),
        "NewRepository" => json!({ "url": "https://github.com/acme/other.git" }),
        "NewMember" => json!({ "email": "new@example.com", "name": "New", "role": "member" }),
        "MemberChange" => json!({ "role": "member" }),
        "NewToken" => json!({ "name": "n", "kind": "api", "days": 1, "abilities": ["read"] }),
        other => panic!("no sample of {other}"),
    }
}
