//! A run that waits for a person (F-093 to F-101).

use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Claimed, Machine, World, seconds};

const QUESTION: &str = "Send the reply to Kari Nordmann?";

/// A machine, an agent that runs one thing at a time, and its run that waits; the issue.
async fn waiting(world: &World) -> (Machine, i64, String, Claimed) {
    let machine = world.registered("kh-mac").await;
    let freya = json!({ "name": "Freya", "provider": "claude_code", "concurrency": 1 });
    let agent = world.agent_with(freya).await;
    let issue = world.issue("Reply", agent).await;
    let task = machine.claim().await;
    machine.start(&task).await;
    let body = json!({ "waiting_for": "approval", "summary": QUESTION });
    let told = machine.at(&task, "await", body).await.expect(200);
    assert_eq!(told["status"], "waiting");
    seconds(&told["waiting_since"]);
    (machine, agent, issue, task)
}

on_both! {
    async fn f_093_another_kind_of_waiting_is_422_and_the_run_goes_on(world) {
        let machine = world.registered("kh-mac").await;
        let agent = world.agent("Freya").await;
        world.issue("Reply", agent).await;
        let task = machine.claim().await;
        machine.start(&task).await;
        for waiting_for in [json!("coffee"), json!(""), Value::Null, json!(7), json!("APPROVAL")] {
            let body = json!({ "waiting_for": waiting_for, "summary": QUESTION });
            let told = machine.at(&task, "await", body).await.expect(422);
            assert!(told["errors"]["waiting_for"].is_array(), "{told}");
            assert_eq!(world.status(&task).await, "running");
        }
        let body = json!({ "waiting_for": "input", "summary": "Which one?" });
        assert_eq!(machine.at(&task, "await", body).await.expect(200)["status"], "waiting");
        world.stop().await;
    }

    async fn f_094_f_097_a_waiting_task_has_no_lease_and_its_issue_shows_for_what_it_waits(world) {
        let (machine, _, issue, task) = waiting(&world).await;
        let shown = world.show_issue(&issue).await["waiting"].clone();
        assert_eq!(
            json!([shown["task_id"], shown["waiting_for"], shown["summary"], shown["decision"]]),
            json!([task.id, "approval", QUESTION, null])
        );
        seconds(&shown["since"]);
        assert_eq!(world.get("/approvals").await[0]["task_id"], *task.id);
        assert_eq!(world.task(&task.id).await["lease_expires_at"], Value::Null);
        let line = json!({ "messages": [{ "seq": 1, "type": "system", "content": "x" }] });
        let calls = [("start", json!({})), ("messages", line), ("session", json!({ "session_id": "s" })),
            ("complete", json!({ "result": {} })), ("fail", json!({ "error": "x" })),
            ("cancel-ack", json!({}))];
        for (call, body) in calls {
            machine.at(&task, call, body).await.refused(409, "lease_lost");
            assert_eq!(world.status(&task).await, "waiting", "after {call}");
        }
        // Also after it was resumed, the old token is none.
        let resumed = machine.resume(&task).await.expect(200);
        assert_eq!(json!([resumed["status"], resumed["cancel_requested"]]), json!(["running", false]));
        seconds(&resumed["lease_expires_at"]);
        let lease = resumed["lease_token"].as_str().unwrap().to_owned();
        assert_ne!(lease, task.lease);
        machine.at(&task, "start", json!({})).await.refused(409, "lease_lost");
        assert_eq!(world.show_issue(&issue).await["waiting"], Value::Null);
        let task = Claimed { lease, ..task };
        assert_eq!(machine.complete(&task, json!({})).await["status"], "completed");
        world.stop().await;
    }

    async fn f_080_f_095_f_096_waiting_holds_no_place_is_swept_by_nobody_and_is_not_billed(world) {
        let (machine, agent, issue, task) = waiting(&world).await;
        // The agent runs one at a time, and has a place.
        world.issue("Meanwhile", agent).await;
        machine.work_off(json!({})).await;
        world.advance(Duration::from_secs(3 * 24 * 3_600));
        machine.beat().await.expect(200);
        assert_eq!(machine.ask().await.status, 204);
        assert_eq!(world.status(&task).await, "waiting");
        let lease = machine.resume(&task).await.expect(200)["lease_token"].clone();
        let task = Claimed { lease: lease.as_str().unwrap().to_owned(), ..task };
        machine.complete(&task, json!({})).await;
        assert_eq!(world.show_issue(&issue).await["spent_minutes"], 1);
        world.stop().await;
    }

    async fn f_098_f_099_f_100_only_the_machine_that_ran_it_resumes_what_waits(world) {
        let (machine, agent, _, task) = waiting(&world).await;
        let path = format!("tasks/{}/resume", task.id);
        let other = world.registered("other").await;
        assert_eq!(other.resume(&task).await.status, 409);
        let nobody = machine.post(&path, None, json!({ "daemon_id": "unheard" })).await;
        assert_eq!(nobody.status, 409);
        assert_eq!(machine.post(&path, None, json!({})).await.status, 422);
        assert_eq!(world.status(&task).await, "waiting");
        let resumed = machine.resume(&task).await.expect(200);
        assert_eq!(resumed["status"], "running");
        machine.resume(&task).await.refused(409, "bad_state");
        assert_eq!(world.status(&task).await, "running");
        let again = Claimed { lease: resumed["lease_token"].as_str().unwrap().to_owned(), ..task.clone() };
        machine.complete(&again, json!({})).await;
        machine.resume(&task).await.refused(409, "bad_state");
        // One that was never started, and one that nobody has.
        world.issue("Dispatched", agent).await;
        let dispatched = machine.claim().await;
        machine.resume(&dispatched).await.refused(409, "bad_state");
        machine.at(&dispatched, "fail", json!({ "error": "x", "retryable": true })).await.expect(200);
        assert_eq!(machine.resume(&dispatched).await.status, 409);
        assert_eq!(world.status(&dispatched).await, "queued");
        world.stop().await;
    }

    async fn f_101_cancelling_a_waiting_run_cancels_it_at_once(world) {
        let (machine, _, issue, task) = waiting(&world).await;
        let told = world.api("POST", &format!("/tasks/{}/cancel", task.id), None).await;
        assert_eq!(told["status"], "canceled");
        assert_eq!(machine.resume(&task).await.status, 409);
        assert_eq!(world.status(&task).await, "canceled");
        assert_eq!(world.show_issue(&issue).await["waiting"], Value::Null);
        world.stop().await;
    }

    async fn f_097_a_decision_reaches_the_machine_with_heartbeat_and_claim_until_it_resumes(world) {
        let (machine, _, _, task) = waiting(&world).await;
        let decision = json!({ "decision": "approved", "note": "Go on" });
        world.make(&format!("/tasks/{}/decision", task.id), decision).await;
        let expected = json!([{ "task_id": task.id, "decision": "approved", "note": "Go on" }]);
        for _ in 0..2 {
            assert_eq!(machine.beat().await.expect(200)["decisions"], expected);
        }
        let other = world.agent("Odin").await;
        world.issue("More", other).await;
        let asked = machine.ask().await.expect(200);
        assert_eq!(asked["decisions"], expected, "{asked}");
        let stranger = world.registered("other").await;
        let told = stranger.beat().await.expect(200);
        assert!(told["decisions"].as_array().is_none_or(Vec::is_empty), "{told}");
        machine.resume(&task).await.expect(200);
        let told = machine.beat().await.expect(200);
        assert!(told["decisions"].as_array().is_none_or(Vec::is_empty), "{told}");
        world.stop().await;
    }
}
