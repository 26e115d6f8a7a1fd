//! Which appends are made on the engine's thread, and that they are as durable as the others.

use std::sync::atomic::{AtomicUsize, Ordering};

use camino::Utf8PathBuf;
use ostler_core::clock::Timestamp;
use ostler_core::id::TaskId;
use ostler_journal::Visit;
use ostler_proto::framed::{self, Command};

use super::super::{CommandRequest, Engine, Reply, recover};
use super::*;
use crate::clock::SystemClock;
use crate::runner::{LogSink, RunFuture, RunOrder, StopSignal, TaskRunner};
use crate::settings::Settings;

/// Appends to the thread until one is made at once; more than this is no fast disk.
const TRIES_MAX: u32 = 2_000;

struct Rig {
    _folder: tempfile::TempDir,
    dir: Utf8PathBuf,
    options: Options,
    store: Store,
    count: u32,
}

impl Rig {
    /// On a disk whose flushes take no time, where there is one. The archive is open.
    async fn new() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let dir = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        let options = Options {
            segment_bytes: 1024 * 1024,
            record_bytes_max: 128 * 1024,
            ..Options::default()
        };
        let journal = dir.join("journal");
        let opened =
            Journal::open(RealDisk::new(), &journal, options.clone(), &mut |_| Ok(())).unwrap();
        let mut store = Store::start(StoreParts {
            journal: opened.journal,
            archive_dir: dir.join("archive"),
            archive_options: options.clone(),
            archive_bounds: ArchiveBounds { tasks_max: 1_000, days_max: 180 },
            index: Arc::default(),
            leaving: Vec::new(),
            clock: Arc::new(SystemClock),
        })
        .unwrap();
        assert!(matches!(store.done().await, Some(Done::ArchiveReady(Ok(())))));
        Self { _folder: folder, dir, options, store, count: 0 }
    }

    fn batch(&mut self, bytes: usize) -> Batch {
        self.count += 1;
        let mut records = format!("record {} ", self.count).into_bytes();
        records.resize(bytes, b'x');
        Batch { ends: vec![records.len()], records, leaving: Vec::new() }
    }

    /// A batch with which a task leaves the live set.
    fn with_leaving(&mut self) -> Batch {
        let mut batch = self.batch(100);
        let id = TaskId::new(&format!("t{}", self.count)).unwrap();
        let record =
            format!(r#"{{"task":{{"taskId":"{id}","updatedAt":"2026-01-02T03:04:05.678901Z"}}}}"#);
        let updated_at = Timestamp::from_micros(self.count.into());
        batch.leaving.push(Leaving { id, updated_at, record: record.into_bytes() });
        batch
    }

    /// An append by the thread.
    async fn append(&mut self, batch: Batch) {
        self.store.append(batch);
        let done = self.store.done().await;
        assert!(matches!(done, Some(Done::Appended(Ok(()), ..))), "{done:?}");
    }

    /// An append on this thread as soon as there is one; how many the other thread made before. It may be
    /// busy with the next segment, and a busy machine has slow moments.
    async fn append_now(&mut self, bytes: usize) -> u32 {
        let mut tries = 0;
        let mut batch = self.batch(bytes);
        loop {
            match self.store.append_now(batch) {
                Ok(done) => {
                    assert!(matches!(done, Done::Appended(Ok(()), ..)), "{done:?}");
                    return tries;
                }
                Err(back) => {
                    assert!(tries < TRIES_MAX, "no append was made at once");
                    self.append(back).await;
                    tries += 1;
                    batch = self.batch(bytes);
                }
            }
        }
    }

    /// The payloads in a journal, from the disk.
    fn on_disk(&self, name: &str) -> Vec<Vec<u8>> {
        let mut payloads = Vec::new();
        ostler_journal::read(&self.dir.join(name), &self.options, &mut |visit| {
            if let Visit::Entry(entry) = visit {
                payloads.push(entry.payload.to_vec());
            }
            Ok(())
        })
        .unwrap();
        payloads
    }
}

/// R-59: what was appended at once is on disk when the call returns, behind what the thread has written.
#[tokio::test]
async fn r_59_an_append_at_once_comes_after_fast_ones_and_is_on_disk_when_it_returns() {
    let mut rig = Rig::new().await;
    let before = rig.append_now(100).await;
    assert!(before >= FAST_APPENDS_MIN, "after {before}: nothing was known of the disk");
    let mut sizes = vec![100, 1];
    sizes.extend([INLINE_BYTES_MAX; 2]);
    for bytes in sizes {
        rig.append_now(bytes).await;
        let on_disk = rig.on_disk("journal");
        assert_eq!(on_disk.len() as u32, rig.count);
        let newest = format!("record {}", rig.count);
        let shown = on_disk.last().unwrap();
        assert!(shown.starts_with(newest.as_bytes().get(..bytes.min(newest.len())).unwrap()));
    }
}

/// A large batch, and one that comes while the thread has a job, are given back whole.
#[tokio::test]
async fn a_batch_that_may_take_long_is_given_back_for_the_thread() {
    let mut rig = Rig::new().await;
    rig.append_now(100).await;
    let large = rig.batch(INLINE_BYTES_MAX + 1);
    let back = rig.store.append_now(large).unwrap_err();
    assert_eq!(back.records.len(), INLINE_BYTES_MAX + 1);
    rig.append(back).await;
    rig.append_now(100).await;

    let (job, small) = (rig.batch(100), rig.batch(100));
    rig.store.append(job);
    let back = rig.store.append_now(small).unwrap_err();
    assert!(matches!(rig.store.done().await, Some(Done::Appended(Ok(()), ..))));
    rig.append(back).await;
    assert_eq!(rig.on_disk("journal").len() as u32, rig.count, "none twice, none lost");
}

/// R-58: tasks that leave with appends at once wait for the thread, a bounded number of them, and reach the
/// archive; also when the store is closed with some still waiting.
#[tokio::test]
async fn r_58_tasks_that_leave_with_appends_at_once_reach_the_archive_in_order() {
    let mut rig = Rig::new().await;
    rig.append_now(100).await;
    let mut left = 0;
    let mut at_once_most = 0;
    for _ in 0..3 {
        let mut at_once = 0;
        let back = loop {
            let batch = rig.with_leaving();
            left += 1;
            match rig.store.append_now(batch) {
                Ok(_) => at_once += 1,
                Err(back) => break back,
            }
            assert!(at_once <= UNARCHIVED_INLINE_MAX, "nothing takes them to the archive");
        };
        at_once_most = at_once_most.max(at_once);
        rig.append(back).await;
    }
    assert!(at_once_most > 0, "all of them were the thread's");
    let last = rig.with_leaving();
    left += 1;
    if let Err(back) = rig.store.append_now(last) {
        rig.append(back).await;
    }
    let Rig { _folder, dir, options, store, count } = rig;
    store.close();
    let mut ids = Vec::new();
    ostler_journal::read(&dir.join("archive"), &options, &mut |visit| {
        if let Visit::Entry(entry) = visit {
            ids.push(String::from_utf8(entry.payload.to_vec()).unwrap());
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(ids.len(), left);
    let expected = (count as usize + 1 - left)..=count as usize;
    for (id, n) in ids.iter().zip(expected) {
        assert!(id.contains(&format!(r#""t{n}""#)), "{id} is not t{n}");
    }
}

/// Says how many runs began.
#[derive(Default)]
struct Counting {
    started: AtomicUsize,
}

impl TaskRunner for Counting {
    fn run(&self, _order: RunOrder, _log: LogSink, _stop: StopSignal) -> RunFuture {
        self.started.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::pending())
    }
}

/// A disk that takes its time, as long as it is held.
struct Held {
    release: blocking::SyncSender<()>,
    holder: std::thread::JoinHandle<()>,
}

impl Held {
    fn new(worker: &Arc<Mutex<Worker>>) -> Self {
        let worker = Arc::clone(worker);
        let (release, released) = blocking::sync_channel(1);
        let (held, is_held) = blocking::sync_channel(1);
        let holder = std::thread::spawn(move || {
            let _guard = lock(&worker);
            held.send(()).unwrap();
            released.recv().unwrap();
        });
        is_held.recv().unwrap();
        Self { release, holder }
    }

    fn release(self) {
        self.release.send(()).unwrap();
        self.holder.join().unwrap();
    }
}

/// R-59, R-60: while the disk takes its time the engine goes on, but what it has not got on disk nobody is
/// shown, nobody is answered, and no run of it starts.
#[tokio::test]
async fn r_59_r_60_nothing_is_shown_answered_or_started_before_it_is_on_disk() {
    /// Turns in which all of it would have happened.
    const TURNS: usize = 1_000;
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::new(Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap());
    let (runner, clock) = (Arc::new(Counting::default()), Arc::new(SystemClock));
    let recovered = recover(&settings, clock.clone()).unwrap();
    let (engine, mut handle) = Engine::new(recovered, runner.clone(), clock).unwrap();
    let worker = Arc::clone(&engine.store.worker);
    let (client, recovered) = (handle.client(), handle.recovered());
    let running = tokio::spawn(engine.run());
    recovered.await;
    // The first waits for the archive; the others find a disk that is slow, and one that was fast before.
    for n in 1..=40 {
        let held = (n == 2 || n == 40).then(|| Held::new(&worker));
        let before = client.feed.last_sequence();
        let submit = framed::Submit {
            task_id: format!("t{n}"),
            prompt: "do it".to_owned(),
            cwd: "/".to_owned(),
            ..framed::Submit::default()
        };
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        client.send(CommandRequest {
            command: Command::Submit(submit),
            reply: Reply::new(move |result| drop(reply.send(result.map(drop)))),
            gone: Arc::default(),
        });
        if let Some(held) = held {
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            assert_eq!(client.feed.last_sequence(), before, "t{n} was shown");
            assert!(answer.try_recv().is_err(), "t{n} was answered");
            assert_eq!(runner.started.load(Ordering::SeqCst), (n - 1).min(4), "t{n} was started");
            held.release();
        }
        assert_eq!(answer.await.unwrap(), Ok(()));
        let shown = client.feed.last_sequence();
        assert!(shown > before, "t{n} is shown before it is answered");
        let on_disk =
            ostler_journal::verify(&settings.runtime_dir.join("journal"), &settings.journal);
        assert!(on_disk.unwrap().last_sequence >= shown, "t{n} is on disk");
    }
    running.abort();
}
