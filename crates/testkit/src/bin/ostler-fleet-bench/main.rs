//! `ostler-fleet-bench`: measures what the fleet server promises, each row with its target beside the figure.
//!
//! `ostler-fleet-bench [--dir DIR] [--seconds N] [--ostler FILE] [--postgres URL] COMMAND…`
//!
//! | command | what it measures |
//! |---|---|
//! | `jobs` | claim, start and complete over HTTP with 24 connections, on PostgreSQL and on SQLite; graphile-worker beside it where `GRAPHILE_DIR` has it installed |
//! | `idle` | 10,000 machines that poll every 3 s and beat every 15 s, with nothing to do |
//! | `lines` | output stored a second on PostgreSQL, against `COPY` of the same rows |
//! | `wake` | from the assignment of an issue to the answer of a waiting claim, on one server and across two |
//! | `backlog` | a claim with a million finished tasks and 10,000 queued for a busy agent in front, against one without |
//! | `memory` | private memory of an idle server on SQLite |
//! | `all` | all of them |
//!
//! The server is the real `ostler`, which must lie beside this program or be named. `--postgres` names an empty
//! cluster's URL without a database (`postgres://postgres@127.0.0.1:5432`); each row makes its own. It reports and
//! does not judge: the exit status is 0 when everything could be measured, met or missed.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::indexing_slicing,
    reason = "a program for a person at a terminal prints; only JSON values are indexed, and those give null"
)]

mod backlog;
mod graphile;
mod http;
mod idle;
mod jobs;
mod lines;
mod memory;
mod product;
#[path = "../ostler-bench/report.rs"]
#[allow(dead_code, reason = "the other bench uses the rest of it")]
mod report;
mod sql;
mod wake;

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
    /// A cluster for the rows that need one.
    pub(crate) postgres: Option<String>,
}

const ALL: [&str; 6] = ["jobs", "idle", "lines", "wake", "backlog", "memory"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ostler-fleet-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), Fault> {
    let (options, commands) = parse(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    report::heading();
    for command in commands {
        runtime.block_on(async {
            match command.as_str() {
                "jobs" => jobs::measure(&options).await,
                "idle" => idle::measure(&options).await,
                "lines" => lines::measure(&options).await,
                "wake" => wake::measure(&options).await,
                "backlog" => backlog::measure(&options).await,
                "memory" => memory::measure(&options).await,
                other => Err(format!("no command `{other}`; see the head of main.rs").into()),
            }
        })?;
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<(Options, Vec<String>), Fault> {
    let beside = std::env::current_exe()?;
    let folder = beside.parent().ok_or("this program lies nowhere")?.to_owned();
    let (mut dir, mut seconds, mut ostler, mut postgres) =
        (folder.clone(), SECONDS_DEFAULT, folder.join("ostler"), None);
    let mut commands = Vec::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--dir" => dir = PathBuf::from(value()?),
            "--seconds" => seconds = value()?.parse()?,
            "--ostler" => ostler = PathBuf::from(value()?),
            "--postgres" => postgres = Some(value()?.trim_end_matches('/').to_owned()),
            "all" => commands.extend(ALL.map(str::to_owned)),
            command => commands.push(command.to_owned()),
        }
    }
    if commands.is_empty() {
        return Err("say what to measure; see the head of main.rs".into());
    }
    let dir = tempfile::Builder::new().prefix("fleet-bench-").tempdir_in(dir)?;
    let load = Duration::from_secs(seconds);
    Ok((Options { dir, load, ostler, postgres }, commands))
}
