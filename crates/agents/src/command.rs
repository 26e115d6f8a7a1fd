//! `command`: any program. It reads the prompt on its standard input, its lines are shown as they
//! come, and its exit status decides.
//!
//! It has `full` permissions by nature: nobody stands between the program and the machine. A
//! session orders its tasks and nothing more, since a program has none of its own.

use std::ffi::OsString;

use ostler_core::task::Permissions;

use crate::kit::agent::{
    Agent, Launch, LaunchError, LaunchRequest, LaunchStdin, REDACTED_PROMPT, SIGTERM, StopStep,
    refuse_budget, refuse_nul,
};
use crate::kit::plain::PlainReader;
use crate::kit::reader::Reader;

const ID: &str = "command";
/// How long a program has to obey TERM.
const TERM_GRACE_MS: u64 = 2_000;

/// The agent.
pub(crate) struct Command;

impl Agent for Command {
    fn id(&self) -> &'static str {
        ID
    }

    fn programs(&self) -> &'static [&'static str] {
        &[]
    }

    fn permissions(&self) -> &'static [Permissions] {
        &[Permissions::Full]
    }

    fn env_keys(&self) -> &'static [&'static str] {
        &[]
    }

    fn states_its_end(&self) -> bool {
        false
    }

    fn version_args(&self) -> Option<&'static [&'static str]> {
        None
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError> {
        let Some((_program, args)) = request.argv.split_first() else {
            return Err(LaunchError::NoProgram);
        };
        refuse(request)?;
        Ok(Launch {
            public_args: args.iter().map(|arg| public(arg, request.prompt)).collect(),
            args: args.iter().map(OsString::from).collect(),
            stdin: if request.prompt.is_empty() {
                LaunchStdin::Null
            } else {
                LaunchStdin::Prompt(request.prompt.as_bytes().to_vec())
            },
            env_set: Vec::new(),
            stop: vec![StopStep { signal: SIGTERM, grace_ms: TERM_GRACE_MS }],
            stream_bytes_max: None,
            silence: None,
            scrub: true,
        })
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(PlainReader::new(ID))
    }
}

/// What a plain program cannot honour is refused, not ignored.
fn refuse(request: &LaunchRequest<'_>) -> Result<(), LaunchError> {
    if request.permissions != Permissions::Full {
        return Err(LaunchError::Permissions {
            agent: ID,
            asked: request.permissions.as_str(),
            why: "a plain program may do whatever it likes; it runs only with `full`",
        });
    }
    refuse_budget(ID, request)?;
    let unsupported = [
        (request.model.is_some(), "model"),
        (request.effort.is_some(), "effort"),
        (request.worktree, "worktree"),
    ];
    if let Some((_, what)) = unsupported.into_iter().find(|(asked, _)| *asked) {
        return Err(LaunchError::Unsupported { agent: ID, what });
    }
    request.argv.iter().try_for_each(|arg| refuse_nul("an argument", arg))
}

/// An argument that repeats the prompt does not carry it into the record.
fn public(arg: &str, prompt: &str) -> String {
    if prompt.is_empty() { arg.to_owned() } else { arg.replace(prompt, REDACTED_PROMPT) }
}
