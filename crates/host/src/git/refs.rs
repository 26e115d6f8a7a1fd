//! Finding a repository and reading its HEAD as files: no process, no lock, a few reads.
//!
//! The repository may be hostile: every read is bounded, only regular files are read, and a
//! reference cannot name a file outside.

use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use memchr::memmem;

/// HEAD, `commondir` and a loose reference hold one line.
const LINE_FILE_BYTES_MAX: u64 = 4_096;
/// A longer `packed-refs` is not searched, and HEAD counts as unknown.
const PACKED_REFS_BYTES_MAX: u64 = 16 << 20;
/// How many symbolic references may name one another; git's own bound.
const SYMBOLIC_DEPTH_MAX: usize = 5;

/// Where a repository keeps what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Repository {
    /// The top of the working tree.
    pub(super) root: PathBuf,
    /// HEAD and what else belongs to this working tree alone.
    pub(super) git_dir: PathBuf,
    /// What all working trees share.
    common_dir: PathBuf,
}

/// What HEAD leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Commit {
    /// A commit.
    Id(String),
    /// A branch without a commit yet.
    Unborn,
}

impl Repository {
    /// The repository that `cwd` lies in, as git would find it.
    pub(super) fn find(cwd: &Path) -> Option<Self> {
        fs::canonicalize(cwd).ok()?.ancestors().find_map(Self::at)
    }

    fn at(root: &Path) -> Option<Self> {
        let dot_git = root.join(".git");
        let kind = fs::metadata(&dot_git).ok()?;
        let git_dir = if kind.is_dir() {
            dot_git
        } else {
            let line = read_line(&dot_git)?;
            root.join(line.strip_prefix("gitdir: ")?)
        };
        // Without HEAD it is no repository, and git goes on looking above.
        fs::symlink_metadata(git_dir.join("HEAD")).ok()?;
        let common_dir = match read_line(&git_dir.join("commondir")) {
            Some(line) => git_dir.join(line),
            None => git_dir.clone(),
        };
        Some(Self { root: root.to_owned(), git_dir, common_dir })
    }

    /// What HEAD leads to; `None` when that cannot be told from files.
    pub(super) fn head(&self) -> Option<Commit> {
        if self.common_dir.join("reftable").exists() {
            return None;
        }
        let mut line = read_line(&self.git_dir.join("HEAD"))?;
        for _ in 0..SYMBOLIC_DEPTH_MAX {
            let Some(name) = line.strip_prefix("ref: ") else {
                return is_commit_id(&line).then_some(Commit::Id(line));
            };
            if !is_reference(name) {
                return None;
            }
            let loose = read_line(&self.git_dir.join(name))
                .or_else(|| read_line(&self.common_dir.join(name)));
            line = match loose {
                Some(line) => line,
                None => return self.packed(name),
            };
        }
        None
    }

    fn packed(&self, name: &str) -> Option<Commit> {
        let path = self.common_dir.join("packed-refs");
        if !path.exists() {
            return Some(Commit::Unborn);
        }
        let refs = read_file(&path, PACKED_REFS_BYTES_MAX)?;
        let needle = format!(" {name}\n");
        let Some(end) = memmem::find(&refs, needle.as_bytes()) else {
            return Some(Commit::Unborn);
        };
        let line = refs.get(..end)?.rsplit(|&byte| byte == b'\n').next()?;
        let id = std::str::from_utf8(line).ok()?;
        is_commit_id(id).then(|| Commit::Id(id.to_owned()))
    }
}

fn is_commit_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn is_reference(name: &str) -> bool {
    name.starts_with("refs/")
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

fn read_line(path: &Path) -> Option<String> {
    let mut text = String::from_utf8(read_file(path, LINE_FILE_BYTES_MAX)?).ok()?;
    text.truncate(text.trim_end().len());
    Some(text)
}

/// A regular file of at most `bytes_max` bytes.
fn read_file(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    // NONBLOCK: a named pipe in its place must not make us wait.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= bytes_max).then_some(bytes)
}
