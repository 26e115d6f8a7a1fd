//! The same programs as another user: where a test is about what a user may not, and root may everything.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::rig::{OSTLER, Rig};

/// Nobody.
const NOBODY: u32 = 65_534;

/// `command` as nobody. To be used by root alone; supplementary groups go, too.
pub(crate) fn as_nobody(command: &mut Command) -> &mut Command {
    command.uid(NOBODY).gid(NOBODY)
}

/// A user to whom the modes of files apply: the test's own, or nobody when that is root.
pub(crate) struct User {
    pub(crate) rig: Rig,
    programs: PathBuf,
    is_nobody: bool,
}

impl User {
    /// The rig's folders are this user's, and so are copies of the programs: those of the build may lie where
    /// nobody gets in.
    pub(crate) fn new() -> Self {
        let rig = Rig::new();
        let programs = rig.scratch.path().join("programs");
        fs::create_dir(&programs).unwrap();
        for (name, program) in [("ostler", Path::new(OSTLER)), ("fake-agent", &rig.agent)] {
            fs::copy(program, programs.join(name)).unwrap();
        }
        let is_nobody = rustix::process::geteuid().is_root();
        let user = Self { rig, programs, is_nobody };
        let folder = user.rig.scratch.path();
        let inside = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let programs = fs::read_dir(&user.programs).unwrap().map(|entry| entry.unwrap().path());
        inside.chain(programs).for_each(|path| user.own(&path));
        user.own(folder);
        user
    }

    /// `ostler ARGS` as this user.
    pub(crate) fn ostler(&self, args: &[&str]) -> Command {
        let mut command = self.rig.scratch.command(self.programs.join("ostler"));
        command.args(args).stdin(Stdio::null());
        if self.is_nobody {
            as_nobody(&mut command);
        }
        command
    }

    pub(crate) fn configure(&self, config: &str) {
        self.rig.configure(config);
        let folder = self.rig.scratch.path().join("config/ostler");
        self.own(&folder.join("config.toml"));
        self.own(&folder);
    }

    fn own(&self, path: &Path) {
        if self.is_nobody {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    pub(crate) fn start_daemon(&mut self) {
        let daemon = self.ostler(&["daemon"]);
        self.rig.start_daemon_with(daemon);
    }

    /// An empty folder of this user.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.rig.scratch.path().join(name);
        fs::create_dir(&path).unwrap();
        self.own(&path);
        path
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}
