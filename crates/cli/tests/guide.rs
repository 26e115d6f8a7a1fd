//! The operator's guide and the service unit say what is true: the commands they name exist, and the
//! unit does what the guide promises.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The commands after `ostler` in a page's code: words up to the first option, argument or symbol.
fn commands(page: &str) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    let mut is_block = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
            continue;
        }
        let codes: Vec<&str> =
            if is_block { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
        for code in codes {
            for (at, _) in code.match_indices("ostler ") {
                let is_word = code[..at].chars().next_back().is_none_or(|c| " \t&|;(".contains(c));
                let is_service = code[..at].contains("systemctl");
                let words = code[at + "ostler ".len()..].split_whitespace();
                let is_command = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
                let words: Vec<String> =
                    words.take_while(is_command).take(2).map(str::to_owned).collect();
                if is_word && !is_service && !words.is_empty() {
                    found.insert(words);
                }
            }
        }
    }
    found
}

fn exists(words: &[String]) -> bool {
    let help =
        Command::new(env!("CARGO_BIN_EXE_ostler")).args(words).arg("--help").output().unwrap();
    help.status.success()
}

#[test]
fn r_91_every_command_of_the_guide_exists() {
    let commands = commands(&page("docs/operating.md"));
    assert!(commands.len() > 8, "the guide names commands: {commands:?}");
    for words in commands {
        // A second word may be an argument of the first.
        let first = words.get(..1).unwrap_or_default();
        assert!(exists(&words) || exists(first), "`ostler {}` is no command", words.join(" "));
    }
}

#[test]
fn every_command_of_the_servers_guide_exists() {
    let mut commands = commands(&page("docs/server.md"));
    commands.extend(self::commands(&page("README.md")));
    assert!(commands.len() > 15, "the guide names commands: {commands:?}");
    for words in commands {
        let first = words.get(..1).unwrap_or_default();
        assert!(exists(&words) || exists(first), "`ostler {}` is no command", words.join(" "));
    }
}

#[test]
fn r_91_upgrade_and_rollback_are_there_step_by_step() {
    let guide = page("docs/operating.md").to_lowercase();
    for step in [
        "back",
        "upgrade",
        "roll",
        "journal verify",
        "systemctl --user stop",
        "systemctl --user start",
    ] {
        assert!(guide.contains(step), "{step}");
    }
}

#[test]
fn r_90_the_unit_restarts_a_failed_daemon_and_fixes_its_agent() {
    let unit = page("dist/ostler.service");
    let lines: BTreeSet<&str> = unit.lines().collect();
    for line in ["Restart=on-failure", "KillMode=mixed", "UMask=0077"] {
        assert!(lines.contains(line), "{line}");
    }
    assert!(unit.contains("Environment=HASKELL_AGENT_CLI="), "the agent is pinned");
    let seconds = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    assert!(seconds.parse::<u32>().unwrap() > 10, "the daemon may take 10 s to stop");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    assert!(start.ends_with("ostler daemon"), "{start}");
}
