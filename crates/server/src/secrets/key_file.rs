//! The file of the master key: made once, read at each start, refused when others could read it.
//!
//! A new file is written under another name, flushed, and then linked to its own name, which fails where
//! there is one already: nobody ever sees half a key, and of two servers that start at once the second takes
//! the key of the first.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::{KeyFault, MASTER_BYTES, decode_master, hex, random};

/// Bytes of a key file: the key as text with space around it. A longer file is refused.
const KEY_FILE_BYTES_MAX: u64 = 256;

/// The key in the file, which is made where there is none.
pub(super) fn load_or_create(file: &Path) -> Result<[u8; MASTER_BYTES], KeyFault> {
    let key = match load(file)? {
        Some(key) => key,
        None => {
            create(file)?;
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            load(file)?.ok_or_else(|| fault("read", file)(missing()))?
        }
    };
    // Also for a key that was there: the server that made it may not have come to this line.
    File::open(folder(file)).and_then(|dir| dir.sync_all()).map_err(fault("make durable", file))?;
    Ok(key)
}

fn load(file: &Path) -> Result<Option<[u8; MASTER_BYTES]>, KeyFault> {
    // NONBLOCK: a pipe put in the file's place must not hang the start.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut opened = match rustix::fs::open(file, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => return Err(KeyFault::NotAFile { file: file.to_owned() }),
        Err(error) => return Err(fault("open", file)(error.into())),
    };
    let stat = rustix::fs::fstat(&opened).map_err(|error| fault("examine", file)(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(KeyFault::NotAFile { file: file.to_owned() });
    }
    // Root reads everything anyway, and hands out secrets as files of its own.
    let owned = stat.st_uid == rustix::process::geteuid().as_raw() || stat.st_uid == 0;
    if !owned || stat.st_mode & 0o077 != 0 {
        return Err(KeyFault::Shared { file: file.to_owned() });
    }
    let mut bytes = Vec::new();
    let limited = (&mut opened).take(KEY_FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    limited.map_err(fault("read", file))?;
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= KEY_FILE_BYTES_MAX);
    let key = text.as_deref().and_then(decode_master);
    key.map(Some).ok_or_else(|| KeyFault::Content { file: file.to_owned() })
}

fn create(file: &Path) -> Result<(), KeyFault> {
    let key = random::<MASTER_BYTES>()?;
    let mut draft = file.as_os_str().to_owned();
    draft.push(format!(".new-{}", hex(&random::<8>()?)));
    let draft = PathBuf::from(draft);
    let made = write_draft(&draft, &key).and_then(|()| match std::fs::hard_link(&draft, file) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    // A draft that stays behind is a key that nobody uses.
    let _ = std::fs::remove_file(&draft);
    made.map_err(fault("make", file))
}

fn write_draft(draft: &Path, key: &[u8; MASTER_BYTES]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut opened = File::from(rustix::fs::open(draft, flags, Mode::RUSR | Mode::WUSR)?);
    writeln!(opened, "{}", hex(key))?;
    opened.sync_all()
}

fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn fault(doing: &'static str, file: &Path) -> impl FnOnce(io::Error) -> KeyFault {
    let file = file.to_owned();
    move |source| KeyFault::Io { doing, file, source }
}
