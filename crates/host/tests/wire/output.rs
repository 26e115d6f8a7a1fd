//! What clients see of a run's output.

use std::time::Instant;

use serde_json::{Value, json};

use ostler_core::outcome::{Failure, FailureClass, GitChange, Killed};
use ostler_core::task::{EndStatus, RunEnd};

use super::commands::files;
use super::raw::submit;
use super::rig::Rig;
use super::runner::{AT_ONCE, end};

const DROP_MARK: &str = "[output truncated: scheduler log queue was full]";

fn tail(task: &Value) -> Vec<String> {
    let lines = task["logTail"].as_array().unwrap().iter();
    lines.map(|line| line.as_str().unwrap().to_owned()).collect()
}

/// R-75: 500 lines.
#[test]
fn r_75_the_tail_keeps_the_last_500_lines() {
    let rig = Rig::new();
    let mut raw = rig.client();
    rig.running(&mut raw, "t");
    for n in 0..700 {
        rig.runner.line("t", &format!("line {n}"));
        if n % 100 == 99 {
            // What waits is taken before the next command, so that the queue is never full.
            raw.list();
        }
    }
    rig.runner.complete("t");
    let shown = tail(&raw.until_status("t", "TaskCompleted"));
    let expected: Vec<_> = (200..700).map(|n| format!("line {n}")).collect();
    assert_eq!(shown, expected);
}

/// R-75: 256,000 characters, whatever their bytes.
#[test]
fn r_75_the_tail_keeps_the_last_256_000_characters() {
    let rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    let id = mirror.raw.command(&submit("t"));
    mirror.raw.result(&id).unwrap();
    rig.runner.wait_started("t", 1);
    for n in 0..300 {
        rig.runner.line("t", &format!("{n:04}{}", "é".repeat(996)));
    }
    rig.runner.complete("t");
    mirror.until_status("t", "TaskCompleted");
    let shown = tail(&mirror.known.tasks["t"]);
    assert_eq!(shown.iter().map(|line| line.chars().count()).sum::<usize>(), 256_000);
    assert!(shown[0].starts_with("0044") && shown[255].starts_with("0299"));
}

/// Output alone makes one event a second at most; each change of state comes at once.
#[test]
fn output_alone_makes_at_most_one_event_a_second() {
    let rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    let id = mirror.raw.command(&submit("t"));
    mirror.raw.result(&id).unwrap();
    mirror.until_status("t", "TaskRunning");
    rig.runner.wait_started("t", 1);
    let begin = Instant::now();
    let running = |mirror: &super::mirror::Mirror| {
        mirror.statuses("t").iter().filter(|status| **status == "TaskRunning").count() - 1
    };
    // A writer that never pauses, until three events have come.
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (log, stopped) = (rig.runner.log("t"), stop.clone());
    let writer = std::thread::spawn(move || {
        let mut lines = 0;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            log.line(&format!("line {lines}"));
            lines += 1;
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        lines
    });
    while running(&mirror) < 3 {
        assert!(mirror.take());
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let lines = writer.join().unwrap();
    rig.runner.line("t", "the very last");
    rig.runner.complete("t");
    mirror.until_status("t", "TaskCompleted");
    let seconds = begin.elapsed().as_secs_f64();
    let events = running(&mirror);
    assert!(events as f64 <= seconds + 1.0, "{events} events in {seconds} s");
    assert!(lines > 1_000, "{lines} lines");
    let last = tail(&mirror.known.tasks["t"]);
    assert_eq!(
        last.last().unwrap(),
        "the very last",
        "the change of state carries the tail as of then"
    );
    assert!(last.contains(&format!("line {}", lines - 1)));
}

/// A quiet run's first line is shown at once, its next when its second is over, without another line.
#[test]
fn output_within_the_second_is_told_when_it_is_over() {
    let rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    let id = mirror.raw.command(&submit("t"));
    mirror.raw.result(&id).unwrap();
    rig.runner.wait_started("t", 1);
    let shows = |mirror: &mut super::mirror::Mirror, line: &str| {
        mirror.until(|known| {
            known
                .tasks
                .get("t")
                .is_some_and(|task| task["logTail"].as_array().unwrap().iter().any(|it| it == line))
        });
    };
    rig.runner.line("t", "first");
    shows(&mut mirror, "first");
    rig.runner.line("t", "second");
    shows(&mut mirror, "second");
    assert_eq!(mirror.known.tasks["t"]["logTail"], json!(["first", "second"]));
}

/// R-77: one line of 1,500 pieces is more than the queue takes at once. The tail's characters are not
/// what bounds it here.
#[test]
fn r_77_dropped_lines_leave_one_mark_and_the_run_goes_on() {
    let rig = Rig::with(|settings| settings.tail.chars_max = 10_000_000);
    let mut raw = rig.client();
    rig.running(&mut raw, "t");
    rig.runner.log("t").line(&"x".repeat(4_096 * 1_500));
    rig.runner.line("t", "goes on");
    assert_eq!(raw.task("t")["status"], "TaskRunning");
    rig.runner.line("t", "and on");
    rig.runner.complete("t");
    raw.until_status("t", "TaskCompleted");
    // Whole in a snapshot; a list may leave lines out.
    let mirror = rig.mirror().opened();
    let shown = tail(&mirror.known.tasks["t"]);
    assert_eq!(shown.iter().filter(|line| *line == DROP_MARK).count(), 1);
    assert_eq!(shown[shown.len() - 2..], ["goes on", "and on"]);
}

/// R-78
#[test]
fn r_78_the_reason_of_a_failure_is_the_last_line() {
    let rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    let id = mirror.raw.command(&submit("t"));
    mirror.raw.result(&id).unwrap();
    rig.runner.wait_started("t", 1);
    rig.runner.line("t", "before");
    rig.runner.fail("t", "agent-cli exited with status 3");
    mirror.until_status("t", "TaskFailed");
    let task = &mirror.known.tasks["t"];
    assert_eq!(task["logTail"], json!(["before", "agent-cli exited with status 3"]));
    let failure = json!({"class": "exit_status", "message": "agent-cli exited with status 3"});
    assert_eq!(task["failure"], failure);
    assert_eq!(task["receipt"]["verdict"], "failed");
}

/// R-78: also when it never said anything.
#[test]
fn r_78_a_silent_failure_has_the_reason_as_its_only_line() {
    let rig = Rig::new();
    let mut raw = rig.client();
    rig.running(&mut raw, "t");
    rig.runner.fail("t", "agent-cli exited with status 3");
    let failed = raw.until_status("t", "TaskFailed");
    assert_eq!(failed["logTail"], json!(["agent-cli exited with status 3"]));
}

const PROMPT: &str = "Rewrite the \"billing\" module\nand never mention it — ünïcode";

fn contains(haystack: &[u8], needle: &str) -> bool {
    memchr::memmem::find(haystack, needle.as_bytes()).is_some()
}

/// R-81: while it runs, when it has failed, retried, completed, after restarts; as it is, as JSON, and as
/// JSON inside of JSON.
#[test]
fn r_81_the_prompt_is_in_no_file_and_no_message() {
    let mut rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    let mut command = submit("t");
    command["prompt"] = json!(PROMPT);
    let submitted = mirror.raw.call(&command).unwrap();
    assert_eq!(submitted["task"]["description"], "[task input redacted]");
    rig.runner.wait_started("t", 1);
    let quoted = json!(PROMPT).to_string();
    let event = json!({"type": "user", "text": PROMPT}).to_string();
    let mut sent = Vec::new();
    let say = |rig: &Rig| {
        rig.runner.line("t", &format!("I was asked: {PROMPT} and so on"));
        rig.runner.line("t", &format!("as JSON {quoted}"));
        rig.runner.line("t", &event);
        rig.runner.line("t", "harmless");
    };
    say(&rig);
    rig.runner.fail("t", &format!("it could not do {PROMPT}"));
    mirror.until_status("t", "TaskFailed");
    assert!(tail(&mirror.known.tasks["t"]).contains(&"harmless".to_owned()));
    let redacted = tail(&mirror.known.tasks["t"]);
    let redacted = redacted.iter().filter(|line| line.contains("[task input redacted]"));
    assert!(redacted.count() >= 3, "{:?}", tail(&mirror.known.tasks["t"]));
    let looked_at = |rig: &Rig, sent: &[u8]| {
        let mut places = files(rig.folder());
        places.insert("what was sent".to_owned(), sent.to_vec());
        assert!(places.keys().any(|name| name.contains("segment")), "{:?}", places.keys());
        // Neither whole nor in the part that needs no escaping.
        for (place, bytes) in &places {
            for needle in ["never mention it", "Rewrite the "] {
                let at = memchr::memmem::find(bytes, needle.as_bytes());
                let around =
                    at.map(|at| String::from_utf8_lossy(&bytes[at.saturating_sub(200)..at + 100]));
                assert_eq!(around, None, "the prompt is in {place}");
            }
        }
    };
    sent.extend(mirror.raw.received.iter());
    looked_at(&rig, &sent);
    mirror.raw.on("retry", "t").unwrap();
    rig.runner.wait_started("t", 2);
    say(&rig);
    let mut at_once = submit("u");
    at_once["prompt"] = json!(AT_ONCE);
    mirror.raw.call(&at_once).unwrap();
    looked_at(&rig, &mirror.raw.received);
    rig.runner.complete("t");
    mirror.until_status("t", "TaskCompleted");
    mirror.raw.list();
    looked_at(&rig, &mirror.raw.received);
    rig.stop();
    looked_at(&rig, &[]);
    rig.start();
    let mut mirror = super::mirror::Mirror::connect(&rig.socket(), Some(Default::default()));
    mirror.raw.list();
    looked_at(&rig, &mirror.raw.received);
    let opened = rig.mirror().opened();
    looked_at(&rig, &opened.raw.received);
}

/// A failure that says this wherever it can say something.
fn said_everywhere(words: &str) -> RunEnd {
    let failure = Failure::new(FailureClass::Unknown, words);
    let mut end = end(EndStatus::Failed, Some(failure));
    end.outcome.text = Some(words.to_owned());
    let receipt = &mut end.outcome.receipt;
    receipt.statement = Some(words.to_owned());
    receipt.agent_version = Some(words.to_owned());
    receipt.denials.push(words.to_owned());
    receipt.killed.push(Killed { pid: 7, argv0: words.to_owned(), after: words.to_owned() });
    end
}

/// R-81: a prompt longer than any piece of a line, in the words of a runner that hides nothing itself.
#[test]
fn r_81_a_long_prompt_is_hidden_also_where_a_line_is_cut() {
    let mut rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    let words: String = (0..900).map(|n| format!("w{n:05}\n")).collect();
    let prompt = words.trim();
    let mut command = submit("t");
    command["prompt"] = json!(prompt);
    mirror.raw.call(&command).unwrap();
    rig.runner.wait_started("t", 1);
    rig.runner.line("t", &format!("{}{prompt} and so on", "x".repeat(3_000)));
    rig.runner.line("t", &json!({"type": "user", "text": prompt}).to_string());
    rig.runner.end("t", said_everywhere(&format!("it could not do {prompt}, sorry")));
    mirror.until_status("t", "TaskFailed");
    let task = mirror.known.tasks["t"].clone();
    let shown = tail(&task);
    assert!(shown[0].ends_with("xxx[task input redacted] and so on"));
    assert_eq!(shown[1], r#"{"type":"user","text":"[task input redacted]"}"#);
    let hidden = "it could not do [task input redacted], sorry";
    assert_eq!(
        (&task["failure"]["message"], &task["receipt"]["text"]),
        (&json!(hidden), &json!(hidden))
    );
    assert_eq!(task["receipt"]["statement"], hidden);
    assert_eq!(task["receipt"]["denials"], json!([hidden]));
    rig.stop();
    let mut places = files(rig.folder());
    places.insert("what was sent".to_owned(), mirror.raw.received);
    for (place, bytes) in &places {
        assert!(!contains(bytes, "w00450"), "the prompt is in {place}");
    }
}

/// R-88: whatever a runner says at the end of its run, the daemon goes on.
#[test]
fn r_88_an_oversized_end_is_cut_and_nothing_fails() {
    let mut rig = Rig::new();
    let mut raw = rig.client();
    rig.running(&mut raw, "t");
    let mut oversized = said_everywhere(&"\u{1}".repeat(3 * 1024 * 1024));
    let receipt = &mut oversized.outcome.receipt;
    let long = "é".repeat(1024 * 1024);
    (receipt.agent, receipt.session_id) = (long.clone(), Some(long.clone()));
    let head = Some(long);
    receipt.git =
        Some(GitChange { head_before: head.clone(), head_after: head, ..GitChange::default() });
    receipt.denials = vec!["\u{1}".repeat(1_000); 10_000];
    let word = "é".repeat(2_000);
    receipt.kept = vec![Killed { pid: 7, argv0: word.clone(), after: word }; 1_000];
    rig.runner.end("t", oversized);
    let is_cut = |task: &Value| {
        let receipt = &task["receipt"];
        assert_eq!(receipt["truncated"], true);
        assert_eq!(receipt["text"].as_str().unwrap().len(), 65_536);
        assert!((1..=100).contains(&receipt["denials"].as_array().unwrap().len()));
        assert!(!task["failure"]["message"].as_str().unwrap().is_empty());
    };
    let mut mirror = rig.mirror().opened();
    mirror.until_status("t", "TaskFailed");
    is_cut(&mirror.known.tasks["t"]);
    rig.running(&mut raw, "next");
    rig.runner.complete("next");
    raw.until_status("next", "TaskCompleted");
    rig.kill_and_start();
    let mut mirror = rig.mirror().opened();
    mirror.until_status("t", "TaskFailed");
    is_cut(&mirror.known.tasks["t"]);
}

/// Secrets that lines name are in no message and no file.
#[test]
fn secrets_in_log_lines_are_redacted_everywhere() {
    let mut rig = Rig::new();
    let mut mirror = rig.mirror().opened();
    mirror.raw.submit("t").unwrap();
    rig.runner.wait_started("t", 1);
    for line in [
        "Authorization: Bearer hunter2",
        "export API_KEY=hunter2",
        "password=hunter2",
        r#"{"tool":"x","input":{"access_token":"hunter2"},"input_tokens":17}"#,
    ] {
        rig.runner.line("t", line);
    }
    rig.runner.fail("t", "secret=hunter2");
    mirror.until_status("t", "TaskFailed");
    let shown = tail(&mirror.known.tasks["t"]);
    assert_eq!(shown.len(), 5);
    assert!(shown[3].contains("17"), "numbers are no secrets: {}", shown[3]);
    rig.stop();
    assert!(!contains(&mirror.raw.received, "hunter2"), "{}", mirror.known.tasks["t"]);
    for (name, bytes) in files(rig.folder()) {
        assert!(!contains(&bytes, "hunter2"), "in {name}");
    }
}
