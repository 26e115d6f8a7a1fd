//! The server is killed between any two statements: each request of a script is said again and again, and each time
//! the server dies one statement later, until one lives through it. In the end the database is compared with what
//! was answered.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ostler_testkit::postgres::ScratchPostgres;
use serde_json::{Value, json};

use super::child::{AHEAD, Made, OwnProcess};
use super::fleet::Known;
use super::stored::{Stored, number, text};

/// Where the server counts down to its death.
const COUNTDOWN: &str = "OSTLER_TEST_KILL_AT";
/// For what takes a moment on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);
const LEASE: Duration = Duration::from_secs(600);
/// Of so many moments a request is killed at one in CI, where not all are tried.
const STEP_IN_CI: usize = 8;
/// And elsewhere.
const STEP: usize = 12;
/// More moments than any request has.
const MOMENTS_MAX: usize = 400;
const HELD: &str = "SELECT COUNT(*) FROM tasks WHERE state IN ('dispatched', 'running')";

/// A server that dies, and who talks to it.
struct Mortal {
    database: String,
    made: Made,
    /// With the files that its process reads.
    dir: tempfile::TempDir,
    server: OwnProcess,
    client: reqwest::Client,
    known: Known,
    step: usize,
    requests: usize,
    kills: usize,
}

/// A task and a lease on it.
struct Run {
    task: String,
    lease: String,
    name: &'static str,
}

impl Mortal {
    async fn new(database: String) -> Self {
        // A second installation in one process is refused and harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let made = Made::new(&database).await;
        made.queue(2).await;
        let server = Self::serve(&database, &dir);
        let is_set = |name| std::env::var_os(name).is_some();
        let usual = if is_set("CI") { STEP_IN_CI } else { STEP };
        let step = if is_set("OSTLER_TEST_LOOPS") { 1 } else { usual };
        let client = reqwest::Client::new();
        let (known, requests, kills) = (Known::default(), 0, 0);
        Self { database, made, dir, server, client, known, step, requests, kills }
    }

    fn serve(database: &str, dir: &tempfile::TempDir) -> OwnProcess {
        let (countdown, ahead) = (dir.path().join("countdown"), dir.path().join("ahead"));
        OwnProcess::with(database, LEASE, &[(COUNTDOWN, &countdown), (AHEAD, &ahead)])
    }

    fn countdown(&self) -> PathBuf {
        self.dir.path().join("countdown")
    }

    /// Time goes on, as the server sees it.
    fn advance(&self, seconds: u64) {
        std::fs::write(self.dir.path().join("ahead"), seconds.to_string()).unwrap();
    }

    /// The moments at which the server shall die; where not all are tried, others than for the request before.
    fn moments(&mut self) -> impl Iterator<Item = usize> + use<> {
        let first = self.requests * 3 % self.step;
        self.requests += 1;
        (first..MOMENTS_MAX).step_by(self.step)
    }

    /// It died; another one takes its place.
    async fn again(&mut self) {
        assert!(self.server.ends_within(SOON), "the server lives, and does not answer");
        self.kills += 1;
        std::fs::remove_file(self.countdown()).unwrap();
        self.server = Self::serve(&self.database, &self.dir);
        // The machine is there all the while, once it has registered.
        self.once("heartbeat", None, &json!({ "daemon_id": "m" })).await;
    }

    /// Says it to one server after the other until one is left to answer.
    async fn say(&mut self, path: &str, lease: Option<&str>, body: &Value) -> (u16, Value) {
        for moment in self.moments() {
            std::fs::write(self.countdown(), moment.to_string()).unwrap();
            if let Some(answer) = self.once(path, lease, body).await {
                let _ = std::fs::remove_file(self.countdown());
                return answer;
            }
            self.again().await;
        }
        panic!("{path} has no end");
    }

    async fn once(&self, path: &str, lease: Option<&str>, body: &Value) -> Option<(u16, Value)> {
        let is_machine = !path.starts_with("v1/");
        let token = if is_machine { &self.made.daemon_token } else { &self.made.people_token };
        let prefix = if is_machine { "daemon/" } else { "" };
        let url = format!("http://{}/api/{prefix}{path}", self.server.address);
        let mut request = self
            .client
            .post(url)
            .bearer_auth(token)
            .header("X-Felagi-Client-Version", "0.3.0")
            .header("X-Felagi-Client-Capabilities", "streaming,resume,cancel,await")
            .json(body)
            .timeout(SOON);
        if let Some(lease) = lease {
            request = request.header("X-Felagi-Lease", lease);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await.ok()?;
        Some((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    async fn claim(&mut self, name: &'static str) -> Option<Run> {
        let body = json!({ "daemon_id": "m", "request_id": name });
        let (status, answer) = self.say("tasks/claim", None, &body).await;
        if status == 204 {
            return None;
        }
        assert_eq!(status, 200, "{answer}");
        // However often it was asked for, and died over it.
        assert_eq!(number(&self.database, HELD).await, 1);
        let text = |name: &str| answer["data"][name].as_str().unwrap().to_owned();
        let run = Run { task: text("id"), lease: text("lease_token"), name };
        let before = self.known.leases.insert(run.lease.clone(), run.task.clone());
        assert_eq!(before, None, "a lease was given twice");
        Some(run)
    }

    async fn at(&mut self, run: &Run, what: &str, body: Value, expected: u16) -> Value {
        let path = format!("tasks/{}/{what}", run.task);
        let (status, answer) = self.say(&path, Some(&run.lease), &body).await;
        assert_eq!(status, expected, "{path}: {answer}");
        answer
    }

    /// Lines with these numbers.
    async fn output(&mut self, run: &Run, seqs: std::ops::Range<u64>) {
        let line = |seq| format!("{}:{seq}", run.name);
        let texts = || seqs.clone().map(line);
        self.known.sent.entry(run.task.clone()).or_default().extend(texts());
        let messages: Vec<_> = seqs
            .clone()
            .map(|seq| json!({ "seq": seq, "type": "assistant", "content": line(seq) }))
            .collect();
        self.at(run, "messages", json!({ "messages": messages }), 202).await;
        self.known.acknowledged.entry(run.task.clone()).or_default().extend(texts());
    }

    async fn complete(&mut self, run: &Run) {
        let artifacts = json!([{ "type": "branch", "reference": "b" },
            { "type": "pull_request", "url": "https://github.com/acme/api/pull/1", "state": "open" }]);
        let result = json!({ "summary": "Done.", "usage": { "cost_micros": 1_000 },
            "session_id": "s", "artifacts": artifacts });
        self.at(run, "complete", json!({ "result": result }), 200).await;
        assert!(self.known.completed.insert(run.task.clone()));
    }

    /// A run that waits for a person, is decided about and goes on, and fails.
    async fn waits_and_fails(&mut self) -> String {
        let mut run = self.claim("one").await.unwrap();
        self.at(&run, "start", json!({}), 200).await;
        self.output(&run, 1..4).await;
        self.output(&run, 3..6).await;
        self.at(&run, "session", json!({ "session_id": "s", "work_dir": "/w" }), 200).await;
        let question = json!({ "waiting_for": "approval", "summary": "Go on?" });
        self.at(&run, "await", question, 200).await;
        let path = format!("v1/tasks/{}/decision", run.task);
        let (status, answer) = self.say(&path, None, &json!({ "decision": "approved" })).await;
        assert!(status < 300, "{answer}");
        let (status, answer) = self.say("heartbeat", None, &json!({ "daemon_id": "m" })).await;
        assert_eq!((status, &answer["decisions"][0]["decision"]), (200, &json!("approved")));
        let path = format!("tasks/{}/resume", run.task);
        let resume = json!({ "daemon_id": "m", "request_id": "resume" });
        let (status, answer) = self.say(&path, None, &resume).await;
        assert_eq!(status, 200, "{answer}");
        run.lease = answer["lease_token"].as_str().unwrap().to_owned();
        self.output(&run, 6..8).await;
        self.at(&run, "fail", json!({ "error": "x", "retryable": true }), 200).await;
        run.task
    }

    /// A run whose machine falls silent; the sweeper takes its lease, or dies over it.
    async fn vanishes(&mut self) {
        let run = self.claim("three").await.unwrap();
        self.at(&run, "start", json!({}), 200).await;
        self.output(&run, 1..3).await;
        self.advance(2 * LEASE.as_secs());
        let state = format!("SELECT state FROM tasks WHERE id = '{}'", run.task);
        for moment in self.moments() {
            std::fs::write(self.countdown(), moment.to_string()).unwrap();
            let until = Instant::now() + SOON;
            while text(&self.database, &state).await != "queued" && self.lives() {
                assert!(Instant::now() < until, "nobody sweeps");
                tokio::time::sleep(PAUSE).await;
            }
            if self.lives() {
                break;
            }
            self.again().await;
        }
        let _ = std::fs::remove_file(self.countdown());
        self.at(&run, "start", json!({}), 409).await;
    }

    fn lives(&mut self) -> bool {
        !self.server.ends_within(Duration::ZERO)
    }

    async fn register(&mut self) {
        let machine = json!({ "daemon_id": "m", "name": "m", "version": "0.3.0",
            "providers": ["claude_code"], "capabilities": {} });
        assert_eq!(self.say("register", None, &machine).await.0, 201);
    }
}

/// The script.
async fn dies_between_statements(database: String) {
    let mut mortal = Mortal::new(database).await;
    mortal.register().await;
    // Said again after a death, it may make another issue: there is one task or more.
    let issue = json!({ "title": "T", "assignee_type": "agent", "assignee_id": mortal.made.agent });
    assert_eq!(mortal.say("v1/issues", None, &issue).await.0, 201);
    let failed = mortal.waits_and_fails().await;
    // Whatever comes first: all are worked off.
    let run = mortal.claim("two").await.unwrap();
    mortal.at(&run, "start", json!({}), 200).await;
    mortal.output(&run, 1..4).await;
    mortal.complete(&run).await;
    mortal.vanishes().await;
    mortal.register().await;
    let names: Vec<&'static str> = (0..MOMENTS_MAX).map(|n| &*format!("rest-{n}").leak()).collect();
    for name in names {
        let Some(run) = mortal.claim(name).await else { break };
        mortal.at(&run, "start", json!({}), 200).await;
        mortal.output(&run, 1..3).await;
        mortal.complete(&run).await;
    }
    println!("{} requests, {} kills", mortal.requests, mortal.kills);
    assert!(mortal.kills >= mortal.requests / 2, "{} kills", mortal.kills);
    assert!(mortal.known.completed.contains(&failed));
    let Mortal { database, made, server, known, .. } = mortal;
    made.admin.close().await;
    server.kill();
    let deliveries = "SELECT COUNT(*) FROM deliveries";
    let issues = "SELECT COUNT(DISTINCT issue_id) FROM tasks";
    let expected = 2 * number(&database, issues).await;
    assert_eq!(number(&database, deliveries).await, expected, "two artifacts of each issue");
    Stored::read(&database).await.compare(&known, known.completed.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_die_between_any_two_statements_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ostler.db");
    dies_between_statements(format!("sqlite:{}", file.display())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_die_between_any_two_statements_on_postgres() {
    let Some(postgres) = ScratchPostgres::shared("reliability/killed") else { return };
    dies_between_statements(postgres.create_database("killed")).await;
}
