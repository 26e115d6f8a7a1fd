//! A cgroup for one run, where the system lets its owner make one (cgroup v2: root, a systemd user service,
//! a container).
//!
//! The shim makes it below its own and moves in while it waits for its run, so everything of the run is born
//! there and no environment or parentage hides it. Moving holds up every start of a process on the machine for a
//! while, so it is done when nothing is about to start, and a shim that had no time to wait has none. It serves for the case that the shim itself was killed;
//! while the shim lives, `wait` is the better proof. Where no cgroup can be had, nothing is different.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The most folders of a run's cgroup that are looked into; tools may make some below it.
const FOLDERS_MAX: usize = 256;

/// The cgroup of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cgroup(PathBuf);

fn name_of(marker: &str) -> String {
    format!("ostler-{marker}")
}

impl Cgroup {
    /// Makes the cgroup of this marker and moves the calling process into it.
    pub(crate) fn enter(marker: &str) -> Option<Self> {
        let cgroup = Self(own()?.join(name_of(marker)));
        fs::create_dir(&cgroup.0).ok()?;
        let moved = fs::write(cgroup.0.join("cgroup.procs"), "0");
        // A kernel without `cgroup.kill` (before 5.14) has no use for it.
        if moved.is_err() || !cgroup.0.join("cgroup.kill").exists() {
            cgroup.leave();
            return None;
        }
        Some(cgroup)
    }

    /// Moves the calling process out again, and removes the cgroup if that leaves it empty.
    pub(crate) fn leave(&self) {
        // Both may fail: a process that is kept on purpose holds the folder, which then stays.
        if let Some(parent) = self.0.parent() {
            let _ = fs::write(parent.join("cgroup.procs"), "0");
        }
        self.remove();
    }

    /// Removes what a shim of the calling process left: it cannot remove what it is in.
    pub(crate) fn remove_left(marker: &str) {
        if let Some(own) = own() {
            Self(own.join(name_of(marker))).remove();
        }
    }

    /// The cgroup that a run directory names, if it is the one of this marker: a record that says anything
    /// else must not decide who is killed.
    pub(crate) fn recorded(path: &str, marker: &str) -> Option<Self> {
        let path = PathBuf::from(path);
        let is_ours = path.is_absolute()
            && path.file_name().is_some_and(|name| name == name_of(marker).as_str())
            && path.join("cgroup.procs").exists();
        is_ours.then_some(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Who is in it, or below it.
    pub(crate) fn members(&self) -> Vec<i32> {
        let lists = self
            .folders()
            .into_iter()
            .map(|folder| fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default());
        lists
            .flat_map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect()
    }

    /// Kills everybody in it at one moment; whoever forks meanwhile does not escape.
    pub(crate) fn kill(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.kill"), "1")
    }

    /// Removes it when it is empty.
    pub(crate) fn remove(&self) {
        for folder in self.folders().iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }

    /// Itself and what is below, parents first.
    fn folders(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.0.clone()];
        let mut next = 0;
        while let Some(folder) = folders.get(next)
            && folders.len() < FOLDERS_MAX
        {
            let below = fs::read_dir(folder).into_iter().flatten().flatten();
            let below: Vec<_> = below
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path())
                .collect();
            folders.extend(below);
            next += 1;
        }
        folders
    }
}

/// The folder of the calling process's own cgroup.
fn own() -> Option<PathBuf> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    own_in(&cgroups, &mounts)
}

/// The same from what the two files say: the line `0::/path`, and where cgroup v2 is mounted.
fn own_in(cgroups: &str, mounts: &str) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // "36 35 0:30 /root /mount/point options … - cgroup2 source options"
    let (root, point) = mounts.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut fields = front.split(' ').skip(3);
        let found = (fields.next()?, fields.next()?);
        back.starts_with("cgroup2 ").then_some(found)
    })?;
    let below = Path::new(path).strip_prefix(root).ok()?;
    Some(Path::new(point).join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroup_is_found_below_the_mount() {
        let mounts = "29 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let own = own_in("5:cpu:/x\n0::/user.slice/a.service\n", mounts);
        assert_eq!(own, Some("/sys/fs/cgroup/user.slice/a.service".into()));
        // In a container only a part is mounted.
        let part = "30 23 0:27 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(own_in("0::/box/a\n", part), Some("/sys/fs/cgroup/a".into()));
        assert_eq!(own_in("0::/elsewhere\n", part), None);
        assert_eq!(own_in("5:cpu:/x\n", mounts), None);
        assert_eq!(own_in("0::/\n", ""), None);
    }

    #[test]
    fn a_record_that_names_another_cgroup_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("user.slice");
        let ours = dir.path().join("ostler-abc");
        for folder in [&other, &ours] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("cgroup.procs"), "1\n").unwrap();
        }
        let recorded = |path: &Path, marker| Cgroup::recorded(path.to_str().unwrap(), marker);
        assert_eq!(recorded(&other, "abc"), None);
        assert_eq!(recorded(&ours, "abd"), None);
        assert_eq!(recorded(Path::new("ostler-abc"), "abc"), None);
        assert_eq!(recorded(&ours, "abc").unwrap().members(), [1]);
    }
}
