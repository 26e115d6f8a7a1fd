//! The log of what runs in the foreground.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use camino::Utf8Path;

use crate::error::{Code, Failure};

/// What is logged when `OSTLER_LOG` says nothing.
const LOG_DEFAULT: &str = "info,sqlx::postgres::notice=warn";

/// Starts it, into a file or to standard error.
pub(crate) fn start(log_file: Option<&Utf8Path>) -> Result<(), Failure> {
    use tracing_subscriber::EnvFilter;
    let filter = std::env::var("OSTLER_LOG").unwrap_or_else(|_| LOG_DEFAULT.to_owned());
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        Failure::new(Code::Usage, "OSTLER_LOG is no filter")
            .because(error.to_string())
            .hint("write it as `info`, or with parts of the program: `info,ostler_server=debug`")
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    match log_file {
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
