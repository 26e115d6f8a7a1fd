//! What this server knows without asking the database: which agents may have work for somebody, who waits
//! for it, which machines exist. All of it is a hint; a claim decides in the database.
//!
//! A poll that finds nothing here is answered without a statement. What makes work appear tells the board
//! after its commit ([`Hints`]), on PostgreSQL the other servers' boards too (`NOTIFY`), and every two seconds
//! the board looks for itself, so that a lost hint costs two seconds and no more.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

/// Hints that one transaction gives; beyond that it says "anything may have changed".
const HINTS_MAX: usize = 256;
/// Claims that wait for work at once, of one server; more are answered that there is none.
const WAITERS_MAX: usize = 50_000;

/// Agents whose kind is remembered; when there are more all are forgotten, and what is queued for one wakes everybody
/// of its workspace until it was looked at.
const KINDS_MAX: usize = 100_000;

/// What a transaction made that others want to know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hints {
    /// Agents that may have something to claim now: workspace and agent.
    #[serde(rename = "w", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) work: Vec<(i64, i64)>,
    /// Machines whose runtimes changed.
    #[serde(rename = "m", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) machines: Vec<(i64, String)>,
    /// Workspaces with new events.
    #[serde(rename = "e", default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<i64>,
    /// A token was revoked.
    #[serde(rename = "t", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tokens: bool,
    /// More than fits.
    #[serde(rename = "x", default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) anything: bool,
}

impl Hints {
    fn push<T: PartialEq>(list: &mut Vec<T>, value: T, anything: &mut bool) {
        if list.len() >= HINTS_MAX {
            *anything = true;
        } else {
            list.push(value);
        }
    }

    /// A task of the agent was queued.
    pub(crate) fn queued(&mut self, workspace_id: i64, agent_id: i64) {
        Self::push(&mut self.work, (workspace_id, agent_id), &mut self.anything);
    }

    /// The agent has room, or may work again.
    pub(crate) fn freed(&mut self, workspace_id: i64, agent_id: i64) {
        Self::push(&mut self.work, (workspace_id, agent_id), &mut self.anything);
    }

    /// The machine's runtimes or decisions changed.
    pub(crate) fn machine(&mut self, workspace_id: i64, daemon_id: &str) {
        let machine = (workspace_id, daemon_id.to_owned());
        Self::push(&mut self.machines, machine, &mut self.anything);
    }

    /// There are events to read.
    pub(crate) fn events_in(&mut self, workspace_id: i64) {
        if !self.events.contains(&workspace_id) {
            Self::push(&mut self.events, workspace_id, &mut self.anything);
        }
    }

    /// Adds another transaction's.
    pub(crate) fn merge(&mut self, other: Self) {
        for (workspace_id, agent_id) in other.work {
            self.queued(workspace_id, agent_id);
        }
        for (workspace_id, daemon_id) in other.machines {
            self.machine(workspace_id, &daemon_id);
        }
        for workspace_id in other.events {
            self.events_in(workspace_id);
        }
        self.tokens |= other.tokens;
        self.anything |= other.anything;
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An agent that had something to claim when the board looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) workspace_id: i64,
    pub(crate) agent_id: i64,
    pub(crate) provider: String,
    pub(crate) runtime_id: Option<String>,
    /// Tasks that could be claimed now.
    pub(crate) room: usize,
}

/// Who could run an agent's tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fits {
    provider: String,
    runtime_id: Option<String>,
}

impl Fits {
    fn any(&self, runtimes: &[(String, String)]) -> bool {
        runtimes.iter().any(|(id, provider)| match &self.runtime_id {
            Some(own) => own == id,
            None => &self.provider == provider,
        })
    }
}

struct Waiter {
    number: u64,
    runtimes: Vec<(String, String)>,
    wake: oneshot::Sender<()>,
}

#[derive(Default)]
struct Inner {
    /// The board has looked, and these are all offers there are.
    ready: bool,
    /// Counts hints, so that "I found nothing" from before a hint is not believed.
    generation: u64,
    /// Agents that may have work, by workspace; `None` for one whose kind is not known yet.
    offers: HashMap<i64, HashMap<i64, Option<Fits>>>,
    /// Kinds of agents that were seen.
    kinds: HashMap<i64, Fits>,
    waiters: HashMap<i64, VecDeque<Waiter>>,
    waiting: usize,
    numbers: u64,
}

/// The board of one server.
pub(crate) struct Board {
    inner: Mutex<Inner>,
    /// Grows with every event, so that streams look.
    events: watch::Sender<u64>,
}

/// A claim that waits; gives its place back when it is dropped.
pub(crate) struct Wait<'b> {
    board: &'b Board,
    workspace_id: i64,
    number: u64,
    woken: oneshot::Receiver<()>,
}

impl Wait<'_> {
    /// Ends when there may be work, or at `until`; whether there may be.
    pub(crate) async fn until(&mut self, until: Instant) -> bool {
        matches!(tokio::time::timeout_at(until.into(), &mut self.woken).await, Ok(Ok(())))
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut inner = self.board.lock();
        if let Some(waiters) = inner.waiters.get_mut(&self.workspace_id) {
            let before = waiters.len();
            waiters.retain(|waiter| waiter.number != self.number);
            let gone = before - waiters.len();
            inner.waiting -= gone;
        }
    }
}

impl Board {
    pub(crate) fn new() -> Self {
        Self { inner: Mutex::new(Inner::default()), events: watch::channel(0).0 }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The board is a set of hints: one left half-changed by a panic is corrected within two seconds.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation now, and whether one of these runtimes may find work.
    pub(crate) fn may_have_work(
        &self,
        workspace_id: i64,
        runtimes: &[(String, String)],
    ) -> (u64, bool) {
        let inner = self.lock();
        let offers = inner.offers.get(&workspace_id);
        let fits = |fits: &Option<Fits>| fits.as_ref().is_none_or(|fits| fits.any(runtimes));
        let may = !inner.ready || offers.is_some_and(|offers| offers.values().any(fits));
        (inner.generation, may)
    }

    /// The database had nothing for these runtimes; believed when no hint came since `generation`.
    pub(crate) fn found_nothing(
        &self,
        workspace_id: i64,
        runtimes: &[(String, String)],
        generation: u64,
    ) {
        let mut inner = self.lock();
        if inner.generation != generation {
            return;
        }
        if let Some(offers) = inner.offers.get_mut(&workspace_id) {
            offers.retain(|_, fits| fits.as_ref().is_some_and(|fits| !fits.any(runtimes)));
        }
    }

    /// Waits for work; `None` when too many wait.
    pub(crate) fn wait(
        &self,
        workspace_id: i64,
        runtimes: &[(String, String)],
    ) -> Option<Wait<'_>> {
        let mut inner = self.lock();
        if inner.waiting >= WAITERS_MAX {
            return None;
        }
        let (wake, woken) = oneshot::channel();
        inner.numbers += 1;
        inner.waiting += 1;
        let number = inner.numbers;
        let waiter = Waiter { number, runtimes: runtimes.to_vec(), wake };
        inner.waiters.entry(workspace_id).or_default().push_back(waiter);
        Some(Wait { board: self, workspace_id, number, woken })
    }

    /// A transaction was committed, here or on another server.
    pub(crate) fn hear(&self, hints: &Hints) {
        if !hints.work.is_empty() || hints.anything {
            let mut inner = self.lock();
            inner.generation += 1;
            for (workspace_id, agent_id) in &hints.work {
                let kind = inner.kinds.get(agent_id).cloned();
                inner.wake(*workspace_id, kind.as_ref(), 1);
                inner.offers.entry(*workspace_id).or_default().insert(*agent_id, kind);
            }
            if hints.anything {
                inner.ready = false;
                inner.kinds.clear();
            }
        }
        if !hints.events.is_empty() || hints.anything {
            self.events.send_modify(|number| *number += 1);
        }
    }

    /// The board looked, and found these offers: all there are, or else claims ask the database. Offers that came
    /// since `generation` stay.
    pub(crate) fn looked(&self, offers: Vec<Offer>, is_all: bool, generation: u64) {
        let mut inner = self.lock();
        if inner.generation == generation {
            inner.offers.clear();
            inner.ready = true;
        }
        inner.ready &= is_all;
        for offer in offers {
            let kind = Fits { provider: offer.provider, runtime_id: offer.runtime_id };
            inner.remember(offer.agent_id, kind.clone());
            inner.wake(offer.workspace_id, Some(&kind), offer.room);
            let offers = inner.offers.entry(offer.workspace_id).or_default();
            offers.insert(offer.agent_id, Some(kind));
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Follows the number of events.
    pub(crate) fn follow_events(&self) -> watch::Receiver<u64> {
        self.events.subscribe()
    }

    /// Claims that wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting
    }
}

impl Inner {
    fn remember(&mut self, agent_id: i64, kind: Fits) {
        if self.kinds.len() >= KINDS_MAX {
            self.kinds.clear();
        }
        self.kinds.insert(agent_id, kind);
    }

    /// Wakes up to `count` waiters that could run it; all of them when nobody knows what it needs.
    fn wake(&mut self, workspace_id: i64, kind: Option<&Fits>, count: usize) {
        let Some(waiters) = self.waiters.get_mut(&workspace_id) else { return };
        let mut left = if kind.is_some() { count } else { usize::MAX };
        let mut kept = VecDeque::with_capacity(waiters.len());
        let mut gone = 0;
        for waiter in waiters.drain(..) {
            let fits = kind.is_none_or(|kind| kind.any(&waiter.runtimes));
            if left == 0 || !fits {
                kept.push_back(waiter);
                continue;
            }
            gone += 1;
            // One that was dropped meanwhile does not count.
            if waiter.wake.send(()).is_ok() {
                left -= 1;
            }
        }
        *waiters = kept;
        self.waiting -= gone;
        if self.waiters.get(&workspace_id).is_some_and(VecDeque::is_empty) {
            self.waiters.remove(&workspace_id);
        }
    }
}

/// How often the board looks for itself.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(agent_id: i64, provider: &str) -> Offer {
        Offer {
            workspace_id: 1,
            agent_id,
            provider: provider.to_owned(),
            runtime_id: None,
            room: 1,
        }
    }

    fn may(board: &Board, provider: &str) -> bool {
        board.may_have_work(1, &[("r".to_owned(), provider.to_owned())]).1
    }

    #[test]
    fn a_look_that_did_not_see_all_offers_hides_none() {
        let board = Board::new();
        board.looked(vec![offer(1, "codex")], true, board.generation());
        assert_eq!((may(&board, "codex"), may(&board, "claude_code")), (true, false));
        board.looked(vec![offer(1, "codex")], false, board.generation());
        assert!(may(&board, "claude_code"));
        board.looked(vec![offer(1, "codex")], true, board.generation());
        assert!(!may(&board, "claude_code"));
        // Also when something happened while it looked.
        let before = board.generation();
        board.hear(&Hints { work: vec![(2, 7)], ..Hints::default() });
        board.looked(vec![offer(1, "codex")], false, before);
        assert!(may(&board, "claude_code"));
    }

    #[test]
    fn kinds_are_remembered_up_to_a_bound() {
        let mut inner = Inner::default();
        let kind = Fits { provider: "codex".to_owned(), runtime_id: None };
        for agent_id in 0..=i64::try_from(KINDS_MAX).unwrap() {
            inner.remember(agent_id, kind.clone());
        }
        assert_eq!(inner.kinds.len(), 1);
    }
}
