//! A scratch folder for one test: its own home, state, runtime directory and `PATH`.
//!
//! Owns: the folder and everything that was started from it, both gone when it is dropped. The folder's
//! name is a token found in nothing else on the machine; since `HOME` lies in it, it reaches every
//! descendant, also through the daemon's environment allowlist.
//!
//! A scan for that token can be outrun by processes that replace themselves. For those there is a named
//! pipe, [`Scratch::alive`]: who holds its writing end (`fake-agent --alive PATH` and all its descendants do)
//! is alive, and when nobody does, the kernel itself says that all are gone.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use tempfile::TempDir;

use crate::process;

/// How long a dropped scratch folder goes on killing what was started from it.
const KILL_MS: u64 = 30_000;

/// The folder; see the module.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    token: String,
    alive: File,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// Makes one. The path is short, because a socket's path has at most 107 bytes.
    pub fn new() -> Self {
        let random = process::random_hex();
        let token = format!("ostl-{}", random.get(..12).unwrap_or(&random));
        let folder = tempfile::Builder::new()
            .prefix(&token)
            .rand_bytes(0)
            .tempdir()
            .expect("a scratch folder");
        let pipe = folder.path().join("alive");
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &pipe, FileType::Fifo, mode, 0).expect("a named pipe");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let alive = File::from(open(&pipe, flags, Mode::empty()).expect("its reading end"));
        let scratch = Self { folder, token, alive };
        for name in ["home", "state", "config", "cache", "data", "run", "bin", "tmp", "work"] {
            fs::create_dir(scratch.path().join(name)).expect("a folder in the scratch folder");
        }
        scratch
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The token that everything started from here carries.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// `HOME`.
    pub fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    /// `OSTLER_HOME`; not made, so that the program makes it with the modes it wants.
    pub fn ostler_home(&self) -> PathBuf {
        self.path().join("state/ostler")
    }

    /// `HASKELL_AGENT_RUNTIME_DIR`; not made either.
    pub fn runtime_dir(&self) -> PathBuf {
        self.path().join("rt")
    }

    /// The socket in it.
    pub fn socket(&self) -> PathBuf {
        self.runtime_dir().join("daemon.sock")
    }

    /// An empty folder for agents to work in.
    pub fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    /// The folder that comes first on `PATH`.
    pub fn bin(&self) -> PathBuf {
        self.path().join("bin")
    }

    /// Puts `program` on the `PATH` under `name`, and gives its path there.
    pub fn install(&self, name: &str, program: &Path) -> PathBuf {
        let path = self.bin().join(name);
        symlink(program, &path).expect("a new name in the scratch folder's bin");
        path
    }

    /// The whole environment of a program that belongs to this test.
    pub fn env(&self) -> Vec<(OsString, OsString)> {
        let at = |name: &str| self.path().join(name).into_os_string();
        let mut path = self.bin().into_os_string();
        path.push(":/usr/local/bin:/usr/bin:/bin");
        let pairs = [
            ("HOME", at("home")),
            ("OSTLER_HOME", self.ostler_home().into_os_string()),
            ("HASKELL_AGENT_RUNTIME_DIR", self.runtime_dir().into_os_string()),
            ("XDG_CONFIG_HOME", at("config")),
            ("XDG_STATE_HOME", at("state")),
            ("XDG_CACHE_HOME", at("cache")),
            ("XDG_DATA_HOME", at("data")),
            ("XDG_RUNTIME_DIR", at("run")),
            ("TMPDIR", at("tmp")),
            ("PATH", path),
            ("LANG", "C.UTF-8".into()),
        ];
        pairs.map(|(key, value)| (key.into(), value)).into()
    }

    /// `program` with exactly this environment, in the work folder.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env_clear().envs(self.env()).current_dir(self.work());
        command
    }

    /// Everything alive that was started from here.
    pub fn processes(&self) -> Vec<process::Process> {
        process::find_by_token(&self.token)
    }

    /// The named pipe whose writers are watched.
    pub fn alive(&self) -> PathBuf {
        self.path().join("alive")
    }

    /// Whether anybody holds the writing end of [`Scratch::alive`].
    pub fn is_anyone_alive(&self) -> bool {
        match (&self.alive).read(&mut [0; 4096]) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }

    /// Panics when something started from here is still there after `deadline`.
    #[track_caller]
    pub fn assert_none_left(&self, deadline: Duration) {
        let until = Instant::now() + deadline;
        process::assert_none_left(&self.token, deadline);
        let rest = until.saturating_duration_since(Instant::now());
        process::wait_until("nobody holds the pipe", rest, || !self.is_anyone_alive());
    }

    /// Kills everything started from here; false when something is left after `deadline`.
    pub fn kill_all(&self, deadline: Duration) -> bool {
        let until = Instant::now() + deadline;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            let left = process::kill_all(&self.token, rest);
            if left.is_empty() && !self.is_anyone_alive() {
                return true;
            }
            if rest.is_zero() {
                return false;
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kill_all(Duration::from_millis(KILL_MS)) {
            eprintln!("{}: could not be killed: {:?}", self.token, self.processes());
        }
    }
}
