//! Row 4: from the command's first byte to `exec` of the agent.
//!
//! The agent is this program, which reads the clock first of all and writes it into a named pipe. A bare
//! spawn of the same program, one fdatasync and one task take turns, so that all three meet the same machine.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::time::{ClockId, clock_gettime};

use crate::disk::Probe;
use crate::product::Product;
use crate::report::{Samples, Target, millis, note, row};
use crate::wire::submit_program;
use crate::{Fault, Options, pueue};

/// Turns that are measured.
const TURNS: usize = 200;
/// Turns through the command line, which are slower.
const CLI_TURNS: usize = 40;
/// No start takes longer.
const PATIENCE_S: i64 = 30;
/// What a start may cost above a bare spawn and a flush.
const OVERHEAD_MS: f64 = 1.2;

/// The hidden command `started`.
pub(crate) fn started(pipe: &str) -> Result<(), Fault> {
    let now = now().to_le_bytes();
    File::options().write(true).open(pipe)?.write_all(&now)?;
    Ok(())
}

pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The pipe that started programs write to.
pub(crate) struct Starts {
    path: PathBuf,
    pipe: File,
    this: PathBuf,
}

impl Starts {
    fn new(dir: &Path) -> Result<Self, Fault> {
        let path = dir.join("starts");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        // For writing too: so it never ends.
        let pipe = File::options().read(true).write(true).open(&path)?;
        Ok(Self { path, pipe, this: std::env::current_exe()? })
    }

    /// The program whose start is measured, with its arguments.
    pub(crate) fn argv(&self) -> Result<[&str; 3], Fault> {
        let this = self.this.to_str().ok_or("a path that is no UTF-8")?;
        let pipe = self.path.to_str().ok_or("a path that is no UTF-8")?;
        Ok([this, "started", pipe])
    }

    /// When the next one started, counted from `begin`.
    pub(crate) fn wait(&mut self, begin: u64) -> Result<Duration, Fault> {
        let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        if poll(&mut fds, Some(&patience))? == 0 {
            return Err("the program was not started".into());
        }
        let mut nanos = [0; 8];
        self.pipe.read_exact(&mut nanos)?;
        Ok(Duration::from_nanos(u64::from_le_bytes(nanos).saturating_sub(begin)))
    }

    /// Runs `command`, which makes the program start.
    pub(crate) fn time(&mut self, command: &mut Command) -> Result<Duration, Fault> {
        let begin = now();
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let took = self.wait(begin)?;
        child.wait()?;
        Ok(took)
    }

    fn bare(&mut self) -> Result<Duration, Fault> {
        let [program, rest @ ..] = self.argv()?.map(str::to_owned);
        self.time(Command::new(program).args(rest).env_clear())
    }
}

pub(crate) fn measure(options: &Options) -> Result<(), Fault> {
    let (product, mut wire) = Product::started(options, "exec")?;
    let mut starts = Starts::new(product.home())?;
    let mut probe = Probe::new(&product.runtime_dir())?;
    let (mut bare, mut task, mut sync) =
        (Samples::default(), Samples::default(), Samples::default());
    for turn in 0..TURNS {
        bare.push(starts.bare()?);
        sync.push(probe.once()?);
        let id = format!("t{turn}");
        let (frame, _) = wire.frame(&submit_program(&id, &starts.argv()?))?;
        let begin = now();
        wire.write(&frame)?;
        task.push(starts.wait(begin)?);
        let end = wire.until_settled(&id)?;
        if end["status"] != "TaskCompleted" {
            return Err(format!("the task did not complete: {end}").into());
        }
    }
    let bound =
        |percent| millis(bare.percentile(percent)) + OVERHEAD_MS + millis(sync.percentile(percent));
    let p50 =
        Target::AtMost(millis(bare.percentile(50)) + OVERHEAD_MS + millis(sync.percentile(50)));
    row("command to exec of the agent, p50", millis(task.percentile(50)), "ms", p50);
    let p99 = Target::AtMost(2.0 * bound(50));
    row("command to exec of the agent, p99", millis(task.percentile(99)), "ms", p99);
    note(&format!("bare spawn: {}", bare.summary()));
    note(&format!("fdatasync: {}", sync.summary()));
    note(&format!("task: {}", task.summary()));
    note(&format!(
        "twice the bound with the p99 of spawn and fdatasync: {:.2} ms",
        2.0 * bound(99)
    ));
    compare(&product, &mut starts)
}

/// Through the command lines: ours, and pueue's where it is installed.
fn compare(product: &Product, starts: &mut Starts) -> Result<(), Fault> {
    let mut ours = Samples::default();
    for _ in 0..CLI_TURNS {
        let argv = starts.argv()?.map(str::to_owned);
        let mut command = product.command();
        command.args(["run", "--detach", "-a", "command", "--"]).args(argv);
        ours.push(starts.time(&mut command)?);
    }
    row("`ostler run --detach` to exec, p50", millis(ours.percentile(50)), "ms", Target::None);
    note(&ours.summary());
    match pueue::measure(product.home(), starts, CLI_TURNS)? {
        Some(theirs) => {
            row("`pueue add` to exec, p50", millis(theirs.percentile(50)), "ms", Target::None);
            note(&theirs.summary());
        }
        None => note("pueue: PUEUE_BIN_DIR does not name a folder with pueue and pueued"),
    }
    Ok(())
}
