//! `claude_code`: Claude Code in print mode, one JSON event a line.
//!
//! The prompt goes in on standard input. `safe` is its mode in which edits in the working directory
//! go through and everything that would need a person is denied; `full` skips all its checks;
//! `ask` needs a live protocol and is refused. Success is its own `result` event and nothing less:
//! `judge` says how that is read. Checked against 2.1.332; older ones say less, and then less is
//! claimed.

mod judge;
mod read;
mod reset;
mod show;
mod spending;
mod wire;

use std::ffi::OsString;
use std::time::Duration;

use ostler_core::task::Permissions;

use crate::kit::agent::{
    Agent, Launch, LaunchError, LaunchRequest, LaunchStdin, SIGINT, SIGTERM, StopPlan, StopStep,
    refuse_nul,
};
use crate::kit::reader::Reader;

const ID: &str = "claude_code";
/// A run that prints nothing for this long hangs: the longest a single tool is allowed by default is
/// ten minutes.
const SILENCE_MAX: Duration = Duration::from_secs(60 * 60);
/// After INT it writes a last `result`, with its usage, and exits within a second.
const INT_GRACE_MS: u64 = 2_000;
/// After TERM it ends its tools and exits within two.
const TERM_GRACE_MS: u64 = 2_500;
/// The words of its stream that a result rests on. A prompt that is one of them is not replaced in
/// the output: that would replace the statement itself, and the word says nothing about the prompt.
const STREAM_WORDS: &[&str] = &[
    "assistant",
    "completed",
    "content",
    "is_error",
    "message",
    "result",
    "subtype",
    "success",
    "terminal_reason",
    "text",
    "type",
];
/// The vendors of its models: it takes no other by flag.
const PROVIDERS: &[&str] = &["anthropic", "claude", ID];

/// The agent.
pub(crate) struct ClaudeCode;

impl Agent for ClaudeCode {
    fn id(&self) -> &'static str {
        ID
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["claude"]
    }

    fn programs(&self) -> &'static [&'static str] {
        &["claude"]
    }

    fn permissions(&self) -> &'static [Permissions] {
        &[Permissions::Safe, Permissions::Full]
    }

    fn env_keys(&self) -> &'static [&'static str] {
        &[
            "ANTHROPIC_*",
            "API_TIMEOUT_MS",
            "AWS_*",
            "BASH_DEFAULT_TIMEOUT_MS",
            "BASH_MAX_OUTPUT_LENGTH",
            "BASH_MAX_TIMEOUT_MS",
            "CLAUDE_*",
            "CLOUD_ML_REGION",
            "DISABLE_*",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_CLOUD_PROJECT",
            "IS_SANDBOX",
            "MAX_MCP_OUTPUT_TOKENS",
            "MAX_THINKING_TOKENS",
            "MCP_TIMEOUT",
            "MCP_TOOL_TIMEOUT",
            "USE_BUILTIN_RIPGREP",
            "VERTEX_*",
        ]
    }

    fn states_its_end(&self) -> bool {
        true
    }

    fn version_args(&self) -> Option<&'static [&'static str]> {
        Some(&["--version"])
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError> {
        let public_args = arguments(request)?;
        // An update in the middle of a run would change the program the receipt names.
        let mut env_set = vec![("DISABLE_AUTOUPDATER".to_owned(), "1".to_owned())];
        if request.is_root && request.permissions == Permissions::Full {
            // Without it, it refuses to skip its checks as root.
            env_set.push(("IS_SANDBOX".to_owned(), "1".to_owned()));
        }
        Ok(Launch {
            args: public_args.iter().map(OsString::from).collect(),
            public_args,
            stdin: LaunchStdin::Prompt(request.prompt.as_bytes().to_vec()),
            env_set,
            stop: stop_plan(),
            stream_bytes_max: None,
            silence: Some(SILENCE_MAX),
            scrub: !STREAM_WORDS.contains(&request.prompt.trim()),
        })
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(read::ClaudeReader::default())
    }
}

fn stop_plan() -> StopPlan {
    vec![
        StopStep { signal: SIGINT, grace_ms: INT_GRACE_MS },
        StopStep { signal: SIGTERM, grace_ms: TERM_GRACE_MS },
    ]
}

/// The arguments. Values are joined to their flags, so that none can pass for a flag itself.
fn arguments(request: &LaunchRequest<'_>) -> Result<Vec<String>, LaunchError> {
    let permissions = match request.permissions {
        Permissions::Safe => "--permission-mode=acceptEdits",
        Permissions::Full => "--dangerously-skip-permissions",
        Permissions::Ask => {
            return Err(LaunchError::Permissions {
                agent: ID,
                asked: request.permissions.as_str(),
                why: "asking a person needs a live session; use `safe` or `full`",
            });
        }
    };
    if let Some(provider) = request.provider.filter(|provider| !PROVIDERS.contains(provider)) {
        return Err(LaunchError::Provider { agent: ID, provider: provider.to_owned() });
    }
    let mut args = vec!["-p".to_owned()];
    args.extend(["--verbose", "--output-format=stream-json", permissions].map(str::to_owned));
    let options = [
        ("--resume", "the session", request.resume),
        ("--model", "the model", request.model),
        ("--effort", "the effort", request.effort),
    ];
    for (option, what, value) in options {
        if let Some(value) = value {
            refuse_nul(what, value)?;
            args.push(format!("{option}={value}"));
        }
    }
    if let Some(micros) = request.budget_micros {
        args.push(format!("--max-budget-usd={}.{:06}", micros / 1_000_000, micros % 1_000_000));
    }
    if request.worktree {
        args.push("--worktree".to_owned());
    }
    Ok(args)
}
