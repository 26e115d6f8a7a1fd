//! Help, completions, colours, and how errors look.

use std::process::Command;

use crate::rig::{Rig, finish};

/// Every command with a page of help.
const COMMANDS: [&[&str]; 73] = [
    &[],
    &["run"],
    &["task"],
    &["task", "list"],
    &["task", "show"],
    &["task", "logs"],
    &["task", "cancel"],
    &["task", "retry"],
    &["task", "limit"],
    &["status"],
    &["daemon"],
    &["issue"],
    &["issue", "create"],
    &["issue", "list"],
    &["issue", "show"],
    &["issue", "assign"],
    &["issue", "comment"],
    &["server"],
    &["server", "init"],
    &["server", "backup"],
    &["server", "export"],
    &["server", "import"],
    &["server", "workspace"],
    &["server", "user"],
    &["server", "agent"],
    &["server", "skill"],
    &["server", "repository"],
    &["server", "token"],
    &["server", "runtime"],
    &["server", "task"],
    &["server", "workspace", "create"],
    &["server", "workspace", "list"],
    &["server", "workspace", "show"],
    &["server", "workspace", "update"],
    &["server", "user", "create"],
    &["server", "user", "list"],
    &["server", "user", "update"],
    &["server", "user", "remove"],
    &["server", "agent", "create"],
    &["server", "agent", "update"],
    &["server", "agent", "pause"],
    &["server", "agent", "resume"],
    &["server", "agent", "show"],
    &["server", "agent", "list"],
    &["server", "agent", "archive"],
    &["server", "agent", "restore"],
    &["server", "skill", "create"],
    &["server", "skill", "update"],
    &["server", "skill", "list"],
    &["server", "skill", "show"],
    &["server", "skill", "remove"],
    &["server", "skill", "attach"],
    &["server", "skill", "detach"],
    &["server", "repository", "add"],
    &["server", "repository", "list"],
    &["server", "repository", "remove"],
    &["server", "token", "create"],
    &["server", "token", "list"],
    &["server", "token", "revoke"],
    &["server", "runtime", "list"],
    &["server", "runtime", "show"],
    &["server", "task", "list"],
    &["server", "task", "show"],
    &["server", "task", "logs"],
    &["server", "task", "cancel"],
    &["server", "task", "retry"],
    &["server", "task", "approve"],
    &["server", "task", "deny"],
    &["journal"],
    &["journal", "verify"],
    &["journal", "export"],
    &["replay"],
    &["completions"],
];

/// Change a page on purpose, then `INSTA_UPDATE=always cargo test -p ostler-cli --test e2e help`.
#[test]
fn help_is_what_was_agreed() {
    let rig = Rig::new();
    for words in COMMANDS {
        let mut command = rig.ostler(words);
        let done = finish(command.arg("--help").env("COLUMNS", "100"));
        assert_eq!(done.code, Some(0), "{done:?}");
        let wide = done.stdout.lines().find(|line| line.chars().count() > 120);
        assert_eq!(wide, None, "{words:?}");
        assert!(!done.stdout.contains('\u{1b}'));
        let name = ["help"].iter().chain(words).copied().collect::<Vec<_>>().join("_");
        insta::assert_snapshot!(name, done.stdout);
    }
}

#[test]
fn every_command_of_the_help_has_a_page_here() {
    let rig = Rig::new();
    let groups = ["workspace", "user", "agent", "skill", "token", "runtime", "task"];
    let groups = groups.map(|group| vec!["server", group]);
    let parents = [vec![], vec!["task"], vec!["journal"], vec!["issue"], vec!["server"]];
    for parent in parents.into_iter().chain(groups) {
        let done = finish(rig.ostler(&parent).arg("--help"));
        let listed = done.stdout.lines().skip_while(|line| *line != "Commands:").skip(1);
        let names = listed.take_while(|line| !line.is_empty());
        for name in names.filter_map(|line| line.split_whitespace().next()) {
            let words: Vec<&str> = parent.iter().copied().chain([name]).collect();
            assert!(name == "help" || COMMANDS.contains(&words.as_slice()), "{words:?}");
        }
    }
}

/// runtime.md, "Shapes of ours": each is shown by a test of this crate but 70.
#[test]
fn every_exit_code_is_documented() {
    let rig = Rig::new();
    let done = finish(rig.ostler(["--help"]).env("COLUMNS", "100"));
    let codes = done.stdout.split_once("Exit codes:").expect("the exit codes").1;
    let documented = [
        "0 success",
        "1 the task failed",
        "2 usage",
        "3 daemon not reachable",
        "4 refused",
        "5 cancelled",
        "6 interrupted",
        "70 a bug",
    ];
    for code in documented {
        assert!(codes.contains(code), "{code}: {codes}");
    }
}

#[test]
fn completions_are_made_for_every_shell() {
    let rig = Rig::new();
    for shell in ["bash", "zsh", "fish"] {
        let done = finish(&mut rig.ostler(["completions", shell]));
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(done.stdout.contains("ostler") && done.stdout.contains("permissions"), "{shell}");
    }
}

/// Colours are for terminals: in a pipe there are none, on a terminal there are, unless unwanted.
#[test]
fn colours_are_for_terminals() {
    let rig = Rig::serving();
    finish(&mut rig.ostler(["run", "--id", "t", "--", "true"]));
    let piped = finish(&mut rig.ostler(["task", "list"]));
    assert!(piped.stdout.contains("completed") && !piped.stdout.contains('\u{1b}'), "{piped:?}");
    let failed = finish(&mut rig.ostler(["task", "show", "nobody"]));
    assert!(
        failed.stderr.starts_with("error: ") && failed.stderr.contains("\nhint: "),
        "{failed:?}"
    );
    let on_a_terminal = |env: Option<(&str, &str)>| {
        let mut command: Command = rig.scratch.command("script");
        command.args(["-qec", "ostler task list", "/dev/null"]).env("TERM", "xterm").envs(env);
        finish(command.stdin(std::process::Stdio::null())).stdout
    };
    let shown = on_a_terminal(None);
    assert!(shown.contains("completed") && shown.contains('\u{1b}'), "{shown:?}");
    let plain = on_a_terminal(Some(("NO_COLOR", "1")));
    assert!(plain.contains("completed") && !plain.contains('\u{1b}'), "{plain:?}");
}

/// What nobody reads any more is no error.
#[test]
fn a_reader_that_goes_away_is_no_bug() {
    let rig = Rig::serving();
    rig.detach("t", &["lines", "20000"]);
    rig.settled("t");
    let mut command = rig.scratch.command("sh");
    command.args(["-c", "ostler task logs t | head -n 1"]);
    let done = finish(&mut command);
    assert_eq!(done.stdout, "line 1\n");
    assert!(!done.stderr.contains("panicked"), "{done:?}");
}
