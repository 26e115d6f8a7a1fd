//! Tests of the configuration.

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Utf8Path::new("/c/config.toml"))
}

fn message(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_defaults_are_the_documented_numbers_and_within_their_ranges() {
    let config = parse("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.wire.frame_bytes_max, 1_048_576);
    assert_eq!((config.wire.frame_deadline_seconds, config.wire.heartbeat_seconds), (30, 15));
    assert_eq!((config.wire.silent_client_seconds, config.wire.command_queue_max), (30, 1_024));
    assert_eq!(config.wire.live_backlog_bytes_max, 67_108_864);
    assert_eq!((config.tasks.limit, config.tasks.timeout_seconds), (4, 21_600));
    assert_eq!((config.tasks.live_max, config.tasks.log_lines_max), (1_000, 500));
    assert_eq!(config.tasks.log_chars_max, 256_000);
    assert_eq!((config.journal.events_max, config.journal.events_bytes_max), (10_000, 16_777_216));
    assert_eq!(config.journal.snapshot_bytes_max, 67_108_864);
    assert_eq!((config.archive.tasks_max, config.archive.days_max), (100_000, 180));
    assert_eq!((config.runs.bytes_max, config.runs.days_max), (21_474_836_480, 90));
    assert_eq!(config.runs.run_bytes_max, 1_073_741_824);
    assert_eq!(config.runs.run_head_bytes_max, 67_108_864);
    assert_eq!(config.runs.statement_grace_seconds, 10);
    assert!(config.keep.is_empty() && config.default_agent.is_none());
}

#[test]
fn what_a_file_says_is_taken_and_the_rest_keeps_its_default() {
    let config = parse(
        r#"
        default_agent = "claude"
        keep = ["tmux"]
        [tasks]
        limit = 8
        [agents.claude_code]
        program = "/opt/claude"
        silence_seconds = 900
        [agents.agent_cli]
        program = "agent-cli-2"
        "#,
    )
    .unwrap();
    assert_eq!(config.default_agent.as_deref(), Some("claude_code"), "aliases become ids");
    assert_eq!(config.keep, ["tmux"]);
    assert_eq!(config.tasks, Tasks { limit: 8, ..Tasks::default() });
    let claude = &config.agents["claude_code"];
    assert_eq!(claude.program.as_deref(), Some(Utf8Path::new("/opt/claude")));
    assert_eq!(claude.silence_seconds, Some(900));
    assert_eq!(config.agents["agent_cli"].program.as_deref(), Some(Utf8Path::new("agent-cli-2")));
}

#[test]
fn unknown_keys_are_errors_that_say_what_was_meant() {
    let error = parse("limit = 3\n[wire]\nheartbeat_secs = 9\n[agents.claude_code]\nprogramm = 'x'\n[colours]\nred = 1")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "/c/config.toml has unknown keys: agents.claude_code.programm, colours, limit, wire.heartbeat_secs"
    );
    let hint = error.hint();
    for meant in [
        "instead of limit did you mean tasks.limit?",
        "instead of wire.heartbeat_secs did you mean wire.heartbeat_seconds?",
        "instead of agents.claude_code.programm did you mean agents.claude_code.program?",
    ] {
        assert!(hint.contains(meant), "{hint}");
    }
    assert!(!hint.contains("colours"), "{hint}");
}

#[test]
fn every_number_is_held_to_its_range_and_all_wrong_ones_are_named() {
    assert_eq!(
        message("[tasks]\nlimit = 33\nlive_max = 0"),
        "/c/config.toml: tasks.limit is 33, and must be from 1 to 32; tasks.live_max is 0, and must be from 1 to 10000"
    );
    let silence = message("[agents.claude_code]\nsilence_seconds = 0");
    assert!(silence.contains("agents.claude_code.silence_seconds is 0"), "{silence}");
    for (section, keys) in SECTIONS {
        for key in keys {
            let error = message(&format!("[{section}]\n{key} = 0"));
            assert!(error.contains(&format!("{section}.{key} is 0")), "{error}");
        }
    }
}

#[test]
fn numbers_that_do_not_go_together_are_refused() {
    let error = message("[wire]\nheartbeat_seconds = 30");
    assert!(
        error.contains("wire.heartbeat_seconds must be below wire.silent_client_seconds"),
        "{error}"
    );
    let error = message("[runs]\nrun_bytes_max = 1048576");
    assert!(error.contains("runs.run_head_bytes_max must be below runs.run_bytes_max"), "{error}");
}

#[test]
fn agents_must_exist_and_their_programs_must_be_findable() {
    let error = message("default_agent = 'claude_cod'");
    assert!(
        error.contains("there is no agent \"claude_cod\"; did you mean \"claude_code\"?"),
        "{error}"
    );
    let error = message("[agents.claude]\nprogram = 'x'");
    assert!(error.contains("did you mean \"claude_code\"?"), "{error}");
    let error = message("[agents.wolfgang]");
    assert!(error.contains("there are command, agent_cli, claude_code"), "{error}");
    for program in ["bin/claude", "./claude", "~/claude", ""] {
        let error = message(&format!("[agents.claude_code]\nprogram = '{program}'"));
        assert!(error.contains("neither an absolute path nor a name"), "{error}");
    }
    for keep in ["['/usr/bin/tmux']", "['']"] {
        assert!(message(&format!("keep = {keep}")).contains("keep: must be"));
    }
}

#[test]
fn bad_toml_and_wrong_types_name_the_line() {
    for text in
        ["[tasks]\nlimit = ", "[tasks]\nlimit = 'four'", "[tasks]\nlimit = -1", "a = 1\na = 2"]
    {
        let error = parse(text).unwrap_err();
        assert!(matches!(error, ConfigError::Syntax { .. }), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("line 2"), "{source}");
    }
}

#[test]
fn an_empty_text_is_the_defaults() {
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn the_example_in_the_documentation_is_valid() {
    let source = include_str!("../config.rs");
    let example: String = source
        .lines()
        .skip_while(|line| *line != "//! ```toml")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .map(|line| line.strip_prefix("//!").unwrap_or_default().to_owned() + "\n")
        .collect();
    let config = parse(&example).unwrap();
    assert_eq!((config.tasks.limit, config.keep.len(), config.agents.len()), (8, 2, 1));
}
