//! What the people's side promises beyond shapes: who gets which task, what wakes a machine, what is never
//! shown.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests"
)]

#[macro_use]
mod common;

use std::time::Duration;

use common::{World, furnish};
use serde_json::{Value, json};

/// How long a claim waits in a test; it must be answered long before.
const WAIT_SECONDS: u64 = 20;
/// Far below that.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn assign(world: &World, issue: &str, kind: Value, id: Value) -> Value {
    let body = json!({ "assignee_type": kind, "assignee_id": id });
    world.patch(&format!("/issues/{issue}"), body).await
}

async fn states(world: &World, issue: &str) -> Vec<(String, String)> {
    let tasks = world.tasks_of(issue).await.into_iter().rev();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    tasks.map(|it| (text(&it["agent"]["name"]), text(&it["status"]))).collect()
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(agent, state)| ((*agent).to_owned(), (*state).to_owned())).collect()
}

on_both! {
    async fn assigning_queues_one_task_for_an_open_pair_and_cancels_what_nobody_began(world) {
        world.register("m-1", "claude_code").await;
        let freya = world.agent("Freya", "claude_code").await;
        let odin = world.agent("Odin", "codex").await;
        let issue = world.issue_for("Work", freya).await;
        // Many at once, too.
        let again = (0..8).map(|_| assign(&world, &issue, json!("agent"), json!(freya)));
        futures_util::future::join_all(again).await;
        assert_eq!(states(&world, &issue).await, pairs(&[("Freya", "queued")]));
        // Nobody took it: the next agent gets it alone.
        assign(&world, &issue, json!("agent"), json!(odin)).await;
        let after = pairs(&[("Freya", "canceled"), ("Odin", "queued")]);
        assert_eq!(states(&world, &issue).await, after);
        assign(&world, &issue, json!("agent"), json!(freya)).await;
        let (task, lease) = world.claim("m-1").await.unwrap();
        // A machine has it: it goes on.
        let changed = assign(&world, &issue, Value::Null, Value::Null).await;
        assert_eq!(changed["assignee"], Value::Null);
        assign(&world, &issue, json!("agent"), json!(odin)).await;
        let after =
            [("Freya", "canceled"), ("Odin", "canceled"), ("Freya", "dispatched"), ("Odin", "queued")];
        assert_eq!(states(&world, &issue).await, pairs(&after));
        let done = json!({ "result": { "summary": "ok" } });
        assert_eq!(
            world.machine(&format!("tasks/{task}/complete"), Some(&lease), done).await.status,
            200
        );
        // It ended: assigning again is a new task.
        assign(&world, &issue, json!("agent"), json!(freya)).await;
        assert_eq!(states(&world, &issue).await.last(), pairs(&[("Freya", "queued")]).first());
        // Another change does not touch tasks.
        let before = states(&world, &issue).await;
        world.patch(&format!("/issues/{issue}"), json!({ "title": "Other" })).await;
        assert_eq!(states(&world, &issue).await, before);
        world.stop().await;
    }
}

on_both! {
    async fn only_members_and_agents_that_are_there_are_assigned(world) {
        let things = furnish(&world).await;
        let (other, _) = world.other("zwei").await;
        let theirs = json!({ "name": "Theirs", "provider": "codex" });
        let theirs = world.call_as(&other, "POST", "/agents", Some(theirs)).await.data()["id"].clone();
        let stranger = world.call_as(&other, "GET", "/me", None).await.body["user"]["id"].clone();
        let archived = world.agent("Gone", "codex").await;
        world.call("DELETE", &format!("/agents/{archived}"), None).await;
        for (kind, id) in
            [("agent", theirs), ("user", stranger), ("agent", json!(archived)), ("user", json!(999))]
        {
            let body = json!({ "assignee_type": kind, "assignee_id": id, "title": "changed" });
            let path = format!("/issues/{}", things.of("issue"));
            let reply = world.call("PATCH", &path, Some(body)).await;
            assert_eq!(reply.status, 422, "{kind} {id}");
            assert!(reply.body["errors"]["assignee_id"].is_array(), "{}", reply.body);
            assert_ne!(world.get(&path).await["title"], "changed");
        }
        world.stop().await;
    }
}

on_both! {
    async fn a_higher_priority_moves_what_is_queued(world) {
        world.register("m-1", "claude_code").await;
        let agent = world.agent("Freya", "claude_code").await;
        let first = world.issue_for("First", agent).await;
        let second = world.issue_for("Second", agent).await;
        world.patch(&format!("/issues/{second}"), json!({ "priority": "urgent" })).await;
        let waiting = world.tasks_of(&first).await[0]["id"].as_str().unwrap().to_owned();
        let why = world.get(&format!("/tasks/{waiting}")).await["why_queued"].clone();
        assert_eq!(why["reason"], "behind", "{why}");
        let (task, _) = world.claim("m-1").await.unwrap();
        assert_eq!(world.get(&format!("/tasks/{task}")).await["issue"]["id"], json!(second));
        world.stop().await;
    }
}

/// A claim that waits, and what ends its wait.
async fn wakes<T>(world: &World, daemon: &str, what: impl Future<Output = T>) {
    let body = json!({ "daemon_id": daemon, "wait_seconds": WAIT_SECONDS });
    let claim = async {
        let reply = world.machine("tasks/claim", None, body).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
    };
    // Before the claim waits or after: without a hint the board would look only every two seconds.
    let change = async {
        what.await;
        std::time::Instant::now()
    };
    let ((), changed) = tokio::join!(claim, change);
    assert!(changed.elapsed() < Duration::from_secs(1), "{:?}", changed.elapsed());
}

on_both! {
    async fn a_waiting_claim_wakes_when_an_agent_may_do_more(world) {
        let runtime = world.register("m-1", "claude_code").await;
        let agent = world.agent("Freya", "claude_code").await;
        let path = format!("/agents/{agent}");
        let wakes = tokio::time::timeout(AT_ONCE * 6, async {
            world.issue_for("One", agent).await;
            world.claim("m-1").await.unwrap();
            world.issue_for("Two", agent).await;
            assert!(world.claim("m-1").await.is_none());
            wakes(&world, "m-1", world.patch(&path, json!({ "concurrency": 2 }))).await;
            world.patch(&path, json!({ "concurrency": 9, "paused": true })).await;
            world.issue_for("Three", agent).await;
            wakes(&world, "m-1", world.patch(&path, json!({ "paused": false }))).await;
            world.patch(&path, json!({ "archived": true, "paused": false })).await;
            let issue = world.post("/issues", json!({ "title": "Four" })).await;
            world.patch(&path, json!({ "archived": false })).await;
            let id = issue["id"].as_str().unwrap();
            wakes(&world, "m-1", assign(&world, id, json!("agent"), json!(agent))).await;
            // Another CLI, and back to a machine of its own.
            world.patch(&path, json!({ "provider": "codex" })).await;
            world.issue_for("Five", agent).await;
            assert!(world.claim("m-1").await.is_none());
            let back = json!({ "provider": "claude_code", "runtime_id": runtime });
            wakes(&world, "m-1", world.patch(&path, back)).await;
        });
        wakes.await.expect("each claim is answered at once");
        world.stop().await;
    }
}

on_both! {
    async fn a_decision_reaches_the_machine_with_its_next_answer_and_the_first_stands(world) {
        world.register("m-1", "claude_code").await;
        let agent = world.agent("Freya", "claude_code").await;
        let issue = world.issue_for("Work", agent).await;
        let (task, lease) = world.claim("m-1").await.unwrap();
        let wait = json!({ "waiting_for": "input", "summary": "Which?" });
        world.machine(&format!("tasks/{task}/await"), Some(&lease), wait).await;
        let beat = || world.machine("heartbeat", None, json!({ "daemon_id": "m-1" }));
        assert_eq!(beat().await.body["decisions"], Value::Null);
        let decide = |word: &str| {
            let body = json!({ "decision": word, "note": "the left" });
            let path = format!("/tasks/{task}/decision");
            let world = &world;
            async move { world.call("POST", &path, Some(body)).await }
        };
        assert_eq!(decide("denied").await.status, 200);
        let expected = json!([{ "task_id": task, "decision": "denied", "note": "the left" }]);
        assert_eq!(beat().await.body["decisions"], expected);
        assert_eq!(decide("denied").await.status, 200);
        assert_eq!(decide("approved").await.code(), "bad_state");
        assert_eq!(world.get(&format!("/issues/{issue}")).await["waiting"]["decision"], "denied");
        world.call("POST", &format!("/tasks/{task}/cancel"), None).await.data();
        assert_eq!(beat().await.body["decisions"], Value::Null);
        assert_eq!(world.get(&format!("/issues/{issue}")).await["waiting"], Value::Null);
        assert_eq!(world.get("/approvals").await, json!([]));
        world.stop().await;
    }
}

on_both! {
    async fn why_a_task_is_queued_is_told_in_a_word_and_a_sentence(world) {
        let agent = world.agent("Freya", "claude_code").await;
        let issue = world.issue_for("Work", agent).await;
        let task = world.tasks_of(&issue).await[0]["id"].as_str().unwrap().to_owned();
        let why = async || world.get(&format!("/tasks/{task}")).await["why_queued"].clone();
        assert_eq!(why().await["reason"], "no_runtime");
        world.register("m-1", "claude_code").await;
        assert_eq!(why().await["reason"], "next");
        let path = format!("/agents/{agent}");
        world.patch(&path, json!({ "paused": true })).await;
        let paused = why().await;
        assert_eq!(paused["reason"], "agent_paused");
        assert!(paused["message"].as_str().unwrap().contains("Freya is paused"), "{paused}");
        world.patch(&path, json!({ "paused": false })).await;
        let other = world.issue_for("Urgent", agent).await;
        world.patch(&format!("/issues/{other}"), json!({ "priority": "urgent" })).await;
        world.claim("m-1").await.unwrap();
        assert_eq!(why().await["reason"], "agent_busy");
        world.call("DELETE", &path, None).await;
        assert_eq!(why().await["reason"], "agent_archived");
        world.stop().await;
    }
}

on_both! {
    async fn html_that_scripts_is_harmless_when_it_comes_back(world) {
        let bad = "<p onclick=\"x()\">Hi</p><script>alert(1)</script><img src=x onerror=alert(1)>\
                   <a href=\"javascript:alert(1)\">l</a><iframe src=\"//e.example\"></iframe>\
                   <svg/onload=alert(1)>";
        let harmless = |html: &Value| {
            let html = html.as_str().unwrap().to_lowercase();
            for trick in ["<script", "onclick", "onerror", "javascript:", "<iframe", "<svg", "onload"] {
                assert!(!html.contains(trick), "{trick} in {html}");
            }
            assert!(html.contains("hi"), "{html}");
        };
        let issue = world.post("/issues", json!({ "title": "<b>T</b>", "description": bad })).await;
        harmless(&issue["description"]);
        harmless(&world.patch("/issues/ACME-1", json!({ "description": bad })).await["description"]);
        harmless(&world.post("/issues/ACME-1/comments", json!({ "body": bad })).await["body"]);
        harmless(&world.get("/issues/ACME-1/comments").await[0]["body"]);
        world.stop().await;
    }
}

on_both! {
    async fn files_have_sane_names_and_are_downloaded_never_shown(world) {
        world.post("/issues", json!({ "title": "T" })).await;
        let comment = world.post("/issues/ACME-1/comments", json!({ "body": "c" })).await;
        let path = format!("/issues/ACME-1/comments/{}/attachments", comment["id"]);
        for (sent, kept) in [
            ("../../etc/passwd", "passwd"),
            ("..\\\\evil.html", "evil.html"),
            ("/abs.txt", "abs.txt"),
            ("Größe.txt", "Größe.txt"),
            ("..", "file"),
        ] {
            let made = world.attach(&path, sent, "<script>alert(1)</script>").await.data();
            assert_eq!(made["name"], kept, "{sent}");
            let file = world.call("GET", made["url"].as_str().unwrap(), None).await;
            let header = |name: &str| file.headers[name].to_str().unwrap().to_owned();
            assert!(header("content-disposition").starts_with("attachment; filename="));
            assert_eq!(header("x-content-type-options"), "nosniff");
            assert!(header("content-security-policy").contains("sandbox"));
            assert_eq!(header("content-length"), "25");
            assert_eq!(file.bytes, b"<script>alert(1)</script>");
        }
        let large = "a".repeat(4 * 1024 * 1024);
        assert_eq!(world.attach(&path, "full.bin", &large).await.status, 201);
        assert_eq!(world.attach(&path, "over.bin", &format!("{large}a")).await.status, 413);
        let huge = "a".repeat(6 * 1024 * 1024);
        assert_eq!(world.attach(&path, "huge.bin", &huge).await.status, 413);
        let plain = world.call("POST", &path, Some(json!({ "file": "x" }))).await;
        assert_eq!(plain.status, 415);
        // Somebody else's comment is not mine to fill; a withdrawn one is gone with its files.
        let (_, hers) = world.member("kari@example.com").await;
        assert_eq!(world.attach_as(&hers, &path, "a.txt", "x").await.status, 403);
        let own = format!("/issues/ACME-1/comments/{}", comment["id"]);
        assert_eq!(world.call_as(&hers, "DELETE", &own, None).await.status, 403);
        assert_eq!(world.call("DELETE", &own, None).await.status, 204);
        assert_eq!(world.attach(&path, "a.txt", "x").await.status, 404);
        assert_eq!(world.call("DELETE", &own, None).await.status, 404);
        world.stop().await;
    }
}

on_both! {
    async fn f_037_file_paths_of_skills_that_climb_are_refused_when_they_are_saved(world) {
        let kept = world.post("/skills", json!({ "name": "kept", "content": "c" })).await;
        for path in [
            "../x",
            "/etc/passwd",
            "a/../../b",
            "C:\\x",
            "a\\..\\b",
            "",
            ".",
            "a//b",
            ".git/config",
            "a\u{1}b",
        ] {
            let files = json!([{ "path": path, "content": "x" }]);
            let body = json!({ "name": "tricky", "content": "c", "files": files });
            let reply = world.call("POST", "/skills", Some(body)).await;
            assert_eq!(reply.status, 422, "{path:?}: {}", reply.body);
            let own = format!("/skills/{}", kept["id"]);
            let reply = world.call("PATCH", &own, Some(json!({ "files": files }))).await;
            assert_eq!(reply.status, 422, "{path:?}: {}", reply.body);
        }
        let twice = json!([{ "path": "a.md", "content": "x" }, { "path": "A.md", "content": "y" }]);
        let body = json!({ "name": "twice", "content": "c", "files": twice });
        assert_eq!(world.call("POST", "/skills", Some(body)).await.status, 422);
        assert_eq!(world.get("/skills").await.as_array().unwrap().len(), 1);
        world.stop().await;
    }
}

on_both! {
    async fn f_051_an_address_with_a_credential_is_in_no_row_answer_or_log(world) {
        common::shown::capture();
        for url in [
            "https://user:hunter2@github.com/a/b.git",
            "https://hunter2@github.com/a/b",
            "ssh://git:hunter2@github.com/a/b",
        ] {
            let reply = world.call("POST", "/repositories", Some(json!({ "url": url }))).await;
            assert_eq!(reply.status, 422);
            assert!(!reply.body.to_string().contains("hunter2"), "{}", reply.body);
        }
        assert_eq!(world.get("/repositories").await, json!([]));
        // F-049
        let url = |owner: &str| json!({ "url": format!("https://github.com/{owner}/app.git") });
        let names = [
            world.post("/repositories", url("acme")).await,
            world.post("/repositories", url("other")).await,
        ];
        assert_eq!((&names[0]["name"], &names[1]["name"]), (&json!("acme-app"), &json!("other-app")));
        assert_eq!(world.call("POST", "/repositories", Some(url("acme"))).await.status, 409);
        common::shown::nowhere(&world.database, &["hunter2"], "github.com/acme/app").await;
        world.stop().await;
    }
}

on_both! {
    async fn secrets_of_agents_go_in_and_never_come_out_but_in_the_envelope(world) {
        common::shown::capture();
        world.register("m-1", "claude_code").await;
        let secret = "s3cr3t-value";
        let body = json!({ "name": "Freya", "provider": "claude_code",
            "custom_env": { "API_KEY": secret, "OTHER": "o" },
            "mcp_config": { "mail": { "token": secret } } });
        let made = world.post("/agents", body.clone()).await;
        let path = format!("/agents/{}", made["id"]);
        assert_eq!(made["custom_env_keys"], json!(["API_KEY", "OTHER"]));
        assert_eq!(made["mcp_servers"], json!(["mail"]));
        let changed = world.patch(&path, json!({ "custom_env": { "OTHER": null, "NEW": "n" } })).await;
        assert_eq!(changed["custom_env_keys"], json!(["API_KEY", "NEW"]));
        for path in [path.as_str(), "/agents"] {
            let reply = world.call("GET", path, None).await;
            assert!(!reply.body.to_string().contains(secret), "{}", reply.body);
        }
        let write = world.token_with(&["read", "write"]).await;
        let env = json!({ "custom_env": { "A": "b" } });
        assert_eq!(world.call_as(&write, "PATCH", &path, Some(env)).await.status, 403);
        let plain = json!({ "description": "d" });
        assert_eq!(world.call_as(&write, "PATCH", &path, Some(plain)).await.status, 200);
        for env in [
            json!({ "PATH": "x" }),
            json!({ "a b": "x" }),
            json!({ "A": 1 }),
            json!({ "A": "\u{0}" }),
            json!({ "": "x" }),
        ] {
            let reply = world.call("PATCH", &path, Some(json!({ "custom_env": env }))).await;
            assert_eq!(reply.status, 422, "{env}");
        }
        world.issue_for("Work", made["id"].as_i64().unwrap()).await;
        let claimed = world.machine("tasks/claim", None, json!({ "daemon_id": "m-1" })).await;
        let agent = &claimed.body["data"]["agent"];
        assert_eq!(agent["custom_env"], json!({ "API_KEY": secret, "NEW": "n" }));
        assert_eq!(agent["mcp_config"], json!({ "mail": { "token": secret } }));
        common::shown::nowhere(&world.database, &[secret], "Freya").await;
        world.stop().await;
    }

    async fn a_secret_of_another_row_does_not_open_and_is_not_overwritten(world) {
        let agent = |name: &str| json!({ "name": name, "provider": "claude_code",
            "custom_env": { "OWNER": name }, "mcp_config": { "mail": { "owner": name } } });
        world.post("/agents", agent("Freya")).await;
        let odin = world.post("/agents", agent("Odin")).await;
        let path = format!("/agents/{}", odin["id"]);
        // Whoever can write to the database moves a secret to where it can be read.
        let moves = "UPDATE agents SET sealed_env = (SELECT sealed_env FROM agents WHERE name = 'Freya'), \
                     sealed_mcp = sealed_env WHERE name = 'Odin'";
        assert_eq!(common::database::sql(&world.database, moves).await, 1);
        let shown = world.get(&path).await;
        assert_eq!((&shown["custom_env_keys"], &shown["mcp_servers"]), (&json!([]), &json!([])));
        for change in [json!({ "custom_env": { "A": "b" } }), json!({ "mcp_config": { "a": {} } })] {
            assert_eq!(world.call("PATCH", &path, Some(change)).await.status, 409);
        }
        world.register("m-1", "claude_code").await;
        world.issue_for("Work", odin["id"].as_i64().unwrap()).await;
        let claimed = world.machine("tasks/claim", None, json!({ "daemon_id": "m-1" })).await;
        assert_eq!(claimed.body["data"]["agent"]["custom_env"], json!({}));
        // Put back it is whole.
        let back = "UPDATE agents SET sealed_env = sealed_mcp WHERE name = 'Odin'";
        assert_eq!(common::database::sql(&world.database, back).await, 1);
        assert_eq!(world.get(&path).await["custom_env_keys"], json!(["OWNER"]));
        world.stop().await;
    }
}

async fn abilities(world: &World, token: &str) -> Value {
    world.call_as(token, "GET", "/me", None).await.body["token"]["abilities"].clone()
}

on_both! {
    async fn tokens_do_what_their_person_may_do_and_no_more(world) {
        let (kari, hers) = world.member("kari@example.com").await;
        // A token with the ability alone does not make her an administrator.
        let body = json!({ "name": "n", "kind": "api", "user_id": kari, "abilities": ["admin"] });
        let reply = world.call("POST", "/tokens", Some(body)).await;
        assert!(reply.body["errors"]["abilities"].is_array(), "{}", reply.body);
        let path = format!("/members/{kari}");
        world.patch(&path, json!({ "role": "admin" })).await;
        let all = ["read", "write", "admin"];
        let body = json!({ "name": "n", "kind": "api", "user_id": kari, "abilities": all });
        let strong = world.post("/tokens", body).await["token"].as_str().unwrap().to_owned();
        assert_eq!(abilities(&world, &strong).await, json!(["read", "write", "admin"]));
        world.patch(&path, json!({ "role": "member" })).await;
        // What she may not do any more her tokens may not either.
        assert_eq!(abilities(&world, &strong).await, json!(["read", "write"]));
        let me = world.call("GET", "/me", None).await.body["user"]["id"].clone();
        for user in [&me, &json!(kari)] {
            let body = json!({ "name": "n", "kind": "daemon", "user_id": user });
            assert_eq!(world.call_as(&strong, "POST", "/tokens", Some(body)).await.status, 403);
        }
        let env = json!({ "name": "Hers", "provider": "codex", "custom_env": { "A": "b" } });
        assert_eq!(world.call_as(&strong, "POST", "/agents", Some(env)).await.status, 403);
        let listed = world.get("/tokens").await;
        let ours = listed.as_array().unwrap().iter().find(|it| it["user"]["id"] == me).unwrap();
        let path = format!("/tokens/{}", ours["id"]);
        for (method, path) in [("GET", "/tokens"), ("DELETE", path.as_str())] {
            assert_eq!(world.call_as(&strong, method, path, None).await.status, 403);
        }
        let body = json!({ "role": "admin" });
        let own = format!("/members/{kari}");
        assert_eq!(world.call_as(&strong, "PATCH", &own, Some(body)).await.status, 403);
        // F-003: removed, her tokens stop.
        assert_eq!(world.call("DELETE", &own, None).await.status, 204);
        for token in [&hers, &strong] {
            assert_eq!(world.call_as(token, "GET", "/me", None).await.status, 401);
        }
        let last = format!("/members/{me}");
        assert_eq!(world.call("DELETE", &last, None).await.status, 409);
        assert_eq!(world.call("PATCH", &last, Some(json!({ "role": "member" }))).await.status, 409);
        world.stop().await;
    }
}

on_both! {
    async fn one_timer_runs_at_a_time_and_stopping_books_it(world) {
        for title in ["One", "Two"] {
            world.post("/issues", json!({ "title": title })).await;
        }
        let first = world.call("POST", "/issues/ACME-1/timer", None).await.data();
        let again = world.call("POST", "/issues/acme-1/timer", None).await.data();
        assert_eq!(first, again);
        world.call("POST", "/issues/ACME-2/timer", None).await.data();
        assert_eq!(world.get("/timer").await["issue"], "ACME-2");
        assert_eq!(world.get("/time-entries").await[0]["issue"], "ACME-1");
        let (_, hers) = world.member("kari@example.com").await;
        assert_eq!(world.call_as(&hers, "GET", "/timer", None).await.data(), Value::Null);
        assert_eq!(world.call_as(&hers, "GET", "/time-entries?mine=1", None).await.data(), json!([]));
        // Stopped many times at once it is booked once.
        let stops = (0..8).map(|_| world.call("DELETE", "/timer", None));
        let booked = futures_util::future::join_all(stops).await.into_iter();
        assert_eq!(booked.filter(|reply| !reply.body["data"].is_null()).count(), 1);
        assert_eq!(world.get("/time-entries?to=2020-01-01").await, json!([]));
        assert_eq!(world.get("/time-entries?from=2020-01-01").await.as_array().unwrap().len(), 2);
        world.stop().await;
    }
}

on_both! {
    async fn f_077_sums_are_exact_beyond_what_a_database_adds(world) {
        world.register("m-1", "claude_code").await;
        let agent = world.agent("Freya", "claude_code").await;
        for number in 0..3 {
            world.issue_for(&format!("Issue {number}"), agent).await;
            let (task, lease) = world.claim("m-1").await.unwrap();
            let usage = json!({ "cost_micros": i64::MAX - number, "output_tokens": 7 });
            let result = json!({ "result": { "usage": usage } });
            world.machine(&format!("tasks/{task}/complete"), Some(&lease), result).await;
        }
        let url = world.url("/api/v1/usage?by=agent");
        let answer = world.client.get(url).bearer_auth(&world.token).send().await.unwrap();
        let text = answer.text().await.unwrap();
        let sum = 3 * i128::from(i64::MAX) - 3;
        assert!(text.contains(&format!("\"cost_micros\":{sum}")), "{text}");
        assert!(
            text.contains("\"output_tokens\":21") && text.contains("\"input_tokens\":null"),
            "{text}"
        );
        world.stop().await;
    }
}

/// Of no App: made for tests.
const KEY: &str = include_str!("../src/github/testdata/app-pkcs8.pem");

on_both! {
    async fn a_github_apps_key_stays_with_the_app_and_the_address_that_it_was_given_for(world) {
        let set = async |app: Value| {
            let body = json!({ "name": "Acme", "github_app": app });
            world.call("PATCH", "/workspace", Some(body)).await
        };
        for (field, bad) in [
            ("private_key", json!({ "app_id": "7" })),
            ("private_key", json!({ "app_id": "7", "private_key": "-----BEGIN PRIVATE KEY-----\nx\n" })),
            ("base_url", json!({ "app_id": "7", "private_key": KEY, "base_url": "http://ghe.example" })),
            ("base_url", json!({ "app_id": "7", "private_key": KEY, "base_url": "https://u:p@ghe.example" })),
            ("instalation_id", json!({ "app_id": "7", "private_key": KEY, "instalation_id": "1" })),
        ] {
            let reply = set(bad).await;
            assert_eq!(reply.status, 422, "{field}: {}", reply.body);
            let faults = &reply.body["errors"][format!("github_app.{field}")];
            assert!(faults.is_array(), "{field}: {}", reply.body);
        }
        let ours = "https://ghe.example/api/v3";
        let given = json!({ "app_id": "7", "private_key": KEY, "base_url": ours });
        assert_eq!(set(given).await.status, 200);
        for thief in [
            json!({ "app_id": "7", "base_url": "https://thief.example" }),
            json!({ "app_id": "7" }),
            json!({ "app_id": "8", "base_url": ours }),
        ] {
            let reply = set(thief).await;
            assert!(reply.body["errors"]["github_app.private_key"].is_array(), "{}", reply.body);
            let kept = world.get("/workspace").await["github_app"].clone();
            assert_eq!((&kept["base_url"], &kept["app_id"]), (&json!(ours), &json!("7")));
        }
        // The rest changes without it, and with it everything does.
        let same = json!({ "app_id": "7", "base_url": format!("{ours}/"), "installation_id": "42" });
        assert_eq!(set(same).await.data()["github_app"]["installation_id"], "42");
        let moved = json!({ "app_id": "8", "private_key": KEY });
        assert_eq!(set(moved).await.data()["github_app"]["base_url"], "https://api.github.com");
        world.stop().await;
    }

    async fn what_is_misspelled_is_refused_with_what_may_have_been_meant(world) {
        world.post("/issues", json!({ "title": "One" })).await;
        let reply = world.call("GET", "/issues?asignee=me&per_page=2", None).await;
        assert_eq!(reply.status, 422, "{}", reply.body);
        let fault = reply.body["errors"]["asignee"][0].as_str().unwrap();
        assert!(fault.contains("did you mean assignee?"), "{fault}");
        assert!(reply.body["message"].as_str().unwrap().ends_with("assignee?"), "{}", reply.body);
        for (path, fault) in [
            ("/agents?archived=1,0", "must be 1, true, 0 or false"),
            ("/time-entries?mine=x", "must be 1, true, 0 or false"),
            ("/issues?per_page=0", "must be an integer from 1 on; a page has 100 at most"),
            ("/events?after=1", "is not a parameter of this request"),
        ] {
            let reply = world.call("GET", path, None).await;
            assert_eq!(reply.status, 422, "{path}");
            assert!(reply.body["message"].as_str().unwrap().contains(fault), "{}", reply.body);
        }
        assert_eq!(world.call("POST", "/issues?title=x", Some(json!({ "title": "T" }))).await.status, 422);
        let files = json!([{ "path": "a.md", "content": "x" }, { "path": "b.md", "contents": "x", "content": "" }]);
        let skill = json!({ "name": "s", "content": "c", "files": files });
        let reply = world.call("POST", "/skills", Some(skill)).await;
        let fault = reply.body["errors"]["files.1.contents"][0].as_str().unwrap();
        assert!(fault.contains("did you mean content?"), "{fault}");
        let reply = world.call("POST", "/projects", Some(json!({ "name": "P", "zzzzzz": 1 }))).await;
        assert_eq!(reply.body["errors"]["zzzzzz"], json!(["is not a field of this request"]));
        world.stop().await;
    }

    async fn nothing_that_a_person_writes_is_cut_or_lost_silently(world) {
        let issue = world.post("/issues", json!({ "title": "One" })).await["id"].clone();
        let (issue, comments) = (
            format!("/issues/{}", issue.as_str().unwrap()),
            format!("/issues/{}/comments", issue.as_str().unwrap()),
        );
        let fits = "é".repeat(128 * 1024);
        let said = world.post(&comments, json!({ "body": fits })).await;
        assert_eq!(said["body"], json!(fits));
        let changed = world.patch(&issue, json!({ "description": fits })).await;
        assert_eq!(changed["description"], json!(fits));
        // One byte more, four times as many bytes as characters, and what becomes longer when it is clean.
        let links = "<a href=\"https://a.example\">x</a>".repeat(6_000);
        for long in [format!("{fits}x"), "\u{1F600}".repeat(200_000), links] {
            let reply = world.call("POST", &comments, Some(json!({ "body": long }))).await;
            assert!(reply.body["errors"]["body"].is_array(), "{}", reply.body);
            let reply = world.call("PATCH", &issue, Some(json!({ "description": long }))).await;
            assert!(reply.body["errors"]["description"].is_array(), "{}", reply.body);
        }
        for blank in ["<script>alert(1)</script>", "<p> </p>", " \n", "<!-- x -->", "<img src=\"data:image/png;base64,x\">"] {
            let reply = world.call("POST", &comments, Some(json!({ "body": blank }))).await;
            assert_eq!(reply.status, 422, "{blank}: {}", reply.body);
        }
        world.post(&comments, json!({ "body": "<img src=\"https://a.example/x.png\">" })).await;
        assert_eq!(world.get(&comments).await.as_array().unwrap().len(), 2);
        world.stop().await;
    }
}
