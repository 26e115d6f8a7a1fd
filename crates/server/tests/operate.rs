//! What operators need of a server, over its listeners: health, metrics, request ids, TLS, proxies,
//! retention.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "helpers of tests")]

#[path = "common/made.rs"]
mod made;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use ostler_core::clock::Timestamp;
use ostler_server::secrets::Keyring;
use ostler_server::settings::Settings;
use ostler_server::{Admin, Clock, Server, system_clock};
use ostler_testkit::postgres::ScratchPostgres;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long anything may take that is not about time.
const PATIENCE: Duration = Duration::from_secs(40);
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

struct Rig {
    dir: tempfile::TempDir,
    /// A database of this, instead of SQLite.
    postgres: Option<(&'static ScratchPostgres, &'static str)>,
    settings: Settings,
    clock: Clock,
    server: Option<Server>,
    client: reqwest::Client,
    daemon_token: String,
    agent: i64,
}

fn keyring() -> Keyring {
    Keyring::new(&[7; 32]).unwrap()
}

impl Rig {
    async fn start(settings: impl FnOnce(&mut Settings)) -> Self {
        let now = Arc::new(AtomicI64::new(system_clock()().as_micros()));
        Self::start_at(&now, None, settings).await
    }

    /// With a clock that the test turns.
    async fn start_at(
        now: &Arc<AtomicI64>,
        postgres: Option<(&'static ScratchPostgres, &'static str)>,
        set: impl FnOnce(&mut Settings),
    ) -> Self {
        // A second installation in one process is refused and harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let database = match postgres {
            Some((postgres, name)) => postgres.create_database(name),
            None => format!("sqlite:{}", dir.path().join("ostler.db").display()),
        };
        let admin = Admin::open(&database, keyring()).await.unwrap();
        let made = admin.init("acme", "admin@example.com").await.unwrap();
        let agent = made::agent(&admin, "Freya", 10).await;
        admin.close().await;
        let mut settings = Settings::new(database);
        settings.listen = LOCAL;
        settings.metrics_listen = Some(LOCAL);
        set(&mut settings);
        let now = Arc::clone(now);
        let clock = move || Timestamp::from_micros(now.load(Ordering::SeqCst));
        let mut rig = Self {
            dir,
            postgres,
            settings,
            clock: Arc::new(clock),
            server: None,
            client: reqwest::Client::builder().build().unwrap(),
            daemon_token: made.daemon_token,
            agent,
        };
        rig.restart().await;
        rig
    }

    async fn restart(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
        let (settings, clock) = (self.settings.clone(), Arc::clone(&self.clock));
        self.server = Some(Server::start(settings, keyring(), clock).await.unwrap());
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server().address())
    }

    async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    async fn metrics(&self) -> String {
        let url = format!("http://{}/metrics", self.server().metrics_address().unwrap());
        self.client.get(url).send().await.unwrap().text().await.unwrap()
    }

    async fn post(&self, path: &str, lease: Option<&str>, body: Value) -> (u16, Value) {
        let request = self
            .client
            .post(self.url(&format!("/api/daemon/{path}")))
            .bearer_auth(&self.daemon_token)
            .header("X-Felagi-Client-Version", "0.3.0")
            .header("X-Felagi-Lease", lease.unwrap_or_default())
            .json(&body);
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn register(&self) {
        let machine = json!({ "daemon_id": "m-1", "name": "one", "version": "0.3.0",
            "providers": ["claude_code"], "capabilities": { "os": "linux", "arch": "x86_64" } });
        assert_eq!(self.post("register", None, machine).await.0, 201);
    }

    /// A task that prints so many lines of 100 bytes and completes; its id.
    async fn run_a_task(&self, lines: u64) -> String {
        let admin = self.server().admin();
        made::issue_for(&admin, "Do it", self.agent).await;
        // A hint may be a moment behind; the claim waits for it.
        let claim = json!({ "daemon_id": "m-1", "wait_seconds": 20 });
        let (status, claimed) = self.post("tasks/claim", None, claim).await;
        assert_eq!(status, 200, "{claimed}");
        let task = claimed["data"]["id"].as_str().unwrap().to_owned();
        let lease = claimed["data"]["lease_token"].as_str().unwrap().to_owned();
        let at = |what: &str| format!("tasks/{task}/{what}");
        self.post(&at("start"), Some(&lease), json!({})).await;
        for first in (1..=lines).step_by(200) {
            let line = |seq| json!({ "seq": seq, "type": "stderr", "content": "x".repeat(94) });
            let batch: Vec<_> = (first..=lines.min(first + 199)).map(line).collect();
            let batch = json!({ "messages": batch });
            assert_eq!(self.post(&at("messages"), Some(&lease), batch).await.0, 202);
        }
        let result = json!({ "result": { "summary": "Done.", "usage": { "cost_micros": 5 } } });
        assert_eq!(self.post(&at("complete"), Some(&lease), result).await.0, 200);
        task
    }

    /// One number of the database, read beside the server.
    async fn number(&self, sql: &'static str) -> i64 {
        if let Some((postgres, name)) = self.postgres {
            return postgres.sql(name, sql).trim().parse().unwrap();
        }
        let file = self.dir.path().join("ostler.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).read_only(true);
        let mut conn = sqlx::ConnectOptions::connect(&options).await.unwrap();
        let number = sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap();
        sqlx::Connection::close(conn).await.unwrap();
        number
    }

    /// Makes everything that is there older, at once: between two steps retention could tell of what it removed, and
    /// that would be made older too.
    async fn age(&self, days: i64) {
        let by = days * DAY;
        let sql = format!(
            "BEGIN; UPDATE tasks SET ended_at = ended_at - {by} WHERE ended_at IS NOT NULL; \
             UPDATE events SET at = at - {by}; COMMIT"
        );
        if let Some((postgres, name)) = self.postgres {
            postgres.sql(name, &sql);
            return;
        }
        self.sqlite(sql).await;
    }

    /// Runs statements on the SQLite file, beside the server.
    async fn sqlite(&self, sql: String) {
        let file = self.dir.path().join("ostler.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
        let mut conn = sqlx::ConnectOptions::connect(&options).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
        sqlx::Connection::close(conn).await.unwrap();
    }

    /// Waits until retention has begun and ended a round more.
    async fn retention_round(&self) {
        let rounds = async || {
            let page = self.metrics().await;
            let mut lines = page.lines();
            let line = lines.find_map(|it| it.strip_prefix("ostler_retention_rounds_total "));
            line.unwrap().parse::<u64>().unwrap()
        };
        let (goal, until) = (rounds().await + 2, Instant::now() + PATIENCE);
        while rounds().await < goal {
            assert!(Instant::now() < until, "no round came");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn wait_for(&self, sql: &'static str, wanted: i64) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.number(sql).await;
            if found == wanted {
                return;
            }
            assert!(Instant::now() < until, "{sql}: {found}, not {wanted}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop(mut self) {
        self.server.take().unwrap().stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_says_that_it_lives_and_whether_it_can_serve() {
    let rig = Rig::start(|_| {}).await;
    let health = rig.get("/healthz").await;
    assert_eq!(health.status(), 200);
    let ready = rig.get("/readyz").await;
    assert_eq!(ready.status(), 200);
    assert_eq!(ready.json::<Value>().await.unwrap(), json!({ "status": "ready" }));
    // Nobody's token is needed, and the metrics are elsewhere.
    assert_eq!(rig.get("/metrics").await.status(), 404);
    rig.stop().await;
}

/// A connection that was made before sees what a load balancer should see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_finishes_what_is_on_its_way_and_takes_nothing_new() {
    let mut rig = Rig::start(|_| {}).await;
    rig.register().await;
    let address = rig.server().address();
    let claim = json!({ "daemon_id": "m-1", "wait_seconds": 25 });
    let waiting = rig
        .client
        .post(rig.url("/api/daemon/tasks/claim"))
        .bearer_auth(&rig.daemon_token)
        .header("X-Felagi-Client-Version", "0.3.0")
        .header("X-Felagi-Client-Capabilities", "long_poll")
        .json(&claim);
    let waiting = tokio::spawn(waiting.send());
    let until = Instant::now() + PATIENCE;
    while !rig.metrics().await.contains("ostler_claims_waiting 1\n") {
        assert!(Instant::now() < until, "{}", rig.metrics().await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let began = Instant::now();
    rig.server.take().unwrap().stop().await;
    assert!(began.elapsed() < Duration::from_secs(8), "nobody waits for a claim that waits");
    assert_eq!(waiting.await.unwrap().unwrap().status(), 204);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_has_a_request_id_the_clients_own_when_it_is_sane() {
    let rig = Rig::start(|_| {}).await;
    let id =
        |answer: &reqwest::Response| answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let made = id(&rig.get("/healthz").await);
    assert_eq!(made.len(), 26, "{made}");
    assert_ne!(made, id(&rig.get("/nowhere").await), "also where there is nothing");
    let send = async |own: &str| {
        id(&rig.client.get(rig.url("/healthz")).header("X-Request-Id", own).send().await.unwrap())
    };
    assert_eq!(send("build-17/4").await, "build-17/4");
    assert_eq!(send(&"x".repeat(128)).await, "x".repeat(128));
    for insane in [&"x".repeat(129), "two words", "tab\tbed", ""] {
        assert_ne!(send(insane).await, insane);
    }
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_requests_tasks_and_refusals_and_show_no_path_of_a_client() {
    let rig = Rig::start(|settings| settings.limits.heartbeat = 1).await;
    rig.register().await;
    let task = rig.run_a_task(3).await;
    made::issue_for(&rig.server().admin(), "Later", rig.agent).await;
    for _ in 0..2 {
        rig.post("heartbeat", None, json!({ "daemon_id": "m-1" })).await;
    }
    rig.get("/secret-path?token=fat_x").await;
    let page = rig.metrics().await;
    for part in [
        "ostler_http_requests_total{method=\"POST\",endpoint=\"/api/daemon/register\",status=\"201\"} 1",
        "endpoint=\"/api/daemon/tasks/{task}/complete\",status=\"200\"} 1",
        "ostler_http_requests_total{method=\"GET\",endpoint=\"other\",status=\"404\"} 1",
        "ostler_http_request_seconds_bucket{le=\"60.0\",endpoint=\"/api/daemon/register\"} 1",
        "ostler_rate_refusals_total{bucket=\"heartbeat\"} 1",
        "ostler_tasks{state=\"queued\"} 1",
        "ostler_tasks{state=\"running\"} 0",
        "ostler_runtimes_online 1",
        "ostler_database_errors_total 0",
        "ostler_connections{state=\"used\"}",
        "ostler_batch_size_count",
        "# EOF",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    assert!(!page.contains(&task) && !page.contains("secret"), "{page}");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_certificate_a_server_speaks_tls_only() {
    let tls = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");
    let rig = Rig::start(|settings| {
        settings.tls = Some((format!("{tls}/cert.pem").into(), format!("{tls}/key.pem").into()));
    })
    .await;
    let cert = reqwest::Certificate::from_pem(&std::fs::read(format!("{tls}/cert.pem")).unwrap());
    let client = reqwest::Client::builder().tls_certs_only([cert.unwrap()]).build().unwrap();
    let address = rig.server().address();
    // One that never says anything holds up nobody.
    let silent = TcpStream::connect(address).await.unwrap();
    let answer = client.get(format!("https://{address}/healthz")).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    // In clear there is no HTTP.
    let mut clear = TcpStream::connect(address).await.unwrap();
    clear.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    let _ = clear.read_to_end(&mut bytes).await;
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");
    rig.stop().await;
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_cannot_be_used_fails_the_start_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let tls = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");
    let start = async |cert: String, key: String| {
        let database = format!("sqlite:{}", dir.path().join("x.db").display());
        let mut settings = Settings::new(database);
        settings.listen = LOCAL;
        settings.tls = Some((cert.into(), key.into()));
        match Server::start(settings, keyring(), system_clock()).await {
            Ok(_) => panic!("it started"),
            Err(error) => std::error::Error::source(&error).unwrap().to_string(),
        }
    };
    let error = start("/nowhere.pem".to_owned(), format!("{tls}/key.pem")).await;
    assert!(error.contains("/nowhere.pem"), "{error}");
    let error = start(format!("{tls}/key.pem"), format!("{tls}/key.pem")).await;
    assert!(error.contains("no certificate"), "{error}");
    let error = start(format!("{tls}/cert.pem"), format!("{tls}/cert.pem")).await;
    assert!(error.contains("a key"), "{error}");
    assert!(!dir.path().join("x.db").exists(), "nothing was made");
}

/// Who guesses is counted by address: behind a named proxy by the client's, else by the connection's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_112_a_forwarding_header_counts_only_from_a_named_proxy() {
    for (proxies, status_of_another) in [(vec!["127.0.0.1".parse().unwrap()], 401), (vec![], 429)] {
        let rig = Rig::start(|settings| {
            settings.limits.unknown = 2;
            settings.proxies = proxies;
        })
        .await;
        let guess = async |client: &str| {
            let request = rig.client.post(rig.url("/api/daemon/heartbeat")).bearer_auth("fdt_x");
            let answer = request.header("X-Forwarded-For", client).send().await.unwrap();
            answer.status().as_u16()
        };
        assert_eq!((guess("1.1.1.1").await, guess("1.1.1.1").await), (401, 401));
        assert_eq!(guess("1.1.1.1").await, 429);
        assert_eq!(guess("2.2.2.2").await, status_of_another);
        rig.stop().await;
    }
}

const DAY: i64 = 86_400_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_and_events_of_old_tasks_are_removed_and_their_results_stay() {
    old_output_is_removed(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_and_events_of_old_tasks_are_removed_on_postgresql_too() {
    let name = "output_and_events_of_old_tasks_are_removed_on_postgresql_too";
    let Some(postgres) = ScratchPostgres::shared(name) else { return };
    old_output_is_removed(Some((postgres, "retention"))).await;
}

async fn old_output_is_removed(postgres: Option<(&'static ScratchPostgres, &'static str)>) {
    let now = Arc::new(AtomicI64::new(system_clock()().as_micros()));
    let rig = Rig::start_at(&now, postgres, |settings| {
        settings.retention.every = Duration::from_millis(5);
    })
    .await;
    rig.register().await;
    // More than one transaction removes.
    rig.run_a_task(1_500).await;
    rig.age(60).await;
    rig.register().await;
    rig.run_a_task(3).await;
    assert_eq!(rig.number("SELECT COUNT(*) FROM messages").await, 1_503);
    // Of the events the old ones are gone, and none of today.
    rig.retention_round().await;
    let of_today = rig.number("SELECT COUNT(*) FROM events WHERE type NOT LIKE '%.pruned'").await;
    assert!(of_today >= 3, "a claim, a start and an end: {of_today}");
    let old = "SELECT COUNT(*) FROM events WHERE at < (SELECT MAX(at) FROM events) - 86400000000";
    assert_eq!(rig.number(old).await, 0);
    rig.age(31).await;
    rig.wait_for("SELECT COUNT(*) FROM messages", 3).await;
    rig.wait_for("SELECT COUNT(*) FROM events WHERE type = 'messages.pruned'", 1).await;
    rig.wait_for("SELECT COUNT(*) FROM events WHERE type NOT LIKE '%.pruned'", 0).await;
    assert_eq!(rig.number("SELECT COUNT(*) FROM results WHERE cost_micros = 5").await, 2);
    assert_eq!(rig.number("SELECT COUNT(*) FROM tasks WHERE state = 'completed'").await, 2);
    assert_eq!(rig.number("SELECT SUM(lines) FROM tasks").await, 1_503);
    assert_eq!(rig.number("SELECT SUM(line_bytes) FROM tasks").await, 300);
    let page = rig.metrics().await;
    assert!(page.contains("ostler_removed_total{what=\"messages\"} 1500"), "{page}");
    assert!(page.contains("ostler_removed_message_bytes_total 150000"), "{page}");
    rig.stop().await;
}

/// Also when something happens in that future, so that what is stored seems old beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_forward_removes_no_output() {
    let now = Arc::new(AtomicI64::new(system_clock()().as_micros()));
    let rig = Rig::start_at(&now, None, |settings| {
        settings.retention.every = Duration::from_millis(5);
    })
    .await;
    rig.register().await;
    rig.run_a_task(3).await;
    let events = rig.number("SELECT COUNT(*) FROM events").await;
    rig.retention_round().await;
    now.fetch_add(100 * DAY, Ordering::SeqCst);
    rig.retention_round().await;
    rig.register().await;
    rig.run_a_task(2).await;
    rig.retention_round().await;
    now.fetch_sub(100 * DAY, Ordering::SeqCst);
    rig.retention_round().await;
    assert_eq!(rig.number("SELECT COUNT(*) FROM messages").await, 5);

    let future = "SELECT COUNT(*) FROM events WHERE type LIKE '%.pruned'";
    assert_eq!(rig.number(future).await, 0);
    assert!(rig.number("SELECT COUNT(*) FROM events").await > events);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_with_a_clock_far_ahead_removes_no_output() {
    let now = Arc::new(AtomicI64::new(system_clock()().as_micros()));
    let mut rig = Rig::start_at(&now, None, |settings| {
        settings.retention.every = Duration::from_millis(5);
    })
    .await;
    rig.register().await;
    rig.run_a_task(3).await;
    now.fetch_add(100 * DAY, Ordering::SeqCst);
    rig.restart().await;
    rig.register().await;
    rig.retention_round().await;
    assert_eq!(rig.number("SELECT COUNT(*) FROM messages").await, 3);
    rig.stop().await;
}

/// Every number on the page comes from PostgreSQL too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_and_readiness_on_postgresql() {
    let Some(postgres) = ScratchPostgres::shared("metrics_and_readiness_on_postgresql") else {
        return;
    };
    let now = Arc::new(AtomicI64::new(system_clock()().as_micros()));
    let rig = Rig::start_at(&now, Some((postgres, "numbers")), |_| {}).await;
    rig.register().await;
    made::issue_for(&rig.server().admin(), "Later", rig.agent).await;
    let page = rig.metrics().await;
    for part in ["ostler_tasks{state=\"queued\"} 1", "ostler_runtimes_online 1"] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    assert_eq!(rig.get("/readyz").await.status(), 200);
    postgres.sql("postgres", "ALTER DATABASE numbers WITH ALLOW_CONNECTIONS false");
    let until = Instant::now() + PATIENCE;
    while rig.get("/readyz").await.status() != 503 {
        // Connections that were open go one by one as they are used.
        postgres.terminate_backends("numbers");
        assert!(Instant::now() < until);
    }
    assert_eq!(rig.get("/healthz").await.status(), 200);
    postgres.sql("postgres", "ALTER DATABASE numbers WITH ALLOW_CONNECTIONS true");
    while rig.get("/readyz").await.status() != 200 {
        assert!(Instant::now() < until);
    }
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_a_workspaces_bytes_the_oldest_output_goes_first_and_a_running_task_keeps_its_own() {
    let now = Arc::new(AtomicI64::new(system_clock()().as_micros()));
    let rig = Rig::start_at(&now, None, |settings| {
        settings.retention.every = Duration::from_millis(5);
        settings.retention.messages_bytes_max = 5_000;
        settings.retention.events_max = 10;
    })
    .await;
    rig.register().await;
    for _ in 0..3 {
        rig.run_a_task(20).await;
        now.fetch_add(1_000_000, Ordering::SeqCst);
    }
    // Three times 2,000 bytes: the first goes, and no more.
    rig.wait_for("SELECT COUNT(*) FROM messages", 40).await;
    let first = "SELECT pruned FROM tasks ORDER BY ended_at LIMIT 1";
    rig.wait_for(first, 1).await;
    rig.wait_for("SELECT SUM(pruned) FROM tasks", 1).await;
    // What it did is an event itself, and one more may be on its way.
    rig.wait_for("SELECT COUNT(*) < 13 FROM events", 1).await;
    rig.stop().await;
}

/// What a round did is an event, which must not be the reason for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_a_number_of_events_the_oldest_go_and_then_there_is_peace() {
    let rig = Rig::start(|settings| {
        settings.retention.every = Duration::from_millis(5);
        settings.retention.events_max = 200;
    })
    .await;
    let many = "INSERT INTO events (workspace_id, type, data, at) \
                WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 300) \
                SELECT 1, 'test', '{}', 9000000000000000 FROM n";
    rig.sqlite(many.to_owned()).await;
    rig.wait_for("SELECT COUNT(*) FROM events WHERE type = 'events.pruned'", 1).await;
    for _ in 0..3 {
        rig.retention_round().await;
    }
    rig.wait_for("SELECT COUNT(*) FROM events WHERE type = 'events.pruned'", 1).await;
    rig.wait_for("SELECT COUNT(*) FROM events", 201).await;
    rig.stop().await;
}
