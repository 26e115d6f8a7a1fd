//! The world: what happens when, what goes over the network, and what fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use ostler_core::clock::{BootTime, Now, Timestamp};
use ostler_core::lease::{Decided, Decision, Grace, Input, Policy, Priority, Refusal, State};
use ostler_server::secrets::Keyring;
use ostler_server::store::memory::{MemoryStore, NewAgent};
use ostler_server::store::{
    LeaseStore as _, Payload, Registration, StoreError, Sweep, TaskCall, TaskRecord, What,
};

use super::daemon::{Answer, Daemon, Request};
use super::dice::Dice;
use super::truth::Truth;

const SECOND: i64 = 1_000_000;
/// How long things fail.
const FAULTS: i64 = 2_400 * SECOND;
/// How long it may take afterwards until everything has ended.
const REST: i64 = 6 * 3_600 * SECOND;
/// How often the server asks its database something.
const LOOK: i64 = 10 * SECOND;
const SWEEP_EVERY: i64 = 30 * SECOND;
const OFFLINE_AFTER: Duration = Duration::from_secs(45);
/// A clock may be set forward by so much: it is as if leases were that much shorter.
const LITTLE: i64 = 5 * SECOND;
/// Steps between two looks at everything.
const LOOK_EVERY: u64 = 300;
const PROVIDER: &str = "claude_code";
const BEGIN: i64 = 1_767_323_045_000_000;

enum Event {
    /// A request is at the server's door.
    Arrives {
        daemon: usize,
        life: u64,
        number: u64,
        request: Request,
    },
    /// An answer is at the daemon's.
    Returns {
        daemon: usize,
        life: u64,
        number: u64,
        answer: Answer,
    },
    Tick(usize),
    Sweep,
    Unpark,
    /// Something goes wrong.
    Fault,
    Wake(usize),
    ServerUp,
    /// A person does something.
    Person,
}

/// What happened, to see that enough did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    /// A simulation in which nothing happens shows nothing.
    pub(crate) fn assert_enough(&self) {
        for what in [
            "lost request",
            "lost answer",
            "request twice",
            "crash",
            "sleep",
            "server restart",
            "clock jump",
            "swept",
            "offline",
            "unparked",
            "claimed",
            "resumed",
            "repeated",
            "old lines",
            "lease_lost",
            "lease_expired",
            "bad_state",
            "completed",
            "failed",
            "canceled",
            "retried",
            "decided",
        ] {
            assert!(self.0.get(what).is_some_and(|count| *count >= 10), "too rare: {what}");
        }
    }
}

pub(crate) struct Sim {
    dice: Dice,
    now: i64,
    /// What the server's clock shows.
    clock: Arc<AtomicI64>,
    skew: i64,
    events: BTreeMap<(i64, u64), Event>,
    numbers: u64,
    store: MemoryStore,
    policy: Policy,
    workspace: i64,
    agents: Vec<(i64, String)>,
    issues: Vec<i64>,
    daemons: Vec<Daemon>,
    server_up: bool,
    grace: Grace,
    /// When the server last began to be there, or its clock was set forward by more than a little.
    absent_until: i64,
    /// When its clock was last set.
    calm_since: i64,
    failing: bool,
    truth: Truth,
    counts: Counts,
}

impl Sim {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let clock = Arc::new(AtomicI64::new(BEGIN));
        let shown = Arc::clone(&clock);
        let policy = Policy { hand_backs_max: 3, parks_max: 3, ..Policy::DEFAULT };
        let read = move || Timestamp::from_micros(shown.load(Ordering::Relaxed));
        let keyring = Keyring::new(&[7; 32]).unwrap();
        let store = MemoryStore::new(keyring, policy, Arc::new(read));
        let workspace = store.workspace_create("acme");
        let mut truth = Truth::new(policy);
        let mut agents = Vec::new();
        for number in 0..dice.between(1, 3) {
            let concurrency = dice.between(1, 3);
            let id = store.agent_create(NewAgent {
                workspace_id: workspace,
                name: format!("a{number}"),
                provider: PROVIDER.to_owned(),
                runtime_id: None,
                concurrency,
            });
            truth.agent(id, usize::try_from(concurrency).unwrap());
            agents.push((id, PROVIDER.to_owned()));
        }
        let issues = (0..3).map(|_| store.issue_create(workspace, "x", Priority::None)).collect();
        let daemons: Vec<_> = (0..dice.between(2, 6))
            .map(|number| Daemon::new(format!("d{number}"), &mut dice))
            .collect();
        let mut sim = Self {
            dice,
            now: 0,
            clock,
            skew: 0,
            events: BTreeMap::new(),
            numbers: 0,
            store,
            policy,
            workspace,
            agents,
            issues,
            daemons,
            server_up: true,
            grace: Grace::new(now(0, BEGIN)),
            absent_until: 0,
            calm_since: 0,
            failing: true,
            truth,
            counts: Counts::default(),
        };
        for daemon in 0..sim.daemons.len() {
            sim.after(1, Event::Tick(daemon));
        }
        sim.after(SECOND, Event::Sweep);
        sim.after(SECOND, Event::Unpark);
        sim.after(SECOND, Event::Person);
        sim.after(SECOND, Event::Fault);
        sim
    }

    fn after(&mut self, wait: i64, event: Event) {
        self.numbers += 1;
        self.events.insert((self.now + wait.max(0), self.numbers), event);
    }

    fn server_now(&self) -> i64 {
        self.clock.load(Ordering::Relaxed)
    }

    pub(crate) fn run(mut self) -> Counts {
        let mut steps = 0;
        while let Some(((at, _), event)) = self.events.pop_first() {
            (self.now, self.truth.real) = (at, at);
            if self.failing && at >= FAULTS {
                self.heal();
            }
            self.clock.store(BEGIN + at + self.skew, Ordering::Relaxed);
            self.step(event);
            steps += 1;
            if steps % LOOK_EVERY == 0 {
                self.truth.check(&self.store);
                let ended = |task: &ostler_server::store::TaskRecord| task.machine.state.is_ended();
                if !self.failing && (at >= FAULTS + REST || self.store.tasks().iter().all(ended)) {
                    break;
                }
            }
        }
        self.truth.check(&self.store);
        self.truth.check_ended(&self.store);
        for task in self.store.tasks() {
            self.counts.count(task.machine.state.word());
        }
        self.counts
    }

    /// From now on nothing fails.
    fn heal(&mut self) {
        self.failing = false;
        if !self.server_up {
            self.server_starts();
        }
        for daemon in 0..self.daemons.len() {
            if !self.daemons[daemon].awake {
                self.wake(daemon);
            }
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Tick(daemon) => {
                let wait = self.dice.between(3, 40) * SECOND;
                self.after(wait, Event::Tick(daemon));
                if self.daemons[daemon].awake {
                    let (workspace, now) = (self.workspace, self.now);
                    let said = self.daemons[daemon].tick(workspace, &mut self.dice, now);
                    for (number, request) in said {
                        self.send(daemon, number, request);
                    }
                }
            }
            Event::Arrives { daemon, life, number, request } => {
                if self.server_up {
                    let answer = self.serve(daemon, request);
                    self.answer(daemon, life, number, answer);
                }
            }
            Event::Returns { daemon, life, number, answer } => {
                if self.daemons[daemon].life != life {
                    return;
                }
                if self.daemons[daemon].awake {
                    self.daemons[daemon].hear(number, answer, &mut self.dice);
                } else {
                    // It lies in the socket until the daemon wakes.
                    self.after(10 * SECOND, Event::Returns { daemon, life, number, answer });
                }
            }
            Event::Sweep => self.sweep(),
            Event::Unpark => {
                self.after(LOOK, Event::Unpark);
                if self.server_up {
                    self.grace.answered(now(self.now, self.server_now()), &self.policy);
                    if done(self.store.tasks_unpark()).unwrap() > 0 {
                        self.counts.count("unparked");
                    }
                }
            }
            Event::Fault => self.fault(),
            Event::Wake(daemon) => self.wake(daemon),
            Event::ServerUp => self.server_starts(),
            Event::Person => self.person(),
        }
    }

    // ---- the network ----

    fn delay(&mut self) -> i64 {
        if self.failing && self.dice.percent(5) {
            // Longer than anybody waits for it, and sometimes than a lease lasts.
            return self.dice.between(1, 600) * SECOND;
        }
        self.dice.between(1, 500) * 1_000
    }

    fn send(&mut self, daemon: usize, number: u64, request: Request) {
        if let Request::Call { task, with: Payload::Lines(lines), .. } = &request {
            self.truth.sent(task, lines);
        }
        let life = self.daemons[daemon].life;
        if self.failing && self.dice.percent(8) {
            self.counts.count("lost request");
            return;
        }
        if self.failing && self.dice.percent(8) {
            self.counts.count("request twice");
            let delay = self.delay();
            let request = request.clone();
            self.after(delay, Event::Arrives { daemon, life, number, request });
        }
        let delay = self.delay();
        self.after(delay, Event::Arrives { daemon, life, number, request });
    }

    fn answer(&mut self, daemon: usize, life: u64, number: u64, answer: Answer) {
        if self.failing && self.dice.percent(8) {
            self.counts.count("lost answer");
            return;
        }
        let delay = self.delay();
        self.after(delay, Event::Returns { daemon, life, number, answer });
    }

    // ---- the server ----

    fn serve(&mut self, daemon: usize, request: Request) -> Answer {
        let now = self.server_now();
        match request {
            Request::Register => {
                let registration = Registration {
                    workspace_id: self.workspace,
                    daemon_id: self.daemons[daemon].name.clone(),
                    name: String::new(),
                    version: String::new(),
                    providers: vec![PROVIDER.to_owned()],
                    capabilities: "{}".to_owned(),
                    actors: None,
                };
                let done = done(self.store.machine_register(registration)).unwrap();
                let runtimes = done.runtimes.into_iter().map(|it| (it.id, it.provider));
                Answer::Registered(runtimes.collect())
            }
            Request::Claim(claim) => {
                let soon = claim.starts_soon;
                let claimed = done(self.store.task_claim(claim)).unwrap();
                match &claimed {
                    Some(claimed) => {
                        self.counts.count("claimed");
                        self.truth.claimed(claimed, soon, now);
                    }
                    None => self.truth.nothing(&self.store, PROVIDER, &self.agents),
                }
                Answer::Claimed(claimed.map(Box::new))
            }
            Request::Call { task, token, call, with } => {
                let lines = match &with {
                    Payload::Lines(lines) => lines.clone(),
                    _ => Vec::new(),
                };
                let lease =
                    Some(ostler_core::lease::LeaseHash(ostler_server::secrets::hash_token(&token)));
                let what = What::Input(Input::Held { lease, call: call.clone() });
                let answer = self.call(&task, what, with);
                if let Ok(stepped) = &answer
                    && stepped.accepted < lines.len() as u64
                {
                    self.counts.count("old lines");
                }
                self.truth.called(&task, &token, &call, &lines, &answer, now);
                Answer::Stepped(answer)
            }
            Request::Resume { task, word } => {
                let name = self.daemons[daemon].name.clone();
                let found = done(self.store.machine_find(self.workspace, &name)).unwrap();
                let runtimes = found.into_iter().map(|runtime| runtime.id).collect();
                let answer =
                    self.call(&task, What::Resume { runtimes, request: word }, Payload::None);
                if let Ok(stepped) = &answer {
                    self.counts.count("resumed");
                    self.truth.resumed(&task, stepped.lease_token.as_ref().unwrap(), now);
                }
                Answer::Stepped(answer)
            }
        }
    }

    fn call(
        &mut self,
        task: &str,
        what: What,
        with: Payload,
    ) -> Result<ostler_server::store::Stepped, Refusal> {
        let call = TaskCall { workspace_id: self.workspace, task_id: task.to_owned(), what, with };
        match done(self.store.task_call(call)) {
            Ok(stepped) => {
                if stepped.answer.repeated {
                    self.counts.count("repeated");
                }
                Ok(stepped)
            }
            Err(StoreError::Refused(refusal)) => {
                self.counts.count(match refusal {
                    Refusal::LeaseLost => "lease_lost",
                    Refusal::LeaseExpired => "lease_expired",
                    Refusal::BadState(_) => "bad_state",
                    Refusal::OtherMachine => "other_machine",
                    Refusal::Decided(_) => "decided_already",
                });
                Err(refusal)
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn sweep(&mut self) {
        self.after(SWEEP_EVERY, Event::Sweep);
        if !self.server_up {
            return;
        }
        let now = now(self.now, self.server_now());
        let lasts = self.grace.lasts(now, &self.policy);
        let take_leases = lasts >= self.policy.lease;
        let offline_after = (lasts >= OFFLINE_AFTER).then_some(OFFLINE_AFTER);
        let sweep = Sweep { now: now.wall, offline_after, take_leases, bring_back: true };
        let swept = done(self.store.leases_sweep(sweep)).unwrap();
        // In other words than the grace's own.
        let there = Duration::from_micros(u64::try_from(self.now - self.absent_until).unwrap());
        if swept.leases > 0 {
            self.counts.count("swept");
            assert!(there >= self.policy.lease, "nobody could renew what was taken");
        }
        if swept.runtimes > 0 {
            self.counts.count("offline");
            assert!(there >= OFFLINE_AFTER, "nobody could beat who was called silent");
        }
        self.truth.swept(swept.leases, take_leases, self.server_now());
        // A clock that was set back is noticed by the next sweep, and an absence by the next look.
        let calm = (self.calm_since + SWEEP_EVERY).max(self.absent_until + LOOK);
        self.truth.check_bound(calm);
    }

    fn server_starts(&mut self) {
        self.server_up = true;
        self.grace = Grace::new(now(self.now, self.server_now()));
        self.absent_until = self.now;
    }

    // ---- people ----

    fn person(&mut self) {
        let wait = self.dice.between(5, 120) * SECOND;
        self.after(wait, Event::Person);
        if self.failing && self.store.tasks().len() < 12 {
            let agent = self.agents[self.dice.index(self.agents.len())].0;
            let issue = self.issues[self.dice.index(self.issues.len())];
            let id = done(self.store.task_queue(self.workspace, issue, agent)).unwrap();
            self.truth.queued(&id, agent);
        }
        for task in self.store.tasks() {
            // In the end somebody gives up waiting for runs that nobody knows any more.
            let often = if self.failing { 1 } else { 5 };
            let wants = task.machine.state == State::Waiting || self.failing;
            if wants && !task.machine.state.is_ended() && self.dice.percent(often) {
                self.call(&task.id, What::Input(Input::Cancel), Payload::None).unwrap();
            } else if self.failing {
                self.person_changes_their_mind(&task);
            }
        }
    }

    /// Runs what has ended once more, and answers what waits.
    fn person_changes_their_mind(&mut self, task: &TaskRecord) {
        let state = task.machine.state;
        if state.is_ended() && self.dice.percent(2) {
            self.call(&task.id, What::Input(Input::Retry), Payload::None).unwrap();
            self.counts.count("retried");
            self.truth.retried(&task.id);
        }
        if state == State::Waiting && self.dice.percent(30) {
            let decided = if self.dice.percent(50) { Decided::Approved } else { Decided::Denied };
            let decision = Decision { decided, note: String::new() };
            let answer =
                self.call(&task.id, What::Input(Input::Decide(decision.clone())), Payload::None);
            let before = task.machine.waits.as_ref().and_then(|waits| waits.decision.clone());
            match before.filter(|before| *before != decision) {
                Some(before) => assert_eq!(answer, Err(Refusal::Decided(before.decided))),
                None => assert!(answer.is_ok(), "{answer:?}"),
            }
            self.counts.count("decided");
        }
    }

    // ---- what fails ----

    fn fault(&mut self) {
        if !self.failing {
            return;
        }
        let wait = self.dice.between(10, 300) * SECOND;
        self.after(wait, Event::Fault);
        let daemon = self.dice.index(self.daemons.len());
        match self.dice.between(0, 9) {
            0..=2 => {
                self.counts.count("crash");
                self.daemons[daemon].crash();
                self.sleep(daemon, 60);
            }
            3..=5 => {
                self.counts.count("sleep");
                self.sleep(daemon, 900);
            }
            6..=7 => {
                self.counts.count("server restart");
                self.server_up = false;
                // What is on its way back is lost with its connection.
                self.events.retain(|_, event| !matches!(event, Event::Returns { .. }));
                let wait = self.dice.between(1, 400) * SECOND;
                self.after(wait, Event::ServerUp);
            }
            _ => {
                self.counts.count("clock jump");
                let by = self.dice.between(-400, 400) * SECOND;
                self.skew += by;
                self.calm_since = self.now;
                if by > LITTLE {
                    self.absent_until = self.now;
                }
            }
        }
    }

    fn sleep(&mut self, daemon: usize, seconds_max: i64) {
        self.daemons[daemon].awake = false;
        let wait = self.dice.between(1, seconds_max) * SECOND;
        self.after(wait, Event::Wake(daemon));
    }

    fn wake(&mut self, daemon: usize) {
        self.daemons[daemon].awake = true;
    }
}

fn now(boot: i64, wall: i64) -> Now {
    let boot = Duration::from_micros(u64::try_from(boot).unwrap());
    Now { wall: Timestamp::from_micros(wall), boot: BootTime::from_duration(boot) }
}

/// The store in memory never waits.
fn done<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the store in memory does not wait")
}
