//! The shim: one small process per run, single-threaded, without async.
//!
//! It owns the agent's process tree and the files of the run directory. Everything it needs it is
//! told over its standard input, a socket to the daemon ([`crate::protocol`]). Deliberately absent:
//! what the output means, and any order but start and stop.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

use crate::MARKER_ENV;
use crate::cgroup::Cgroup;

mod launch;
mod link;
mod log;
mod pipes;
mod run;
pub(crate) mod scrub;
mod talk;
mod tree;

/// Seams for tests; the shim of the product has none of them.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct ShimHooks {
    /// Processes that no signal reaches.
    pub immortal: fn(i32) -> bool,
    /// Killing for so long without success is reported.
    pub kill_failed_ms: u64,
}

const KILL_FAILED_MS: u64 = 10_000;

impl ShimHooks {
    /// Those of the product.
    pub const NONE: Self = Self { immortal: |_| false, kill_failed_ms: KILL_FAILED_MS };
}

/// The whole life of a shim. To be called before anything else when the first argument is
/// [`crate::SHIM_ARG`].
pub fn shim_main() -> ExitCode {
    shim_main_with(ShimHooks::NONE)
}

/// [`shim_main`] with seams for tests.
#[doc(hidden)]
pub fn shim_main_with(hooks: ShimHooks) -> ExitCode {
    let Ok((control, children)) = set_up() else { return ExitCode::FAILURE };
    let Ok(daemon) = control.try_clone() else { return ExitCode::FAILURE };
    let cgroup = if is_told(&daemon, PollFlags::IN, JOIN_AFTER) { None } else { join() };
    let served = run::run(control, children, cgroup.as_ref(), hooks);
    if let Some(cgroup) = cgroup
        && is_told(&daemon, PollFlags::HUP, Timespec::default())
    {
        // Otherwise the daemon removes it when this process is gone.
        cgroup.leave();
    }
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How long a shim waits for its run before it moves into a cgroup: the kernel holds up every start of a process
/// meanwhile, for 10 ms and more, so nothing may be about to start. A run that comes earlier has none.
const JOIN_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

fn join() -> Option<Cgroup> {
    std::env::var(MARKER_ENV).ok().and_then(|marker| Cgroup::enter(&marker))
}

/// Whether the daemon has said something, or has gone.
fn is_told(daemon: &UnixStream, what: PollFlags, wait: Timespec) -> bool {
    let mut fds = [PollFd::new(daemon, PollFlags::IN)];
    let ready = rustix::event::poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0);
    ready && fds.iter().any(|fd| fd.revents().intersects(what | PollFlags::HUP))
}

/// Signals that must not end the shim: it ends by order, or when the daemon is gone. They are caught
/// and not ignored, since what is ignored stays ignored in the agent.
const CAUGHT: [i32; 4] = [1, 2, 3, 15];

/// Becomes the head of a session and the parent of all orphans below, takes the control socket
/// off the standard descriptors, and makes SIGCHLD readable.
fn set_up() -> io::Result<(UnixStream, UnixStream)> {
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let control: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // The daemon's directory may be unmounted or removed while a run goes on.
    rustix::process::chdir("/")?;
    let (children, on_child) = UnixStream::pair()?;
    children.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(17, on_child)?;
    let nobody_looks = Arc::new(AtomicBool::new(false));
    for signal in CAUGHT {
        signal_hook::flag::register(signal, Arc::clone(&nobody_looks))?;
    }
    let control = UnixStream::from(control);
    control.set_nonblocking(true)?;
    Ok((control, children))
}
