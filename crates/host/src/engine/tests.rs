//! The engine by itself, with a clock that the test moves.

use std::sync::Mutex;

use camino::Utf8PathBuf;
use ostler_core::clock::Timestamp;
use ostler_core::outcome::{Outcome, Receipt};
use ostler_core::task::{EndStatus, LIMIT_MAX};
use ostler_journal::{BATCH_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, Report, SEGMENT_HEADER_BYTES};
use ostler_proto::framed::{self, Command};

use super::*;
use crate::clock::SystemClock;
use crate::runner::{LogSink, RunFuture, StopSignal};
use crate::settings::Settings;

/// How long the journal's thread may take for anything.
const DEADLINE: Duration = Duration::from_secs(40);

/// Turns in which a flush would have happened.
const TURNS: usize = 200;

/// Runs end when the test says so.
#[derive(Default)]
struct Ends(Mutex<Vec<oneshot::Sender<()>>>);

impl TaskRunner for Ends {
    fn run(&self, _order: RunOrder, _log: LogSink, _stop: StopSignal) -> RunFuture {
        let (end, ended) = oneshot::channel();
        self.0.lock().unwrap().push(end);
        Box::pin(async move {
            ended.await.unwrap();
            let receipt = Receipt::unproven(String::new(), Timestamp::default());
            let outcome =
                Outcome { failure: None, receipt, text: None, usage: None, cost_micros: None };
            RunEnd { status: EndStatus::Completed, outcome }
        })
    }
}

/// Gives everybody a turn until this holds; the clock stands still meanwhile.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < DEADLINE, "in vain: {what}");
        tokio::task::yield_now().await;
    }
}

/// How many batches were appended in between, one a flush. Each is padded to a multiple of eight bytes, so that
/// of four it is possibly one too many.
fn batches(before: &Report, after: &Report) -> u64 {
    let overhead = |report: &Report| {
        let used: u64 = report.segments.iter().map(|segment| segment.used_bytes).sum();
        let segments = report.segments.len() as u64 * SEGMENT_HEADER_BYTES;
        used - segments - report.payload_bytes - report.records * RECORD_OVERHEAD_BYTES
    };
    (overhead(after) - overhead(before)) / BATCH_OVERHEAD_BYTES
}

/// Ends that nobody waits for wait for one another, for as long as the first of them may wait, and share one
/// flush; the next ones share another.
#[tokio::test]
async fn ends_that_nobody_waits_for_share_a_flush_and_wait_for_it_no_longer_than_they_may() {
    const ENDS: u32 = 10;
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::new(Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap());
    settings.tasks.limit_default = LIMIT_MAX;
    let (runner, clock) = (Arc::new(Ends::default()), Arc::new(SystemClock));
    let recovered = recover(&settings, clock.clone()).unwrap();
    let (engine, mut handle) = Engine::new(recovered, runner.clone(), clock).unwrap();
    let (client, recovered) = (handle.client(), handle.recovered());
    let running = tokio::spawn(engine.run());
    recovered.await;
    for n in 0..LIMIT_MAX {
        let submit = framed::Submit {
            task_id: format!("t{n}"),
            prompt: "do it".to_owned(),
            cwd: "/".to_owned(),
            ..framed::Submit::default()
        };
        let (reply, answer) = oneshot::channel();
        client.send(CommandRequest {
            command: Command::Submit(submit),
            reply: Reply::new(move |result| drop(reply.send(result.map(drop)))),
            gone: Arc::default(),
        });
        assert_eq!(answer.await.unwrap(), Ok(()));
    }
    let report = || {
        ostler_journal::verify(&settings.runtime_dir.join("journal"), &settings.journal).unwrap()
    };
    let shown = || client.feed.last_sequence();
    until("all run", || runner.0.lock().unwrap().len() == usize::from(LIMIT_MAX)).await;
    tokio::time::pause();
    for round in 0..3 {
        let (before, shown_before) = (report(), shown());
        for n in 0..ENDS {
            let end = runner.0.lock().unwrap().pop().unwrap();
            end.send(()).unwrap();
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            assert_eq!(shown(), shown_before, "round {round}: end {n} did not wait for company");
            // All of them are over just before the first has waited long enough.
            tokio::time::advance(LINGER.mul_f64(0.99) / ENDS).await;
        }
        tokio::time::advance(LINGER * 2).await;
        until("all are shown", || shown() == shown_before + u64::from(ENDS)).await;
        let after = report();
        assert_eq!(after.records, before.records + u64::from(ENDS));
        assert_eq!(batches(&before, &after), 1, "round {round}");
    }
    running.abort();
}
