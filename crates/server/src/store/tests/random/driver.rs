//! Does a sequence to one store, and tells what came of it in words that no store's ids appear in.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use futures_util::future::join_all;
use ostler_core::lease::{
    Call, Decided, Decision, Failing, Input, LeaseHash, Priority, WaitingFor,
};

use super::ops::{Op, PersonSays, Said, Say, Token};
use crate::store::tests::subject::Subject;
use crate::store::tests::world::{self, World, call_of, lease_hash, registration};
use crate::store::{
    Actor, Claim, Claimed, Completion, Line, Payload, Registration, Runtime, Seen, SessionReport,
    Stepped, StoreError, Sweep, TaskCall, TaskRecord, Usage, What,
};

const MACHINES: [&str; 2] = ["m-0", "m-1"];
/// The first is taken by an agent of people.
const NAMES: [&str; 3] = ["Freya", "Bjorn", "Astrid"];

/// A workspace of the sequence.
struct Place {
    id: i64,
    issues: Vec<i64>,
    agents: Vec<i64>,
}

pub(super) struct Driver<S> {
    pub(super) world: World<S>,
    places: Vec<Place>,
    /// Place and id.
    tasks: Vec<(usize, String)>,
    runtimes: Vec<String>,
    /// Task and token.
    tokens: Vec<(usize, String)>,
    /// What happened, for the test that looks whether enough does.
    pub(super) seen: BTreeSet<&'static str>,
}

impl<S: Subject> Driver<S> {
    pub(super) async fn new(world: World<S>) -> Self {
        let mut places = Vec::new();
        for slug in ["acme", "other"] {
            let id = world.store.workspace_create(slug).await;
            let mut issues = Vec::new();
            for priority in [Priority::None, Priority::Low, Priority::Urgent] {
                issues.push(world.store.issue_create(id, priority.word(), priority).await);
            }
            let mut agents = Vec::new();
            for (name, provider, concurrency) in
                [("Freya", "claude_code", 1), ("Odin", "codex", 2), ("Thor", "claude_code", 3)]
            {
                let new = crate::store::memory::NewAgent {
                    workspace_id: id,
                    name: name.to_owned(),
                    provider: provider.to_owned(),
                    runtime_id: None,
                    concurrency,
                };
                agents.push(world.store.agent_create(new).await);
            }
            places.push(Place { id, issues, agents });
        }
        let (tasks, runtimes, tokens, seen) = (Vec::new(), Vec::new(), Vec::new(), BTreeSet::new());
        Self { world, places, tasks, runtimes, tokens, seen }
    }

    /// Does one step; what came of it.
    pub(super) async fn apply(&mut self, op: &Op) -> String {
        match op {
            Op::Register { workspace, machine, providers, actors } => {
                self.register(*workspace, *machine, providers, actors.as_deref()).await
            }
            Op::Seen { workspace, machine, ago } => {
                let at = self.world.clock.now().as_micros() - ago * 1_000_000;
                let seen = Seen {
                    workspace_id: self.places[*workspace].id,
                    daemon_id: MACHINES[*machine].to_owned(),
                    at: ostler_core::clock::Timestamp::from_micros(at),
                };
                self.told(self.world.store.machines_seen(vec![seen]).await)
            }
            Op::Queue { workspace, issue, agent } => self.queue(*workspace, *issue, *agent).await,
            Op::Claim { workspace, machine, word, starts_soon } => {
                self.claim(*workspace, *machine, *word, *starts_soon).await
            }
            Op::Say(said) => self.together(std::slice::from_ref(said)).await,
            Op::Together(all) => self.together(all).await,
            Op::Resume { task, machine, word } => self.resume(*task, *machine, *word).await,
            Op::Person { task, says } => self.person(*task, says).await,
            Op::Pause { workspace, agent, paused } => {
                let agents = &self.places[*workspace].agents;
                self.world.store.agent_pause(agents[agent % agents.len()], *paused).await;
                String::new()
            }
            Op::Move { workspace, issue, status } => {
                self.world.store.issue_move(self.places[*workspace].issues[*issue], status).await;
                String::new()
            }
            Op::Comment { workspace, issue } => {
                let issue = self.places[*workspace].issues[*issue];
                self.world.store.comment_create(issue, "ann@example.com", "<p>Hm.</p>").await;
                String::new()
            }
            Op::Unpark => {
                let count = self.world.store.tasks_unpark().await.unwrap();
                self.note("unparked", count > 0);
                format!("{count} unparked")
            }
            Op::Sweep { take_leases, bring_back } => {
                let (take_leases, bring_back) = (*take_leases, *bring_back);
                let sweep = Sweep { take_leases, bring_back, ..self.world.sweep_now() };
                let swept = self.world.store.leases_sweep(sweep).await.unwrap();
                self.note("swept", swept.leases > 0);
                self.note("offline", swept.runtimes > 0);
                format!("{swept:?}")
            }
            Op::Pass(seconds) => {
                self.world.pass(*seconds);
                String::new()
            }
        }
    }

    fn note(&mut self, what: &'static str, happened: bool) {
        if happened {
            self.seen.insert(what);
        }
    }

    // ---- what is done ----

    async fn register(
        &mut self,
        workspace: usize,
        machine: usize,
        providers: &[&str],
        actors: Option<&[(u8, u8)]>,
    ) -> String {
        let actor = |(external, name): &(u8, u8)| Actor {
            external_id: format!("e-{external}"),
            name: NAMES[usize::from(*name)].to_owned(),
            description: String::new(),
        };
        let registration = Registration {
            actors: actors.map(|actors| actors.iter().map(actor).collect()),
            ..registration(self.places[workspace].id, MACHINES[machine], providers)
        };
        let done = self.world.register(registration).await;
        for runtime in &done.runtimes {
            if !self.runtimes.contains(&runtime.id) {
                self.runtimes.push(runtime.id.clone());
            }
        }
        let mut agents = Vec::new();
        for agent in &done.agents {
            let known = &mut self.places[workspace].agents;
            if !known.contains(&agent.id) {
                known.push(agent.id);
            }
            agents.push((self.agent(agent.id), agent.external_id.clone(), agent.name.clone()));
            self.note("actor renamed", agent.name.ends_with(" (Huskarl)"));
        }
        self.named(&(done.runtimes, agents))
    }

    async fn queue(&mut self, workspace: usize, issue: usize, agent: usize) -> String {
        let place = &self.places[workspace];
        // One in four issues is the other workspace's.
        let issue = place.issues.get(issue).unwrap_or(&self.places[1 - workspace].issues[0]);
        let agent = place.agents[agent % place.agents.len()];
        self.world.clock.pass_micros(1);
        match self.world.store.task_queue(place.id, *issue, agent).await {
            Ok(id) => {
                self.tasks.push((workspace, id));
                "queued".to_owned()
            }
            Err(error) => self.refused(&error),
        }
    }

    async fn listed(&self, workspace: usize, machine: usize) -> Vec<(String, String)> {
        let found =
            self.world.store.machine_find(self.places[workspace].id, MACHINES[machine]).await;
        let listed = found.unwrap_or_default().into_iter().filter(|runtime| runtime.listed);
        listed.map(|runtime| (runtime.id, runtime.provider)).collect()
    }

    async fn claim(
        &mut self,
        workspace: usize,
        machine: usize,
        word: Option<u8>,
        starts_soon: bool,
    ) -> String {
        let claim = Claim {
            workspace_id: self.places[workspace].id,
            daemon_id: MACHINES[machine].to_owned(),
            runtimes: self.listed(workspace, machine).await,
            request: word.map(|word| format!("w-{machine}-{word}")),
            starts_soon,
        };
        let Some(claimed) = self.world.claim(claim).await else {
            self.note("claimed nothing", true);
            return "nothing".to_owned();
        };
        let task = self.tasks.iter().position(|(_, id)| *id == claimed.task.id).unwrap();
        let known = self.tokens.iter().any(|(_, token)| *token == claimed.lease_token);
        self.note(if known { "claimed again" } else { "claimed" }, true);
        if !known {
            self.tokens.push((task, claimed.lease_token.clone()));
        }
        let Claimed { task, lease_token, mut facts } = claimed;
        facts.agent.id = self.agent(facts.agent.id);
        self.named(&(self.record(task), lease_token, facts))
    }

    /// The task: the newest is 0.
    fn task(&self, task: usize) -> Option<(usize, String, usize)> {
        let at = self.tasks.len().checked_sub(1 + task % self.tasks.len().max(1))?;
        let (place, id) = self.tasks.get(at)?;
        Some((*place, id.clone(), at))
    }

    fn call(&self, said: &Said) -> Option<TaskCall> {
        let (place, id, at) = self.task(said.task)?;
        let own = || self.tokens.iter().rev().filter(|(task, _)| *task == at);
        let token = match said.token {
            Token::Newest => own().next(),
            Token::Before(n) => own().nth(n),
            Token::OfAny => self.tokens.last(),
            Token::Nothing => None,
        };
        let place = if said.foreign { 1 - place } else { place };
        let (call, with) = self.say(&said.say);
        let token = token.map(|(_, token)| token.as_str());
        Some(call_of(self.places[place].id, &id, token, call, with))
    }

    fn say(&self, say: &Say) -> (Call, Payload) {
        match say {
            Say::Start => (Call::Start, Payload::None),
            Say::CancelAck => (Call::CancelAck, Payload::None),
            Say::Await => (
                Call::Await { what: WaitingFor::Input, summary: "Which?".to_owned() },
                Payload::None,
            ),
            Say::Lines(lines) => {
                let line = |(seq, content): &(u64, u8)| Line {
                    seq: *seq,
                    kind: "assistant".to_owned(),
                    content: Some(content.to_string()),
                    tool: None,
                    payload: (*content == 0).then(|| "{}".to_owned()),
                };
                let highest = lines.iter().map(|(seq, _)| *seq).max().unwrap_or(0);
                (Call::Messages { highest }, Payload::Lines(lines.iter().map(line).collect()))
            }
            Say::Session(id, dir) => {
                let report = SessionReport {
                    session_id: id.map(|id| format!("s-{id}")),
                    work_dir: dir.map(|dir| format!("/w/{dir}")),
                };
                (Call::Session, Payload::Session(report))
            }
            Say::Complete { comment, session, cost, deliveries } => {
                let delivery = |(pull_request, key, told): &(bool, u8, bool)| {
                    let kind = if *pull_request { "pull_request" } else { "branch" };
                    let text = |prefix: &str| told.then(|| format!("{prefix}{key}"));
                    let (url, title) = (text("https://x/"), text("title "));
                    let state = told.then_some("open");
                    world::delivery(
                        kind,
                        &key.to_string(),
                        url.as_deref(),
                        None,
                        title.as_deref(),
                        state,
                    )
                };
                let completion = Completion {
                    result: "{}".to_owned(),
                    comment: comment.then(|| "<p>Done.</p>".to_owned()),
                    session: SessionReport {
                        session_id: session.map(|id| format!("s-{id}")),
                        work_dir: None,
                    },
                    usage: cost.map(|it| Usage { cost_micros: Some(it), ..Usage::default() }),
                    deliveries: deliveries.iter().map(delivery).collect(),
                };
                world::completion(completion)
            }
            Say::Fail { retryable, handed_back, park } => {
                let at = |seconds: i64| {
                    let micros = self.world.clock.now().as_micros() + seconds * 1_000_000;
                    ostler_core::clock::Timestamp::from_micros(micros)
                };
                let failing = Failing {
                    retryable: *retryable,
                    handed_back: *handed_back,
                    not_before: park.map(at),
                };
                (Call::Fail(failing), Payload::Failure(format!("{retryable} {park:?}")))
            }
        }
    }

    /// All of them at once: on SQLite they share a transaction.
    async fn together(&mut self, all: &[Said]) -> String {
        let calls: Vec<_> = all.iter().filter_map(|said| self.call(said)).collect();
        self.note("together", calls.len() > 1);
        for said in all {
            if let Say::Complete { deliveries, .. } = &said.say {
                self.note("delivered", !deliveries.is_empty());
            }
        }
        let answers = join_all(calls.into_iter().map(|it| self.world.store.task_call(it))).await;
        let told: Vec<_> = answers.into_iter().map(|answer| self.stepped(answer)).collect();
        told.join("\n")
    }

    async fn resume(&mut self, task: usize, machine: usize, word: Option<u8>) -> String {
        let Some((place, task_id, at)) = self.task(task) else { return String::new() };
        let what = What::Resume {
            runtimes: self.listed(place, machine).await.into_iter().map(|(id, _)| id).collect(),
            request: word.map(|word| format!("w-{machine}-{word}")),
        };
        let workspace_id = self.places[place].id;
        let call = TaskCall { workspace_id, task_id, what, with: Payload::None };
        let answer = self.world.store.task_call(call).await;
        if let Ok(Stepped { lease_token: Some(token), .. }) = &answer {
            let known = self.tokens.iter().any(|(_, known)| known == token);
            self.note(if known { "resumed again" } else { "resumed" }, true);
            if !known {
                self.tokens.push((at, token.clone()));
            }
        }
        self.stepped(answer)
    }

    async fn person(&mut self, task: usize, says: &PersonSays) -> String {
        let Some((place, task_id, _)) = self.task(task) else { return String::new() };
        let decision = |decided| Input::Decide(Decision { decided, note: "so".to_owned() });
        let input = match says {
            PersonSays::Cancel => Input::Cancel,
            PersonSays::Retry => Input::Retry,
            PersonSays::Approve => decision(Decided::Approved),
            PersonSays::Deny => decision(Decided::Denied),
        };
        let (workspace_id, what) = (self.places[place].id, What::Input(input));
        let call = TaskCall { workspace_id, task_id, what, with: Payload::None };
        let answer = self.world.store.task_call(call).await;
        self.stepped(answer)
    }

    // ---- what is told, without ids ----

    fn told<T: Debug>(&mut self, answer: Result<T, StoreError>) -> String {
        match answer {
            Ok(done) => self.named(&done),
            Err(error) => self.refused(&error),
        }
    }

    fn stepped(&mut self, answer: Result<Stepped, StoreError>) -> String {
        if let Ok(stepped) = &answer {
            self.note("old lines", stepped.accepted > 0 && stepped.next_seq > stepped.accepted + 1);
            self.note("repeated", stepped.answer.repeated);
        }
        self.told(answer)
    }

    fn refused(&mut self, error: &StoreError) -> String {
        use ostler_core::lease::Refusal;
        self.seen.insert(match error {
            StoreError::NotFound => "NotFound",
            StoreError::Refused(Refusal::LeaseLost) => "LeaseLost",
            StoreError::Refused(Refusal::LeaseExpired) => "LeaseExpired",
            StoreError::Refused(Refusal::BadState(_)) => "BadState",
            StoreError::Refused(Refusal::OtherMachine) => "OtherMachine",
            StoreError::Refused(Refusal::Decided(_)) => "Decided",
            other => panic!("{other:?}"),
        });
        format!("{error:?}")
    }

    /// The number of an agent.
    fn agent(&self, id: i64) -> i64 {
        let mut all = self.places.iter().enumerate().flat_map(|(place, it)| {
            it.agents.iter().enumerate().map(move |(at, agent)| (100 * place + at, agent))
        });
        let at = all.find(|(_, agent)| **agent == id).map(|(at, _)| at);
        at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)
    }

    fn hash(&self, hash: LeaseHash) -> LeaseHash {
        let at = self.tokens.iter().position(|(_, token)| lease_hash(token) == hash);
        LeaseHash([at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX); 32])
    }

    fn record(&self, mut record: TaskRecord) -> TaskRecord {
        let place = self.places.iter().position(|it| it.id == record.workspace_id).unwrap();
        let issues = &self.places[place].issues;
        let issue = issues.iter().position(|id| *id == record.issue_id).unwrap();
        record.workspace_id = i64::try_from(place).unwrap();
        // The model has nobody beside it.
        record.version = 0;
        record.issue_id = i64::try_from(issue).unwrap();
        record.agent_id = self.agent(record.agent_id);
        assert_eq!(record.lease_nonce.take().is_some(), record.machine.state.is_held());
        if let Some(lease) = &mut record.machine.lease {
            lease.hash = self.hash(lease.hash);
        }
        if let Some(ended) = &mut record.machine.ended {
            ended.hash = self.hash(ended.hash);
        }
        record
    }

    /// As text, with what the ids stand for.
    fn named(&self, it: &impl Debug) -> String {
        self.plain(format!("{it:?}"))
    }

    fn plain(&self, mut text: String) -> String {
        let tasks = self.tasks.iter().enumerate().map(|(at, (_, id))| (format!("task {at}"), id));
        let runtimes =
            self.runtimes.iter().enumerate().map(|(at, id)| (format!("runtime {at}"), id));
        let tokens =
            self.tokens.iter().enumerate().map(|(at, (_, token))| (format!("token {at}"), token));
        for (name, id) in tasks.chain(runtimes).chain(tokens) {
            text = text.replace(id, &name);
        }
        text
    }

    /// Everything there is.
    pub(super) async fn contents(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for (_, id) in &self.tasks {
            let store = &self.world.store;
            all.push(self.named(&self.record(store.task(id).await)));
            all.push(self.named(&(store.lines(id).await, store.results(id).await)));
        }
        for at in 0..self.places.len() {
            all.extend(self.contents_of(at).await);
        }
        let moved = all.iter().any(|it| it.contains("\"in_review\""));
        self.note("in_review", moved);
        all
    }

    async fn contents_of(&self, at: usize) -> Vec<String> {
        let (store, place) = (&self.world.store, &self.places[at]);
        let mut all = Vec::new();
        for (number, issue) in place.issues.iter().enumerate() {
            let mut comments = store.comments(*issue).await;
            comments.iter_mut().for_each(|comment| comment.issue_id = 0);
            let deliveries = store.deliveries(*issue).await;
            all.push(self.named(&(number, store.issue(*issue).await, comments, deliveries)));
            for agent in &place.agents {
                let session = store.session(*agent, *issue).await;
                all.push(self.named(&(number, self.agent(*agent), session)));
            }
        }
        for agent in &place.agents {
            all.push(self.named(&(self.agent(*agent), store.agent(*agent).await)));
        }
        for machine in MACHINES {
            let runtimes: Vec<Runtime> =
                store.machine_find(place.id, machine).await.unwrap_or_default();
            all.push(self.named(&runtimes));
        }
        // What concerns a task is in order; several tasks that one sweep takes are in none.
        let mut events: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (kind, data) in store.events(place.id).await {
            let mut data: serde_json::Value = serde_json::from_str(&data).unwrap();
            let object = data.as_object_mut().unwrap();
            if let Some(agent) = object.get_mut("agent_id") {
                *agent = self.agent(agent.as_i64().unwrap()).into();
            }
            // On a task's own events, on its output (lines that fill a gap are told when it is known that they did),
            // and on what its end made: a batch saves the latter two later.
            let own = (kind.starts_with("task."), kind == "task.output");
            let about = self.plain(format!(
                "{own:?} {:?} {:?}",
                object.get("task_id"),
                object.get("runtime_id")
            ));
            events.entry(about).or_default().push(self.plain(format!("{kind} {data}")));
        }
        for (_, told) in events.iter_mut().filter(|(about, _)| about.starts_with("(true, true)")) {
            told.sort_unstable();
        }
        all.push(format!("{events:#?}"));
        all
    }
}
