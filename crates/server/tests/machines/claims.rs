//! Who gets which task, under many claims at once (F-031 to F-033, F-059).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;

use crate::world::{Answer, Claimed, Machine, World};

/// A claim that waits for nobody is answered within this, on a busy machine too.
const NOT_WAITING: Duration = Duration::from_secs(20);

/// What a claim was given, if anything.
fn taken(answer: &Answer) -> Option<Claimed> {
    assert!(matches!(answer.status, 200 | 204), "{answer:?}");
    let data = &answer.body["data"];
    let text = |name: &str| data[name].as_str().unwrap().to_owned();
    (answer.status == 200).then(|| Claimed {
        id: text("id"),
        lease: text("lease_token"),
        envelope: data.clone(),
    })
}

/// Claims at the same moment; what was given.
async fn claim_at_once(machines: Vec<Machine>, each: usize) -> Vec<Claimed> {
    let claims = machines.into_iter().map(|machine| {
        tokio::spawn(async move {
            let claims = (0..each).map(|_| {
                let machine = machine.clone();
                tokio::spawn(async move { machine.ask().await })
            });
            let mut given = Vec::new();
            for claim in claims.collect::<Vec<_>>() {
                let answer = claim.await.unwrap();
                given.extend(taken(&answer));
            }
            given
        })
    });
    let mut given = Vec::new();
    for claim in claims.collect::<Vec<_>>() {
        given.extend(claim.await.unwrap());
    }
    given
}

async fn machines(world: &World, bases: &[String]) -> Vec<Machine> {
    let mut machines = Vec::new();
    for number in 0..6 {
        let mut machine = world.registered(&format!("m-{number}")).await;
        bases[number % bases.len()].clone_into(&mut machine.base);
        machines.push(machine);
    }
    machines
}

on_both! {
    async fn f_031_f_059_claims_at_the_same_moment_never_give_one_task_twice(world) {
        let mut world = world;
        let mut bases = vec![format!("http://{}", world.address)];
        if world.is_postgres() {
            bases.push(format!("http://{}", world.another_server().await));
        }
        let agent = world.agent("Freya").await;
        for number in 0..15 {
            world.issue(&format!("Number {number}"), agent).await;
        }
        let machines = machines(&world, &bases).await;
        let mut given = claim_at_once(machines.clone(), 4).await;
        // Who came away empty may have been passed over while others were being given: ask on.
        let rest = machines[0].clone();
        while given.len() < 15 {
            given.push(rest.claim().await);
        }
        assert_eq!(rest.ask().await.status, 204);
        let tasks: BTreeSet<_> = given.iter().map(|it| it.id.clone()).collect();
        let leases: BTreeSet<_> = given.iter().map(|it| it.lease.clone()).collect();
        assert_eq!((given.len(), tasks.len(), leases.len()), (15, 15, 15));
        world.stop().await;
    }

    async fn f_033_an_agent_at_its_limit_is_passed_over_also_by_claims_at_once(world) {
        let busy = json!({ "name": "Busy", "provider": "claude_code", "concurrency": 2 });
        let busy = world.agent_with(busy).await;
        let free = world.agent("Free").await;
        for number in 0..6 {
            world.issue(&format!("Busy {number}"), busy).await;
        }
        world.issue("Free", free).await;
        let bases = [format!("http://{}", world.address)];
        let machines = machines(&world, &bases).await;
        let mut given = claim_at_once(machines.clone(), 3).await;
        while let Some(task) = taken(&machines[0].ask().await) {
            given.push(task);
        }
        let mut by_agent = BTreeMap::new();
        for task in &given {
            let name = task.envelope["agent"]["name"].as_str().unwrap();
            *by_agent.entry(name).or_insert(0) += 1;
        }
        assert_eq!(by_agent, BTreeMap::from([("Busy", 2), ("Free", 1)]));
        // A place that is free again is given again.
        let of_busy = given.iter().find(|it| it.envelope["agent"]["name"] == "Busy").unwrap();
        machines[0].start(of_busy).await;
        machines[0].complete(of_busy, json!({})).await;
        assert_eq!(machines[3].claim().await.envelope["agent"]["name"], "Busy");
        assert_eq!(machines[3].ask().await.status, 204);
        world.stop().await;
    }

    async fn f_032_a_claim_does_not_wait_for_another_claims_row(world) {
        // One writer at a time is how SQLite works; there is no row to wait for.
        if !world.is_postgres() {
            return world.stop().await;
        }
        let machine = world.registered("m-1").await;
        let (first, second) = (world.agent("Freya").await, world.agent("Odin").await);
        let held = world.issue("Held by another claim", first).await;
        let free = world.issue("Of another agent", second).await;
        let held = world.get(&format!("/tasks?issue={held}")).await[0]["id"].clone();

        // A claim that is under way, and does not end, whatever of its task a claim locks.
        let pool = sqlx::PgPool::connect(&world.database).await.unwrap();
        let mut claim = pool.begin().await.unwrap();
        let lock = "SELECT t.id FROM tasks t JOIN agents a ON a.id = t.agent_id WHERE t.id = $1 FOR UPDATE";
        let rows = sqlx::query(lock).bind(held.as_str().unwrap()).fetch_all(&mut *claim).await;
        assert_eq!(rows.unwrap().len(), 1);
        let given = tokio::time::timeout(NOT_WAITING, machine.claim()).await;
        let given = given.expect("an answer while another claim is under way");
        assert_eq!(given.envelope["issue"]["identifier"], *free);
        let asked = tokio::time::timeout(NOT_WAITING, machine.ask()).await.unwrap();
        assert_eq!(asked.status, 204, "{asked:?}");
        claim.rollback().await.unwrap();
        assert_eq!(json!(machine.claim().await.id), held);
        pool.close().await;
        world.stop().await;
    }
}
