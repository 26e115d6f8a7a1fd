//! The machines this server has heard of: their runtimes, their signs of life before those are written down, and the
//! decisions that wait for them. What is remembered is looked up again after a while, or when something changed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ostler_core::clock::Timestamp;
use ostler_proto::lease::DecisionMade;

use crate::app::App;
use crate::store::sql::queue::Decisions;
use crate::store::{LeaseStore as _, Runtime, Seen, StoreError};

/// Machines that are remembered; when there are more those are forgotten whose signs of life are written down,
/// and all of them when that does not halve their number: what was heard of them in the last seconds is lost then.
const MACHINES_MAX: usize = 200_000;
/// How long a machine is remembered: a hint that its runtimes changed may be lost.
const REMEMBERED_MAX: Duration = Duration::from_secs(30);
/// How often a machine that seems offline is looked up: another server may have heard of it.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often signs of life are written down.
pub(crate) const WRITE_SEEN_EVERY: Duration = Duration::from_secs(5);

/// Whose machine, and its own id.
type Key = (i64, String);

struct Machine {
    runtimes: Vec<Runtime>,
    loaded: Instant,
    /// The newest sign of life this server knows of.
    seen: Timestamp,
    /// Not yet written down.
    unwritten: bool,
    decisions: Vec<DecisionMade>,
}

/// The machines this server has heard of.
pub(crate) struct Machines(Mutex<HashMap<Key, Machine>>);

/// A machine as an endpoint needs it.
pub(crate) struct Known {
    /// Those that the machine has now: id and provider.
    pub(crate) runtimes: Vec<(String, String)>,
    /// It was heard of lately, and may be given work.
    pub(crate) online: bool,
    pub(crate) decisions: Vec<DecisionMade>,
    seen: Timestamp,
    loaded: Instant,
    /// The database has one of its runtimes as offline.
    marked_offline: bool,
}

impl Machines {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Key, Machine>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn remembered(&self, key: &Key) -> Option<Known> {
        self.with(|machines| {
            let machine = machines.get(key).filter(|it| it.loaded.elapsed() < REMEMBERED_MAX)?;
            let listed = machine.runtimes.iter().filter(|runtime| runtime.listed);
            Some(Known {
                runtimes: listed.clone().map(|it| (it.id.clone(), it.provider.clone())).collect(),
                online: true,
                decisions: machine.decisions.clone(),
                seen: machine.seen,
                loaded: machine.loaded,
                marked_offline: listed.clone().any(|runtime| !runtime.online),
            })
        })
    }

    fn remember(&self, key: Key, runtimes: Vec<Runtime>, decisions: Vec<DecisionMade>) {
        self.with(|machines| {
            if machines.len() >= MACHINES_MAX {
                machines.retain(|_, machine| machine.unwritten);
                if machines.len() > MACHINES_MAX / 2 {
                    machines.clear();
                }
            }
            let written =
                runtimes.iter().map(|runtime| runtime.last_seen).max().unwrap_or_default();
            let before = machines.get(&key);
            let unwritten = before.is_some_and(|machine| machine.unwritten);
            let seen = before.map_or(written, |machine| machine.seen.max(written));
            let loaded = Instant::now();
            machines.insert(key, Machine { runtimes, loaded, seen, unwritten, decisions });
        });
    }

    /// The machine's runtimes changed.
    pub(crate) fn forget(&self, workspace_id: i64, daemon_id: &str) {
        self.with(|machines| {
            let key = (workspace_id, daemon_id.to_owned());
            if let Some(machine) = machines.get_mut(&key) {
                if machine.unwritten {
                    machine.loaded =
                        machine.loaded.checked_sub(REMEMBERED_MAX).unwrap_or(machine.loaded);
                } else {
                    machines.remove(&key);
                }
            }
        });
    }

    /// Which decisions wait. A machine that is told otherwise is looked up again: a hint tells of most changes, but of
    /// none by a command on SQLite, which is another process, nor of a run that resumed through another server.
    pub(crate) fn compare(&self, decisions: &Decisions) {
        let others: Vec<Key> = self.with(|machines| {
            let told = |(key, machine): &(&Key, &Machine)| {
                decisions.get(*key).map_or(&[][..], Vec::as_slice) != machine.decisions.as_slice()
            };
            machines.iter().filter(told).map(|(key, _)| key.clone()).collect()
        });
        for (workspace_id, daemon_id) in others {
            self.forget(workspace_id, &daemon_id);
        }
    }

    fn seen(&self, key: &Key, at: Timestamp) {
        self.with(|machines| {
            if let Some(machine) = machines.get_mut(key) {
                // Not the later one: the clock may have been set back.
                machine.seen = at;
                machine.unwritten = true;
            }
        });
    }

    /// What was taken could not be written down.
    fn put_back(&self, seen: &[Seen]) {
        self.with(|machines| {
            for it in seen {
                let key = (it.workspace_id, it.daemon_id.clone());
                if let Some(machine) = machines.get_mut(&key) {
                    machine.unwritten = true;
                }
            }
        });
    }

    /// Takes the signs of life that are not written down.
    fn take_unwritten(&self) -> Vec<Seen> {
        self.with(|machines| {
            let unwritten = machines.iter_mut().filter(|(_, machine)| machine.unwritten);
            unwritten
                .map(|((workspace_id, daemon_id), machine)| {
                    machine.unwritten = false;
                    let daemon_id = daemon_id.clone();
                    Seen { workspace_id: *workspace_id, daemon_id, at: machine.seen }
                })
                .collect()
        })
    }
}

impl App {
    /// The machine, from memory or from the database; `NotFound` when it never registered.
    pub(crate) async fn machine(
        &self,
        workspace_id: i64,
        daemon_id: &str,
    ) -> Result<Known, StoreError> {
        let key = (workspace_id, daemon_id.to_owned());
        if let Some(known) = self.machines.remembered(&key) {
            return Ok(known);
        }
        self.load(&key).await?;
        self.machines.remembered(&key).ok_or(StoreError::Busy)
    }

    async fn load(&self, key: &Key) -> Result<(), StoreError> {
        let runtimes = self.store.machine_find(key.0, &key.1).await?;
        let decisions = self.store.decisions_of(key.0, &key.1).await?;
        self.machines.remember(key.clone(), runtimes, decisions);
        Ok(())
    }

    /// The machine, and whether it was heard of lately, here or on another server.
    pub(crate) async fn machine_online(
        &self,
        workspace_id: i64,
        daemon_id: &str,
    ) -> Result<Known, StoreError> {
        let mut known = self.machine(workspace_id, daemon_id).await?;
        let offline =
            |known: &Known| self.store.now().since(known.seen) >= self.settings.offline_after;
        if offline(&known) && known.loaded.elapsed() >= LOOK_AGAIN {
            self.load(&(workspace_id, daemon_id.to_owned())).await?;
            known = self.machine(workspace_id, daemon_id).await?;
        }
        known.online = !offline(&known);
        Ok(known)
    }

    /// Writes signs of life down.
    pub(crate) async fn write_seen(&self) -> Result<(), StoreError> {
        let seen = self.machines.take_unwritten();
        if seen.is_empty() {
            return Ok(());
        }
        let written = self.store.machines_seen(seen.clone()).await;
        written.inspect_err(|_| self.machines.put_back(&seen))
    }

    /// A machine gave a sign of life.
    pub(crate) async fn machine_beats(
        &self,
        workspace_id: i64,
        daemon_id: &str,
    ) -> Result<Known, StoreError> {
        let known = self.machine(workspace_id, daemon_id).await?;
        let now = self.store.now();
        let key = (workspace_id, daemon_id.to_owned());
        if known.marked_offline || now.since(known.seen) >= self.settings.offline_after {
            // It is back: everybody should see that now.
            let seen = Seen { workspace_id, daemon_id: daemon_id.to_owned(), at: now };
            self.store.machines_seen(vec![seen]).await?;
            self.load(&key).await?;
        }
        self.machines.seen(&key, now);
        Ok(known)
    }
}
