//! A server with a workspace, the people's API, and machines that speak raw HTTP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use ostler_core::clock::Timestamp;
use ostler_server::secrets::Keyring;
use ostler_server::settings::Settings;
use ostler_server::{Admin, Limits, Server, system_clock};
use ostler_testkit::postgres::ScratchPostgres;
use serde_json::{Value, json};

/// For what takes a moment on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// What a daemon of today declares.
pub(crate) const CAPABILITIES: &str = "streaming,resume,cancel,thread";
/// So many requests a minute that no test reaches them.
pub(crate) const MANY: u32 = 10_000_000;

/// Each test twice: on SQLite, and on PostgreSQL where the machine has it. What stands behind `with` changes
/// the settings.
macro_rules! on_both {
    ($(async fn $name:ident($world:ident $(with $set:expr)?) $body:block)*) => { $(
        mod $name {
            #[allow(unused_imports, reason = "not every module has helpers")]
            use super::*;

            async fn run($world: crate::world::World) $body

            fn set(settings: &mut ostler_server::settings::Settings) {
                let _ = &settings;
                $(let set: fn(&mut ostler_server::settings::Settings) = $set; set(settings);)?
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                run(crate::world::World::on_sqlite(set).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                let world = crate::world::World::on_postgres(stringify!($name), set).await;
                let Some(world) = world else { return };
                run(world).await;
            }
        }
    )* };
}

pub(crate) type Set = fn(&mut Settings);

pub(crate) struct World {
    servers: Vec<Server>,
    _dir: Option<tempfile::TempDir>,
    pub(crate) database: String,
    pub(crate) address: SocketAddr,
    /// A token of an administrator, for the people's API.
    pub(crate) people: String,
    /// A token of machines.
    pub(crate) token: String,
    pub(crate) http: reqwest::Client,
    ahead: Arc<AtomicI64>,
    set: Set,
}

/// An answer of a machine endpoint.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
    pub(crate) bytes: usize,
}

impl Answer {
    /// Reads it, and holds it against what holds for every answer of a machine endpoint (F-013, F-065).
    pub(crate) async fn read(request: reqwest::RequestBuilder) -> Self {
        let answer = request.send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = answer.bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let told = Self { status, headers, body, bytes: bytes.len() };
        assert!(status < 500, "{told:?}");
        assert_eq!(told.header("x-felagi-protocol-version"), Some("7"), "{told:?}");
        if status >= 400 {
            let message = told.body["message"].as_str().unwrap_or_default();
            assert!(!message.is_empty(), "a refusal without a message: {told:?}");
            let kind = told.header("content-type").unwrap_or_default();
            assert!(kind.starts_with("application/json"), "{told:?}");
        }
        told
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn number(&self, name: &str) -> i64 {
        let text = self.header(name).unwrap_or_else(|| panic!("no {name}: {self:?}"));
        text.parse().unwrap()
    }

    /// The body of an answer with this status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.body
    }

    /// A refusal with this status and code.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) {
        assert_eq!((self.status, &self.body["code"]), (status, &json!(code)), "{}", self.body);
    }
}

/// A machine as the server sees it: a token, an id and headers.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) http: reqwest::Client,
    pub(crate) base: String,
    pub(crate) token: String,
    pub(crate) daemon: String,
    pub(crate) capabilities: Option<&'static str>,
    pub(crate) version: Option<&'static str>,
    /// `X-Felagi-Client`, for one that is not the reference daemon.
    pub(crate) client: Option<&'static str>,
}

/// A claimed task.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) id: String,
    pub(crate) lease: String,
    pub(crate) envelope: Value,
}

impl Machine {
    pub(crate) fn request(&self, path: &str, lease: Option<&str>) -> reqwest::RequestBuilder {
        let mut request =
            self.http.post(format!("{}/api/daemon/{path}", self.base)).bearer_auth(&self.token);
        let headers = [
            ("X-Felagi-Client-Version", self.version),
            ("X-Felagi-Client", self.client),
            ("X-Felagi-Client-Capabilities", self.capabilities),
            ("X-Felagi-Lease", lease),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        request
    }

    pub(crate) async fn post(&self, path: &str, lease: Option<&str>, body: Value) -> Answer {
        Answer::read(self.request(path, lease).json(&body)).await
    }

    pub(crate) async fn register(&self, providers: &[&str]) -> Value {
        let body = json!({ "daemon_id": self.daemon, "name": format!("name of {}", self.daemon),
            "version": "0.3.0", "providers": providers,
            "capabilities": { "os": "linux", "arch": "x86_64" } });
        self.post("register", None, body).await.expect(201)
    }

    pub(crate) async fn beat(&self) -> Answer {
        self.post("heartbeat", None, json!({ "daemon_id": self.daemon })).await
    }

    pub(crate) async fn ask(&self) -> Answer {
        self.post("tasks/claim", None, json!({ "daemon_id": self.daemon })).await
    }

    /// Claims what must be there.
    pub(crate) async fn claim(&self) -> Claimed {
        let envelope = self.ask().await.expect(200)["data"].take();
        let text = |name: &str| envelope[name].as_str().unwrap().to_owned();
        Claimed { id: text("id"), lease: text("lease_token"), envelope }
    }

    pub(crate) async fn at(&self, task: &Claimed, what: &str, body: Value) -> Answer {
        self.post(&format!("tasks/{}/{what}", task.id), Some(&task.lease), body).await
    }

    pub(crate) async fn start(&self, task: &Claimed) -> Value {
        self.at(task, "start", json!({})).await.expect(200)
    }

    pub(crate) async fn say(&self, task: &Claimed, messages: Value) -> Answer {
        self.at(task, "messages", json!({ "messages": messages })).await
    }

    pub(crate) async fn complete(&self, task: &Claimed, result: Value) -> Value {
        self.at(task, "complete", json!({ "result": result })).await.expect(200)
    }

    /// Claims, starts and completes what must be there.
    pub(crate) async fn work_off(&self, result: Value) -> Claimed {
        let task = self.claim().await;
        self.start(&task).await;
        self.complete(&task, result).await;
        task
    }

    /// Carries a waiting run on; the task with its new lease.
    pub(crate) async fn resume(&self, task: &Claimed) -> Answer {
        let path = format!("tasks/{}/resume", task.id);
        self.post(&path, None, json!({ "daemon_id": self.daemon })).await
    }
}

impl World {
    pub(crate) async fn on_sqlite(set: Set) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
        Self::start(database, Some(dir), set).await
    }

    /// On a database of its own in the PostgreSQL that the tests of a process share.
    pub(crate) async fn on_postgres(test: &str, set: Set) -> Option<Self> {
        let postgres = ScratchPostgres::shared(test)?;
        let name: String = test.chars().filter(char::is_ascii_alphanumeric).take(60).collect();
        let database = postgres.create_database(&format!("m{}", name.to_lowercase()));
        Some(Self::start(database, None, set).await)
    }

    async fn start(database: String, dir: Option<tempfile::TempDir>, set: Set) -> Self {
        let admin = Admin::open(&database, keyring()).await.unwrap();
        let made = admin.init("acme", "admin@example.com").await.unwrap();
        admin.close().await;
        // A second installation in one process is refused and harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut world = Self {
            servers: Vec::new(),
            _dir: dir,
            database,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            people: made.api_token,
            token: made.daemon_token,
            http: reqwest::Client::new(),
            ahead: Arc::default(),
            set,
        };
        world.address = world.another_server().await;
        world
    }

    /// One more server on the same database.
    pub(crate) async fn another_server(&mut self) -> SocketAddr {
        let mut settings = Settings::new(self.database.clone());
        settings.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        settings.sweep_every = Duration::from_millis(50);
        settings.is_clock_turned = true;
        // The tests come from one address.
        settings.limits = Limits { api: MANY, unknown: MANY, ..Limits::default() };
        (self.set)(&mut settings);
        let (real, ahead) = (system_clock(), Arc::clone(&self.ahead));
        let clock =
            move || Timestamp::from_micros(real().as_micros() + ahead.load(Ordering::SeqCst));
        let server = Server::start(settings, keyring(), Arc::new(clock)).await.unwrap();
        let address = server.address();
        self.servers.push(server);
        address
    }

    pub(crate) async fn stop(self) {
        for server in self.servers {
            server.stop().await;
        }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.database.starts_with("postgres")
    }

    /// The server's clock goes forward.
    pub(crate) fn advance(&self, by: Duration) {
        self.ahead.fetch_add(i64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
    }

    pub(crate) fn machine(&self, daemon: &str) -> Machine {
        Machine {
            http: self.http.clone(),
            base: format!("http://{}", self.address),
            token: self.token.clone(),
            daemon: daemon.to_owned(),
            capabilities: Some(CAPABILITIES),
            version: Some("0.3.0"),
            client: None,
        }
    }

    /// A machine that registered for `claude_code`.
    pub(crate) async fn registered(&self, daemon: &str) -> Machine {
        let machine = self.machine(daemon);
        machine.register(&["claude_code"]).await;
        machine
    }

    /// A client of its own address, for what counts by address.
    pub(crate) fn client_at(address: [u8; 4]) -> reqwest::Client {
        reqwest::Client::builder().local_address(IpAddr::from(address)).build().unwrap()
    }

    /// Tokens of another workspace: people's, machines'.
    pub(crate) async fn other(&self, slug: &str) -> (String, String) {
        let admin = Admin::open(&self.database, keyring()).await.unwrap();
        let made = admin.init(slug, "else@example.com").await.unwrap();
        admin.close().await;
        (made.api_token, made.daemon_token)
    }

    pub(crate) async fn api_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let url = format!("http://{}/api/v1{path}", self.address);
        let mut request = self.http.request(method.parse().unwrap(), url).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    /// What people do, with success.
    pub(crate) async fn api(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let (status, mut answer) = self.api_as(&self.people, method, path, body).await;
        assert!(status < 300, "{method} {path}: {status} {answer}");
        answer["data"].take()
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.api("GET", path, None).await
    }

    pub(crate) async fn make(&self, path: &str, body: Value) -> Value {
        self.api("POST", path, Some(body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> Value {
        self.api("PATCH", path, Some(body)).await
    }

    pub(crate) async fn agent(&self, name: &str) -> i64 {
        self.agent_with(json!({ "name": name, "provider": "claude_code", "concurrency": 50 })).await
    }

    pub(crate) async fn agent_with(&self, body: Value) -> i64 {
        self.make("/agents", body).await["id"].as_i64().unwrap()
    }

    /// An issue for an agent, and so a task; its identifier.
    pub(crate) async fn issue(&self, title: &str, agent: i64) -> String {
        let body = json!({ "title": title, "assignee_type": "agent", "assignee_id": agent });
        self.make("/issues", body).await["id"].as_str().unwrap().to_owned()
    }

    /// Gives an issue to an agent, which queues a task.
    pub(crate) async fn assign(&self, issue: &str, agent: i64) {
        let path = format!("/issues/{issue}");
        self.patch(&path, json!({ "assignee_type": null, "assignee_id": null })).await;
        self.patch(&path, json!({ "assignee_type": "agent", "assignee_id": agent })).await;
    }

    pub(crate) async fn task(&self, id: &str) -> Value {
        self.get(&format!("/tasks/{id}")).await
    }

    pub(crate) async fn status(&self, task: &Claimed) -> String {
        self.task(&task.id).await["status"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn show_issue(&self, issue: &str) -> Value {
        self.get(&format!("/issues/{issue}")).await
    }

    pub(crate) async fn comments(&self, issue: &str) -> Vec<Value> {
        self.get(&format!("/issues/{issue}/comments")).await.as_array().unwrap().clone()
    }

    pub(crate) async fn messages(&self, task: &Claimed) -> Vec<Value> {
        self.get(&format!("/tasks/{}/messages", task.id)).await.as_array().unwrap().clone()
    }

    /// A number among the first server's metrics, where it has a listener for them.
    pub(crate) async fn metric(&self, name: &str) -> Option<i64> {
        let url = format!("http://{}/metrics", self.servers[0].metrics_address().unwrap());
        let text = self.http.get(url).send().await.unwrap().text().await.unwrap();
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// One column of what the database has.
    async fn stored<T>(&self, sql: &'static str, of: &str) -> Vec<T>
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
        T: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        if self.is_postgres() {
            let pool = sqlx::PgPool::connect(&self.database).await.unwrap();
            return sqlx::query_scalar(sql).bind(of).fetch_all(&pool).await.unwrap();
        }
        let pool = sqlx::SqlitePool::connect(&self.database).await.unwrap();
        sqlx::query_scalar(sql).bind(of).fetch_all(&pool).await.unwrap()
    }

    /// A task's result as it is stored.
    pub(crate) async fn stored_result(&self, task: &Claimed) -> String {
        let sql = "SELECT result FROM results WHERE task_id = $1";
        self.stored(sql, &task.id).await.pop().unwrap()
    }

    /// Bytes of a task's output that are counted as kept.
    pub(crate) async fn line_bytes(&self, task: &Claimed) -> i64 {
        let sql = "SELECT line_bytes FROM tasks WHERE id = $1";
        self.stored(sql, &task.id).await.pop().unwrap()
    }

    /// What the events of a type say.
    pub(crate) async fn events_of(&self, kind: &str) -> Vec<String> {
        self.stored("SELECT data FROM events WHERE type = $1", kind).await
    }

    /// A token of machines; its id and itself.
    pub(crate) async fn new_token(&self, days: Option<u32>) -> (i64, String) {
        let body = json!({ "name": "another", "kind": "daemon", "days": days });
        let made = self.make("/tokens", body).await;
        (made["id"].as_i64().unwrap(), made["token"].as_str().unwrap().to_owned())
    }
}

fn keyring() -> Keyring {
    Keyring::new(&[7; 32]).unwrap()
}

/// A deadline for a loop that waits for something.
pub(crate) struct Patience(Instant);

impl Patience {
    pub(crate) fn new() -> Self {
        Self(Instant::now() + SOON)
    }

    /// Waits a little, and panics when it took too long.
    pub(crate) async fn wait(&self, what: &str) {
        assert!(Instant::now() < self.0, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Seconds since 1970 of a time as it is told.
pub(crate) fn seconds(time: &Value) -> i64 {
    let text = time.as_str().unwrap_or_else(|| panic!("no time: {time}"));
    text.parse::<jiff::Timestamp>().unwrap().as_second()
}

/// The names of a JSON object.
pub(crate) fn names(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}
