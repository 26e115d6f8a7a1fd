//! `ostler daemon`: the runtime daemon in the foreground.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ostler_host::clock::SystemClock;
use ostler_host::config::Config;
use ostler_host::runner::ProcessRunner;
use ostler_host::settings::runner_settings;
use ostler_host::{Daemon, Settings, StartError};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::DaemonArgs;
use crate::context::{Context, block_on};
use crate::error::{Code, Failure};

/// What is logged when `OSTLER_LOG` says nothing.
const LOG_DEFAULT: &str = "info";

pub(crate) fn perform(context: &Context, args: &DaemonArgs) -> Result<ExitCode, Failure> {
    if args.background {
        // A session of its own: the terminal that started us may go.
        let _ = rustix::process::setsid();
    }
    start_logging(args)?;
    block_on(serve(context))
}

async fn serve(context: &Context) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen()?;
    end_at_the_second_signal()?;
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(Code::Failed, "the program does not know where it is").because(error)
    })?;
    let state = ostler_host::endpoint::lock_state_dir(
        &context.paths.state_dir,
        context.paths.home.as_deref(),
    )
    .map_err(|error| start_failure(StartError::Endpoint(error)))?;
    let config = Config::load(&context.paths).map_err(|error| {
        let hint = error.hint();
        Failure::new(Code::Usage, "the configuration cannot be used").because(error).hint(hint)
    })?;
    let settings = Settings::from_config(&config, &context.paths);
    let runner_settings = runner_settings(&config, &context.paths, &context.env, program);
    ostler_host::runner::make_runs_dir(&runner_settings.runs_dir).map_err(|error| {
        Failure::new(Code::Failed, format!("{} could not be made", runner_settings.runs_dir))
            .because(error)
    })?;
    let runner = Arc::new(ProcessRunner::new(runner_settings, Arc::new(SystemClock)));
    let daemon = Daemon::start(settings, Arc::clone(&runner) as _).map_err(start_failure)?;
    runner.warm_up();
    tracing::info!(socket = %context.paths.socket(), "serving");
    daemon
        .serve(async move {
            let first = signals.next().await;
            tracing::info!(signal = first, "stopping");
        })
        .await;
    drop(state);
    tracing::info!("stopped");
    Ok(Code::Success.into())
}

fn start_failure(error: StartError) -> Failure {
    let hint = error.hint();
    let code = if error.is_another_daemon() { Code::Refused } else { Code::Failed };
    let failure = Failure::new(code, "the daemon cannot start").because(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// TERM, INT and HUP end the daemon in good order.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Code::Failed, "signals cannot be received").because(error)
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The number of the next one.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.hang_up.recv() => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// The second signal ends the process in its handler, whatever a disk does to the one thread. The shims notice
/// that the daemon is gone and end their runs.
fn end_at_the_second_signal() -> Result<(), Failure> {
    let is_second = Arc::new(AtomicBool::new(false));
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let numbers = kinds.map(|kind| kind.as_raw_value());
    let register = || {
        for number in numbers {
            let flag = Arc::clone(&is_second);
            signal_hook::flag::register_conditional_shutdown(number, 128 + number, flag)?;
        }
        for number in numbers {
            signal_hook::flag::register(number, Arc::clone(&is_second))?;
        }
        Ok(())
    };
    register().map_err(|error: std::io::Error| {
        Failure::new(Code::Failed, "signals cannot be received").because(error)
    })
}

fn start_logging(args: &DaemonArgs) -> Result<(), Failure> {
    use tracing_subscriber::EnvFilter;
    let filter = std::env::var("OSTLER_LOG").unwrap_or_else(|_| LOG_DEFAULT.to_owned());
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        Failure::new(Code::Usage, "OSTLER_LOG is no filter")
            .because(error)
            .hint("write it as `info`, or as `ostler_host=debug`")
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    match &args.log_file {
        Some(path) => {
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
            let file = file.map_err(|error| {
                Failure::new(Code::Failed, format!("the log file {path} cannot be written"))
                    .because(error)
            })?;
            builder.with_ansi(false).with_writer(Arc::new(file)).init();
        }
        None => builder
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .with_writer(std::io::stderr)
            .init(),
    }
    Ok(())
}
