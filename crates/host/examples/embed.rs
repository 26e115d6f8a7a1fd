//! An application that runs tasks its own way, and keeps scheduler, persistence and wire: its tasks
//! are arithmetic, their prompts sums like `1 + 2 + 3`.
//!
//! ```text
//! cargo run -p ostler-host --example embed -- /tmp/sums
//! ```
//!
//! It serves until its standard input ends. Any client of the runtime protocol can submit to
//! `/tmp/sums/daemon.sock`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use std::process::ExitCode;
use std::sync::Arc;

use ostler_core::clock::Clock;
use ostler_core::outcome::{Failure, FailureClass, Outcome, Proof, Receipt, Verdict};
use ostler_core::task::{EndStatus, RunEnd, TaskSpec};
use ostler_host::clock::SystemClock;
use ostler_host::runner::{LogSink, RunFuture, RunOrder, StopSignal, TaskInput, TaskRunner};
use ostler_host::{Daemon, Settings};

/// Adds up.
struct Adder;

impl TaskRunner for Adder {
    /// What can never be run is refused before it is a task.
    fn admit(&self, spec: &TaskSpec, _input: &TaskInput) -> Result<(), String> {
        match &spec.agent {
            None => Ok(()),
            Some(agent) => Err(format!("this daemon adds up; it has no agent {agent}")),
        }
    }

    fn run(&self, order: RunOrder, log: LogSink, mut stop: StopSignal) -> RunFuture {
        Box::pin(async move {
            tokio::select! {
                biased;
                // Whoever is told to stop ends what it does, and says so.
                _ = stop.stopped() => end(EndStatus::Stopped, None),
                sum = add(&order.input.prompt) => match sum {
                    Ok(sum) => {
                        log.line(&format!("the sum is {sum}"));
                        end(EndStatus::Completed, None)
                    }
                    Err(reason) => end(EndStatus::Failed, Some(reason)),
                },
            }
        })
    }
}

async fn add(prompt: &str) -> Result<i64, String> {
    let mut sum: i64 = 0;
    for term in prompt.split('+') {
        // Real work waits here and there, and that is where a stop takes hold.
        tokio::task::yield_now().await;
        let term: i64 = term.trim().parse().map_err(|_| "this is no sum".to_owned())?;
        sum = sum.checked_add(term).ok_or("the sum is too large")?;
    }
    Ok(sum)
}

/// The end with its evidence. The daemon makes failure and verdict agree with what became of the task.
fn end(status: EndStatus, failure: Option<String>) -> RunEnd {
    let receipt = Receipt {
        agent: "adder".to_owned(),
        agent_version: None,
        proof: Some(Proof::TerminalEvent),
        statement: None,
        exit: None,
        started_at: None,
        ended_at: SystemClock.now().wall,
        session_id: None,
        git: None,
        denials: Vec::new(),
        killed: Vec::new(),
        kept: Vec::new(),
        output_bytes: 0,
        truncated: false,
        verdict: Verdict::Succeeded,
    };
    let failure = failure.map(|message| Failure::new(FailureClass::Unknown, message));
    let outcome = Outcome { failure, receipt, text: None, usage: None, cost_micros: None };
    RunEnd { status, outcome }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(runtime_dir) = std::env::args().nth(1) else {
        eprintln!("usage: embed RUNTIME_DIRECTORY");
        return ExitCode::from(2);
    };
    let daemon = match Daemon::start(Settings::new(runtime_dir.into()), Arc::new(Adder)) {
        Ok(daemon) => daemon,
        Err(error) => {
            eprintln!("{error}: {}", error.hint().unwrap_or_default());
            return ExitCode::FAILURE;
        }
    };
    let (leave, left) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // An error is an end as well.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = leave.send(());
    });
    println!("serving");
    daemon.serve(async { drop(left.await) }).await;
    ExitCode::SUCCESS
}
