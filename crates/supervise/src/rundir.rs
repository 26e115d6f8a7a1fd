//! Run directories, layout version 1: everything that is known of one run, readable with every
//! process dead.
//!
//! ```text
//! NAME/                  0700, files 0600
//!   run.json             what was asked (RunRecord): no prompt, no environment; by the daemon
//!   shim.json            which shim runs it (ShimRecord); by the shim
//!   output/OFFSET.log    what came out, secrets replaced; by the shim
//!   events.jsonl         what the daemon understood of it; by the daemon
//!   exit.json            how it ended (ExitRecord); by the shim, durable before it is reported
//!   exit.json.tmp        space kept for that while the run lasts
//! ```
//!
//! The output is one log of both streams in the order they were read. A *logical offset* counts
//! its payload bytes from the start of the run. A segment `OFFSET.log` is named by the logical offset
//! of its first byte in 20 digits and holds chunks: `OL`, version 1, stream (1 stdout, 2 stderr),
//! payload length (4 bytes), wall clock in microseconds (8), logical offset (8), all little-endian,
//! then the payload. An offset that jumps is a gap: bytes that are not kept, since the middle of a long
//! output is dropped and a full disk takes nothing. A reader takes a chunk when it is whole; what
//! is not whole, or does not look like a chunk, is the end for now.
//!
//! Unknown fields of the records are ignored; `version` grows when a reader must not go on.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_core::outcome::{Exit, Killed};
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::procfs::Identity;

pub(crate) mod format;
mod reader;

pub use reader::{Chunk, Gap, Item, OutputReader, Stream};

/// The version of layout and records.
pub const LAYOUT_VERSION: u32 = 1;
/// The longest record file that is read.
const RECORD_BYTES_MAX: u64 = 1 << 20;

pub(crate) const RUN_JSON: &str = "run.json";
pub(crate) const SHIM_JSON: &str = "shim.json";
pub(crate) const EXIT_JSON: &str = "exit.json";
pub(crate) const EXIT_TMP: &str = "exit.json.tmp";
pub(crate) const OUTPUT_DIR: &str = "output";

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`LAYOUT_VERSION`].
    pub version: u32,
    /// The task.
    pub task_id: String,
    /// Which of its runs.
    pub attempt: u32,
    /// The agent's id.
    pub agent: String,
    /// The executable.
    pub program: String,
    /// Its arguments, the prompt replaced.
    pub argv: Vec<String>,
    /// Where it runs.
    pub cwd: String,
    /// Length of the prompt.
    pub prompt_bytes: u64,
    /// SHA-256 of the prompt in hex.
    pub prompt_sha256: String,
    /// The marker its processes carry.
    pub marker: String,
    /// When it was asked for, in microseconds since the epoch.
    pub created_at_micros: i64,
}

/// Which shim runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimRecord {
    /// [`LAYOUT_VERSION`].
    pub version: u32,
    /// The version of its protocol.
    pub protocol: u64,
    /// The boot it runs in.
    pub boot_id: String,
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
    /// The folder of the cgroup that everything of the run is in, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

impl ShimRecord {
    /// The shim as a process.
    pub fn identity(&self) -> Identity {
        Identity { boot_id: self.boot_id.clone(), pid: self.pid, start_time: self.start_time }
    }
}

/// How a run ended. With `empty: false` something of it could not be killed yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExitRecord {
    /// [`LAYOUT_VERSION`].
    pub version: u32,
    /// Status of the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended the leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it was never started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spawn_error: Option<SpawnErrorRecord>,
    /// When the leader was executed, in microseconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at_micros: Option<i64>,
    /// When nothing was left (or this was written), in microseconds since the epoch.
    pub ended_at_micros: i64,
    /// A stop was ordered before the leader exited.
    pub stopped: bool,
    /// The daemon was gone, and the shim ended the run by itself.
    pub daemon_gone: bool,
    /// One stream was longer than the run was allowed.
    pub overflow: bool,
    /// Nothing of the run is left but what is in `kept`.
    pub empty: bool,
    /// What the agent wrote on both streams, in bytes.
    pub output_bytes: u64,
    /// The logical end of the log.
    pub output_end: u64,
    /// Some of the output is not kept.
    pub truncated: bool,
    /// The first failure to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_error: Option<String>,
    /// What had to be killed, the first of them.
    pub killed: Vec<KilledRecord>,
    /// What the keep-list let live.
    pub kept: Vec<KilledRecord>,
    /// What is still there although it was killed.
    pub remaining: Vec<KilledRecord>,
}

impl ExitRecord {
    /// How the leader ended, when that was seen.
    pub fn exit(&self) -> Option<Exit> {
        self.code.map(Exit::Code).or(self.signal.map(Exit::Signal))
    }
}

/// Why a program was not started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnErrorRecord {
    /// One of the names of [`crate::SpawnErrorKind`].
    pub kind: String,
    /// One line for a person.
    pub message: String,
}

/// A process by name; `after` says what it did not obey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KilledRecord {
    /// Its number.
    pub pid: u32,
    /// The first word of its command line.
    pub argv0: String,
    /// `exit`, `term` or `kill`.
    pub after: String,
}

impl From<KilledRecord> for Killed {
    fn from(record: KilledRecord) -> Self {
        Self { pid: record.pid, argv0: record.argv0, after: record.after }
    }
}

/// A run directory by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: Utf8PathBuf,
}

impl RunDir {
    /// Makes `root/name`; it must not exist.
    pub fn create(root: &Utf8Path, name: &str) -> io::Result<Self> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a name for a run directory",
            ));
        }
        let path = root.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    /// An existing one.
    pub fn at(path: Utf8PathBuf) -> Self {
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Writes `run.json`; not yet durable, the shim syncs the directory at the end.
    pub fn write_record(&self, record: &RunRecord) -> io::Result<()> {
        let json = serde_json::to_vec(record)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.path.join(RUN_JSON);
        let mut file =
            File::from(rustix::fs::open(path.as_std_path(), flags, Mode::from_raw_mode(0o600))?);
        file.write_all(&json)
    }
}

/// Everything a run directory's records say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunView {
    /// What was asked.
    pub record: RunRecord,
    /// Which shim took it; absent when none came so far.
    pub shim: Option<ShimRecord>,
    /// How it ended; absent while it runs, or when its shim was killed.
    pub exit: Option<ExitRecord>,
}

/// Reads the records of a run, live or dead.
pub fn read_run(dir: &Utf8Path) -> io::Result<RunView> {
    let record: RunRecord = read_json(dir, RUN_JSON)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{dir}: no {RUN_JSON}")))?;
    if record.version > LAYOUT_VERSION {
        let why = format!(
            "{dir}: layout version {}, this Ostler reads up to {LAYOUT_VERSION}",
            record.version
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(RunView { record, shim: read_shim(dir)?, exit: read_json(dir, EXIT_JSON)? })
}

impl RunView {
    /// Whether the shim that took the run is there.
    pub fn has_living_shim(&self) -> bool {
        self.shim.as_ref().is_some_and(|shim| crate::is_alive(&shim.identity()))
    }

    /// Whether something of an ended run is left that could not be killed. What its shim wrote down counts
    /// while that shim is there to write it again: after its end nobody knows, and after a restart of the
    /// machine nothing is left.
    pub fn is_kill_failed(&self) -> bool {
        self.exit.as_ref().is_some_and(|exit| !exit.empty) && self.has_living_shim()
    }
}

/// Reads `shim.json`; `None` when there is none.
pub fn read_shim(dir: &Utf8Path) -> io::Result<Option<ShimRecord>> {
    read_json(dir, SHIM_JSON)
}

/// Reads `exit.json`; `None` when there is none.
pub fn read_exit(dir: &Utf8Path) -> io::Result<Option<ExitRecord>> {
    read_json(dir, EXIT_JSON)
}

fn read_json<T: DeserializeOwned>(dir: &Utf8Path, name: &str) -> io::Result<Option<T>> {
    let path = dir.join(name);
    let file = match open_read(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(named(&path, &error)),
    };
    let mut json = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut json).map_err(|error| named(&path, &error))?;
    // Each record is written at once into a new file: one that is empty is just being written.
    if json.is_empty() {
        return Ok(None);
    }
    let parsed = serde_json::from_slice(&json);
    parsed
        .map(Some)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{path}: {error}")))
}

fn named(path: &Utf8Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path}: {error}"))
}

/// Opens a regular file for reading without following a link.
pub(crate) fn open_read(path: &Utf8Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path.as_std_path(), flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok(file)
}

/// The logical end of a run's output log as its files have it, live or dead; 0 when there is none. Reads the
/// newest segment, as long as it was when this began.
pub fn output_end(dir: &Utf8Path) -> io::Result<u64> {
    match segments(dir)?.last() {
        Some(start) => reader::segment_end(dir, *start),
        None => Ok(0),
    }
}

/// The logical offsets at which the segments of `dir/output` start, in order.
pub(crate) fn segments(dir: &Utf8Path) -> io::Result<Vec<u64>> {
    let mut starts = Vec::new();
    for entry in fs::read_dir(dir.join(OUTPUT_DIR))? {
        let name = entry?.file_name();
        let start: Option<u64> = name
            .to_str()
            .and_then(|name| name.strip_suffix(".log"))
            .and_then(|name| name.parse().ok());
        starts.extend(start);
    }
    starts.sort_unstable();
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever follows a run looks while its records are being written.
    #[test]
    fn a_record_that_is_just_being_written_is_not_there_yet() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(scratch.path()).unwrap();
        fs::write(dir.join(RUN_JSON), "").unwrap();
        assert_eq!(read_run(dir).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(dir.join(EXIT_JSON), "").unwrap();
        assert_eq!(read_exit(dir).unwrap(), None);
        fs::write(dir.join(EXIT_JSON), "{").unwrap();
        assert_eq!(read_exit(dir).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    /// The segment that starts at `offset`, with these payloads and gaps before them.
    fn segment(dir: &Utf8Path, start: u64, chunks: &[(u64, &[u8])]) -> Vec<u8> {
        let (mut bytes, mut offset) = (Vec::new(), start);
        for (gap, payload) in chunks {
            offset += gap;
            let len = u32::try_from(payload.len()).unwrap();
            let header = format::Header { stream: Stream::Stdout, len, at_micros: 1, offset };
            bytes.extend(header.encode());
            bytes.extend(*payload);
            offset += u64::from(len);
        }
        fs::create_dir_all(dir.join(OUTPUT_DIR)).unwrap();
        fs::write(dir.join(OUTPUT_DIR).join(format::segment_name(start)), &bytes).unwrap();
        bytes
    }

    #[test]
    fn the_end_of_the_output_is_a_logical_offset() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(scratch.path()).unwrap();
        fs::create_dir(dir.join(OUTPUT_DIR)).unwrap();
        assert_eq!(output_end(dir).unwrap(), 0);
        // Each chunk brings a header that does not count.
        segment(dir, 0, &[(0, &b"one\n"[..]); 5_000]);
        assert_eq!(output_end(dir).unwrap(), 20_000);
        // A later segment, with a hole before its last chunk.
        let big = vec![b'x'; format::CHUNK_BYTES_MAX];
        let bytes = segment(dir, 30_000, &[(0, b"a"), (0, &big), (99, b"bc")]);
        let end = 30_000 + 1 + big.len() as u64 + 99 + 2;
        assert_eq!(output_end(dir).unwrap(), end);
        // What is not whole is not there.
        let file = dir.join(OUTPUT_DIR).join(format::segment_name(30_000));
        fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(output_end(dir).unwrap(), 30_000 + 1 + big.len() as u64);
        fs::write(&file, []).unwrap();
        assert_eq!(output_end(dir).unwrap(), 30_000);
    }

    #[test]
    fn what_could_not_be_killed_counts_while_its_shim_is_there() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(scratch.path()).unwrap();
        let run = RunRecord {
            version: LAYOUT_VERSION,
            task_id: "t".to_owned(),
            attempt: 1,
            agent: "command".to_owned(),
            program: "true".to_owned(),
            argv: Vec::new(),
            cwd: "/".to_owned(),
            prompt_bytes: 0,
            prompt_sha256: String::new(),
            marker: "m".to_owned(),
            created_at_micros: 0,
        };
        RunDir::at(dir.to_owned()).write_record(&run).unwrap();
        let write = |name: &str, json: Vec<u8>| fs::write(dir.join(name), json).unwrap();
        let exit = ExitRecord { empty: false, ..ExitRecord::default() };
        write(EXIT_JSON, serde_json::to_vec(&exit).unwrap());
        assert!(!read_run(dir).unwrap().is_kill_failed(), "no shim took it");

        let me = Identity::of(std::process::id()).unwrap();
        let shim = ShimRecord {
            version: LAYOUT_VERSION,
            protocol: 1,
            boot_id: me.boot_id,
            pid: me.pid,
            start_time: me.start_time,
            cgroup: None,
        };
        let failed = |shim: &ShimRecord| {
            write(SHIM_JSON, serde_json::to_vec(shim).unwrap());
            read_run(dir).unwrap().is_kill_failed()
        };
        assert!(failed(&shim));
        let other = ShimRecord { start_time: shim.start_time + 1, ..shim.clone() };
        assert!(!failed(&other), "its number is another's now");
        let earlier = ShimRecord { boot_id: "before".to_owned(), ..shim.clone() };
        assert!(!failed(&earlier), "the machine was restarted");
        assert!(failed(&shim));
        write(EXIT_JSON, serde_json::to_vec(&ExitRecord { empty: true, ..exit }).unwrap());
        assert!(!read_run(dir).unwrap().is_kill_failed(), "it is gone");
    }
}
