//! A run from start to end (F-060 to F-092, F-109).

use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Claimed, Machine, Patience, World, seconds};

const HEADROOM: Duration = Duration::from_secs(60);

/// A machine, an agent, and a run of it that was started; its issue's identifier.
async fn running(world: &World) -> (Machine, i64, String, Claimed) {
    let machine = world.registered("m-1").await;
    let agent = world.agent("Freya").await;
    let issue = world.issue("Fix the redirect", agent).await;
    let task = machine.claim().await;
    let started = machine.start(&task).await;
    assert_eq!(
        (&started["status"], &started["cancel_requested"]),
        (&json!("running"), &json!(false))
    );
    (machine, agent, issue, task)
}

async fn lease_end(world: &World, task: &Claimed) -> i64 {
    seconds(&world.task(&task.id).await["lease_expires_at"])
}

fn line(seq: u32) -> Value {
    json!({ "seq": seq, "type": "assistant", "content": format!("line {seq}") })
}

on_both! {
    async fn f_067_f_068_f_069_f_071_each_line_is_stored_once_whatever_is_sent_again(world) {
        let (machine, _, _, task) = running(&world).await;
        let lines = json!([
            { "seq": 1, "type": "assistant", "content": "Reading the failing test." },
            { "seq": 2, "type": "tool_use", "tool": "Bash", "payload": { "command": "php artisan test" } },
            { "seq": 3, "type": "tool_result", "tool": "Bash", "payload": ["a", 1, null], "content": "ok" },
        ]);
        let told = machine.say(&task, lines.clone()).await.expect(202);
        let said = json!([told["accepted"], told["next_seq"], told["cancel_requested"]]);
        assert_eq!(said, json!([3, 4, false]));
        assert!(told["lease_expires_at"].is_string(), "{told}");
        let again = machine.say(&task, lines).await.expect(202);
        assert_eq!(json!([again["accepted"], again["next_seq"]]), json!([0, 4]));
        // In part; a known number with another text stays as it was; out of order, and with a gap.
        let overlapping = json!([
            { "seq": 3, "type": "assistant", "content": "another text" },
            { "seq": 6, "type": "stderr", "content": "six" },
            { "seq": 4, "type": "user", "content": "four" },
        ]);
        let told = machine.say(&task, overlapping).await.expect(202);
        assert_eq!(json!([told["accepted"], told["next_seq"]]), json!([2, 7]));
        let late = json!([{ "seq": 5, "type": "system", "content": "five" },
            { "seq": 7, "type": "a_new_kind", "content": "seven" }]);
        let told = machine.say(&task, late).await.expect(202);
        assert_eq!(json!([told["accepted"], told["next_seq"]]), json!([2, 8]));
        // The same batch many times at once.
        let batch = json!([line(8), line(9), line(10)]);
        let at_once = (0..8).map(|_| {
            let (machine, task, batch) = (machine.clone(), task.clone(), batch.clone());
            tokio::spawn(async move { machine.say(&task, batch).await.expect(202)["accepted"].clone() })
        });
        let mut accepted = 0;
        for told in at_once.collect::<Vec<_>>() {
            accepted += told.await.unwrap().as_i64().unwrap();
        }
        assert_eq!(accepted, 3);

        let kept = world.messages(&task).await;
        let seqs: Vec<_> = kept.iter().map(|it| it["seq"].as_i64().unwrap()).collect();
        assert_eq!(seqs, (1..=10).collect::<Vec<_>>());
        let kinds: Vec<_> = kept.iter().take(7).map(|it| it["type"].as_str().unwrap()).collect();
        assert_eq!(kinds,
            ["assistant", "tool_use", "tool_result", "user", "system", "stderr", "a_new_kind"]);
        assert_eq!(kept[0]["content"], "Reading the failing test.");
        assert_eq!((&kept[1]["tool"], &kept[1]["payload"]),
            (&json!("Bash"), &json!({ "command": "php artisan test" })));
        assert_eq!((&kept[2]["content"], &kept[2]["payload"]), (&json!("ok"), &json!(["a", 1, null])));
        world.stop().await;
    }

    async fn f_070_an_empty_batch_is_422_and_renews_nothing(world) {
        let (machine, _, _, task) = running(&world).await;
        let before = lease_end(&world, &task).await;
        world.advance(HEADROOM);
        let empty = machine.say(&task, json!([])).await.expect(422);
        assert!(empty["errors"]["messages"].is_array(), "{empty}");
        let none = machine.at(&task, "messages", json!({})).await.expect(422);
        assert!(none["errors"]["messages"].is_array(), "{none}");
        let many: Vec<_> = (1..=201).map(line).collect();
        machine.say(&task, json!(many)).await.expect(422);
        assert_eq!(lease_end(&world, &task).await, before);
        assert!(world.messages(&task).await.is_empty());
        let most: Vec<_> = (1..=200).map(line).collect();
        assert_eq!(machine.say(&task, json!(most)).await.expect(202)["accepted"], 200);
        world.stop().await;
    }

    async fn f_071_long_content_is_cut_with_a_mark_and_never_refused(world) {
        let (machine, _, _, task) = running(&world).await;
        let long = "ä".repeat(100_000);
        let lines = json!([{ "seq": 1, "type": "assistant", "content": long }, line(2)]);
        assert_eq!(machine.say(&task, lines).await.expect(202)["accepted"], 2);
        let kept = world.messages(&task).await;
        let content = kept[0]["content"].as_str().unwrap();
        assert!(content.len() <= 64 * 1024 + 200 && content.len() > 60 * 1024, "{}", content.len());
        assert!(content.starts_with("ää") && !content.ends_with('ä'), "no mark");
        assert_eq!(kept[1]["content"], "line 2");
        world.stop().await;
    }

    async fn f_063_f_066_f_072_start_and_lines_renew_the_lease_nothing_else_and_its_token_stays(world) {
        let (machine, _, _, task) = running(&world).await;
        let first = lease_end(&world, &task).await;
        world.advance(HEADROOM);
        let started = machine.start(&task).await;
        let second = lease_end(&world, &task).await;
        assert!(second >= first + 59, "{first} {second}");
        assert_eq!(seconds(&started["lease_expires_at"]), second);
        world.advance(HEADROOM);
        let said = machine.say(&task, json!([line(1)])).await.expect(202);
        let third = lease_end(&world, &task).await;
        assert!(third >= second + 59, "{second} {third}");
        assert_eq!(seconds(&said["lease_expires_at"]), third);
        world.advance(HEADROOM);
        let session = json!({ "session_id": "s", "work_dir": "/w" });
        let told = machine.at(&task, "session", session).await.expect(200);
        assert_eq!(seconds(&told["lease_expires_at"]), third);
        machine.beat().await.expect(200);
        machine.ask().await;
        assert_eq!(lease_end(&world, &task).await, third);
        world.stop().await;
    }

    async fn f_073_f_091_f_092_cancelling_is_told_by_start_and_lines_and_confirmed_by_the_holder(world) {
        let (machine, _, _, task) = running(&world).await;
        machine.at(&task, "cancel-ack", json!({})).await.refused(409, "bad_state");
        assert_eq!(world.status(&task).await, "running");
        let asked = world.api("POST", &format!("/tasks/{}/cancel", task.id), None).await;
        assert_eq!((&asked["status"], &asked["cancel_requested"]), (&json!("running"), &json!(true)));
        let said = machine.say(&task, json!([line(1)])).await.expect(202);
        assert_eq!(said["cancel_requested"], true);
        assert_eq!(machine.start(&task).await["cancel_requested"], true);
        for _ in 0..2 {
            let told = machine.at(&task, "cancel-ack", json!({})).await.expect(200);
            assert_eq!(told["status"], "canceled");
        }
        assert_eq!(world.status(&task).await, "canceled");
        machine.say(&task, json!([line(2)])).await.refused(409, "lease_lost");
        assert_eq!(machine.ask().await.status, 204);
        world.stop().await;
    }

    async fn f_075_f_077_f_078_f_079_a_completed_run_leaves_its_result_usage_and_summary(world) {
        let (machine, agent, issue, task) = running(&world).await;
        let result = json!({ "summary": "Fixed the **redirect**.", "free": { "form": [1, 2.5, "x", null] },
            "usage": { "input_tokens": 2, "output_tokens": 7, "cached_tokens": 0,
                "cache_write_tokens": 20_787, "cost_micros": 130_720 } });
        for _ in 0..2 {
            assert_eq!(machine.complete(&task, result.clone()).await["status"], "completed");
        }
        let shown = world.task(&task.id).await;
        assert_eq!(shown["result"], result);
        assert_eq!(json!([shown["usage"]["cost_micros"], shown["usage"]["cache_write_tokens"]]),
            json!([130_720, 20_787]));
        let comments = world.comments(&issue).await;
        assert_eq!(comments.len(), 1, "{comments:?}");
        assert_eq!((&comments[0]["is_agent"], &comments[0]["author"]["id"]), (&json!(true), &json!(agent)));
        assert_eq!(comments[0]["task_id"], *task.id);
        assert!(comments[0]["body"].as_str().unwrap().contains("redirect"), "{comments:?}");

        // Silence is no free run, and one without a summary says nothing.
        world.assign(&issue, agent).await;
        let silent = machine.work_off(json!({ "other": true })).await;
        assert_eq!(world.task(&silent.id).await["usage"], Value::Null);
        assert_eq!(world.comments(&issue).await.len(), 1);
        world.assign(&issue, agent).await;
        let free = machine.work_off(json!({ "usage": { "cost_micros": 0 } })).await;
        let usage = world.task(&free.id).await["usage"].clone();
        assert_eq!(json!([usage["cost_micros"], usage["input_tokens"]]), json!([0, null]));
        let sums = world.get("/usage?by=issue").await;
        assert_eq!(json!([sums[0]["cost_micros"], sums[0]["runs_with_cost"]]), json!([130_720, 2]), "{sums}");
        world.stop().await;
    }

    async fn f_080_f_090_a_completed_run_books_its_time_once_and_a_failed_one_none(world) {
        let (machine, agent, issue, task) = running(&world).await;
        world.advance(Duration::from_secs(4 * 60));
        machine.say(&task, json!([line(1)])).await.expect(202);
        world.advance(Duration::from_secs(3 * 60));
        for _ in 0..3 {
            machine.complete(&task, json!({ "summary": "Done." })).await;
        }
        assert_eq!(world.show_issue(&issue).await["spent_minutes"], 7);
        machine.beat().await.expect(200);
        world.assign(&issue, agent).await;
        let failed = machine.claim().await;
        machine.start(&failed).await;
        world.advance(Duration::from_secs(2 * 60));
        let error = json!({ "error": "Test suite failed.", "retryable": false });
        machine.at(&failed, "fail", error).await.expect(200);
        assert_eq!(world.show_issue(&issue).await["spent_minutes"], 7);
        assert_eq!(world.comments(&issue).await.len(), 1);
        assert_eq!(world.task(&failed.id).await["error"], "Test suite failed.");
        world.stop().await;
    }

    async fn f_081_f_082_f_083_f_084_f_085_artifacts_become_deliveries_of_which_bad_ones_are_left_out(world) {
        crate::shown::capture();
        let (machine, agent, issue, task) = running(&world).await;
        let pull = json!({ "type": "pull_request", "url": "https://github.com/acme/api/pull/482",
            "title": "Fix the redirect", "state": "open" });
        let mut artifacts = vec![
            pull, json!({ "type": "branch", "reference": "felagi/ACM-231-redirect" }),
            json!({ "type": "link", "url": "javascript:alert(1)" }),
            json!({ "type": "link", "url": "https://user:pass@example.com/" }),
            json!({ "type": "unheard", "url": "https://example.com/" }),
            json!("text"), Value::Null, json!({}), json!({ "type": 7 }),
        ];
        let link = |n: u32| json!({ "type": "link", "url": format!("https://example.com/{n}") });
        artifacts.extend((0..30).map(link));
        let told = machine.complete(&task, json!({ "summary": "S", "artifacts": artifacts })).await;
        assert_eq!(told["status"], "completed");
        let path = format!("/issues/{issue}/deliveries?per_page=100");
        let shown = world.get(&path).await;
        assert_eq!(shown.as_array().unwrap().len(), 20, "{shown}");
        let text = shown.to_string();
        assert!(!text.contains("javascript") && !text.contains("pass@"), "{text}");
        assert!(text.contains("felagi/ACM-231-redirect") && text.contains("pull/482"), "{text}");

        let logged = crate::shown::logged();
        let left_out = |line: &&str| line.contains("was left out") && line.contains(&task.id);
        assert_eq!(logged.lines().filter(left_out).count(), 7 + 12);
        assert!(!logged.contains("user:pass"));

        world.assign(&issue, agent).await;
        let merged = json!({ "type": "pull_request", "url": "HTTPS://GitHub.com/Acme/API/pull/482/",
            "title": "Fix", "state": "merged" });
        machine.work_off(json!({ "artifacts": [merged] })).await;
        let again = world.get(&path).await;
        let pulls: Vec<_> =
            again.as_array().unwrap().iter().filter(|it| it["type"] == "pull_request").collect();
        assert_eq!((pulls.len(), &pulls[0]["state"]), (1, &json!("merged")), "{again}");
        // What is no list is no artifact, and no reason to lose the run.
        world.assign(&issue, agent).await;
        let odd = machine.work_off(json!({ "summary": "Odd", "artifacts": "none" })).await;
        assert_eq!(world.status(&odd).await, "completed");
        world.stop().await;
    }

    async fn f_086_f_087_a_pull_request_moves_an_issue_from_before_review_only(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        let artifacts = |number: usize| json!({ "artifacts": [{ "type": "pull_request",
            "url": format!("https://github.com/acme/api/pull/{number}"), "state": "open" }] });
        let moves = [("backlog", "in_review"), ("todo", "in_review"), ("in_progress", "in_review"),
            ("in_review", "in_review"), ("on_hold", "on_hold"), ("done", "done"), ("canceled", "canceled")];
        for (number, (before, after)) in moves.into_iter().enumerate() {
            let issue = world.issue(before, agent).await;
            let task = machine.claim().await;
            machine.start(&task).await;
            world.patch(&format!("/issues/{issue}"), json!({ "status": before })).await;
            machine.complete(&task, artifacts(number)).await;
            assert_eq!(world.show_issue(&issue).await["status"], after, "from {before}");
        }
        world.stop().await;
    }

    async fn f_085_f_086_a_pull_request_that_is_named_as_a_link_too_moves_its_issue_and_stays_one(world) {
        let (machine, agent, issue, task) = running(&world).await;
        let url = "https://github.com/acme/api/pull/482";
        let link = json!({ "type": "link", "url": format!("{url}/"), "title": "See" });
        let branch = |name: &str| json!({ "type": "branch", "reference": name,
            "url": "https://github.com/acme/api" });
        let artifacts = json!([{ "type": "pull_request", "url": url, "state": "open" }, link,
            branch("a"), branch("b")]);
        machine.complete(&task, json!({ "artifacts": artifacts })).await;
        assert_eq!(world.show_issue(&issue).await["status"], "in_review");
        let path = format!("/issues/{issue}/deliveries");
        assert_eq!(world.get(&path).await.as_array().unwrap().len(), 3);
        // The next run mentions it as a page: it is still a pull request.
        world.assign(&issue, agent).await;
        machine.work_off(json!({ "artifacts": [link] })).await;
        let shown = world.get(&path).await;
        let pull = shown.as_array().unwrap().iter().find(|it| it["type"] == "pull_request");
        let pull = pull.unwrap_or_else(|| panic!("{shown}"));
        assert_eq!(json!([pull["state"], pull["title"]]), json!(["open", "See"]));
        world.stop().await;
    }

    async fn f_087_no_other_call_of_a_machine_changes_an_issues_status(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        for before in ["backlog", "todo", "in_progress", "in_review", "on_hold", "done", "canceled"] {
            let issue = world.issue(before, agent).await;
            world.patch(&format!("/issues/{issue}"), json!({ "status": before })).await;
            let is_kept = async |call: &str| {
                assert_eq!(world.show_issue(&issue).await["status"], before, "after {call}");
            };
            let task = machine.claim().await;
            is_kept("claim").await;
            machine.start(&task).await;
            is_kept("start").await;
            machine.say(&task, json!([line(1)])).await.expect(202);
            machine.at(&task, "session", json!({ "session_id": "s" })).await.expect(200);
            is_kept("session").await;
            let waits = json!({ "waiting_for": "input", "summary": "Which?" });
            machine.at(&task, "await", waits).await.expect(200);
            is_kept("await").await;
            let mut task = task;
            let resumed = machine.resume(&task).await.expect(200);
            task.lease = resumed["lease_token"].as_str().unwrap().to_owned();
            is_kept("resume").await;
            let error = json!({ "error": "no", "retryable": true });
            machine.at(&task, "fail", error).await.expect(200);
            is_kept("fail").await;
            let task = machine.claim().await;
            machine.start(&task).await;
            let link = json!([{ "type": "link", "url": "https://example.com/" },
                { "type": "branch", "reference": "b" }]);
            machine.complete(&task, json!({ "summary": "Done", "artifacts": link })).await;
            is_kept("complete").await;
        }
        world.stop().await;
    }

    async fn f_062_f_088_f_089_a_retryable_failure_is_queued_until_the_third_and_its_lease_is_dead(world) {
        let (machine, agent, _, first) = running(&world).await;
        let error = json!({ "error": "spawn", "retryable": true });
        assert_eq!(machine.at(&first, "fail", error.clone()).await.expect(200)["status"], "queued");
        machine.at(&first, "start", json!({})).await.refused(409, "lease_lost");
        machine.say(&first, json!([line(1)])).await.refused(409, "lease_lost");
        let second = machine.claim().await;
        assert_eq!(second.id, first.id);
        assert_ne!(second.lease, first.lease);
        machine.at(&first, "start", json!({})).await.refused(409, "lease_lost");
        machine.start(&second).await;
        machine.at(&second, "fail", error.clone()).await.expect(200);
        let third = machine.claim().await;
        machine.start(&third).await;
        assert_eq!(machine.at(&third, "fail", error).await.expect(200)["status"], "failed");
        assert_eq!(machine.ask().await.status, 204);
        let shown = world.task(&first.id).await;
        let shown = json!([shown["status"], shown["attempts"], shown["error"]]);
        assert_eq!(shown, json!(["failed", 3, "spawn"]));

        world.issue("Final", agent).await;
        let task = machine.claim().await;
        machine.start(&task).await;
        let error = json!({ "error": "Test suite failed.", "retryable": false });
        assert_eq!(machine.at(&task, "fail", error).await.expect(200)["status"], "failed");
        assert_eq!(machine.ask().await.status, 204);
        world.stop().await;
    }

    async fn f_060_f_061_f_062_f_064_f_109_f_110_a_machine_that_vanished_loses_its_run_and_no_other(world
        with |settings| settings.policy.lease = Duration::from_secs(2)) {
        let (gone, agent, _, task) = running(&world).await;
        world.issue("Another", agent).await;
        let other = world.registered("m-2").await;
        let kept = other.claim().await;
        other.start(&kept).await;
        // Neither the token of the workspace nor another task's lease is a proof.
        let stolen = Claimed { lease: kept.lease.clone(), ..task.clone() };
        other.at(&stolen, "complete", json!({})).await.refused(409, "lease_lost");
        let patience = Patience::new();
        let again = loop {
            other.beat().await.expect(200);
            other.start(&kept).await;
            let asked = other.ask().await;
            if asked.status == 200 {
                break asked.body["data"].clone();
            }
            patience.wait("the task of the machine that vanished").await;
        };
        assert_eq!(again["id"], *task.id);
        let refused = gone.at(&task, "complete", json!({ "result": { "summary": "Late" } })).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert_eq!(world.status(&kept).await, "running");
        world.stop().await;
    }
}
