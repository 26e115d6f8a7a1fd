//! For tests, and in debug builds only: the process kills itself just before or just after a statement.
//!
//! `OSTLER_TEST_KILL_AT` names a file. While there is one and it holds a number, the moments before and after
//! statements are counted down in it; at nought the process is killed, as `kill -9` would.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::{Signal, getpid, kill_process};

/// The file, and who counts.
static COUNTDOWN: OnceLock<Option<Mutex<PathBuf>>> = OnceLock::new();

/// A statement is about to be sent, or was answered.
pub(super) fn moment() {
    let named = || std::env::var_os("OSTLER_TEST_KILL_AT").map(|path| Mutex::new(path.into()));
    let Some(file) = COUNTDOWN.get_or_init(named) else { return };
    let file = file.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(left) = std::fs::read_to_string(&*file) else { return };
    match left.trim().parse::<u64>() {
        Ok(0) => drop(kill_process(getpid(), Signal::KILL)),
        Ok(left) => drop(std::fs::write(&*file, (left - 1).to_string())),
        Err(_) => {}
    }
}
