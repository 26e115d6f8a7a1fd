//! Servers: in this process, and in one of their own that can be killed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ostler_core::lease::Policy;
use ostler_server::secrets::Keyring;
use ostler_server::settings::Settings;
use ostler_server::{Admin, Limits, Server, system_clock};
use rustix::process::{Pid, Signal, kill_process};

/// The database of a server in a process of its own.
const DATABASE: &str = "OSTLER_CASE_DATABASE";
/// Its lease in milliseconds.
const LEASE: &str = "OSTLER_CASE_LEASE";
/// Long enough for a slow machine, short enough for what nobody holds any more.
const LEASE_MAX: Duration = Duration::from_secs(10);
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub(crate) fn keyring() -> Keyring {
    Keyring::new(&[7; 32]).unwrap()
}

pub(crate) fn settings(database: &str) -> Settings {
    let mut settings = Settings::new(database.to_owned());
    settings.listen = LOCAL;
    settings.metrics_listen = Some(LOCAL);
    settings.policy = Policy { lease: LEASE_MAX, attempts_max: 50, ..Policy::DEFAULT };
    settings.sweep_every = Duration::from_millis(300);
    let many = 10_000_000;
    settings.limits =
        Limits { register: many, heartbeat: many, claim: many, tasks: many, ..Limits::default() };
    settings
}

pub(crate) async fn start(database: &str) -> Server {
    Server::start(settings(database), keyring(), system_clock()).await.unwrap()
}

/// What was made in a new database.
pub(crate) struct Made {
    pub(crate) admin: Admin,
    pub(crate) daemon_token: String,
    pub(crate) agent: i64,
}

impl Made {
    pub(crate) async fn new(database: &str) -> Self {
        let admin = Admin::open(database, keyring()).await.unwrap();
        let daemon_token = admin.init("acme", "admin@example.com").await.unwrap().daemon_token;
        let agent = admin.agent_create("acme", "Freya", "claude_code", 100).await.unwrap();
        Self { admin, daemon_token, agent }
    }

    pub(crate) async fn queue(&self, count: usize) {
        for number in 0..count {
            let title = format!("issue {number}");
            self.admin.issue_for_agent("acme", &title, self.agent).await.unwrap();
        }
    }
}

/// A server in a process of its own; dropped, it is killed.
pub(crate) struct OwnProcess {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: SocketAddr,
}

impl OwnProcess {
    pub(crate) fn start(database: &str) -> Self {
        Self::with_lease(database, LEASE_MAX)
    }

    pub(crate) fn with_lease(database: &str, lease: Duration) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::case_server", "--include-ignored", "--nocapture"]);
        command.env(DATABASE, database).env(LEASE, lease.as_millis().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut named = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("address: ").and_then(|text| text.parse().ok()));
        let mut named = || named.next().expect("the server says where it listens");
        let (address, metrics) = (named(), named());
        Self { child, address, metrics }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it, at whatever it is doing.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
#[ignore = "run by other tests"]
fn case_server() {
    let Ok(database) = std::env::var(DATABASE) else { return };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let mut settings = settings(&database);
    let lease = std::env::var(LEASE).ok().and_then(|text| text.parse().ok());
    settings.policy.lease = Duration::from_millis(lease.expect("a lease"));
    let server = Server::start(settings, keyring(), system_clock());
    let server = runtime.block_on(server).unwrap();
    println!("\naddress: {}", server.address());
    println!("address: {}", server.metrics_address().unwrap());
    // Ends with the test that wanted it.
    let _ = std::io::stdin().read(&mut [0]);
}
