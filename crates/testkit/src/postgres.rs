//! A private PostgreSQL for tests, from the distribution's binaries.
//!
//! Owns: a scratch folder with a cluster of its own, the server on it, and the end of both. The server
//! listens on 127.0.0.1 under a port of its own and wants a password made for it; its socket lies in the
//! folder. It refuses to run as root, so root gives it another user. A watcher (`postgres/watch.sh`) ends the
//! server and removes the folder as soon as the test's process lets go of it or dies, however it dies: a
//! shared server is a static, and statics are not dropped. Deliberately absent: a client; what few words are
//! said go through `psql`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{self, Process, wait_until};
use crate::real::{Program, require_or_skip};

/// The oldest PostgreSQL that will do; `.ci/install-postgresql` asks for the same (held by a tidy test).
pub const VERSION_MIN: u32 = 15;
/// How long a server may take to start, recovery included, and to stop.
const START_STOP_MS: u64 = 60_000;
/// How long the watcher may take to clean up.
const WATCHER_MS: u64 = 30_000;
/// How often it is looked whether a process has ended.
const POLL_MS: u64 = 5;
/// How often a start is tried when somebody else was quicker at the port.
const PORT_TRIES_MAX: u32 = 10;
/// Where ports are looked for: from here to where the kernel takes ports for outgoing connections. In that
/// range a client that keeps trying to connect to a stopped server would at last reach itself.
const PORT_MIN: u16 = 10_000;
/// Connections a server takes; a [`setting`](Options::settings) can say otherwise.
const CONNECTIONS_MAX: u32 = 200;
/// How much of the server's log a failure shows.
const LOG_TAIL_BYTES: usize = 4_096;
/// The superuser, and the user of every URL.
const USER: &str = "ostler";
/// Ends the server and removes its folder when its standard input closes.
const WATCH: &str = include_str!("postgres/watch.sh");

/// PostgreSQL's programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postgres {
    /// The folder they lie in.
    pub bin: PathBuf,
    /// The major version.
    pub version: u32,
}

/// The newest PostgreSQL of this machine, 15 at least: in the folder that `OSTLER_TEST_POSTGRES` names, else
/// where Debian puts it, else on `PATH`.
pub fn find_postgres() -> Option<Postgres> {
    if let Some(named) = std::env::var_os("OSTLER_TEST_POSTGRES") {
        return look_at(named.into());
    }
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = debian.filter_map(|entry| look_at(entry.path().join("bin")));
    newest.max_by_key(|found| found.version).or_else(|| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).find_map(look_at)
    })
}

fn look_at(bin: PathBuf) -> Option<Postgres> {
    if !["initdb", "postgres", "psql"].iter().all(|program| bin.join(program).is_file()) {
        return None;
    }
    let output = Command::new(bin.join("postgres")).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let version = text.split_whitespace().nth(2)?;
    let major: String = version.chars().take_while(char::is_ascii_digit).collect();
    let version = major.parse().ok().filter(|version| *version >= VERSION_MIN)?;
    Some(Postgres { bin, version })
}

/// How a server is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Whether a commit waits for the disk. Only what tests no durability may turn it off.
    pub fsync: bool,
    /// More settings, `("max_connections", "10")`; they win over this module's.
    pub settings: Vec<(&'static str, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self { fsync: true, settings: Vec::new() }
    }
}

/// The server; see the module. Dropping it ends it and removes its folder.
#[derive(Debug)]
pub struct ScratchPostgres {
    postgres: Postgres,
    options: Options,
    token: String,
    folder: TempDir,
    owner: Option<Owner>,
    password: String,
    port: u16,
    watcher: Child,
    server: Option<Child>,
}

impl ScratchPostgres {
    /// Starts one for the test `name`. None when the machine has no PostgreSQL, which is said and, in CI, a
    /// failure.
    pub fn start(name: &str, options: Options) -> Option<Self> {
        let found = require_or_skip(name, Program::PostgreSql, find_postgres());
        found.map(|postgres| Self::start_found(postgres, options))
    }

    /// The server that the tests of this process share; it starts with the first of them, without `fsync`.
    /// Each test makes databases of its own and gives its `name`, for the count of tests.
    pub fn shared(name: &str) -> Option<&'static Self> {
        static SHARED: OnceLock<ScratchPostgres> = OnceLock::new();
        let postgres = require_or_skip(name, Program::PostgreSql, find_postgres())?;
        let options = Options { fsync: false, ..Options::default() };
        Some(SHARED.get_or_init(|| Self::start_found(postgres, options)))
    }

    fn start_found(postgres: Postgres, options: Options) -> Self {
        let random = process::random_hex();
        let (name, password) = random.split_at(12);
        let token = format!("ostl-{name}");
        // Not below `TMPDIR`: a socket's path is short, and the server's user must get there.
        let mut folder = tempfile::Builder::new();
        let folder = folder.prefix(&token).rand_bytes(0).tempdir_in("/tmp");
        let folder = folder.expect("a scratch folder");
        let owner = Owner::for_root();
        let watcher = watch(folder.path(), owner.as_ref());
        let password = password.to_owned();
        let server = None;
        let port = free_port();
        let mut scratch =
            Self { postgres, options, token, folder, owner, password, port, watcher, server };
        scratch.init();
        for _ in 1..PORT_TRIES_MAX {
            if scratch.run_server() {
                return scratch;
            }
            scratch.port = free_port();
        }
        assert!(scratch.run_server(), "PostgreSQL does not start: {}", scratch.log_tail());
        scratch
    }

    /// A URL with user, password and port. It stays the same through stops and restarts.
    pub fn url(&self, database: &str) -> String {
        let Self { password, port, .. } = self;
        format!("postgres://{USER}:{password}@127.0.0.1:{port}/{database}")
    }

    /// Makes a database and gives its URL. `name`: lower case letters, digits and underscores.
    pub fn create_database(&self, name: &str) -> String {
        self.sql("postgres", &format!("create database {}", plain(name)));
        self.url(name)
    }

    /// Ends all connections to a database, as an administrator would; how many there were.
    pub fn terminate_backends(&self, database: &str) -> usize {
        let ended = self.sql(
            "postgres",
            &format!(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{}'",
                plain(database)
            ),
        );
        ended.lines().filter(|line| *line == "t").count()
    }

    /// What `psql` prints for `sql` in `database`: a row a line, columns with `|` between them. An error
    /// panics.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let mut psql = Command::new(self.postgres.bin.join("psql"));
        psql.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--no-password"]);
        psql.args([
            "--set",
            "ON_ERROR_STOP=1",
            "--username",
            USER,
            "--dbname",
            database,
            "--command",
            sql,
        ]);
        psql.arg("--host").arg(self.path().join("s")).arg("--port").arg(self.port.to_string());
        psql.env_clear().env("LANG", "C.UTF-8").current_dir("/").stdin(Stdio::null());
        let output = psql.output().expect("psql");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {said}{}", self.log_tail());
        String::from_utf8(output.stdout).expect("text from psql")
    }

    /// Stops the server in order (`fast`): connections end, and everything is written.
    pub fn stop_fast(&mut self) {
        if let Some(mut server) = self.server.take() {
            self.signal(Signal::INT);
            wait_gone(&mut server, "the server stops");
        }
    }

    /// Kills the server and all its processes, as a crash of it would. (A crash of the machine would also take
    /// what the kernel had not written yet.)
    pub fn kill(&mut self) {
        let Some(mut server) = self.server.take() else {
            return;
        };
        // Stopped, it starts no process that is missed here and repairs nothing.
        self.signal(Signal::STOP);
        let postmaster = self.postmaster();
        if let Some(postmaster) = &postmaster {
            let stopped = || Process::read(postmaster.pid).is_none_or(|now| now.state == 'T');
            wait_until("the server is held", Duration::from_millis(START_STOP_MS), stopped);
        }
        let children = postmaster.as_ref().map(|postmaster| process::children_of(postmaster.pid));
        self.signal(Signal::KILL);
        let children = children.unwrap_or_default();
        children.iter().for_each(|child| child.signal(Signal::KILL));
        // `runuser` stops itself when its child is stopped.
        if let Some(parent) = i32::try_from(server.id()).ok().and_then(Process::read) {
            parent.signal(Signal::CONT);
        }
        wait_gone(&mut server, "the server is dead");
        let gone = || children.iter().all(|child| !child.is_alive());
        wait_until("its processes are dead", Duration::from_millis(START_STOP_MS), gone);
    }

    /// Stops all its processes where they are: connections stay, and nobody answers on them.
    pub fn hold(&self) {
        let Some(postmaster) = self.postmaster() else { return };
        // First, so that it starts no process that is missed here.
        postmaster.signal(Signal::STOP);
        let stopped = || Process::read(postmaster.pid).is_none_or(|now| now.state == 'T');
        wait_until("the server is held", Duration::from_millis(START_STOP_MS), stopped);
        process::children_of(postmaster.pid).iter().for_each(|child| child.signal(Signal::STOP));
    }

    /// Lets it go on after [`hold`](Self::hold).
    pub fn release(&self) {
        let Some(postmaster) = self.postmaster() else { return };
        process::children_of(postmaster.pid).iter().for_each(|child| child.signal(Signal::CONT));
        postmaster.signal(Signal::CONT);
        // `runuser` stops itself when its child is stopped.
        let parent = self.server.as_ref().and_then(|server| i32::try_from(server.id()).ok());
        if let Some(parent) = parent.and_then(Process::read) {
            parent.signal(Signal::CONT);
        }
    }

    /// Starts the server again after [`stop_fast`](Self::stop_fast) or [`kill`](Self::kill), under the same
    /// URL; one that runs is stopped first.
    pub fn restart(&mut self) {
        self.stop_fast();
        let started = (0..PORT_TRIES_MAX).any(|_| self.run_server());
        assert!(started, "PostgreSQL does not start again: {}", self.log_tail());
    }

    /// The folder with everything of this server.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The name of the folder: each process that belongs to the server has it in an argument, no other has.
    pub fn token(&self) -> &str {
        &self.token
    }

    fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// `program` of PostgreSQL, as the user who may run it.
    fn command(&self, program: &str) -> Command {
        let program = self.postgres.bin.join(program);
        let mut command = as_owner(self.owner.as_ref(), program.into());
        // With a time zone it need not look through all of them.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LANG", "C.UTF-8").env("TZ", "UTC");
        command.current_dir(self.path()).stdin(Stdio::null());
        command
    }

    fn init(&self) {
        let socket = self.path().join("s");
        fs::create_dir(&socket).expect("a folder for the socket");
        let password = self.path().join("password");
        fs::write(&password, &self.password).expect("a file for the password");
        if let Some(owner) = &self.owner {
            for path in [&socket, &password] {
                chown(path, Some(owner.uid), Some(owner.gid)).expect("another owner");
            }
        }
        let mut initdb = self.command("initdb");
        initdb.arg("--pgdata").arg(self.data()).arg("--pwfile").arg(&password);
        initdb.args(["--username", USER, "--encoding", "UTF8", "--locale", "C"]);
        // The socket lies in a folder that only the owner enters.
        initdb.args(["--auth-local", "trust", "--auth-host", "password", "--no-sync"]);
        let output = initdb.process_group(0).output().expect("initdb");
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts the server and waits until it takes connections; false when it ended instead.
    fn run_server(&mut self) -> bool {
        let before = self.pid_file();
        let log = File::options().create(true).append(true).open(self.path().join("log"));
        let log = log.expect("a file for the server's log");
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data());
        for (name, value) in self.settings() {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.stderr(log.try_clone().expect("a second handle")).stdout(log);
        // In a group of its own: an interrupt from the terminal is for the tests, the watcher does the rest.
        let mut server = command.process_group(0).spawn().expect("postgres");
        let mut ended = false;
        wait_until("PostgreSQL is ready", Duration::from_millis(START_STOP_MS), || {
            ended = server.try_wait().expect("the server's state").is_some();
            let ready = |file: &str| {
                let lines: Vec<&str> = file.lines().map(str::trim).collect();
                lines.get(7) == Some(&"ready") && Some(file) != before.as_deref()
            };
            ended || self.pid_file().is_some_and(|file| ready(&file))
        });
        self.server = (!ended).then_some(server);
        !ended
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let socket = self.path().join("s").to_string_lossy().into_owned();
        let on_or_off = |on| if on { "on" } else { "off" }.to_owned();
        let mut settings = vec![
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("port", self.port.to_string()),
            ("unix_socket_directories", socket),
            ("cluster_name", self.token.clone()),
            ("max_connections", CONNECTIONS_MAX.to_string()),
            ("shared_buffers", "32MB".to_owned()),
            // In files below the folder, so that nothing in /dev/shm is left behind.
            ("dynamic_shared_memory_type", "mmap".to_owned()),
            ("fsync", on_or_off(self.options.fsync)),
            ("full_page_writes", on_or_off(self.options.fsync)),
        ];
        settings.extend(self.options.settings.iter().cloned());
        settings
    }

    fn pid_file(&self) -> Option<String> {
        fs::read_to_string(self.data().join("postmaster.pid")).ok()
    }

    /// The server's first process.
    fn postmaster(&self) -> Option<Process> {
        let pid = self.pid_file()?.lines().next()?.trim().parse().ok()?;
        let argv_is_ours =
            |process: &Process| process.argv.iter().any(|arg| arg.contains(&self.token));
        Process::read(pid).filter(argv_is_ours)
    }

    fn signal(&self, signal: Signal) {
        if let Some(postmaster) = self.postmaster() {
            postmaster.signal(signal);
        }
    }

    fn log_tail(&self) -> String {
        let log = fs::read(self.path().join("log")).unwrap_or_default();
        let from = log.len().saturating_sub(LOG_TAIL_BYTES);
        let tail = log.get(from..).unwrap_or_default();
        format!("\nthe server's log:\n{}", String::from_utf8_lossy(tail))
    }
}

impl Drop for ScratchPostgres {
    fn drop(&mut self) {
        // The watcher does it all, as it would without us.
        drop(self.watcher.stdin.take());
        let deadline = Duration::from_millis(WATCHER_MS);
        if !ended_within(&mut self.watcher, deadline) || self.path().exists() {
            let left = process::kill_all(&self.token, deadline);
            eprintln!("{}: the watcher did not clean up; left: {left:?}", self.token);
        }
        if let Some(server) = &mut self.server {
            // It is dead (a `runuser` may be stopped); this takes note of it.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Who runs the server when the tests run as root.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    name: &'static str,
    uid: u32,
    gid: u32,
}

impl Owner {
    /// `postgres`, else `nobody`; none when we are not root.
    fn for_root() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let users = fs::read_to_string("/etc/passwd").expect("/etc/passwd");
        let find = |name: &'static str| {
            let mut fields = users.lines().map(|line| line.split(':'));
            let mut fields = fields.find(|fields| fields.clone().next() == Some(name))?;
            let uid = fields.nth(2)?.parse().ok()?;
            Some(Self { name, uid, gid: fields.next()?.parse().ok()? })
        };
        Some(find("postgres").or_else(|| find("nobody")).expect("a user to run PostgreSQL"))
    }
}

/// `program` as another user. `setpriv` becomes the program; `runuser` waits for it.
fn as_owner(owner: Option<&Owner>, program: OsString) -> Command {
    let Some(Owner { name, uid, gid }) = owner else {
        return Command::new(program);
    };
    let there = |name: &str| {
        ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(name))
    };
    let find = |name: &str| there(name).into_iter().find(|path| path.is_file());
    if let Some(setpriv) = find("setpriv") {
        let mut command = Command::new(setpriv);
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
        command.args(["--clear-groups", "--"]).arg(program);
        command
    } else {
        let runuser =
            find("runuser").expect("setpriv or runuser, since PostgreSQL does not run as root");
        let mut command = Command::new(runuser);
        command.args(["-u", name, "--"]).arg(program);
        command
    }
}

/// Starts the watcher, and gives it the folder.
fn watch(folder: &Path, owner: Option<&Owner>) -> Child {
    if let Some(owner) = owner {
        chown(folder, Some(owner.uid), Some(owner.gid))
            .expect("another owner of the scratch folder");
    }
    let mut command = as_owner(owner, "/bin/sh".into());
    command.args(["-c", WATCH, "watch"]).arg(folder);
    command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("the watcher")
}

fn wait_gone(server: &mut Child, what: &str) {
    assert!(ended_within(server, Duration::from_millis(START_STOP_MS)), "waited in vain: {what}");
}

/// False when it has not; nothing panics here, for the sake of `drop`.
fn ended_within(child: &mut Child, deadline: Duration) -> bool {
    let started = Instant::now();
    while child.try_wait().is_ok_and(|status| status.is_none()) {
        if started.elapsed() >= deadline {
            return false;
        }
        sleep(Duration::from_millis(POLL_MS));
    }
    true
}

/// A name that needs no quotes.
fn plain(name: &str) -> &str {
    let good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    let starts = name.starts_with(|first: char| !first.is_ascii_digit());
    assert!(starts && name.bytes().all(good), "not a plain database name: {name:?}");
    name
}

/// A port nobody listens on now, chosen at random so that two tests rarely choose alike.
fn free_port() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(PORT_MIN);
    let span = u64::from(end.saturating_sub(PORT_MIN));
    let random = process::random_hex();
    let random = random.get(..8).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let binds = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).ok();
    let tried = (0..span).filter_map(|n| u16::try_from((random + n) % span).ok());
    let free = tried.map(|offset| PORT_MIN + offset).find_map(binds).or_else(|| binds(0));
    free.and_then(|socket| socket.local_addr().ok()).expect("a free port").port()
}
