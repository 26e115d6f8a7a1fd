//! Row 6: how long a start takes with as much on disk as is ever kept: 16 MiB of events, 1,000 tasks.

use std::path::Path;
use std::time::Instant;

use serde_json::json;

use crate::proc::processor_time;
use crate::product::Product;
use crate::report::{Samples, Target, millis, note, row};
use crate::rows::LIVE_MAX;
use crate::server::Server;
use crate::wire::Wire;
use crate::{Fault, Options};

/// Tasks submitted: three events each, so the kept 10,000 events are full, and 1,000 tasks are live.
const TASKS: usize = 3_500;
/// Starts that are measured.
const STARTS: usize = 15;
/// Makes an event so long that 10,000 of them are a little more than 16 MiB.
const CWD_BYTES: usize = 1_350;

pub(crate) fn measure(options: &Options) -> Result<(), Fault> {
    let mut product = Product::new(options, "start")?;
    let journal = product.runtime_dir().join("journal");
    fill(&product.runtime_dir())?;
    note(&format!("journal: {:.1} MiB in {} files", bytes_in(&journal)?.0, bytes_in(&journal)?.1));
    let (mut samples, mut ran) = (Samples::default(), Samples::default());
    let mut tasks = 0;
    for _ in 0..STARTS {
        let begin = Instant::now();
        product.start()?;
        let mut wire = Wire::connect_soon(&product.socket())?;
        let list = wire.call(&json!({"version": 1, "type": "list"}))?;
        samples.push(begin.elapsed());
        ran.push(processor_time(product.pid())?.0);
        tasks = list["tasks"].as_array().map_or(0, Vec::len);
        // No last snapshot: the next start has as much to read as this one.
        product.kill()?;
    }
    row(
        "start with 16 MiB of events, 1,000 tasks: p50",
        millis(samples.percentile(50)),
        "ms",
        Target::AtMost(100.0),
    );
    note(&format!("{}; {tasks} tasks in the list (as many as fit its frame)", samples.summary()));
    note(&format!("of that the daemon ran, all threads together: {}", ran.summary()));
    let mut empty = Product::new(options, "empty")?;
    let mut samples = Samples::default();
    for _ in 0..STARTS {
        let begin = Instant::now();
        empty.start()?;
        Wire::connect_soon(&empty.socket())?.call(&json!({"version": 1, "type": "list"}))?;
        samples.push(begin.elapsed());
        empty.kill()?;
    }
    row("start with nothing: p50", millis(samples.percentile(50)), "ms", Target::None);
    note(&samples.summary());
    Ok(())
}

/// A journal as a long life leaves it, ended by a kill, so that there is no last snapshot either.
fn fill(runtime_dir: &Path) -> Result<(), Fault> {
    let server = Server::start(runtime_dir, LIVE_MAX)?;
    let mut wire = Wire::connect(&server.socket())?;
    wire.call(&json!({"version": 1, "type": "set_limit", "limit": 32}))?;
    let cwd = format!("/{}", "w".repeat(CWD_BYTES));
    let mut unsettled = 0;
    for n in 0..TASKS {
        let command = json!({"version": 1, "type": "submit", "task_id": format!("t{n}"),
            "prompt": "do it", "cwd": cwd});
        let (frame, _) = wire.frame(&command)?;
        wire.write(&frame)?;
        unsettled += 1;
        // A window of 64, moved on by the ends that are seen.
        while unsettled >= 64 {
            unsettled -= usize::from(ended(&mut wire)?);
        }
    }
    while unsettled > 0 {
        unsettled -= usize::from(ended(&mut wire)?);
    }
    server.kill()
}

fn ended(wire: &mut Wire) -> Result<bool, Fault> {
    let message = wire.message()?;
    if message["ok"] == false {
        return Err(format!("refused: {message}").into());
    }
    Ok(message["event"]["payload"]["status"] == "TaskCompleted")
}

/// Mebibytes and files.
fn bytes_in(dir: &Path) -> Result<(f64, usize), Fault> {
    let (mut bytes, mut files) = (0, 0);
    for entry in std::fs::read_dir(dir)? {
        bytes += entry?.metadata()?.len();
        files += 1;
    }
    Ok((crate::proc::mib(bytes), files))
}
