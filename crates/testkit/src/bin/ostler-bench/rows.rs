//! Rows 1 to 3: how many submissions a second the daemon answers and sees through.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::disk::Probe;
use crate::load::{self, Plan};
use crate::proc::{mib, private_bytes, processor_time};
use crate::report::{Target, median, note, row};
use crate::server::{HOLD, Server};
use crate::wire::Wire;
use crate::{Fault, Options};

/// The default live set.
pub(crate) const LIVE_MAX: usize = 1_000;
/// Unfinished tasks that a load lets a daemon have whose live set is the default.
const UNFINISHED_MAX: u64 = 900;
/// Rounds whose best counts: other work on the machine only ever takes away.
const ROUNDS: usize = 3;
/// Rounds at depth 1, each between two looks at the disk.
const DISK_ROUNDS: usize = 24;
const DISK_LOOK: Duration = Duration::from_millis(150);
const DISK_LOAD: Duration = Duration::from_millis(300);

/// A fresh daemon that may run as many at once as the protocol allows.
fn server(dir: &Path, name: &str, live_max: usize) -> Result<Server, Fault> {
    let server = Server::start(&dir.join(name), live_max)?;
    Wire::connect(&server.socket())?
        .call(&json!({"version": 1, "type": "set_limit", "limit": 32}))?;
    Ok(server)
}

pub(crate) fn submits(options: &Options) -> Result<(), Fault> {
    let dir = options.dir.path();
    let time = options.load / ROUNDS as u32;
    let deep = Plan { connections: 1, depth: 512, time, unfinished_max: UNFINISHED_MAX };
    let mut rates = Vec::new();
    for round in 0..ROUNDS {
        let server = server(dir, &format!("deep{round}"), LIVE_MAX)?;
        let outcome = load::run(&server.socket(), "d", &deep)?;
        rates.push(outcome.rate());
        note(&format!(
            "depth 512: {:.0}/s; answered in {}; {} refused; daemon has {:.1} MiB private",
            outcome.rate(),
            outcome.answers.summary(),
            outcome.refused,
            mib(private_bytes(server.pid())?)
        ));
        note(&processors(&server, outcome.accepted, outcome.seconds)?);
        server.stop()?;
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    row("submits answered, 1 connection, depth 512", best, "/s", Target::AtLeast(20_000.0));
    note(&format!("best of {ROUNDS}; median {:.0}/s", median(&rates)));
    against_the_disk(dir)
}

fn against_the_disk(dir: &Path) -> Result<(), Fault> {
    let server = server(dir, "single", LIVE_MAX)?;
    let mut probe = Probe::new(&dir.join("single"))?;
    let single = Plan { connections: 1, depth: 1, time: DISK_LOAD, unfinished_max: UNFINISHED_MAX };
    let (mut ratios, mut medians) = (Vec::new(), Vec::new());
    let mut before = probe.for_a_while(DISK_LOOK)?;
    for round in 0..DISK_ROUNDS {
        let outcome = load::run(&server.socket(), &format!("s{round}"), &single)?;
        let after = probe.for_a_while(DISK_LOOK)?;
        let disk = (before.len() + after.len()) as f64 / (2.0 * DISK_LOOK.as_secs_f64());
        ratios.push(outcome.rate() / disk);
        let (answer, flush) = (outcome.answers.percentile(50), after.percentile(50));
        medians.push(flush.as_secs_f64() / answer.as_secs_f64());
        if round % (DISK_ROUNDS / 4) == 0 {
            note(&format!("depth 1: {:.0}/s, disk {disk:.0}/s", outcome.rate()));
            note(&format!(
                "  an answer {}; an fdatasync {}",
                outcome.answers.summary(),
                after.summary()
            ));
        }
        before = after;
    }
    let best = ratios.iter().copied().fold(0.0, f64::max);
    let what = "submits at depth 1, part of the disk's fdatasync rate";
    row(what, median(&ratios), "", Target::AtLeast(0.6));
    note(&format!(
        "median of {DISK_ROUNDS}; best {best:.2}; median fdatasync by median answer {:.2}",
        median(&medians)
    ));
    server.stop()
}

pub(crate) fn crowd(options: &Options) -> Result<(), Fault> {
    let server = server(options.dir.path(), "crowd", LIVE_MAX)?;
    let plan =
        Plan { connections: 32, depth: 16, time: options.load, unfinished_max: UNFINISHED_MAX };
    let outcome = load::run(&server.socket(), "c", &plan)?;
    let what = format!("the same with 32 connections, {:.0} s, in total", outcome.seconds);
    row(&what, outcome.rate(), "/s", Target::AtLeast(10_000.0));
    row("connections that were dropped", outcome.dropped as f64, "", Target::AtMost(0.0));
    let every = 3 * outcome.accepted * 32 == outcome.events;
    note(&format!(
        "{} accepted, {} refused; {} events seen ({}), {:.0} MiB; answered in {}; daemon has {:.1} MiB private",
        outcome.accepted,
        outcome.refused,
        outcome.events,
        if every { "every one by every connection" } else { "SOME ARE MISSING" },
        mib(outcome.bytes),
        outcome.answers.summary(),
        mib(private_bytes(server.pid())?)
    ));
    note(&processors(&server, outcome.accepted, outcome.seconds)?);
    let journal = options.dir.path().join("crowd/journal");
    let snapshots = std::fs::read_dir(journal)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut files: Vec<_> = snapshots.collect();
    files.sort();
    note(&format!("journal at the end: {}", files.join(" ")));
    server.stop()
}

/// Both live sets are full, so that each submission of either sends one to the archive.
pub(crate) fn live(options: &Options) -> Result<(), Fault> {
    let mut ratios = Vec::new();
    let time = (options.load / (2 * ROUNDS as u32)).max(Duration::from_secs(2));
    for round in 0..ROUNDS {
        let few = with_live(options, round, 10, time)?;
        let many = with_live(options, round, 1_000, time)?;
        note(&format!("10 live: {few:.0}/s, 1,000 live: {many:.0}/s, ratio {:.2}", many / few));
        ratios.push(many / few);
    }
    let what = "rate at 1,000 live tasks against 10";
    row(what, median(&ratios), "", Target::AtLeast(0.8));
    note(&format!("median of {ROUNDS}; best {:.2}", ratios.iter().copied().fold(0.0, f64::max)));
    Ok(())
}

/// What the daemon needed of the processors: on a machine that is busy with other things, that says more
/// than the clock.
fn processors(server: &Server, accepted: u64, seconds: f64) -> Result<String, Fault> {
    let (ran, waited) = processor_time(server.pid())?;
    Ok(format!(
        "in {seconds:.1} s the daemon ran {:.2} s ({:.1} us a task) and waited {:.2} s for a processor",
        ran.as_secs_f64(),
        ran.as_secs_f64() * 1e6 / accepted as f64,
        waited.as_secs_f64()
    ))
}

/// The rate beside `held` tasks that stay: one runs, the others of its session wait for it.
fn with_live(options: &Options, round: usize, held: usize, time: Duration) -> Result<f64, Fault> {
    const DEPTH: usize = 64;
    let name = format!("live{round}-{held}");
    // As many again may be on their way: unanswered, and answered but unfinished.
    let server = server(options.dir.path(), &name, held + 4 * DEPTH)?;
    let mut wire = Wire::connect(&server.socket())?;
    for n in 0..held {
        wire.call(&json!({"version": 1, "type": "submit", "task_id": format!("hold-{n}"),
            "session_id": "hold", "prompt": HOLD, "cwd": "/work"}))?;
    }
    drop(wire);
    let plan = Plan { connections: 1, depth: DEPTH, time, unfinished_max: 3 * DEPTH as u64 };
    let outcome = load::run(&server.socket(), "l", &plan)?;
    if outcome.refused > 0 {
        note(&format!("{} refused with {held} live", outcome.refused));
    }
    server.kill()?;
    Ok(outcome.rate())
}
