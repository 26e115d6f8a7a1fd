//! Agents that misbehave: whatever they do, the task ends as what it is and nothing of it is left.

use std::fs;
use std::time::{Duration, Instant};

use ostler_proto::framed::{Exit, FailureClass, Task, TaskStatus, Verdict};
use ostler_testkit::process::{Process, find_by_argv, wait_for, wait_until};
use rustix::process::Signal;

use crate::rig::{PATIENCE, Rig, Running, finish, is};

/// What is killed is named with what it did not obey.
fn killed(task: &Task) -> Vec<(&str, &str)> {
    let receipt = task.receipt.as_ref().expect("a receipt");
    let name = |argv0: &'static str| move |path: &str| path.ends_with(argv0).then_some(argv0);
    let short = |path: &str| {
        ["fake-agent", "exe", "sleep", "sh"].into_iter().find_map(|known| name(known)(path))
    };
    receipt
        .killed
        .iter()
        .map(|one| (short(&one.argv0).unwrap_or("?"), one.after.as_str()))
        .collect()
}

/// Starts it, waits for `text`, cancels, and checks that the end is prompt and complete.
fn cancelled(rig: &Rig, id: &str, args: &[&str], text: &str) -> Task {
    rig.detach(id, args);
    rig.printed(id, text);
    cancel_promptly(rig, id)
}

fn cancel_promptly(rig: &Rig, id: &str) -> Task {
    let began = Instant::now();
    let task = rig.cancel(id);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    rig.assert_nothing_runs();
    assert!(is(&task, TaskStatus::Cancelled), "{task:?}");
    assert_eq!(task.receipt.as_ref().unwrap().verdict, Verdict::Cancelled);
    task
}

#[test]
fn r_61_one_that_ignores_term_is_killed() {
    let rig = Rig::serving();
    let task = cancelled(&rig, "t", &["ignore-term"], "ignoring TERM");
    assert_eq!(killed(&task), [("fake-agent", "term")]);
    assert_eq!(task.receipt.unwrap().exit, Some(Exit::Signal(9)));
    assert!(rig.logs("t").contains("ignored a signal"), "it got TERM first");
}

#[test]
fn one_that_obeys_term_is_not_killed_and_says_its_last_words() {
    let rig = Rig::serving();
    let task = cancelled(&rig, "t", &["exit-on-term", "7"], "waiting for TERM");
    assert_eq!(killed(&task), []);
    assert_eq!(task.receipt.as_ref().unwrap().exit, Some(Exit::Code(7)));
    assert_eq!(rig.logs("t"), "waiting for TERM\ngot TERM\n");
}

/// what holds the pipes after the leader's exit is ended; the leader's status decides.
#[test]
fn r_76_children_left_behind_are_ended_and_the_leaders_status_stands() {
    let rig = Rig::serving();
    let began = Instant::now();
    for (id, args, after) in [
        ("a", vec!["fork-and-leave"], "exit"),
        ("b", vec!["fork-and-leave", "--ignore-term"], "term"),
        ("c", vec!["double-fork-setsid"], "exit"),
        ("d", vec!["double-fork-setsid", "--ignore-term", "--empty-env", "--detached"], "term"),
    ] {
        let mut args = args;
        args.extend(["--token", rig.scratch.token()]);
        rig.detach(id, &args);
        let task = rig.settled(id);
        // What has an empty environment still says the token in its arguments.
        assert_eq!(find_by_argv("__hold").len() + left_with_token(&rig), 0);
        rig.assert_nothing_runs();
        assert!(is(&task, TaskStatus::Completed), "{task:?}");
        assert_eq!(killed(&task), [("exe", after)], "{args:?}");
        let receipt = task.receipt.unwrap();
        assert_eq!(receipt.verdict, Verdict::SucceededWithWarnings);
        assert_eq!(receipt.exit, Some(Exit::Code(0)));
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

fn left_with_token(rig: &Rig) -> usize {
    let mut found = find_by_argv(rig.scratch.token());
    found.retain(|process| process.argv.iter().any(|word| word.starts_with("__tool")));
    found.len()
}

/// The shell tools of real CLIs run in sessions of their own: a signal to the group never reaches them.
#[test]
fn a_tool_in_its_own_session_is_gone_when_cancelled_is_said() {
    let rig = Rig::serving();
    let task = cancelled(&rig, "t", &["spawn-tool", "--ignore-term"], "tool pid=");
    assert!(killed(&task).contains(&("exe", "term")), "{task:?}");
    let line = rig.logs("t");
    let pid = line.trim().rsplit_once('=').unwrap().1.parse().unwrap();
    assert_eq!(Process::read(pid), None, "the tool");
}

#[test]
fn a_fork_storm_is_ended_while_it_rages() {
    let rig = Rig::serving();
    let task = cancelled(&rig, "t", &["fork-storm", "8", "5", "--stay"], "storm of 8");
    assert!(!killed(&task).is_empty(), "{task:?}");
    // The daemon is well.
    let done = finish(&mut rig.ostler(["run", "--", "echo", "well"]));
    assert_eq!(done.stdout, "well\n");
}

#[test]
fn one_that_closes_its_output_is_waited_for_and_cancelled() {
    let rig = Rig::serving();
    let task = cancelled(&rig, "t", &["close-stdout"], "closing");
    assert_eq!(task.receipt.unwrap().exit, Some(Exit::Signal(15)));
}

#[test]
fn one_that_prints_for_ever_is_cancelled_and_memory_stays_flat() {
    let rig = Rig::configured("[runs]\nrun_head_bytes_max = 1048576\nrun_bytes_max = 8388608\n");
    rig.detach("t", &["print-for-ever", "1000"]);
    let output = rig.run_dir("t").join("output");
    wait_until("more was printed than is kept", PATIENCE, || {
        let names = fs::read_dir(&output).into_iter().flatten().flatten();
        let starts = names.filter_map(|entry| {
            entry.file_name().to_str()?.strip_suffix(".log")?.parse::<u64>().ok()
        });
        starts.max().unwrap_or(0) > 12 << 20
    });
    let private = private_kib(rig.daemon().pid);
    assert!(private < 48 << 10, "{private} KiB");
    let task = cancel_promptly(&rig, "t");
    let receipt = task.receipt.unwrap();
    assert!(receipt.truncated && receipt.output_bytes > 12 << 20, "{receipt:?}");
    assert!(task.log_tail.len() <= 500);
    let kept: u64 =
        fs::read_dir(&output).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(kept < 12 << 20, "{kept} bytes are kept");
    let logs = rig.logs("t");
    assert!(logs.starts_with("00000000"), "the beginning stays");
    assert!(logs.contains("bytes of output are no longer kept"), "the gap is told");
}

#[test]
fn one_that_prints_nothing_is_cancelled() {
    let rig = Rig::serving();
    rig.detach("t", &["print-nothing"]);
    rig.wire().until("t", |task| is(task, TaskStatus::Running));
    let task = cancel_promptly(&rig, "t");
    assert_eq!(task.receipt.unwrap().output_bytes, 0);
}

/// A stopped process takes no TERM; KILL it takes.
#[test]
fn one_that_was_stopped_is_cancelled() {
    let rig = Rig::serving();
    rig.detach("t", &["lines", "1", "--stay"]);
    rig.printed("t", "line 1");
    let agent = wait_for("the agent", PATIENCE, || {
        rig.run_processes().into_iter().find(|process| process.argv[0].ends_with("fake-agent"))
    });
    agent.signal(Signal::STOP);
    wait_until("it is stopped", PATIENCE, || {
        Process::read(agent.pid).is_some_and(|process| process.state == 'T')
    });
    let task = cancel_promptly(&rig, "t");
    assert_eq!(killed(&task), [("fake-agent", "term")]);
}

/// whatever the bytes are, they reach the run directory, and are safe to look at.
#[test]
fn invalid_utf_8_and_control_bytes_survive_and_are_shown_safely() {
    let rig = Rig::serving();
    rig.detach("u", &["invalid-utf8"]);
    let task = rig.settled("u");
    assert!(is(&task, TaskStatus::Completed), "{task:?}");
    assert_eq!(
        rig.raw_logs("u"),
        b"a\x80b\n\xc0\xaf\n\xed\xa0\x80\n\xff\xfe\0c\ncut \xf0\x9f\nwhole \xf0\x9f\x98\x80\n"
    );
    assert_eq!(
        task.log_tail.last().unwrap(),
        "whole \u{1f600}",
        "one character, cut in four writes"
    );
    assert_eq!(task.log_tail[0], "a\u{fffd}b");

    rig.detach("c", &["control-bytes"]);
    rig.settled("c");
    let all: Vec<u8> = (0..=255).filter(|byte| *byte != b'\n').chain([b'\n']).collect();
    assert_eq!(rig.raw_logs("c"), all);
    for shown in [rig.logs("c"), finish(&mut rig.ostler(["task", "show", "c"])).stdout] {
        let controls = shown.chars().filter(|c| c.is_control() && *c != '\n' && *c != '\t');
        assert_eq!(controls.count(), 0, "{shown:?}");
    }
}

/// 60 MiB without a line end reach the disk byte for byte, and the daemon does not grow with them.
#[test]
fn r_75_one_line_of_60_mib() {
    const BYTES: usize = 60 << 20;
    let rig = Rig::serving();
    let daemon = rig.daemon().pid;
    rig.detach("t", &["long-line", &BYTES.to_string()]);
    let mut wire = rig.wire();
    let mut peak = 0;
    // Each event of the run is a look at the daemon's memory; its output alone makes one a second.
    let task = wire.until("t", |task| {
        peak = peak.max(private_kib(daemon));
        task.status.is_settled()
    });
    peak = peak.max(private_kib(daemon));
    assert!(is(&task, TaskStatus::Completed), "{task:?}");
    assert_eq!(task.receipt.as_ref().unwrap().output_bytes, BYTES as u64 + 1);
    assert!(peak < 48 << 10, "{peak} KiB");
    assert!(task.log_tail.iter().all(|line| line.len() <= 4_096));
    let raw = rig.raw_logs("t");
    assert_eq!(raw.len(), BYTES + 1);
    let letters: Vec<u8> = (b'a'..=b'z').cycle().take(64 * 1024 / 26 * 26).collect();
    let (last, line) = raw.split_last().unwrap();
    assert_eq!(*last, b'\n');
    assert!(line.chunks(letters.len()).all(|chunk| letters.starts_with(chunk)), "the bytes differ");
}

/// Private memory of a process, in KiB.
fn private_kib(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let private = rollup.lines().filter(|line| line.starts_with("Private_"));
    let kib = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    private.filter_map(kib).sum()
}

#[test]
fn one_that_dies_at_once_failed() {
    let rig = Rig::serving();
    for (id, args, exit, class) in [
        ("k", vec!["die"], Exit::Signal(9), FailureClass::Signal),
        ("s", vec!["die", "ABRT"], Exit::Signal(6), FailureClass::Signal),
        ("e", vec!["exit", "9"], Exit::Code(9), FailureClass::ExitStatus),
    ] {
        rig.detach(id, &args);
        let task = rig.settled(id);
        assert!(is(&task, TaskStatus::Failed), "{task:?}");
        let failure = task.failure.unwrap();
        assert_eq!(failure.class, class, "{failure:?}");
        let receipt = task.receipt.unwrap();
        assert_eq!((receipt.exit, receipt.verdict), (Some(exit), Verdict::Failed));
        assert!(receipt.started_at.is_some());
    }
    rig.assert_nothing_runs();
}

/// The closing statement was made; an agent that does not exit is ended and the result stands.
#[test]
fn one_that_says_its_result_and_stays_is_ended_and_has_succeeded() {
    let rig = Rig::configured("[runs]\nstatement_grace_seconds = 1\n");
    rig.scratch.install("claude", &rig.agent);
    let mut command = rig.ostler(["run", "--json", "--id", "t", "-a", "claude"]);
    let began = Instant::now();
    let done = finish(command.arg("spawn-tool result-and-stay"));
    assert!(began.elapsed() >= Duration::from_secs(1), "it had no time to exit");
    rig.assert_nothing_runs();
    let lines = done.json_lines();
    let result = lines.last().unwrap();
    assert_eq!((done.code, result["status"].as_str()), (Some(0), Some("completed")), "{result}");
    assert_eq!(result["text"], "All done.");
    assert_eq!(result["receipt"]["proof"], "terminal_event");
    assert_eq!(result["receipt"]["agent_version"], "2.1.332");
}

/// A result that was said, and an exit status that is not 0: the statement decides, and it is told.
#[test]
fn success_is_a_statement_and_never_a_guess() {
    let rig = Rig::serving();
    rig.scratch.install("claude", &rig.agent);
    for (id, prompt, status) in [
        ("no", "no-result", "failed"),
        ("says", "fail:500", "failed"),
        ("good", "hello", "completed"),
    ] {
        let mut command = rig.ostler(["run", "--json", "--id", id, "-a", "claude", prompt]);
        let done = finish(&mut command);
        let lines = done.json_lines();
        assert_eq!(lines.last().unwrap()["status"], status, "{done:?}");
    }
    rig.assert_nothing_runs();
}

/// A silent agent is noticed: with a bound of its own that is said at half of it, and then it is ended as
/// `silent`.
#[test]
fn b2_14_a_silent_agent_is_told_of_and_ended_where_that_is_configured() {
    let rig = Rig::configured("[agents.command]\nsilence_seconds = 2\n");
    rig.detach("t", &["lines", "1", "--stay"]);
    let task = rig.settled("t");
    rig.assert_nothing_runs();
    assert!(is(&task, TaskStatus::Failed), "{task:?}");
    assert_eq!(task.failure.unwrap().class, FailureClass::Silent);
    let told = "[nothing was said for 1 seconds; after 2 the run is ended]";
    assert_eq!(task.log_tail, ["line 1", told, "command said nothing for 2 seconds"]);
}

/// What the keep-list names lives on, and the receipt says so.
#[test]
fn what_is_kept_on_purpose_lives_and_is_named() {
    let rig = Rig::configured("keep = [\"sleep\"]\n");
    let script = "setsid sleep 100 >/dev/null 2>&1 & echo started";
    let running = Running::start(&mut rig.ostler(["run", "--id", "t", "--", "sh", "-c", script]));
    let done = running.finish();
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "started\n"), "{done:?}");
    let receipt = rig.settled("t").receipt.unwrap();
    assert_eq!(receipt.kept.len(), 1, "{receipt:?}");
    assert!(receipt.kept[0].argv0.ends_with("sleep"));
    let pid = i32::try_from(receipt.kept[0].pid).unwrap();
    assert!(Process::read(pid).is_some_and(|process| !process.is_zombie()));
}
