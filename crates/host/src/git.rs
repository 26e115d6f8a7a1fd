//! What a run did to the git repository it worked in.
//!
//! Owns: reading HEAD as a file before and after, the diffstat after the end, and whether anything
//! changed since the start (a tree that was dirty before is no effect). Deliberately absent: changing
//! anything in the repository; git is told to take no locks, run no hooks and fetch nothing.

mod refs;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use camino::Utf8Path;
use ostler_core::outcome::GitChange;
use ostler_supervise::ProbeOutput;
use rustix::time::{ClockId, clock_gettime};

use refs::{Commit, Repository};

/// The most time that each question to git may take; both are asked at once.
const GIT_DEADLINE: Duration = Duration::from_secs(5);
/// The most output of git that is read; of more, what was read is counted.
const GIT_OUTPUT_BYTES_MAX: usize = 8 << 20;
/// The most changed files whose times are looked at; with more, something counts as changed.
const LOOKED_AT_MAX: usize = 20_000;

/// What everything differs from while there is no commit.
const EMPTY_TREE_SHA1: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// What git needs of the environment; what else is there (other agents' `GIT_…`, keys) does not reach it.
const ENV_KEYS: [&str; 6] = ["HOME", "PATH", "USER", "LOGNAME", "XDG_CONFIG_HOME", "TMPDIR"];
const ENV_OWN: [(&str, &str); 4] = [
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("LC_ALL", "C"),
];

/// A repository as it was before a run.
#[derive(Debug, Clone)]
pub struct Head {
    repository: Repository,
    commit: Commit,
    /// The clock that file times are taken from, seconds and nanoseconds: no file that changes later
    /// has an earlier time.
    read_at: (i64, i64),
}

/// What a run changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// For the receipt: the difference between the commit before and the tree after.
    pub git: GitChange,
    /// Whether any of it happened since [`head`] was read: a tree that was dirty before does not
    /// count. Also true where that could not be told.
    pub is_visible: bool,
}

/// The repository that `cwd` lies in, and its HEAD. A few small reads; `None` without a repository, or
/// when its HEAD cannot be read from files.
pub fn head(cwd: &Utf8Path) -> Option<Head> {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    let repository = Repository::find(cwd.as_std_path())?;
    let commit = repository.head()?;
    Some(Head { repository, commit, read_at: (time.tv_sec, time.tv_nsec) })
}

/// What changed since `before`. Asks `git`, found on the `PATH` of `env`; `None` when it is not there
/// or has no answer in time.
pub async fn change_since(before: &Head, env: &[(OsString, OsString)]) -> Option<Change> {
    let repository = &before.repository;
    let base = match &before.commit {
        Commit::Id(id) => id,
        Commit::Unborn => EMPTY_TREE_SHA1,
    };
    let diff = [
        "diff",
        "--numstat",
        "-z",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "--ignore-submodules=dirty",
        base,
        "--",
    ];
    let untracked = ["ls-files", "-z", "--others", "--exclude-standard"];
    let env = environment(env);
    let (diff, untracked) =
        tokio::join!(ask(&repository.root, &env, &diff), ask(&repository.root, &env, &untracked));
    let (diff, untracked) = (diff?, untracked?);
    let before = before.clone();
    // Hundreds of files may have to be looked at, perhaps on a slow disk.
    tokio::task::spawn_blocking(move || before.compare(&diff, &untracked)).await.ok()
}

fn id_of(commit: Option<Commit>) -> Option<String> {
    match commit? {
        Commit::Id(id) => Some(id),
        Commit::Unborn => None,
    }
}

impl Head {
    fn compare(&self, diff: &ProbeOutput, untracked: &ProbeOutput) -> Change {
        let repository = &self.repository;
        let stat = parse_numstat(&diff.stdout);
        let untracked_paths: Vec<&OsStr> =
            records(&untracked.stdout).map(OsStr::from_bytes).collect();
        let after = repository.head();
        let moved = after.as_ref() != Some(&self.commit);
        let changed_files = stat.paths.len() + untracked_paths.len();
        let git = GitChange {
            head_before: id_of(Some(self.commit.clone())),
            head_after: id_of(after),
            changed_files: changed_files as u64,
            insertions: stat.insertions,
            deletions: stat.deletions,
        };
        let is_visible = moved
            || diff.truncated
            || untracked.truncated
            || changed_files > LOOKED_AT_MAX
            // Commits made elsewhere before HEAD came back.
            || self.is_older_than(&repository.git_dir.join("logs/HEAD"))
            || stat
                .paths
                .into_iter()
                .chain(untracked_paths)
                .any(|path| self.is_older_than(&repository.root.join(path)));
        Change { git, is_visible }
    }

    /// Whether the file changed since the head was read. Of one that is gone, the nearest directory
    /// that is left tells.
    fn is_older_than(&self, file: &Path) -> bool {
        let found =
            file.ancestors().find_map(|path| Some((path, fs::symlink_metadata(path).ok()?)));
        let Some((path, found)) = found else {
            return true;
        };
        if path == file && found.is_dir() {
            // A repository in the repository: its own times say nothing.
            return true;
        }
        // A file's ctime cannot be set back, as its mtime is by `cp -p` and `tar`; a directory's also
        // changes with its mode.
        let (seconds, nanos) = if path == file {
            (found.ctime(), found.ctime_nsec())
        } else {
            (found.mtime(), found.mtime_nsec())
        };
        // Some file systems keep whole seconds only.
        (seconds, if nanos == 0 { i64::MAX } else { nanos }) >= self.read_at
    }
}

fn environment(env: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
    let passed = env.iter().filter(|(name, _)| ENV_KEYS.iter().any(|key| name == key));
    let own = ENV_OWN.iter().map(|(name, value)| (name.into(), value.into()));
    passed.cloned().chain(own).collect()
}

async fn ask(root: &Path, env: &[(OsString, OsString)], question: &[&str]) -> Option<ProbeOutput> {
    // A repository's own configuration can name programs to run, and `git diff` refreshes the index
    // whatever GIT_OPTIONAL_LOCKS says. It goes to the repository itself: should that hang, the daemon does
    // not.
    let safe = [
        "--no-pager",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "diff.autoRefreshIndex=false",
    ];
    let mut args = vec![OsString::from("-C"), root.into()];
    args.extend(safe.iter().chain(question).map(OsString::from));
    let (git, cwd) = (OsStr::new("git"), Path::new("/"));
    let said =
        ostler_supervise::probe(git, &args, cwd, env, GIT_DEADLINE, GIT_OUTPUT_BYTES_MAX).await;
    match said {
        Ok(output) if output.is_success() => Some(output),
        Ok(output) => {
            tracing::debug!(timed_out = output.timed_out, "git had no answer");
            None
        }
        Err(error) => {
            tracing::debug!(%error, "git could not be asked");
            None
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct NumStat<'a> {
    paths: Vec<&'a OsStr>,
    insertions: u64,
    deletions: u64,
}

/// Reads `git diff --numstat -z`: lines added, lines removed (`-` for a binary file) and path, between
/// tabs. A last record that was cut off does not count.
fn parse_numstat(output: &[u8]) -> NumStat<'_> {
    let mut stat = NumStat::default();
    for record in records(output) {
        let mut fields = record.splitn(3, |&byte| byte == b'\t');
        let (Some(added), Some(removed), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        stat.insertions = stat.insertions.saturating_add(number(added));
        stat.deletions = stat.deletions.saturating_add(number(removed));
        stat.paths.push(OsStr::from_bytes(path));
    }
    stat
}

fn number(field: &[u8]) -> u64 {
    std::str::from_utf8(field).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The records of a `-z` output that are complete.
fn records(output: &[u8]) -> impl Iterator<Item = &[u8]> {
    output.split_inclusive(|&byte| byte == 0).filter_map(|record| record.strip_suffix(b"\0"))
}

#[cfg(test)]
mod tests;
