//! Claude Code's stream where no recording shows it: limits, retries, helpers, hostile lines.

#![allow(missing_docs)]
// Helpers of tests fail like tests.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use ostler_agents::{AgentEvent, Conclusion, Stream, find};
use ostler_core::outcome::{Exit, FailureClass};

const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s-1","model":"m","claude_code_version":"2.1.332"}"#;
const TEXT: &str = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"Hello."}]},"session_id":"s-1","timestamp":"2026-11-30T09:40:44.262Z"}"#;

fn read(lines: &[&str], exit: Exit) -> (Vec<AgentEvent>, Conclusion) {
    let (mut reader, mut events) = (find("claude").unwrap().reader(), Vec::new());
    for line in lines {
        reader.push(Stream::Stdout, format!("{line}\n").as_bytes(), &mut events);
    }
    reader.finish_streams(&mut events);
    let conclusion = reader.conclude(Some(exit), false);
    (events, conclusion)
}

fn shown(events: &[AgentEvent]) -> Vec<&str> {
    let lines = events.iter().filter_map(|event| match event {
        AgentEvent::Line(line) => Some(line.as_str()),
        _ => None,
    });
    lines.collect()
}

fn class(conclusion: &Conclusion) -> FailureClass {
    conclusion.failure.as_ref().unwrap().class
}

fn api_error(status: &str, error: &str, text: &str) -> [String; 2] {
    let message = format!(
        r#"{{"type":"assistant","message":{{"content":[{{"type":"text","text":"{text}"}}]}},"error":"{error}"}}"#
    );
    let result = format!(
        r#"{{"type":"result","subtype":"success","is_error":true,"terminal_reason":"api_error","api_error_status":{status},"result":"{text}"}}"#
    );
    [message, result]
}

#[test]
fn every_error_of_the_api_has_its_class() {
    for (status, error, text, expected) in [
        ("401", "authentication_failed", "Invalid API key", "authentication"),
        ("403", "oauth_org_not_allowed", "no", "authentication"),
        ("null", "authentication_failed", "Not logged in", "authentication"),
        ("429", "rate_limit", "Request rejected (429)", "rate_limit"),
        ("429", "rate_limit", "You've hit your session limit · resets 2pm", "quota"),
        ("null", "rate_limit", "Claude AI usage limit reached|1749924000", "quota"),
        ("402", "billing_error", "pay", "quota"),
        ("400", "invalid_request", "Your credit balance is too low", "quota"),
        ("400", "invalid_request", "prompt is too long: 9 tokens", "context_overflow"),
        ("413", "invalid_request", "too large", "context_overflow"),
        ("404", "model_not_found", "no such model", "model"),
        ("500", "server_error", "oh", "model"),
        ("529", "overloaded", "Overloaded", "model"),
        ("502", "server_error", "Bad gateway", "network"),
        ("null", "unknown", "Unable to connect to API (ECONNREFUSED)", "network"),
        ("400", "invalid_request", "messages.3: bad", "unknown"),
    ] {
        let [message, result] = api_error(status, error, text);
        let (_, conclusion) = read(&[INIT, &message, &result], Exit::Code(1));
        assert_eq!(class(&conclusion).as_str(), expected, "{status} {error} {text}");
        assert!(conclusion.failure.unwrap().message.contains(text));
    }
}

#[test]
fn a_limit_says_when_it_ends() {
    let event = |status: &str| {
        format!(
            r#"{{"type":"rate_limit_event","rate_limit_info":{{"status":"{status}","resetsAt":1796140800,"rateLimitType":"five_hour"}}}}"#
        )
    };
    let [message, result] = api_error("429", "rate_limit", "Request rejected (429)");
    let (events, conclusion) = read(&[INIT, &event("rejected"), &message, &result], Exit::Code(1));
    let failure = conclusion.failure.unwrap();
    assert_eq!(failure.class, FailureClass::Quota);
    assert_eq!(failure.retry_at.unwrap().as_micros(), 1_796_140_800_000_000);
    assert!(shown(&events).contains(&"✗ the five_hour limit is reached"));
    // An event that only informs changes nothing.
    let (_, conclusion) = read(&[INIT, &event("allowed"), &message, &result], Exit::Code(1));
    let failure = conclusion.failure.unwrap();
    assert_eq!((failure.class, failure.retry_at), (FailureClass::RateLimit, None));
    // The words alone do, counted from the newest time in the stream.
    let [message, result] =
        api_error("429", "rate_limit", "You've hit your limit · resets 2pm (UTC)");
    let (_, conclusion) = read(&[INIT, TEXT, &message, &result], Exit::Code(1));
    assert_eq!(conclusion.failure.unwrap().retry_at.unwrap().as_micros(), 1_796_047_200_000_000);
}

#[test]
fn a_run_that_ends_while_retrying_says_what_it_was_retrying() {
    let retry = r#"{"type":"system","subtype":"api_retry","attempt":3,"max_retries":10,"retry_delay_ms":2345.6,"error_status":401,"error":"authentication_failed"}"#;
    let (events, conclusion) = read(&[INIT, retry], Exit::Signal(15));
    assert_eq!(class(&conclusion), FailureClass::Authentication);
    assert!(shown(&events).contains(&"↻ retry 3/10 in 2.3 s: authentication_failed (HTTP 401)"));
    let expected = AgentEvent::Retry {
        class: FailureClass::Authentication,
        message: "authentication_failed (HTTP 401)".to_owned(),
        delay_ms: Some(2_345),
    };
    assert!(events.contains(&expected));
    // Once it got on, the retry is forgotten.
    let (_, conclusion) = read(&[INIT, retry, TEXT], Exit::Signal(15));
    assert_eq!(class(&conclusion), FailureClass::Signal);
}

#[test]
fn exit_0_without_a_result_is_a_failure() {
    assert_eq!(class(&read(&[], Exit::Code(0)).1), FailureClass::EmptyOutput);
    assert_eq!(class(&read(&[INIT], Exit::Code(0)).1), FailureClass::EmptyOutput);
    assert_eq!(class(&read(&[INIT, TEXT], Exit::Code(0)).1), FailureClass::TruncatedOutput);
    assert_eq!(class(&read(&[INIT, TEXT], Exit::Code(7)).1), FailureClass::ExitStatus);
    assert_eq!(class(&read(&["All done!"], Exit::Code(0)).1), FailureClass::EmptyOutput);
}

#[test]
fn every_reason_for_an_end_that_is_no_completion_is_a_failure() {
    for (reason, expected) in [
        ("prompt_too_long", "context_overflow"),
        ("rapid_refill_breaker", "context_overflow"),
        ("max_turns", "budget"),
        ("budget_exhausted", "budget"),
        ("blocking_limit", "quota"),
        ("model_error", "model"),
        ("aborted_tools", "signal"),
        ("hook_stopped", "unknown"),
        ("something_new", "unknown"),
    ] {
        let result = format!(
            r#"{{"type":"result","subtype":"success","is_error":false,"terminal_reason":"{reason}","result":"x"}}"#
        );
        let (_, conclusion) = read(&[INIT, TEXT, &result], Exit::Code(0));
        assert_eq!(class(&conclusion).as_str(), expected, "{reason}");
        assert_eq!(conclusion.statement.as_deref(), Some(reason));
    }
}

#[test]
fn r_71_a_denial_fails_the_run_only_when_it_could_not_finish_without() {
    let denied = r#"{"type":"system","subtype":"permission_denied","tool_name":"Bash","tool_use_id":"t1","message":"needs approval"}"#;
    let result = |is_error: bool, text: &str| {
        format!(
            r#"{{"type":"result","subtype":"success","is_error":{is_error},"result":"{text}","permission_denials":[{{"tool_name":"Bash","tool_use_id":"t1"}},{{"tool_name":"Write","tool_use_id":"t2"}}]}}"#
        )
    };
    let (events, conclusion) = read(&[INIT, denied, TEXT, &result(false, "Hello.")], Exit::Code(0));
    assert_eq!(conclusion.failure, None);
    assert_eq!(conclusion.denials, ["Bash", "Write"]);
    let count = events.iter().filter(|event| matches!(event, AgentEvent::Denied { .. })).count();
    assert_eq!(count, 2);
    for (lines, exit) in [
        (vec![INIT, denied, &result(false, "")], 0),
        (vec![INIT, denied, TEXT, &result(true, "Hello.")], 1),
    ] {
        let (_, conclusion) = read(&lines, Exit::Code(exit));
        assert_eq!(class(&conclusion), FailureClass::PermissionDenied);
    }
    // An error of the API stays one.
    let [message, error] = api_error("401", "authentication_failed", "no");
    let (_, conclusion) = read(&[INIT, denied, &message, &error], Exit::Code(1));
    assert_eq!(class(&conclusion), FailureClass::Authentication);
}

#[test]
fn what_helpers_say_is_set_in_and_is_no_answer() {
    let helper = r#"{"type":"assistant","parent_tool_use_id":"t1","message":{"content":[{"type":"text","text":"mine\ntwo"},{"type":"tool_use","name":"Read","input":{"file_path":"a.rs","limit":3}}]}}"#;
    let (events, conclusion) = read(&[INIT, helper], Exit::Code(0));
    let lines = shown(&events);
    assert_eq!(lines.get(1..).unwrap(), ["  │ mine", "  │ two", "  │ ⏺ Read: a.rs"]);
    assert_eq!(conclusion.text, None);
}

#[test]
fn unknown_events_are_counted_and_change_nothing() {
    let result = r#"{"type":"result","subtype":"success","is_error":false,"result":"Hello."}"#;
    let odd = [
        r#"{"type":"hologram","x":[1,2]}"#,
        r#"{"type":"system","subtype":"dream"}"#,
        r#"{"type":7}"#,
        r#"{"type":"assistant","message":"#,
        r#"["a"]"#,
        "warning: something",
        "",
        r#"{"type":"stream_event","event":{}}"#,
    ];
    let lines: Vec<&str> = [INIT].into_iter().chain(odd).chain([TEXT, result]).collect();
    let (events, conclusion) = read(&lines, Exit::Code(0));
    assert_eq!(conclusion.failure, None);
    assert_eq!(conclusion.unknown_lines, 6);
    let lines = shown(&events);
    assert!(lines.contains(&"warning: something"));
    assert!(lines.contains(&"[an unreadable event of 30 bytes]"));
}

#[test]
fn a_long_answer_is_shown_up_to_a_bound_and_says_so() {
    let text = "line\\n".repeat(20_000);
    let long = TEXT.replace("Hello.", &text);
    let (events, _) = read(&[INIT, &long], Exit::Code(0));
    let lines = shown(&events);
    assert_eq!(lines.len(), 10_002);
    assert_eq!(lines.last(), Some(&"[10000 more lines of this answer]"));
    let summary = format!(
        r#"{{"type":"assistant","message":{{"content":[{{"type":"tool_use","name":"Bash","input":{{"command":"{}"}}}}]}}}}"#,
        "é".repeat(10_000)
    );
    let (events, _) = read(&[&summary], Exit::Code(0));
    assert!(shown(&events).concat().chars().count() < 220);
}

/// The most memory this process has had, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Lines of 1 MiB that hold as many values as can be, and one of 60 MiB: memory stays flat.
#[test]
fn r_75_hostile_lines_cost_little_more_than_themselves() {
    let bytes_max = ostler_agents::LINE_BYTES_MAX / 8;
    let (mut reader, mut events) = (find("claude").unwrap().reader(), Vec::new());
    let shapes = [
        (r#"{"type":"assistant","message":{"content":["#, "{},", "{}]}}"),
        (r#"{"type":"result","errors":["#, r#""","#, r#"""]}"#),
        (r#"{"type":"result","permission_denials":["#, "{},", "{}]}"),
        (r#"{"type":"result","modelUsage":{"#, r#""":{},"#, r#""":{}}}"#),
        (r#"{"type":"x","y":"#, "[", ""),
        (r#"{"type":"assistant","message":{"content":[{"type":"text","text":""#, "\\n", r#""}]}}"#),
    ];
    let (start, before) = (Instant::now(), peak_kib());
    for (head, item, tail) in shapes {
        let mut line = head.as_bytes().to_vec();
        line.reserve_exact(bytes_max - head.len());
        while line.len() + item.len() + tail.len() < bytes_max {
            line.extend_from_slice(item.as_bytes());
        }
        line.extend_from_slice(tail.as_bytes());
        line.push(b'\n');
        for piece in line.chunks(65_536) {
            reader.push(Stream::Stdout, piece, &mut events);
        }
        events.clear();
    }
    let piece = vec![b'x'; 65_536];
    for _ in 0..960 {
        reader.push(Stream::Stdout, &piece, &mut events);
    }
    // The buffer of the reader may grow to 8 MiB before it gives up a line, and be copied once.
    let grown = (peak_kib() - before) / 1_024;
    assert!(grown < 24, "{grown} MiB");
    assert!(start.elapsed().as_secs() < 60);
}
