//! `ostler-bench`: measures what issue and design promise, each row with its target beside the figure.
//!
//! `ostler-bench [--dir DIR] [--seconds N] [--ostler FILE] COMMAND…`
//!
//! | command | what it measures |
//! |---|---|
//! | `submits` | one connection: answers a second at depth 512, and at depth 1 against the disk's own fdatasync rate |
//! | `crowd` | the same with 32 connections that read everything, with rotation and snapshots |
//! | `live` | the rate with 1,000 live tasks against the rate with 10 |
//! | `exec` | from the command's frame to `exec` of the agent, against a bare spawn; pueue where `PUEUE_BIN_DIR` has it |
//! | `output` | a task that prints 60 MiB with 10 followers and 10 clients |
//! | `start` | ready with 16 MiB of events and 1,000 tasks |
//! | `idle` | memory and wake-ups of an idle daemon, memory of a shim |
//! | `all` | all of them |
//!
//! Rows 1 to 3 load a daemon in a process of its own (`serve`, hidden) whose runner ends every run at once; the
//! others measure the real `ostler`, which must lie beside this program or be named. `DIR` must be on the
//! disk that is to be measured. It reports and does not judge: the exit status is 0 when everything could be
//! measured, met or missed. Deliberately absent: statistics beyond percentiles and the best of several rounds.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::indexing_slicing,
    reason = "a program for a person at a terminal prints; only JSON values are indexed, and those give null"
)]

mod disk;
mod exec;
mod idle;
mod load;
mod output;
mod proc;
mod product;
mod pueue;
mod report;
mod rows;
mod scan;
mod server;
mod start;
mod wire;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Anything that keeps a row from being measured.
pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// How long a load lasts when nothing else is said.
const SECONDS_DEFAULT: u64 = 10;

/// What was asked on the command line.
pub(crate) struct Options {
    /// Where the measured files lie; removed at the end.
    pub(crate) dir: tempfile::TempDir,
    /// How long a load lasts.
    pub(crate) load: Duration,
    /// The real program.
    pub(crate) ostler: PathBuf,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let hidden = match words.as_slice() {
        // The first thing it does: its clock is read in there.
        ["started", pipe] => Some(exec::started(pipe)),
        ["print", bytes] => Some(output::print(bytes)),
        ["wait"] => Some(idle::wait()),
        ["serve", dir, live_max] => Some(server::serve(dir, live_max)),
        _ => None,
    };
    let result = hidden.unwrap_or_else(|| measure(&words));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ostler-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(words: &[&str]) -> Result<(), Fault> {
    let (options, commands) = parse(words)?;
    report::heading();
    for command in commands {
        match command.as_str() {
            "submits" => rows::submits(&options)?,
            "crowd" => rows::crowd(&options)?,
            "live" => rows::live(&options)?,
            "exec" => exec::measure(&options)?,
            "output" => output::measure(&options)?,
            "start" => start::measure(&options)?,
            "idle" => idle::measure(&options)?,
            other => return Err(format!("no command `{other}`; see the head of main.rs").into()),
        }
    }
    Ok(())
}

const ALL: [&str; 7] = ["submits", "crowd", "live", "exec", "output", "start", "idle"];

fn parse(words: &[&str]) -> Result<(Options, Vec<String>), Fault> {
    let beside = std::env::current_exe()?;
    let folder = beside.parent().ok_or("this program lies nowhere")?.to_owned();
    let (mut dir, mut seconds, mut ostler) =
        (folder.clone(), SECONDS_DEFAULT, folder.join("ostler"));
    let mut commands = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match *word {
            "--dir" => dir = PathBuf::from(value()?),
            "--seconds" => seconds = value()?.parse()?,
            "--ostler" => ostler = PathBuf::from(value()?),
            "all" => commands.extend(ALL.map(str::to_owned)),
            command => commands.push(command.to_owned()),
        }
    }
    if commands.is_empty() {
        return Err(format!("say what to measure: all, or some of {}", ALL.join(", ")).into());
    }
    let dir = tempfile::Builder::new().prefix("bench-").rand_bytes(6).tempdir_in(dir)?;
    Ok((Options { dir, load: Duration::from_secs(seconds), ostler }, commands))
}
