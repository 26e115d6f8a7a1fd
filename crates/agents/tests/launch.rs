//! How the agents are started: arguments, standard input, and what is refused.

#![allow(missing_docs)]
// Helpers of tests fail like tests.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use camino::Utf8Path;
use ostler_agents::{
    Launch, LaunchError, LaunchRequest, LaunchStdin, REDACTED_PROMPT, REGISTRY, find,
};
use ostler_core::outcome::FailureClass;
use ostler_core::task::Permissions;

/// Quotes, substitution, a newline and a leading dash: nothing of it means anything.
const PROMPT: &str = "--resume=x \"a\" 'b' $(rm -rf /) `c`\n-d é";

fn request<'a>() -> LaunchRequest<'a> {
    LaunchRequest {
        prompt: PROMPT,
        argv: &[],
        cwd: Utf8Path::new("/proj"),
        resume: None,
        provider: None,
        model: None,
        effort: None,
        worktree: false,
        permissions: Permissions::Safe,
        budget_micros: None,
        is_root: false,
        executable: PathBuf::from("/bin/agent"),
    }
}

fn full<'a>() -> LaunchRequest<'a> {
    LaunchRequest {
        resume: Some("s 1"),
        provider: Some("anthropic"),
        model: Some("m"),
        effort: Some("high"),
        worktree: true,
        ..request()
    }
}

fn launch(agent: &str, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError> {
    find(agent).unwrap().launch(request)
}

fn args(launch: &Launch) -> Vec<&str> {
    launch.args.iter().map(|arg| arg.to_str().unwrap()).collect()
}

#[test]
fn r_72_agent_cli_is_started_with_exactly_what_was_submitted_in_order() {
    let least = launch("agent_cli", &request()).unwrap();
    assert_eq!(args(&least), ["--prompt", PROMPT, "--save-session", "--no-yolo", "--cwd", "/proj"]);
    let most = launch("agent_cli", &full()).unwrap();
    let expected = "--save-session --no-yolo --resume S --cwd /proj --provider anthropic --model m \
        --effort high --worktree";
    let shown = args(&most).into_iter().map(|arg| if arg == "s 1" { "S" } else { arg });
    assert_eq!(shown.skip(2).collect::<Vec<_>>().join(" "), expected);
    assert_eq!(most.stream_bytes_max, Some(67_108_864));
}

#[test]
fn r_68_the_prompt_is_one_unchanged_argument_of_agent_cli() {
    let launch = launch("agent_cli", &request()).unwrap();
    assert_eq!(launch.args.iter().filter(|arg| *arg == PROMPT).count(), 1);
}

#[test]
fn r_70_agent_cli_reads_end_of_file_at_once() {
    assert!(launch("agent_cli", &request()).unwrap().stdin == LaunchStdin::Null);
}

#[test]
fn r_69_agent_cli_always_gets_no_yolo() {
    for permissions in [Permissions::Safe, Permissions::Full] {
        let launch = launch("agent_cli", &LaunchRequest { permissions, ..full() }).unwrap();
        assert!(args(&launch).contains(&"--no-yolo"));
    }
}

#[test]
fn r_81_the_prompt_is_in_no_public_argument() {
    let argv = ["/bin/echo".to_owned(), format!("see: {PROMPT}")];
    for agent in REGISTRY {
        let permissions = agent.default_permissions();
        let request = LaunchRequest { argv: &argv, permissions, ..request() };
        let launch = agent.launch(&request).unwrap();
        assert!(!launch.public_args.iter().any(|arg| arg.contains(PROMPT)), "{}", agent.id());
        assert_eq!(launch.public_args.len(), launch.args.len());
        assert!(launch.scrub);
        let in_args = args(&launch).iter().any(|arg| arg.contains(PROMPT));
        let redacted = launch.public_args.iter().any(|arg| arg.contains(REDACTED_PROMPT));
        assert_eq!(in_args, redacted, "{}", agent.id());
    }
}

#[test]
fn every_stop_order_takes_5_seconds_at_most() {
    let argv = ["/bin/true".to_owned()];
    for agent in REGISTRY {
        let permissions = agent.default_permissions();
        let launch =
            agent.launch(&LaunchRequest { argv: &argv, permissions, ..request() }).unwrap();
        assert!(!launch.stop.is_empty());
        assert!(launch.stop.iter().map(|step| step.grace_ms).sum::<u64>() <= 5_000);
    }
}

#[test]
fn claude_reads_the_prompt_on_stdin_and_takes_values_joined_to_their_flags() {
    let least = launch("claude", &request()).unwrap();
    assert_eq!(
        args(&least),
        ["-p", "--verbose", "--output-format=stream-json", "--permission-mode=acceptEdits"]
    );
    assert!(least.stdin == LaunchStdin::Prompt(PROMPT.as_bytes().to_vec()));
    let most = LaunchRequest {
        permissions: Permissions::Full,
        budget_micros: Some(1_250_000),
        is_root: true,
        ..full()
    };
    let most = launch("claude_code", &most).unwrap();
    assert_eq!(
        args(&most)[3..],
        [
            "--dangerously-skip-permissions",
            "--resume=s 1",
            "--model=m",
            "--effort=high",
            "--max-budget-usd=1.250000",
            "--worktree"
        ]
    );
    assert!(most.env_set.contains(&("IS_SANDBOX".to_owned(), "1".to_owned())));
    // Only for a root that asked for everything.
    for (is_root, permissions) in [(true, Permissions::Safe), (false, Permissions::Full)] {
        let launch =
            launch("claude", &LaunchRequest { is_root, permissions, ..request() }).unwrap();
        assert!(!launch.env_set.iter().any(|(name, _)| name == "IS_SANDBOX"));
    }
}

#[test]
fn command_runs_the_program_as_given_with_the_prompt_on_stdin() {
    let argv = ["make", "-C", "a b", "$(x)"].map(str::to_owned);
    let full = Permissions::Full;
    let given = LaunchRequest { argv: &argv, permissions: full, ..request() };
    let given = launch("command", &given).unwrap();
    assert_eq!(args(&given), ["-C", "a b", "$(x)"]);
    assert!(given.stdin == LaunchStdin::Prompt(PROMPT.as_bytes().to_vec()));
    let silent = LaunchRequest { argv: &argv, permissions: full, prompt: "", ..request() };
    assert!(launch("command", &silent).unwrap().stdin == LaunchStdin::Null);
}

#[test]
fn r_71_what_an_agent_cannot_honour_is_refused_with_a_reason() {
    let argv = ["true".to_owned()];
    let command = || LaunchRequest { argv: &argv, permissions: Permissions::Full, ..request() };
    let ask = || LaunchRequest { permissions: Permissions::Ask, ..request() };
    let nul = "a\0b";
    for (agent, request, class, text) in [
        ("claude", ask(), "permission_denied", "claude_code cannot run with permissions `ask`"),
        ("agent_cli", ask(), "permission_denied", "agent_cli cannot run with permissions `ask`"),
        (
            "command",
            LaunchRequest { permissions: Permissions::Safe, ..command() },
            "permission_denied",
            "it runs only with `full`",
        ),
        ("command", request_budget(command()), "budget", "does not count what it costs"),
        ("agent_cli", request_budget(request()), "budget", "does not count what it costs"),
        ("command", LaunchRequest { argv: &[], ..command() }, "spawn", "no program to run"),
        ("command", LaunchRequest { worktree: true, ..command() }, "spawn", "takes no worktree"),
        ("command", LaunchRequest { model: Some("m"), ..command() }, "spawn", "takes no model"),
        (
            "agent_cli",
            LaunchRequest { prompt: nul, ..request() },
            "spawn",
            "the prompt contains a NUL",
        ),
        (
            "claude",
            LaunchRequest { model: Some(nul), ..request() },
            "spawn",
            "the model contains a NUL",
        ),
        (
            "claude",
            LaunchRequest { provider: Some("acme"), ..request() },
            "spawn",
            "no provider `acme`",
        ),
    ] {
        let Err(error) = launch(agent, &request) else { panic!("{agent}: {text}") };
        let failure = error.failure();
        assert!(failure.message.contains(text), "{}", failure.message);
        assert_eq!(Some(failure.class), FailureClass::parse(class));
    }
}

fn request_budget(request: LaunchRequest<'_>) -> LaunchRequest<'_> {
    LaunchRequest { budget_micros: Some(1), ..request }
}
