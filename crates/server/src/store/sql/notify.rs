//! Servers that share a PostgreSQL tell one another what they committed (`NOTIFY`).
//!
//! A hint only: it is sent after the commit, by a connection of its own, and may be lost. What a server does not
//! hear it finds within two seconds by itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::OnHints;
use crate::board::Hints;

/// The channel's name.
const CHANNEL: &str = "ostler";
/// PostgreSQL takes less than 8,000 bytes; longer hints become "anything".
const PAYLOAD_BYTES_MAX: usize = 7_900;
/// Hints that wait to be sent; what comes beyond is lost, and found by the others themselves.
const WAITING_MAX: usize = 1_024;
/// The pause after each: whoever says much says it in few notes. The first of them goes at once.
const PAUSE: Duration = Duration::from_millis(5);
/// The pause before a lost connection is made again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

#[derive(Serialize, Deserialize)]
struct Note {
    /// Whose; a server does not listen to itself.
    s: String,
    h: Hints,
}

/// Sends hints to the other servers until the sender is dropped; hears theirs until `stop`.
pub(super) fn start(
    pool: PgPool,
    on_hints: OnHints,
    tracker: &tokio_util::task::TaskTracker,
    stop: CancellationToken,
) -> mpsc::Sender<Hints> {
    let (sender, hints) = mpsc::channel(WAITING_MAX);
    let own = ulid::Ulid::generate().to_string();
    tracker.spawn(send(pool.clone(), own.clone(), hints, stop.clone()));
    tracker.spawn(async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = hear(pool, own, on_hints) => {}
        }
    });
    sender
}

async fn send(
    pool: PgPool,
    own: String,
    mut hints: mpsc::Receiver<Hints>,
    stop: CancellationToken,
) {
    loop {
        let first = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            first = hints.recv() => first,
        };
        let Some(mut all) = first else { return };
        while let Ok(more) = hints.try_recv() {
            all.merge(more);
        }
        let note =
            |h: Hints| serde_json::to_string(&Note { s: own.clone(), h }).unwrap_or_default();
        let mut payload = note(all);
        if payload.len() > PAYLOAD_BYTES_MAX {
            payload = note(Hints { anything: true, tokens: true, ..Hints::default() });
        }
        let sent = sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(payload);
        let pause = match sent.execute(&pool).await {
            Ok(_) => PAUSE,
            Err(error) => {
                tracing::debug!(%error, "a hint was not sent");
                AGAIN_AFTER
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn hear(pool: PgPool, own: String, on_hints: OnHints) {
    loop {
        if let Err(error) = listen(&pool, &own, &on_hints).await {
            tracing::debug!(%error, "other servers are not heard");
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

async fn listen(pool: &PgPool, own: &str, on_hints: &OnHints) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    loop {
        // What came while nobody listened is not known: anything may have changed.
        on_hints(Hints { anything: true, tokens: true, ..Hints::default() });
        while let Some(notification) = listener.try_recv().await? {
            let note = serde_json::from_str::<Note>(notification.payload());
            let Ok(note) = note else { continue };
            if note.s != own {
                on_hints(note.h);
            }
        }
    }
}
