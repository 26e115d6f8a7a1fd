//! Recorded runs, read again: what the reader shows, and what it concludes.
//!
//! `transcripts/<agent>/<case>.{stdout,stderr,meta.json}`: the bytes of a real run (of the fake
//! ones, where no real one can be had), how it ended, and what must come of it. Claude Code's were
//! recorded with the arguments in the meta file, the prompt on standard input, a home and a
//! directory under `/tmp`, and `CLAUDE_CODE_MAX_RETRIES=1`, against a scripted model. With
//! `OSTLER_UPDATE_TRANSCRIPTS=1` the expectations are written instead of compared; read the
//! difference before it is committed.

#![allow(missing_docs)]
// Helpers of tests fail like tests.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ostler_agents::{
    Agent, AgentEvent, Conclusion, LaunchRequest, REDACTED_PROMPT, REGISTRY, Status, Stream, find,
};
use ostler_core::outcome::{Exit, FailureClass};
use ostler_core::task::Permissions;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

struct Transcript {
    agent: &'static dyn Agent,
    case: String,
    meta_path: PathBuf,
    meta: Map<String, Value>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn transcripts() -> &'static [Transcript] {
    static ALL: LazyLock<Vec<Transcript>> = LazyLock::new(read_transcripts);
    &ALL
}

fn read_transcripts() -> Vec<Transcript> {
    let mut all = Vec::new();
    for agent in REGISTRY {
        let folder = folder().join(agent.id());
        for name in names(&folder) {
            let Some(case) = name.strip_suffix(".meta.json") else {
                continue;
            };
            let bytes = |kind: &str| fs::read(folder.join(format!("{case}.{kind}"))).unwrap();
            all.push(Transcript {
                agent: *agent,
                case: format!("{}/{case}", agent.id()),
                meta: serde_json::from_slice(&bytes("meta.json")).unwrap(),
                meta_path: folder.join(&name),
                stdout: bytes("stdout"),
                stderr: bytes("stderr"),
            });
        }
    }
    all
}

fn transcript(case: &str) -> &'static Transcript {
    transcripts().iter().find(|transcript| transcript.case == case).unwrap()
}

impl Transcript {
    fn exit(&self) -> Option<Exit> {
        let number = |key: &str| self.meta["exit"].get(key)?.as_i64().map(|n| n as i32);
        number("code").map(Exit::Code).or_else(|| number("signal").map(Exit::Signal))
    }

    /// Reads the run, with stdout cut at `cuts`.
    fn read(&self, stdout: &[u8], cuts: &[usize]) -> (Vec<AgentEvent>, Conclusion) {
        let (mut reader, mut events, mut start) = (self.agent.reader(), Vec::new(), 0);
        for end in cuts.iter().copied().chain([stdout.len()]) {
            reader.push(Stream::Stdout, &stdout[start..end], &mut events);
            start = end;
        }
        reader.push(Stream::Stderr, &self.stderr, &mut events);
        reader.finish_streams(&mut events);
        let conclusion = reader.conclude(self.exit(), self.meta["stopped"] == true);
        (events, conclusion)
    }
}

/// Everything that came of a run, in the form the expectations are kept in.
fn outcome(events: &[AgentEvent], conclusion: &Conclusion) -> Value {
    let mut lines = Vec::new();
    let mut others = Vec::new();
    for event in events {
        match event {
            AgentEvent::Line(line) => lines.push(line.clone()),
            other => others.push(format!("{other:?}")),
        }
    }
    let failure = conclusion.failure.as_ref().map(|failure| {
        json!({"class": failure.class.as_str(), "message": failure.message,
               "retry_at": failure.retry_at.map(|at| at.as_micros())})
    });
    json!({
        "status": if conclusion.status == Status::Completed { "completed" } else { "failed" },
        "failure": failure,
        "proof": conclusion.proof.map(|proof| proof.as_str()),
        "statement": conclusion.statement,
        "session_id": conclusion.session_id,
        "text": conclusion.text,
        "usage": conclusion.usage.map(|usage| format!("{usage:?}")),
        "cost_micros": conclusion.cost_micros.map(|cost| format!("{cost:?}")),
        "denials": conclusion.denials,
        "version": conclusion.version,
        "unknown_lines": conclusion.unknown_lines,
        "events": others,
        "lines": lines,
    })
}

#[test]
fn every_transcript_gives_what_it_is_known_to_give() {
    let update = std::env::var_os("OSTLER_UPDATE_TRANSCRIPTS").is_some();
    let mut wrong = Vec::new();
    for transcript in transcripts() {
        let (events, conclusion) = transcript.read(&transcript.stdout, &[]);
        let found = outcome(&events, &conclusion);
        if update {
            let mut meta = transcript.meta.clone();
            meta.insert("expect".to_owned(), found);
            let text = serde_json::to_string_pretty(&meta).unwrap();
            fs::write(&transcript.meta_path, text + "\n").unwrap();
        } else if transcript.meta.get("expect") != Some(&found) {
            wrong.push(format!("{}: {found:#}", transcript.case));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn folder_registry_and_transcripts_agree() {
    let ids: BTreeSet<String> = REGISTRY.iter().map(|agent| agent.id().to_owned()).collect();
    let sources = names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let files = sources.iter().filter_map(|name| name.strip_suffix(".rs")).map(str::to_owned);
    assert_eq!(files.filter(|name| name != "lib").collect::<BTreeSet<_>>(), ids);
    assert_eq!(names(&folder()), ids);
    for agent in REGISTRY {
        let all = transcripts();
        let own = || all.iter().filter(|transcript| transcript.agent.id() == agent.id());
        for kind in ["success", "failure", "garbage", "killed"] {
            assert!(own().any(|t| t.meta["kind"] == kind), "{} has no {kind}", agent.id());
        }
        assert!(own().all(|t| t.meta["about"].is_string() && t.meta["recorded"].is_string()));
        for name in agent.aliases().iter().chain([&agent.id()]) {
            assert_eq!(find(name).unwrap().id(), agent.id());
        }
    }
}

#[test]
fn transcripts_carry_nothing_of_the_machine_they_were_recorded_on() {
    for transcript in transcripts() {
        let text = String::from_utf8_lossy(&transcript.stdout).into_owned()
            + &String::from_utf8_lossy(&transcript.stderr);
        for part in ["/root", "/work/", "/home/", "localhost"] {
            assert!(!text.contains(part), "{} contains {part}", transcript.case);
        }
        assert!(transcript.stdout.len() < 16_384, "{} is large", transcript.case);
    }
}

#[test]
fn r_78_a_failure_always_says_why_and_a_success_always_has_its_proof() {
    for transcript in transcripts() {
        let (_, conclusion) = transcript.read(&transcript.stdout, &[]);
        assert_eq!(conclusion.failure.is_some(), conclusion.status == Status::Failed);
        let proven = conclusion.proof.is_some();
        assert!(proven || conclusion.status == Status::Failed, "{}", transcript.case);
    }
}

/// What success rests on: each of these alone takes it away.
#[test]
fn success_needs_the_whole_positive_statement() {
    let success = transcript("claude_code/success");
    let text = String::from_utf8(success.stdout.clone()).unwrap();
    let (before, result) = text.trim_end().rsplit_once('\n').unwrap();
    let read = |result: &str| success.read(format!("{before}\n{result}\n").as_bytes(), &[]).1;
    assert_eq!(read(result).status, Status::Completed);
    for (from, to) in [
        (r#""is_error":false"#, r#""is_error":true"#),
        (r#""is_error":false"#, r#""is_error":"false""#),
        (r#""is_error":false"#, r#""was_error":false"#),
        (r#""terminal_reason":"completed""#, r#""terminal_reason":"api_error""#),
        (r#""terminal_reason":"completed""#, r#""terminal_reason":"something_new""#),
        (r#""subtype":"success""#, r#""subtype":"error_during_execution""#),
        (r#""type":"result""#, r#""type":"results""#),
        (r#""type":"result""#, r#""type":"result","type":"result""#),
        ("}", ""),
    ] {
        let changed = match from {
            "}" => result.strip_suffix('}').unwrap().to_owned(),
            from => result.replacen(from, to, 1),
        };
        assert_ne!(changed, result, "{from}");
        assert_eq!(read(&changed).status, Status::Failed, "{from} -> {to}");
    }
    // An older one gives no reason for its end; the rest is enough.
    let older = result.replacen(r#""terminal_reason":"completed","#, "", 1);
    assert_eq!(read(&older).status, Status::Completed);
    // Fields of a strange shape spoil nothing else.
    let strange = result
        .replacen(r#""usage":{"#, r#""usage":7,"a":{"#, 1)
        .replacen(
            r#""model_usage_since_last_result":{"#,
            r#""model_usage_since_last_result":7,"b":{"#,
            1,
        )
        .replacen(r#""permission_denials":[]"#, r#""permission_denials":{"a":[1]}"#, 1);
    let conclusion = read(&strange);
    assert_eq!((conclusion.status, conclusion.usage), (Status::Completed, None));
    assert_eq!(conclusion.cost_micros, None);
}

#[test]
fn a_stream_that_ends_early_is_never_a_success() {
    let success = transcript("claude_code/success");
    let whole = success.stdout.len();
    for end in (0..whole - 2).step_by(7).chain([whole - 2]) {
        let (_, conclusion) = success.read(&success.stdout[..end], &[]);
        assert_eq!(conclusion.status, Status::Failed, "cut at {end}");
        let class = conclusion.failure.unwrap().class;
        let known = [FailureClass::TruncatedOutput, FailureClass::EmptyOutput];
        assert!(known.contains(&class), "cut at {end}: {class:?}");
    }
}

#[test]
fn a_result_stands_when_the_agent_lingers_and_is_ended() {
    let success = transcript("claude_code/success");
    let mut reader = success.agent.reader();
    let mut events = Vec::new();
    assert!(reader.terminal().is_none());
    reader.push(Stream::Stdout, &success.stdout, &mut events);
    assert!(reader.terminal().is_some_and(|terminal| terminal.success));
    for (exit, stopped, completed) in [
        (Some(Exit::Signal(9)), true, true),
        (Some(Exit::Code(143)), true, true),
        (None, true, true),
        (Some(Exit::Code(1)), false, false),
    ] {
        let mut reader = success.agent.reader();
        reader.push(Stream::Stdout, &success.stdout, &mut events);
        reader.finish_streams(&mut events);
        let conclusion = reader.conclude(exit, stopped);
        assert_eq!(conclusion.status == Status::Completed, completed, "{exit:?}");
    }
}

#[test]
fn work_after_a_result_withdraws_it() {
    let success = transcript("claude_code/success");
    let first = success.stdout.split_inclusive(|byte| *byte == b'\n').nth(1).unwrap();
    let (_, conclusion) = success.read(&[&success.stdout[..], first].concat(), &[]);
    assert_eq!(conclusion.failure.unwrap().class, FailureClass::TruncatedOutput);
    // A second result is the one that counts, and the usage is the sum.
    let twice = [&success.stdout[..], &success.stdout[..]].concat();
    let (_, conclusion) = success.read(&twice, &[]);
    assert_eq!(conclusion.status, Status::Completed);
    assert_eq!(conclusion.usage.unwrap().input_tokens, Some(608));
    assert_eq!(conclusion.cost_micros.unwrap().amount, 4_637);
}

#[test]
fn the_cost_of_a_session_is_never_taken_for_the_cost_of_a_run() {
    let resume = transcript("claude_code/resume");
    let text = String::from_utf8(resume.stdout.clone()).unwrap();
    assert!(text.contains(r#""total_cost_usd":0.0044"#));
    let (_, conclusion) = resume.read(&resume.stdout, &[]);
    assert_eq!(conclusion.cost_micros.unwrap().amount, 2_086);
    // Without its own figure there is none to report: the total counts the run before as well.
    let older = text.replace("model_usage_since_last_result", "something_else");
    assert_eq!(resume.read(older.as_bytes(), &[]).1.cost_micros, None);
    // Where the models' tokens are the run's own, so is the total.
    let success = transcript("claude_code/success");
    let text = String::from_utf8(success.stdout.clone()).unwrap();
    let older = text.replace("model_usage_since_last_result", "something_else");
    assert_eq!(success.read(older.as_bytes(), &[]).1.cost_micros.unwrap().amount, 2_318);
}

#[test]
fn an_overlong_line_is_counted_and_the_run_read_on() {
    let success = transcript("claude_code/success");
    let mut stdout = br#"{"type":"user","message":""#.to_vec();
    stdout.resize(9 * 1_024 * 1_024, b'x');
    stdout.push(b'\n');
    stdout.extend_from_slice(&success.stdout);
    let (events, conclusion) = success.read(&stdout, &[]);
    assert_eq!(conclusion.status, Status::Completed);
    assert!(events.contains(&AgentEvent::Overlong { bytes: 9 * 1_024 * 1_024 }));
}

/// Every string of a value, keys too.
fn strings(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => drop(found.insert(text.clone())),
        Value::Array(items) => items.iter().for_each(|item| strings(item, found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                found.insert(key.clone());
                strings(value, found);
            }
        }
        _ => {}
    }
}

/// A short prompt is replaced where it is a whole JSON string. When it is a word of the stream
/// itself, that must not turn a success into a failure.
#[test]
fn r_81_no_prompt_is_replaced_where_the_statement_rests_on_the_word() {
    let success = transcript("claude_code/success");
    let text = String::from_utf8(success.stdout.clone()).unwrap();
    let mut words = BTreeSet::new();
    for line in text.lines() {
        strings(&serde_json::from_str(line).unwrap(), &mut words);
    }
    let redacted = format!("\"{REDACTED_PROMPT}\"");
    for word in words.iter().filter(|word| !word.is_empty()) {
        let scrubbed = text.replace(&serde_json::to_string(word).unwrap(), &redacted);
        let (_, conclusion) = success.read(scrubbed.as_bytes(), &[]);
        if conclusion.status == Status::Failed || conclusion.text.is_none() {
            let request = LaunchRequest {
                prompt: word,
                argv: &[],
                cwd: "/proj".into(),
                resume: None,
                provider: None,
                model: None,
                effort: None,
                worktree: false,
                permissions: Permissions::Safe,
                budget_micros: None,
                is_root: false,
                executable: PathBuf::new(),
            };
            assert!(!success.agent.launch(&request).unwrap().scrub, "{word} is replaced");
        }
    }
}

#[test]
fn raw_json_is_never_shown() {
    for transcript in transcripts().iter().filter(|t| t.agent.id() == "claude_code") {
        for event in transcript.read(&transcript.stdout, &[]).0 {
            let AgentEvent::Line(line) = event else {
                continue;
            };
            assert!(!line.contains(r#""session_id""#) && !line.contains(r#""type""#), "{line}");
        }
    }
}

fn any_transcript() -> impl Strategy<Value = (usize, Vec<prop::sample::Index>)> {
    (0..transcripts().len(), prop::collection::vec(any::<prop::sample::Index>(), 0..24))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn r_74_any_cut_of_the_stream_gives_the_same((index, places) in any_transcript()) {
        let transcript = &transcripts()[index];
        let mut cuts: Vec<usize> =
            places.iter().map(|place| place.index(transcript.stdout.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = transcript.read(&transcript.stdout, &[]);
        prop_assert_eq!(transcript.read(&transcript.stdout, &cuts), whole);
    }

    #[test]
    fn damaged_transcripts_never_panic_and_never_prove_more(
        (index, places) in any_transcript(), bytes in prop::collection::vec(any::<u8>(), 24)
    ) {
        let transcript = &transcripts()[index];
        let mut stdout = transcript.stdout.clone();
        for (place, byte) in places.iter().zip(bytes) {
            if !stdout.is_empty() {
                let place = place.index(stdout.len());
                stdout[place] = byte;
            }
        }
        let whole = transcript.read(&transcript.stdout, &[]).1;
        let damaged = transcript.read(&stdout, &[]).1;
        prop_assert!(whole.status == Status::Completed || damaged.status == Status::Failed);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
        ostler_agents::fuzzing::fuzz_readers(&bytes);
    }

    #[test]
    fn random_text_with_json_in_it_never_panics(text in r#"([{}\[\]",:0-9a-z\\\n ]|"type":"(result|assistant|system|user)"|"message":|"content":\[|"usage":){0,80}"#) {
        ostler_agents::fuzzing::fuzz_readers(text.as_bytes());
    }
}
