//! People who do the same at the same moment, on two servers where the database allows it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests"
)]

#[macro_use]
mod common;

use common::World;
use futures_util::future::join_all;
use serde_json::{Value, json};

/// How many do it.
const PEOPLE: usize = 8;
/// How often it is tried: what two at once do wrong they do wrong often, not always.
const ROUNDS: usize = 4;

/// Everybody sends this, each to another server of the two; the statuses of the answers.
async fn all_at_once(world: &World, method: &str, path: &str, body: Option<Value>) -> Vec<u16> {
    let addresses = world.addresses();
    let send = |one: usize| {
        let url = format!("http://{}/api/v1{path}", addresses[one % addresses.len()]);
        let request = world.client.request(method.parse().unwrap(), url).bearer_auth(&world.token);
        let request = body.iter().fold(request, |request, body| request.json(body));
        async move { request.send().await.unwrap().status().as_u16() }
    };
    join_all((0..PEOPLE).map(send)).await
}

async fn open_tasks(world: &World, issue: &str) -> usize {
    let open = |task: &&Value| {
        ["queued", "dispatched", "running", "waiting"].contains(&task["status"].as_str().unwrap())
    };
    world.tasks_of(issue).await.iter().filter(open).count()
}

on_both! {
    async fn an_issue_that_everybody_assigns_at_once_has_one_task(world) {
        let mut world = world;
        world.one_more_where_possible().await;
        let agent = world.agent("Freya", "claude_code").await;
        for _ in 0..ROUNDS {
            let issue = world.post("/issues", json!({ "title": "One" })).await["id"].clone();
            let issue = issue.as_str().unwrap();
            let body = json!({ "assignee_type": "agent", "assignee_id": agent });
            let statuses = all_at_once(&world, "PATCH", &format!("/issues/{issue}"), Some(body)).await;
            assert!(statuses.iter().all(|it| *it == 200), "{statuses:?}");
            assert_eq!(open_tasks(&world, issue).await, 1);
        }
        world.stop().await;
    }

    async fn of_two_ended_tasks_of_an_agent_on_an_issue_one_is_retried(world) {
        let mut world = world;
        world.one_more_where_possible().await;
        let agent = world.agent("Freya", "claude_code").await;
        let issue = world.issue_for("One", agent).await;
        let path = format!("/issues/{issue}");
        let nobody = json!({ "assignee_type": null, "assignee_id": null });
        world.patch(&path, nobody.clone()).await;
        world.patch(&path, json!({ "assignee_type": "agent", "assignee_id": agent })).await;
        world.patch(&path, nobody).await;
        let tasks = world.tasks_of(&issue).await;
        assert_eq!((tasks.len(), open_tasks(&world, &issue).await), (2, 0));
        for _ in 0..ROUNDS {
            let retries = tasks.iter().map(|task| {
                let path = format!("/tasks/{}/retry", task["id"].as_str().unwrap());
                let world = &world;
                async move { all_at_once(world, "POST", &path, None).await }
            });
            let statuses = join_all(retries).await.concat();
            assert!(statuses.iter().all(|it| matches!(it, 200 | 409)), "{statuses:?}");
            assert_eq!(open_tasks(&world, &issue).await, 1);
            for task in world.tasks_of(&issue).await.iter().filter(|it| it["status"] == "queued") {
                let path = format!("/tasks/{}/cancel", task["id"].as_str().unwrap());
                assert_eq!(world.call("POST", &path, None).await.status, 200);
            }
        }
        world.stop().await;
    }
}
