//! A run whose directories do not answer while it gets ready.

use std::collections::HashMap;
use std::sync::Arc;

use ostler_core::id::{RunId, TaskId};
use ostler_core::task::TaskSpec;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::clock::SystemClock;
use crate::runner::TaskInput;

fn settings() -> RunnerSettings {
    RunnerSettings {
        runs_dir: "/nowhere".into(),
        shim_program: "/nowhere".into(),
        agent_cli: None,
        default_agent: None,
        programs: HashMap::new(),
        env: Vec::new(),
        keep: Vec::new(),
        silence: HashMap::new(),
        terminal_grace: Duration::from_secs(10),
        kept: ostler_supervise::KeptBytes { head: 1, total: 2 },
        runs_bytes_max: 1,
        runs_days_max: 1,
    }
}

fn order() -> RunOrder {
    let id = TaskId::new("t").unwrap();
    let spec = TaskSpec {
        id: id.clone(),
        session: None,
        cwd: "/mnt/gone".to_owned(),
        provider: None,
        model: None,
        effort: None,
        worktree: false,
        agent: Some("command".to_owned()),
        permissions: None,
        timeout: None,
        budget_micros: None,
    };
    let run = RunId { task: id, attempt: 1 };
    RunOrder { run, spec: Arc::new(spec), input: Arc::new(TaskInput::default()) }
}

/// Runs an attempt that gets ready as `preparing` does; the sender stops it.
fn attempt(
    preparing: Preparing,
) -> (watch::Sender<Option<StopReason>>, impl Future<Output = RunEnd> + Send + 'static) {
    let (sender, stop) = StopSignal::new();
    let (events, _) = mpsc::channel(1);
    let run = async move {
        let (order, settings, clock) = (order(), settings(), SystemClock);
        let attempt = Attempt {
            log: LogSink::new(order.run.clone(), Arc::new(crate::redact::Input::new("")), events),
            order,
            stop,
            settings: &settings,
            clock: &clock,
            versions: &Versions::default(),
        };
        attempt.run(preparing).await
    };
    (sender, run)
}

/// A preparation that never comes.
fn hanging() -> Preparing {
    tokio::spawn(std::future::pending())
}

/// The clock stands still unless everything waits: whatever ends at the same instant waited for nothing.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_run_that_never_gets_ready_at_once() {
    for reason in [StopReason::Cancel, StopReason::Deadline, StopReason::Shutdown] {
        let (stop, run) = attempt(hanging());
        let began = Instant::now();
        let run = tokio::spawn(run);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!run.is_finished(), "it waits");
        stop.send_replace(Some(reason));
        let end = run.await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_secs(5), "{reason:?}");
        assert_eq!((end.status, &end.outcome.failure), (EndStatus::Stopped, &None), "{reason:?}");
        let receipt = &end.outcome.receipt;
        assert_eq!((receipt.started_at, receipt.exit), (None, None), "nothing was started");
        assert_eq!(receipt.agent, "command");
    }
}

/// A stop that was there before counts as well.
#[tokio::test(start_paused = true)]
async fn a_run_that_was_stopped_before_it_began_does_not_wait() {
    let (stop, run) = attempt(hanging());
    stop.send_replace(Some(StopReason::Cancel));
    let began = Instant::now();
    assert_eq!(run.await.status, EndStatus::Stopped);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_never_gets_ready_fails_at_its_bound_and_says_where_to_look() {
    let (_stop, run) = attempt(hanging());
    let began = Instant::now();
    let end = run.await;
    // The timer counts whole milliseconds.
    let over = began.elapsed().checked_sub(PREPARE_TIME_MAX).expect("not before its bound");
    assert!(over <= Duration::from_millis(2), "{over:?} over");
    assert_eq!(end.status, EndStatus::Failed);
    let failure = end.outcome.failure.expect("a failure");
    assert_eq!(failure.class, FailureClass::Spawn);
    for text in ["/mnt/gone", "PATH", "20 seconds", "mount"] {
        assert!(failure.message.contains(text), "{text}: {}", failure.message);
    }
    assert_eq!(end.outcome.receipt.started_at, None);
}

/// What getting ready says itself, also by panicking, is the run's end.
#[tokio::test(start_paused = true)]
async fn a_run_that_cannot_get_ready_fails_with_the_reason() {
    let reason = Failure::new(FailureClass::NotInstalled, "not here");
    let (_stop, run) = attempt(tokio::spawn(std::future::ready(Err(reason.clone()))));
    let end = run.await;
    assert_eq!((end.status, end.outcome.failure), (EndStatus::Failed, Some(reason)));

    let (_stop, run) = attempt(tokio::spawn(async { panic!("as asked") }));
    let end = run.await;
    let failure = end.outcome.failure.expect("a failure");
    assert_eq!((end.status, failure.class), (EndStatus::Failed, FailureClass::Spawn));
    assert!(failure.message.contains("panicked"), "{}", failure.message);
}
