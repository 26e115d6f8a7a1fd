//! The scratch PostgreSQL: it starts, keeps what was committed through a crash, and leaves nothing behind,
//! however the test ends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use ostler_testkit::postgres::{Options, ScratchPostgres, find_postgres};
use ostler_testkit::process::{self, Process, wait_until};
use ostler_testkit::scratch::Scratch;
use rustix::process::Signal;

/// For what takes a moment on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// What a server leaves behind if nobody cleans up.
struct Traces {
    token: String,
    folder: PathBuf,
    /// Its segment of shared memory.
    segment: String,
}

impl Traces {
    fn of(postgres: &ScratchPostgres) -> Self {
        let folder = postgres.path().to_owned();
        let file = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
        let segment = file.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap().to_owned();
        let traces = Self { token: postgres.token().to_owned(), folder, segment };
        assert!(traces.has_segment());
        traces
    }

    fn has_segment(&self) -> bool {
        let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap();
        let mut ids = segments.lines().filter_map(|line| line.split_whitespace().nth(1));
        ids.any(|id| id == self.segment)
    }

    #[track_caller]
    fn assert_gone(&self) {
        process::assert_none_left(&self.token, Duration::ZERO);
        assert!(!self.folder.exists());
        assert!(!self.has_segment());
    }
}

/// `psql` over the URL, as any client would come.
fn psql(url: &str, sql: &str) -> Command {
    let mut command = Command::new(find_postgres().unwrap().bin.join("psql"));
    command.args(["-XqAt", "-v", "ON_ERROR_STOP=1", url, "-c", sql]).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ask(url: &str, sql: &str) -> String {
    let output = psql(url, sql).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn what_was_committed_is_there_after_a_crash_and_under_the_same_url() {
    let name = "testkit/postgres_crash";
    let Some(mut postgres) = ScratchPostgres::start(name, Options::default()) else {
        return;
    };
    let url = postgres.create_database("kept");
    assert_eq!(ask(&url, "show fsync"), "on");
    ask(&url, "create table lines (n int primary key)");
    ask(&url, "insert into lines select generate_series(1, 1000)");
    for round in 1..=2 {
        postgres.kill();
        assert!(!psql(&url, "select 1").output().unwrap().status.success());
        postgres.restart();
        assert_eq!(ask(&url, "select count(*) from lines"), "1000", "after {round}");
    }
    let log = postgres.path().join("log");
    let crashes = || {
        let log = fs::read_to_string(&log).unwrap();
        log.matches("was not properly shut down").count()
    };
    assert_eq!(crashes(), 2);

    postgres.stop_fast();
    postgres.stop_fast();
    assert!(!psql(&url, "select 1").output().unwrap().status.success());
    postgres.restart();
    assert_eq!(postgres.sql("kept", "select count(*), min(n) from lines"), "1000|1\n");
    postgres.restart();
    assert_eq!(ask(&url, "select max(n) from lines"), "1000");
    assert_eq!(crashes(), 2, "a stop is no crash");
}

/// Stops the server's first process, so that it hears nothing.
fn hang(postgres: &mut ScratchPostgres) {
    let server = process::find_by_argv(&format!("{}/data", postgres.token()));
    server.iter().for_each(|process| process.signal(Signal::STOP));
    let stopped = |process: &Process| Process::read(process.pid).unwrap().state == 'T';
    wait_until("it is stopped", SOON, || server.iter().any(stopped));
}

#[test]
fn nothing_is_left_of_a_dropped_server_in_whatever_state() {
    type End = fn(&mut ScratchPostgres);
    let ends: [(&'static str, End); 5] = [
        ("testkit/postgres_drop_running", |_| {}),
        ("testkit/postgres_drop_stopped", ScratchPostgres::stop_fast),
        ("testkit/postgres_drop_hung", hang),
        ("testkit/postgres_drop_killed", ScratchPostgres::kill),
        ("testkit/postgres_drop_killed_again", |postgres| {
            postgres.kill();
            postgres.restart();
            postgres.kill();
        }),
    ];
    std::thread::scope(|scope| {
        for (name, end) in ends {
            scope.spawn(move || nothing_is_left_after(name, end));
        }
    });
}

fn nothing_is_left_after(name: &str, end: fn(&mut ScratchPostgres)) {
    let Some(mut postgres) = ScratchPostgres::start(name, Options::default()) else {
        return;
    };
    // With connections, and in the middle of work.
    let url = postgres.url("postgres");
    let mut client = psql(&url, "select pg_sleep(600)").spawn().unwrap();
    wait_sleeping(&postgres, "postgres");
    let traces = Traces::of(&postgres);
    end(&mut postgres);
    drop(postgres);
    traces.assert_gone();
    assert!(!client.wait().unwrap().success());
}

#[test]
fn nothing_is_left_when_a_test_panics() {
    let mut traces = None;
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let name = "testkit/postgres_panic";
        let Some(postgres) = ScratchPostgres::start(name, Options::default()) else {
            return;
        };
        traces = Some(Traces::of(&postgres));
        panic!("as a test would");
    }));
    let Some(traces) = traces else {
        return;
    };
    assert!(failed.is_err());
    traces.assert_gone();
}

#[test]
fn tests_of_a_process_share_a_server_and_not_their_databases() {
    let shared = || ScratchPostgres::shared("testkit/postgres_shared");
    let Some(postgres) = shared() else {
        return;
    };
    assert!(std::ptr::eq(postgres, shared().unwrap()));
    let urls = std::thread::scope(|scope| {
        let make = |n: u32| scope.spawn(move || postgres.create_database(&format!("of_test_{n}")));
        let threads: Vec<_> = (0..4).map(make).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for url in &urls {
        ask(url, "create table mine (n int)");
    }
    assert_eq!(ask(&urls[0], "show fsync"), "off");
    assert_eq!(ask(&urls[1], "show server_version_num").len(), 6);
}

#[test]
fn connections_of_a_database_can_be_ended() {
    let Some(postgres) = ScratchPostgres::shared("testkit/postgres_terminate") else {
        return;
    };
    let url = postgres.create_database("to_lose");
    let other = postgres.create_database("to_keep");
    assert_eq!(postgres.terminate_backends("to_lose"), 0);
    let mut lost: Vec<Child> =
        (0..2).map(|_| psql(&url, "select pg_sleep(600)").spawn().unwrap()).collect();
    let mut kept = psql(&other, "select pg_sleep(600)").spawn().unwrap();
    wait_until("both sleep", SOON, || sleeping(postgres, "to_lose") == 2);
    wait_sleeping(postgres, "to_keep");
    assert_eq!(postgres.terminate_backends("to_lose"), 2);
    assert!(lost.iter_mut().all(|client| !client.wait().unwrap().success()));
    assert_eq!(sleeping(postgres, "to_keep"), 1);
    assert_eq!(postgres.terminate_backends("to_keep"), 1);
    kept.wait().unwrap();
}

fn sleeping(postgres: &ScratchPostgres, database: &str) -> usize {
    let sql = format!(
        "select count(*) from pg_stat_activity where datname = '{database}' and wait_event = 'PgSleep'"
    );
    postgres.sql("postgres", &sql).trim().parse().unwrap()
}

fn wait_sleeping(postgres: &ScratchPostgres, database: &str) {
    wait_until("the client works", SOON, || sleeping(postgres, database) == 1);
}

#[test]
fn settings_are_the_tests_own_and_the_server_is_nobody_elses() {
    let settings = vec![("max_connections", "12".to_owned()), ("fsync", "off".to_owned())];
    let options = Options { settings, ..Options::default() };
    let Some(postgres) = ScratchPostgres::start("testkit/postgres_settings", options) else {
        return;
    };
    let url = postgres.url("postgres");
    assert_eq!(ask(&url, "show max_connections"), "12");
    assert_eq!(ask(&url, "show fsync"), "off");
    assert_eq!(ask(&url, "show listen_addresses"), "127.0.0.1");
    let (user, host) = url.split_once('@').unwrap();
    let (user, _) = user.rsplit_once(':').unwrap();
    let stranger = format!("{user}:wrong@{host}");
    let refused = psql(&stranger, "select 1").output().unwrap();
    assert!(!refused.status.success(), "any password will do: {stranger}");
    assert!(catch_unwind(AssertUnwindSafe(|| postgres.create_database("a; b"))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| postgres.sql("postgres", "select 1/0"))).is_err());
}

/// Cases that other tests run in a process of their own, which ends in some way.
#[test]
#[ignore = "run by another test"]
fn case_that_shares_and_ends() {
    let Some(postgres) = ScratchPostgres::shared("testkit/postgres_case") else {
        return;
    };
    println!("\nserver: {} {}", postgres.token(), postgres.path().display());
}

#[test]
#[ignore = "run by another test"]
fn case_that_is_killed() {
    let states: [fn(&mut ScratchPostgres); 4] =
        [|_| {}, hang, ScratchPostgres::stop_fast, ScratchPostgres::kill];
    let mut servers = Vec::new();
    for change in states {
        servers.push(std::thread::spawn(move || {
            let name = "testkit/postgres_case_killed";
            let mut postgres = ScratchPostgres::start(name, Options::default())?;
            change(&mut postgres);
            println!("\nserver: {} {}", postgres.token(), postgres.path().display());
            Some(postgres)
        }));
    }
    let _servers: Vec<_> = servers.into_iter().map(|server| server.join().unwrap()).collect();
    println!("\nready");
    std::thread::park();
}

fn case(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--include-ignored", "--nocapture"]);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The servers that a case named, each with its folder.
fn servers(said: &str) -> Vec<(&str, &Path)> {
    let lines = said.lines().filter_map(|line| line.strip_prefix("server: "));
    lines
        .map(|line| line.split_once(' ').unwrap())
        .map(|(token, path)| (token, Path::new(path)))
        .collect()
}

fn assert_cleaned(said: &str, count: usize) {
    let servers = servers(said);
    assert_eq!(servers.len(), count, "{said}");
    for (token, folder) in servers {
        process::assert_none_left(token, SOON);
        wait_until("the folder is gone", SOON, || !folder.exists());
    }
}

#[test]
fn a_shared_server_ends_with_the_process_of_its_tests() {
    if find_postgres().is_none() {
        return;
    }
    let output = case("case_that_shares_and_ends").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_cleaned(&String::from_utf8(output.stdout).unwrap(), 1);
}

#[test]
fn servers_end_when_the_process_of_their_test_is_killed() {
    if find_postgres().is_none() {
        return;
    }
    let scratch = Scratch::new();
    let said = scratch.work().join("said");
    let mut command = case("case_that_is_killed");
    let mut child =
        command.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    let text = || fs::read_to_string(&said).unwrap();
    wait_until("all have started", 2 * SOON, || text().lines().any(|line| line == "ready"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_cleaned(&text(), 4);
}

#[test]
#[ignore = "run by another test"]
fn case_without_postgres() {
    assert!(ScratchPostgres::start("a/case", Options::default()).is_none());
    assert!(ScratchPostgres::shared("a/case").is_none());
}

#[test]
fn without_postgres_a_test_is_skipped_at_home_and_fails_where_ci_is_set() {
    let run = |ci: &[(&str, &str)]| -> Output {
        let mut command = case("case_without_postgres");
        command.env_clear().env("OSTLER_TEST_POSTGRES", "/nowhere").envs(ci.iter().copied());
        command.output().unwrap()
    };
    let home = run(&[]);
    let said = String::from_utf8_lossy(&home.stderr);
    assert!(home.status.success(), "{home:?}");
    assert!(
        said.contains("a/case: skipped, the real program (PostgreSQL) is not installed"),
        "{said}"
    );
    let ci = run(&[("CI", "true")]);
    let said = String::from_utf8_lossy(&ci.stderr);
    assert!(!ci.status.success(), "{ci:?}");
    assert!(said.contains(".ci/install-postgresql"), "{said}");
}
