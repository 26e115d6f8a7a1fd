//! Waiting for conditions, and finding processes that should or should not be there.
//!
//! Owns: deadlines of tests and scans of `/proc`. A signal goes only through a pidfd whose process was
//! checked after it was opened. Deliberately absent: what `supervise` does for a living; tests check it
//! with these helpers, so none of its code is used here.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often a condition is looked at again.
const POLL_MS: u64 = 5;
/// How often a scan of all processes is repeated.
const SCAN_POLL_MS: u64 = 20;
/// The longest environment or command line that is read of one process; the rest is not searched.
const PROC_FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Waits until `condition` holds; panics with `what` when it does not within `deadline`.
#[track_caller]
pub fn wait_until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, deadline, || condition().then_some(()));
}

/// Waits until `look` finds something; panics with `what` when it does not within `deadline`.
#[track_caller]
pub fn wait_for<T>(what: &str, deadline: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < deadline, "waited {deadline:?} in vain: {what}");
        sleep(Duration::from_millis(POLL_MS));
    }
}

/// A process as `/proc` shows it. Equal is what is the same process, whatever it does meanwhile.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// The id of its parent.
    pub parent: i32,
    /// `R`, `S`, `Z`, …
    pub state: char,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// When it started, in clock ticks since boot: together with the id it names one process.
    pub start_time: u64,
    /// Its command line.
    pub argv: Vec<String>,
}

impl PartialEq for Process {
    fn eq(&self, other: &Self) -> bool {
        (self.pid, self.start_time) == (other.pid, other.start_time)
    }
}

impl Process {
    /// Looks one up; none when it is gone.
    pub fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything, so what follows is read from the last one.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut number = |skip: usize| fields.nth(skip)?.parse::<u64>().ok();
        let (parent, group, session) = (number(0)?, number(0)?, number(0)?);
        let start_time = number(15)?;
        let cmdline = proc_file(pid, "cmdline");
        let arguments = cmdline.strip_suffix(b"\0").unwrap_or(&cmdline);
        let argv = arguments
            .split(|byte| *byte == 0)
            .map(|argument| String::from_utf8_lossy(argument).into_owned())
            .collect();
        Some(Self {
            pid,
            parent: i32::try_from(parent).ok()?,
            state,
            group: i32::try_from(group).ok()?,
            session: i32::try_from(session).ok()?,
            start_time,
            argv,
        })
    }

    /// Whether it has ended and only waits for its parent to notice.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether this very process (not a later one with its number) still runs.
    pub fn is_alive(&self) -> bool {
        Self::read(self.pid)
            .is_some_and(|now| now.start_time == self.start_time && !now.is_zombie())
    }

    /// Signals it, and never another process that got its number meanwhile.
    pub fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        if self.is_alive() {
            let _ = pidfd_send_signal(handle, signal);
        }
    }
}

/// All processes but this one, the newest first, each read when it is asked for: of processes that come and
/// go quickly, what is looked at last is gone by then.
fn all() -> impl Iterator<Item = Process> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let entries = fs::read_dir("/proc").expect("/proc");
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut pids: Vec<i32> = numbers.filter(|pid| *pid != own).collect();
    pids.sort_unstable_by(|a, b| b.cmp(a));
    pids.into_iter().filter_map(Process::read)
}

/// Living processes with `key=value` in the environment they were started with.
pub fn find_by_env(key: &str, value: &str) -> Vec<Process> {
    let wanted = format!("{key}={value}");
    let carries = |process: &Process| {
        let environ = proc_file(process.pid, "environ");
        environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
    };
    living(carries).collect()
}

/// Living processes with `token` inside an argument.
pub fn find_by_argv(token: &str) -> Vec<Process> {
    living(|process| process.argv.iter().any(|argument| argument.contains(token))).collect()
}

/// Living processes that carry `token` anywhere: in an argument, the environment, or the path of the
/// working directory. With a [scratch](crate::scratch::Scratch) token that is everything started from
/// it, also what was started with an empty environment.
pub fn find_by_token(token: &str) -> Vec<Process> {
    living(|process| carries(process, token)).collect()
}

fn carries(process: &Process, token: &str) -> bool {
    let inside = |bytes: &[u8]| memchr::memmem::find(bytes, token.as_bytes()).is_some();
    let cwd = fs::read_link(format!("/proc/{}/cwd", process.pid)).unwrap_or_default();
    inside(cwd.as_os_str().as_encoded_bytes())
        || process.argv.iter().any(|argument| inside(argument.as_bytes()))
        || inside(&proc_file(process.pid, "environ"))
}

/// The children of a process, zombies included.
pub fn children_of(parent: i32) -> Vec<Process> {
    all().filter(|process| process.parent == parent).collect()
}

/// Panics when something that carries `token` is still there after `deadline`.
#[track_caller]
pub fn assert_none_left(token: &str, deadline: Duration) {
    let left = wait_none_left(token, deadline);
    assert!(left.is_empty(), "still there after {deadline:?}: {left:#?}");
}

/// Kills everything that carries `token`; what is left after `deadline` is returned.
pub fn kill_all(token: &str, deadline: Duration) -> Vec<Process> {
    until_none(token, deadline, |process| process.signal(Signal::KILL))
}

fn wait_none_left(token: &str, deadline: Duration) -> Vec<Process> {
    until_none(token, deadline, |_| {})
}

/// Scans until two scans in a row find nothing: one alone can miss a process that is just being forked.
fn until_none(token: &str, deadline: Duration, each: impl Fn(&Process)) -> Vec<Process> {
    let started = Instant::now();
    let mut empty_scans = 0;
    loop {
        let carriers = living(|process| carries(process, token));
        let found: Vec<Process> = carriers.inspect(&each).collect();
        empty_scans = if found.is_empty() { empty_scans + 1 } else { 0 };
        if empty_scans >= 2 || started.elapsed() >= deadline {
            return found;
        }
        sleep(Duration::from_millis(SCAN_POLL_MS));
    }
}

fn living(wanted: impl Fn(&Process) -> bool) -> impl Iterator<Item = Process> {
    all().filter(move |process| !process.is_zombie() && wanted(process))
}

fn proc_file(pid: i32, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(format!("/proc/{pid}/{name}")) {
        let _ = file.take(PROC_FILE_BYTES_MAX).read_to_end(&mut bytes);
    }
    bytes
}

/// 32 random hexadecimal digits.
pub fn random_hex() -> String {
    let uuid =
        fs::read_to_string("/proc/sys/kernel/random/uuid").expect("the kernel's random source");
    uuid.chars().filter(char::is_ascii_hexdigit).collect()
}

/// The `fake-agent` of this build.
pub fn fake_agent() -> PathBuf {
    built("ostler-testkit", "fake-agent", "src/bin/fake-agent")
}

/// The `supervise-fixture` of this build: a shim (`__shim`) to which some processes are immortal.
pub fn supervise_fixture() -> PathBuf {
    built("ostler-supervise", "supervise-fixture", "../supervise/src")
}

/// A program of this build. Tests of other packages do not build it by themselves, so it is built here when it is
/// missing or older than its source, a folder.
fn built(package: &str, name: &str, source: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let folder = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let path = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let built = modified(&path);
    if built.is_none() || newest_below(&source) > built {
        build(package, name, folder);
    }
    assert!(path.is_file(), "{} was not built", path.display());
    path
}

fn newest_below(folder: &Path) -> Option<std::time::SystemTime> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .filter_map(|path| if path.is_dir() { newest_below(&path) } else { modified(&path) })
        .max()
}

fn modified(path: &Path) -> Option<std::time::SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

fn build(package: &str, name: &str, folder: &Path) {
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--package", package, "--bin", name])
        .args(["--profile", profile, "--target-dir"])
        .arg(folder.parent().expect("the target folder"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo");
    assert!(status.success(), "{name} does not build");
}
