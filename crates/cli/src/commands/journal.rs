//! `ostler journal`: check it, or print it. Nothing is changed; the daemon may run.

use std::io::Write;
use std::process::ExitCode;

use camino::Utf8PathBuf;
use ostler_journal::{OpenError, Visit};
use serde::Serialize;

use crate::args::JournalCommand;
use crate::context::Context;
use crate::error::{Code, Failure};
use crate::output;

#[derive(Serialize)]
struct Verified<'a> {
    dir: &'a str,
    first_sequence: u64,
    last_sequence: u64,
    records: u64,
    payload_bytes: u64,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Exported<'a> {
    sequence: u64,
    record: &'a serde_json::value::RawValue,
}

pub(crate) fn perform(context: &Context, command: JournalCommand) -> Result<ExitCode, Failure> {
    match command {
        JournalCommand::Verify { dir, json } => {
            let dir = dir_or_own(context, dir)?;
            let report = ostler_journal::verify(&dir, &ostler_host::history::options())
                .map_err(|error| unsound(&dir, error))?;
            let warnings: Vec<_> = report.warnings.iter().map(ToString::to_string).collect();
            if json.json {
                output::json_pretty(&Verified {
                    dir: dir.as_str(),
                    first_sequence: report.first_sequence,
                    last_sequence: report.last_sequence,
                    records: report.records,
                    payload_bytes: report.payload_bytes,
                    warnings,
                })?;
            } else {
                output::line(&format!(
                    "{dir} is sound: {} records, sequences {} to {}",
                    report.records, report.first_sequence, report.last_sequence
                ))?;
                warnings.iter().for_each(|warning| output::note(&format!("note: {warning}")));
            }
        }
        JournalCommand::Export { dir } => export(&dir_or_own(context, dir)?)?,
    }
    Ok(Code::Success.into())
}

fn dir_or_own(context: &Context, dir: Option<Utf8PathBuf>) -> Result<Utf8PathBuf, Failure> {
    let dir = dir.unwrap_or_else(|| context.paths.journal_dir());
    if dir.is_dir() {
        Ok(dir)
    } else {
        Err(Failure::new(Code::Failed, format!("there is no journal in {dir}"))
            .hint("name the directory that holds the segments: ostler journal verify DIR"))
    }
}

fn unsound(dir: &Utf8PathBuf, error: OpenError) -> Failure {
    let hint = error.hint();
    Failure::new(Code::Failed, format!("the journal in {dir} is not sound"))
        .because(error)
        .hint(hint)
}

fn export(dir: &Utf8PathBuf) -> Result<(), Failure> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    let result = ostler_journal::read(dir, &ostler_host::history::options(), &mut |visit| {
        if let (Visit::Entry(entry), Ok(())) = (visit, &written) {
            let record =
                serde_json::from_slice(entry.payload).map_err(|error| error.to_string())?;
            written =
                serde_json::to_writer(&mut out, &Exported { sequence: entry.sequence, record })
                    .map_err(std::io::Error::from)
                    .and_then(|()| out.write_all(b"\n"));
        }
        Ok(())
    });
    written?;
    out.flush()?;
    result.map(drop).map_err(|error| unsound(dir, error))
}
