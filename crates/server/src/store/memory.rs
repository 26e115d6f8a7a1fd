//! The model: a store in memory, simple enough to be seen to be right.
//!
//! Everything lies in plain maps behind one mutex, and each operation is done whole while the lock is held.
//! What may become of a task is decided by the core's machine through `plan`, as in the SQL stores; what
//! this says in its own words is all they have to do around it: who is given which task, what is kept, who
//! is known. The conformance suite and the random sequences hold the three equal. Ids and leases are
//! counted, not random, so that a simulation with one seed does one thing. Absent on purpose: durability,
//! hints, pruning.

mod people;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostler_core::clock::Timestamp;
use ostler_core::lease::{CLOCKS_DIFFER_MAX, LeaseHash, Policy, State};
use serde_json::json;

pub use self::people::{AgentRow, CommentRow, IssueRow, NewAgent, ResultRow};
use super::plan::{self, Change, NewLease};
use super::sql::Clock;
use super::types::{
    ACTOR_PROVIDER, Actor, ActorAgent, Claim, Claimed, Completion, Line, Registered, Registration,
    Runtime, Seen, SessionReport, Stepped, Sweep, Swept, TaskCall, TaskRecord, What,
};
use super::{LeaseStore, StoreError};
use crate::delivery::{Delivery, Kind, REVIEW_FROM, has_pull_request};
use crate::hex::hex;
use crate::secrets::{Keyring, hash_token};

/// The store.
pub struct MemoryStore {
    inner: Mutex<Inner>,
    keyring: Keyring,
    policy: Policy,
    clock: Clock,
}

/// A runtime with what it belongs to.
struct RuntimeRow {
    workspace_id: i64,
    daemon_id: String,
    name: String,
    runtime: Runtime,
}

enum Author {
    /// By its name of the day.
    Agent(i64),
    Person(String),
}

struct Comment {
    issue_id: i64,
    author: Author,
    posted_at: Timestamp,
    body: String,
}

#[derive(Default)]
struct Inner {
    /// Of everything that was made; ids come from it.
    made: i64,
    workspaces: BTreeMap<i64, String>,
    runtimes: BTreeMap<String, RuntimeRow>,
    agents: BTreeMap<i64, AgentRow>,
    issues: BTreeMap<i64, IssueRow>,
    tasks: BTreeMap<String, TaskRecord>,
    /// By task and number.
    lines: BTreeMap<(String, u64), Line>,
    /// By agent and issue.
    sessions: BTreeMap<(i64, i64), SessionReport>,
    comments: Vec<Comment>,
    /// By issue and what makes two reports one delivery.
    deliveries: BTreeMap<(i64, String), Delivery>,
    results: Vec<ResultRow>,
    /// Workspace, kind and data.
    events: Vec<(i64, String, String)>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(keyring: Keyring, policy: Policy, clock: Clock) -> Self {
        Self { inner: Mutex::new(Inner::default()), keyring, policy, clock }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_lease(&self, inner: &mut Inner, task: &TaskRecord, attempt: u32) -> NewLease {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&inner.number().to_be_bytes());
        let token = self.keyring.lease_token(&task.id, attempt, &nonce);
        NewLease { hash: LeaseHash(hash_token(&token)), nonce: hex(&nonce), token }
    }
}

impl LeaseStore for MemoryStore {
    async fn machine_register(&self, it: Registration) -> Result<Registered, StoreError> {
        let now = (self.clock)();
        Ok(self.lock().register(it, now))
    }

    async fn machine_find(
        &self,
        workspace_id: i64,
        daemon_id: &str,
    ) -> Result<Vec<Runtime>, StoreError> {
        let runtimes = self.lock().runtimes_of(workspace_id, daemon_id);
        if runtimes.is_empty() { Err(StoreError::NotFound) } else { Ok(runtimes) }
    }

    async fn machines_seen(&self, seen: Vec<Seen>) -> Result<(), StoreError> {
        let mut inner = self.lock();
        for seen in seen {
            for row in inner.of_machine(seen.workspace_id, &seen.daemon_id) {
                let runtime = &mut row.runtime;
                if runtime.listed && (runtime.last_seen < seen.at || !runtime.online) {
                    runtime.last_seen = runtime.last_seen.max(seen.at);
                    runtime.online = true;
                }
            }
        }
        Ok(())
    }

    async fn task_claim(&self, claim: Claim) -> Result<Option<Claimed>, StoreError> {
        let (mut inner, now) = (self.lock(), (self.clock)());
        if let Some(task) = inner.given_before(&claim) {
            let Some(lease_token) = plan::lease_token(&task, &self.keyring) else {
                return Ok(None);
            };
            let facts = inner.facts(&task);
            return Ok(Some(Claimed { task, lease_token, facts }));
        }
        let Some((mut task, runtime)) = inner.next_task(&claim) else { return Ok(None) };
        let attempt = task.machine.attempts + 1;
        let lease = self.new_lease(&mut inner, &task, attempt);
        let planned = plan::claim(&mut task, &claim, &runtime, &lease, now, &self.policy)
            .map_err(StoreError::Refused)?;
        inner.save(&task, planned.changes);
        let facts = inner.facts(&task);
        Ok(Some(Claimed { task, lease_token: lease.token, facts }))
    }

    async fn task_call(&self, call: TaskCall) -> Result<Stepped, StoreError> {
        let (mut inner, now) = (self.lock(), (self.clock)());
        let task = inner.tasks.get(&call.task_id).filter(|it| it.workspace_id == call.workspace_id);
        let mut task = task.cloned().ok_or(StoreError::NotFound)?;
        let lease = match &call.what {
            What::Resume { runtimes, request } => {
                let request = request.as_deref();
                if let Some(stepped) = plan::resumed_before(&task, runtimes, request, &self.keyring)
                {
                    return Ok(stepped);
                }
                Some(self.new_lease(&mut inner, &task, task.machine.attempts))
            }
            What::Input(_) => None,
        };
        let mut planned = plan::call(&mut task, call, lease.as_ref(), now, &self.policy)
            .map_err(StoreError::Refused)?;
        planned.stepped.accepted += inner.save(&task, planned.changes);
        Ok(planned.stepped)
    }

    async fn task_queue(
        &self,
        workspace_id: i64,
        issue_id: i64,
        agent_id: i64,
    ) -> Result<String, StoreError> {
        let (mut inner, now) = (self.lock(), (self.clock)());
        let agent = inner.agents.get(&agent_id).filter(|it| it.workspace_id == workspace_id);
        let issue = inner.issues.get(&issue_id).filter(|it| it.workspace_id == workspace_id);
        let (Some(_), Some(issue)) = (agent, issue) else { return Err(StoreError::NotFound) };
        let (number, priority) = (issue.number, issue.priority);
        let id = format!("{:026}", inner.number());
        let what = (workspace_id, issue_id, number, agent_id);
        let task = plan::queued(id.clone(), what, priority, now);
        let event = plan::task_event(&task);
        inner.save(&task, vec![event]);
        Ok(id)
    }

    async fn tasks_unpark(&self) -> Result<u64, StoreError> {
        let (mut inner, now) = (self.lock(), (self.clock)());
        let parked = inner.tasks.values_mut().filter(|task| {
            task.machine.state == State::Queued
                && task.machine.not_before.is_some_and(|at| at <= now)
        });
        Ok(parked.map(|task| task.machine.not_before = None).count() as u64)
    }

    async fn leases_sweep(&self, sweep: Sweep) -> Result<Swept, StoreError> {
        let (mut inner, now) = (self.lock(), sweep.now);
        let mut swept = Swept::default();
        let end_max = self.policy.lease_end_max(now);
        let may = |task: &&TaskRecord| match task.machine.lease {
            Some(lease) if lease.expires_at > end_max => sweep.bring_back,
            Some(_) => sweep.take_leases,
            None => false,
        };
        let held: Vec<_> = inner.tasks.values().filter(may).cloned().collect();
        for mut task in held {
            let changes = plan::sweep(&mut task, now, &self.policy);
            swept.leases += u64::from(!changes.is_empty());
            inner.save(&task, changes);
        }
        if sweep.bring_back {
            for row in inner.runtimes.values_mut() {
                let seen = &mut row.runtime.last_seen;
                if row.runtime.online && *seen > now.after(CLOCKS_DIFFER_MAX) {
                    *seen = now;
                }
            }
        }
        if let Some(silent) = sweep.offline_after {
            swept.runtimes = inner.mark_offline(silent, now);
        }
        Ok(swept)
    }
}

impl Inner {
    fn number(&mut self) -> i64 {
        self.made += 1;
        self.made
    }

    fn event(&mut self, workspace_id: i64, kind: &str, data: &serde_json::Value) {
        self.events.push((workspace_id, kind.to_owned(), data.to_string()));
    }

    // ---- claims ----

    /// What a claim with this word was given, when its lease is still there.
    fn given_before(&self, claim: &Claim) -> Option<TaskRecord> {
        claim.request.as_ref()?;
        let same = |task: &&TaskRecord| {
            task.machine.state.is_held()
                && task.workspace_id == claim.workspace_id
                && task.lease_request == claim.request
                && task.claimed_by.as_ref() == Some(&claim.daemon_id)
        };
        self.tasks.values().filter(same).min_by_key(|task| (task.rank, &task.id)).cloned()
    }

    /// The first task in the queue that one of the claim's runtimes may run now, and that runtime.
    fn next_task(&self, claim: &Claim) -> Option<(TaskRecord, String)> {
        let queued = self.tasks.values().filter(|task| {
            task.workspace_id == claim.workspace_id
                && task.machine.state == State::Queued
                && task.machine.not_before.is_none()
        });
        let fit = queued.filter_map(|task| Some((task, self.runtime_for(task.agent_id, claim)?)));
        let (task, runtime) = fit.min_by_key(|(task, _)| (task.rank, &task.id))?;
        Some((task.clone(), runtime))
    }

    /// The runtime of the claim that may run the agent, when the agent may have one more.
    fn runtime_for(&self, agent_id: i64, claim: &Claim) -> Option<String> {
        let agent = self.agents.get(&agent_id).filter(|it| !it.paused && !it.archived)?;
        let held = |task: &&TaskRecord| task.agent_id == agent_id && task.machine.state.is_held();
        let held = i64::try_from(self.tasks.values().filter(held).count()).unwrap_or(i64::MAX);
        if held >= agent.concurrency {
            return None;
        }
        let fits = |(id, provider): &&(String, String)| match &agent.runtime_id {
            Some(own) => own == id,
            None => &agent.provider == provider,
        };
        claim.runtimes.iter().find(fits).map(|(id, _)| id.clone())
    }

    // ---- what a call changes ----

    /// Keeps what a task became and what came with it; how many lines were new among those that could have
    /// been there.
    fn save(&mut self, task: &TaskRecord, changes: Vec<Change>) -> u64 {
        self.tasks.insert(task.id.clone(), task.clone());
        let mut accepted = 0;
        let mut delivered = None;
        let has_new = changes.iter().any(|it| matches!(it, Change::NewLines(_)));
        for change in changes {
            match change {
                Change::NewLines(lines) => _ = self.keep_lines(task, lines),
                Change::OldLines(lines) => {
                    let (count, bytes) = self.keep_lines(task, lines);
                    accepted += count;
                    if let (1.., Some(kept)) = (count, self.tasks.get_mut(&task.id)) {
                        plan::stored(kept, bytes);
                        if !has_new {
                            self.event(task.workspace_id, plan::OUTPUT, &plan::output(task));
                        }
                    }
                }
                Change::Session(report) => self.keep_session(task, report),
                Change::Delivered { completion, worked_ms } => {
                    delivered = Some((completion, worked_ms));
                }
                Change::Event { kind, data } => {
                    self.events.push((task.workspace_id, kind.to_owned(), data));
                }
                // Hints for those who wait; nobody waits here.
                Change::Queued | Change::Freed => {}
            }
        }
        if let Some((completion, worked_ms)) = delivered {
            self.deliver(task, *completion, worked_ms);
        }
        accepted
    }

    /// How many were new, and their bytes.
    fn keep_lines(&mut self, task: &TaskRecord, lines: Vec<Line>) -> (u64, u64) {
        let (mut count, mut bytes) = (0, 0);
        for line in lines {
            if let Entry::Vacant(place) = self.lines.entry((task.id.clone(), line.seq)) {
                (count, bytes) = (count + 1, bytes + line.bytes());
                place.insert(line);
            }
        }
        (count, bytes)
    }

    fn keep_session(&mut self, task: &TaskRecord, report: SessionReport) {
        if report == SessionReport::default() {
            return;
        }
        let kept = self.sessions.entry((task.agent_id, task.issue_id)).or_default();
        kept.session_id = report.session_id.or(kept.session_id.take());
        kept.work_dir = report.work_dir.or(kept.work_dir.take());
    }

    fn deliver(&mut self, task: &TaskRecord, it: Completion, worked_ms: i64) {
        let of_task = |more: serde_json::Value| {
            let mut data = json!({ "issue_number": task.issue_number, "task_id": task.id });
            if let (Some(data), Some(more)) = (data.as_object_mut(), more.as_object()) {
                data.extend(more.clone());
            }
            data
        };
        let usage = it.usage.unwrap_or_default();
        self.results.push(ResultRow { task_id: task.id.clone(), result: it.result, usage });
        if let Some(body) = it.comment {
            let posted_at = task.ended_at.unwrap_or_default();
            let author = Author::Agent(task.agent_id);
            self.comments.push(Comment { issue_id: task.issue_id, author, posted_at, body });
            self.event(task.workspace_id, "comment.created", &of_task(json!({})));
        }
        let is_pull_request = has_pull_request(&it.deliveries);
        for delivery in it.deliveries {
            let data = of_task(json!({ "type": delivery.kind.word() }));
            self.keep_delivery(task.issue_id, delivery);
            self.event(task.workspace_id, "delivery.recorded", &data);
        }
        let Some(issue) = self.issues.get_mut(&task.issue_id) else { return };
        issue.spent_ms += worked_ms;
        if is_pull_request && REVIEW_FROM.contains(&issue.status.as_str()) {
            "in_review".clone_into(&mut issue.status);
            let data = of_task(json!({ "status": "in_review" }));
            self.event(task.workspace_id, "issue.changed", &data);
        }
    }

    /// What a repeated report leaves out stays as it was.
    fn keep_delivery(&mut self, issue_id: i64, new: Delivery) {
        let key = (issue_id, new.key.clone());
        let Some(kept) = self.deliveries.get_mut(&key) else {
            self.deliveries.insert(key, new);
            return;
        };
        let old = std::mem::replace(kept, new);
        if old.kind == Kind::PullRequest {
            kept.kind = old.kind;
        }
        kept.reference = kept.reference.take().or(old.reference);
        kept.title = kept.title.take().or(old.title);
        kept.state = kept.state.take().or(old.state);
    }

    // ---- machines ----

    fn of_machine(
        &mut self,
        workspace_id: i64,
        daemon_id: &str,
    ) -> impl Iterator<Item = &mut RuntimeRow> {
        let own = move |row: &&mut RuntimeRow| {
            row.workspace_id == workspace_id && row.daemon_id == daemon_id
        };
        self.runtimes.values_mut().filter(own)
    }

    /// In the order of providers.
    fn runtimes_of(&mut self, workspace_id: i64, daemon_id: &str) -> Vec<Runtime> {
        let mut all: Vec<_> =
            self.of_machine(workspace_id, daemon_id).map(|row| row.runtime.clone()).collect();
        all.sort_by(|a, b| a.provider.cmp(&b.provider));
        all
    }

    fn register(&mut self, it: Registration, now: Timestamp) -> Registered {
        for row in self.of_machine(it.workspace_id, &it.daemon_id) {
            let runtime = &mut row.runtime;
            runtime.listed = it.providers.contains(&runtime.provider);
            runtime.online = runtime.listed;
            if runtime.listed {
                runtime.last_seen = now;
                row.name.clone_from(&it.name);
            }
        }
        let known = self.runtimes_of(it.workspace_id, &it.daemon_id);
        for provider in &it.providers {
            if known.iter().all(|runtime| &runtime.provider != provider) {
                let id = format!("{:026}", self.number());
                let runtime = Runtime {
                    id: id.clone(),
                    provider: provider.clone(),
                    listed: true,
                    online: true,
                    last_seen: now,
                };
                let (workspace_id, daemon_id) = (it.workspace_id, it.daemon_id.clone());
                let row = RuntimeRow { workspace_id, daemon_id, name: it.name.clone(), runtime };
                self.runtimes.insert(id, row);
            }
        }
        let data = json!({ "name": it.name, "providers": it.providers, "online": true });
        self.event(it.workspace_id, "machine.registered", &data);
        let all = self.runtimes_of(it.workspace_id, &it.daemon_id);
        let of = |provider: &String| all.iter().find(|it| &it.provider == provider).cloned();
        let runtimes = it.providers.iter().filter_map(of).collect();
        let own = all.iter().find(|it| it.listed && it.provider == ACTOR_PROVIDER);
        let agents = match (it.actors, own) {
            (Some(actors), Some(own)) => self.register_actors(it.workspace_id, &own.id, actors),
            _ => Vec::new(),
        };
        Registered { runtimes, agents }
    }

    fn register_actors(
        &mut self,
        workspace_id: i64,
        runtime_id: &str,
        actors: Vec<Actor>,
    ) -> Vec<ActorAgent> {
        for agent in self.agents.values_mut() {
            let own = agent.runtime_id.as_deref() == Some(runtime_id);
            if let (true, Some(external_id)) = (own, &agent.external_id) {
                agent.archived |= actors.iter().all(|actor| &actor.external_id != external_id);
            }
        }
        actors.into_iter().map(|it| self.register_actor(workspace_id, runtime_id, it)).collect()
    }

    fn register_actor(&mut self, workspace_id: i64, runtime_id: &str, actor: Actor) -> ActorAgent {
        let known = self.agents.iter().find(|(_, agent)| {
            agent.runtime_id.as_deref() == Some(runtime_id)
                && agent.external_id.as_ref() == Some(&actor.external_id)
        });
        let known = known.map(|(id, _)| *id);
        let id = known.unwrap_or_else(|| self.number());
        let others = self.agents.iter().filter(|(other, agent)| {
            **other != id && agent.workspace_id == workspace_id && !agent.archived
        });
        let taken: HashSet<_> = others.map(|(_, agent)| agent.name.clone()).collect();
        let marked = format!("{} (Huskarl)", actor.name);
        let mut name = actor.name.clone();
        let mut number = 1;
        while taken.contains(&name) {
            name = if number == 1 { marked.clone() } else { format!("{marked} {number}") };
            number += 1;
        }
        let row = self.agents.entry(id).or_insert_with(|| AgentRow {
            workspace_id,
            name: String::new(),
            provider: ACTOR_PROVIDER.to_owned(),
            runtime_id: Some(runtime_id.to_owned()),
            external_id: Some(actor.external_id.clone()),
            concurrency: 1,
            paused: false,
            archived: false,
        });
        row.name.clone_from(&name);
        row.archived = false;
        ActorAgent { id, external_id: actor.external_id, name }
    }

    fn mark_offline(&mut self, after: Duration, now: Timestamp) -> u64 {
        let mut events = Vec::new();
        for row in self.runtimes.values_mut() {
            let runtime = &mut row.runtime;
            if runtime.online && runtime.last_seen.after(after) < now {
                runtime.online = false;
                let data = json!({ "runtime_id": runtime.id, "name": row.name,
                    "provider": runtime.provider, "online": false });
                events.push((row.workspace_id, data));
            }
        }
        for (workspace_id, data) in &events {
            self.event(*workspace_id, "runtime.changed", data);
        }
        events.len() as u64
    }
}
