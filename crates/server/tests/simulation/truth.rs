//! What must be so: an account of leases and lines kept beside the store, in other words than the store's.
//!
//! A lease is alive until its holder ends it or a sweep finds it run out. The account is exact both ways: a
//! call with a live lease is never refused, one with a lease that is over never does anything.

use std::collections::{BTreeMap, BTreeSet};

use ostler_core::lease::{Call, Policy, Refusal, State};
use ostler_server::store::memory::MemoryStore;
use ostler_server::store::{Claimed, Line, Stepped};

/// Claims a task may see: those that count, those that do not.
fn claims_max(policy: &Policy) -> u32 {
    policy.attempts_max + policy.hand_backs_max + policy.parks_max
}

/// By how much clocks may differ, in micros.
const LITTLE: i64 = 5_000_000;

struct Lease {
    task: String,
    alive: bool,
    /// When that was by a clock that nobody sets, in micros.
    renewed: i64,
    /// Micros, by the server's.
    expires: i64,
    start_by: Option<i64>,
}

struct Task {
    agent: i64,
    claims: u32,
    /// Completions, with those before a retry.
    completed: usize,
    /// The newest lease.
    token: Option<String>,
    sent: BTreeSet<String>,
    acknowledged: BTreeSet<String>,
}

pub(crate) struct Truth {
    /// The time by a clock that nobody sets.
    pub(crate) real: i64,
    policy: Policy,
    /// By agent.
    limits: BTreeMap<i64, usize>,
    tasks: BTreeMap<String, Task>,
    leases: BTreeMap<String, Lease>,
}

impl Truth {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            real: 0,
            policy,
            limits: BTreeMap::new(),
            tasks: BTreeMap::new(),
            leases: BTreeMap::new(),
        }
    }

    pub(crate) fn agent(&mut self, id: i64, limit: usize) {
        self.limits.insert(id, limit);
    }

    pub(crate) fn queued(&mut self, id: &str, agent: i64) {
        let (sent, acknowledged) = (BTreeSet::new(), BTreeSet::new());
        let task = Task { agent, claims: 0, completed: 0, token: None, sent, acknowledged };
        assert!(self.tasks.insert(id.to_owned(), task).is_none(), "an id twice");
    }

    /// A person wants it to run again: its claims count anew.
    pub(crate) fn retried(&mut self, id: &str) {
        self.tasks.get_mut(id).unwrap().claims = 0;
    }

    fn held(&self, agent: i64) -> usize {
        let own = |lease: &&Lease| lease.alive && self.tasks[&lease.task].agent == agent;
        self.leases.values().filter(own).count()
    }

    fn lease_micros(&self) -> i64 {
        i64::try_from(self.policy.lease.as_micros()).unwrap()
    }

    fn start_micros(&self) -> i64 {
        i64::try_from(self.policy.start_within.as_micros()).unwrap()
    }

    /// A claim was answered.
    pub(crate) fn claimed(&mut self, claimed: &Claimed, soon: bool, now: i64) {
        let (id, token) = (&claimed.task.id, &claimed.lease_token);
        if let Some(lease) = self.leases.get(token) {
            assert!(lease.alive && lease.task == *id, "a lease that is over was given again");
            return;
        }
        self.new_lease(id, token, now, soon);
        let task = self.tasks.get_mut(id).expect("a task that was queued");
        task.claims += 1;
        assert!(task.claims <= claims_max(&self.policy), "claims without end: {id}");
        let agent = task.agent;
        assert!(self.held(agent) <= self.limits[&agent], "beyond the limit of {agent}");
    }

    /// A resume gave a lease.
    pub(crate) fn resumed(&mut self, id: &str, token: &str, now: i64) {
        if let Some(lease) = self.leases.get(token) {
            assert!(lease.alive && lease.task == id, "a lease that is over was given again");
            return;
        }
        self.new_lease(id, token, now, false);
    }

    fn new_lease(&mut self, id: &str, token: &str, now: i64, soon: bool) {
        let before = self.tasks[id].token.as_ref().map(|token| &self.leases[token]);
        assert!(before.is_none_or(|lease| !lease.alive), "{id} is held twice");
        let within = self.start_micros();
        let lease = Lease {
            task: id.to_owned(),
            alive: true,
            renewed: self.real,
            expires: now + self.lease_micros(),
            start_by: soon.then_some(now + within),
        };
        self.leases.insert(token.to_owned(), lease);
        self.tasks.get_mut(id).unwrap().token = Some(token.to_owned());
    }

    /// Nothing was given: there must have been nothing.
    pub(crate) fn nothing(&self, store: &MemoryStore, provider: &str, agents: &[(i64, String)]) {
        for task in store.tasks() {
            let queued = task.machine.state == State::Queued && task.machine.not_before.is_none();
            let fits = agents.iter().any(|(id, own)| *id == task.agent_id && own == provider);
            let room = self.held(task.agent_id) < self.limits[&task.agent_id];
            assert!(!(queued && fits && room), "{} was withheld", task.id);
        }
    }

    /// A line is on its way.
    pub(crate) fn sent(&mut self, id: &str, lines: &[Line]) {
        let task = self.tasks.get_mut(id).unwrap();
        task.sent.extend(lines.iter().filter_map(|line| line.content.clone()));
    }

    /// A call was answered.
    pub(crate) fn called(
        &mut self,
        id: &str,
        token: &str,
        call: &Call,
        lines: &[Line],
        answer: &Result<Stepped, Refusal>,
        now: i64,
    ) {
        let (expires, real) = (now + self.lease_micros(), self.real);
        let lease = self.leases.get_mut(token).expect("a token that was given");
        assert_eq!(lease.task, id);
        let stepped = match answer {
            Ok(stepped) if stepped.answer.repeated => {
                assert!(!lease.alive, "a repeat of something that was not said: {id}");
                return;
            }
            Ok(stepped) => stepped,
            Err(Refusal::BadState(_)) if lease.alive => {
                assert_eq!(*call, Call::CancelAck, "the holder of {id} was refused");
                return;
            }
            Err(_) => return assert!(!lease.alive, "the holder of {id} was refused {call:?}"),
        };
        assert!(lease.alive, "{call:?} for {id} was done with a lease that is over");
        match call {
            Call::Start | Call::Messages { .. } => {
                (lease.expires, lease.renewed) = (lease.expires.max(expires), real);
                lease.start_by = None;
                let told = stepped.answer.expires_at.unwrap().as_micros();
                assert_eq!(told, lease.expires, "the lease's end");
            }
            Call::Session => {}
            _ => lease.alive = false,
        }
        let task = self.tasks.get_mut(id).unwrap();
        task.completed += usize::from(*call == Call::Complete);
        task.acknowledged.extend(lines.iter().filter_map(|line| line.content.clone()));
    }

    /// A sweep took leases.
    pub(crate) fn swept(&mut self, count: u64, may_take: bool, now: i64) {
        let mut taken = 0;
        let (new, within) = (now + self.lease_micros(), self.start_micros());
        for lease in self.leases.values_mut().filter(|lease| lease.alive) {
            if lease.expires > new + LITTLE {
                // The clock was set back.
                lease.expires = new;
                lease.start_by = lease.start_by.map(|by| by.min(now + within));
            } else if may_take
                && (lease.expires <= now || lease.start_by.is_some_and(|by| by <= now))
            {
                lease.alive = false;
                taken += 1;
            }
        }
        assert_eq!(count, taken, "leases that a sweep took");
    }

    /// F-110: after a sweep nobody holds what was not renewed within a lease, unless the server was not there or
    /// its clock was set since `calm`.
    pub(crate) fn check_bound(&self, calm: i64) {
        let last = self.real - self.lease_micros() - LITTLE;
        for lease in self.leases.values().filter(|lease| lease.alive) {
            let since = (self.real - lease.renewed) / 1_000_000;
            assert!(lease.renewed.max(calm) >= last, "{} is held since {since} s", lease.task);
        }
    }

    /// What can be compared at any time.
    pub(crate) fn check(&self, store: &MemoryStore) {
        let tasks = store.tasks();
        assert_eq!(tasks.len(), self.tasks.len(), "a task was lost or made");
        for task in &tasks {
            let known = &self.tasks[&task.id];
            let alive = known.token.as_ref().is_some_and(|token| self.leases[token].alive);
            assert_eq!(task.machine.state.is_held(), alive, "{task:?}");
            assert_eq!(task.machine.lease.is_some(), alive, "{task:?}");
            let mut stored = BTreeSet::new();
            // In the order of each attempt's numbers.
            let mut last = BTreeMap::new();
            for line in store.lines(&task.id) {
                let content = line.content.unwrap();
                let (run, number) = content.split_once(':').unwrap();
                let number: u64 = number.parse().unwrap();
                assert!(known.sent.contains(&content), "nobody sent {content}");
                assert!(last.insert(run.to_owned(), number) < Some(number), "order of {content}");
                assert!(stored.insert(content), "a line is there twice");
            }
            let lost: Vec<_> = known.acknowledged.difference(&stored).collect();
            assert!(lost.is_empty(), "lines were lost: {lost:?}, stored: {stored:?}");
            let results = store.results(&task.id).len();
            assert_eq!(results, known.completed, "{task:?}");
            assert!(results > 0 || task.machine.state != State::Completed, "{task:?}");
        }
    }

    /// Nothing fails any more: everything has come to an end.
    pub(crate) fn check_ended(&self, store: &MemoryStore) {
        for task in store.tasks() {
            assert!(task.machine.state.is_ended(), "has no end: {task:?}");
        }
    }
}
