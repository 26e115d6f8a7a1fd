//! The process tree below a shim: who is left, and ending them.
//!
//! The shim is child subreaper, so whatever the agent starts stays its descendant, in whatever session
//! or group. `wait` says ECHILD only when no descendant is left: the kernel's proof. A signal to a
//! single process goes through a handle opened before the process was checked. A *group* is
//! signalled only when it is named after one of the shim's own children: until that child is
//! reaped, by nobody but the shim, its number belongs to nobody else, as a process or as a group.

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process_group, pidfd_send_signal, wait,
};

use crate::procfs::{self, Stat, argv0};
use crate::rundir::KilledRecord;

/// The most killed, kept or remaining processes that are named.
const KILLED_MAX: usize = 64;
/// The most children reaped before something else gets a turn.
const REAP_ROUND_MAX: usize = 1_024;

/// What reaping found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaped {
    /// The kernel says that nothing is left.
    Empty,
    /// Somebody still runs.
    Alive,
    /// There may be more to reap.
    More,
}

pub(super) struct Tree {
    me: i32,
    /// The agent itself: no keep-list lets it live.
    leader: i32,
    keep: Vec<String>,
    /// Tests make processes immortal with it.
    immortal: fn(i32) -> bool,
    killed: Vec<(u64, KilledRecord)>,
}

impl Tree {
    pub(super) fn new(leader: i32, keep: Vec<String>, immortal: fn(i32) -> bool) -> Self {
        let me = rustix::process::getpid().as_raw_nonzero().get();
        Self { me, leader, keep, immortal, killed: Vec::new() }
    }

    /// Reaps what has ended and tells `ended` about each.
    pub(super) fn reap(&self, mut ended: impl FnMut(i32, WaitStatus)) -> Reaped {
        for _ in 0..REAP_ROUND_MAX {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => ended(pid.as_raw_nonzero().get(), status),
                Ok(None) => return Reaped::Alive,
                Err(Errno::CHILD) => return Reaped::Empty,
                Err(_) => return Reaped::More,
            }
        }
        Reaped::More
    }

    /// Who must go, and who is kept with everything below them.
    fn split(&self) -> (Vec<Stat>, Vec<Stat>) {
        let all = procfs::descendants(&[self.me]);
        if self.keep.is_empty() {
            return (all, Vec::new());
        }
        let mut kept: Vec<Stat> = Vec::new();
        let mut rest = Vec::new();
        // Parents come before their children.
        for stat in all {
            let below = kept.iter().any(|parent| parent.pid == stat.parent);
            let named = || self.keep.iter().any(|name| *name == argv0(stat.pid));
            if below || (stat.pid != self.leader && named()) { &mut kept } else { &mut rest }
                .push(stat);
        }
        (rest, kept)
    }

    /// Whether nothing is left but what the keep-list lets live: two looks in a row.
    pub(super) fn only_kept_left(&self) -> bool {
        let nobody = || self.split().0.iter().all(Stat::is_zombie);
        !self.keep.is_empty() && nobody() && nobody()
    }

    /// Who is kept, by name.
    pub(super) fn kept(&self) -> Vec<KilledRecord> {
        if self.keep.is_empty() {
            return Vec::new();
        }
        self.split()
            .1
            .iter()
            .filter(|stat| !stat.is_zombie())
            .take(KILLED_MAX)
            .map(|stat| record(stat, "exit"))
            .collect()
    }

    /// Who is still there, by name.
    pub(super) fn remaining(&self) -> Vec<KilledRecord> {
        self.split()
            .0
            .iter()
            .filter(|stat| !stat.is_zombie())
            .take(KILLED_MAX)
            .map(|stat| record(stat, "kill"))
            .collect()
    }

    /// What had to be killed so far.
    pub(super) fn killed(&self) -> Vec<KilledRecord> {
        self.killed.iter().map(|(_, record)| record.clone()).collect()
    }

    /// Signals the process group of a child that was not reaped.
    pub(super) fn signal_group_of(&mut self, child: i32, signal: Signal, after: Option<&str>) {
        let (rest, kept) = self.split();
        let Some(group) = rest.iter().find(|stat| stat.pid == child).map(|stat| stat.group) else {
            return;
        };
        let members: Vec<Stat> = rest.iter().filter(|stat| stat.group == group).copied().collect();
        self.note(&members, after);
        self.signal(&members, &rest, &kept, signal);
    }

    /// Signals everybody who must go. `after` names what they did not obey, when that is worth telling.
    pub(super) fn signal_all(&mut self, signal: Signal, after: Option<&str>) {
        let (rest, kept) = self.split();
        self.note(&rest, after);
        self.signal(&rest, &rest, &kept, signal);
    }

    fn signal(&self, targets: &[Stat], rest: &[Stat], kept: &[Stat], signal: Signal) {
        let spared = |group: i32| {
            kept.iter().any(|stat| stat.group == group)
                || rest.iter().any(|stat| stat.group == group && (self.immortal)(stat.pid))
        };
        // Numbers that are pinned: they belong to children of ours that were not reaped.
        let pinned = targets.iter().filter(|stat| stat.parent == self.me && stat.group == stat.pid);
        let groups: Vec<i32> =
            pinned.map(|stat| stat.group).filter(|group| !spared(*group)).collect();
        for group in groups.iter().copied().filter_map(Pid::from_raw) {
            let _ = kill_process_group(group, signal);
        }
        for target in targets
            .iter()
            .filter(|stat| !groups.contains(&stat.group) && !(self.immortal)(stat.pid))
        {
            self.signal_one(target, rest, signal);
        }
    }

    fn signal_one(&self, target: &Stat, rest: &[Stat], signal: Signal) {
        let Some(handle) = procfs::open(target.pid) else {
            return;
        };
        let Some(now) = Stat::read(target.pid) else {
            return;
        };
        let ours = now.parent == self.me || rest.iter().any(|stat| stat.pid == now.parent);
        if ours && now.start_time == target.start_time {
            let _ = pidfd_send_signal(&handle, signal);
        }
    }

    /// Remembers who is signalled because they did not obey `after`; a later entry replaces an earlier.
    fn note(&mut self, targets: &[Stat], after: Option<&str>) {
        let Some(after) = after else { return };
        for target in targets.iter().filter(|stat| !stat.is_zombie()) {
            let known = self.killed.iter_mut().find(|(start, record)| {
                *start == target.start_time && i64::from(record.pid) == i64::from(target.pid)
            });
            if let Some((_, record)) = known {
                after.clone_into(&mut record.after);
                continue;
            }
            if self.killed.len() < KILLED_MAX {
                self.killed.push((target.start_time, record(target, after)));
            }
        }
    }
}

fn record(stat: &Stat, after: &str) -> KilledRecord {
    KilledRecord { pid: stat.pid.unsigned_abs(), argv0: argv0(stat.pid), after: after.to_owned() }
}
