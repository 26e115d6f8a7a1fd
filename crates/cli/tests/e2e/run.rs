//! `ostler run`: what the person at the terminal sees, and the exit code a script sees.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use ostler_proto::framed::{FailureClass, TaskStatus};
use ostler_testkit::process::wait_until;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::rig::{OSTLER, PATIENCE, Rig, Running, finish, finish_with_input};

/// `ostler run ARGS -a command -- fake-agent WORDS`.
fn run(rig: &Rig, args: &[&str], words: &[&str]) -> Command {
    let mut command = rig.ostler(["run"]);
    command.args(args).args(["-a", "command", "--"]).arg(&rig.agent).args(words);
    command
}

#[test]
fn run_shows_the_output_while_it_comes_and_ends_as_the_program_ended() {
    let rig = Rig::serving();
    let done = finish(&mut run(&rig, &[], &["lines", "3"]));
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(0), "line 1\nline 2\nline 3\n"),
        "{done:?}"
    );
    assert!(done.stderr.contains("completed"), "{done:?}");

    let done = finish(&mut run(&rig, &["--id", "three"], &["exit", "3"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("failed") && done.stderr.contains("status 3"), "{done:?}");
    assert_eq!(rig.show("three")["failure"]["class"], "exit_status");

    // Live: the line is there while the program stays.
    let running = Running::start(&mut run(&rig, &["--id", "stays"], &["lines", "1", "--stay"]));
    running.prints("line 1\n");
    assert_eq!(rig.show("stays")["status"], "TaskRunning");
    rig.cancel("stays");
    assert_eq!(running.finish().code, Some(5));
}

#[test]
fn what_makes_no_sense_is_a_usage_error_and_starts_nothing() {
    let rig = Rig::new();
    let big = rig.scratch.path().join("big");
    fs::write(&big, vec![b'x'; 512 * 1024 + 1]).unwrap();
    let file = rig.scratch.work().join("a-file");
    fs::write(&file, "").unwrap();
    for (args, said) in [
        (vec!["run"], "there is no prompt"),
        (vec!["run", "-a", "nobody", "hi"], "agent `nobody` is unknown"),
        (vec!["run", "-a", "command"], "there is no program to run"),
        (vec!["run", "-a", "claude", "--", "true"], "takes a prompt"),
        (vec!["run", "--timeout", "soon", "hi"], "90s"),
        (vec!["run", "--permissions", "some", "hi"], "possible values"),
        (vec!["run", "-C", "nowhere", "hi"], "the directory nowhere cannot be used"),
        (vec!["run", "-C", "a-file", "hi"], "is not a directory"),
        (vec!["task", "limit", "33"], "33"),
        (vec!["sing"], "unrecognized subcommand"),
    ] {
        let done = finish(&mut rig.ostler(&args));
        assert_eq!(done.code, Some(2), "{args:?}: {done:?}");
        assert!(done.stderr.contains(said) && done.stdout.is_empty(), "{args:?}: {done:?}");
    }
    let mut command = rig.ostler(["run", "-a", "claude", "-"]);
    let done = finish(command.stdin(fs::File::open(big).unwrap()));
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("longer than"), "{done:?}");
    assert!(rig.scratch.processes().is_empty(), "a daemon was started");
}

#[test]
fn commands_that_need_a_daemon_say_that_there_is_none() {
    let rig = Rig::new();
    for args in
        [vec!["task", "cancel", "x"], vec!["task", "retry", "x"], vec!["task", "limit", "2"]]
    {
        let done = finish(&mut rig.ostler(&args));
        assert_eq!(done.code, Some(3), "{args:?}: {done:?}");
        assert!(
            done.stderr.contains("the daemon is not reachable") && done.stderr.contains("hint:")
        );
    }
    assert!(rig.scratch.processes().is_empty());
}

#[test]
fn the_last_line_of_json_is_the_result() {
    let rig = Rig::serving();
    let done = finish(&mut run(&rig, &["--json", "--id", "j"], &["lines", "2"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    let lines = done.json_lines();
    let printed: Vec<&Value> =
        lines.iter().filter(|line| line["type"] == "output").map(|line| &line["line"]).collect();
    assert_eq!(printed, ["line 1", "line 2"]);
    let result = lines.last().unwrap();
    let keys: Vec<&String> = result.as_object().unwrap().keys().collect();
    let documented = [
        "type",
        "status",
        "task_id",
        "session_id",
        "text",
        "usage",
        "cost_micros",
        "failure",
        "receipt",
    ];
    assert_eq!(keys, documented);
    assert_eq!((&result["type"], &result["status"]), (&json!("result"), &json!("completed")));
    assert_eq!((&result["task_id"], &result["failure"]), (&json!("j"), &Value::Null));
    assert_eq!(result["receipt"]["exit"], json!({"code": 0}));
    assert_eq!(result["receipt"]["proof"], "exit_status");
    assert_eq!(result["receipt"]["output_bytes"], 14);

    let done = finish(&mut run(&rig, &["--json"], &["die", "ABRT"]));
    let lines = done.json_lines();
    let result = lines.last().unwrap();
    assert_eq!((done.code, &result["status"]), (Some(1), &json!("failed")), "{result}");
    assert_eq!(result["failure"]["class"], "signal");
    assert_eq!(result["receipt"]["exit"], json!({"signal": 6}));
}

/// a command that is repeated runs nothing twice.
#[test]
fn r_58_r_67_an_id_that_exists_is_refused() {
    let rig = Rig::serving();
    let append = ["run", "--id", "once", "--", "sh", "-c", "echo run >> runs"];
    assert_eq!(finish(&mut rig.ostler(append)).code, Some(0));
    let done = finish(&mut rig.ostler(append));
    assert_eq!(done.code, Some(4), "{done:?}");
    assert!(done.stderr.contains("task id already exists"), "{done:?}");
    assert!(done.stderr.contains("hint: look at it with `ostler task show once`"), "{done:?}");
    assert_eq!(fs::read_to_string(rig.scratch.work().join("runs")).unwrap(), "run\n");
}

#[test]
fn detach_prints_the_id_and_goes() {
    let rig = Rig::new();
    let done = finish(&mut run(&rig, &["--detach"], &["lines", "1", "--stay"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    let id = done.stdout.trim_end();
    assert!(done.stdout.ends_with('\n') && done.stderr.contains(id), "{done:?}");
    rig.printed(id, "line 1");
    // Looking in follows without a gap, and ends with the task.
    let follower = Running::start(&mut rig.ostler(["task", "logs", "-f", id]));
    follower.prints("line 1\n");
    rig.cancel(id);
    assert_eq!(follower.finish().stdout, "line 1\n");
    rig.assert_nothing_runs();

    let done = finish(&mut run(&rig, &["--detach", "--json", "--id", "again"], &["lines", "1"]));
    assert_eq!(done.json_lines()[0]["task"]["taskId"], "again");
}

#[test]
fn a_prompt_may_come_from_standard_input() {
    let rig = Rig::serving();
    rig.scratch.install("agent-cli", &rig.agent);
    let prompt = "echo-prompt of\nmore words";
    let mut command = rig.ostler(["run", "--id", "piped", "-"]);
    let done = finish_with_input(&mut command, prompt.as_bytes());
    assert_eq!(done.code, Some(0), "{done:?}");
    let mut command = rig.ostler(["run", "-"]);
    assert_eq!(finish_with_input(&mut command, b"\xff\xfe").code, Some(2));

    // A prompt is a program's input; so is what is piped in, from a file as from a pipe.
    let mut command = rig.ostler(["run", "-a", "command", "a prompt", "--"]);
    let done = finish(command.arg(&rig.agent).arg("read-stdin"));
    assert!(done.stdout.contains("stdin: 8 bytes"), "{done:?}");
    let mut command = run(&rig, &["--id", "p"], &["read-stdin"]);
    let done = finish_with_input(&mut command, b"words for a program\n");
    assert!(done.stdout.contains("stdin: 20 bytes"), "{done:?}");
    let file = rig.scratch.path().join("input");
    fs::write(&file, "words in a file").unwrap();
    let done = finish(run(&rig, &[], &["read-stdin"]).stdin(fs::File::open(file).unwrap()));
    assert!(done.stdout.contains("stdin: 15 bytes"), "{done:?}");
}

/// The first Ctrl+C cancels and waits. It goes to the whole group of the terminal, as the kernel sends it;
/// the daemon that `run` has started itself is not hit.
#[test]
fn ctrl_c_cancels_and_waits() {
    let rig = Rig::new();
    let mut command = run(&rig, &["--id", "c"], &["lines", "1", "--stay"]);
    let running = Running::start(command.process_group(0));
    running.prints("line 1\n");
    kill_process_group(Pid::from_child(&running.child), Signal::INT).unwrap();
    let done = running.finish();
    assert_eq!(done.code, Some(5), "{done:?}");
    assert!(done.stderr.contains("cancelling") && done.stderr.contains("cancelled"), "{done:?}");
    rig.assert_nothing_runs();
    assert_eq!(rig.show("c")["status"], "TaskCancelled");
}

#[test]
fn a_second_ctrl_c_leaves_it_to_the_daemon() {
    let rig = Rig::serving();
    let running = Running::start(&mut run(&rig, &["--id", "c"], &["ignore-term"]));
    running.prints("ignoring TERM\n");
    running.signal(Signal::INT);
    running.says("cancelling");
    running.signal(Signal::INT);
    let done = running.finish();
    assert_eq!(done.code, Some(5), "{done:?}");
    assert!(done.stderr.contains("ostler task show c"), "{done:?}");
    // The agent takes TERM for two seconds; the daemon goes on without us.
    assert_eq!(rig.settled("c").status, TaskStatus::Cancelled);
    rig.assert_nothing_runs();
}

#[test]
fn a_run_whose_daemon_is_told_to_stop_is_interrupted() {
    let mut rig = Rig::serving();
    let running = Running::start(&mut run(&rig, &["--id", "i"], &["lines", "1", "--stay"]));
    running.prints("line 1\n");
    rig.stop_daemon();
    let done = running.finish();
    assert_eq!(done.code, Some(6), "{done:?}");
    rig.assert_gone_within(PATIENCE);
    assert_eq!(rig.show("i")["status"], "TaskInterrupted");
    assert_eq!(rig.logs("i"), "line 1\n");
}

#[test]
fn r_68_arguments_arrive_as_they_were_written() {
    let rig = Rig::serving();
    let words = [
        "two words",
        "\"quotes\" 'single'",
        "$(touch pwned)",
        "`touch pwned`",
        "new\nline",
        "--json",
        "-",
        "--",
        "",
        "ünï; & | > pwned",
        "--resume",
    ];
    let mut all = vec!["print-args"];
    all.extend(words);
    let done = finish(&mut run(&rig, &[], &all));
    assert_eq!(done.code, Some(0), "{done:?}");
    let arrived: Vec<String> =
        done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(arrived, all);
    assert!(!rig.scratch.work().join("pwned").exists());
}

#[test]
fn r_70_a_program_reads_the_end_of_its_input_at_once() {
    let rig = Rig::serving();
    let done = finish(&mut run(&rig, &[], &["read-stdin"]));
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "stdin: 0 bytes\n"), "{done:?}");
}

/// A pipe that somebody left open and never writes to does not hold a run up.
#[test]
fn an_inherited_open_pipe_does_not_hold_a_run_up() {
    let rig = Rig::serving();
    let mut command = run(&rig, &[], &["read-stdin"]);
    let mut running = Running::start(command.stdin(std::process::Stdio::piped()));
    let held_open = running.child.stdin.take();
    let done = running.finish();
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "stdin: 0 bytes\n"), "{done:?}");
    drop(held_open);
}

/// the reason says what was looked for, and the daemon goes on serving.
#[test]
fn r_06_without_any_agent_the_task_says_what_was_looked_for() {
    let rig = Rig::serving();
    let mut command = rig.ostler(["run", "--id", "none", "hello"]);
    let done = finish(command.env("PATH", rig.scratch.path().join("tmp")));
    assert_eq!(done.code, Some(1), "{done:?}");
    let failure = &rig.show("none")["failure"];
    assert_eq!(failure["class"], "not_installed");
    for looked in ["agent-cli", "claude", "PATH"] {
        assert!(failure["message"].as_str().unwrap().contains(looked), "{failure}");
        assert!(done.stderr.contains(looked), "{done:?}");
    }
    assert_eq!(finish(&mut run(&rig, &[], &["lines", "1"])).code, Some(0));
}

#[test]
fn a_program_that_cannot_be_started_fails_with_the_reason() {
    let rig = Rig::serving();
    let work = rig.scratch.work();
    fs::write(work.join("plain"), "no program").unwrap();
    for (id, program, classes) in [
        ("missing", "no-such-program", [FailureClass::NotInstalled; 2]),
        ("absent", "./no/such", [FailureClass::NotInstalled; 2]),
        ("plain", "./plain", [FailureClass::Spawn, FailureClass::NotInstalled]),
        ("folder", "/tmp", [FailureClass::Spawn, FailureClass::NotInstalled]),
    ] {
        let done = finish(&mut rig.ostler(["run", "--id", id, "--", program]));
        assert_eq!(done.code, Some(1), "{done:?}");
        let task = rig.settled(id);
        let failure = task.failure.clone().expect("a failure");
        assert!(classes.contains(&failure.class), "{failure:?}");
        let name = program.trim_start_matches("./");
        assert!(failure.message.contains(name), "{failure:?}");
        assert_eq!(task.log_tail.last(), Some(&failure.message));
        let receipt = task.receipt.unwrap();
        assert_eq!((receipt.started_at, receipt.exit), (None, None));
    }
    rig.assert_nothing_runs();
}

/// The directory may go after the submission, and other clients check nothing.
#[test]
fn a_directory_that_is_not_there_fails_the_task() {
    let rig = Rig::serving();
    let file = rig.scratch.path().join("file");
    fs::write(&file, "").unwrap();
    let nowhere = rig.scratch.path().join("nowhere");
    for (id, cwd) in [("a", nowhere.as_path()), ("b", file.as_path())] {
        let submit = ostler_proto::framed::Submit {
            task_id: id.to_owned(),
            agent: Some("command".to_owned()),
            argv: vec!["true".to_owned()],
            cwd: cwd.to_str().unwrap().to_owned(),
            ..Default::default()
        };
        let wire = rig.wire();
        wire.block_on(wire.client.submit(submit)).expect("an answer");
        let task = rig.settled(id);
        let failure = task.failure.expect("a failure");
        assert_eq!((task.status, failure.class), (TaskStatus::Failed, FailureClass::Spawn));
        assert!(failure.message.contains(cwd.to_str().unwrap()), "{failure:?}");
    }
}

/// An agent that calls `ostler` reaches the daemon that runs it, wherever that is and whatever the submitting
/// shell says.
#[test]
fn an_agent_that_calls_ostler_reaches_the_daemon_that_runs_it() {
    let rig = Rig::serving();
    let home = rig.scratch.path().join("other-home");
    fs::create_dir(&home).unwrap();
    let mut command = rig.ostler(["run", "--", OSTLER, "status", "--json"]);
    let done = finish(command.env("HOME", &home).env("OSTLER_HOME", &home));
    // The submitting shell looks for output where none is.
    let [task] = &listed(&rig)[..] else { panic!("{done:?}") };
    let id = task["taskId"].as_str().unwrap();
    let status: Value = serde_json::from_str(&rig.logs(id)).unwrap();
    assert_eq!(status["daemon_pid"], rig.daemon().pid, "{status}");
    assert_eq!(status["running"], json!([id]), "{status}");

    // It may have work of its own done there, and sees its output.
    let mut nested = rig.ostler(["run", "--", OSTLER, "run", "--id", "inner", "--"]);
    let done = finish(nested.arg(&rig.agent).args(["lines", "2"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.starts_with("line 1\nline 2\n"), "{done:?}");
    assert_eq!(rig.settled("inner").status, TaskStatus::Completed);
    assert_eq!(rig.scratch.processes().len(), 1, "one daemon");
}

fn listed(rig: &Rig) -> Vec<Value> {
    let done = finish(&mut rig.ostler(["task", "list", "--json"]));
    serde_json::from_str(&done.stdout).unwrap()
}

/// Where an agent looks for another daemon and finds none, it starts none.
#[test]
fn no_daemon_is_started_from_inside_a_run() {
    let rig = Rig::serving();
    let nowhere = format!("HASKELL_AGENT_RUNTIME_DIR={}/nowhere", rig.scratch.path().display());
    let done = finish(&mut rig.ostler(["run", "--", "env", &nowhere, OSTLER, "run", "--", "true"]));
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stdout.contains("none is started from inside a run"), "{done:?}");
    let daemons = rig.scratch.processes();
    assert_eq!(daemons.len(), 1, "{daemons:#?}");
    assert!(!rig.scratch.home().join(".haskell-agent").exists());
}

#[test]
fn of_several_runs_at_once_one_starts_the_daemon_and_all_succeed() {
    let rig = Rig::new();
    let runs: Vec<Running> =
        (0..4).map(|_| Running::start(&mut run(&rig, &[], &["lines", "1"]))).collect();
    for running in runs {
        let done = running.finish();
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), "line 1\n"), "{done:?}");
    }
    wait_until("one daemon is left", PATIENCE, || rig.scratch.processes().len() == 1);
}

/// The environment is the submitting shell's, as far as the allowlist goes.
#[test]
fn the_agent_gets_the_shells_environment_and_no_secret_of_the_daemon() {
    let mut rig = Rig::new();
    let mut daemon = rig.ostler(["daemon"]);
    daemon.envs([("DATABASE_PASSWORD", "of-the-daemon"), ("HTTP_PROXY", "http://daemon")]);
    rig.start_daemon_with(daemon);

    let home = rig.scratch.path().join("other-home");
    fs::create_dir(&home).unwrap();
    let through = [
        ("LC_ALL", "C.UTF-8"),
        ("TZ", "Europe/Madrid"),
        ("https_proxy", "http://proxy:3128"),
        ("NO_PROXY", "localhost"),
        ("SSL_CERT_FILE", "/etc/ca.pem"),
        ("NODE_EXTRA_CA_CERTS", "/etc/extra.pem"),
        ("SSH_AUTH_SOCK", "/run/ssh"),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/bus"),
        ("XDG_DATA_HOME", "/data of mine"),
        ("TERM", "xterm-256color"),
        ("EDITOR", "ed -s"),
    ];
    let stopped = [
        ("CLAUDECODE", "1"),
        ("CLAUDE_CODE_ENTRYPOINT", "cli"),
        ("CLAUDE_CODE_SSE_PORT", "1"),
        ("OSTLER_LOG", "debug"),
        ("HASKELL_AGENT_CLI", "/bin/false"),
        ("AWS_SECRET_ACCESS_KEY", "of-the-shell"),
        ("ANTHROPIC_API_KEY", "of-another-agent"),
        ("RANDOM_VARIABLE", "x"),
    ];
    let mut command = run(&rig, &[], &["print-env"]);
    command.env("HOME", &home).envs(through).envs(stopped);
    let done = finish(&mut command);
    assert_eq!(done.code, Some(0), "{done:?}");
    let has = |line: &str| done.stdout.lines().any(|found| found == line);
    for (key, value) in through {
        assert!(has(&format!("{key}={value}")), "{key}: {}", done.stdout);
    }
    assert!(has(&format!("HOME={}", home.display())), "{}", done.stdout);
    assert!(has(&format!("PWD={}", rig.scratch.work().display())), "{}", done.stdout);
    let path = rig.scratch.env().into_iter().find(|(key, _)| key == "PATH").unwrap().1;
    assert!(has(&format!("PATH={}", path.to_str().unwrap())), "{}", done.stdout);
    for (key, _) in stopped {
        let found = done.stdout.lines().any(|line| line.starts_with(&format!("{key}=")));
        assert!(!found, "{key}: {}", done.stdout);
    }
    for secret in ["of-the-daemon", "http://daemon"] {
        assert!(!done.stdout.contains(secret), "{secret}: {}", done.stdout);
    }
    let ours = done.stdout.lines().filter_map(|line| line.split_once('='));
    let ours = ours
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("OSTLER_") || name.starts_with("HASKELL_AGENT_"));
    let ours: Vec<&str> = ours.collect();
    assert_eq!(ours, ["HASKELL_AGENT_RUNTIME_DIR", "OSTLER_HOME", "OSTLER_RUN"], "{}", done.stdout);
}

/// the prompt is in no file, also when the program prints it.
#[test]
fn r_81_the_prompt_is_in_no_file() {
    let rig = Rig::serving();
    rig.scratch.install("agent-cli", &rig.agent);
    let prompt = "echo-prompt wibble-wobble-zebra-crossing";
    let done = finish(&mut rig.ostler(["run", "--id", "quiet", prompt]));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("[task input redacted]"), "{done:?}");
    let mut command = run(&rig, &["--id", "input"], &["read-stdin"]);
    finish_with_input(&mut command, b"wibble-wobble-zebra-crossing");
    for dir in [rig.scratch.runtime_dir(), rig.scratch.ostler_home()] {
        let found = rig.files_with(&dir, "zebra");
        assert!(found.is_empty(), "{found:?}");
    }
    assert!(!rig.daemon_log().contains("zebra"));
}
