//! Errors as people see them: a heading, its causes, a hint, and a documented exit code.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use anstream::stderr;
use clap::error::{ContextKind, ErrorKind};

/// Exit codes, as the manual lists them (runtime.md, "Shapes of ours").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// It was done.
    Success = 0,
    /// The task failed, or the command could not do what it was asked.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// No daemon answers, or none could be started.
    Unreachable = 3,
    /// The daemon refused.
    Refused = 4,
    /// The task was cancelled.
    Cancelled = 5,
    /// The task was interrupted.
    Interrupted = 6,
    /// A bug in Ostler.
    Bug = 70,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// What went wrong, for a person.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    heading: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: Code, heading: impl Into<String>) -> Self {
        Self { code, heading: heading.into(), source: None, hint: None }
    }

    /// The exit code that goes with it.
    pub(crate) fn code(&self) -> Code {
        self.code
    }

    /// Adds the error that led here; its own causes are shown below it.
    pub(crate) fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.heading)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// Standard output or another local file that could not be written.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Code::Failed, "could not write the output").because(error)
    }
}

/// Prints an error and gives its exit code.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    let broken_pipe = failure.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    if broken_pipe.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) {
        // Whoever read us has seen enough.
        return failure.code.into();
    }
    tell(failure);
    failure.code.into()
}

/// Prints an error where the command goes on.
pub(crate) fn tell(failure: &Failure) {
    let mut text = format!("\x1b[1;31merror:\x1b[0m {failure}\n");
    let (mut cause, mut told) = (failure.source(), failure.to_string());
    while let Some(error) = cause {
        let next = error.to_string();
        // Many errors of libraries say their cause themselves.
        if !told.ends_with(&next) {
            text.push_str(&format!("  caused by: {next}\n"));
            told = next;
        }
        cause = error.source();
    }
    if let Some(hint) = &failure.hint {
        text.push_str(&format!("\x1b[1;36mhint:\x1b[0m {hint}\n"));
    }
    // Nobody is left to tell when standard error is gone.
    let _ = stderr().write_all(text.as_bytes());
}

/// Prints what clap says: help to standard output with success, the rest as a usage error.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    // `ostler server --database URL token list`: the option is right, its place is not.
    if error.kind() == ErrorKind::ArgumentConflict
        && error.get(ContextKind::InvalidSubcommand).is_some()
    {
        let hint = "\x1b[1;36mhint:\x1b[0m write the option behind the subcommand\n";
        let _ = stderr().write_all(hint.as_bytes());
    }
    if error.use_stderr() { Code::Usage.into() } else { Code::Success.into() }
}
