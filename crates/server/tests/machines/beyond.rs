//! Repeats, states and what goes beyond the document: request ids, long polls, pauses.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::{Claimed, Machine, Patience, SOON, World};

/// A long poll that a person's assignment ends is over long before its own end.
const WAIT_SECONDS: u64 = 25;

async fn dispatched(world: &World) -> (Machine, i64, Claimed) {
    let machine = world.registered("m-1").await;
    let agent = world.agent("Freya").await;
    world.issue("One", agent).await;
    let task = machine.claim().await;
    (machine, agent, task)
}

fn line(seq: u32) -> Value {
    json!([{ "seq": seq, "type": "system", "content": "cloning" }])
}

on_both! {
    // F-027: the answer to a claim can be lost without losing or doubling work.
    async fn f_031_a_claim_that_is_repeated_with_its_request_id_gives_the_same_task_and_lease(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        world.issue("One", agent).await;
        world.issue("Two", agent).await;
        let ask = async |request: &str| {
            let body = json!({ "daemon_id": "m-1", "request_id": request });
            machine.post("tasks/claim", None, body).await.expect(200)["data"].take()
        };
        let first = ask("r-1").await;
        for _ in 0..2 {
            let again = ask("r-1").await;
            let same = [&again["id"], &again["lease_token"]];
            assert_eq!(same, [&first["id"], &first["lease_token"]]);
        }
        let second = ask("r-2").await;
        assert_ne!(second["id"], first["id"]);
        let body = json!({ "daemon_id": "m-1", "request_id": "r-3" });
        assert_eq!(machine.post("tasks/claim", None, body).await.status, 204);
        let lease = first["lease_token"].as_str().unwrap().to_owned();
        let id = first["id"].as_str().unwrap().to_owned();
        machine.start(&Claimed { id, lease, envelope: Value::Null }).await;
        world.stop().await;
    }

    // A machine that declares it starts within a minute, or has lost the answer: that costs no attempt.
    async fn a_claim_that_is_not_started_in_time_is_given_away_again_where_the_machine_declares_it(world) {
        let usual = world.registered("m-1").await;
        let declares = Machine { capabilities: Some("start_deadline"), ..usual.clone() };
        let agent = world.agent("Freya").await;
        world.issue("One", agent).await;
        world.issue("Two", agent).await;
        let (soon, late) = (declares.claim().await, usual.claim().await);
        // The lease is longer.
        world.advance(Duration::from_secs(61));
        let patience = Patience::new();
        while world.status(&soon).await != "queued" {
            patience.wait("a sweep").await;
        }
        assert_eq!(world.status(&late).await, "dispatched");
        declares.at(&soon, "start", json!({})).await.refused(409, "lease_expired");
        usual.start(&late).await;
        usual.beat().await.expect(200);
        let again = declares.claim().await;
        assert_eq!((&again.id, &world.task(&again.id).await["attempts"]), (&soon.id, &json!(1)));
        // Once it runs it has the whole lease.
        declares.start(&again).await;
        world.advance(Duration::from_secs(61));
        declares.start(&again).await;
        world.stop().await;
    }

    async fn a_resume_that_is_repeated_with_its_request_id_gives_the_same_lease(world) {
        let (machine, _, task) = dispatched(&world).await;
        machine.start(&task).await;
        let question = json!({ "waiting_for": "input", "summary": "Which one?" });
        machine.at(&task, "await", question).await.expect(200);
        let path = format!("tasks/{}/resume", task.id);
        let resume = async |request: &str| {
            let body = json!({ "daemon_id": "m-1", "request_id": request });
            machine.post(&path, None, body).await
        };
        let first = resume("r-1").await.expect(200)["lease_token"].take();
        assert_eq!(resume("r-1").await.expect(200)["lease_token"], first);
        resume("r-2").await.refused(409, "bad_state");
        let task = Claimed { lease: first.as_str().unwrap().to_owned(), ..task };
        machine.complete(&task, json!({})).await;
        resume("r-1").await.refused(409, "bad_state");
        world.stop().await;
    }

    async fn f_026_a_long_poll_is_answered_when_work_appears_and_204_when_none_does(world) {
        let mut machine = world.registered("m-1").await;
        machine.capabilities = Some("streaming,resume,cancel,thread,long_poll");
        let agent = world.agent("Freya").await;
        let body = json!({ "daemon_id": "m-1", "wait_seconds": 1 });
        let none = machine.post("tasks/claim", None, body).await;
        assert_eq!((none.status, none.bytes), (204, 0));
        let body = json!({ "daemon_id": "m-1", "wait_seconds": WAIT_SECONDS });
        let waiting = machine.clone();
        let poll = tokio::spawn(async move { waiting.post("tasks/claim", None, body).await });
        // The time is counted from when there is work: whether the poll waits already does not matter.
        let issue = world.issue("Appears", agent).await;
        let begun = Instant::now();
        let answer = tokio::time::timeout(SOON, poll).await.unwrap().unwrap().expect(200);
        assert_eq!(answer["data"]["issue"]["identifier"], *issue);
        assert!(begun.elapsed() < Duration::from_secs(WAIT_SECONDS - 5), "{:?}", begun.elapsed());
        // A client that does not declare it is answered at once, whatever it sends.
        machine.capabilities = None;
        let begun = Instant::now();
        let body = json!({ "daemon_id": "m-1", "wait_seconds": WAIT_SECONDS });
        assert_eq!(machine.post("tasks/claim", None, body).await.status, 204);
        assert!(begun.elapsed() < Duration::from_secs(WAIT_SECONDS - 5), "{:?}", begun.elapsed());
        world.stop().await;
    }

    // F-003: a wait that began before counts for nothing.
    async fn f_003_a_wait_ends_with_401_when_its_token_was_revoked_before_work_came(world
        with |settings| settings.metrics_listen = Some(([127, 0, 0, 1], 0).into())) {
        let (id, token) = world.new_token(None).await;
        let mut machine = Machine { token, ..world.machine("m-1") };
        machine.register(&["claude_code"]).await;
        machine.capabilities = Some("long_poll");
        let agent = world.agent("Freya").await;
        let body = json!({ "daemon_id": "m-1", "wait_seconds": WAIT_SECONDS });
        let waiting = machine.clone();
        let poll = tokio::spawn(async move { waiting.post("tasks/claim", None, body).await });
        let patience = Patience::new();
        while world.metric("ostler_claims_waiting").await != Some(1) {
            patience.wait("a claim that waits").await;
        }
        world.api("DELETE", &format!("/tokens/{id}"), None).await;
        let issue = world.issue("Not for her", agent).await;
        let told = tokio::time::timeout(SOON, poll).await.unwrap().unwrap().expect(401);
        assert!(told.get("data").is_none(), "{told}");
        let tasks = world.get(&format!("/tasks?issue={issue}")).await;
        assert_eq!(tasks[0]["status"], "queued", "{tasks}");
        world.stop().await;
    }

    async fn f_023_f_034_a_machine_that_is_offline_waits_until_it_is_heard_of_again(world
        with |settings| settings.metrics_listen = Some(([127, 0, 0, 1], 0).into())) {
        let mut machine = world.registered("m-1").await;
        machine.capabilities = Some("long_poll");
        let agent = world.agent("Freya").await;
        world.issue("Waits", agent).await;
        world.advance(Duration::from_secs(46));
        assert_eq!(machine.ask().await.status, 204);
        let body = json!({ "daemon_id": "m-1", "wait_seconds": 60 });
        let waiting = machine.clone();
        let poll = tokio::spawn(async move { waiting.post("tasks/claim", None, body).await });
        let patience = Patience::new();
        while world.metric("ostler_http_requests_now").await != Some(1) {
            patience.wait("a claim that waits").await;
        }
        machine.beat().await.expect(200);
        let told = tokio::time::timeout(SOON, poll).await.unwrap().unwrap().expect(200);
        assert_eq!(told["data"]["issue"]["title"], "Waits");
        world.stop().await;
    }

    async fn f_031_f_034_a_claim_repeated_while_offline_gives_what_it_gave_and_nothing_new(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        world.issue("One", agent).await;
        world.issue("Two", agent).await;
        let ask = async |request: &str| {
            let body = json!({ "daemon_id": "m-1", "request_id": request });
            machine.post("tasks/claim", None, body).await
        };
        let first = ask("r-1").await.expect(200)["data"].take();
        world.advance(Duration::from_secs(46));
        let again = ask("r-1").await.expect(200)["data"].take();
        let same = [&again["id"], &again["lease_token"]];
        assert_eq!(same, [&first["id"], &first["lease_token"]]);
        assert_eq!(ask("r-2").await.status, 204);
        assert_eq!(machine.ask().await.status, 204);
        machine.beat().await.expect(200);
        assert_ne!(ask("r-2").await.expect(200)["data"]["id"], first["id"]);
        world.stop().await;
    }

    async fn f_066_f_067_f_074_f_075_f_093_a_dispatched_task_may_do_all_that_a_running_one_may(world) {
        let (machine, agent, task) = dispatched(&world).await;
        assert_eq!(machine.say(&task, line(1)).await.expect(202)["accepted"], 1);
        assert_eq!(world.status(&task).await, "dispatched");
        machine.at(&task, "session", json!({ "session_id": "s" })).await.expect(200);
        machine.at(&task, "cancel-ack", json!({})).await.refused(409, "bad_state");
        let waits = json!({ "waiting_for": "approval", "summary": "?" });
        assert_eq!(machine.at(&task, "await", waits).await.expect(200)["status"], "waiting");
        world.issue("Two", agent).await;
        let task = machine.claim().await;
        assert_eq!(machine.complete(&task, json!({})).await["status"], "completed");
        world.issue("Three", agent).await;
        let task = machine.claim().await;
        let told = machine.at(&task, "fail", json!({ "error": "x", "retryable": false })).await;
        assert_eq!(told.expect(200)["status"], "failed");
        world.stop().await;
    }

    async fn f_060_f_075_f_088_an_end_that_is_repeated_has_its_first_answer_and_another_is_bad_state(world) {
        let (machine, agent, task) = dispatched(&world).await;
        machine.start(&task).await;
        machine.complete(&task, json!({ "summary": "First" })).await;
        let second = machine.complete(&task, json!({ "summary": "Second" })).await;
        assert_eq!(second["status"], "completed");
        assert_eq!(world.task(&task.id).await["result"], json!({ "summary": "First" }));
        machine.at(&task, "fail", json!({ "error": "x" })).await.refused(409, "bad_state");
        machine.at(&task, "cancel-ack", json!({})).await.refused(409, "bad_state");
        for call in ["start", "session"] {
            machine.at(&task, call, json!({})).await.refused(409, "lease_lost");
        }
        machine.say(&task, line(1)).await.refused(409, "lease_lost");
        let waits = json!({ "waiting_for": "approval", "summary": "?" });
        machine.at(&task, "await", waits).await.refused(409, "lease_lost");

        // Two completions, a failure and a cancellation at once: one of them happened, once.
        let issue = world.issue("Race", agent).await;
        let task = machine.claim().await;
        machine.start(&task).await;
        let ends = (0..8).map(|number| {
            let (machine, task) = (machine.clone(), task.clone());
            tokio::spawn(async move {
                let (what, body) = if number % 2 == 0 {
                    ("complete", json!({ "result": { "summary": "Done" } }))
                } else {
                    ("fail", json!({ "error": "x", "retryable": false }))
                };
                let answer = machine.at(&task, what, body).await;
                (answer.status, answer.body["status"].clone())
            })
        });
        let mut told = Vec::new();
        for end in ends.collect::<Vec<_>>() {
            told.push(end.await.unwrap());
        }
        let status = world.status(&task).await;
        let good: Vec<_> = told.iter().filter(|(code, _)| *code == 200).collect();
        assert!(good.iter().all(|(_, said)| *said == status) && good.len() == 4, "{status}: {told:?}");
        let comments = usize::from(status == "completed");
        assert_eq!(world.comments(&issue).await.len(), comments);
        world.stop().await;
    }

    // A hand-back and a usage limit cost no attempt.
    async fn f_088_what_is_handed_back_or_parked_costs_no_attempt_and_comes_when_it_is_due(world) {
        let (machine, _, first) = dispatched(&world).await;
        let back = json!({ "error": "stop", "retryable": true, "reason": "handed_back" });
        machine.at(&first, "fail", back.clone()).await.expect(200);
        for _ in 0..4 {
            let task = machine.claim().await;
            machine.start(&task).await;
            assert_eq!(machine.at(&task, "fail", back.clone()).await.expect(200)["status"], "queued");
        }
        let task = machine.claim().await;
        assert_eq!(task.id, first.id);
        machine.start(&task).await;
        let now = jiff::Timestamp::now();
        let due = now + jiff::SignedDuration::from_secs(600);
        let limit = json!({ "error": "usage limit", "retryable": true, "not_before": due.to_string() });
        assert_eq!(machine.at(&task, "fail", limit).await.expect(200)["status"], "queued");
        assert_eq!(machine.ask().await.status, 204);
        let why = world.task(&task.id).await["why_queued"]["reason"].clone();
        assert_eq!(why, "parked");
        world.advance(Duration::from_secs(601));
        machine.beat().await.expect(200);
        let patience = Patience::new();
        let again = loop {
            machine.beat().await.expect(200);
            let asked = machine.ask().await;
            if asked.status == 200 {
                break asked.body["data"]["id"].clone();
            }
            patience.wait("a parked task").await;
        };
        assert_eq!(again, *task.id);
        assert_eq!(world.task(&task.id).await["attempts"], 1);
        world.stop().await;
    }

    async fn f_033_more_urgent_work_is_given_first_and_among_equals_the_older(world) {
        let agent = world.agent("Freya").await;
        let of = async |title: &str, priority: &str| {
            let body = json!({ "title": title, "priority": priority, "assignee_type": "agent",
                "assignee_id": agent });
            world.make("/issues", body).await;
        };
        for (title, priority) in [("low", "low"), ("m1", "medium"), ("m2", "medium"), ("urgent", "urgent"),
            ("none", "none"), ("high", "high")] {
            of(title, priority).await;
        }
        let machine = world.registered("m-1").await;
        let mut given = Vec::new();
        for _ in 0..6 {
            let envelope = machine.claim().await.envelope;
            given.push(envelope["issue"]["title"].as_str().unwrap().to_owned());
        }
        assert_eq!(given, ["urgent", "high", "m1", "m2", "low", "none"]);
        world.stop().await;
    }
}
