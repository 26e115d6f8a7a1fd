//! `ostler daemon`: the runtime daemon in the foreground.

use std::process::ExitCode;
use std::sync::Arc;

use ostler_host::clock::SystemClock;
use ostler_host::config::Config;
use ostler_host::paths::{CONFIG_FILE_ENV, Paths};
use ostler_host::runner::ProcessRunner;
use ostler_host::settings::runner_settings;
use ostler_host::{Daemon, Settings, StartError};

use crate::args::DaemonArgs;
use crate::context::{Context, block_on};
use crate::error::{Code, Failure};
use crate::logging;
use crate::signals::{Signals, end_at_the_second_signal};
use crate::text_file;

pub(crate) fn perform(context: &Context, args: &DaemonArgs) -> Result<ExitCode, Failure> {
    if args.background {
        // A session of its own: the terminal that started us may go.
        let _ = rustix::process::setsid();
    }
    logging::start(args.log_file.as_deref())?;
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
    let config = config(context)?;
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

/// What the configuration file says.
pub(crate) fn config(context: &Context) -> Result<Config, Failure> {
    let Paths { config_file: file, config_is_explicit: is_named, .. } = &context.paths;
    let other = format!("{CONFIG_FILE_ENV} names another");
    let text = text_file::configuration(file, *is_named, &other)?;
    Config::parse(&text, file).map_err(|error| {
        let hint = error.hint();
        Failure::new(Code::Usage, "the configuration cannot be used").because(error).hint(hint)
    })
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
