//! Every endpoint of `/api/v1` once, in a life as a team has it; each answer is held against the document.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests"
)]

#[macro_use]
mod common;

use common::{MARK, World, furnish};
use ostler_server::machine;
use ostler_server::people::{ENDPOINTS, FILE};
use serde_json::{Value, json};

/// Of no App: made for tests.
const KEY: &str = include_str!("../src/github/testdata/app-pkcs8.pem");

on_both! {
    async fn every_endpoint_answers_as_the_document_says(world) {
        let me = world.call("GET", "/me", None).await;
        assert_eq!(me.status, 200);
        assert_eq!(me.body["workspace"], json!({ "name": "acme", "slug": "acme" }));
        assert_eq!(me.body["token"]["abilities"], json!(["read", "write", "admin"]));
        let user = me.body["user"]["id"].as_i64().unwrap();
        issues(&world, user).await;
        agents_and_skills(&world).await;
        runs(&world).await;
        workspace(&world).await;
        assert_eq!(world.untried(), Vec::<String>::new());
        world.stop().await;
    }
}

async fn issues(world: &World, user: i64) {
    let project = world.post("/projects", json!({ "name": "Web" })).await;
    assert_eq!(world.get("/projects").await, json!([project]));
    let body = json!({ "title": " Fix  the\nredirect ", "description": "<p>Do</p>",
        "acceptance_criteria": ["It redirects"], "priority": "high", "type": "bug",
        "estimate_minutes": 30, "project_id": project["id"], "assignee_type": "user",
        "assignee_id": user });
    let issue = world.post("/issues", body).await;
    assert_eq!((&issue["id"], &issue["number"]), (&json!("ACME-1"), &json!(1)));
    assert_eq!((&issue["title"], &issue["status"]), (&json!("Fix the redirect"), &json!("todo")));
    assert_eq!(issue["project"], project);
    assert_eq!(issue["assignee"], json!({ "type": "user", "id": user, "name": "admin" }));
    assert_eq!(world.get("/issues/acme-1").await, issue);
    assert_eq!(world.get("/issues?assignee=me&status=todo").await, json!([issue]));
    let changed =
        world.patch("/issues/ACME-1", json!({ "status": "in_progress", "project_id": null })).await;
    assert_eq!((&changed["status"], &changed["project"]), (&json!("in_progress"), &Value::Null));

    let comment = world.post("/issues/ACME-1/comments", json!({ "body": "<p>Hi</p>" })).await;
    assert_eq!((&comment["body"], &comment["is_agent"]), (&json!("<p>Hi</p>"), &json!(false)));
    let path = format!("/issues/ACME-1/comments/{}", comment["id"]);
    let file = world.attach(&format!("{path}/attachments"), "a.txt", "hello").await;
    assert_eq!(file.status, 201);
    let url = file.data()["url"].as_str().unwrap().to_owned();
    assert_eq!(world.call("GET", &url, None).await.bytes, b"hello");
    let listed = world.get("/issues/ACME-1/comments").await;
    assert_eq!(listed[0]["attachments"][0]["name"], "a.txt");
    assert_eq!(world.call("DELETE", &path, None).await.status, 204);
    assert_eq!(world.get("/issues/ACME-1/comments").await, json!([]));

    let time = world.post("/issues/ACME-1/time", json!({ "minutes": 25, "note": "read" })).await;
    assert_eq!((&time["issue"], &time["minutes"]), (&json!("ACME-1"), &json!(25)));
    assert_eq!(world.get("/timer").await, Value::Null);
    assert_eq!(world.call("POST", "/issues/ACME-1/timer", None).await.data()["issue"], "ACME-1");
    assert_eq!(world.get("/timer").await["issue"], "ACME-1");
    assert_eq!(world.call("DELETE", "/timer", None).await.data()["issue"], "ACME-1");
    assert_eq!(world.get("/time-entries?mine=1").await.as_array().unwrap().len(), 2);
    assert_eq!(world.get("/issues/ACME-1").await["spent_minutes"], 25);
}

async fn agents_and_skills(world: &World) {
    let agent = world.post("/agents", json!({ "name": "Odin", "provider": "codex" })).await;
    let path = format!("/agents/{}", agent["id"]);
    let changed = world.patch(&path, json!({ "paused": true, "model": "m" })).await;
    assert_eq!((&changed["paused"], &changed["model"]), (&json!(true), &json!("m")));
    let skill = json!({ "name": "deploy", "content": "## Deploying",
        "files": [{ "path": "examples/rollback.md", "content": "…" }] });
    let skill = world.post("/skills", skill).await;
    let skill_path = format!("/skills/{}", skill["id"]);
    assert_eq!(world.get(&skill_path).await, skill);
    assert_eq!(world.get("/skills").await[0]["files"], 1);
    let changed = world.patch(&skill_path, json!({ "files": [] })).await;
    assert_eq!((&changed["files"], &changed["content"]), (&json!([]), &json!("## Deploying")));
    let attached = format!("{path}{skill_path}");
    assert_eq!(world.call("PUT", &attached, None).await.status, 204);
    assert_eq!(world.get(&path).await["skills"][0]["name"], "deploy");
    assert_eq!(world.call("DELETE", &attached, None).await.status, 204);
    assert_eq!(world.call("DELETE", &skill_path, None).await.status, 204);
    assert_eq!(world.call("DELETE", &path, None).await.status, 204);
    assert_eq!(world.get("/agents").await, json!([]));
    assert_eq!(world.get("/agents?archived=1").await[0]["name"], "Odin");
}

async fn runs(world: &World) {
    let runtime = world.register("m-9", "claude_code").await;
    assert_eq!(world.get("/runtimes").await[0]["id"], json!(runtime));
    assert_eq!(world.get(&format!("/runtimes/{runtime}")).await["status"], "online");
    let agent = world.agent("Freya", "claude_code").await;
    assert_eq!(world.get(&format!("/agents/{agent}")).await["online"], true);
    let issue = world.issue_for("Work", agent).await;
    let (task, lease) = world.claim("m-9").await.unwrap();
    let at = |what: &str| format!("tasks/{task}/{what}");
    world.machine(&at("start"), Some(&lease), json!({})).await;
    let lines = json!({ "messages": [{ "seq": 1, "type": "assistant", "content": "one" },
        { "seq": 2, "type": "tool_use", "tool": "Bash", "payload": { "command": "ls" } }] });
    world.machine(&at("messages"), Some(&lease), lines).await;
    let wait = json!({ "waiting_for": "approval", "summary": "Send it?" });
    world.machine(&at("await"), Some(&lease), wait).await;
    assert_eq!(world.get("/approvals").await[0]["summary"], "Send it?");
    assert_eq!(world.get(&format!("/issues/{issue}")).await["waiting"]["waiting_for"], "approval");
    let decision = json!({ "decision": "approved", "note": "go" });
    world.post(&format!("/tasks/{task}/decision"), decision).await;
    let resumed = world.machine(&at("resume"), None, json!({ "daemon_id": "m-9" })).await;
    let lease = resumed.body["lease_token"].as_str().unwrap().to_owned();
    let result = json!({ "result": { "summary": "Done", "usage": { "cost_micros": 130_720 },
        "receipt": { "verdict": "succeeded" },
        "artifacts": [{ "type": "branch", "reference": "felagi/ACM-1" }] } });
    assert_eq!(world.machine(&at("complete"), Some(&lease), result).await.status, 200);

    let detail = world.get(&format!("/tasks/{task}")).await;
    assert_eq!((&detail["status"], &detail["why_queued"]), (&json!("completed"), &Value::Null));
    assert_eq!(detail["usage"]["cost_micros"], 130_720);
    assert_eq!(detail["usage"]["input_tokens"], Value::Null);
    assert_eq!(detail["receipt"]["verdict"], "succeeded");
    let lines = world.get(&format!("/tasks/{task}/messages?after=1")).await;
    assert_eq!(lines[0]["payload"]["command"], "ls");
    assert_eq!(world.get(&format!("/issues/{issue}/deliveries")).await[0]["type"], "branch");
    for by in ["issue", "agent", "project", "day"] {
        assert_eq!(world.get(&format!("/usage?by={by}")).await[0]["cost_micros"], 130_720, "{by}");
    }
    let retried = world.call("POST", &format!("/tasks/{task}/retry"), None).await.data();
    assert_eq!(retried["status"], "queued");
    let canceled = world.call("POST", &format!("/tasks/{task}/cancel"), None).await.data();
    assert_eq!(canceled["status"], "canceled");
    assert_eq!(world.get("/tasks?state=canceled,failed").await[0]["id"], json!(task));
}

async fn workspace(world: &World) {
    let app = json!({ "app_id": "12", "private_key": KEY });
    let body = json!({ "name": "Acme", "context": "Be kind", "github_app": app });
    let changed = world.patch("/workspace", body).await;
    assert_eq!((&changed["name"], &changed["context"]), (&json!("Acme"), &json!("Be kind")));
    assert_eq!(world.get("/workspace").await, changed);
    assert!(!changed.to_string().contains("PRIVATE"), "{changed}");
    let repository =
        world.post("/repositories", json!({ "url": "git@github.com:acme/app.git" })).await;
    assert_eq!(repository["name"], "acme-app");
    assert_eq!(world.get("/repositories").await, json!([repository]));
    let path = format!("/repositories/{}", repository["id"]);
    assert_eq!(world.call("DELETE", &path, None).await.status, 204);
    let member = world.post("/members", json!({ "email": "Kari@example.com" })).await;
    assert_eq!((&member["email"], &member["role"]), (&json!("kari@example.com"), &json!("member")));
    let path = format!("/members/{}", member["id"]);
    assert_eq!(world.patch(&path, json!({ "role": "admin" })).await["role"], "admin");
    assert_eq!(world.get("/members").await.as_array().unwrap().len(), 2);
    assert_eq!(world.call("DELETE", &path, None).await.status, 204);
    let token = world.post("/tokens", json!({ "name": "mac", "kind": "daemon", "days": 90 })).await;
    let prefix = token["prefix"].as_str().unwrap();
    assert!(token["token"].as_str().unwrap().starts_with(prefix));
    let listed = world.get("/tokens").await;
    assert_eq!((&listed[0]["prefix"], &listed[0]["token"]), (&json!(prefix), &Value::Null));
    let path = format!("/tokens/{}", token["id"]);
    assert_eq!(world.call("DELETE", &path, None).await.status, 204);
}

on_both! {
    async fn the_document_describes_both_tables_and_nothing_else(world) {
        let mut described: Vec<String> = Vec::new();
        for (path, operations) in world.document["paths"].as_object().unwrap() {
            let methods = operations.as_object().unwrap().keys();
            described.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
        }
        let mut tables: Vec<String> =
            ENDPOINTS.iter().map(|it| format!("{} {}", it.method, it.path)).collect();
        tables.extend(machine::ENDPOINTS.iter().map(|it| format!("POST {}", it.path)));
        // The stream stands apart.
        tables.push("GET /api/v1/events".to_owned());
        described.sort();
        tables.sort();
        assert_eq!(described, tables);
        // Every reference leads somewhere.
        let text = world.document.to_string();
        for part in text.split("\"$ref\":\"").skip(1) {
            common::schema::follow(&world.document, part.split('"').next().unwrap());
        }
        // The router knows each of them: an unknown path is answered 404 without a token, these 401.
        for row in ENDPOINTS {
            let path = row.path.replace(['{', '}'], "");
            let request = world.client.request(row.method.parse().unwrap(), world.url(&path));
            assert_eq!(world.send(request).await.status, 401, "{} {}", row.method, row.path);
        }
        world.stop().await;
    }
}

on_both! {
    async fn lists_go_on_at_links_next_and_newest_activity_comes_first(world) {
        for number in 1..=5 {
            world.post("/issues", json!({ "title": format!("Issue {number}") })).await;
        }
        world.post("/issues/ACME-2/comments", json!({ "body": "news" })).await;
        let mut url = "/issues?per_page=2&status=todo,backlog".to_owned();
        let mut seen = Vec::new();
        loop {
            let page = world.call("GET", &url, None).await;
            let ids = page.body["data"].as_array().unwrap().iter();
            seen.extend(ids.map(|it| it["id"].as_str().unwrap().to_owned()));
            let Some(next) = page.body["links"]["next"].as_str() else { break };
            let start = world.url("");
            url = next.strip_prefix(&start).expect("an address of this server").to_owned();
        }
        assert_eq!(seen, ["ACME-2", "ACME-5", "ACME-4", "ACME-3", "ACME-1"]);
        world.stop().await;
    }
}

on_both! {
    async fn a_token_of_another_workspace_finds_nothing_of_ours(world) {
        let things = furnish(&world).await;
        // The same prefix: an identifier alone must not lead here.
        let (other, _) = world.other("acme-two").await;
        for row in ENDPOINTS {
            if row.path.contains('{') {
                let path = things.path(row.path);
                let reply = if row.body == Some(FILE) {
                    let path = path.replace("/api/v1", "");
                    world.attach_as(&other, &path, "a.txt", "x").await
                } else {
                    world.call_as(&other, row.method, &path, row.body.map(common::sample)).await
                };
                assert_eq!(reply.status, 404, "{} {}: {}", row.method, row.path, reply.body);
            } else if row.method == "GET" {
                let reply = world.call_as(&other, "GET", row.path, None).await;
                let text = String::from_utf8(reply.bytes).unwrap();
                assert!(!text.contains(MARK), "{} {text}", row.path);
            }
        }
        world.stop().await;
    }
}
