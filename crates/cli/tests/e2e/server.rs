//! `ostler server`, its first start, its end, its settings, backup and move: the real binary over real
//! sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostler_testkit::postgres::ScratchPostgres;
use ostler_testkit::process::wait_until;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::rig::{Done, PATIENCE, Rig, Running, finish, finish_with_input};

/// The version that machines of these tests say they have.
const CLIENT_VERSION: &str = "0.3.0";

pub(crate) fn folder(rig: &Rig) -> PathBuf {
    rig.scratch.ostler_home().join("server")
}

/// `ostler server ARGS` on a port of its own, when it listens.
pub(crate) fn serve(rig: &Rig, args: &[&str]) -> (Running, String) {
    let mut command = rig.ostler(["server"]);
    if !args.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    let server = Running::start(command.args(args));
    server.says("listening on http");
    let url = std::fs::read_to_string(folder(rig).join("url")).unwrap();
    (server, url.trim().to_owned())
}

/// TERM, and an end in good order.
#[track_caller]
pub(crate) fn stop(server: Running) -> Done {
    server.signal(Signal::TERM);
    let done = server.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    done
}

pub(crate) fn json_of(command: &mut Command) -> Value {
    let done = finish(command);
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

/// One request over a connection of its own: status and body. Errors of the connection are for the caller.
pub(crate) fn try_http(
    url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<(u16, Value)> {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or(std::io::ErrorKind::InvalidData)?;
    Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}

#[track_caller]
pub(crate) fn http(
    url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, Value) {
    try_http(url, method, path, headers, body).unwrap()
}

/// One call of a machine.
pub(crate) fn machine(
    url: &str,
    token: &str,
    path: &str,
    lease: &str,
    body: &Value,
) -> std::io::Result<(u16, Value)> {
    let bearer = format!("Bearer {token}");
    let headers = [
        ("Authorization", bearer.as_str()),
        ("X-Felagi-Client-Version", CLIENT_VERSION),
        ("X-Felagi-Lease", lease),
    ];
    try_http(url, "POST", &format!("/api/daemon/{path}"), &headers, &body.to_string())
}

pub(crate) fn register(url: &str, token: &str) -> u16 {
    let body = json!({ "daemon_id": "m-1", "name": "one", "version": "0.3.0",
        "providers": ["claude_code"], "capabilities": { "os": "linux", "arch": "x86_64" } });
    machine(url, token, "register", "", &body).unwrap().0
}

fn init(rig: &Rig, workspace: &str) -> Value {
    json_of(&mut rig.ostler([
        "server",
        "init",
        "--workspace",
        workspace,
        "--email",
        "a@example.com",
        "--json",
    ]))
}

#[test]
fn the_first_start_makes_a_workspace_and_shows_one_token_once() {
    let rig = Rig::new();
    let (server, url) = serve(&rig, &[]);
    server.prints("ostler issue create");
    assert_eq!(http(&url, "GET", "/healthz", &[], "").0, 200);
    let first = stop(server);
    let tokens: Vec<_> = first.stdout.matches("fat_").collect();
    assert_eq!(tokens.len(), 1, "{}", first.stdout);
    for next in ["1. keep the token", "2. make an agent", "3. give it work"] {
        assert!(first.stdout.contains(next), "{}", first.stdout);
    }
    let token = first.stdout.lines().find_map(|line| line.trim().strip_prefix("fat_")).unwrap();
    assert_eq!(token.len(), 32);
    assert!(!first.stderr.contains("fat_"), "{}", first.stderr);
    assert_eq!(
        rig.files_with(rig.scratch.path(), token),
        Vec::<PathBuf>::new(),
        "it is stored nowhere"
    );
    assert!(!folder(&rig).join("url").exists());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder(&rig)), 0o700);
    for file in ["ostler.db", "secret.key"] {
        assert_eq!(mode(&folder(&rig).join(file)), 0o600, "{file}");
    }
    let (server, _) = serve(&rig, &[]);
    let second = stop(server);
    assert_eq!(second.stdout, "");
}

/// The exact names are fixed: programs read them.
#[test]
fn f_007_init_gives_fresh_tokens_and_they_work() {
    let rig = Rig::new();
    let first = init(&rig, "acme");
    let keys: Vec<_> = first.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["workspace", "api_token", "daemon_token"]);
    assert_eq!(first["workspace"], "acme");
    let (server, url) = serve(&rig, &[]);
    // Beside the server that runs.
    let second = init(&rig, "acme");
    assert_ne!(first["daemon_token"], second["daemon_token"]);
    for made in [&first, &second] {
        assert_eq!(register(&url, made["daemon_token"].as_str().unwrap()), 201);
    }
    assert_eq!(register(&url, first["api_token"].as_str().unwrap()), 401);
    let done = stop(server);
    assert_eq!(done.stdout, "", "there was a workspace, so this was no first start");
    let bad = finish(&mut rig.ostler([
        "server",
        "init",
        "--workspace",
        "No Slug",
        "--email",
        "a@example.com",
        "--json",
    ]));
    assert_eq!((bad.code, bad.stdout.as_str()), (Some(2), ""), "{bad:?}");
    assert!(bad.stderr.contains("--workspace must be small letters"), "{bad:?}");
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let rig = Rig::new();
    init(&rig, "acme");
    let file = rig.scratch.path().join("config/ostler/server.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let claims_of = |command: &mut Command| {
        let server = Running::start(command);
        server.says("listening on");
        let url = std::fs::read_to_string(folder(&rig).join("url")).unwrap();
        let token = init(&rig, "acme")["daemon_token"].as_str().unwrap().to_owned();
        let url = url.trim();
        register(url, &token);
        let body = json!({ "daemon_id": "m-1" });
        let beats = (0..5).map(|_| machine(url, &token, "heartbeat", "", &body).unwrap().0);
        let served = beats.filter(|status| *status == 200).count();
        stop(server);
        (served, url.to_owned())
    };
    let text = "listen = '127.0.0.2:0'\n[limits]\nheartbeat = 1\n";
    std::fs::write(&file, text).unwrap();
    let (served, url) = claims_of(&mut rig.ostler(["server"]));
    assert_eq!(served, 1);
    assert!(url.starts_with("http://127.0.0.2:"), "{url}");
    let mut command = rig.ostler(["server", "--listen", "127.0.0.3:0"]);
    command.env("FELAGI_DAEMON_THROTTLE_HEARTBEAT", "3").env("OSTLER_SERVER_LISTEN", "127.0.0.4:0");
    let (served, url) = claims_of(&mut command);
    assert_eq!(served, 3);
    assert!(url.starts_with("http://127.0.0.3:"), "{url}");
}

#[test]
fn settings_that_make_no_sense_end_the_start_and_say_what_was_meant() {
    let rig = Rig::new();
    let file = rig.scratch.path().join("s.toml");
    std::fs::write(&file, "lissen = '127.0.0.1:0'\n").unwrap();
    let config = ["server", "--config", file.to_str().unwrap()];
    let done = finish(&mut rig.ostler(config));
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("instead of lissen did you mean listen?"), "{done:?}");
    let done = finish(rig.ostler(["server"]).env("FELAGI_DAEMON_THROTTLE_CLAIMS", "1"));
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("did you mean FELAGI_DAEMON_THROTTLE_CLAIM?"), "{done:?}");
    let done = finish(rig.ostler(["server"]).env("OSTLER_SERVER_LISTN", "127.0.0.1:0"));
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("did you mean OSTLER_SERVER_LISTEN?"), "{done:?}");
    let done = finish(&mut rig.ostler(["server", "--listen", "localhost:4180"]));
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("as 127.0.0.1:4180"), "{done:?}");
    let done = finish(&mut rig.ostler(["server", "--listen", "0.0.0.0:0"]));
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(
        done.stderr.contains("--tls-cert") && done.stderr.contains("--behind-proxy"),
        "{done:?}"
    );
    let done = finish(&mut rig.ostler(["server", "--database", "postgres://u:s3cret@%/x"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(!done.stderr.contains("s3cret"), "{done:?}");
    assert!(!folder(&rig).join("ostler.db").exists(), "nothing was made");
}

#[test]
fn another_secret_key_is_refused_with_what_to_do() {
    let rig = Rig::new();
    init(&rig, "acme");
    let mut command = rig.ostler(["server"]);
    let done = finish(command.env("OSTLER_SECRET_KEY", "11".repeat(32)));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("another secret key"), "{done:?}");
    assert!(done.stderr.contains("hint: set OSTLER_SECRET_KEY"), "{done:?}");
    let done = finish(rig.ostler(["server"]).env("OSTLER_SECRET_KEY", "hunter2"));
    assert!(done.code == Some(1) && !done.stderr.contains("hunter2"), "{done:?}");
}

/// A request whose body does not come holds the first signal up; the second waits for nobody.
#[test]
fn the_second_signal_ends_it_at_once() {
    let rig = Rig::new();
    let token = init(&rig, "acme")["daemon_token"].as_str().unwrap().to_owned();
    let (server, url) = serve(&rig, &[]);
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    let head = format!(
        "POST /api/daemon/register HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\
         X-Felagi-Client-Version: {CLIENT_VERSION}\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    // It asks for the body: the request is on its way.
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    server.signal(Signal::TERM);
    server.says("stopping");
    server.signal(Signal::TERM);
    let done = server.finish();
    assert_eq!(done.code, Some(143), "{done:?}");
}

#[test]
fn the_log_has_a_line_for_a_request_and_no_secret() {
    let rig = Rig::new();
    let token = init(&rig, "acme")["daemon_token"].as_str().unwrap().to_owned();
    let (server, url) = serve(&rig, &[]);
    assert_eq!(register(&url, &token), 201);
    let headers = [("X-Request-Id", "req-7"), ("Authorization", "Bearer fdt_guess")];
    http(&url, "POST", "/api/daemon/tasks/01SECRET/start?key=hidden", &headers, "{\"a\":\"body\"}");
    let log = stop(server).stderr;
    let line = log.lines().find(|line| line.contains("req-7")).expect(&log);
    for part in ["POST", "/api/daemon/tasks/{task}/start", "status=401", "ms="] {
        assert!(line.contains(part), "{line}");
    }
    for secret in [token.as_str(), "fdt_", "01SECRET", "hidden", "body"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

/// What python's own SQLite says of a file.
fn integrity(file: &Path) -> String {
    let program = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\n\
                   print(c.execute('PRAGMA integrity_check').fetchone()[0], \
                   c.execute('SELECT COUNT(*) FROM messages').fetchone()[0])";
    let done = finish(Command::new("python3").args(["-c", program]).arg(file));
    assert_eq!(done.code, Some(0), "{done:?}");
    done.stdout.trim().to_owned()
}

/// Backups while a machine writes, then `kill -9` in the middle of its writing; the last backup is put in the
/// database's place and serves.
#[test]
fn a_backup_taken_while_it_serves_survives_kill_9_and_is_restored() {
    let rig = Rig::new();
    let token = init(&rig, "acme")["daemon_token"].as_str().unwrap().to_owned();
    let (server, url) = serve(&rig, &[]);
    assert_eq!(register(&url, &token), 201);
    // Registrations write, too, and need no task.
    let stop_writing = AtomicBool::new(false);
    let backups: Vec<PathBuf> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (url, token, stop) = (&url, &token, &stop_writing);
                scope.spawn(move || {
                    let mut written = 0_u32;
                    while !stop.load(Ordering::SeqCst) {
                        let id = format!("m-{writer}-{written}");
                        let body = json!({ "daemon_id": id, "name": id, "version": "0.3.0",
                            "providers": ["claude_code"], "capabilities": {} });
                        // The server is killed while this goes on.
                        let Ok(_) = machine(url, token, "register", "", &body) else { break };
                        written += 1;
                    }
                    written
                })
            })
            .collect();
        let backups = (0..3)
            .map(|n| {
                let file = rig.scratch.path().join(format!("backup-{n}.db"));
                let text = file.to_str().unwrap();
                let made = json_of(&mut rig.ostler(["server", "backup", text, "--json"]));
                assert_eq!(made["bytes"], file.metadata().unwrap().len());
                assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
                file
            })
            .collect();
        server.signal(Signal::KILL);
        stop_writing.store(true, Ordering::SeqCst);
        let written: u32 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        assert!(written > 0);
        backups
    });
    assert_eq!(server.finish().code, None);
    for file in &backups {
        assert_eq!(integrity(file), "ok 0", "{file:?}");
    }
    // The killed one serves again, as it is.
    let (server, url) = serve(&rig, &[]);
    assert_eq!(register(&url, &token), 201);
    stop(server);
    assert_eq!(integrity(&folder(&rig).join("ostler.db")), "ok 0");
    // The restore that the guide describes.
    for name in ["ostler.db", "ostler.db-wal", "ostler.db-shm"] {
        let _ = std::fs::remove_file(folder(&rig).join(name));
    }
    std::fs::copy(&backups[2], folder(&rig).join("ostler.db")).unwrap();
    let (server, url) = serve(&rig, &[]);
    assert_eq!(register(&url, &token), 201, "who was there before the backup is there");
    let done = stop(server);
    assert_eq!(done.stdout, "");
    let again = finish(&mut rig.ostler(["server", "backup", backups[0].to_str().unwrap()]));
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("is there already"), "{again:?}");
    // A variable that stops the server stops no backup.
    let last = rig.scratch.path().join("last.db");
    let mut backup = rig.ostler(["server", "backup", last.to_str().unwrap()]);
    let last = finish(backup.env("FELAGI_DAEMON_THROTTLE_CLAIM", "none"));
    assert_eq!(last.code, Some(0), "{last:?}");
}

#[test]
fn a_server_moves_through_a_pipe_with_its_secret_key_and_not_without() {
    let rig = Rig::new();
    let made = init(&rig, "acme");
    let export = finish(&mut rig.ostler(["server", "export", "-"]));
    assert_eq!(export.code, Some(0), "{export:?}");
    assert!(!export.stdout.contains(made["api_token"].as_str().unwrap()));
    let other = rig.scratch.path().join("other");
    let database = format!("sqlite:{}", other.join("new.db").display());
    let import = || {
        let mut command = rig.ostler(["server", "import", "-", "--json", "--database", &database]);
        command.stdin(std::process::Stdio::piped());
        command
    };
    let without = finish_with_input(&mut import(), export.stdout.as_bytes());
    assert_eq!(without.code, Some(2), "{without:?}");
    assert!(without.stderr.contains("secret.key") && !other.exists(), "{without:?}");
    let mut wrong = import();
    wrong.env("OSTLER_SECRET_KEY", "22".repeat(32));
    let wrong = finish_with_input(&mut wrong, export.stdout.as_bytes());
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert!(wrong.stderr.contains("another secret key") && !other.exists(), "{wrong:?}");
    let key = std::fs::read_to_string(folder(&rig).join("secret.key")).unwrap();
    let mut right = import();
    right.env("OSTLER_SECRET_KEY", key.trim());
    let right = finish_with_input(&mut right, export.stdout.as_bytes());
    assert_eq!(right.code, Some(0), "{right:?}");
    let mut command = rig.ostler(["server", "--listen", "127.0.0.1:0", "--database", &database]);
    let server = Running::start(command.env("OSTLER_SECRET_KEY", key.trim()));
    server.says("listening on");
    let url = std::fs::read_to_string(folder(&rig).join("url")).unwrap();
    assert_eq!(register(url.trim(), made["daemon_token"].as_str().unwrap()), 201);
    stop(server);
}

#[test]
fn who_asks_for_metrics_gets_them_on_their_own_listener() {
    let rig = Rig::new();
    init(&rig, "acme");
    let (server, url) = serve(&rig, &["--metrics-listen", "127.0.0.1:0"]);
    server.says("/metrics\n");
    let said = server.said();
    let free = said.lines().find_map(|line| line.strip_prefix("metrics on http://")).unwrap();
    let free = free.strip_suffix("/metrics").unwrap();
    assert_eq!(http(&url, "GET", "/metrics", &[], "").0, 404);
    let scrape = || {
        let mut stream = TcpStream::connect(free).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.contains("ostler_http_requests_total").then_some(())
    };
    wait_until("the metrics are there", PATIENCE, || scrape().is_some());
    stop(server);
}

/// Both bring the tables up to date and look for a workspace at the same moment.
#[test]
fn of_two_servers_that_start_on_one_postgresql_one_makes_the_first_workspace() {
    let name = "of_two_servers_that_start_on_one_postgresql_one_makes_the_first_workspace";
    let Some(postgres) = ScratchPostgres::shared(name) else { return };
    let database = postgres.create_database("two_servers");
    let rigs = [Rig::new(), Rig::new()];
    let key = "33".repeat(32);
    let servers: Vec<Running> = rigs
        .iter()
        .map(|rig| {
            let mut command = rig.ostler(["server", "--listen", "127.0.0.1:0"]);
            // A URL with a password is no argument.
            command.env("OSTLER_SERVER_DATABASE", &database).env("OSTLER_SECRET_KEY", &key);
            Running::start(&mut command)
        })
        .collect();
    for server in &servers {
        server.says("listening on http");
    }
    let urls = rigs.each_ref().map(|rig| std::fs::read_to_string(folder(rig).join("url")).unwrap());
    let mut init =
        rigs[0].ostler(["server", "init", "--workspace", "main", "--email", "a@b.c", "--json"]);
    let made =
        json_of(init.env("OSTLER_SERVER_DATABASE", &database).env("OSTLER_SECRET_KEY", &key));
    let token = made["daemon_token"].as_str().unwrap();
    for url in &urls {
        assert_eq!(register(url.trim(), token), 201);
    }
    // Another key is no server of this database, and none is made for it.
    let mut other = rigs[1].ostler(["server", "--listen", "127.0.0.1:0"]);
    other.env("OSTLER_SERVER_DATABASE", &database);
    let without = finish(&mut other);
    assert!(without.code == Some(2) && without.stderr.contains("key is not there"), "{without:?}");
    assert!(!folder(&rigs[1]).join("secret.key").exists());
    let wrong = finish(other.env("OSTLER_SECRET_KEY", "44".repeat(32)));
    assert!(wrong.code == Some(1) && wrong.stderr.contains("another secret key"), "{wrong:?}");
    let ends: Vec<Done> = servers.into_iter().map(stop).collect();
    let shown: Vec<_> = ends.iter().flat_map(|done| done.stdout.matches("fat_")).collect();
    assert_eq!(shown.len(), 1, "{ends:?}");
    for done in &ends {
        assert!(!done.stderr.contains("postgres://"), "{done:?}");
    }
}

#[test]
fn the_limit_of_open_files_is_raised_for_many_connections() {
    let rig = Rig::new();
    init(&rig, "acme");
    let mut command = rig.scratch.command("sh");
    command.args(["-c", "ulimit -Sn 256; exec ostler server --listen 127.0.0.1:0"]);
    let server = Running::start(command.stdin(std::process::Stdio::null()));
    server.says("listening on");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<_> = files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{files}");
    assert_ne!(numbers[0], "256");
    stop(server);
}
