//! Who is let in: tokens and versions (F-002 to F-004, F-009 to F-017).

use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::{Answer, Claimed, Machine, Patience};

/// A revoked token stops working within this.
const REVOKED_WITHIN: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn is_upgrade(answer: Answer, minimum: &str) {
    let body = answer.expect(426);
    assert_eq!(body["minimum_version"], minimum, "{body}");
    let url = body["download_url"].as_str().unwrap();
    assert!(url.starts_with("https://"), "{url}");
}

on_both! {
    async fn f_003_an_expired_token_is_401_at_once_also_during_a_run(world) {
        let mut machine = world.machine("m-1");
        machine.token = world.new_token(Some(1)).await.1;
        machine.register(&["claude_code"]).await;
        let agent = world.agent("Freya").await;
        world.issue("Long", agent).await;
        world.advance(DAY - Duration::from_secs(100));
        machine.beat().await.expect(200);
        let task = machine.claim().await;
        machine.start(&task).await;
        world.advance(Duration::from_secs(101));
        let line = json!([{ "seq": 1, "type": "system", "content": "x" }]);
        machine.say(&task, line.clone()).await.expect(401);
        machine.at(&task, "complete", json!({ "result": {} })).await.expect(401);
        machine.beat().await.expect(401);
        // The run is not lost: the machine goes on with a new token and the same lease.
        assert_eq!(world.status(&task).await, "running");
        machine.token = world.new_token(Some(1)).await.1;
        machine.say(&task, line).await.expect(202);
        world.stop().await;
    }

    async fn f_003_a_revoked_token_is_401_within_five_seconds_on_every_server_also_during_a_run(world) {
        let mut world = world;
        let (_, token) = world.new_token(None).await;
        let mut machine = world.machine("m-1");
        machine.token = token;
        let mut bases = vec![machine.base.clone()];
        if world.is_postgres() {
            bases.push(format!("http://{}", world.another_server().await));
        }
        machine.register(&["claude_code"]).await;
        let agent = world.agent("Freya").await;
        world.issue("Long", agent).await;
        let task = machine.claim().await;
        machine.start(&task).await;
        // Each server has seen it, and may remember it.
        for base in &bases {
            Machine { base: base.clone(), ..machine.clone() }.start(&task).await;
        }
        // As a server does that these do not hear of: each must find it out by itself.
        let revoke = "UPDATE tokens SET revoked_at = 1 WHERE name = 'another'";
        assert_eq!(crate::database::sql(&world.database, revoke).await, 1);
        let count = "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + 1 AS TEXT) WHERE name = 'tokens'";
        assert_eq!(crate::database::sql(&world.database, count).await, 1);
        let revoked = Instant::now();
        for base in &bases {
            let there = Machine { base: base.clone(), ..machine.clone() };
            let patience = Patience::new();
            loop {
                let sent = revoked.elapsed();
                if there.at(&task, "start", json!({})).await.status == 401 {
                    break;
                }
                assert!(sent < REVOKED_WITHIN, "served what was sent after {sent:?}");
                patience.wait("the end of a revoked token").await;
            }
            there.beat().await.expect(401);
            there.ask().await.expect(401);
            let line = json!([{ "seq": 1, "type": "system", "content": "x" }]);
            there.say(&task, line).await.expect(401);
        }
        assert_eq!(world.task(&task.id).await["lines"], 0);
        world.stop().await;
    }

    async fn f_005_f_059_tokens_and_leases_are_in_no_row_and_no_log(world) {
        crate::shown::capture();
        let mut machine = world.machine("m-1");
        machine.token = world.new_token(None).await.1;
        machine.register(&["claude_code"]).await;
        let agent = world.agent("Freya").await;
        world.issue("One", agent).await;
        let task = machine.claim().await;
        machine.start(&task).await;
        machine.at(&task, "cancel-ack", json!({})).await.expect(409);
        let secrets = [machine.token.as_str(), &task.lease, &world.people];
        crate::shown::nowhere(&world.database, &secrets, &machine.token[..12]).await;
        world.stop().await;
    }

    async fn f_004_a_task_of_another_workspace_is_like_one_that_does_not_exist(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        world.issue("Ours", agent).await;
        let task = machine.claim().await;
        let (_, token) = world.other("other").await;
        let stranger = Machine { token, ..machine.clone() };
        stranger.register(&["claude_code"]).await;
        let unheard = Claimed { id: "01kyt0000000000000000000zz".to_owned(), ..task.clone() };
        let body = json!({ "messages": [{ "seq": 1, "type": "system" }], "daemon_id": "m-1",
            "waiting_for": "input", "summary": "x" });
        for call in ["start", "messages", "session", "complete", "fail", "cancel-ack", "await", "resume"] {
            let theirs = stranger.at(&task, call, body.clone()).await;
            let nobodys = machine.at(&unheard, call, body.clone()).await;
            assert_eq!((theirs.status, &theirs.body), (404, &nobodys.body), "{call}");
            assert_eq!(nobodys.status, 404, "{call}");
            assert_eq!(world.status(&task).await, "dispatched", "after {call}");
        }
        machine.start(&task).await;
        world.stop().await;
    }

    async fn f_002_f_012_the_token_is_judged_before_the_version(world) {
        let mut machine = world.machine("m-1");
        machine.version = Some("0.1.0");
        is_upgrade(machine.beat().await, "0.2.0");
        machine.token = "fdt_0123456789abcdefghijklmnopqrstuv".to_owned();
        machine.beat().await.expect(401);
        machine.version = None;
        machine.beat().await.expect(401);
        machine.client = Some("unheard/9.9.9");
        machine.beat().await.expect(401);
        machine.token = world.token.clone();
        machine.beat().await.expect(426);
        world.stop().await;
    }

    async fn f_009_f_010_f_011_f_014_f_015_f_016_f_017_a_version_is_held_against_its_clients_minimum(world) {
        let mut machine = world.machine("m-1");
        machine.register(&["claude_code"]).await;
        machine.capabilities = None;
        for good in ["0.2.0", "0.2.1", "0.10.0", "1.0", "12.0.0"] {
            machine.version = Some(good);
            machine.beat().await.expect(200);
            assert_eq!(machine.ask().await.status, 204);
        }
        for bad in ["0.1.0", "0.1.99", "0.0.1"] {
            machine.version = Some(bad);
            let answer = machine.beat().await;
            let message = answer.body["message"].as_str().unwrap().to_owned();
            assert!(message.contains(bad) && message.contains("0.2.0"), "{message}");
            is_upgrade(answer, "0.2.0");
        }
        machine.version = None;
        machine.beat().await.expect(426);
        machine.version = Some("yesterday");
        machine.beat().await.expect(426);
        // Another client's numbers are its own, whatever it says besides.
        machine.client = Some("huskarld/0.1.0");
        for version in [None, Some("0.0.1")] {
            machine.version = version;
            machine.beat().await.expect(200);
        }
        machine.client = Some("huskarld/0.0.9");
        is_upgrade(machine.beat().await, "0.1.0");
        machine.version = Some("0.3.0");
        for unknown in ["unheard/9.9.9", "huskarld", "", "/", "huskarld/"] {
            machine.client = Some(unknown);
            assert_eq!(machine.beat().await.status, 426, "{unknown:?}");
        }
        world.stop().await;
    }
}
