//! Text from a file or from standard input: UTF-8, and no more than its reader wants.

use std::fs::File;
use std::io::{Read, stdin};

use camino::Utf8Path;

use crate::error::{Code, Failure};

/// A file's text; standard input's for `-`.
pub(crate) fn read(file: &Utf8Path, bytes_max: u64) -> Result<String, Failure> {
    let cannot =
        |error| Failure::new(Code::Usage, format!("{file} cannot be read as text")).because(error);
    let input: Box<dyn Read> =
        if file == "-" { Box::new(stdin()) } else { Box::new(File::open(file).map_err(cannot)?) };
    let mut text = String::new();
    input.take(bytes_max + 1).read_to_string(&mut text).map_err(cannot)?;
    if text.len() as u64 > bytes_max {
        let heading = format!("{file} has more than {} MiB", bytes_max >> 20);
        return Err(Failure::new(Code::Usage, heading));
    }
    Ok(text)
}
