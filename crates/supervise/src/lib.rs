//! Processes: the shim, process trees and run directories.
//!
//! Every agent runs below a *shim* (`ostler __shim`, [`shim_main`]), a small single-threaded process
//! that owns the agent's whole tree, writes its output into a run directory ([`rundir`]) and reports
//! to the daemon ([`Shim`]). The shim ends the tree when told to, and when its control socket closes;
//! nothing counts as ended before the kernel says that no child is left. When a shim itself was
//! killed, [`sweep`] finds what it left by the run's marker. Small helper commands go through
//! [`probe`].
//!
//! Deliberately absent: what the output means (`agents`), when a run may start and what became of
//! the task (`core`, `host`), `unsafe`, and `PR_SET_PDEATHSIG` (it follows the thread).

mod cgroup;
mod client;
#[doc(hidden)]
pub mod fuzzing;
mod probe;
mod procfs;
mod protocol;
pub mod rundir;
mod shim;
mod spec;
mod sweep;

pub use client::{Ended, IdleShim, Report, Shim};
pub use probe::{ProbeOutput, probe};
pub use procfs::{Identity, Signalled, is_alive, signal_identity};
pub use protocol::{SpawnErrorKind, StopOrder};
pub use shim::{ShimHooks, shim_main, shim_main_with};
pub use spec::{KeptBytes, RunSpec, Stdin, StopPlan};
pub use sweep::{Spared, SweepReport, sweep};

/// The argument that makes the binary a shim.
pub const SHIM_ARG: &str = "__shim";

/// The environment variable every process of a run carries; its value is random per run, so that
/// what outlived its shim can be found.
pub const MARKER_ENV: &str = "OSTLER_RUN";

/// Whether this process was started, directly or not, by an agent of ours.
pub fn inside_a_run() -> bool {
    std::env::var_os(MARKER_ENV).is_some()
}

/// A new marker: 128 random bits in hex.
pub fn new_marker() -> std::io::Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
