//! Servers: in this process, and in one of their own that can be killed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ostler_core::clock::Timestamp;
use ostler_core::lease::Policy;
use ostler_server::secrets::Keyring;
use ostler_server::settings::Settings;
use ostler_server::{Admin, Clock, Limits, Server, system_clock};
use rustix::process::{Pid, Signal, kill_process};

use crate::made;

/// The database of a server in a process of its own.
const DATABASE: &str = "OSTLER_CASE_DATABASE";
/// Its lease in milliseconds.
const LEASE: &str = "OSTLER_CASE_LEASE";
/// A file that says by how many seconds its clock is turned.
pub(crate) const AHEAD: &str = "OSTLER_CASE_AHEAD";
/// Long enough for a slow machine, short enough for what nobody holds any more.
pub(crate) const LEASE_MAX: Duration = Duration::from_secs(10);
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

/// A server that soon says so when there is no connection: by default it waits for one for 5 s, each time.
pub(crate) async fn start_impatient(mut settings: Settings) -> Server {
    settings.database_wait = Duration::from_secs(8);
    Server::start(settings, keyring(), system_clock()).await.unwrap()
}

pub(crate) async fn start(database: &str) -> Server {
    Server::start(settings(database), keyring(), system_clock()).await.unwrap()
}

/// What was made in a new database.
pub(crate) struct Made {
    pub(crate) admin: Admin,
    pub(crate) daemon_token: String,
    pub(crate) people_token: String,
    pub(crate) agent: i64,
}

impl Made {
    pub(crate) async fn new(database: &str) -> Self {
        let admin = Admin::open(database, keyring()).await.unwrap();
        let made = admin.init("acme", "admin@example.com").await.unwrap();
        let agent = made::agent(&admin, "Freya", 100).await;
        let (daemon_token, people_token) = (made.daemon_token, made.api_token);
        Self { admin, daemon_token, people_token, agent }
    }

    pub(crate) async fn queue(&self, count: usize) {
        for number in 0..count {
            let title = format!("issue {number}");
            made::issue_for(&self.admin, &title, self.agent).await;
        }
    }
}

/// The process of a server on this database.
fn case(database: &str, lease: Duration, more: &[(&str, &Path)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child::case_server", "--include-ignored", "--nocapture"]);
    command.env(DATABASE, database).env(LEASE, lease.as_millis().to_string());
    command.envs(more.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A server that starts, killed after this long at the latest; true when it ended by itself.
pub(crate) fn start_and_kill(database: &str, after: Duration) -> bool {
    let mut command = case(database, LEASE_MAX, &[]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let ended = ends_within(&mut child, after);
    child.kill().unwrap();
    child.wait().unwrap();
    ended
}

fn ends_within(child: &mut Child, wait: Duration) -> bool {
    let until = Instant::now() + wait;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
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
        Self::with(database, lease, &[])
    }

    /// With more in its environment.
    pub(crate) fn with(database: &str, lease: Duration, more: &[(&str, &Path)]) -> Self {
        let mut child = case(database, lease, more).spawn().unwrap();
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

    /// Waits until it has ended by itself; false when it did not.
    pub(crate) fn ends_within(&mut self, wait: Duration) -> bool {
        ends_within(&mut self.child, wait)
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

/// The system's clock, and the seconds in this file.
fn turned_by(file: PathBuf) -> Clock {
    let real = system_clock();
    Arc::new(move || {
        let seconds = std::fs::read_to_string(&file).ok();
        let seconds: i64 = seconds.and_then(|text| text.parse().ok()).unwrap_or(0);
        Timestamp::from_micros(real().as_micros() + seconds * 1_000_000)
    })
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
    let ahead = std::env::var_os(AHEAD).map(PathBuf::from);
    settings.is_clock_turned = ahead.is_some();
    let clock = ahead.map_or_else(system_clock, turned_by);
    let server = Server::start(settings, keyring(), clock);
    let server = runtime.block_on(server).unwrap();
    println!("\naddress: {}", server.address());
    println!("address: {}", server.metrics_address().unwrap());
    // Ends with the test that wanted it.
    let _ = std::io::stdin().read(&mut [0]);
}
