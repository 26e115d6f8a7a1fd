//! The output of runs: everything from the beginning, then what comes, without a gap.
//!
//! Read from the run directory, so it works with the daemon stopped. The readable form is what the
//! agent's own reader makes of its output; `--raw` is the output itself.

use std::io::Write;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_agents::{AgentEvent, Reader, Stream};
use ostler_supervise::rundir::{self, Item, OutputReader};
use serde::Serialize;
use tokio::time::Instant;

use crate::error::{Code, Failure};
use crate::output;

/// Pause between two looks at a run that prints nothing.
const POLL: Duration = Duration::from_millis(30);

/// Pause between two questions whether a run goes on.
const ASK_PAUSE: Duration = Duration::from_millis(250);

/// Chunks printed before everything else gets a turn.
const CHUNKS_PER_TURN_MAX: usize = 4;

/// How output is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The agent's output, made readable and safe.
    Readable,
    /// The bytes, streams kept apart.
    Raw,
    /// One JSON object a line.
    Json,
}

#[derive(Serialize)]
struct OutputLine<'a> {
    r#type: &'static str,
    stream: &'static str,
    line: &'a str,
}

/// Prints one run's output, as far as it is there.
pub(crate) struct Printer {
    dir: Utf8PathBuf,
    reader: OutputReader,
    agent: Box<dyn Reader>,
    events: Vec<AgentEvent>,
    form: Form,
    /// Lines on their way out; one write for many.
    lines: Vec<u8>,
}

impl Printer {
    /// Opens the output of the run in `dir`.
    pub(crate) fn open(dir: &Utf8Path, form: Form) -> Result<Self, Failure> {
        let unreadable = |error: std::io::Error| {
            Failure::new(Code::Failed, format!("the run in {dir} cannot be read")).because(error)
        };
        let run = rundir::read_run(dir).map_err(unreadable)?;
        let agent =
            ostler_agents::find(&run.record.agent).or_else(|| ostler_agents::find("command"));
        let agent = agent
            .ok_or_else(|| Failure::new(Code::Bug, "there is no agent to read the output with"))?;
        let reader = OutputReader::open(dir, 0).map_err(unreadable)?;
        Ok(Self {
            dir: dir.to_owned(),
            reader,
            agent: agent.reader(),
            events: Vec::new(),
            form,
            lines: Vec::new(),
        })
    }

    /// Prints some of what is there; `true` when something was. Bounded, so that whoever follows a run that
    /// prints without end still hears signals and events.
    pub(crate) fn print_some(&mut self) -> Result<bool, Failure> {
        let mut printed = false;
        for _ in 0..CHUNKS_PER_TURN_MAX {
            let item = self.reader.next_item();
            let item = item.map_err(|error| {
                Failure::new(Code::Failed, format!("the output in {} cannot be read", self.dir))
                    .because(error)
            })?;
            let Some(item) = item else { break };
            printed = true;
            match item {
                Item::Gap(gap) => self.gap(gap.dropped_bytes())?,
                Item::Chunk(chunk) => self.chunk(chunk.stream, &chunk.bytes)?,
            }
        }
        self.flush()?;
        Ok(printed)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let lines = std::mem::take(&mut self.lines);
        let mut out = std::io::stdout().lock();
        out.write_all(&lines)?;
        out.flush()?;
        Ok(())
    }

    fn gap(&mut self, bytes: u64) -> Result<(), Failure> {
        match self.form {
            Form::Raw => output::note(&format!("[{bytes} bytes of output are no longer kept]")),
            _ => {
                self.event_line("stdout", &format!("[{bytes} bytes of output are no longer kept]"))?
            }
        }
        Ok(())
    }

    fn chunk(&mut self, stream: rundir::Stream, bytes: &[u8]) -> Result<(), Failure> {
        let agent_stream = match stream {
            rundir::Stream::Stdout => Stream::Stdout,
            rundir::Stream::Stderr => Stream::Stderr,
        };
        if self.form == Form::Raw {
            match agent_stream {
                Stream::Stdout => std::io::stdout().write_all(bytes)?,
                Stream::Stderr => std::io::stderr().write_all(bytes)?,
            }
            return Ok(());
        }
        self.agent.push(agent_stream, bytes, &mut self.events);
        self.show(agent_stream)
    }

    fn show(&mut self, stream: Stream) -> Result<(), Failure> {
        let name = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        for event in std::mem::take(&mut self.events) {
            if let Some(line) = ostler_host::runner::display_line(event) {
                self.event_line(name, &ostler_host::redact::line(&line))?;
            }
        }
        Ok(())
    }

    fn event_line(&mut self, stream: &'static str, line: &str) -> Result<(), Failure> {
        match self.form {
            Form::Json => {
                let line = OutputLine { r#type: "output", stream, line };
                serde_json::to_writer(&mut self.lines, &line).map_err(std::io::Error::other)?;
            }
            Form::Readable | Form::Raw => {
                self.lines.extend_from_slice(output::safe(line).as_bytes());
            }
        }
        self.lines.push(b'\n');
        Ok(())
    }

    /// Prints what waits for its end of line, once nothing more can come.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        while self.print_some()? {}
        self.agent.finish_streams(&mut self.events);
        self.show(Stream::Stdout)?;
        self.flush()
    }

    /// Whether the run has ended: it says so, or its supervisor is gone. `None` when the directory alone does
    /// not say: no supervisor took the run so far, or none ever will.
    fn has_ended(&self) -> Option<bool> {
        let Ok(run) = rundir::read_run(&self.dir) else {
            return Some(true);
        };
        match (&run.exit, &run.shim) {
            (None, None) => None,
            (None, Some(_)) => Some(!run.has_living_shim()),
            (Some(_), _) => Some(true),
        }
    }
}

/// Prints one run as far as it goes.
pub(crate) fn print(dir: &Utf8Path, form: Form) -> Result<(), Failure> {
    Printer::open(dir, form)?.finish()
}

/// Prints one run to its end. `is_over` says whether it can still go on; it is asked now and then where the
/// directory does not say.
pub(crate) async fn follow(
    dir: &Utf8Path,
    form: Form,
    is_over: impl AsyncFn() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut printer = Printer::open(dir, form)?;
    let mut ask_at = Instant::now();
    loop {
        // Looked at before reading, so that nothing printed in between is missed.
        let ended = match printer.has_ended() {
            Some(ended) => ended,
            None if Instant::now() < ask_at => false,
            None => {
                ask_at = Instant::now() + ASK_PAUSE;
                is_over().await?
            }
        };
        let printed = printer.print_some()?;
        if ended {
            return printer.finish();
        }
        if !printed {
            tokio::time::sleep(POLL).await;
        }
    }
}
