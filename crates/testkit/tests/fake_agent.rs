//! `fake-agent` does what its head says, and a scratch folder takes everything away that it leaves.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::io::Read;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use ostler_testkit::process::{self, Process, children_of, fake_agent, wait_for, wait_until};
use ostler_testkit::scratch::Scratch;
use rustix::process::Signal;

/// How long anything may take that should happen at once.
const SOON: Duration = Duration::from_secs(10);

fn run(args: &[&str]) -> Output {
    let scratch = Scratch::new();
    let output = scratch.command(fake_agent()).args(args).output().unwrap();
    scratch.assert_none_left(SOON);
    output
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn start(scratch: &Scratch, args: &[&str]) -> Child {
    let mut command = scratch.command(fake_agent());
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Reads stdout up to the first line break.
fn first_line(child: &mut Child) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    let out = child.stdout.as_mut().unwrap();
    while out.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

fn process_of(child: &Child) -> Process {
    Process::read(i32::try_from(child.id()).unwrap()).unwrap()
}

#[test]
fn ends_as_told() {
    assert_eq!(run(&["exit", "3"]).status.code(), Some(3));
    let died = run(&["die"]);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&died.status), Some(9));
    assert_eq!(run(&["no-such-mode"]).status.code(), Some(64));
    let started = Instant::now();
    assert_eq!(run(&["print-nothing", "--life", "1"]).status.code(), Some(99));
    assert!(started.elapsed() >= Duration::from_secs(1), "the life is a life");
}

#[test]
fn prints_as_told() {
    let long = run(&["long-line", "1000003"]).stdout;
    assert_eq!(long.len(), 1_000_004);
    let expected = (b'a'..=b'z').cycle().take(1_000_003).chain([b'\n']);
    assert!(long.iter().copied().eq(expected), "a to z over and over");
    let control = run(&["control-bytes"]).stdout;
    assert_eq!(control.len(), 256);
    assert_eq!(control.iter().filter(|byte| **byte == b'\n').count(), 1);
    let invalid = run(&["invalid-utf8"]).stdout;
    assert!(std::str::from_utf8(&invalid).is_err());
    assert!(invalid.ends_with("whole \u{1f600}\n".as_bytes()));
    assert_eq!(stdout(&run(&["lines", "2"])), "line 1\nline 2\n");
    assert_eq!(stdout(&run(&["print-args", "a b", "$(c)"])), "\"print-args\"\n\"a b\"\n\"$(c)\"\n");
    assert!(stdout(&run(&["print-env"])).contains("\nLANG=C.UTF-8\n"));
}

#[test]
fn prints_for_ever_until_nobody_reads() {
    let scratch = Scratch::new();
    let mut child = start(&scratch, &["print-for-ever", "100"]);
    let mut out = child.stdout.take().unwrap();
    let mut bytes = vec![0; 3_000_000];
    out.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes.split(|byte| *byte == b'\n').nth(7).unwrap().len(), 99);
    drop(out);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

#[test]
fn ignores_term_but_not_kill() {
    let scratch = Scratch::new();
    let mut child = start(&scratch, &["ignore-term"]);
    assert_eq!(first_line(&mut child), "ignoring TERM");
    let process = process_of(&child);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        process.signal(signal);
        assert_eq!(first_line(&mut child), "ignored a signal");
    }
    process.signal(Signal::KILL);
    child.wait().unwrap();
    assert!(!process.is_alive());
}

#[test]
fn exits_on_term_with_a_status() {
    let scratch = Scratch::new();
    let mut child = start(&scratch, &["exit-on-term", "7"]);
    assert_eq!(first_line(&mut child), "waiting for TERM");
    process_of(&child).signal(Signal::TERM);
    assert_eq!(first_line(&mut child), "got TERM");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn leaves_a_child_in_its_own_group_that_holds_the_pipe() {
    let scratch = Scratch::new();
    let mut child = start(&scratch, &["fork-and-leave"]);
    let line = first_line(&mut child);
    let group = process_of(&child).group;
    assert!(child.wait().unwrap().success());
    let left = Process::read(line.strip_prefix("child pid=").unwrap().parse().unwrap()).unwrap();
    assert_eq!(left.group, group);
    assert!(holds_pipe(&mut child), "the pipe stays open");
}

#[test]
fn leaves_an_orphan_in_its_own_session_even_without_an_environment() {
    for empty_env in [false, true] {
        let scratch = Scratch::new();
        let unique = process::random_hex();
        let mut args = vec!["double-fork-setsid", "--ignore-term", "--token", &unique];
        args.extend(empty_env.then_some("--empty-env"));
        let mut child = start(&scratch, &args);
        assert_eq!(first_line(&mut child), "forked twice");
        let ours = process_of(&child).session;
        assert!(child.wait().unwrap().success());
        // It is there before its `exec` is done, with nothing but its working directory to know it by.
        let left = wait_for("the orphan", SOON, || {
            let mut found = process::find_by_argv(&unique);
            found.pop().filter(|orphan| orphan.session != ours)
        });
        assert!(scratch.processes().contains(&left), "{left:?}");
        assert_eq!(process::find_by_env("LANG", "C.UTF-8").contains(&left), !empty_env);
        assert!(holds_pipe(&mut child));
        drop(scratch);
        assert!(!left.is_alive(), "the scratch folder took it away");
    }
}

#[test]
fn runs_a_tool_in_a_session_of_its_own() {
    let scratch = Scratch::new();
    let mut child = start(&scratch, &["spawn-tool"]);
    let line = first_line(&mut child);
    let pid: i32 = line.strip_prefix("tool pid=").unwrap().parse().unwrap();
    wait_until("the tool leads its own session", SOON, || {
        Process::read(pid).is_some_and(|tool| tool.session == pid)
    });
    assert!(process_of(&child).is_alive(), "the leader waits for it");
    assert_eq!(children_of(process_of(&child).pid).len(), 1);
    Process::read(pid).unwrap().signal(Signal::KILL);
    assert!(child.wait().unwrap().success());
}

#[test]
fn storms_within_its_cap_and_is_cleared_away() {
    let scratch = Scratch::new();
    assert!(!scratch.is_anyone_alive());
    let pipe = scratch.alive();
    let args = ["fork-storm", "99", "--detached", "--alive", pipe.to_str().unwrap()];
    let mut child = start(&scratch, &args);
    assert_eq!(first_line(&mut child), "storm of 8", "never more than eight");
    assert!(child.wait().unwrap().success());
    assert!(scratch.is_anyone_alive(), "they are there, whether a scan sees them or not");
    assert!(scratch.kill_all(Duration::from_secs(60)));
    assert!(!scratch.is_anyone_alive());
    scratch.assert_none_left(SOON);
}

#[test]
fn closes_stdout_and_stays() {
    let scratch = Scratch::new();
    let mut child = start(&scratch, &["close-stdout"]);
    assert_eq!(first_line(&mut child), "closing");
    assert!(!holds_pipe(&mut child), "the pipe is closed");
    assert!(process_of(&child).is_alive());
    scratch_kill(&scratch, &mut child);
}

#[test]
fn reads_stdin_to_its_end() {
    let scratch = Scratch::new();
    let text = scratch.work().join("in.txt");
    std::fs::write(&text, "héllo").unwrap();
    let mut command = scratch.command(fake_agent());
    let output =
        command.arg("read-stdin").stdin(std::fs::File::open(&text).unwrap()).output().unwrap();
    assert_eq!(stdout(&output), "stdin: 6 bytes\nhéllo");
}

#[test]
fn agent_cli_takes_its_arguments_in_order_and_never_without_no_yolo() {
    let run = |args: &[&str]| run(args);
    let good = [
        "--prompt",
        "echo-args exit:3",
        "--save-session",
        "--no-yolo",
        "--resume",
        "s1",
        "--cwd",
        "/",
        "--provider",
        "p",
        "--model",
        "m",
        "--effort",
        "high",
    ];
    let output = run(&good);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stdout(&output).starts_with("agent-cli: session s1\n\"--prompt\"\n\"echo-args exit:3\"\n")
    );
    let short = ["--prompt", "hi", "--save-session", "--no-yolo", "--cwd", "/", "--worktree"];
    assert_eq!(stdout(&run(&short)), "agent-cli: session fresh\nagent-cli: done\n");
    for (what, bad) in [
        ("no --no-yolo", &["--prompt", "x", "--save-session", "--cwd", "/"][..]),
        ("wrong order", &["--prompt", "x", "--no-yolo", "--save-session", "--cwd", "/"]),
        (
            "--cwd before --resume",
            &["--prompt", "x", "--save-session", "--no-yolo", "--cwd", "/", "--resume", "s"],
        ),
        (
            "provider alone",
            &["--prompt", "x", "--save-session", "--no-yolo", "--cwd", "/", "--provider", "p"],
        ),
        ("something more", &["--prompt", "x", "--save-session", "--no-yolo", "--cwd", "/", "more"]),
        ("no --cwd", &["--prompt", "x", "--save-session", "--no-yolo"]),
    ] {
        let output = run(bad);
        assert_eq!(output.status.code(), Some(64), "{what}: {output:?}");
        assert!(output.stdout.is_empty(), "{what}");
    }
    let prompt = ["--prompt", "--worktree", "--save-session", "--no-yolo", "--cwd", "/"];
    assert!(run(&prompt).status.success(), "a prompt may look like an option");
}

#[test]
fn claude_ends_without_a_statement_when_told() {
    let scratch = Scratch::new();
    let fake = scratch.install("claude", &fake_agent());
    let command = |prompt: &str| {
        let mut command = scratch.command(&fake);
        command.env("IS_SANDBOX", "1");
        command.args(["-p", prompt, "--output-format", "stream-json", "--verbose"]);
        command
    };
    let silent = command("no-result").output().unwrap();
    assert!(silent.status.success() && !stdout(&silent).contains("\"result\""));
    let denied = stdout(&command("denied").output().unwrap());
    assert!(denied.contains("\"permission_denials\":[{\"tool_name\":\"Bash\""), "{denied}");
    let mut stays = command("result-and-stay").stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = String::new();
    while !seen.contains("\"type\":\"result\"") {
        seen = first_line(&mut stays);
    }
    assert!(process_of(&stays).is_alive());
    scratch_kill(&scratch, &mut stays);
}

fn scratch_kill(scratch: &Scratch, child: &mut Child) {
    assert_eq!(process::kill_all(scratch.token(), SOON), []);
    child.wait().unwrap();
}

/// Whether somebody still has the writing end of the child's stdout, everything sent having been read.
fn holds_pipe(child: &mut Child) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let out = child.stdout.as_ref().unwrap();
    let wait = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    let mut fds = [PollFd::new(out, PollFlags::IN)];
    poll(&mut fds, Some(&wait)).unwrap();
    !fds[0].revents().contains(PollFlags::HUP)
}
