//! What is kept of finished runs: so many bytes, so many days; the oldest settled run goes first.
//!
//! Runs in a thread of its own, at start and after runs, never by a timer: an idle daemon does
//! nothing. A run that is not over is never touched, whatever its size.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use camino::{Utf8Path, Utf8PathBuf};
use ostler_supervise::rundir;

/// A sweep reads every run directory; more often than this it is not worth it.
const SWEEP_EVERY: Duration = Duration::from_secs(10 * 60);

/// ... unless runs have written this share of the bound since.
const SWEEP_AT_SHARE: u64 = 20;

/// Directories that are looked at in one sweep; the next goes on with what is left then.
const RUNS_PER_SWEEP_MAX: usize = 200_000;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Retention {
    runs_dir: Utf8PathBuf,
    bytes_max: u64,
    age_max: Duration,
    is_sweeping: Arc<AtomicBool>,
    last: Arc<Mutex<Option<Instant>>>,
    /// Output since the last sweep.
    written: Arc<AtomicU64>,
}

/// A run that may go.
struct Settled {
    dir: Utf8PathBuf,
    ended_at: SystemTime,
    bytes: u64,
}

impl Retention {
    pub(super) fn new(runs_dir: Utf8PathBuf, bytes_max: u64, days_max: u64) -> Self {
        let age_max = DAY.saturating_mul(u32::try_from(days_max).unwrap_or(u32::MAX));
        Self {
            runs_dir,
            bytes_max,
            age_max,
            is_sweeping: Arc::default(),
            last: Arc::default(),
            written: Arc::default(),
        }
    }

    /// A run has ended that wrote so much: looks at all of them when that is due.
    pub(super) fn after_run(&self, output_bytes: u64) {
        let written = self.written.fetch_add(output_bytes, Ordering::Relaxed) + output_bytes;
        if written > self.bytes_max / SWEEP_AT_SHARE {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        self.sweep_soon();
    }

    /// Sweeps in the background, unless that was done lately.
    pub(super) fn sweep_soon(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < SWEEP_EVERY)
            || self.is_sweeping.swap(true, Ordering::AcqRel)
        {
            return;
        }
        *last = Some(Instant::now());
        self.written.store(0, Ordering::Relaxed);
        let retention = self.clone();
        let swept = std::thread::Builder::new().name("retention".into()).spawn(move || {
            retention.sweep(SystemTime::now());
            retention.is_sweeping.store(false, Ordering::Release);
        });
        if let Err(error) = swept {
            tracing::warn!(%error, "old runs could not be looked at");
            self.is_sweeping.store(false, Ordering::Release);
        }
    }

    /// Removes what is over the bounds; gives the number of runs that went.
    fn sweep(&self, now: SystemTime) -> usize {
        let (mut settled, mut bytes) = self.survey();
        settled.sort_by_key(|run| run.ended_at);
        let mut removed = 0;
        for run in settled {
            let is_old = now.duration_since(run.ended_at).is_ok_and(|age| age > self.age_max);
            if !is_old && bytes <= self.bytes_max {
                break;
            }
            match std::fs::remove_dir_all(&run.dir) {
                Ok(()) => {
                    bytes = bytes.saturating_sub(run.bytes);
                    removed += 1;
                }
                Err(error) => {
                    tracing::warn!(dir = %run.dir, %error, "an old run could not be removed")
                }
            }
        }
        if removed > 0 {
            tracing::info!(removed, bytes, "old runs were removed");
        }
        removed
    }

    /// The runs that are over, and the bytes of all.
    fn survey(&self) -> (Vec<Settled>, u64) {
        let (mut settled, mut total) = (Vec::new(), 0_u64);
        let Ok(entries) = self.runs_dir.read_dir_utf8() else { return (settled, total) };
        for entry in entries.take(RUNS_PER_SWEEP_MAX).flatten() {
            let dir = entry.path();
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let bytes = bytes_below(dir.as_std_path());
            total = total.saturating_add(bytes);
            if let Some(ended_at) = ended_at(dir) {
                settled.push(Settled { dir: dir.to_owned(), ended_at, bytes });
            }
        }
        (settled, total)
    }
}

/// When a run ended, which is at the latest when its directory was last written to; `None` while it goes
/// on or its shim watches over what is left of it.
fn ended_at(dir: &Utf8Path) -> Option<SystemTime> {
    let changed_at = dir.metadata().ok()?.modified().ok()?;
    let is_over = match rundir::read_run(dir) {
        Ok(run) if run.exit.as_ref().is_some_and(|exit| exit.empty) => true,
        Ok(run) if run.exit.is_some() || run.shim.is_some() => !run.has_living_shim(),
        // Just made: its shim has not come yet. One that never comes is old some day.
        Ok(_) => is_abandoned(changed_at),
        // So is one whose records nobody can read; it would count against the bound for ever.
        Err(error) => {
            is_damaged(&error) && has_living_shim(dir) == Some(false) && is_abandoned(changed_at)
        }
    };
    is_over.then_some(changed_at)
}

/// Whether nobody has come for so long that nobody will.
fn is_abandoned(changed_at: SystemTime) -> bool {
    changed_at.elapsed().is_ok_and(|age| age >= DAY)
}

/// Not merely unreadable at this moment.
fn is_damaged(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, NotFound, Unsupported};
    matches!(error.kind(), InvalidData | NotFound | Unsupported)
}

/// The same as of a whole run, where only that record can be read; `None` when it cannot be read just now.
fn has_living_shim(dir: &Utf8Path) -> Option<bool> {
    match rundir::read_shim(dir) {
        Ok(shim) => Some(shim.is_some_and(|shim| ostler_supervise::is_alive(&shim.identity()))),
        Err(error) => is_damaged(&error).then_some(false),
    }
}

/// What a directory takes on disk, one level of subdirectories deep, as run directories are.
fn bytes_below(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_supervise::Identity;
    use ostler_supervise::rundir::{ExitRecord, RunDir, RunRecord, ShimRecord};

    fn run(root: &Utf8Path, name: &str, exit: Option<bool>, bytes: usize) {
        let dir = RunDir::create(root, name).unwrap();
        let record = RunRecord {
            version: rundir::LAYOUT_VERSION,
            task_id: name.to_owned(),
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
        dir.write_record(&record).unwrap();
        std::fs::write(dir.path().join("big"), vec![1; bytes]).unwrap();
        if let Some(empty) = exit {
            let exit = ExitRecord { empty, ..ExitRecord::default() };
            std::fs::write(dir.path().join("exit.json"), serde_json::to_vec(&exit).unwrap())
                .unwrap();
        }
    }

    /// Says that the shim of a run is this process, or one that is gone.
    fn shim(root: &Utf8Path, name: &str, is_alive: bool) {
        let me = Identity::of(std::process::id()).unwrap();
        let record = ShimRecord {
            version: rundir::LAYOUT_VERSION,
            protocol: 1,
            boot_id: me.boot_id,
            pid: me.pid,
            start_time: me.start_time + u64::from(!is_alive),
            cgroup: None,
        };
        let json = serde_json::to_vec(&record).unwrap();
        std::fs::write(root.join(name).join("shim.json"), json).unwrap();
    }

    fn age(root: &Utf8Path, name: &str, days: u64) {
        let dir = std::fs::File::open(root.join(name)).unwrap();
        dir.set_modified(SystemTime::now() - DAY * u32::try_from(days).unwrap()).unwrap();
    }

    fn left(root: &Utf8Path) -> Vec<String> {
        let mut names: Vec<_> = root
            .read_dir_utf8()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn r_75_the_oldest_settled_runs_go_first_and_live_ones_never() {
        let scratch = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(scratch.path()).unwrap();
        for (name, exit, days) in [
            ("a", Some(true), 3),
            ("b", Some(true), 2),
            ("c", Some(true), 1),
            ("live", None, 0),
            ("undead", Some(false), 9),
        ] {
            run(root, name, exit, 100_000);
            if name == "undead" {
                shim(root, name, true);
            }
            age(root, name, days);
        }
        // Two of the five must go; the oldest is not over.
        let retention = Retention::new(root.to_owned(), 3 * 120_000, 90);
        assert_eq!(retention.sweep(SystemTime::now()), 2);
        assert_eq!(left(root), ["c", "live", "undead"]);
        // By age alone.
        let retention = Retention::new(root.to_owned(), u64::MAX, 0);
        assert_eq!(retention.sweep(SystemTime::now()), 1);
        assert_eq!(left(root), ["live", "undead"]);
    }
    #[test]
    fn what_nobody_watches_or_can_read_goes_like_any_other_run() {
        let scratch = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(scratch.path()).unwrap();
        // What could not be killed, after its shim.
        for (name, is_alive) in [("watched", true), ("unwatched", false)] {
            run(root, name, Some(false), 1_000);
            shim(root, name, is_alive);
            age(root, name, 9);
        }
        // Records that nobody can read: cut off, of a layout to come, none at all.
        for (name, record) in
            [("cut", "{"), ("later", r#"{"version": 99}"#), ("none", ""), ("fresh", "{")]
        {
            std::fs::create_dir(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("run.json"), record).unwrap();
            age(root, name, if name == "fresh" { 0 } else { 2 });
        }
        std::fs::create_dir(root.join("live")).unwrap();
        shim(root, "live", true);
        age(root, "live", 2);
        let retention = Retention::new(root.to_owned(), 0, 90);
        assert_eq!(retention.sweep(SystemTime::now()), 4);
        assert_eq!(left(root), ["fresh", "live", "watched"]);
    }
}
