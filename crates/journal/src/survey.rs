//! What lies in a journal's directory: names, kinds, owners and sizes are checked here, before any
//! file is loaded. Changes nothing.

use crate::disk::{Disk, Facts, Kind};
use crate::error::{OpenError, Warning};
use crate::format::{HEADER_BYTES, SNAPSHOT_FOOTER_BYTES};
use crate::names::{Name, parse, segment_name, snapshot_name};
use crate::options::{Options, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use camino::Utf8Path;
use std::io;

/// More segment files than this are an error. No journal makes so many today (`SEGMENT_FILES_MAX`);
/// earlier versions filled 8 GiB with segments of 4 MiB.
pub const SEGMENT_FILES_FOUND_MAX: usize = 2_048;
/// A reader beside a live writer holds the oldest segments open, which the writer may remove. What is
/// beyond, and every segment of a journal whose lock is held, is opened when it is read: nobody has so
/// many file descriptors.
const SEGMENTS_OPEN_MAX: usize = 200;
/// How often a reader looks again when a writer changes the directory under it.
const SURVEYS_MAX: usize = 10;

/// A numbered file.
#[derive(Debug)]
pub(crate) struct Numbered<F> {
    pub(crate) number: u64,
    pub(crate) file: F,
    pub(crate) bytes: u64,
}

/// A segment's file, open or to be opened when it is needed: see [`file_of`].
pub(crate) type Segment<F> = Numbered<Option<F>>;

/// The journal's files, in order.
#[derive(Debug)]
pub(crate) struct Files<F> {
    pub(crate) segments: Vec<Segment<F>>,
    pub(crate) snapshot: Option<Numbered<F>>,
    /// Unfinished files and snapshots that a newer one replaced.
    pub(crate) stale: Vec<String>,
    /// Files that others may read.
    pub(crate) exposed: Vec<String>,
    pub(crate) warnings: Vec<Warning>,
}

pub(crate) fn io_error(
    doing: &'static str,
    dir: &Utf8Path,
    name: &str,
) -> impl FnOnce(io::Error) -> OpenError {
    let file = dir.join(name);
    move |source| OpenError::Io { doing, file, source }
}

/// Refuses what is not a file (or directory) of our own.
pub(crate) fn check_kind(
    dir: &Utf8Path,
    name: &str,
    facts: Facts,
    kind: Kind,
) -> Result<(), OpenError> {
    let reason = match facts.kind {
        Kind::Link => "is a link",
        found if found != kind && kind == Kind::Dir => "is not a directory",
        found if found != kind => "is not a regular file",
        _ if !facts.owned => "belongs to another user",
        _ => return Ok(()),
    };
    let file = if name.is_empty() { dir.to_owned() } else { dir.join(name) };
    Err(OpenError::Unsafe { file, reason })
}

/// Lists, checks and opens everything.
pub(crate) fn survey<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    options: &Options,
    write: bool,
) -> Result<Files<D::File>, OpenError> {
    let mut names = disk.list().map_err(io_error("list", dir, ""))?;
    names.sort_unstable();
    let mut files = Files {
        segments: Vec::new(),
        snapshot: None,
        stale: Vec::new(),
        exposed: Vec::new(),
        warnings: Vec::new(),
    };
    let mut total = 0_u64;
    for name in names {
        let parsed = parse(&name);
        if parsed == Name::Unknown {
            files.warnings.push(Warning::UnknownFile { file: dir.join(name) });
            continue;
        }
        let facts = disk.facts(&name).map_err(io_error("look at", dir, &name))?;
        check_kind(dir, &name, facts, Kind::File)?;
        if !facts.private && parsed != Name::Temp {
            files.exposed.push(name.clone());
        }
        match parsed {
            Name::Lock | Name::Unknown => {}
            Name::Temp => files.stale.push(name),
            Name::Malformed => {
                return Err(OpenError::Corrupt {
                    file: dir.join(name),
                    offset: 0,
                    reason: "the name is none a journal gives".to_owned(),
                });
            }
            Name::Segment(number) => {
                total = total.saturating_add(facts.bytes);
                check_segment_size(dir, &name, facts.bytes, total, options)?;
                if files.segments.len() >= SEGMENT_FILES_FOUND_MAX {
                    return Err(OpenError::Crowded {
                        dir: dir.to_owned(),
                        files_max: SEGMENT_FILES_FOUND_MAX,
                    });
                }
                files.segments.push(if write || files.segments.len() >= SEGMENTS_OPEN_MAX {
                    Numbered { number, file: None, bytes: facts.bytes }
                } else {
                    let opened = open(disk, dir, &name, number, write)?;
                    Numbered { number, file: Some(opened.file), bytes: opened.bytes }
                });
            }
            Name::Snapshot(sequence) => {
                let bytes_max =
                    options.snapshot_bytes_max + HEADER_BYTES as u64 + SNAPSHOT_FOOTER_BYTES;
                check_size(dir, &name, facts.bytes, bytes_max)?;
                let opened = open(disk, dir, &name, sequence, write)?;
                // Names sort by number, so the newest comes last.
                if let Some(older) = files.snapshot.replace(opened) {
                    files.stale.push(snapshot_name(older.number));
                }
            }
        }
    }
    let leftovers = files.stale.iter().map(|name| Warning::Leftover { file: dir.join(name) });
    files.warnings.extend(leftovers);
    Ok(files)
}

/// [`survey`] beside a live writer: again until the directory held still.
pub(crate) fn survey_live<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    options: &Options,
) -> Result<Files<D::File>, OpenError> {
    let mut tries = 1;
    loop {
        let before = disk.list().map_err(io_error("list", dir, ""))?;
        let found = survey(disk, dir, options, false);
        let after = disk.list().map_err(io_error("list", dir, ""))?;
        let still = before.len() == after.len() && before.iter().all(|name| after.contains(name));
        if still || tries >= SURVEYS_MAX {
            return found;
        }
        tries += 1;
    }
}

fn open<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    name: &str,
    number: u64,
    write: bool,
) -> Result<Numbered<D::File>, OpenError> {
    let (file, facts) = disk.open(name, write).map_err(io_error("open", dir, name))?;
    check_kind(dir, name, facts, Kind::File)?;
    Ok(Numbered { number, file, bytes: facts.bytes })
}

/// A segment's file for reading: the one that is held open, else `opened`, opened now.
pub(crate) fn file_of<'a, D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    segment: &'a Segment<D::File>,
    opened: &'a mut Option<D::File>,
) -> Result<&'a D::File, OpenError> {
    if let Some(file) = &segment.file {
        return Ok(file);
    }
    let name = segment_name(segment.number);
    Ok(opened.insert(open(disk, dir, &name, segment.number, false)?.file))
}

/// Opens for writing what the writer goes on with: the last segment of so many that hold anything, and
/// the one behind it.
pub(crate) fn hold_last<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    segments: &mut [Segment<D::File>],
    begun: usize,
) -> Result<(), OpenError> {
    for segment in segments.iter_mut().skip(begun.saturating_sub(1)).take(2) {
        let name = segment_name(segment.number);
        segment.file = Some(open(disk, dir, &name, segment.number, true)?.file);
    }
    Ok(())
}

fn check_size(dir: &Utf8Path, name: &str, bytes: u64, bytes_max: u64) -> Result<(), OpenError> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(OpenError::Oversized { file: dir.join(name), bytes, bytes_max })
}

fn check_segment_size(
    dir: &Utf8Path,
    name: &str,
    bytes: u64,
    total: u64,
    options: &Options,
) -> Result<(), OpenError> {
    check_size(dir, name, bytes, SEGMENT_BYTES_MAX)?;
    check_size(dir, "", total, options.total_bytes_max)?;
    if bytes < SEGMENT_BYTES_MIN {
        return Err(OpenError::Corrupt {
            file: dir.join(name),
            offset: bytes,
            reason: "the file is shorter than any segment".to_owned(),
        });
    }
    Ok(())
}

/// Refuses a hole in the numbers of the segments.
pub(crate) fn check_numbers<F>(dir: &Utf8Path, segments: &[Segment<F>]) -> Result<(), OpenError> {
    for pair in segments.windows(2) {
        let [before, after] = pair else { continue };
        let expected = before.number.saturating_add(1);
        if after.number != expected {
            return Err(OpenError::Corrupt {
                file: dir.join(segment_name(expected)),
                offset: 0,
                reason: format!("the file is missing, {} follows", segment_name(after.number)),
            });
        }
    }
    Ok(())
}
