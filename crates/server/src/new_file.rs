//! A file that comes into being whole: owner-only, on disk for good, and never in the place of another.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Mode, OFlags};

/// Why there is no file. Nothing of it is left, then.
#[derive(Debug, thiserror::Error)]
pub enum NewFileError {
    /// Something has that name.
    #[error("{file} is there already")]
    Exists {
        /// Which file.
        file: Utf8PathBuf,
    },
    /// The disk did not do it.
    #[error("cannot {doing} {file}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Which file.
        file: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A file under a name of its own, until it is [kept](NewFile::keep). Dropped before, it is gone.
#[derive(Debug)]
pub struct NewFile {
    to: Utf8PathBuf,
    draft: Utf8PathBuf,
    file: File,
}

impl NewFile {
    /// The same in a folder that may have to be made, owner-only as well.
    pub fn create_with_folder(to: &Utf8Path) -> Result<Self, NewFileError> {
        if let Some(folder) = to.parent().filter(|folder| !folder.as_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|source| {
                let doing = "make the folder of";
                NewFileError::Io { doing, file: to.to_owned(), source }
            })?;
        }
        Self::create(to)
    }

    /// Makes an empty one beside the place it is for.
    pub fn create(to: &Utf8Path) -> Result<Self, NewFileError> {
        let fault = |doing, source| NewFileError::Io { doing, file: to.to_owned(), source };
        if to.symlink_metadata().is_ok() {
            return Err(NewFileError::Exists { file: to.to_owned() });
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| fault("make", io::Error::other(error)))?;
        let draft = Utf8PathBuf::from(format!("{to}.{:016x}.part", u64::from_be_bytes(random)));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let opened = rustix::fs::open(draft.as_std_path(), flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(opened.map_err(|error| fault("make", error.into()))?);
        Ok(Self { to: to.to_owned(), draft, file })
    }

    /// Where it is for now.
    pub fn draft(&self) -> &Utf8Path {
        &self.draft
    }

    /// To write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name, when it is on disk for good; its bytes.
    pub fn keep(self) -> Result<u64, NewFileError> {
        let fault = |doing| {
            let file = self.to.clone();
            move |source| NewFileError::Io { doing, file, source }
        };
        self.file.sync_all().map_err(fault("make durable"))?;
        let bytes = self.file.metadata().map_err(fault("examine"))?.len();
        match std::fs::hard_link(&self.draft, &self.to) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(NewFileError::Exists { file: self.to.clone() });
            }
            Err(error) => return Err(fault("name")(error)),
        }
        let folder = match self.to.parent() {
            Some(folder) if !folder.as_str().is_empty() => folder.as_std_path(),
            _ => Path::new("."),
        };
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(fault("make durable")).map(|()| bytes)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // A draft that stays behind is a file that nobody uses.
        let _ = std::fs::remove_file(&self.draft);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_kept_file_is_whole_and_owner_only_and_another_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let to = Utf8Path::from_path(dir.path()).unwrap().join("copy");
        let (first, second) = (NewFile::create(&to).unwrap(), NewFile::create(&to).unwrap());
        first.file().write_all(b"first").unwrap();
        assert!(!to.exists());
        assert_eq!(first.keep().unwrap(), 5);
        assert!(matches!(second.keep(), Err(NewFileError::Exists { .. })));
        assert!(matches!(NewFile::create(&to), Err(NewFileError::Exists { .. })));
        assert_eq!(std::fs::read(&to).unwrap(), b"first");
        assert_eq!(to.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
    }
}
