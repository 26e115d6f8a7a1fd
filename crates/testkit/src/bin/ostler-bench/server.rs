//! The daemon of rows 1 to 3: the real one in a process of its own, with a runner that ends every run at
//! once. It ends in good order when its standard input ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use camino::Utf8PathBuf;
use ostler_core::clock::Clock;
use ostler_core::outcome::{Exit, Outcome, Proof, Receipt, Verdict};
use ostler_core::task::{EndStatus, RunEnd};
use ostler_host::clock::SystemClock;
use ostler_host::runner::{LogSink, RunFuture, RunOrder, StopSignal, TaskRunner};
use ostler_host::{Daemon, Settings};
use tokio::sync::oneshot;

use crate::Fault;

/// The prompt of runs that last until they are stopped.
pub(crate) const HOLD: &str = "hold";

struct AtOnce;

impl TaskRunner for AtOnce {
    fn run(&self, order: RunOrder, _log: LogSink, mut stop: StopSignal) -> RunFuture {
        Box::pin(async move {
            let status = if order.input.prompt == HOLD {
                stop.stopped().await;
                EndStatus::Stopped
            } else {
                EndStatus::Completed
            };
            RunEnd { status, outcome: outcome() }
        })
    }
}

/// What a successful run of a program leaves.
fn outcome() -> Outcome {
    let receipt = Receipt {
        proof: Some(Proof::ExitStatus),
        exit: Some(Exit::Code(0)),
        verdict: Verdict::Succeeded,
        ..Receipt::unproven("command".to_owned(), SystemClock.now().wall)
    };
    Outcome { failure: None, receipt, text: None, usage: None, cost_micros: None }
}

/// The hidden command `serve`.
pub(crate) fn serve(dir: &str, live_max: &str) -> Result<(), Fault> {
    let mut settings = Settings::new(Utf8PathBuf::from(dir));
    settings.tasks.live_tasks_max = live_max.parse()?;
    let (stop, stopped) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = stop.send(());
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let daemon = Daemon::start(settings, Arc::new(AtOnce))?;
        println!("serving");
        std::io::stdout().flush()?;
        daemon
            .serve(async move {
                let _ = stopped.await;
            })
            .await;
        Ok(())
    })
}

/// The load generator's side of it.
pub(crate) struct Server {
    child: Child,
    stdin: Option<ChildStdin>,
    dir: PathBuf,
}

impl Server {
    /// Starts one on `dir` and waits until it serves.
    pub(crate) fn start(dir: &Path, live_max: usize) -> Result<Self, Fault> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(dir)
            .arg(live_max.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or("no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let stdin = child.stdin.take();
        let server = Self { child, stdin, dir: dir.to_owned() };
        if line.trim() == "serving" { Ok(server) } else { Err("the daemon did not start".into()) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("daemon.sock")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in good order.
    pub(crate) fn stop(mut self) -> Result<(), Fault> {
        self.stdin = None;
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the daemon ended with {status}").into())
        }
    }

    /// Ends it with no chance to write anything.
    pub(crate) fn kill(mut self) -> Result<(), Fault> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
