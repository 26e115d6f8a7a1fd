//! The gate at its bounds, and the parser against mutated input.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use ostler_proto::framed::{
    ClientMessage, Command, Decision, MessageError, Permissions, RawCommand, Submit, fuzzing,
};
use proptest::prelude::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

fn parse_text(text: &str) -> Result<Command, String> {
    Command::parse(&RawCommand::from_raw(RawValue::from_string(text.to_owned()).unwrap()))
}

fn parse(command: &Value) -> Result<Command, String> {
    parse_text(&command.to_string())
}

fn submit_with(field: &str, value: Value) -> Value {
    let mut command =
        json!({"version": 1, "type": "submit", "task_id": "t", "prompt": "p", "cwd": "/"});
    command[field] = value;
    command
}

fn submit(command: &Value) -> Submit {
    match parse(command) {
        Ok(Command::Submit(submit)) => submit,
        other => panic!("{other:?} from {command}"),
    }
}

/// `max` characters pass, with white space around them too; one more does not.
fn bound(max: usize, error: &str, command: impl Fn(&str) -> Value) {
    for letter in ["x", "é", "😀"] {
        let most = letter.repeat(max);
        parse(&command(&most)).unwrap();
        parse(&command(&format!(" \t{most}\u{2003}\n"))).unwrap();
        assert_eq!(parse(&command(&format!("{most}{letter}"))), Err(error.into()));
    }
}

#[test]
fn r_52_ids_have_256_characters() {
    let command = |kind: &str, field: &str, id: &str| {
        let mut command = json!({"version": 1, "type": kind, "task_id": "t", "prompt": "p", "cwd": "/",
            "approval_id": "a", "decision": "deny"});
        command[field] = json!(id);
        command
    };
    for kind in ["submit", "cancel", "retry", "approval"] {
        bound(256, "task_id is longer than 256 characters", |id| command(kind, "task_id", id));
    }
    bound(256, "session_id is longer than 256 characters", |id| {
        command("submit", "session_id", id)
    });
    bound(256, "approval_id is longer than 256 characters", |id| {
        command("approval", "approval_id", id)
    });
}

#[test]
fn r_53_a_prompt_has_8192_characters_or_512_kib_with_an_agent() {
    bound(8192, "prompt is longer than 8192 characters", |text| submit_with("prompt", json!(text)));
    let with_agent = |bytes: usize| {
        let mut command = submit_with("prompt", json!("x".repeat(bytes)));
        command["agent"] = json!("claude_code");
        parse(&command)
    };
    with_agent(512 * 1024).unwrap();
    assert_eq!(with_agent(512 * 1024 + 1), Err("prompt is longer than 524288 bytes".into()));
}

#[test]
fn r_54_the_other_texts_have_their_bounds() {
    bound(4096, "cwd is longer than 4096 characters", |text| submit_with("cwd", json!(text)));
    bound(64, "effort is longer than 64 characters", |text| submit_with("effort", json!(text)));
    bound(64, "agent is longer than 64 characters", |text| submit_with("agent", json!(text)));
    let pair = |provider: &str, model: &str| {
        let mut command = submit_with("provider", json!(provider));
        command["model"] = json!(model);
        command
    };
    bound(128, "provider is longer than 128 characters", |text| pair(text, "m"));
    bound(256, "model is longer than 256 characters", |text| pair("p", text));
}

#[test]
fn r_55_r_56_r_57_combinations_that_pass() {
    let both =
        submit(&json!({"version": 1, "type": "submit", "task_id": " t ", "prompt": "\n p q ",
        "cwd": " /a b ", "provider": "p", "model": "m", "session_id": "s", "worktree": false}));
    assert_eq!((both.task_id.as_str(), both.prompt.as_str()), ("t", "p q"));
    assert_eq!((both.cwd.as_str(), both.session_id.as_deref()), ("/a b", Some("s")));
    let fresh = submit(&submit_with("worktree", json!(true)));
    assert!(fresh.worktree && fresh.session_id.is_none());
    for field in [
        "session_id",
        "provider",
        "model",
        "effort",
        "worktree",
        "agent",
        "argv",
        "env",
        "timeout_seconds",
        "budget_micros",
        "permissions",
    ] {
        assert_eq!(submit(&submit_with(field, Value::Null)), submit(&submit_with("x", json!(1))));
    }
}

#[test]
fn r_66_the_three_spellings_of_a_decision() {
    for (text, decision) in [
        ("approve", Decision::Approve),
        ("deny", Decision::Deny),
        ("approve_session", Decision::ApproveSession),
    ] {
        let command = json!({"version": 1, "type": "approval", "task_id": "t", "approval_id": "a",
            "decision": text});
        let (task_id, approval_id) = ("t".into(), "a".into());
        assert_eq!(parse(&command), Ok(Command::Approval { task_id, approval_id, decision }));
    }
}

#[test]
fn limits_and_our_own_fields() {
    for limit in [1, 32] {
        let command = json!({"version": 1, "type": "set_limit", "limit": limit});
        assert_eq!(parse(&command), Ok(Command::SetLimit { limit }));
    }
    assert_eq!(
        submit(&submit_with("timeout_seconds", json!(2_592_000))).timeout_seconds,
        Some(2_592_000)
    );
    assert_eq!(
        submit(&submit_with("budget_micros", json!(i64::MAX))).budget_micros,
        Some(i64::MAX as u64)
    );
    assert_eq!(
        submit(&submit_with("permissions", json!("ask"))).permissions,
        Some(Permissions::Ask)
    );
    let env = |bytes: usize| parse(&submit_with("env", json!({"N": "x".repeat(bytes - 3)})));
    env(512 * 1024).unwrap();
    assert_eq!(env(512 * 1024 + 1), Err("env is longer than 524288 bytes".into()));
    let argv = |bytes: usize| {
        let mut command = submit_with("argv", json!(["x", "y".repeat(bytes - 3)]));
        command["agent"] = json!("command");
        parse(&command)
    };
    argv(256 * 1024).unwrap();
    assert_eq!(argv(256 * 1024 + 1), Err("argv is longer than 262144 bytes".into()));
}

#[test]
fn a_program_gets_its_input_as_it_came_or_none() {
    let mut command = submit_with("prompt", json!(" line\n"));
    command["agent"] = json!("command");
    command["argv"] = json!(["cat"]);
    assert_eq!(submit(&command).prompt, " line\n");
    command["prompt"] = json!("");
    assert_eq!(submit(&command).prompt, "");
    command.as_object_mut().unwrap().remove("prompt");
    assert_eq!(submit(&command).prompt, "");
}

#[test]
fn depth_in_a_command_is_answered_and_in_the_frame_ends_it() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let command = |depth: usize| format!(r#"{{"version":1,"type":"list","x":{}}}"#, nested(depth));
    assert_eq!(parse_text(&command(127)), Ok(Command::List));
    assert_eq!(parse_text(&command(128)), Err("command is nested too deeply".into()));
    let framed = format!(r#"{{"type":"command","id":"a","command":{}}}"#, command(100_000));
    let Ok(ClientMessage::Command { command, .. }) = ClientMessage::parse(framed.as_bytes()) else {
        panic!("the frame is good");
    };
    assert_eq!(Command::parse(&command), Err("command is nested too deeply".into()));
    let frame = |depth: usize| format!(r#"{{"type":"ack","sequence":1,"x":{}}}"#, nested(depth));
    assert!(ClientMessage::parse(frame(127).as_bytes()).is_ok());
    for depth in [128, 500_000] {
        let error = ClientMessage::parse(frame(depth).as_bytes());
        assert!(matches!(error, Err(MessageError::TooDeep)), "{error:?}");
    }
}

#[test]
fn r_29_text_that_is_not_json_or_not_utf8() {
    for body in [
        &b""[..],
        b" ",
        b"{",
        b"nul",
        b"GET / HTTP/1.1\r\n",
        b"{\"type\":\"ack\",\"sequence\":1}x",
        b"{\"type\":\"ack\",\"sequence\":1,}",
        b"{\"type\":\"ack\",\"sequence\":01}",
        b"{'type':'ack'}",
        b"\xef\xbb\xbf{\"type\":\"ack\",\"sequence\":1}",
        b"{\"type\":\"ack\",\"sequence\":1,\"x\":\"\xff\"}",
        b"{\"type\":\"command\",\"id\":\"\xc3\",\"command\":{}}",
        b"{\"type\":\"ack\",\"sequence\":1e0}",
        b"{\"type\":\"command\",\"id\":\"a\",\"command\":{]}",
        b"{\"type\":\"\\ud800\"}",
        b"{\"type\":\"ack\",\"sequence\":18446744073709551616}",
        b"{\"type\":\"hello\",\"hello\":[\"c\",[3],null]}",
        b"{\"type\":\"ack\",\"sequence\":1,\"x\":\"\n\"}",
    ] {
        let error = ClientMessage::parse(body);
        let text = String::from_utf8_lossy(body);
        assert!(matches!(error, Err(MessageError::Malformed(_))), "{text}: {error:?}");
    }
}

#[test]
fn unknown_fields_white_space_and_escapes_are_no_fault() {
    for body in [
        " {\"type\":\"ack\",\"sequence\":42}\n",
        "{\"sequence\":42,\"x\":[1e400,{\"sequence\":1}],\"type\":\"ack\",\"id\":7,\"hello\":3}",
        "{\"\\u0074ype\":\"\\u0061ck\",\"sequence\":42}",
    ] {
        let message = ClientMessage::parse(body.as_bytes()).unwrap();
        assert_eq!(message, ClientMessage::Ack { sequence: 42 });
    }
    let most = format!("{{\"type\":\"pong\",\"sequence\":{}}}", u64::MAX);
    let message = ClientMessage::parse(most.as_bytes()).unwrap();
    assert_eq!(message, ClientMessage::Pong { sequence: u64::MAX });
}

#[test]
fn an_id_that_could_fill_the_answer_ends_the_connection() {
    let body = |bytes: usize| {
        format!(r#"{{"type":"command","id":"{}","command":{{}}}}"#, "x".repeat(bytes))
    };
    assert!(ClientMessage::parse(body(4096).as_bytes()).is_ok());
    let error = ClientMessage::parse(body(4097).as_bytes());
    assert!(matches!(error, Err(MessageError::TooLong("id"))), "{error:?}");
}

#[test]
fn debug_shows_no_input() {
    let mut command = submit_with("prompt", json!("SECRET-1"));
    command["agent"] = json!("command");
    command["argv"] = json!(["SECRET-2"]);
    command["env"] = json!({"NAME": "SECRET-3"});
    let framed = json!({"type": "command", "id": "a", "command": command}).to_string();
    let message = ClientMessage::parse(framed.as_bytes()).unwrap();
    let shown = format!("{message:?} {:?}", submit(&command));
    assert!(shown.contains("NAME") && !shown.contains("SECRET"), "{shown}");
}

fn golden_texts() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let files = std::fs::read_dir(folder).unwrap();
    files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
}

fn fuzz_all(bytes: &[u8]) {
    fuzzing::fuzz_client_message(bytes);
    fuzzing::fuzz_command(bytes);
    fuzzing::fuzz_server_message(bytes);
    fuzzing::fuzz_document(bytes);
    fuzzing::fuzz_assembler(bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_return(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz_all(&bytes);
    }

    #[test]
    fn json_like_text_returns(text in "[\\[\\]{}:,\"\\\\ a-c0-9.eu+-]{0,120}") {
        fuzz_all(text.as_bytes());
    }

    #[test]
    fn mutated_goldens_return(
        pick in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 1..8),
        other in any::<prop::sample::Index>(),
    ) {
        let goldens = golden_texts();
        let mut text = pick.get(&goldens).clone();
        for (at, byte, how) in edits {
            let at = at.index(text.len() + 1);
            match how {
                0 => text.insert(at, byte),
                1 => text.truncate(at),
                2 if at < text.len() => text[at] = byte,
                _ => { text.splice(at..at, other.get(&goldens).iter().take(200).copied()); }
            }
        }
        fuzz_all(&text);
    }

    #[test]
    fn what_passes_the_gate_passes_it_again(
        id in "\\PC{0,20}", prompt in any::<String>(), cwd in "/[^\u{0}]{0,20}",
        worktree: bool, agent in prop::option::of("[a-z_]{1,9}"), seconds in prop::option::of(0_u64..9),
        env in prop::collection::btree_map("[A-Z]{1,3}", "\\PC{0,9}", 0..4),
    ) {
        let mut command = json!({"version": 1, "type": "submit", "task_id": id, "prompt": prompt,
            "cwd": cwd, "worktree": worktree, "env": env});
        if let Some(agent) = &agent { command["agent"] = json!(agent); }
        if let Some(seconds) = seconds { command["timeout_seconds"] = json!(seconds); }
        if let Ok(first) = parse(&command) {
            let again = parse_text(RawCommand::new(&first).unwrap().get());
            prop_assert_eq!(again, Ok(first));
        }
    }

    /// Compared with what serde_json makes of the same text: a value parsed to a map loses keys exactly when
    /// one is there twice.
    #[test]
    fn duplicate_keys_are_found_exactly(value in json_tree()) {
        let (text, duplicate) = value;
        let frame = format!(r#"{{"type":"ack","sequence":1,"x":{text}}}"#);
        match ClientMessage::parse(frame.as_bytes()) {
            Ok(_) => prop_assert!(!duplicate, "{}", frame),
            Err(MessageError::DuplicateKey) => prop_assert!(duplicate, "{}", frame),
            Err(other) => prop_assert!(false, "{other:?} for {frame}"),
        }
    }
}

/// JSON text with keys from a small set in several spellings, and whether one is there twice.
fn json_tree() -> impl Strategy<Value = (String, bool)> {
    let leaf = prop_oneof![
        Just(("1".to_owned(), false)),
        Just((r#""{\"a\":[,\\""#.to_owned(), false)),
        Just(("null".to_owned(), false)),
    ];
    let key = prop::sample::select(vec![
        ("a", "\"a\""),
        ("a", "\"\\u0061\""),
        ("b", "\"b\""),
        ("é", "\"é\""),
        ("é", "\"\\u00E9\""),
        ("\"", "\"\\\"\""),
        ("", "\"\""),
        ("command", "\"command\""),
    ]);
    leaf.prop_recursive(5, 40, 5, move |inner| {
        let members = prop::collection::vec((key.clone(), inner.clone()), 0..5);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|items| {
                let texts: Vec<_> = items.iter().map(|item| item.0.as_str()).collect();
                (format!("[ {} ]", texts.join(" , ")), items.iter().any(|item| item.1))
            }),
            members.prop_map(|members| {
                let names: std::collections::BTreeSet<_> = members.iter().map(|m| m.0.0).collect();
                let texts: Vec<_> =
                    members.iter().map(|((_, key), (text, _))| format!("{key} : {text}")).collect();
                let twice = names.len() < members.len() || members.iter().any(|m| m.1.1);
                (format!("{{ {} }}", texts.join(",")), twice)
            }),
        ]
    })
}
