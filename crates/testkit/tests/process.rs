//! Waiting, finding and signalling processes, and what happens to a test whose real program is missing.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::Write;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ostler_testkit::claude::{find_claude, require_or_skip};
use ostler_testkit::process::{self, Process, fake_agent, wait_for, wait_until};
use ostler_testkit::scratch::Scratch;
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn waits_for_a_condition_and_fails_at_its_deadline() {
    let started = Instant::now();
    let found =
        wait_for("a number", SOON, || (started.elapsed() > Duration::from_millis(20)).then_some(7));
    assert_eq!(found, 7);
    let late = catch_unwind(|| wait_until("never", Duration::from_millis(30), || false));
    let message = *late.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(message, "waited 30ms in vain: never");
}

#[test]
fn finds_by_environment_and_argument() {
    let scratch = Scratch::new();
    let unique = process::random_hex();
    let mut command = scratch.command(fake_agent());
    command.args(["sleep", "--token", &unique]).env("MARK", &unique).current_dir("/");
    let mut child = command.spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let by_env = || process::find_by_env("MARK", &unique);
    wait_until("it is found by its environment", SOON, || by_env().len() == 1);
    let found = process::find_by_argv(&unique);
    assert_eq!(found, by_env());
    assert_eq!(found, scratch.processes());
    assert_eq!(found.first().unwrap().pid, pid);
    assert_eq!(process::find_by_env("MARK", &unique[1..]), [], "the whole value or nothing");
    let early = catch_unwind(|| process::assert_none_left(&unique, Duration::from_millis(50)));
    assert!(early.is_err(), "something is left");
    assert_eq!(process::kill_all(&unique, SOON), []);
    assert!(Process::read(pid).unwrap().is_zombie(), "dead and not yet waited for");
    scratch.assert_none_left(Duration::ZERO);
    child.wait().unwrap();
    assert!(Process::read(pid).is_none());
}

/// A process that has the number of another one is not signalled in its place.
#[test]
fn never_signals_a_process_of_another_identity() {
    let scratch = Scratch::new();
    let mut command = scratch.command(fake_agent());
    command.arg("read-stdin").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let process = Process::read(i32::try_from(child.id()).unwrap()).unwrap();
    let mut earlier = process.clone();
    earlier.start_time -= 1;
    assert!(!earlier.is_alive());
    earlier.signal(Signal::KILL);
    // Killed, it could not answer.
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    assert_eq!(std::io::read_to_string(child.stdout.take().unwrap()).unwrap(), "stdin: 1 bytes\nx");
    child.wait().unwrap();
}

#[test]
fn a_scratch_folder_is_isolated_short_and_gone_in_the_end() {
    let scratch = Scratch::new();
    let folder = scratch.path().to_owned();
    assert!(scratch.socket().as_os_str().len() < 100, "a socket's path has at most 107 bytes");
    let output = scratch.command("/usr/bin/env").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in text.lines() {
        let (key, value) = line.split_once('=').unwrap();
        let ours = value.contains(scratch.token());
        assert!(ours || ["LANG", "PWD"].contains(&key), "{line}");
    }
    assert!(!scratch.runtime_dir().exists() && !scratch.ostler_home().exists());
    drop(scratch);
    assert!(!folder.exists());
}

/// The cases of `require_or_skip`, run by the test below in a process of their own, because the environment
/// decides.
#[test]
#[ignore = "run by another test"]
fn case_without_the_program() {
    assert_eq!(require_or_skip::<()>("a/case", None), None);
}

#[test]
#[ignore = "run by another test"]
fn case_with_the_program() {
    assert_eq!(require_or_skip("a/case", Some(1)), Some(1));
    println!("found: {:?}", find_claude());
}

fn case(name: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--include-ignored", "--nocapture"]);
    command.env_clear().envs(env.iter().copied());
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_missing_program_skips_at_home_and_fails_where_ci_is_set() {
    let home = case("case_without_the_program", &[]);
    let said = String::from_utf8_lossy(&home.stderr);
    assert!(home.status.success(), "{home:?}");
    assert!(
        said.contains("a/case: skipped, the real program (Claude Code) is not installed"),
        "{said}"
    );
    let ci = case("case_without_the_program", &[("CI", "true")]);
    assert!(!ci.status.success(), "{ci:?}");
}

#[test]
fn a_test_that_ran_is_counted_by_a_file() {
    let scratch = Scratch::new();
    let folder = scratch.work().join("count");
    let folder = folder.to_str().unwrap();
    for name in ["case_without_the_program", "case_with_the_program"] {
        assert!(case(name, &[("OSTLER_TEST_REAL_COUNT_DIR", folder)]).status.success());
    }
    let files = |folder: &str| {
        let files = std::fs::read_dir(folder).unwrap();
        files.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    assert_eq!(files(folder), ["claude"]);
    assert_eq!(files(&format!("{folder}/claude")), ["a-case"]);
}

#[test]
fn the_real_program_is_found_where_it_was_named() {
    let found = |env: &[(&str, &str)]| {
        let output = case("case_with_the_program", env);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find_map(|line| line.strip_prefix("found: ").map(str::to_owned)).unwrap()
    };
    let program = PathBuf::from("/bin/sh");
    assert_eq!(found(&[("OSTLER_TEST_CLAUDE", "/bin/sh")]), format!("{:?}", Some(program)));
    assert_eq!(found(&[("OSTLER_TEST_CLAUDE", "/nowhere/claude")]), "None");
    assert_eq!(found(&[("OSTLER_TEST_CACHE", "/nowhere")]), "None");
    assert_eq!(found(&[]), "None");
}
