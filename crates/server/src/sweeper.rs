//! The sweeper: comes by every so often, and takes leases that ran out and marks machines offline that fell
//! silent, when that is fair.
//!
//! What is fair is [`Grace`]'s to say; it is told whenever the database answers. What a sweep may take is decided
//! with the clock as it was then, so that a transaction that comes late takes no more. Deliberately absent: the
//! rule of a single lease (core's machine), and the statements (the store).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostler_core::clock::{BootTime, Now};
use ostler_core::lease::{CLOCKS_DIFFER_MAX, Grace, Policy};
use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::store::sql::Clock;
use crate::store::{LeaseStore as _, StoreError, Sweep};

/// Since when machines can be heard, for all who tell and ask.
pub(crate) struct Presence {
    grace: Mutex<Grace>,
    policy: Policy,
    clock: Clock,
}

impl Presence {
    /// Of a server that starts.
    pub(crate) fn new(policy: Policy, clock: Clock) -> Self {
        Self { grace: Mutex::new(Grace::new(now(&clock))), policy, clock }
    }

    /// Both clocks.
    pub(crate) fn now(&self) -> Now {
        now(&self.clock)
    }

    fn with<T>(&self, ask: impl FnOnce(&mut Grace, Now) -> T) -> T {
        let mut grace = self.grace.lock().unwrap_or_else(PoisonError::into_inner);
        // Read with the lock held, so that moments come in their order.
        ask(&mut grace, now(&self.clock))
    }

    /// The database has answered just now.
    pub(crate) fn answered(&self) {
        if self.with(|grace, now| grace.answered(now, &self.policy)) {
            tracing::warn!(
                "the server was away, or its clock was set forward; no lease is taken before its holder could \
                 renew it"
            );
        }
    }

    /// What a sweep may do now.
    fn decide(&self, offline_after: Duration) -> Sweep {
        let (now, lasts) = self.with(|grace, now| (now.wall, grace.lasts(now, &self.policy)));
        let offline_after = (lasts >= offline_after).then_some(offline_after);
        Sweep { now, offline_after, take_leases: lasts >= self.policy.lease, bring_back: true }
    }
}

/// The store's clock, and how long this machine has been up.
fn now(clock: &Clock) -> Now {
    let boot = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(boot.tv_sec).unwrap_or(0);
    let boot = Duration::new(seconds, u32::try_from(boot.tv_nsec).unwrap_or(0));
    Now { wall: clock(), boot: BootTime::from_duration(boot) }
}

/// Sweeps every so often until `stop`.
pub(crate) async fn run(stop: CancellationToken, app: Arc<App>) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(app.settings.sweep_every) => {}
        }
        if let Err(error) = round(&app, &stop).await {
            tracing::warn!(%error, "cannot sweep");
        }
    }
}

/// What a sweep may do now. Servers that share a database may have different clocks, and none takes what has not run
/// out by the database's as well.
async fn decide(app: &App) -> Result<Sweep, StoreError> {
    if app.settings.is_clock_turned {
        let offline_after = Some(app.settings.offline_after);
        return Ok(Sweep {
            now: app.store.now(),
            offline_after,
            take_leases: true,
            bring_back: false,
        });
    }
    let before = app.store.now();
    let shared = app.store.clock_shared().await?;
    let mut sweep = app.presence.decide(app.settings.offline_after);
    let Some(shared) = shared else { return Ok(sweep) };
    let ahead = before.since(shared);
    let behind = shared.since(sweep.now);
    let seconds = ahead.as_secs().max(behind.as_secs());
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    app.store.shared().metrics.clock_ahead.set(if behind > ahead { -seconds } else { seconds });
    if ahead.max(behind) > CLOCKS_DIFFER_MAX {
        tracing::warn!(
            ahead = ahead.as_secs(),
            behind = behind.as_secs(),
            "this server's clock and the database's differ by seconds; leases last longer or shorter than they should"
        );
    }
    sweep.now = sweep.now.min(shared);
    // One that is behind would cut short what others have given.
    sweep.bring_back = behind <= CLOCKS_DIFFER_MAX;
    Ok(sweep)
}

/// Sweeps until nothing is left to take.
async fn round(app: &App, stop: &CancellationToken) -> Result<(), StoreError> {
    // A machine is silent only if nothing was heard of it that is not written down yet.
    let written = app.write_seen().await;
    loop {
        let mut sweep = decide(app).await?;
        if written.is_err() {
            sweep.offline_after = None;
        }
        let swept = app.store.leases_sweep(sweep).await?;
        let metrics = &app.store.shared().metrics;
        metrics.sweeps.inc();
        metrics.leases_taken.inc_by(swept.leases);
        if swept.leases + swept.runtimes > 0 {
            tracing::info!(leases = swept.leases, runtimes = swept.runtimes, "swept");
        }
        if !swept.more || stop.is_cancelled() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::secrets::Keyring;
    use crate::settings::Settings;
    use crate::store::{Claim, Registration};
    use crate::{Server, system_clock};

    /// More than one transaction takes.
    const HELD: usize = 501;

    #[tokio::test]
    async fn f_110_a_round_takes_all_that_ran_out_however_much() {
        let dir = tempfile::tempdir().unwrap();
        let database = format!("sqlite:{}", dir.path().join("ostler.db").display());
        let mut settings = Settings::new(database);
        settings.listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        // So short that all have run out, and that the server has been there for one.
        settings.policy.lease = Duration::from_micros(1);
        settings.sweep_every = Duration::from_secs(3_600);
        let keyring = Keyring::new(&[7; 32]).unwrap();
        let server = Server::start(settings, keyring, system_clock()).await.unwrap();
        let app = &server.app;
        server.admin().init("acme", "admin@example.com").await.unwrap();
        let post = async |path, body| {
            server.admin().one("acme", "POST", path, &[], body).await.unwrap()["id"].clone()
        };
        let agent = json!({ "name": "Freya", "provider": "claude_code", "concurrency": 1_000 });
        let agent = post("/agents", agent).await.as_i64().unwrap();
        let issue = json!({ "title": "Do it", "assignee_type": "agent", "assignee_id": agent });
        post("/issues", issue).await;
        let registration = Registration {
            workspace_id: 1,
            daemon_id: "m".to_owned(),
            name: "m".to_owned(),
            version: "0.3.0".to_owned(),
            providers: vec!["claude_code".to_owned()],
            capabilities: "{}".to_owned(),
            actors: None,
        };
        let registered = app.store.machine_register(registration).await.unwrap();
        let runtimes = registered.runtimes.into_iter().map(|it| (it.id, it.provider)).collect();
        let claim = Claim {
            workspace_id: 1,
            daemon_id: "m".to_owned(),
            runtimes,
            request: None,
            starts_soon: false,
        };
        for number in 0..HELD {
            if number > 0 {
                app.store.task_queue(1, 1, agent).await.unwrap();
            }
            assert!(app.store.task_claim(claim.clone()).await.unwrap().is_some(), "{number}");
        }
        round(app, &CancellationToken::new()).await.unwrap();
        let metrics = &app.store.shared().metrics;
        assert_eq!((metrics.leases_taken.get(), metrics.sweeps.get()), (501, 2));
        server.stop().await;
    }
}
