//! Text from files: UTF-8, and no more than its reader wants.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, stdin};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;

use crate::error::{Code, Failure};

/// The longest configuration file.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// A file's text; standard input's for `-`.
pub(crate) fn read(file: &Utf8Path, bytes_max: u64) -> Result<String, Failure> {
    let input: io::Result<Box<dyn Read>> = match file.as_str() {
        "-" => Ok(Box::new(stdin())),
        _ => File::open(file).map(|file| Box::new(file) as _),
    };
    text(input.map_err(|error| cannot(file, error))?, file, bytes_max)
}

/// A configuration's text: none where there is no file, unless somebody named it. `other` says how.
pub(crate) fn configuration(
    file: &Utf8Path,
    is_named: bool,
    other: &str,
) -> Result<String, Failure> {
    // NONBLOCK: a named pipe in its place must not make us wait.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let read = match OpenOptions::new().read(true).custom_flags(nonblock).open(file) {
        Ok(opened) => text(opened, file, CONFIG_BYTES_MAX),
        Err(error) if error.kind() == ErrorKind::NotFound && !is_named => Ok(String::new()),
        Err(error) => Err(cannot(file, error)),
    };
    read.map_err(|failure| failure.hint(format!("check the file; {other}")))
}

fn text(input: impl Read, file: &Utf8Path, bytes_max: u64) -> Result<String, Failure> {
    let mut text = String::new();
    input.take(bytes_max + 1).read_to_string(&mut text).map_err(|error| cannot(file, error))?;
    if text.len() as u64 > bytes_max {
        let heading = format!("{file} has more than {} MiB", bytes_max >> 20);
        return Err(Failure::new(Code::Usage, heading));
    }
    Ok(text)
}

fn cannot(file: &Utf8Path, error: io::Error) -> Failure {
    Failure::new(Code::Usage, format!("{file} cannot be read as text")).because(error)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_configuration_that_is_not_there_is_empty_unless_it_was_named() {
        let missing = Utf8Path::new("/nowhere/config.toml");
        assert_eq!(configuration(missing, false, "").unwrap(), "");
        let failure = configuration(missing, true, "OSTLER_CONFIG names another").unwrap_err();
        assert_eq!(failure.code(), Code::Usage);
        assert!(failure.to_string().contains("/nowhere/config.toml"), "{failure}");
    }

    #[test]
    fn what_cannot_be_a_configuration_is_refused_and_nobody_waits_for_a_pipe() {
        let dir = ostler_testkit::scratch::Scratch::new();
        let file = Utf8Path::from_path(dir.path()).unwrap().join("c.toml");
        std::fs::write(&file, vec![b'#'; 1 << 20]).unwrap();
        assert_eq!(configuration(&file, true, "").unwrap().len(), 1 << 20);
        std::fs::write(&file, vec![b'#'; (1 << 20) + 1]).unwrap();
        let failure = configuration(&file, true, "").unwrap_err().to_string();
        assert!(failure.contains("has more than 1 MiB"), "{failure}");
        std::fs::write(&file, [0xff]).unwrap();
        configuration(&file, true, "").unwrap_err();
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        configuration(&file, false, "").unwrap_err();
        std::fs::remove_dir(&file).unwrap();
        mknodat(CWD, file.as_std_path(), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(configuration(&file, true, "").unwrap(), "");
    }
}
