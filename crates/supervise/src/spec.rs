//! What the daemon tells a shim to run.
//!
//! Travels over the control socket only, never through argv or environment. `Debug` shows no
//! argument, environment value, input or secret.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use camino::Utf8PathBuf;

use crate::protocol::{self, Encoder, Fields, tag};

/// The most words of arguments, environment entries or secrets one specification may carry.
const SPEC_ITEMS_MAX: usize = 100_000;

/// What the agent reads.
#[derive(Clone, PartialEq, Eq)]
pub enum Stdin {
    /// End-of-file at once.
    Null,
    /// These bytes, then end-of-file.
    Bytes(Vec<u8>),
}

/// How much of the output stays on disk; between `head` and the newest, the middle is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptBytes {
    /// The first bytes, which always stay.
    pub head: u64,
    /// Everything together, framing included.
    pub total: u64,
}

impl Default for KeptBytes {
    fn default() -> Self {
        Self { head: 64 << 20, total: 1 << 30 }
    }
}

/// How an agent is asked to stop: each signal goes to the leader's process group, then the grace
/// passes. After the last grace the group is killed, and what is left of the tree is swept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopPlan {
    /// Signal number and grace.
    pub steps: Vec<(i32, Duration)>,
}

/// One run.
#[derive(Clone, PartialEq, Eq)]
pub struct RunSpec {
    /// The run directory, already created; absolute.
    pub run_dir: Utf8PathBuf,
    /// The run's marker; the same the shim was spawned with.
    pub marker: String,
    /// The executable: a path, or a name looked for in the run's own `PATH`.
    pub program: OsString,
    /// Its arguments, without the program.
    pub args: Vec<OsString>,
    /// Its whole environment; the marker is added.
    pub env: Vec<(OsString, OsString)>,
    /// Where it runs; absolute.
    pub cwd: Utf8PathBuf,
    /// What it reads.
    pub stdin: Stdin,
    /// Secrets (the prompt) that are replaced before output is written.
    pub scrub: Vec<Vec<u8>>,
    /// A stream longer than this ends the run with `overflow`.
    pub stream_bytes_max: Option<u64>,
    /// What stays on disk.
    pub kept: KeptBytes,
    /// How it is asked to stop.
    pub stop: StopPlan,
    /// How long pipes held by descendants are read after the leader's exit.
    pub drain_ms: u64,
    /// Names (argv0 without its folder) of processes that may outlive the run.
    pub keep: Vec<String>,
    /// How long TERM has when the daemon is gone.
    pub grace_after_daemon_ms: u64,
}

impl RunSpec {
    /// A run of `program` in `cwd` with every bound at its default, no input and no environment.
    pub fn new(run_dir: Utf8PathBuf, marker: String, program: OsString, cwd: Utf8PathBuf) -> Self {
        Self {
            run_dir,
            marker,
            program,
            args: Vec::new(),
            env: Vec::new(),
            cwd,
            stdin: Stdin::Null,
            scrub: Vec::new(),
            stream_bytes_max: None,
            kept: KeptBytes::default(),
            stop: StopPlan { steps: vec![(15, Duration::from_secs(2))] },
            drain_ms: 1_000,
            keep: Vec::new(),
            grace_after_daemon_ms: 1_000,
        }
    }

    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut out = Encoder::new(protocol::PREPARE);
        out.number(tag::VERSION, protocol::VERSION);
        out.bytes(tag::RUN_DIR, self.run_dir.as_str().as_bytes());
        out.bytes(tag::MARKER, self.marker.as_bytes());
        out.bytes(tag::PROGRAM, self.program.as_bytes());
        for arg in &self.args {
            out.bytes(tag::ARG, arg.as_bytes());
        }
        for (key, value) in &self.env {
            out.bytes(tag::ENV_KEY, key.as_bytes());
            out.bytes(tag::ENV_VALUE, value.as_bytes());
        }
        out.bytes(tag::CWD, self.cwd.as_str().as_bytes());
        if let Stdin::Bytes(bytes) = &self.stdin {
            out.bytes(tag::STDIN, bytes);
        }
        for secret in &self.scrub {
            out.bytes(tag::SCRUB, secret);
        }
        if let Some(max) = self.stream_bytes_max {
            out.number(tag::STREAM_BYTES_MAX, max);
        }
        out.number(tag::KEPT_HEAD, self.kept.head);
        out.number(tag::KEPT_TOTAL, self.kept.total);
        for (signal, grace) in &self.stop.steps {
            out.number(tag::STOP_SIGNAL, u64::from(signal.unsigned_abs()));
            out.number(tag::STOP_GRACE_MS, u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
        }
        out.number(tag::DRAIN_MS, self.drain_ms);
        for name in &self.keep {
            out.bytes(tag::KEEP, name.as_bytes());
        }
        out.number(tag::GRACE_AFTER_DAEMON_MS, self.grace_after_daemon_ms);
        out.finish()
    }

    /// The specification in a `PREPARE` body; the version was checked before.
    pub(crate) fn decode(body: &[u8]) -> io::Result<Self> {
        let mut spec =
            Self::new(Utf8PathBuf::new(), String::new(), OsString::new(), Utf8PathBuf::new());
        spec.stop.steps.clear();
        let mut items = 0_usize;
        let (mut key, mut signal) = (None, None);
        for field in Fields::new(body) {
            let (tag, bytes) = field?;
            items += 1;
            if items > SPEC_ITEMS_MAX {
                return Err(protocol::malformed("too many fields"));
            }
            let os = || OsString::from_vec(bytes.to_vec());
            match tag {
                tag::RUN_DIR => spec.run_dir = protocol::text(bytes)?.into(),
                tag::MARKER => spec.marker = protocol::text(bytes)?.to_owned(),
                tag::PROGRAM => spec.program = os(),
                tag::ARG => spec.args.push(os()),
                tag::ENV_KEY => key = Some(os()),
                tag::ENV_VALUE => {
                    let key =
                        key.take().ok_or_else(|| protocol::malformed("value without a key"))?;
                    spec.env.push((key, os()));
                }
                tag::CWD => spec.cwd = protocol::text(bytes)?.into(),
                tag::STDIN => spec.stdin = Stdin::Bytes(bytes.to_vec()),
                tag::SCRUB => spec.scrub.push(bytes.to_vec()),
                tag::STREAM_BYTES_MAX => spec.stream_bytes_max = Some(protocol::number(bytes)?),
                tag::KEPT_HEAD => spec.kept.head = protocol::number(bytes)?,
                tag::KEPT_TOTAL => spec.kept.total = protocol::number(bytes)?,
                tag::STOP_SIGNAL => signal = i32::try_from(protocol::number(bytes)?).ok(),
                tag::STOP_GRACE_MS => {
                    let signal = signal
                        .take()
                        .ok_or_else(|| protocol::malformed("grace without a signal"))?;
                    let grace = Duration::from_millis(protocol::number(bytes)?);
                    spec.stop.steps.push((signal, grace));
                }
                tag::DRAIN_MS => spec.drain_ms = protocol::number(bytes)?,
                tag::KEEP => spec.keep.push(protocol::text(bytes)?.to_owned()),
                tag::GRACE_AFTER_DAEMON_MS => spec.grace_after_daemon_ms = protocol::number(bytes)?,
                _ => {}
            }
        }
        Ok(spec)
    }
}

impl fmt::Debug for RunSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunSpec")
            .field("run_dir", &self.run_dir)
            .field("program", &self.program)
            .field("args", &self.args.len())
            .field("env", &self.env.len())
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_survives_the_wire_byte_for_byte() {
        let mut spec = RunSpec::new("/r".into(), "m".into(), "p".into(), "/c".into());
        spec.args = vec![OsString::from_vec(vec![0xff, b'\n', b'$'])];
        spec.env = vec![("A".into(), "1=2".into()), ("B".into(), OsString::from_vec(vec![0xfe]))];
        spec.stdin = Stdin::Bytes(vec![0, 1, 255]);
        spec.scrub = vec![b"secret".to_vec()];
        spec.stream_bytes_max = Some(7);
        spec.kept = KeptBytes { head: 1, total: 2 };
        spec.stop.steps = vec![(2, Duration::from_millis(1_500)), (15, Duration::from_secs(2))];
        spec.keep = vec!["tmux".into()];
        let frame = spec.encode().unwrap();
        let (kind, body, used) = protocol::split(&frame).unwrap().unwrap();
        assert_eq!((kind, used), (protocol::PREPARE, frame.len()));
        assert_eq!(RunSpec::decode(body).unwrap(), spec);
        let shown = format!("{spec:?}");
        assert!(!shown.contains("secret") && !shown.contains('$'), "{shown}");
    }
}
