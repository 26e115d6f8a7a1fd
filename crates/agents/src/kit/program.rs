//! Looking for a program on a `PATH` that is given, the way a shell does.
//!
//! The one place of this crate that looks at the disk.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// At most this many folders of a `PATH` are looked at.
const PATH_ENTRIES_MAX: usize = 1_024;

/// The executable file that `name` means: itself, seen from `cwd`, when it contains a slash, else
/// the first one in `path`. Relative folders of `path` count from `cwd`, too.
pub fn find_program(name: &str, path: Option<&OsStr>, cwd: &Path) -> Option<PathBuf> {
    if name.is_empty() {
        return None;
    }
    if name.contains('/') {
        return Some(cwd.join(name)).filter(|file| is_executable(file));
    }
    std::env::split_paths(path?)
        .take(PATH_ENTRIES_MAX)
        .map(|folder| cwd.join(folder).join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_06_a_program_is_looked_for_on_the_given_path_only() {
        let root = Path::new("/");
        let bin = Some(OsStr::new("/nonexistent:/bin:/usr/bin"));
        assert_eq!(find_program("sh", bin, root), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find_program("sh", Some(OsStr::new("/nonexistent")), root), None);
        assert_eq!(find_program("sh", None, root), None);
        assert_eq!(find_program("bin/sh", None, root), Some(PathBuf::from("/bin/sh")));
        assert_eq!(
            find_program("sh", Some(OsStr::new("bin")), root),
            Some(PathBuf::from("/bin/sh"))
        );
        // A folder, and a file that nobody may execute, are no programs.
        assert_eq!(find_program("/bin", bin, root), None);
        assert_eq!(find_program("/etc/passwd", bin, root), None);
        assert_eq!(find_program("", bin, root), None);
    }
}
