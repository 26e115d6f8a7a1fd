//! Small helper commands whose output is wanted whole: `--version`, `git`.
//!
//! In a process group of their own, which is killed at the deadline and at the end. What leaves the
//! group is not followed: agents do not run here.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use ostler_core::outcome::Exit;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// How long pipes held by others are read after the command's own exit.
const DRAIN_MS_MAX: u64 = 200;
/// How long a killed command may take to be reaped.
const REAP_MS_MAX: u64 = 1_000;
/// How often the command is looked at; a handle that tokio could wait on needs `unsafe`.
const POLL_MS: u64 = 2;
const READ_BYTES: usize = 16 << 10;

/// What a helper command said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProbeOutput {
    /// How it ended.
    pub exit: Option<Exit>,
    /// The beginning of its standard output.
    pub stdout: Vec<u8>,
    /// The beginning of its standard error.
    pub stderr: Vec<u8>,
    /// It did not end by itself before the deadline.
    pub timed_out: bool,
    /// One of the two was longer than was kept.
    pub truncated: bool,
}

impl ProbeOutput {
    /// Exit status 0 in time.
    pub fn is_success(&self) -> bool {
        !self.timed_out && self.exit.is_some_and(Exit::is_success)
    }
}

/// Runs `program` with an empty input and exactly that environment, for at most `deadline`, keeping at
/// most `output_bytes_max` of each stream.
pub async fn probe(
    program: &OsStr,
    args: &[OsString],
    cwd: &Path,
    env: &[(OsString, OsString)],
    deadline: Duration,
    output_bytes_max: usize,
) -> io::Result<ProbeOutput> {
    let mut child = Command::new(program)
        .args(args)
        .current_dir(cwd)
        .env_clear()
        .envs(env.iter().map(|(key, value)| (key, value)))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let group = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let group = group.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let end = KillOnDrop(group);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut output = ProbeOutput::default();
    {
        let mut reading = pin!(async {
            tokio::join!(
                read(stdout, &mut output.stdout, output_bytes_max),
                read(stderr, &mut output.stderr, output_bytes_max)
            )
        });
        let mut cut = None;
        let leaving = async {
            while !has_exited(group) {
                tokio::select! {
                    biased;
                    both = &mut reading, if cut.is_none() => cut = Some(both),
                    () = tokio::time::sleep(Duration::from_millis(POLL_MS)) => {}
                }
            }
        };
        output.timed_out = tokio::time::timeout(deadline, leaving).await.is_err();
        let drain = Duration::from_millis(DRAIN_MS_MAX);
        if cut.is_none() && !output.timed_out {
            cut = tokio::time::timeout(drain, &mut reading).await.ok();
        }
        // The leader is not reaped yet, so that the group's number is nobody else's.
        drop(end);
        if cut.is_none() {
            cut = tokio::time::timeout(drain, &mut reading).await.ok();
        }
        output.truncated = cut.is_none_or(|(stdout, stderr)| stdout || stderr);
    }
    // Killed, but the kernel may hold on to it (a dead network disk): nobody waits for that.
    match tokio::time::timeout(Duration::from_millis(REAP_MS_MAX), child.wait()).await {
        Ok(status) => output.exit = exit(status?),
        Err(_) => output.timed_out = true,
    }
    Ok(output)
}

/// Whether that child has exited, without reaping it.
fn has_exited(child: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    !matches!(waitid(WaitId::Pid(child), options), Ok(None))
}

fn exit(status: ExitStatus) -> Option<Exit> {
    status.code().map(Exit::Code).or(status.signal().map(Exit::Signal))
}

/// Ends the group, also when the caller gives up in between; only while its leader is not reaped.
struct KillOnDrop(Pid);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

/// Reads to the end and keeps the beginning; true when that was not all.
async fn read(stream: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>, max: usize) -> bool {
    let Some(mut stream) = stream else {
        return false;
    };
    let (mut buffer, mut cut) = (vec![0; READ_BYTES], false);
    loop {
        let Ok(len @ 1..) = stream.read(&mut buffer).await else {
            return cut;
        };
        let room = max.saturating_sub(kept.len());
        cut |= len > room;
        kept.extend_from_slice(buffer.get(..len.min(room)).unwrap_or_default());
    }
}
