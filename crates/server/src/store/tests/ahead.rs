//! What claims are given that was read ahead for them: nothing that was changed since, by whomever. Each test is done
//! on SQLite and on PostgreSQL, with two stores.

use std::time::{Duration, Instant};

use ostler_core::lease::{Call, Failing, Priority, State};

use super::guesses::{Two, on_both};
use super::subject::Subject as _;
use super::world::{Usual, World, completion, run};
use crate::metrics::{ByWhat, Word};
use crate::store::sql::SqlStore;
use crate::store::{Completion, Payload, SessionReport};

on_both!(
    claims_that_come_quickly_are_given_what_was_read_before_in_the_order_of_the_queue,
    what_is_more_urgent_is_given_first,
    what_a_failure_puts_back_is_given_first,
    f_035_a_run_is_told_what_the_run_before_it_on_its_issue_reported,
    f_033_a_full_agents_next_task_is_not_passed_over_when_it_has_room_again,
    a_person_who_changes_an_issue_is_heard,
    f_031_what_another_server_gave_away_is_not_given_again,
    what_another_server_queued_is_given_first,
    an_agent_that_another_server_paused_gets_nothing,
);

/// How often claims were given what was read before.
fn ahead(world: &World<SqlStore>) -> u64 {
    let word = ByWhat { what: Word("ahead") };
    world.store.shared().metrics.guesses.get_or_create(&word).get()
}

/// A world in which `tasks` more are queued, for issues of their own, and something is read ahead.
async fn rushed(world: &World<SqlStore>, concurrency: i64, tasks: usize) -> (Usual, Vec<String>) {
    world.store.shared().ahead.set_age_max(Duration::from_secs(600));
    let usual = world.usual(concurrency).await;
    let mut queued = Vec::new();
    for _ in 0..tasks + 2 {
        let issue = world.store.issue_create(usual.workspace, "one of many", Priority::None).await;
        queued.push(world.queue(usual.workspace, issue, usual.agent).await);
    }
    for task in queued.drain(..2) {
        assert_eq!(world.take(&usual.machine).await.task_id, task);
    }
    assert_eq!(ahead(world), 0);
    assert!(!world.store.shared().ahead.is_empty(), "something is left");
    (usual, queued)
}

async fn claims_that_come_quickly_are_given_what_was_read_before_in_the_order_of_the_queue(
    two: Two,
) {
    let world = &two.own;
    let (usual, queued) = rushed(world, 100, 20).await;
    for task in queued {
        assert_eq!(world.take(&usual.machine).await.task_id, task);
    }
    assert!(ahead(world) > 10, "{}", ahead(world));
    assert!(world.claim(usual.machine.claim()).await.is_none());
}

async fn what_is_more_urgent_is_given_first(two: Two) {
    let world = &two.own;
    let (usual, _) = rushed(world, 100, 3).await;
    let urgent = world.store.issue_create(usual.workspace, "now", Priority::Urgent).await;
    let task = world.queue(usual.workspace, urgent, usual.agent).await;
    assert_eq!(world.take(&usual.machine).await.task_id, task);
}

async fn what_a_failure_puts_back_is_given_first(two: Two) {
    let world = &two.own;
    let (usual, queued) = rushed(world, 100, 4).await;
    let held = world.take(&usual.machine).await;
    assert_eq!((held.task_id.as_str(), ahead(world)), (queued[0].as_str(), 1));
    world.say(&held, (Call::Start, Payload::None)).await.unwrap();
    let failing = Call::Fail(Failing { retryable: true, handed_back: false, not_before: None });
    world.say(&held, (failing, Payload::None)).await.unwrap();
    assert_eq!(world.state(&held).await, State::Queued);
    assert_eq!(world.take(&usual.machine).await.task_id, held.task_id);
}

async fn f_035_a_run_is_told_what_the_run_before_it_on_its_issue_reported(two: Two) {
    let world = &two.own;
    let (usual, _) = rushed(world, 100, 1).await;
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    world.take(&usual.machine).await;
    let first = world.take(&usual.machine).await;
    assert!(!world.store.shared().ahead.is_empty(), "the second is left");
    world.say(&first, (Call::Start, Payload::None)).await.unwrap();
    let session = SessionReport { session_id: Some("s-1".to_owned()), work_dir: None };
    let done = Completion {
        session: session.clone(),
        comment: Some("Half of it.".to_owned()),
        ..Completion::default()
    };
    world.say(&first, completion(done)).await.unwrap();
    let second = world.claim(usual.machine.claim()).await.unwrap();
    assert_eq!(second.facts.session_id, session.session_id);
    assert_eq!(second.facts.comments.len(), 1);
}

async fn f_033_a_full_agents_next_task_is_not_passed_over_when_it_has_room_again(two: Two) {
    let world = &two.own;
    let (usual, queued) = rushed(world, 4, 3).await;
    // Another agent's, which are less urgent.
    let other = world.agent(usual.workspace, "Odin", 100).await;
    for _ in 0..3 {
        let issue = world.store.issue_create(usual.workspace, "less urgent", Priority::None).await;
        world.queue(usual.workspace, issue, other).await;
    }
    let first = world.take(&usual.machine).await;
    let second = world.take(&usual.machine).await;
    assert_eq!([first.task_id.as_str(), &second.task_id], [queued[0].as_str(), &queued[1]]);
    let of_other = world.claim(usual.machine.claim()).await.unwrap();
    assert_eq!(of_other.task.agent_id, other, "the first agent is full");
    assert!(!world.store.shared().ahead.is_empty(), "there are others of that one");
    world.say(&first, (Call::Start, Payload::None)).await.unwrap();
    world.say(&first, super::world::done()).await.unwrap();
    assert_eq!(world.take(&usual.machine).await.task_id, queued[2]);
}

async fn a_person_who_changes_an_issue_is_heard(two: Two) {
    let world = &two.own;
    let (usual, _) = rushed(world, 100, 3).await;
    let changed = world.store.write(|tx| {
        Box::pin(async move {
            let sql = "UPDATE issues SET title = 'another' WHERE id > 0";
            Ok(tx.conn.execute(sql, Vec::new()).await?)
        })
    });
    assert!(changed.await.unwrap() > 0);
    let claimed = world.claim(usual.machine.claim()).await.unwrap();
    assert_eq!(claimed.facts.title, "another");
}

async fn f_031_what_another_server_gave_away_is_not_given_again(two: Two) {
    let Two { own, other, .. } = &two;
    let (usual, queued) = rushed(own, 100, 4).await;
    let mut given = Vec::new();
    for world in [other, own, other, own] {
        given.push(run(&world.claim(usual.machine.claim()).await.unwrap()).task_id);
    }
    given.sort();
    assert_eq!(given, queued);
    assert!(own.claim(usual.machine.claim()).await.is_none());
}

async fn what_another_server_queued_is_given_first(two: Two) {
    let Two { own, other, .. } = &two;
    let (usual, _) = rushed(own, 100, 3).await;
    let urgent = other.store.issue_create(usual.workspace, "now", Priority::Urgent).await;
    let task = other.queue(usual.workspace, urgent, usual.agent).await;
    // On PostgreSQL it is told so a little later.
    let until = Instant::now() + Duration::from_secs(20);
    while own.store.is_postgres() && !own.store.shared().ahead.is_empty() {
        assert!(Instant::now() < until, "it was not told");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(own.take(&usual.machine).await.task_id, task);
}

async fn an_agent_that_another_server_paused_gets_nothing(two: Two) {
    let Two { own, other, .. } = &two;
    let (usual, _) = rushed(own, 100, 3).await;
    other.store.agent_pause(usual.agent, true).await;
    assert!(own.claim(usual.machine.claim()).await.is_none());
}
