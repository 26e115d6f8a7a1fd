//! Who is given which task.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use ostler_core::lease::{Failing, Input, Priority, State};

use super::subject::Subject;
use super::world::{self, World, done, failure, run, waiting};
use crate::store::memory::NewAgent;
use crate::store::{Claim, Payload, Registration, StoreError, TaskRecord};

pub(super) async fn f_026_a_claim_without_work_gives_nothing(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    assert_eq!(world.claim(usual.machine.claim()).await, None);
    let nothing = Claim { runtimes: Vec::new(), ..usual.machine.claim() };
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    assert_eq!(world.claim(nothing).await, None);
    assert!(world.claim(usual.machine.claim()).await.is_some());
}

pub(super) async fn the_order_is_priority_then_age_and_age_beats_priority(
    world: World<impl Subject>,
) {
    let usual = world.usual(100).await;
    let mut queued = Vec::new();
    let hours = 3_600;
    // (priority, when): later means younger.
    let tasks = [
        (Priority::None, 0),
        (Priority::Urgent, 49 * hours),
        (Priority::None, 49 * hours + 1),
        (Priority::High, 49 * hours + 2),
        (Priority::Urgent, 49 * hours + 3),
        (Priority::Low, 49 * hours + 4),
        (Priority::Medium, 49 * hours + 5),
    ];
    let mut passed = 0;
    for (priority, at) in tasks {
        world.pass(at - passed);
        passed = at;
        let issue = world.store.issue_create(usual.workspace, "x", priority).await;
        queued.push(world.queue(usual.workspace, issue, usual.agent).await);
    }
    let mut given = Vec::new();
    while let Some(claimed) = world.claim(usual.machine.claim()).await {
        given.push(queued.iter().position(|id| *id == claimed.task.id).unwrap());
    }
    // The one that nobody called urgent has waited longer than an urgent one is ahead.
    assert_eq!(given, [0, 1, 4, 3, 6, 5, 2]);
}

pub(super) async fn f_033_a_limit_holds_and_a_saturated_agent_is_passed_over(
    world: World<impl Subject>,
) {
    let usual = world.usual(2).await;
    let other = world.agent(usual.workspace, "Odin", 1).await;
    for _ in 0..5 {
        world.queue(usual.workspace, usual.issue, usual.agent).await;
    }
    let last = world.queue(usual.workspace, usual.issue, other).await;
    let first = world.take(&usual.machine).await;
    world.take(&usual.machine).await;
    assert_eq!(world.take(&usual.machine).await.task_id, last);
    assert_eq!(world.claim(usual.machine.claim()).await, None);
    world.say(&first, done()).await.unwrap();
    assert!(world.claim(usual.machine.claim()).await.is_some());
    assert_eq!(world.claim(usual.machine.claim()).await, None);
}

/// Claims by many machines at once, on one store or on several that share a database.
pub(super) async fn claim_at_once<S: Subject>(worlds: &[&World<S>]) {
    let world = worlds[0];
    let workspace = world.store.workspace_create("many").await;
    let issue = world.store.issue_create(workspace, "x", Priority::None).await;
    let limits = BTreeMap::from([(1, 1), (2, 3), (3, 10), (4, 60)]);
    let mut agents = BTreeMap::new();
    for (number, limit) in &limits {
        let agent = world.agent(workspace, &format!("a{number}"), *limit).await;
        agents.insert(agent, *limit);
        for _ in 0..30 {
            world.queue(workspace, issue, agent).await;
        }
    }
    let mut machines = Vec::new();
    for number in 0..100 {
        machines.push(world.machine(workspace, &format!("m{number}"), &["claude_code"]).await);
    }
    // What the limits allow: 1 + 3 + 10 + 30. On PostgreSQL a claim may be passed over while another server
    // looks at the same agent; it asks again.
    let mut given = Vec::new();
    for _ in 0..20 {
        let claims = machines
            .iter()
            .enumerate()
            .map(|(at, machine)| worlds[at % worlds.len()].store.task_claim(machine.claim()));
        given.extend(join_all(claims).await.into_iter().filter_map(|claimed| claimed.unwrap()));
    }
    let tasks: BTreeSet<_> = given.iter().map(|claimed| claimed.task.id.clone()).collect();
    assert_eq!(tasks.len(), given.len(), "a task was given twice");
    let tokens: BTreeSet<_> = given.iter().map(|claimed| claimed.lease_token.clone()).collect();
    assert_eq!(tokens.len(), given.len(), "a token was given twice");
    for (agent, limit) in agents {
        let held = given.iter().filter(|claimed| claimed.task.agent_id == agent).count();
        assert_eq!(held, usize::try_from(limit.min(30)).unwrap(), "of an agent with limit {limit}");
    }
}

pub(super) async fn f_031_a_hundred_claims_at_once_give_each_task_once_and_keep_limits(
    world: World<impl Subject>,
) {
    claim_at_once(&[&world]).await;
}

pub(super) async fn a_claim_is_not_passed_over_because_of_many_agents_of_others(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    let busy = world.machine(usual.workspace, "m-2", &["codex"]).await;
    // More than one look at the database finds, and all of them before ours.
    for number in 0..100 {
        let agent = NewAgent {
            workspace_id: usual.workspace,
            name: format!("c{number}"),
            provider: "codex".to_owned(),
            runtime_id: None,
            concurrency: 1,
        };
        let agent = world.store.agent_create(agent).await;
        world.queue(usual.workspace, usual.issue, agent).await;
    }
    let ours = world.queue(usual.workspace, usual.issue, usual.agent).await;
    let claims = [busy.claim(), usual.machine.claim(), busy.claim()];
    let given = join_all(claims.map(|claim| world.claim(claim))).await;
    assert_eq!(given.iter().flatten().count(), 3);
    assert_eq!(given[1].as_ref().unwrap().task.id, ours);
}

pub(super) async fn f_095_a_waiting_task_counts_against_no_limit(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    let first = world.given(&usual).await;
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    assert_eq!(world.claim(usual.machine.claim()).await, None);
    world.say(&first, waiting()).await.unwrap();
    let second = world.take(&usual.machine).await;
    // A resume is let in beyond the limit: the process is there already.
    world.resume(&first, usual.machine.ids(), None).await.unwrap();
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    world.say(&second, done()).await.unwrap();
    assert_eq!(world.claim(usual.machine.claim()).await, None, "the resumed one takes the place");
}

pub(super) async fn only_the_agents_runtime_or_any_of_its_provider_is_given_a_task(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    let both = world.machine(usual.workspace, "m-2", &["codex", "claude_code"]).await;
    let codex = world.machine(usual.workspace, "m-3", &["codex"]).await;
    let (runtime, provider) = both.runtimes[0].clone();
    assert_eq!(provider, "codex");
    let own = NewAgent {
        workspace_id: usual.workspace,
        name: "own".to_owned(),
        provider,
        runtime_id: Some(runtime.clone()),
        concurrency: 1,
    };
    let own = world.store.agent_create(own).await;
    world.queue(usual.workspace, usual.issue, own).await;
    assert_eq!(world.claim(codex.claim()).await, None, "another runtime of that provider");
    assert_eq!(world.claim(usual.machine.claim()).await, None);
    let claimed = world.claim(both.claim()).await.unwrap();
    assert_eq!(claimed.task.runtime_id, Some(runtime));

    world.queue(usual.workspace, usual.issue, usual.agent).await;
    assert_eq!(world.claim(codex.claim()).await, None, "another provider");
    let claimed = world.claim(both.claim()).await.unwrap();
    assert_eq!(claimed.task.runtime_id.as_ref(), Some(&both.runtimes[1].0));
}

pub(super) async fn paused_and_archived_agents_get_nothing(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    world.store.agent_pause(usual.agent, true).await;
    assert_eq!(world.claim(usual.machine.claim()).await, None);
    world.store.agent_pause(usual.agent, false).await;
    assert!(world.claim(usual.machine.claim()).await.is_some());

    let actor = crate::store::Actor {
        external_id: "e-1".to_owned(),
        name: "Bjorn".to_owned(),
        description: String::new(),
    };
    let with = |actors| Registration {
        actors: Some(actors),
        ..world::registration(usual.workspace, "m-2", &["huskarl"])
    };
    let registered = world.register(with(vec![actor.clone()])).await;
    let agent = registered.agents[0].id;
    let machine = world.machine(usual.workspace, "m-2", &["huskarl"]).await;
    world.queue(usual.workspace, usual.issue, agent).await;
    world.register(with(Vec::new())).await;
    assert_eq!(world.claim(machine.claim()).await, None, "archived");
    world.register(with(vec![actor])).await;
    let claimed = world.claim(machine.claim()).await.unwrap();
    assert_eq!(claimed.facts.agent.external_id.as_deref(), Some("e-1"));
}

pub(super) async fn a_claim_repeated_with_its_word_gives_the_same_task_and_lease(
    world: World<impl Subject>,
) {
    let usual = world.usual(5).await;
    for _ in 0..3 {
        world.queue(usual.workspace, usual.issue, usual.agent).await;
    }
    let first = world.claim(usual.machine.claim_as("r-1")).await.unwrap();
    world.pass(10);
    let again = world.claim(usual.machine.claim_as("r-1")).await.unwrap();
    assert_eq!((&again.lease_token, &again.facts), (&first.lease_token, &first.facts));
    assert_eq!(TaskRecord { version: first.task.version, ..again.task }, first.task);
    let other = world.claim(usual.machine.claim_as("r-2")).await.unwrap();
    assert_ne!(first.task.id, other.task.id);
    // Another machine's word is another word.
    let machine = world.machine(usual.workspace, "m-2", &["claude_code"]).await;
    let others = world.claim(machine.claim_as("r-1")).await.unwrap();
    assert_ne!(first.task.id, others.task.id);
    // Also after the start; not after the end.
    world.say(&run(&first), (ostler_core::lease::Call::Start, Payload::None)).await.unwrap();
    let again = world.claim(usual.machine.claim_as("r-1")).await.unwrap();
    assert_eq!((&again.task.id, &again.lease_token), (&first.task.id, &first.lease_token));
    assert_eq!(again.task.machine.state, State::Running);
    world.say(&run(&first), done()).await.unwrap();
    assert_eq!(world.claim(usual.machine.claim_as("r-1")).await, None);
    // A lease that was taken is not given again: the task has a new one.
    world.pass(1_000);
    world.sweep().await;
    let again = world.claim(usual.machine.claim_as("r-2")).await.unwrap();
    assert_ne!(again.lease_token, other.lease_token);
}

pub(super) async fn two_claims_with_one_word_at_once_give_one_task(world: World<impl Subject>) {
    let usual = world.usual(5).await;
    for _ in 0..3 {
        world.queue(usual.workspace, usual.issue, usual.agent).await;
    }
    let claims = ["r-1", "r-2", "r-1", "r-1"].map(|it| world.claim(usual.machine.claim_as(it)));
    let given = join_all(claims).await;
    let of = |at: usize| given[at].as_ref().map(|it| (it.task.id.clone(), it.lease_token.clone()));
    assert_eq!((of(0), of(0)), (of(2), of(3)));
    assert_ne!(of(0), of(1));
    assert!(world.claim(usual.machine.claim()).await.is_some(), "the third is still there");
}

pub(super) async fn f_004_other_workspaces_see_nothing(world: World<impl Subject>) {
    let usual = world.usual(5).await;
    let other = world.store.workspace_create("other").await;
    let agent = world.agent(other, "Freya", 1).await;
    let issue = world.store.issue_create(other, "x", Priority::None).await;
    let machine = world.machine(other, "m-1", &["claude_code"]).await;
    assert!(machine.runtimes.iter().all(|(id, _)| usual.machine.runtimes[0].0 != *id));

    let mine = world.given(&usual).await;
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    assert_eq!(world.claim(machine.claim()).await, None);
    let mut call = mine.call(ostler_core::lease::Call::Start, Payload::None);
    call.workspace_id = other;
    let refused = world.store.task_call(call).await;
    assert!(matches!(refused, Err(StoreError::NotFound)), "{refused:?}");
    assert_eq!(world.state(&mine).await, State::Dispatched);
    for (workspace, issue, agent) in [
        (other, usual.issue, agent),
        (other, issue, usual.agent),
        (usual.workspace, issue, usual.agent),
    ] {
        let refused = world.store.task_queue(workspace, issue, agent).await;
        assert!(matches!(refused, Err(StoreError::NotFound)), "{refused:?}");
    }
    let found = world.store.machine_find(other, "m-2").await;
    assert!(matches!(found, Err(StoreError::NotFound)), "{found:?}");
    let cancelled = Input::Cancel;
    let theirs = world::Run { workspace_id: other, ..mine.clone() };
    let call = crate::store::TaskCall {
        workspace_id: other,
        task_id: theirs.task_id,
        what: crate::store::What::Input(cancelled),
        with: Payload::None,
    };
    assert!(matches!(world.store.task_call(call).await, Err(StoreError::NotFound)));
}

pub(super) async fn a_parked_task_can_be_claimed_when_its_time_came_also_if_the_clock_goes_back(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    let parked = world.given(&usual).await;
    let until = world.clock.now().after(std::time::Duration::from_secs(100));
    let failing = Failing { retryable: true, handed_back: false, not_before: Some(until) };
    let fail = (ostler_core::lease::Call::Fail(failing), Payload::Failure("limit".to_owned()));
    world.say(&parked, fail).await.unwrap();
    let later = world.queue(usual.workspace, usual.issue, usual.agent).await;
    assert_eq!(world.store.tasks_unpark().await.unwrap(), 0);
    let run = world.take(&usual.machine).await;
    assert_eq!(run.task_id, later, "the parked one does not stand in the way");
    world.say(&run, failure(false)).await.unwrap();
    assert_eq!(world.claim(usual.machine.claim()).await, None);
    world.pass(100);
    assert_eq!(world.store.tasks_unpark().await.unwrap(), 1);
    assert_eq!(world.store.tasks_unpark().await.unwrap(), 0);
    // A pause that was over does not begin again, and what is behind it is not blocked.
    world.pass(-50);
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    assert_eq!(world.take(&usual.machine).await.task_id, parked.task_id);
}
