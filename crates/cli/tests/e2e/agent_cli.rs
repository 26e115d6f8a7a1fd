//! The original's `agent-cli`: found, called and judged as the original daemon does it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use ostler_proto::framed::{FailureClass, Submit, Task, TaskStatus};
use serde_json::Value;

use crate::rig::{Rig, finish, finish_with_input, is};

/// A rig with `agent-cli` on the `PATH`.
fn rig() -> Rig {
    let rig = Rig::serving();
    rig.scratch.install("agent-cli", &rig.agent);
    rig
}

/// Submits over the wire as the original's clients do, without any field of ours but `extra`'s.
fn submit(rig: &Rig, id: &str, prompt: &str, extra: impl FnOnce(&mut Submit)) -> Task {
    let cwd = rig.scratch.work().to_str().unwrap().to_owned();
    let mut submit =
        Submit { task_id: id.to_owned(), prompt: prompt.to_owned(), cwd, ..Submit::default() };
    extra(&mut submit);
    let wire = rig.wire();
    wire.block_on(wire.client.submit(submit)).expect("an answer");
    rig.settled(id)
}

/// The arguments that the fake printed, the prompt hidden.
fn arguments(rig: &Rig, id: &str) -> Vec<String> {
    let logs = rig.logs(id);
    let quoted = logs.lines().filter(|line| line.starts_with('"'));
    quoted.map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// in this order, and exactly what was submitted.
#[test]
fn r_69_r_72_the_arguments_are_the_originals() {
    let rig = rig();
    let work = rig.scratch.work().to_str().unwrap().to_owned();
    let hidden = "[task input redacted]".to_owned();
    let prompt = "echo-args of a plain run";
    let plain = submit(&rig, "plain", prompt, |_| {});
    assert!(is(&plain, TaskStatus::Completed), "{plain:?}");
    assert_eq!(
        arguments(&rig, "plain"),
        ["--prompt", &hidden, "--save-session", "--no-yolo", "--cwd", &work]
    );
    let record: Value =
        serde_json::from_slice(&fs::read(rig.run_dir("plain").join("run.json")).unwrap()).unwrap();
    assert_eq!(record["argv"][1], hidden);
    assert_eq!(record["prompt_bytes"], prompt.len());

    submit(&rig, "all", "echo-args with everything", |submit| {
        submit.session_id = Some("a session".to_owned());
        submit.provider = Some("vendor".to_owned());
        submit.model = Some("model-1".to_owned());
        submit.effort = Some("high".to_owned());
    });
    assert_eq!(
        arguments(&rig, "all"),
        [
            "--prompt",
            &hidden,
            "--save-session",
            "--no-yolo",
            "--resume",
            "a session",
            "--cwd",
            &work,
            "--provider",
            "vendor",
            "--model",
            "model-1",
            "--effort",
            "high",
        ]
    );
    submit(&rig, "tree", "echo-args in a worktree", |submit| submit.worktree = true);
    assert_eq!(arguments(&rig, "tree").last().unwrap(), "--worktree");
    // Also with full permissions it is not let loose.
    submit(&rig, "full", "echo-args at full power", |submit| {
        submit.permissions = Some(ostler_proto::framed::Permissions::Full);
        submit.agent = Some("agent_cli".to_owned());
    });
    assert!(arguments(&rig, "full").contains(&"--no-yolo".to_owned()));
}

/// one argument, unchanged, whatever is in it.
#[test]
fn r_68_a_prompt_arrives_as_it_was_written() {
    let rig = rig();
    for (n, prompt) in
        ["--resume x", "\"q\" '$(touch pwned)' `touch pwned`", "two\nrows\n\ttab", "-"]
            .into_iter()
            .enumerate()
    {
        // Short enough to be shown: a prompt below 16 characters is hidden only as a whole line.
        let prompt = format!("{prompt} write-file:ran-{n}");
        let mut command = rig.ostler(["run", "--id", &format!("p{n}"), "-"]);
        let done = finish_with_input(&mut command, prompt.as_bytes());
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(rig.scratch.work().join(format!("ran-{n}")).exists(), "{prompt}");
    }
    assert!(!rig.scratch.work().join("pwned").exists());
}

/// the variable of the daemon wins over the `PATH`.
#[test]
fn r_05_haskell_agent_cli_names_the_program() {
    let mut rig = Rig::new();
    let named = rig.scratch.path().join("somewhere-else");
    std::os::unix::fs::symlink(&rig.agent, &named).unwrap();
    fs::write(rig.scratch.bin().join("agent-cli"), "#!/bin/sh\nexit 77\n").unwrap();
    let mut daemon = rig.ostler(["daemon"]);
    daemon.env("HASKELL_AGENT_CLI", &named);
    rig.start_daemon_with(daemon);
    let task = submit(&rig, "t", "hello", |_| {});
    assert!(is(&task, TaskStatus::Completed), "{task:?}");
    assert_eq!(task.receipt.unwrap().agent, "agent_cli");
    rig.stop_daemon();

    // It is this one or none.
    let mut daemon = rig.ostler(["daemon"]);
    daemon.env("HASKELL_AGENT_CLI", rig.scratch.path().join("missing"));
    rig.start_daemon_with(daemon);
    let task = submit(&rig, "u", "hello", |_| {});
    let failure = task.failure.expect("a failure");
    assert_eq!((task.status, failure.class), (TaskStatus::Failed, FailureClass::NotInstalled));
    assert!(failure.message.contains("missing"), "{failure:?}");
}

///
#[test]
fn r_70_r_78_input_is_closed_and_the_status_is_the_last_line() {
    let rig = rig();
    let task = submit(&rig, "in", "read-stdin", |_| {});
    assert!(task.log_tail.contains(&"stdin: 0 bytes".to_owned()), "{task:?}");
    let task = submit(&rig, "bad", "lines:2 exit:3", |_| {});
    assert!(is(&task, TaskStatus::Failed), "{task:?}");
    assert_eq!(task.log_tail.last().unwrap(), "agent-cli exited with status 3");
    assert_eq!(task.failure.unwrap().class, FailureClass::ExitStatus);
}

/// the deadline ends a run that ignores TERM, too.
#[test]
fn r_73_the_deadline_ends_the_run() {
    let rig = rig();
    let began = Instant::now();
    let task = submit(&rig, "t", "ignore-term spawn-tool never-end", |submit| {
        submit.timeout_seconds = Some(1);
    });
    rig.assert_nothing_runs();
    // The tool would live for two minutes.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    let failure = task.failure.expect("a failure");
    assert_eq!((task.status, failure.class), (TaskStatus::Failed, FailureClass::Timeout));
    assert_eq!(failure.message, "agent-cli exceeded its 1 second runtime limit");
    assert_eq!(task.log_tail.last(), Some(&failure.message));
}

/// one full stream does not block the other, in either direction.
#[test]
fn r_74_stdout_and_stderr_are_read_side_by_side() {
    let rig = rig();
    let task = submit(&rig, "t", "stderr:200000 lines:3 stderr:3", |_| {});
    assert!(is(&task, TaskStatus::Completed), "{task:?}");
    assert!(task.receipt.unwrap().output_bytes > 2_000_000);
    assert!(task.log_tail.len() <= 500);
}

/// more than 64 MiB from one stream is no success.
#[test]
fn r_75_a_stream_above_64_mib_fails_the_task() {
    let rig = Rig::serving();
    let script = format!("#!/bin/sh\nexec fake-agent long-line {} --stay\n", 65 << 20);
    let program = rig.scratch.bin().join("agent-cli");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let task = submit(&rig, "t", "hello", |_| {});
    rig.assert_nothing_runs();
    assert!(is(&task, TaskStatus::Failed), "{task:?}");
    assert_eq!(task.failure.unwrap().class, FailureClass::TruncatedOutput);
}

/// after the leader's exit the pipes are drained for a second, then everybody is ended.
#[test]
fn r_76_descendants_that_hold_the_pipes_are_ended() {
    let rig = rig();
    let began = Instant::now();
    let task = submit(&rig, "t", "spawn-tool", |_| {});
    rig.assert_nothing_runs();
    assert!(began.elapsed() >= Duration::from_secs(1), "the pipes were not drained");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(is(&task, TaskStatus::Completed), "{task:?}");
    assert_eq!(task.receipt.unwrap().killed.len(), 1);
}

/// what can be run again, and with what.
#[test]
fn r_62_r_63_r_64_a_retry_runs_the_original_input() {
    let rig = rig();
    let first = submit(&rig, "bad", "echo-prompt lines:1 exit:3", |_| {});
    assert_eq!(first.attempt, 1);
    let retry = |id: &str| finish(&mut rig.ostler(["task", "retry", id]));
    assert_eq!(retry("bad").code, Some(0));
    let second = rig.wire().until("bad", |task| task.attempt == 2 && task.status.is_settled());
    assert_eq!(second.log_tail.last().unwrap(), "agent-cli exited with status 3");
    let logs = finish(&mut rig.ostler(["task", "logs", "bad", "--attempt", "1"]));
    assert!(logs.stdout.contains("line 1"), "{logs:?}");

    submit(&rig, "good", "lines:1", |_| {});
    let refused = retry("good");
    assert_eq!(refused.code, Some(4), "{refused:?}");
    let said = "completed tasks cannot be retried; task input has been discarded";
    assert!(refused.stderr.contains(said), "{refused:?}");
}
