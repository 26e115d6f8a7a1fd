//! The real `ostler`, with folders of its own.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::wire::Wire;
use crate::{Fault, Options};

pub(crate) struct Product {
    program: PathBuf,
    home: PathBuf,
    daemon: Option<Child>,
}

impl Product {
    /// Folders below `name`; nothing runs yet.
    pub(crate) fn new(options: &Options, name: &str) -> Result<Self, Fault> {
        if !options.ostler.is_file() {
            let program = options.ostler.display();
            return Err(format!(
                "{program} is not there; build it (cargo build --release -p ostler-cli) or name it with --ostler"
            )
            .into());
        }
        let home = options.dir.path().join(name);
        fs::create_dir_all(&home)?;
        Ok(Self { program: options.ostler.clone(), home, daemon: None })
    }

    pub(crate) fn started(options: &Options, name: &str) -> Result<(Self, Wire), Fault> {
        let mut product = Self::new(options, name)?;
        product.start()?;
        let wire = Wire::connect_soon(&product.socket())?;
        Ok((product, wire))
    }

    /// `ostler` in these folders.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("HOME", &self.home)
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("OSTLER_HOME", self.home.join("state"))
            .env("HASKELL_AGENT_RUNTIME_DIR", self.runtime_dir())
            .env("XDG_CONFIG_HOME", self.home.join("config"))
            .env("OSTLER_LOG", "warn")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn runtime_dir(&self) -> PathBuf {
        self.home.join("rt")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime_dir().join("daemon.sock")
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Starts the daemon and does not wait for it.
    pub(crate) fn start(&mut self) -> Result<(), Fault> {
        self.daemon = Some(self.command().arg("daemon").process_group(0).spawn()?);
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.as_ref().map_or(0, Child::id)
    }

    /// Ends the daemon with no chance to write anything.
    pub(crate) fn kill(&mut self) -> Result<(), Fault> {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill()?;
            daemon.wait()?;
        }
        Ok(())
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // Its shims end what still runs.
        let _ = self.kill();
    }
}
