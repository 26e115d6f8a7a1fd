//! The program `ostler`.
//!
//! The first thing it does is to look whether it is a shim: that path starts no runtime, reads no
//! configuration and allocates next to nothing. Everything else is one file a command below
//! `commands`.

mod args;
mod commands;
mod context;
mod daemon_client;
mod error;
mod fleet_client;
mod logging;
mod offline;
mod output;
mod signals;
mod table;
mod text_file;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;

/// A server makes and drops many small texts a request; this one takes half the time of the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|arg| arg == ostler_supervise::SHIM_ARG) {
        return ostler_supervise::shim_main();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return error::usage(&error),
    };
    match commands::perform(cli) {
        Ok(code) => code,
        Err(error) => error::report(&error),
    }
}
