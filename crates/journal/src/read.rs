//! Reading without writing: `verify` and `read`. No lock is needed; a writer may be at work, whose
//! unfinished append is then left out with a warning. Nothing on disk changes. And [`SegmentFile`], for
//! reading single records again.

use crate::disk::{Disk, RealDisk};
use crate::error::{OpenError, Warning};
use crate::journal::{Place, SegmentInfo};
use crate::names::segment_name;
use crate::options::Options;
use crate::recover::{Visitor, enter, load};
use crate::survey::survey_live;
use camino::Utf8Path;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What a whole journal holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The segments that hold records, oldest first.
    pub segments: Vec<SegmentInfo>,
    /// The snapshot's sequence number.
    pub snapshot_sequence: Option<u64>,
    /// The size of its payload.
    pub snapshot_bytes: u64,
    /// The oldest record; one more than the last when there is none.
    pub first_sequence: u64,
    /// The newest record; 0 when there never was one.
    pub last_sequence: u64,
    /// How many records there are.
    pub records: u64,
    /// The sum of their payloads.
    pub payload_bytes: u64,
    /// What was noticed.
    pub warnings: Vec<Warning>,
}

/// A segment's file, held open: whoever was shown an [`Entry`](crate::Entry) can read its payload again,
/// also when the writer has removed the segment since.
#[derive(Debug)]
pub struct SegmentFile(File);

impl SegmentFile {
    /// Opens the segment of that number.
    pub fn open(dir: &Utf8Path, number: u64) -> io::Result<Self> {
        let path = dir.join(segment_name(number));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(Self(File::from(rustix::fs::open(path.as_std_path(), flags, Mode::empty())?)))
    }

    /// The payload there, as it was shown. What is no longer that is an error.
    pub fn read(&self, place: Place) -> io::Result<Vec<u8>> {
        let mut payload = vec![0; place.bytes as usize];
        self.0.read_exact_at(&mut payload, place.offset)?;
        if crc32c::crc32c(&payload) == place.crc {
            Ok(payload)
        } else {
            let reason = "the record is no longer what was verified";
            Err(io::Error::new(io::ErrorKind::InvalidData, reason))
        }
    }
}

/// Reads the journal in `dir`, verifies every byte of it, and shows it to `visit` as
/// [`Journal::open`](crate::Journal::open) does.
pub fn read(
    dir: &Utf8Path,
    options: &Options,
    visit: &mut Visitor<'_>,
) -> Result<Report, OpenError> {
    read_from(&mut RealDisk::new(), dir, options, visit)
}

/// Verifies every byte of the journal in `dir`.
pub fn verify(dir: &Utf8Path, options: &Options) -> Result<Report, OpenError> {
    read(dir, options, &mut |_| Ok(()))
}

pub(crate) fn read_from<D: Disk>(
    disk: &mut D,
    dir: &Utf8Path,
    options: &Options,
    visit: &mut Visitor<'_>,
) -> Result<Report, OpenError> {
    enter(disk, dir, false)?;
    let mut files = survey_live(disk, dir, options)?;
    let loaded = load(disk, dir, &mut files, true, visit)?;
    let first = loaded.segments.first();
    let mut warnings = files.warnings;
    if let Some(torn) = &loaded.torn {
        // A torn header is not counted as a segment, so the torn one is the last or the one after.
        let at = loaded.segments.len() - usize::from(torn.start > 0);
        let number = files.segments.get(at).map_or(0, |segment| segment.number);
        warnings.push(Warning::Torn {
            file: dir.join(segment_name(number)),
            offset: torn.start as u64,
            bytes: torn.len() as u64,
        });
    }
    Ok(Report {
        first_sequence: first.map_or(loaded.last_sequence + 1, |segment| segment.first_sequence),
        snapshot_sequence: loaded.snapshot.map(|snapshot| snapshot.sequence),
        snapshot_bytes: loaded.snapshot.map_or(0, |snapshot| snapshot.payload_bytes),
        segments: loaded.segments,
        last_sequence: loaded.last_sequence,
        records: loaded.records,
        payload_bytes: loaded.payload_bytes,
        warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Journal, Visit};
    use camino::Utf8PathBuf;

    #[test]
    fn a_record_is_read_again_as_it_was_shown_or_not_at_all() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Utf8PathBuf::from_path_buf(temp.path().join("journal")).unwrap();
        let open = |visit: &mut Visitor<'_>| {
            Journal::open(RealDisk::new(), &dir, Options::default(), visit).unwrap()
        };
        open(&mut |_| Ok(())).journal.append(&[b"one", b"two", b""]).unwrap();
        let mut places = Vec::new();
        let opened = open(&mut |visit| {
            if let Visit::Entry(entry) = visit {
                places.push(entry.place);
            }
            Ok(())
        });
        let file = SegmentFile::open(&dir, places[0].segment).unwrap();
        let path = dir.join(segment_name(places[0].segment));
        let other = File::options().write(true).open(path).unwrap();
        other.write_all_at(b"x", places[1].offset + 1).unwrap();
        assert_eq!(file.read(places[0]).unwrap(), b"one");
        assert_eq!(file.read(places[1]).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(file.read(places[2]).unwrap(), b"");
        // Cut short, as nobody but a stranger does.
        other.set_len(places[1].offset).unwrap();
        assert_eq!(file.read(places[1]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        drop(opened);
    }
}
