//! Retention: what is old, or too much, is removed in the background, in transactions so small that nobody
//! waits for them. What a round removed is logged, counted and recorded as an event.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ostler_core::clock::{BootTime, Now, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::metrics::{ByWhat, Word};
use crate::store::StoreError;
use crate::store::sql::retention::Removed;

/// How much further the clock may go than time, or than the newest of what is stored when a server starts. Beyond it
/// it was perhaps set forward.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long nothing is removed by age then: for a person to see it and set the clock right.
const DOUBT: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether the clock is believed when it says that something is old. What is removed is gone for good.
pub(crate) struct Trust {
    since: Now,
    doubted: Option<BootTime>,
}

impl Trust {
    fn new(now: Now, newest: Option<Timestamp>) -> Self {
        let ahead = newest.is_some_and(|at| now.wall.since(at) > AHEAD_MAX);
        Self { since: now, doubted: ahead.then_some(now.boot) }
    }

    /// As the clock and what is stored are now.
    pub(crate) async fn of(app: &App) -> Result<Self, StoreError> {
        Ok(Self::new(now(app).await?, app.store.newest().await?))
    }

    fn believes(&mut self, now: Now) -> bool {
        let passed = now.boot.since(self.since.boot);
        if now.wall.since(self.since.wall) > passed + AHEAD_MAX {
            (self.since, self.doubted) = (now, Some(now.boot));
        }
        self.doubted.is_none_or(|since| now.boot.since(since) >= DOUBT)
    }
}

/// Comes every so often until `stop`. `trust` is from before the server was heard of by anybody; none where the
/// database could not be asked.
pub(crate) async fn run(stop: CancellationToken, app: Arc<App>, mut trust: Option<Trust>) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(app.settings.retention.every) => {}
        }
        let done = round(&app, &mut trust, &stop).await;
        app.store.shared().metrics.retention_rounds.inc();
        match done {
            Ok(removed) if removed != Removed::default() => {
                let Removed { tasks, lines, bytes, events } = removed;
                tracing::info!(tasks, lines, bytes, events, "removed what is old");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot remove what is old"),
        }
    }
}

/// Of servers that share a database none is believed to be later than the database.
async fn now(app: &App) -> Result<Now, StoreError> {
    let mut now = app.presence.now();
    if let Some(shared) = app.store.clock_shared().await? {
        now.wall = now.wall.min(shared);
    }
    Ok(now)
}

/// Removes everything that may go now.
async fn round(
    app: &App,
    trust: &mut Option<Trust>,
    stop: &CancellationToken,
) -> Result<Removed, StoreError> {
    let now = now(app).await?;
    let trust = match trust {
        Some(trust) => trust,
        None => trust.insert(Trust::of(app).await?),
    };
    // Nothing is older than all time.
    let mut wall = Timestamp::from_micros(i64::MIN);
    if trust.believes(now) {
        wall = now.wall;
    } else {
        tracing::warn!("the clock was perhaps set forward; nothing is removed by age for a day");
    }
    let mut removed = messages(app, wall, stop).await?;
    removed.add(events(app, wall, stop).await?);
    Ok(removed)
}

async fn messages(
    app: &App,
    now: Timestamp,
    stop: &CancellationToken,
) -> Result<Removed, StoreError> {
    let kept = app.settings.retention;
    let before = now.before(kept.messages_age);
    let mut all = Removed::default();
    for workspace in app.store.output_kept().await? {
        let mut excess = workspace.bytes.saturating_sub(kept.messages_bytes_max);
        let mut here = Removed::default();
        while !stop.is_cancelled() {
            let step = app.store.output_prune(workspace.workspace_id, before, excess).await?;
            excess = excess.saturating_sub(step.removed.bytes);
            here.add(step.removed);
            count(app, step.removed);
            if !step.more {
                break;
            }
        }
        if here.tasks > 0 {
            app.store.output_pruned(workspace.workspace_id, here).await?;
        }
        all.add(here);
    }
    Ok(all)
}

async fn events(
    app: &App,
    now: Timestamp,
    stop: &CancellationToken,
) -> Result<Removed, StoreError> {
    let kept = app.settings.retention;
    let end = app.store.events_last_old(now.before(kept.events_age), kept.events_max).await?;
    let Some(end) = end else { return Ok(Removed::default()) };
    let mut all = Removed::default();
    let mut gone = BTreeMap::new();
    while !stop.is_cancelled() {
        let (step, so_far) = app.store.events_prune(end, gone).await?;
        gone = so_far;
        all.add(step.removed);
        count(app, step.removed);
        if !step.more {
            break;
        }
    }
    if !gone.is_empty() {
        app.store.events_pruned(gone).await?;
    }
    Ok(all)
}

fn count(app: &App, removed: Removed) {
    let metrics = &app.store.shared().metrics;
    let of = |what| metrics.removed.get_or_create_owned(&ByWhat { what: Word(what) });
    of("messages").inc_by(removed.lines);
    of("events").inc_by(removed.events);
    metrics.removed_bytes.inc_by(removed.bytes);
}
