//! The store with an archive that takes long, hangs, or cannot be used.

use super::*;
use crate::clock::SystemClock;

/// Far beyond anything that is not a hang.
const HANG: Duration = Duration::from_secs(60);

struct Rig {
    _folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    index: Arc<ArchiveIndex>,
    archive_dir: Utf8PathBuf,
    parts: StoreParts,
}

fn rig() -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
    let options =
        Options { segment_bytes: 64 * 1024, record_bytes_max: 16 * 1024, ..Options::default() };
    let opened =
        Journal::open(RealDisk::new(), &dir.join("journal"), options.clone(), &mut |_| Ok(()));
    let (index, archive_dir) = (Arc::new(ArchiveIndex::default()), dir.join("archive"));
    let parts = StoreParts {
        journal: opened.unwrap().journal,
        archive_dir: archive_dir.clone(),
        archive_options: options,
        archive_bounds: ArchiveBounds { tasks_max: 100, days_max: 180 },
        index: Arc::clone(&index),
        leaving: Vec::new(),
        clock: Arc::new(SystemClock),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    Rig { _folder: folder, runtime, index, archive_dir, parts }
}

fn next(runtime: &tokio::runtime::Runtime, store: &mut Store) -> Done {
    runtime.block_on(async { tokio::time::timeout(HANG, store.done()).await }).unwrap().unwrap()
}

fn batch() -> Batch {
    Batch { records: b"record".to_vec(), ends: vec![6], leaving: Vec::new() }
}

#[test]
fn appends_and_snapshots_do_not_wait_until_the_archive_has_been_read() {
    let Rig { _folder, runtime, index, parts, .. } = rig();
    let reading = index.hold();
    let mut store = Store::start(parts).unwrap();
    store.append(batch());
    assert!(matches!(next(&runtime, &mut store), Done::Appended(Ok(()), ..)));
    store.snapshot(b"state".to_vec());
    assert!(matches!(next(&runtime, &mut store), Done::Snapshotted(Ok(()), _)));
    drop(reading);
    assert!(matches!(next(&runtime, &mut store), Done::ArchiveReady(Ok(()))));
    store.close();
}

#[test]
fn what_waits_for_an_archive_that_is_being_read_keeps_the_snapshot_waiting_and_gets_there() {
    let Rig { _folder, runtime, index, parts, .. } = rig();
    let id = ostler_core::id::TaskId::new("left").unwrap();
    let updated_at = SystemClock.now().wall;
    let reading = index.hold();
    let mut store = Store::start(parts).unwrap();
    let leaving = vec![Leaving { id, updated_at, record: b"{}".to_vec() }];
    store.append(Batch { leaving, ..batch() });
    assert!(matches!(next(&runtime, &mut store), Done::Appended(Ok(()), ..)));
    store.snapshot(b"state".to_vec());
    assert!(matches!(next(&runtime, &mut store), Done::Snapshotted(Err(_), _)));
    drop(reading);
    assert!(matches!(next(&runtime, &mut store), Done::ArchiveReady(Ok(()))));
    store.snapshot(b"state".to_vec());
    assert!(matches!(next(&runtime, &mut store), Done::Snapshotted(Ok(()), _)));
    store.close();
}

#[test]
fn a_store_is_closed_in_bounded_time_though_the_disk_hangs() {
    let Rig { _folder, index, parts, .. } = rig();
    let hanging = index.hold();
    let store = Store::start(parts).unwrap();
    let (closed, is_closed) = blocking::channel();
    std::thread::spawn(move || {
        store.close();
        closed.send(()).unwrap();
    });
    is_closed.recv_timeout(HANG).unwrap();
    drop(hanging);
}

#[test]
fn an_archive_that_cannot_be_used_shows_in_the_standing() {
    let Rig { _folder, runtime, archive_dir, parts, .. } = rig();
    std::fs::write(&archive_dir, "no directory").unwrap();
    let mut store = Store::start(parts).unwrap();
    assert!(matches!(next(&runtime, &mut store), Done::ArchiveReady(Err(_))));
    store.ensure_room();
    let done = next(&runtime, &mut store);
    assert!(matches!(done, Done::Room(Ok(()), Standing { archive_failed: true, .. })));
    store.close();
}
