//! Starting: what the agent gets, what is recorded, what is said when it cannot start.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ostler_core::outcome::Exit;
use ostler_supervise::rundir::{RunDir, RunRecord, Stream, read_exit, read_run};
use ostler_supervise::{IdleShim, Report, SpawnErrorKind, Stdin};

use crate::rig::*;

fn record(rig: &Rig) -> RunRecord {
    RunRecord {
        version: 1,
        task_id: "t".into(),
        attempt: 1,
        agent: "command".into(),
        program: "sh".into(),
        argv: vec!["-c".into(), "[task input redacted]".into()],
        cwd: "/".into(),
        prompt_bytes: 3,
        prompt_sha256: "00".into(),
        marker: rig.marker.clone(),
        created_at_micros: 5,
    }
}

#[tokio::test]
async fn a_run_is_a_directory_that_says_everything() {
    let rig = Rig::new();
    let script = "echo out; echo err >&2; pwd; echo $OSTLER_RUN; exit 3";
    let spec = rig.spec("sh", &["-c", script]);
    RunDir::at(rig.dir()).write_record(&record(&rig)).unwrap();
    let mut shim = rig.start(&spec).await;
    let Report::Started { pid, .. } = next(&mut shim).await else { panic!("not started") };
    assert!(pid > 0);
    let end = ended(&mut shim).await;
    assert_eq!(end.exit, Some(Exit::Code(3)));
    assert!(!end.stopped && !end.truncated && !end.overflow && !end.daemon_gone);
    assert_eq!((end.write_error, end.killed, end.kept), (None, vec![], vec![]));
    let cwd = rig.root().canonicalize_utf8().unwrap();
    assert_eq!(rig.stdout(), format!("out\n{cwd}\n{}\n", rig.marker));
    assert_eq!(rig.output(Stream::Stderr), b"err\n");
    assert_eq!(end.output_bytes, (rig.stdout().len() + 4) as u64);
    shim.wait().await.unwrap();
    let view = read_run(&rig.dir()).unwrap();
    assert_eq!(view.record, record(&rig));
    assert_eq!(view.shim.unwrap().identity(), *shim.identity());
    let exit = view.exit.unwrap();
    assert!(exit.empty && exit.exit() == Some(Exit::Code(3)));
    for name in ["run.json", "shim.json", "exit.json", "output/00000000000000000000.log"] {
        assert_eq!(mode_of(rig.dir().join(name).as_std_path()), 0o600, "{name}");
    }
    assert_eq!(mode_of(rig.dir().join("output").as_std_path()), 0o700);
    assert_eq!(mode_of(rig.dir().as_std_path()), 0o700);
}

#[tokio::test]
async fn r_68_arguments_arrive_unchanged_and_never_pass_a_shell() {
    let rig = Rig::new();
    let odd = "-x $(touch /tmp/never) `id` \"quoted\" 'single'\n--second line; rm *";
    let mut spec = rig.spec("/usr/bin/printf", &["%s|", odd]);
    spec.env.push(("ODD".into(), odd.into()));
    let mut shim = rig.start(&spec).await;
    assert_eq!(ended(&mut shim).await.exit, Some(Exit::Code(0)));
    assert_eq!(rig.stdout(), format!("{odd}|"));
}

#[tokio::test]
async fn r_70_stdin_is_at_its_end_at_once() {
    let rig = Rig::new();
    let mut shim = rig.start(&rig.spec("cat", &[])).await;
    assert_eq!(ended(&mut shim).await.exit, Some(Exit::Code(0)));
    assert_eq!(rig.stdout(), "");
}

#[tokio::test]
async fn input_reaches_stdin_byte_for_byte_and_then_ends() {
    let rig = Rig::new();
    let mut spec = rig.spec("cat", &[]);
    let input: Vec<u8> = (0..=255_u8).cycle().take(512 << 10).collect();
    spec.stdin = Stdin::Bytes(input.clone());
    let mut shim = rig.start(&spec).await;
    assert_eq!(ended(&mut shim).await.exit, Some(Exit::Code(0)));
    assert!(rig.output(Stream::Stdout) == input);
}

async fn failure(rig: &Rig, program: &str, cwd: Option<&str>) -> (SpawnErrorKind, String) {
    let _ = std::fs::remove_dir_all(rig.dir());
    let mut spec = rig.spec(program, &[]);
    if let Some(cwd) = cwd {
        spec.cwd = rig.root().join(cwd);
    }
    let mut shim = rig.start(&spec).await;
    let Report::SpawnFailed { kind, message } = next(&mut shim).await else { panic!("it started") };
    let exit = read_exit(&rig.dir()).unwrap().unwrap();
    assert_eq!(exit.spawn_error.unwrap().message, message);
    assert_eq!(next(&mut shim).await, Report::Lost);
    (kind, message)
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let rig = Rig::new();
    let file = |name: &str, text: &str, mode| {
        let path = rig.root().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.into_string()
    };
    let cases = [
        (failure(&rig, "no-such-agent", None).await, SpawnErrorKind::NotFound, "no-such-agent"),
        (failure(&rig, "/no/such/agent", None).await, SpawnErrorKind::NotFound, "/no/such/agent"),
        (failure(&rig, "", None).await, SpawnErrorKind::NotFound, "no program"),
        (
            failure(&rig, &file("plain", "#!/bin/sh\n", 0o600), None).await,
            SpawnErrorKind::NotExecutable,
            "not executable",
        ),
        (failure(&rig, "/tmp", None).await, SpawnErrorKind::NotExecutable, "not a file"),
        (
            failure(&rig, &file("text", "hello", 0o700), None).await,
            SpawnErrorKind::NotExecutable,
            "#! line",
        ),
        (
            failure(&rig, &file("lost", "#!/no/sh\n", 0o700), None).await,
            SpawnErrorKind::NotFound,
            "interpreter",
        ),
        (failure(&rig, "true", Some("missing")).await, SpawnErrorKind::BadCwd, "missing"),
        (failure(&rig, "true", Some("plain")).await, SpawnErrorKind::BadCwd, "not a directory"),
    ];
    for ((kind, message), wanted, word) in cases {
        assert_eq!(kind, wanted, "{message}");
        assert!(message.contains(word), "{message:?} should say {word:?}");
    }
}

#[tokio::test]
async fn a_run_directory_that_cannot_be_used_is_a_storage_error() {
    let rig = Rig::new();
    let spec = rig.spec("true", &[]);
    std::fs::rename(rig.dir(), rig.root().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(rig.root().join("elsewhere"), rig.dir()).unwrap();
    let mut shim = rig.start(&spec).await;
    let Report::SpawnFailed { kind, message } = next(&mut shim).await else { panic!("it started") };
    assert_eq!(kind, SpawnErrorKind::Storage, "{message}");
}

#[tokio::test]
async fn nothing_is_executed_before_start() {
    let rig = Rig::new();
    let spec = rig.spec("touch", &["ran"]);
    let shim = IdleShim::spawn(&fixture(), &rig.marker).unwrap().prepare(&spec).unwrap();
    eventually("prepared", DEADLINE, || rig.dir().join("output").exists());
    let pid = shim.identity().pid;
    drop(shim);
    eventually("the shim is gone", DEADLINE, || !Path::new(&format!("/proc/{pid}")).exists());
    assert!(!rig.root().join("ran").exists());
}

/// Descriptors of daemon and shim end at the shim. What the test itself inherited open for everybody
/// (a jobserver, say) goes through.
#[tokio::test]
async fn the_agent_gets_three_descriptors() {
    let inherited = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten().filter(|entry| {
        let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("02000000");
        i64::from_str_radix(flags.trim(), 8).unwrap() & 0o2_000_000 == 0
    });
    let inherited =
        inherited.filter(|entry| entry.file_name().to_str().unwrap().parse::<u32>().unwrap() > 2);
    let inherited = inherited.count();
    let rig = Rig::new();
    let mut shim = rig.start(&rig.play(&["fds"])).await;
    ended(&mut shim).await;
    let out = rig.stdout();
    for ours in ["socket", "memfd", "anon_inode", rig.dir().as_str()] {
        assert!(!out.contains(ours), "{ours} in {out}");
    }
    // The three, and the folder that is being listed.
    assert_eq!(out.lines().count(), 4 + inherited, "{out}");
}

/// Whatever the daemon inherited or ignores, the agent starts with every signal at its default.
#[test]
fn the_agent_starts_with_default_signals() {
    let rig = Rig::new();
    let dir = RunDir::create(rig.root(), "run").unwrap();
    let script = format!(
        "trap '' HUP INT QUIT TERM PIPE; exec {} daemon {} signals {}",
        fixture().display(),
        dir.path(),
        rig.token
    );
    let mut daemon = std::process::Command::new("sh");
    let mut daemon =
        daemon.args(["-c", &script]).stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("the end", DEADLINE, || dir.path().join("exit.json").exists());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let shown = rig.stdout();
    assert!(shown.contains("SigBlk:\t0000000000000000"), "{shown}");
    // SIGPIPE is ignored by the agent itself, a Rust program; others by who started the tests.
    let ignored = shown.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    for signal in [1, 2, 3, 15] {
        assert_eq!(ignored >> (signal - 1) & 1, 0, "{signal} is ignored: {shown}");
    }
}

/// The shim is no victim of a signal that was meant for a group or a session.
#[tokio::test]
async fn polite_signals_do_not_end_a_shim() {
    let rig = Rig::new();
    let mut shim =
        rig.start(&rig.spec("sh", &["-c", "echo ready; sleep 0.5; echo done; exit 6"])).await;
    output(&mut shim, 6).await;
    for signal in [1, 2, 3, 15] {
        ostler_supervise::signal_identity(shim.identity(), signal).unwrap();
    }
    assert_eq!(ended(&mut shim).await.exit, Some(Exit::Code(6)));
    assert_eq!(rig.stdout(), "ready\ndone\n");
}

/// Raw bytes, as a daemon of another version would send them.
#[test]
fn a_shim_refuses_a_version_it_does_not_speak() {
    use std::io::{Read, Write};
    let version_2 = b"\0\0\0\x0e\x01\x01\0\0\0\x08\0\0\0\0\0\0\0\x02".as_slice();
    let no_version = b"\0\0\0\x07\x01\x02\0\0\0\x01/".as_slice();
    let start_first = b"\0\0\0\x01\x02".as_slice();
    for (bytes, word) in
        [(version_2, "version 2"), (no_version, "no version"), (start_first, "version 0")]
    {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut command = std::process::Command::new(fixture());
        let mut shim =
            command.arg("__shim").stdin(std::os::fd::OwnedFd::from(theirs)).spawn().unwrap();
        // It holds the other end, and the end of the answer would never come.
        drop(command);
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        ours.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        ours.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            answer.contains("protocol") && answer.contains(word),
            "{answer:?} should say {word}"
        );
        shim.wait().unwrap();
    }
}
