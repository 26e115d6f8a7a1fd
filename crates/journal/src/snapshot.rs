//! Installing a snapshot and letting go of segments nobody needs.
//!
//! Order: the new snapshot is whole and durable under its name; then the old one goes; then
//! segments, oldest first, each removal durable before the next, so that a crash never leaves a
//! hole among them. The snapshot says from where on records must be there (`floor`), so that a
//! start notices when any of those is missing.

use crate::disk::Disk;
use crate::error::{AppendError, SnapshotError};
use crate::format::{HEADER_BYTES, SnapshotHeader};
use crate::journal::{Journal, SnapshotMark};
use crate::names::{SNAPSHOT_TEMP, segment_name, snapshot_name};
use crate::options::SEGMENT_FILES_MAX;
use std::io;

impl<D: Disk> Journal<D> {
    /// Installs `payload` as the state at [`last_sequence`](Self::last_sequence), then removes the
    /// segments it makes superfluous, but for what `Options` keeps for replay. On a full disk the
    /// old snapshot stays in force and the journal goes on.
    pub fn install_snapshot(&mut self, payload: &[u8]) -> Result<(), SnapshotError> {
        let (bytes, bytes_max) = (payload.len() as u64, self.options.snapshot_bytes_max);
        if bytes > bytes_max {
            return Err(SnapshotError::TooLarge { bytes, bytes_max });
        }
        let sequence = self.sync()?;
        let superfluous = self.superfluous();
        self.replace_snapshot(sequence, superfluous, payload)?;
        self.drop_segments(superfluous)
    }

    /// Removes segments whose records all lie below `sequence`; the active one stays. For a journal
    /// without snapshots: an empty one is written to remember from where on records are kept.
    pub fn remove_segments_below(&mut self, sequence: u64) -> Result<(), SnapshotError> {
        if self.snapshot.is_some_and(|snapshot| snapshot.payload_bytes > 0) {
            return Err(SnapshotError::HasSnapshots);
        }
        let last = self.sync()?;
        let closed = self.segments.len().saturating_sub(1);
        let below = self.segments.iter().take(closed);
        let count = below.take_while(|segment| segment.last_sequence < sequence).count();
        if count == 0 {
            return Ok(());
        }
        self.replace_snapshot(last, count, &[])?;
        self.drop_segments(count)
    }

    /// How many of the oldest segments neither the new snapshot nor replay needs.
    fn superfluous(&self) -> usize {
        let (mut records, mut bytes, mut kept) = (0_u64, 0_u64, 0_usize);
        for segment in self.segments.iter().rev() {
            // By files only where segments that were made smaller are left: the journal must go on.
            let enough = records >= self.options.events_keep
                || bytes >= self.options.events_bytes_keep
                || kept >= SEGMENT_FILES_MAX / 2;
            if enough && kept > 0 {
                break;
            }
            let held = segment.last_sequence.saturating_add(1);
            records = records.saturating_add(held.saturating_sub(segment.first_sequence));
            bytes = bytes.saturating_add(segment.used_bytes);
            kept += 1;
        }
        self.segments.len().saturating_sub(kept)
    }

    fn replace_snapshot(
        &mut self,
        sequence: u64,
        superfluous: usize,
        payload: &[u8],
    ) -> Result<(), SnapshotError> {
        let first_kept = self.segments.get(superfluous);
        let header = SnapshotHeader {
            sequence,
            floor: first_kept.map_or(sequence.saturating_add(1), |kept| kept.first_sequence),
            payload_bytes: payload.len() as u64,
        };
        let name = snapshot_name(sequence);
        if let Err(source) = self.write_snapshot(header, payload, &name) {
            // When this fails too, the next try or start removes it.
            let _left = self.disk.remove(SNAPSHOT_TEMP);
            return Err(self.snapshot_error("write", &name, source));
        }
        // From here on it is unknown which of the two a crash would leave.
        if let Err(source) = self.disk.sync_dir() {
            return Err(self.poison("sync the directory for", &name, source).into());
        }
        let old =
            self.snapshot.replace(SnapshotMark { sequence, payload_bytes: header.payload_bytes });
        self.bytes_since_snapshot = 0;
        match old {
            Some(old) if old.sequence != sequence => {
                self.remove_durably(&snapshot_name(old.sequence))
            }
            _ => Ok(()),
        }
    }

    fn write_snapshot(
        &mut self,
        header: SnapshotHeader,
        payload: &[u8],
        name: &str,
    ) -> io::Result<()> {
        match self.disk.remove(SNAPSHOT_TEMP) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.disk.create(SNAPSHOT_TEMP)?;
        self.disk.write_at(&file, 0, &header.encode())?;
        let at = HEADER_BYTES as u64;
        if !payload.is_empty() {
            self.disk.write_at(&file, at, payload)?;
        }
        let seal = crc32c::crc32c(payload).to_le_bytes();
        self.disk.write_at(&file, at + header.payload_bytes, &seal)?;
        self.disk.sync(&file)?;
        self.disk.rename(SNAPSHOT_TEMP, name)
    }

    fn drop_segments(&mut self, count: usize) -> Result<(), SnapshotError> {
        for _ in 0..count {
            let Some(oldest) = self.segments.front() else {
                break;
            };
            let name = segment_name(oldest.number);
            self.remove_durably(&name)?;
            self.segments.pop_front();
        }
        Ok(())
    }

    fn remove_durably(&mut self, name: &str) -> Result<(), SnapshotError> {
        match self.disk.remove(name) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(self.snapshot_error("remove", name, source));
            }
            _ => {}
        }
        let synced = self.disk.sync_dir();
        synced.map_err(|source| self.poison("sync the directory after", name, source).into())
    }

    fn snapshot_error(&self, doing: &'static str, name: &str, source: io::Error) -> SnapshotError {
        SnapshotError::Io { doing, file: self.dir.join(name), source }
    }
}

impl SnapshotError {
    /// The journal takes nothing more; only a new start can go on.
    pub fn is_poisoning(&self) -> bool {
        matches!(self, Self::Append(AppendError::Io { .. } | AppendError::Poisoned))
    }
}
