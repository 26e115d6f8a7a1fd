//! One file a command.

mod cancel;
mod daemon;
mod issue;
mod journal;
mod logs;
mod replay;
mod run;
mod server;
mod status;
mod task;

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Cli, Command};
use crate::context::Context;
use crate::error::{Code, Failure};

/// Performs what was asked.
pub(crate) fn perform(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Completions { shell } => completions(shell),
        Command::Replay(args) => replay::perform(&args),
        Command::Run(args) => run::perform(&Context::of_process()?, &args),
        Command::Task(command) => task::perform(&Context::of_process()?, command),
        Command::Status(json) => status::perform(&Context::of_process()?, json),
        Command::Daemon(args) => daemon::perform(&Context::of_process()?, &args),
        Command::Server(args) => server::perform(&Context::of_process()?, *args),
        Command::Issue(command) => issue::perform(&Context::of_process()?, command),
        Command::Journal(command) => journal::perform(&Context::of_process()?, command),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ostler", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(Code::Success.into())
}
