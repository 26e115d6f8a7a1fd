//! What every test needs: a run directory, a shim, and a look at which processes are left.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use ostler_supervise::rundir::{Item, OutputReader, RunDir, Stream};
use ostler_supervise::{Ended, IdleShim, Report, RunSpec, Shim, new_marker};

/// No test waits longer for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_supervise-fixture"))
}

pub(crate) struct Rig {
    pub(crate) root: tempfile::TempDir,
    pub(crate) marker: String,
    /// In the arguments of every process of this test.
    pub(crate) token: String,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        Self {
            root,
            marker: new_marker().unwrap(),
            token: format!("token-{}", new_marker().unwrap()),
        }
    }

    pub(crate) fn root(&self) -> &Utf8Path {
        Utf8Path::from_path(self.root.path()).unwrap()
    }

    pub(crate) fn dir(&self) -> Utf8PathBuf {
        self.root().join("run")
    }

    /// A run of `program` in a new run directory.
    pub(crate) fn spec(&self, program: impl Into<OsString>, args: &[&str]) -> RunSpec {
        RunDir::create(self.root(), "run").unwrap();
        let mut spec =
            RunSpec::new(self.dir(), self.marker.clone(), program.into(), self.root().into());
        spec.args = args.iter().map(OsString::from).collect();
        spec.env = vec![("PATH".into(), std::env::var_os("PATH").unwrap())];
        spec
    }

    /// A run of the fixture in that mode.
    pub(crate) fn play(&self, args: &[&str]) -> RunSpec {
        let mut args = args.to_vec();
        args.push(&self.token);
        self.spec(fixture(), &args)
    }

    pub(crate) async fn start(&self, spec: &RunSpec) -> Shim {
        let mut shim = IdleShim::spawn(&fixture(), &self.marker).unwrap().prepare(spec).unwrap();
        shim.start().await.unwrap();
        shim
    }

    /// Everything that was kept of one stream, joined.
    pub(crate) fn output(&self, stream: Stream) -> Vec<u8> {
        let mut reader = OutputReader::open(&self.dir(), 0).unwrap();
        let mut bytes = Vec::new();
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                Item::Chunk(chunk) if chunk.stream == stream => bytes.extend(chunk.bytes),
                _ => {}
            }
        }
        bytes
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output(Stream::Stdout)).into_owned()
    }

    /// The processes of this test that have an argument with the token, without zombies.
    pub(crate) fn alive(&self) -> Vec<String> {
        cmdlines()
            .into_iter()
            .map(|(_, line)| line)
            .filter(|line| line.contains(&self.token))
            .collect()
    }
}

/// Nothing of a failed test stays.
impl Drop for Rig {
    fn drop(&mut self) {
        for (pid, line) in cmdlines() {
            if line.contains(&self.token) {
                let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            }
        }
    }
}

fn cmdlines() -> Vec<(u32, String)> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    })
    .collect()
}

pub(crate) async fn next(shim: &mut Shim) -> Report {
    tokio::time::timeout(DEADLINE, shim.report()).await.expect("a report in time")
}

/// Reports until one is wanted.
pub(crate) async fn until<T>(shim: &mut Shim, mut wanted: impl FnMut(&Report) -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        let report = next(shim).await;
        if let Some(found) = wanted(&report) {
            return found;
        }
        assert!(report != Report::Lost, "the shim was lost");
        assert!(!matches!(report, Report::SpawnFailed { .. }), "{report:?}");
        assert!(began.elapsed() < DEADLINE, "too late: {report:?}");
    }
}

pub(crate) async fn ended(shim: &mut Shim) -> Ended {
    until(shim, |report| match report {
        Report::Ended(ended) => Some(ended.clone()),
        _ => None,
    })
    .await
}

/// Until the agent has written so much.
pub(crate) async fn output(shim: &mut Shim, bytes: u64) {
    until(shim, |report| match report {
        Report::Output { end } if *end >= bytes => Some(()),
        _ => None,
    })
    .await;
}

/// Waits for a condition and says how long it took.
pub(crate) fn eventually(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

pub(crate) fn mode_of(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}
