//! `ostler replay`: fold a run directory again, without the agent and without the daemon.
//!
//! What comes out rests on the directory alone: the agent's own words, judged by the same reader that
//! judged them live, and how the run ended.

use std::process::ExitCode;

use ostler_agents::{AgentEvent, Status, Stream};
use ostler_host::redact;
use ostler_supervise::rundir::{self, Item, OutputReader};
use serde::Serialize;

use crate::args::ReplayArgs;
use crate::error::{Code, Failure};
use crate::output;

#[derive(Serialize)]
struct Replayed {
    r#type: &'static str,
    task_id: String,
    attempt: u32,
    agent: String,
    status: &'static str,
    statement: Option<String>,
    failure: Option<ReplayedFailure>,
    session_id: Option<String>,
    text: Option<String>,
    denials: Vec<String>,
    output_bytes: u64,
    dropped_bytes: u64,
    ended: bool,
}

#[derive(Serialize)]
struct ReplayedFailure {
    class: &'static str,
    message: String,
}

pub(crate) fn perform(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let unreadable = |error: std::io::Error| {
        Failure::new(Code::Failed, format!("{} cannot be read as a run directory", args.dir))
            .because(error)
    };
    let run = rundir::read_run(&args.dir).map_err(unreadable)?;
    let agent = ostler_agents::find(&run.record.agent).ok_or_else(|| {
        Failure::new(Code::Failed, format!("this Ostler knows no agent `{}`", run.record.agent))
    })?;
    let mut reader = agent.reader();
    let mut output_log = OutputReader::open(&args.dir, 0).map_err(unreadable)?;
    let (mut events, mut output_bytes, mut dropped_bytes) = (Vec::new(), 0, 0);
    while let Some(item) = output_log.next_item().map_err(unreadable)? {
        match item {
            Item::Gap(gap) => dropped_bytes += gap.dropped_bytes(),
            Item::Chunk(chunk) => {
                output_bytes += chunk.bytes.len() as u64;
                let stream = match chunk.stream {
                    rundir::Stream::Stdout => Stream::Stdout,
                    rundir::Stream::Stderr => Stream::Stderr,
                };
                reader.push(stream, &chunk.bytes, &mut events);
                show(&mut events, args.json.json)?;
            }
        }
    }
    reader.finish_streams(&mut events);
    show(&mut events, args.json.json)?;
    let exit = run.exit.as_ref();
    let conclusion = reader.conclude(
        exit.and_then(rundir::ExitRecord::exit),
        exit.is_none_or(|exit| exit.stopped || exit.daemon_gone),
    );
    let replayed = Replayed {
        r#type: "replay",
        task_id: run.record.task_id,
        attempt: run.record.attempt,
        agent: run.record.agent,
        status: match conclusion.status {
            Status::Completed => "completed",
            Status::Failed if exit.is_none_or(|exit| exit.daemon_gone) => "interrupted",
            Status::Failed => "failed",
        },
        statement: conclusion.statement,
        failure: conclusion.failure.map(|failure| ReplayedFailure {
            class: failure.class.as_str(),
            message: redact::line(&failure.message).into_owned(),
        }),
        session_id: conclusion.session_id,
        text: conclusion.text.map(|text| redact::text(&text).into_owned()),
        denials: conclusion.denials,
        output_bytes,
        dropped_bytes,
        ended: exit.is_some_and(|exit| exit.empty),
    };
    tell(&replayed, args.json.json)?;
    Ok(Code::Success.into())
}

fn show(events: &mut Vec<AgentEvent>, json: bool) -> Result<(), Failure> {
    for line in events.drain(..).filter_map(ostler_host::runner::display_line) {
        let line = redact::line(&line);
        if json {
            output::json_line(&serde_json::json!({"type": "output", "line": line}))?;
        } else {
            output::line(&output::safe(&line))?;
        }
    }
    Ok(())
}

fn tell(replayed: &Replayed, json: bool) -> Result<(), Failure> {
    if json {
        return output::json_line(replayed);
    }
    let why = replayed
        .failure
        .as_ref()
        .map_or_else(String::new, |failure| format!(": {}", output::safe(&failure.message)));
    output::note(&format!(
        "{} {}#{}: {}{why}",
        replayed.agent,
        output::safe(&replayed.task_id),
        replayed.attempt,
        replayed.status
    ));
    Ok(())
}
