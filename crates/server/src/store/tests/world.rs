//! A store with a clock that is turned by hand, and short words for what the suites do to it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use ostler_core::clock::Timestamp;
use ostler_core::lease::{
    Call, Failing, Input, LeaseHash, Policy, Priority, Refusal, State, WaitingFor,
};

use ostler_testkit::postgres::ScratchPostgres;

use super::subject::Subject;
use crate::delivery::{self, Delivery};
use crate::secrets::{Keyring, hash_token};
use crate::store::memory::{MemoryStore, NewAgent};
use crate::store::sql::{Clock, Opening, SqlStore};
use crate::store::{
    Claim, Claimed, Completion, Line, Payload, Registered, Registration, SessionReport, Stepped,
    StoreError, Sweep, TaskCall, What,
};

/// Small numbers, so that tests reach the bounds.
pub(in crate::store::tests) const POLICY: Policy = Policy {
    lease: Duration::from_secs(300),
    start_within: Duration::from_secs(60),
    attempts_max: 3,
    hand_backs_max: 2,
    parks_max: 2,
};

/// 2026-01-02T03:04:05.678901Z.
const BEGIN: i64 = 1_767_323_045_678_901;

/// A clock that is turned by hand.
#[derive(Clone)]
pub(in crate::store::tests) struct TestClock(Arc<AtomicI64>);

impl TestClock {
    pub(in crate::store::tests) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(BEGIN)))
    }

    pub(in crate::store::tests) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }

    pub(in crate::store::tests) fn pass_micros(&self, micros: i64) {
        self.0.fetch_add(micros, Ordering::SeqCst);
    }

    pub(in crate::store::tests) fn reset(&self) {
        self.0.store(BEGIN, Ordering::SeqCst);
    }

    pub(in crate::store::tests) fn clock(&self) -> Clock {
        let clock = self.clone();
        Arc::new(move || clock.now())
    }
}

pub(in crate::store::tests) fn keyring() -> Keyring {
    Keyring::new(&[7; 32]).unwrap()
}

/// A store and its clock.
pub(in crate::store::tests) struct World<S> {
    pub(in crate::store::tests) store: S,
    pub(in crate::store::tests) clock: TestClock,
}

pub(in crate::store::tests) fn memory() -> World<MemoryStore> {
    let clock = TestClock::new();
    World { store: MemoryStore::new(keyring(), POLICY, clock.clock()), clock }
}

pub(in crate::store::tests) async fn sqlite(dir: &Path) -> World<SqlStore> {
    let clock = TestClock::new();
    let url = format!("sqlite:{}", dir.join("ostler.db").display());
    World { store: open(&url, &clock).await, clock }
}

/// A database of its own on the PostgreSQL that all tests share; none where there is no PostgreSQL.
pub(in crate::store::tests) async fn postgres(name: &str) -> Option<World<SqlStore>> {
    let url = postgres_url(name)?;
    let clock = TestClock::new();
    Some(World { store: open(&url, &clock).await, clock })
}

pub(in crate::store::tests) fn postgres_url(name: &str) -> Option<String> {
    let postgres = ScratchPostgres::shared(&format!("store/{name}"))?;
    // A name has 63 characters at most.
    let number = DATABASES.fetch_add(1, Ordering::Relaxed);
    Some(postgres.create_database(&format!("store_{number}")))
}

static DATABASES: AtomicU64 = AtomicU64::new(0);

pub(in crate::store::tests) async fn open(url: &str, clock: &TestClock) -> SqlStore {
    let opening = Opening {
        url,
        database_wait: Duration::from_secs(20),
        keyring: keyring(),
        policy: POLICY,
        clock: clock.clock(),
        on_hints: Arc::new(|_| {}),
    };
    SqlStore::open(opening).await.unwrap()
}

/// A registered machine.
#[derive(Debug, Clone)]
pub(in crate::store::tests) struct Machine {
    pub(in crate::store::tests) workspace_id: i64,
    pub(in crate::store::tests) daemon_id: String,
    pub(in crate::store::tests) runtimes: Vec<(String, String)>,
}

impl Machine {
    pub(in crate::store::tests) fn claim(&self) -> Claim {
        Claim {
            workspace_id: self.workspace_id,
            daemon_id: self.daemon_id.clone(),
            runtimes: self.runtimes.clone(),
            request: None,
            starts_soon: false,
        }
    }

    pub(in crate::store::tests) fn claim_as(&self, request: &str) -> Claim {
        Claim { request: Some(request.to_owned()), ..self.claim() }
    }

    pub(in crate::store::tests) fn ids(&self) -> Vec<String> {
        self.runtimes.iter().map(|(id, _)| id.clone()).collect()
    }
}

/// A task that somebody was given.
#[derive(Debug, Clone)]
pub(in crate::store::tests) struct Run {
    pub(in crate::store::tests) workspace_id: i64,
    pub(in crate::store::tests) task_id: String,
    pub(in crate::store::tests) token: String,
}

impl Run {
    pub(in crate::store::tests) fn call(&self, call: Call, with: Payload) -> TaskCall {
        call_of(self.workspace_id, &self.task_id, Some(&self.token), call, with)
    }
}

pub(in crate::store::tests) fn lease_hash(token: &str) -> LeaseHash {
    LeaseHash(hash_token(token))
}

pub(in crate::store::tests) fn call_of(
    workspace_id: i64,
    task_id: &str,
    token: Option<&str>,
    call: Call,
    with: Payload,
) -> TaskCall {
    let what = What::Input(Input::Held { lease: token.map(lease_hash), call });
    TaskCall { workspace_id, task_id: task_id.to_owned(), what, with }
}

pub(in crate::store::tests) fn registration(
    workspace_id: i64,
    daemon_id: &str,
    providers: &[&str],
) -> Registration {
    Registration {
        workspace_id,
        daemon_id: daemon_id.to_owned(),
        name: daemon_id.to_owned(),
        version: "0.3.0".to_owned(),
        providers: providers.iter().map(|it| (*it).to_owned()).collect(),
        capabilities: "{}".to_owned(),
        actors: None,
    }
}

pub(in crate::store::tests) fn lines(numbers: &[u64]) -> (Call, Payload) {
    let line = |seq: &u64| Line {
        seq: *seq,
        kind: "assistant".to_owned(),
        content: Some(format!("line {seq}")),
        tool: None,
        payload: None,
    };
    let highest = numbers.iter().copied().max().unwrap_or(0);
    (Call::Messages { highest }, Payload::Lines(numbers.iter().map(line).collect()))
}

pub(in crate::store::tests) fn completion(completion: Completion) -> (Call, Payload) {
    (Call::Complete, Payload::Completion(Box::new(completion)))
}

pub(in crate::store::tests) fn done() -> (Call, Payload) {
    completion(Completion { result: "{}".to_owned(), ..Completion::default() })
}

pub(in crate::store::tests) fn failure(retryable: bool) -> (Call, Payload) {
    let failing = Failing { retryable, handed_back: false, not_before: None };
    (Call::Fail(failing), Payload::Failure("it broke".to_owned()))
}

pub(in crate::store::tests) fn waiting() -> (Call, Payload) {
    (Call::Await { what: WaitingFor::Input, summary: "Which?".to_owned() }, Payload::None)
}

pub(in crate::store::tests) fn session(id: &str) -> SessionReport {
    SessionReport { session_id: Some(id.to_owned()), work_dir: Some(format!("/work/{id}")) }
}

/// A delivery from its columns.
pub(in crate::store::tests) fn delivery(
    kind: &str,
    key: &str,
    url: Option<&str>,
    reference: Option<&str>,
    title: Option<&str>,
    state: Option<&str>,
) -> Delivery {
    let kinds = [delivery::Kind::PullRequest, delivery::Kind::Branch];
    Delivery {
        kind: kinds.into_iter().find(|it| it.word() == kind).unwrap(),
        url: url.map(str::to_owned),
        reference: reference.map(str::to_owned),
        title: title.map(str::to_owned),
        state: state.map(|word| delivery::DeliveryState::from_word(word).unwrap()),
        key: key.to_owned(),
    }
}

impl<S: Subject> World<S> {
    pub(in crate::store::tests) fn pass(&self, seconds: i64) {
        self.clock.pass_micros(seconds * 1_000_000);
    }

    pub(in crate::store::tests) async fn agent(
        &self,
        workspace_id: i64,
        name: &str,
        concurrency: i64,
    ) -> i64 {
        let (name, provider) = (name.to_owned(), "claude_code".to_owned());
        let new = NewAgent { workspace_id, name, provider, runtime_id: None, concurrency };
        self.store.agent_create(new).await
    }

    pub(in crate::store::tests) async fn register(&self, registration: Registration) -> Registered {
        self.store.machine_register(registration).await.unwrap()
    }

    pub(in crate::store::tests) async fn machine(
        &self,
        workspace_id: i64,
        daemon_id: &str,
        providers: &[&str],
    ) -> Machine {
        let registered = self.register(registration(workspace_id, daemon_id, providers)).await;
        let runtimes = registered.runtimes.into_iter().map(|it| (it.id, it.provider)).collect();
        Machine { workspace_id, daemon_id: daemon_id.to_owned(), runtimes }
    }

    /// A workspace with an agent, an issue and a machine, the usual case.
    pub(in crate::store::tests) async fn usual(&self, concurrency: i64) -> Usual {
        let workspace = self.store.workspace_create("acme").await;
        let agent = self.agent(workspace, "Freya", concurrency).await;
        let issue = self.store.issue_create(workspace, "Fix it", Priority::None).await;
        let machine = self.machine(workspace, "m-1", &["claude_code"]).await;
        Usual { workspace, agent, issue, machine }
    }

    /// Queues a task; each a little later than the one before.
    pub(in crate::store::tests) async fn queue(
        &self,
        workspace_id: i64,
        issue: i64,
        agent: i64,
    ) -> String {
        self.clock.pass_micros(1);
        self.store.task_queue(workspace_id, issue, agent).await.unwrap()
    }

    pub(in crate::store::tests) async fn claim(&self, claim: Claim) -> Option<Claimed> {
        self.store.task_claim(claim).await.unwrap()
    }

    /// Claims what is certainly there.
    pub(in crate::store::tests) async fn take(&self, machine: &Machine) -> Run {
        let claimed = self.claim(machine.claim()).await.expect("a task");
        run(&claimed)
    }

    /// Queues a task of the usual case, and claims it.
    pub(in crate::store::tests) async fn given(&self, usual: &Usual) -> Run {
        self.queue(usual.workspace, usual.issue, usual.agent).await;
        self.take(&usual.machine).await
    }

    pub(in crate::store::tests) async fn say(
        &self,
        run: &Run,
        (call, with): (Call, Payload),
    ) -> Result<Stepped, Refusal> {
        self.call(run.call(call, with)).await
    }

    pub(in crate::store::tests) async fn call(&self, call: TaskCall) -> Result<Stepped, Refusal> {
        match self.store.task_call(call).await {
            Ok(stepped) => Ok(stepped),
            Err(StoreError::Refused(refusal)) => Err(refusal),
            Err(error) => panic!("{error:?}"),
        }
    }

    /// What a person does.
    pub(in crate::store::tests) async fn person(
        &self,
        run: &Run,
        input: Input,
    ) -> Result<Stepped, Refusal> {
        let (workspace_id, task_id) = (run.workspace_id, run.task_id.clone());
        self.call(TaskCall { workspace_id, task_id, what: What::Input(input), with: Payload::None })
            .await
    }

    pub(in crate::store::tests) async fn resume(
        &self,
        run: &Run,
        runtimes: Vec<String>,
        request: Option<&str>,
    ) -> Result<Stepped, Refusal> {
        let (workspace_id, task_id) = (run.workspace_id, run.task_id.clone());
        let what = What::Resume { runtimes, request: request.map(str::to_owned) };
        self.call(TaskCall { workspace_id, task_id, what, with: Payload::None }).await
    }

    /// A sweep that does all it may.
    pub(in crate::store::tests) fn sweep_now(&self) -> Sweep {
        let offline_after = Some(Duration::from_secs(45));
        Sweep { now: self.clock.now(), offline_after, take_leases: true, bring_back: true }
    }

    pub(in crate::store::tests) async fn sweep(&self) -> u64 {
        self.store.leases_sweep(self.sweep_now()).await.unwrap().leases
    }

    pub(in crate::store::tests) async fn state(&self, run: &Run) -> State {
        self.store.task(&run.task_id).await.machine.state
    }
}

/// A workspace with one of each.
pub(in crate::store::tests) struct Usual {
    pub(in crate::store::tests) workspace: i64,
    pub(in crate::store::tests) agent: i64,
    pub(in crate::store::tests) issue: i64,
    pub(in crate::store::tests) machine: Machine,
}

pub(in crate::store::tests) fn run(claimed: &Claimed) -> Run {
    Run {
        workspace_id: claimed.task.workspace_id,
        task_id: claimed.task.id.clone(),
        token: claimed.lease_token.clone(),
    }
}

pub(in crate::store::tests) fn status(
    stepped: &Result<Stepped, Refusal>,
) -> Result<State, Refusal> {
    stepped.as_ref().map(|it| it.answer.status).map_err(|refusal| *refusal)
}
