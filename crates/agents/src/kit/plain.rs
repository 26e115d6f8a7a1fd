//! The reader of programs that state nothing: their lines are shown as they come, and the exit
//! status decides.

use ostler_core::outcome::{Exit, Failure, FailureClass, Proof};

use super::lines::Pieces;
use super::reader::{AgentEvent, Conclusion, Reader, Status, Stream, Terminal};

/// Reads a plain program.
pub(crate) struct PlainReader {
    /// What messages call it.
    name: &'static str,
    stdout: Pieces,
    stderr: Pieces,
}

impl PlainReader {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, stdout: Pieces::default(), stderr: Pieces::default() }
    }
}

impl Reader for PlainReader {
    fn push(&mut self, stream: Stream, bytes: &[u8], out: &mut Vec<AgentEvent>) {
        let splitter = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        splitter.push(bytes, &mut |line| out.push(AgentEvent::Line(line)));
    }

    fn finish_streams(&mut self, out: &mut Vec<AgentEvent>) {
        self.stdout.finish(&mut |line| out.push(AgentEvent::Line(line)));
        self.stderr.finish(&mut |line| out.push(AgentEvent::Line(line)));
    }

    fn terminal(&self) -> Option<&Terminal> {
        None
    }

    fn conclude(&mut self, exit: Option<Exit>, stopped: bool) -> Conclusion {
        // Many programs end with 0 when they are told to stop: that says nothing of their work.
        if !stopped && exit.is_some_and(Exit::is_success) {
            return Conclusion {
                proof: Some(Proof::ExitStatus),
                ..Conclusion::new(Status::Completed)
            };
        }
        Conclusion {
            proof: exit.map(|_| Proof::ExitStatus),
            ..Conclusion::failed(exit_failure(self.name, exit))
        }
    }
}

/// The failure that an exit alone speaks of.
pub(crate) fn exit_failure(name: &str, exit: Option<Exit>) -> Failure {
    match exit {
        Some(Exit::Code(code)) => {
            Failure::new(FailureClass::ExitStatus, format!("{name} exited with status {code}"))
        }
        Some(Exit::Signal(signal)) => {
            Failure::new(FailureClass::Signal, format!("{name} was ended by signal {signal}"))
        }
        None => Failure::new(FailureClass::Unknown, format!("nobody saw how {name} ended")),
    }
}
