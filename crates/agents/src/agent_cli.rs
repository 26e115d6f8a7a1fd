//! `agent_cli`: the original's `agent-cli`, started exactly as the original daemon starts it
//! (runtime.md, "Running a task"). Its exit status decides.
//!
//! It takes the prompt as an argument and nowhere else, and it always runs with `--no-yolo`: what
//! would need a person is denied. `full` is accepted and changes nothing about that.

use ostler_core::task::Permissions;

use crate::kit::agent::{
    Agent, Launch, LaunchError, LaunchRequest, LaunchStdin, REDACTED_PROMPT, SIGTERM, StopStep,
    refuse_budget, refuse_nul,
};
use crate::kit::plain::PlainReader;
use crate::kit::reader::Reader;

const ID: &str = "agent_cli";
/// The program, and what its messages call it.
const PROGRAM: &str = "agent-cli";
/// More from one stream fails the task.
const STREAM_BYTES_MAX: u64 = 64 * 1_024 * 1_024;
/// TERM, then this long, then KILL.
const TERM_GRACE_MS: u64 = 2_000;

/// The agent.
pub(crate) struct AgentCli;

impl Agent for AgentCli {
    fn id(&self) -> &'static str {
        ID
    }

    fn aliases(&self) -> &'static [&'static str] {
        &[PROGRAM]
    }

    fn programs(&self) -> &'static [&'static str] {
        &[PROGRAM]
    }

    fn permissions(&self) -> &'static [Permissions] {
        &[Permissions::Safe, Permissions::Full]
    }

    fn env_keys(&self) -> &'static [&'static str] {
        &[
            "AGENT_*",
            "ANTHROPIC_*",
            "OPENAI_*",
            "AZURE_OPENAI_*",
            "GEMINI_API_KEY",
            "GOOGLE_API_KEY",
            "OPENROUTER_API_KEY",
            "DEEPSEEK_API_KEY",
            "GROQ_API_KEY",
            "MISTRAL_API_KEY",
            "XAI_API_KEY",
            "OLLAMA_HOST",
        ]
    }

    fn states_its_end(&self) -> bool {
        false
    }

    fn version_args(&self) -> Option<&'static [&'static str]> {
        None
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError> {
        if request.permissions == Permissions::Ask {
            return Err(LaunchError::Permissions {
                agent: ID,
                asked: request.permissions.as_str(),
                why: "it cannot ask anybody; use `safe`",
            });
        }
        refuse_budget(ID, request)?;
        refuse_nul("the prompt", request.prompt)?;
        let public_args = arguments(request, REDACTED_PROMPT)?;
        let args = arguments(request, request.prompt)?.into_iter().map(Into::into).collect();
        Ok(Launch {
            args,
            public_args,
            stdin: LaunchStdin::Null,
            env_set: Vec::new(),
            stop: vec![StopStep { signal: SIGTERM, grace_ms: TERM_GRACE_MS }],
            stream_bytes_max: Some(STREAM_BYTES_MAX),
            silence: None,
            scrub: true,
        })
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(PlainReader::new(PROGRAM))
    }
}

/// The arguments in the original's order.
fn arguments(request: &LaunchRequest<'_>, prompt: &str) -> Result<Vec<String>, LaunchError> {
    let mut args = vec!["--prompt".to_owned(), prompt.to_owned()];
    args.extend(["--save-session", "--no-yolo"].map(str::to_owned));
    let options = [
        ("--resume", "the session", request.resume),
        ("--cwd", "the directory", Some(request.cwd.as_str())),
        ("--provider", "the provider", request.provider),
        ("--model", "the model", request.model),
        ("--effort", "the effort", request.effort),
    ];
    for (option, what, value) in options {
        if let Some(value) = value {
            refuse_nul(what, value)?;
            args.extend([option, value].map(str::to_owned));
        }
    }
    if request.worktree {
        args.push("--worktree".to_owned());
    }
    Ok(args)
}
