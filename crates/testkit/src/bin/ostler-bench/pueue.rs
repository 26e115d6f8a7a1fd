//! pueue, a queue of shell commands with a daemon, for comparison. It writes its state without a flush.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Fault;
use crate::exec::Starts;
use crate::report::Samples;

/// How long its daemon may take to answer.
const START_MAX: Duration = Duration::from_secs(20);

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// From `pueue add` to the start of the program; none where it is not installed.
pub(crate) fn measure(
    home: &Path,
    starts: &mut Starts,
    turns: usize,
) -> Result<Option<Samples>, Fault> {
    let Some(folder) = std::env::var_os("PUEUE_BIN_DIR").map(PathBuf::from) else {
        return Ok(None);
    };
    if !folder.join("pueued").is_file() || !folder.join("pueue").is_file() {
        return Ok(None);
    }
    let home = home.join("pueue");
    fs::create_dir_all(&home)?;
    let config = home.join("pueue.yml");
    let at = home.display();
    fs::write(
        &config,
        format!(
            "shared:\n  pueue_directory: {at}/data\n  runtime_directory: {at}\n  use_unix_socket: true\n  \
             unix_socket_path: {at}/pueue.sock\n"
        ),
    )?;
    let command = |name: &str| {
        let mut command = Command::new(folder.join(name));
        command.arg("--config").arg(&config).env("HOME", &home).stdin(Stdio::null());
        command
    };
    let daemon = command("pueued").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let _daemon = Daemon(daemon);
    let until = Instant::now() + START_MAX;
    let answers = || {
        let status =
            command("pueue").arg("status").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    while !answers() {
        if Instant::now() >= until {
            return Err("pueued does not answer".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut samples = Samples::default();
    for _ in 0..turns {
        let argv = starts.argv()?.map(str::to_owned);
        let mut add = command("pueue");
        add.args(["add", "--"]).args(argv);
        samples.push(starts.time(&mut add)?);
        // The next one must not wait for this one.
        std::thread::sleep(Duration::from_millis(400));
    }
    Ok(Some(samples))
}
