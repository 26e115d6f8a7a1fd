//! Retention: what is old, or too much, is removed in the background, in transactions so small that nobody
//! waits for them. What a round removed is logged, counted and recorded as an event.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::metrics::{ByWhat, Word};
use crate::store::StoreError;
use crate::store::sql::retention::Removed;

/// Comes every so often until `stop`.
pub(crate) async fn run(stop: CancellationToken, app: Arc<App>) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(app.settings.retention.every) => {}
        }
        match round(&app, &stop).await {
            Ok(removed) if removed != Removed::default() => {
                let Removed { tasks, lines, bytes, events } = removed;
                tracing::info!(tasks, lines, bytes, events, "removed what is old");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot remove what is old"),
        }
    }
}

/// Removes everything that may go now.
pub(crate) async fn round(app: &App, stop: &CancellationToken) -> Result<Removed, StoreError> {
    let mut removed = messages(app, stop).await?;
    removed.add(events(app, stop).await?);
    Ok(removed)
}

fn before(app: &App, age: std::time::Duration) -> i64 {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    app.store.now().as_micros().saturating_sub(age)
}

async fn messages(app: &App, stop: &CancellationToken) -> Result<Removed, StoreError> {
    let kept = app.settings.retention;
    let before = before(app, kept.messages_age);
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

async fn events(app: &App, stop: &CancellationToken) -> Result<Removed, StoreError> {
    let kept = app.settings.retention;
    let end = app.store.events_last_old(before(app, kept.events_age), kept.events_max).await?;
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
