//! What is odd in what a machine reports is kept as far as it can be: refusing it would block a batch for ever, or
//! lose a run that has done its work (F-068, F-071, F-075, F-077, F-083, F-088).

use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Answer, Claimed, Machine, Patience, World, seconds};

/// Nesting beyond what a parser that calls itself takes.
const DEEP: usize = 1_000;
/// How far ahead a usage limit parks a task at most.
const PARK_SECONDS_MAX: i64 = 31 * 24 * 3_600;

async fn running(world: &World, machine: &Machine, agent: i64) -> (String, Claimed) {
    let issue = world.issue("Odd", agent).await;
    let task = machine.claim().await;
    machine.start(&task).await;
    (issue, task)
}

/// A call with a body that no library writes.
async fn send(machine: &Machine, task: &Claimed, what: &str, body: String) -> Answer {
    let path = format!("tasks/{}/{what}", task.id);
    Answer::read(machine.request(&path, Some(&task.lease)).body(body)).await
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

on_both! {
    async fn f_075_f_076_f_077_a_completion_with_odd_parts_succeeds_with_the_rest(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        let bodies = [
            (json!({ "usage": [] }), Value::Null),
            (json!({ "usage": { "input_tokens": 12.0, "output_tokens": 7, "cost_micros": -1 } }), json!(7)),
            (json!({ "usage": { "input_tokens": "12", "output_tokens": 7 } }), json!(7)),
            (json!({ "usage": "free" }), Value::Null),
        ];
        for (mut result, output_tokens) in bodies {
            let (issue, task) = running(&world, &machine, agent).await;
            result["summary"] = json!("Done");
            let body = json!({ "result": result, "session_id": "x".repeat(513), "work_dir": "/w" });
            machine.at(&task, "complete", body).await.expect(200);
            let shown = world.task(&task.id).await;
            assert_eq!(shown["result"], result);
            assert_eq!(shown["usage"]["output_tokens"], output_tokens, "{shown}");
            assert_eq!((&shown["session_id"], &shown["work_dir"]), (&Value::Null, &json!("/w")), "{shown}");
            assert_eq!(world.comments(&issue).await.len(), 1);
        }
        for body in [json!({ "session_id": 7, "work_dir": {} }), json!({ "result": [], "work_dir": [] }),
            json!({ "result": 7 }), json!({ "result": null })] {
            let (_, task) = running(&world, &machine, agent).await;
            machine.at(&task, "complete", body).await.expect(200);
            assert_eq!(world.status(&task).await, "completed");
        }
        // What is told while the run goes on can be put right, and is refused.
        let (_, task) = running(&world, &machine, agent).await;
        machine.at(&task, "session", json!({ "session_id": "x".repeat(513) })).await.expect(422);
        world.stop().await;
    }

    async fn f_075_a_result_is_kept_as_it_came_whatever_numbers_and_depths_it_has(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        let digits = "7".repeat(70);
        let odd = [
            ("1e400".to_owned(), json!("1e400")),
            (r#""\ud800x""#.to_owned(), json!("\u{fffd}x")),
            (r#"{"twice":1,"twice":2}"#.to_owned(), json!({ "twice": 2 })),
            (r#""a\u0000b""#.to_owned(), json!("a\0b")),
        ];
        for (text, shown) in odd {
            let (issue, task) = running(&world, &machine, agent).await;
            // A doubled field elsewhere is refused.
            let more = if text.contains("twice") { "1" } else { &text };
            let body = format!(r#"{{"result": {{"summary":"Done","odd":{text},"usage":{{"output_tokens":7}},
                "artifacts":[{{"type":"branch","reference":"b"}}]}}, "more": {more}}}"#);
            send(&machine, &task, "complete", body).await.expect(200);
            let told = world.task(&task.id).await;
            assert_eq!((&told["result"]["odd"], &told["usage"]["output_tokens"]), (&shown, &json!(7)), "{told}");
            assert_eq!(world.comments(&issue).await.len(), 1, "{text}");
            assert_eq!(world.get(&format!("/issues/{issue}/deliveries")).await[0]["reference"], "b");
        }
        for text in [digits, nested(DEEP), format!("{{\"a\":{}}}", nested(126))] {
            let (issue, task) = running(&world, &machine, agent).await;
            let body = format!("{{\"result\":{{\"summary\":\"Done\",\"odd\":{text}}}}}");
            send(&machine, &task, "complete", body).await.expect(200);
            assert!(!world.task(&task.id).await["result"]["odd"].is_null(), "{text}");
            assert_eq!(world.comments(&issue).await.len(), 1, "{text}");
        }
        // As it came: the spaces, the order, the number that no float holds.
        let (_, task) = running(&world, &machine, agent).await;
        let result = r#"{ "z" : 1e400,  "a": 0.10, "s": "\ud800" }"#;
        send(&machine, &task, "complete", format!("{{\"result\":{result}}}")).await.expect(200);
        assert_eq!(world.stored_result(&task).await, result);
        world.stop().await;
    }

    async fn f_068_f_071_a_line_that_is_odd_does_not_block_its_batch(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        let (_, task) = running(&world, &machine, agent).await;
        let deep = nested(DEEP);
        let body = format!(r#"{{"messages":[
            {{"seq":1,"type":"tool_use","tool":"{}","payload":{{"k":1}}}},
            {{"seq":2,"type":"assistant","content":"half \ud83e here"}},
            {{"seq":3,"type":"tool_result","tool":"T\udd80","payload":{{"deep":{deep},"kept":"yes"}}}},
            {{"seq":4,"type":"tool_result","payload":["\ud800",1e400]}},
            {{"seq":5,"type":"system","content":"last"}}]}}"#, "é".repeat(300));
        let told = send(&machine, &task, "messages", body).await.expect(202);
        assert_eq!(json!([told["accepted"], told["next_seq"]]), json!([5, 6]));
        // Each alone, as the fast reader takes them.
        let alone = format!(r#"{{"messages":[{{"seq":6,"type":"x","tool":"{}"}},
            {{"seq":7,"type":"x","payload":{{"deep":{deep},"kept":"yes"}}}}]}}"#, "t".repeat(256));
        send(&machine, &task, "messages", alone).await.expect(202);
        let kept = world.messages(&task).await;
        assert_eq!(kept.len(), 7);
        assert_eq!(kept[0]["tool"].as_str().unwrap().chars().count(), 255);
        assert_eq!(kept[1]["content"], "half \u{fffd} here");
        assert_eq!((&kept[2]["tool"], &kept[2]["payload"]["kept"]), (&json!("T\u{fffd}"), &json!("yes")));
        assert_eq!(kept[3]["payload"], json!(["\u{fffd}", "1e400"]));
        assert_eq!((&kept[5]["tool"].as_str().unwrap().len(), &kept[6]["payload"]["kept"]),
            (&255, &json!("yes")));
        for line in [&kept[2], &kept[6]] {
            assert!(line["payload"]["deep"].to_string().contains("nested too deeply"), "{line}");
        }
        world.stop().await;
    }

    async fn f_088_a_failure_is_taken_whatever_its_not_before_says(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        let far = json!("9000-12-31T00:00:00Z");
        for (number, odd) in [json!("soon"), json!(7), json!({}), json!("x".repeat(1_000)), json!("")]
            .into_iter().enumerate() {
            let (_, task) = running(&world, &machine, agent).await;
            let fails = json!({ "error": "x", "retryable": true, "not_before": odd });
            assert_eq!(machine.at(&task, "fail", fails).await.expect(200)["status"], "queued", "{odd}");
            let again = machine.claim().await;
            assert_eq!(again.id, task.id, "{number}");
            let fails = json!({ "error": "x", "retryable": false, "not_before": odd });
            assert_eq!(machine.at(&again, "fail", fails).await.expect(200)["status"], "failed", "{odd}");
        }
        let (_, task) = running(&world, &machine, agent).await;
        let fails = json!({ "error": "x", "not_before": far });
        assert_eq!(machine.at(&task, "fail", fails).await.expect(200)["status"], "failed");
        // Further ahead than a task can be parked: as far as it can be.
        let (_, task) = running(&world, &machine, agent).await;
        let fails = json!({ "error": "limit", "retryable": true, "not_before": far });
        machine.at(&task, "fail", fails).await.expect(200);
        let until = seconds(&world.task(&task.id).await["not_before"]);
        let ahead = until - jiff::Timestamp::now().as_second();
        assert!((PARK_SECONDS_MAX - 600..=PARK_SECONDS_MAX).contains(&ahead), "{ahead}");
        world.advance(Duration::from_secs(u64::try_from(PARK_SECONDS_MAX).unwrap()));
        let patience = Patience::new();
        loop {
            machine.beat().await.expect(200);
            if machine.ask().await.status == 200 {
                break;
            }
            patience.wait("a parked task").await;
        }
        world.stop().await;
    }
}
