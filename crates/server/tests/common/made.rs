//! Agents and their issues, made as a command on the same machine makes them.

use ostler_server::Admin;
use serde_json::json;

/// An agent in `acme` that Claude Code runs; its id.
pub(crate) async fn agent(admin: &Admin, name: &str, concurrency: i64) -> i64 {
    let agent = json!({ "name": name, "provider": "claude_code", "concurrency": concurrency });
    admin.one("acme", "POST", "/agents", &[], agent).await.unwrap()["id"].as_i64().unwrap()
}

/// An issue for the agent.
pub(crate) async fn issue_for(admin: &Admin, title: &str, agent: i64) {
    let issue = json!({ "title": title, "assignee_type": "agent", "assignee_id": agent });
    admin.one("acme", "POST", "/issues", &[], issue).await.unwrap();
}
