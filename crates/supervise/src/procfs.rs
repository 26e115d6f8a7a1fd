//! What `/proc` says of processes, and signals that reach only the process that was meant.
//!
//! A pid is a number that is used again. A process is named by boot id, pid and start time, a handle
//! (pidfd) is opened *before* the name is checked, and the signal goes through the handle.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The longest name of a program that is reported, in characters.
const ARGV0_CHARS_MAX: usize = 128;

/// One process of one boot of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The kernel's id of this boot.
    pub boot_id: String,
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
}

impl Identity {
    /// The identity of the process that has that number now.
    pub fn of(pid: u32) -> io::Result<Self> {
        let stat = i32::try_from(pid).ok().and_then(Stat::read);
        let stat = stat.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Self { boot_id: boot_id()?.to_owned(), pid, start_time: stat.start_time })
    }

    /// Whether the machine has not been restarted since.
    pub fn is_of_this_boot(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot_id)
    }
}

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// It was sent.
    Sent,
    /// No process has that number.
    Gone,
    /// Another process has it now, or the machine has been restarted; nothing was sent.
    Other,
}

/// Sends `signal` to the process `identity` names and to no other.
pub fn signal_identity(identity: &Identity, signal: i32) -> io::Result<Signalled> {
    let signal = Signal::from_named_raw(signal)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let Some(handle) = i32::try_from(identity.pid).ok().and_then(open) else {
        return Ok(Signalled::Gone);
    };
    match Identity::of(identity.pid) {
        Ok(now) if now == *identity => {}
        Ok(_) => return Ok(Signalled::Other),
        Err(_) => return Ok(Signalled::Gone),
    }
    match pidfd_send_signal(&handle, signal) {
        Ok(()) => Ok(Signalled::Sent),
        Err(rustix::io::Errno::SRCH) => Ok(Signalled::Gone),
        Err(error) => Err(error.into()),
    }
}

/// Whether exactly that process still runs (a zombie does not).
pub fn is_alive(identity: &Identity) -> bool {
    let stat = i32::try_from(identity.pid).ok().and_then(Stat::read);
    stat.is_some_and(|stat| !stat.is_zombie() && stat.start_time == identity.start_time)
        && identity.is_of_this_boot()
}

pub(crate) fn boot_id() -> io::Result<&'static str> {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    if let Some(id) = BOOT_ID.get() {
        return Ok(id);
    }
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    Ok(BOOT_ID.get_or_init(|| id))
}

/// A handle on whatever has that number now.
pub(crate) fn open(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// The line of `/proc/PID/stat` that matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: i32,
    pub(crate) state: u8,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) start_time: u64,
}

impl Stat {
    pub(crate) fn read(pid: i32) -> Option<Self> {
        let mut line = [0_u8; 1024];
        let mut file = fs::File::open(format!("/proc/{pid}/stat")).ok()?;
        let len = file.read(&mut line).ok()?;
        Self::parse(pid, line.get(..len)?)
    }

    /// The name in brackets may hold anything, brackets and spaces included: the last one counts.
    fn parse(pid: i32, line: &[u8]) -> Option<Self> {
        let end = line.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
        let mut words = rest.split_ascii_whitespace();
        let state = *words.next()?.as_bytes().first()?;
        let parent = words.next()?.parse().ok()?;
        let group = words.next()?.parse().ok()?;
        // Fields 6 to 21 lie between the group (5) and the start time (22).
        let start_time = words.nth(16)?.parse().ok()?;
        Some(Self { pid, state, parent, group, start_time })
    }

    pub(crate) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Every process number there is now.
pub(crate) fn pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Everything below the processes in `roots`, from one pass over `/proc`. Not atomic: who needs
/// certainty asks again, or waits for ECHILD.
pub(crate) fn descendants(roots: &[i32]) -> Vec<Stat> {
    let mut all: Vec<Stat> = pids().into_iter().filter_map(Stat::read).collect();
    all.sort_unstable_by_key(|stat| stat.parent);
    let children = |parent: i32| {
        let from = all.partition_point(|stat| stat.parent < parent);
        all.iter().skip(from).take_while(move |stat| stat.parent == parent)
    };
    let mut found: Vec<Stat> = roots.iter().flat_map(|root| children(*root)).copied().collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|stat| stat.pid) {
        // A number that changed hands during the pass could close a circle.
        if found.len() <= all.len() {
            found.extend(children(parent).copied());
        }
        next += 1;
    }
    found
}

/// The name a process goes by: the first word of its command line without the folder, since a
/// process may put anything, secrets included, into the rest.
pub(crate) fn argv0(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let word =
        line.split(|byte| *byte == 0 || byte.is_ascii_whitespace()).next().unwrap_or_default();
    let word = String::from_utf8_lossy(word);
    let name = word.rsplit('/').next().unwrap_or_default().trim_end_matches(':');
    if name.is_empty() {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        return comm.trim().chars().take(ARGV0_CHARS_MAX).collect();
    }
    name.chars().take(ARGV0_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let line = b"7 (a) S 1 (b) R 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 4242 23 24";
        let stat = Stat::parse(7, line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.group, stat.start_time), (b'R', 5, 6, 23));
        assert!(Stat::parse(7, b"7 (x").is_none());
        let me = i32::try_from(std::process::id()).unwrap();
        let stat = Stat::read(me).unwrap();
        assert!(stat.start_time > 0 && stat.parent > 0);
    }

    /// A forged identity stands for a number that was used again.
    #[test]
    fn b1_5_a_process_with_another_identity_is_never_signalled() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let real = Identity::of(child.id()).unwrap();
        let older = Identity { start_time: real.start_time - 1, ..real.clone() };
        let other_boot = Identity { boot_id: "another boot".into(), ..real.clone() };
        assert_eq!(signal_identity(&older, 9).unwrap(), Signalled::Other);
        assert_eq!(signal_identity(&other_boot, 9).unwrap(), Signalled::Other);
        assert!(is_alive(&real) && !is_alive(&older) && !is_alive(&other_boot));
        assert!(child.try_wait().unwrap().is_none(), "it must still run");
        assert_eq!(signal_identity(&real, 9).unwrap(), Signalled::Sent);
        child.wait().unwrap();
        assert_eq!(signal_identity(&real, 9).unwrap(), Signalled::Gone);
    }
}
