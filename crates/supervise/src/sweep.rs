//! Ends what a killed shim left behind.
//!
//! Found by the run's marker in the environment, below such processes by parentage, and in the run's cgroup
//! where it has one. Best effort without one: a process that was started with an empty environment and
//! whose parents are gone is not found then. A shim that still lives comes last, since it does the same work better.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8Path;
use ostler_core::outcome::Killed;
use rustix::process::{Signal, pidfd_send_signal};

use crate::cgroup::Cgroup;
use crate::procfs::{self, Stat, argv0};
use crate::rundir;
use crate::{MARKER_ENV, SHIM_ARG};

/// How long TERM has before KILL; longer than a shim without a daemon takes.
const TERM_MS: u64 = 2_000;
/// How long a shim has to notice that nothing is left below it.
const SHIM_MS: u64 = 1_000;
/// Pause between looks.
const ROUND_MS: u64 = 20;
/// The least time that a look is given.
const LOOK_MIN: Duration = Duration::from_millis(500);
/// So many looks in a row must find nothing.
const EMPTY_LOOKS: u32 = 2;
/// The longest environment that is searched.
const ENVIRON_BYTES_MAX: u64 = 4 << 20;
/// The most processes that are named.
const KILLED_MAX: usize = 64;

/// What a sweep did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// What did not obey TERM, the first of them.
    pub killed: Vec<Killed>,
    /// What was still there at the deadline, the first of them; empty when the run is gone.
    pub remaining: Vec<Killed>,
}

/// One process of the run, held by a handle that was opened before it was looked at.
struct Found {
    handle: OwnedFd,
    stat: Stat,
    is_shim: bool,
}

/// What belongs to a run.
struct Target {
    /// The entry that its environments have.
    wanted: String,
    cgroup: Option<Cgroup>,
    spared: Option<Spared>,
}

/// Who may outlive a run.
#[derive(Debug, Clone, Default)]
pub struct Spared {
    /// Names of processes.
    pub names: Vec<String>,
    /// The agent itself: no name lets it live.
    pub leader: u32,
}

/// Ends every process of the run that carries `marker`, or is in the cgroup that `run_dir` names, but those
/// that are spared: TERM, a grace, KILL until two looks in a row find nothing, or `deadline` has passed. Where
/// the agent's number is not known, nobody can be spared: better a lost helper than an agent left loose. Must be
/// called inside a tokio runtime.
pub async fn sweep(
    marker: &str,
    run_dir: Option<&Utf8Path>,
    spared: Option<Spared>,
    deadline: Duration,
) -> SweepReport {
    let cgroup = run_dir.and_then(|dir| {
        let path = rundir::read_shim(dir).ok()??.cgroup?;
        Cgroup::recorded(&path, marker)
    });
    let wanted = format!("{MARKER_ENV}={marker}");
    let target = Arc::new(Target {
        wanted,
        cgroup,
        spared: spared.filter(|spared| !spared.names.is_empty()),
    });
    let report = end_all(&target, deadline).await;
    if let Some(cgroup) = &target.cgroup {
        cgroup.remove();
    }
    report
}

async fn end_all(target: &Arc<Target>, deadline: Duration) -> SweepReport {
    let began = Instant::now();
    let mut report = SweepReport::default();
    let mut asked: BTreeSet<(i32, u64)> = BTreeSet::new();
    let mut killed: BTreeSet<(i32, u64)> = BTreeSet::new();
    let mut empty_looks = 0;
    let mut shims_alone_since: Option<Instant> = None;
    loop {
        // A process that hangs in the kernel can hold up whoever reads its environment.
        let looking = Arc::clone(target);
        let look = tokio::task::spawn_blocking(move || find(&looking));
        let left = deadline.saturating_sub(began.elapsed());
        let Ok(Ok(found)) = tokio::time::timeout(left.max(LOOK_MIN), look).await else {
            report.remaining = vec![Killed {
                pid: 0,
                argv0: "(the process table did not answer)".to_owned(),
                after: "kill".to_owned(),
            }];
            return report;
        };
        empty_looks = if found.is_empty() { empty_looks + 1 } else { 0 };
        if empty_looks >= EMPTY_LOOKS {
            return report;
        }
        if began.elapsed() >= deadline {
            report.remaining = found.iter().take(KILLED_MAX).map(|one| name(one, "kill")).collect();
            return report;
        }
        let shims_only = found.iter().all(|one| one.is_shim);
        let alone = if shims_only {
            *shims_alone_since.get_or_insert_with(Instant::now)
        } else {
            Instant::now()
        };
        if !shims_only {
            shims_alone_since = None;
        }
        let kill_shims = shims_only && alone.elapsed() >= Duration::from_millis(SHIM_MS);
        let kill = began.elapsed() >= Duration::from_millis(TERM_MS);
        for one in found.iter().filter(|one| !one.is_shim || kill_shims) {
            let key = (one.stat.pid, one.stat.start_time);
            if kill || one.is_shim {
                if killed.insert(key) && report.killed.len() < KILLED_MAX {
                    report.killed.push(name(one, "term"));
                }
                let _ = pidfd_send_signal(&one.handle, Signal::KILL);
            } else if asked.insert(key) {
                let _ = pidfd_send_signal(&one.handle, Signal::TERM);
            }
        }
        if kill && !found.iter().any(|one| one.is_shim) {
            // Without the race that a storm of forks wins against one signal after the other.
            let _ = target.cgroup.as_ref().filter(|_| target.spared.is_none()).map(Cgroup::kill);
        }
        tokio::time::sleep(Duration::from_millis(ROUND_MS)).await;
    }
}

fn name(one: &Found, after: &str) -> Killed {
    Killed { pid: one.stat.pid.unsigned_abs(), argv0: argv0(one.stat.pid), after: after.to_owned() }
}

fn find(target: &Target) -> Vec<Found> {
    let wanted = &target.wanted;
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let carriers = procfs::pids().into_iter().filter(|pid| *pid != me && carries(*pid, wanted));
    let mut found: Vec<Found> = carriers
        .filter_map(|pid| {
            let handle = procfs::open(pid)?;
            // Looked at again through nothing but the number; if it changed hands after the handle was
            // opened, the handle's process is dead and the signal goes nowhere.
            let stat = Stat::read(pid).filter(|_| carries(pid, wanted))?;
            Some(Found { handle, stat, is_shim: is_shim(pid) })
        })
        .collect();
    let roots: Vec<i32> = found.iter().map(|one| one.stat.pid).collect();
    for below in procfs::descendants(&roots) {
        if below.is_zombie() || below.pid == me || found.iter().any(|one| one.stat.pid == below.pid)
        {
            continue;
        }
        let Some(handle) = procfs::open(below.pid) else {
            continue;
        };
        let now = Stat::read(below.pid);
        if now.is_some_and(|now| now.start_time == below.start_time && now.parent == below.parent) {
            found.push(Found { handle, stat: below, is_shim: false });
        }
    }
    if let Some(cgroup) = &target.cgroup {
        find_members(cgroup, me, &mut found);
    }
    if let Some(spared) = &target.spared {
        spare(spared, &mut found);
    }
    found
}

/// Takes out whom the keep-list names, and who is below them.
fn spare(spared: &Spared, found: &mut Vec<Found>) {
    let named: Vec<i32> = found
        .iter()
        .map(|one| one.stat.pid)
        .filter(|pid| pid.unsigned_abs() != spared.leader)
        .filter(|pid| spared.names.iter().any(|name| *name == argv0(*pid)))
        .collect();
    let below: Vec<i32> = procfs::descendants(&named).iter().map(|stat| stat.pid).collect();
    found.retain(|one| !named.contains(&one.stat.pid) && !below.contains(&one.stat.pid));
}

/// Adds who is in the cgroup and was not found otherwise. Membership is looked at again once the handles are
/// open: whoever has the number then is in the cgroup too.
fn find_members(cgroup: &Cgroup, me: i32, found: &mut Vec<Found>) {
    let is_new = |pid: &i32| *pid != me && !found.iter().any(|one| one.stat.pid == *pid);
    let members: Vec<i32> = cgroup.members().into_iter().filter(is_new).collect();
    let held: Vec<_> = members.iter().filter_map(|pid| Some((*pid, procfs::open(*pid)?))).collect();
    let still = if held.is_empty() { Vec::new() } else { cgroup.members() };
    for (pid, handle) in held {
        if let Some(stat) = Stat::read(pid).filter(|stat| still.contains(&pid) && !stat.is_zombie())
        {
            found.push(Found { handle, stat, is_shim: is_shim(pid) });
        }
    }
}

/// Whether the process was executed with that entry in its environment.
fn carries(pid: i32, wanted: &str) -> bool {
    let Ok(file) = File::open(format!("/proc/{pid}/environ")) else {
        return false;
    };
    let mut environ = Vec::new();
    if file.take(ENVIRON_BYTES_MAX).read_to_end(&mut environ).is_err() {
        return false;
    }
    environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
}

fn is_shim(pid: i32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(SHIM_ARG.as_bytes())
}
