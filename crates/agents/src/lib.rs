//! Agent CLIs: how to start one, how to read it, and how to judge what became of it.
//!
//! One file `<id>.rs` here for each agent, one line in [`REGISTRY`], recorded transcripts in
//! `transcripts/<id>/`; a test holds the three together. Everything the agents share lies in
//! `kit/`. This crate parses and decides; deliberately absent are processes, files, clocks and
//! sockets (the one exception is looking for a program on a given `PATH`).
//!
//! The host asks an [`Agent`] for a [`Launch`], gives the bytes that come back to its [`Reader`] in
//! whatever pieces they arrive, shows the [`AgentEvent`]s, and in the end gets a [`Conclusion`].
//! Success is a positive statement of the agent's stream or, for plain programs, the exit status.

mod agent_cli;
mod claude_code;
mod command;
mod kit;

pub use kit::agent::{
    Agent, Launch, LaunchError, LaunchRequest, LaunchStdin, REDACTED_PROMPT, StopPlan, StopStep,
};
pub use kit::environment::environment_for;
pub use kit::lines::{LINE_BYTES_MAX, PIECE_BYTES_MAX};
pub use kit::program::find_program;
pub use kit::reader::{
    AgentEvent, Conclusion, DENIALS_MAX, Reader, Status, Stream, TEXT_BYTES_MAX, Terminal,
};

#[doc(hidden)]
pub use kit::fuzzing;

/// Every agent there is.
pub static REGISTRY: &[&dyn Agent] =
    &[&command::Command, &agent_cli::AgentCli, &claude_code::ClaudeCode];

/// The agent with that id or alias.
pub fn find(id_or_alias: &str) -> Option<&'static dyn Agent> {
    REGISTRY
        .iter()
        .copied()
        .find(|agent| agent.id() == id_or_alias || agent.aliases().contains(&id_or_alias))
}
