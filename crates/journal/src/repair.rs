//! After everything was verified: makes what was shown durable, clears what a crash left, and hands
//! over the writer. Every step can be cut off anywhere and is done again at the next start.

use crate::disk::Disk;
use crate::error::{OpenError, Warning};
use crate::format::{BATCH_HEADER_BYTES, HEADER_BYTES, ZEROS};
use crate::journal::{Journal, Reserve};
use crate::names::segment_name;
use crate::options::Options;
use crate::recover::{Loaded, Opened};
use crate::survey::Files;
use camino::{Utf8Path, Utf8PathBuf};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;

pub(crate) fn repair<D: Disk>(
    mut disk: D,
    dir: &Utf8Path,
    options: Options,
    mut files: Files<D::File>,
    loaded: Loaded,
    private: bool,
) -> Result<Opened<D>, OpenError> {
    let mut mending = Mending { disk: &mut disk, dir };
    let unused = loaded.segments.len();
    // The last one that holds anything: an active segment, or one whose first batch was torn.
    let held = if loaded.torn_from_start() {
        files.segments.get(unused)
    } else {
        unused.checked_sub(1).and_then(|at| files.segments.get(at))
    };
    if let Some((held, file)) = held.and_then(|held| Some((held, held.file.as_ref()?))) {
        mending.mend_segment(file, &segment_name(held.number), &loaded)?;
        if let Some(torn) = &loaded.torn {
            files.warnings.push(Warning::Torn {
                file: dir.join(segment_name(held.number)),
                offset: torn.start as u64,
                bytes: torn.len() as u64,
            });
        }
    }
    let mut spare = files.segments.split_off(unused.min(files.segments.len()));
    let expected = loaded.segments.last().map(|active| active.number.saturating_add(1));
    let usable = spare.first().is_some_and(|first| {
        first.bytes == options.segment_bytes && expected.is_none_or(|number| number == first.number)
    });
    let superfluous = spare.split_off(usize::from(usable).min(spare.len()));
    let superfluous = superfluous.iter().rev().map(|file| segment_name(file.number));
    files.stale.extend(superfluous);
    mending.close_to_others(&files.exposed, private)?;
    mending.clear(&files.stale)?;
    let reserve = spare.pop().and_then(|spare| {
        Some(Reserve { file: spare.file?, number: spare.number, bytes: spare.bytes })
    });
    Ok(hand_over(disk, dir.to_owned(), options, files, loaded, reserve))
}

fn hand_over<D: Disk>(
    disk: D,
    dir: Utf8PathBuf,
    options: Options,
    mut files: Files<D::File>,
    loaded: Loaded,
    reserve: Option<Reserve<D::File>>,
) -> Opened<D> {
    let newest = reserve.as_ref().map(|reserve| reserve.number);
    let newest = newest.or_else(|| loaded.segments.last().map(|active| active.number));
    let journal = Journal {
        disk,
        dir,
        options,
        segments: VecDeque::from(loaded.segments),
        active: files.segments.pop().and_then(|active| active.file),
        reserve,
        next_number: newest.unwrap_or(0).saturating_add(1),
        buffer: Vec::new(),
        staged_records: 0,
        staged_payload_bytes: 0,
        last_sequence: loaded.last_sequence,
        snapshot: loaded.snapshot,
        bytes_since_snapshot: loaded.bytes_since_snapshot,
        poisoned: false,
    };
    Opened {
        snapshot_sequence: journal.snapshot_sequence(),
        first_sequence: journal.first_sequence(),
        last_sequence: journal.last_sequence,
        warnings: files.warnings,
        journal,
    }
}

struct Mending<'a, D: Disk> {
    disk: &'a mut D,
    dir: &'a Utf8Path,
}

impl<D: Disk> Mending<'_, D> {
    /// Zeroes what was torn, and writes the last batch again: a process that was killed, or whose
    /// flush failed, may have left it in the page cache only, where a flush alone would not find it.
    fn mend_segment(
        &mut self,
        segment: &D::File,
        name: &str,
        loaded: &Loaded,
    ) -> Result<(), OpenError> {
        if let Some(batch) = loaded.written_last() {
            let bytes = loaded.bytes.get(batch.clone()).unwrap_or_default();
            let written = self.disk.write_at(segment, batch.start as u64, bytes);
            written.map_err(self.failed("write", name))?;
        }
        if let Some(torn) = &loaded.torn {
            // The head last and alone: cut off at any byte, what is left still looks torn.
            let head_bytes = if torn.start == 0 { HEADER_BYTES } else { BATCH_HEADER_BYTES };
            let head_end = (torn.start + head_bytes).min(torn.end);
            let zeroed = self.zero(segment, head_end..torn.end);
            zeroed.map_err(self.failed("write", name))?;
            self.sync(segment, name)?;
            let zeroed = self.zero(segment, torn.start..head_end);
            zeroed.map_err(self.failed("write", name))?;
        }
        self.sync(segment, name)
    }

    fn sync(&mut self, segment: &D::File, name: &str) -> Result<(), OpenError> {
        let synced = self.disk.sync(segment);
        synced.map_err(self.failed("sync", name))
    }

    fn zero(&mut self, segment: &D::File, range: Range<usize>) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let piece = ZEROS.get(..(range.end - at).min(ZEROS.len())).unwrap_or_default();
            self.disk.write_at(segment, at as u64, piece)?;
            at += piece.len();
        }
        Ok(())
    }

    fn close_to_others(&mut self, exposed: &[String], private: bool) -> Result<(), OpenError> {
        if !private {
            let closed = self.disk.make_private(None);
            closed.map_err(self.failed("close to others", ""))?;
        }
        for name in exposed {
            let closed = self.disk.make_private(Some(name));
            closed.map_err(self.failed("close to others", name))?;
        }
        Ok(())
    }

    /// Makes durable what names there are (some may be a killed process's), then removes `stale`:
    /// an old snapshot must not go before the name of the new one is sure to stay, and segments go
    /// one by one so that no hole is ever left.
    fn clear(&mut self, stale: &[String]) -> Result<(), OpenError> {
        self.sync_dir()?;
        for name in stale {
            let removed = self.disk.remove(name);
            removed.map_err(self.failed("remove", name))?;
        }
        if stale.is_empty() { Ok(()) } else { self.sync_dir() }
    }

    fn sync_dir(&mut self) -> Result<(), OpenError> {
        let synced = self.disk.sync_dir();
        synced.map_err(self.failed("sync the directory", ""))
    }

    fn failed(
        &self,
        doing: &'static str,
        name: &str,
    ) -> impl FnOnce(io::Error) -> OpenError + use<D> {
        let file = self.dir.join(name);
        move |source| OpenError::Repair { doing, file, source }
    }
}

impl Loaded {
    fn torn_from_start(&self) -> bool {
        self.torn.as_ref().is_some_and(|torn| torn.start == 0)
    }

    /// The bytes written last: the last batch, with the segment's header when it is the first.
    fn written_last(&self) -> Option<Range<usize>> {
        if self.torn_from_start() {
            return None;
        }
        let batch = self.last_batch.clone().unwrap_or(HEADER_BYTES..HEADER_BYTES);
        let start = if batch.start == HEADER_BYTES { 0 } else { batch.start };
        Some(start..batch.end)
    }
}
