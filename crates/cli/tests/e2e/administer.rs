//! The server's administration on its machine, and an issue's way through it.

use serde_json::{Value, json};

use crate::rig::{Done, Rig, Running, finish, finish_with_input};
use crate::server::{http, json_of, machine, register, serve, stop};

const IN_ACME: [&str; 2] = ["--workspace", "acme"];

/// A workspace with an agent; its API token.
pub(crate) fn acme(rig: &Rig) -> String {
    let made = json_of(&mut rig.ostler([
        "server",
        "init",
        "--workspace",
        "acme",
        "--email",
        "boss@example.com",
        "--json",
    ]));
    admin_json(rig, &["agent", "create"], &["--name", "Freya", "--provider", "claude_code"]);
    made["api_token"].as_str().unwrap().to_owned()
}

pub(crate) fn admin(rig: &Rig, words: &[&str], args: &[&str]) -> Done {
    finish(rig.ostler(["server"]).args(words).args(IN_ACME).args(args))
}

#[track_caller]
pub(crate) fn admin_json(rig: &Rig, words: &[&str], args: &[&str]) -> Value {
    let done = admin(rig, words, &[args, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

pub(crate) fn issue(rig: &Rig, token: &str, args: &[&str]) -> Done {
    finish(rig.ostler(["issue"]).args(args).env("OSTLER_TOKEN", token))
}

/// A fixed name: other programs use it.
#[test]
fn f_007_f_006_a_token_is_shown_once_works_and_stops_when_it_is_revoked() {
    let rig = Rig::new();
    acme(&rig);
    let (server, url) = serve(&rig, &[]);
    let args = ["--user", "boss@example.com", "--name", "lap", "--days", "3", "--kind", "daemon"];
    let made = admin_json(&rig, &["token", "create"], &args);
    let token = made["token"].as_str().unwrap();
    assert!(token.starts_with("fdt_"), "{made}");
    assert_eq!(register(&url, token), 201);
    let listed = admin_json(&rig, &["token", "list"], &[]);
    let row = listed.as_array().unwrap().iter().find(|row| row["id"] == made["id"]).unwrap();
    assert_eq!((row["name"].as_str(), row["kind"].as_str()), (Some("lap"), Some("daemon")));
    assert_eq!(row["prefix"], token[..12]);
    assert!(row["expires_at"].is_string() && row["revoked_at"].is_null());
    assert!(!listed.to_string().contains(token), "{listed}");
    let id = made["id"].to_string();
    let done = admin(&rig, &["token", "revoke", &id], &[]);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(0), format!("token {id} revoked\n").as_str())
    );
    ostler_testkit::process::wait_until("it is refused", crate::rig::PATIENCE, || {
        register(&url, token) == 401
    });
    let nobody = ["--user", "x@example.com", "--name", "n", "--days", "1", "--kind", "api"];
    let done = admin(&rig, &["token", "create"], &nobody);
    assert_eq!(done.code, Some(4), "{done:?}");
    let done = admin(
        &rig,
        &["token", "create"],
        &[&args[..4], &["--days", "0", "--kind", "api"]].concat(),
    );
    assert_eq!(done.code, Some(2), "{done:?}");
    stop(server);
}

#[test]
fn agents_are_made_changed_paused_and_archived() {
    let rig = Rig::new();
    acme(&rig);
    let freya = ["--name", "Freya"];
    let changed =
        admin_json(&rig, &["agent", "update"], &[&freya[..], &["--concurrency", "3"]].concat());
    assert_eq!((&changed["concurrency"], &changed["provider"]), (&json!(3), &json!("claude_code")));
    assert_eq!(admin_json(&rig, &["agent", "pause"], &freya)["paused"], true);
    assert_eq!(admin_json(&rig, &["agent", "resume"], &freya)["paused"], false);
    let table = admin(&rig, &["agent", "list"], &[]).stdout;
    let rows: Vec<_> = table.lines().collect();
    assert!(rows[0].starts_with("ID") && rows[1].contains("Freya"), "{table}");
    assert!(!table.contains('\u{1b}'), "{table}");
    admin_json(&rig, &["agent", "archive"], &freya);
    assert_eq!(admin_json(&rig, &["agent", "list"], &[]), json!([]));
    assert_eq!(admin_json(&rig, &["agent", "list"], &["--archived"])[0]["name"], "Freya");
    let shown = admin_json(&rig, &["agent", "show"], &freya);
    assert!(shown["archived_at"].is_string(), "an archived one is shown: {shown}");
    assert_eq!(admin(&rig, &["agent", "pause"], &freya).code, Some(4), "but not changed");
    let back = admin_json(&rig, &["agent", "restore"], &freya);
    assert_eq!((&back["id"], &back["archived_at"]), (&shown["id"], &Value::Null));
    let again = admin(&rig, &["agent", "restore"], &freya);
    assert!(again.code == Some(4) && again.stderr.contains("no archived agent"), "{again:?}");
    let made = admin_json(&rig, &["agent", "create"], &["--name", "X"]);
    assert_eq!(made["provider"], "claude_code");
    let short = admin_json(&rig, &["agent", "create"], &["--name", "Y", "--provider", "claude"]);
    assert_eq!(short["provider"], "claude_code");
    let listed = admin_json(&rig, &["agent", "list"], &["--name", "X"]);
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["id"]), (1, &made["id"]));
    for command in [&["agent", "update", "--name", "X"][..], &["workspace", "update"]] {
        let done = admin(&rig, command, &[]);
        assert!(done.code == Some(2) && done.stderr.contains("nothing to change"), "{done:?}");
    }
    let done = admin(&rig, &["agent", "show"], &["--name", "Nobody"]);
    assert!(done.code == Some(4) && done.stderr.contains("\"Nobody\""), "{done:?}");
    let done = finish(&mut rig.ostler(["server", "agent", "list", "--workspace", "other"]));
    assert!(done.code == Some(4) && done.stderr.contains("\"other\""), "{done:?}");
}

#[test]
fn f_037_a_skill_is_made_from_a_folder_and_paths_that_climb_do_not_come_from_links() {
    let rig = Rig::new();
    acme(&rig);
    let folder = rig.scratch.path().join("skill");
    std::fs::create_dir_all(folder.join("tools")).unwrap();
    std::fs::write(folder.join("SKILL.md"), "# Deploy\n").unwrap();
    std::fs::write(folder.join("tools/run.sh"), "true\n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("secret")).unwrap();
    let path = folder.to_str().unwrap();
    let made = admin(&rig, &["skill", "create"], &["--name", "deploy", path, "--json"]);
    assert!(made.stderr.contains("left out 1 links"), "{made:?}");
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(made["content"], "# Deploy\n");
    assert_eq!(made["files"], json!([{ "path": "tools/run.sh", "content": "true\n" }]));
    let attach = admin(&rig, &["skill", "attach"], &["--name", "deploy", "--agent", "Freya"]);
    assert_eq!(attach.code, Some(0), "{attach:?}");
    let freya = admin_json(&rig, &["agent", "show"], &["--name", "Freya"]);
    assert_eq!(freya["skills"][0]["name"], "deploy");
    assert_eq!(admin(&rig, &["skill", "remove"], &["--name", "deploy"]).code, Some(0));
    assert_eq!(admin_json(&rig, &["skill", "list"], &[]), json!([]));
}

/// What begins with a dot is not meant: `.env` has secrets, `.git` has everything.
#[test]
fn a_skills_folder_is_taken_without_hidden_files_and_with_text_only() {
    let rig = Rig::new();
    acme(&rig);
    let folder = rig.scratch.path().join("skill");
    std::fs::create_dir_all(folder.join(".git/objects")).unwrap();
    std::fs::create_dir_all(folder.join("tools")).unwrap();
    for file in ["SKILL.md", "tools/run.sh", ".env", "tools/.cache", ".git/config"] {
        std::fs::write(folder.join(file), "hunter2\n").unwrap();
    }
    std::fs::write(folder.join(".git/objects/pack"), [0xff, 0]).unwrap();
    let args = ["--name", "deploy", folder.to_str().unwrap()];
    let made = admin(&rig, &["skill", "create"], &[&args[..], &["--json"]].concat());
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(made.stderr.contains("left out 3 files and folders"), "{made:?}");
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(made["files"], json!([{ "path": "tools/run.sh", "content": "hunter2\n" }]));
    std::fs::write(folder.join("tools/logo.png"), [0xff, 0xd8, 0]).unwrap();
    let done = admin(&rig, &["skill", "update"], &args);
    assert_eq!(done.code, Some(2), "{done:?}");
    for part in ["tools/logo.png", "text files, UTF-8"] {
        assert!(done.stderr.contains(part), "{done:?}");
    }
}

#[test]
fn f_007_init_makes_a_plain_member_an_administrator() {
    let rig = Rig::new();
    acme(&rig);
    let dev = ["--email", "dev@example.com"];
    admin_json(&rig, &["user", "create"], &dev);
    let made = json_of(rig.ostler(["server", "init", "--json"]).args(IN_ACME).args(dev));
    let users = admin_json(&rig, &["user", "list"], &[]);
    let dev = users.as_array().unwrap().iter().find(|user| user["email"] == dev[1]).unwrap();
    assert_eq!(dev["role"], "admin", "{users}");
    // The token's `admin` means something.
    let (server, url) = serve(&rig, &[]);
    let bearer = format!("Bearer {}", made["api_token"].as_str().unwrap());
    let new = json!({ "email": "new@example.com" }).to_string();
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let (status, answer) = http(&url, "POST", "/api/v1/members", &headers, &new);
    assert_eq!(status, 201, "{answer}");
    stop(server);
}

#[test]
fn what_is_secret_of_an_agent_comes_from_files_and_is_not_repeated() {
    let rig = Rig::new();
    acme(&rig);
    let (env, mcp) = (rig.scratch.path().join("env"), rig.scratch.path().join("mcp.json"));
    std::fs::write(&env, "# for deploys\n\nAPI_KEY=hunter2=\nREGION=eu\n").unwrap();
    std::fs::write(&mcp, r#"{"search": {"command": "mcp-hunter2"}}"#).unwrap();
    let files = ["--env-file", env.to_str().unwrap(), "--mcp-config", mcp.to_str().unwrap()];
    let update = |args: &[&str]| admin(&rig, &["agent", "update", "--name", "Freya"], args);
    let done = update(&[&files[..], &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    let made: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(made["custom_env_keys"], json!(["API_KEY", "REGION"]));
    assert_eq!(made["mcp_servers"], json!(["search"]));
    assert!(!done.stdout.contains("hunter2"), "{done:?}");
    std::fs::write(&env, "REGION\n").unwrap();
    let made = update(&["--env-file", env.to_str().unwrap(), "--json"]);
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(made["custom_env_keys"], json!(["API_KEY"]), "the rest stays");
    std::fs::write(&mcp, "{\"search\": hunter2}").unwrap();
    let done = update(&files);
    assert!(done.code == Some(2) && done.stderr.contains("line 1, column"), "{done:?}");
    assert!(!done.stderr.contains("hunter2"), "{done:?}");
}

#[test]
fn f_050_f_051_repositories_are_put_on_the_list_and_taken_off() {
    let rig = Rig::new();
    acme(&rig);
    let url = "https://github.com/acme/api.git";
    let made = admin_json(&rig, &["repository", "add"], &[url]);
    assert_eq!((&made["name"], &made["url"]), (&json!("acme-api"), &json!(url)));
    let table = admin(&rig, &["repository", "list"], &[]).stdout;
    assert!(table.contains("acme-api") && table.contains(url), "{table}");
    let bad = admin(&rig, &["repository", "add"], &["https://me:hunter2@github.com/acme/web"]);
    assert!(bad.code == Some(2) && !bad.stderr.contains("hunter2"), "{bad:?}");
    let done = admin(&rig, &["repository", "remove", &made["id"].to_string()], &[]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(admin_json(&rig, &["repository", "list"], &[]), json!([]));
}

/// A machine with a task that runs; its id, lease and the machine's token.
fn running_task(rig: &Rig, url: &str, token: &str) -> (String, String, String) {
    let made = issue(rig, token, &["create", "Count", "--assign", "Freya"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let args = ["--user", "boss@example.com", "--name", "lap", "--days", "3", "--kind", "daemon"];
    let machine_token = admin_json(rig, &["token", "create"], &args);
    let machine_token = machine_token["token"].as_str().unwrap().to_owned();
    assert_eq!(register(url, &machine_token), 201);
    let claim = json!({ "daemon_id": "m-1" });
    let (_, claimed) = machine(url, &machine_token, "tasks/claim", "", &claim).unwrap();
    let text = |name: &str| claimed["data"][name].as_str().unwrap().to_owned();
    let (task, lease) = (text("id"), text("lease_token"));
    let start = machine(url, &machine_token, &format!("tasks/{task}/start"), &lease, &json!({}));
    assert_eq!(start.unwrap().0, 200);
    (task, lease, machine_token)
}

#[test]
fn f_071_what_a_task_printed_is_shown_and_followed_to_its_end() {
    let rig = Rig::new();
    let token = acme(&rig);
    let (server, url) = serve(&rig, &[]);
    let (task, lease, machine_token) = running_task(&rig, &url, &token);
    let call = |what: &str, body: Value| {
        let path = format!("tasks/{task}/{what}");
        machine(&url, &machine_token, &path, &lease, &body).unwrap().0
    };
    let lines = json!({ "messages": [
        { "seq": 1, "type": "assistant", "content": "I count.\nNow." },
        { "seq": 2, "type": "tool_use", "tool": "Bash", "payload": { "command": "ls" } },
        { "seq": 3, "type": "tool_result", "content": "a\nb\u{1b}[2J" },
    ] });
    assert_eq!(call("messages", lines), 202);
    let shown = admin(&rig, &["task", "logs", &task], &[]);
    let expected = "I count.\nNow.\n⏺ Bash {\"command\":\"ls\"}\n  ⎿ a\n    b\\u{1b}[2J\n";
    assert_eq!((shown.code, shown.stdout.as_str()), (Some(0), expected), "{shown:?}");
    let mut follow = rig.ostler(["server", "task", "logs", &task, "--follow", "--json"]);
    let follow = Running::start(follow.args(IN_ACME));
    follow.prints("I count.");
    let last = json!({ "messages": [{ "seq": 4, "type": "stderr", "content": "two" }] });
    assert_eq!(call("messages", last), 202);
    follow.prints("\"two\"");
    let await_body = json!({ "waiting_for": "approval", "summary": "Deploy?" });
    assert_eq!(call("await", await_body), 200);
    let waiting = admin(&rig, &["task", "show", &task], &[]).stdout;
    assert!(waiting.contains("waiting for approval, summary Deploy?, since "), "{waiting}");
    let resumed = json!({ "daemon_id": "m-1" });
    let path = format!("tasks/{task}/resume");
    let (status, resumed) = machine(&url, &machine_token, &path, "", &resumed).unwrap();
    assert_eq!(status, 200, "{resumed}");
    let lease = resumed["lease_token"].as_str().unwrap();
    let artifact = json!({ "type": "pull_request", "url": "https://github.com/acme/api/pull/7",
        "title": "Count", "state": "open" });
    let usage = json!({ "input_tokens": 12, "output_tokens": 3, "cost_micros": 1_500_000 });
    let result = json!({ "result": { "summary": "I counted.\nTwo.", "usage": usage,
        "artifacts": [artifact] } });
    let path = format!("tasks/{task}/complete");
    assert_eq!(machine(&url, &machine_token, &path, lease, &result).unwrap().0, 200);
    let shown = admin(&rig, &["task", "show", &task], &[]).stdout;
    for part in ["input tokens 12, output tokens 3", "cost $1.5000", "\nI counted.\nTwo.\n"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains('{'), "no JSON: {shown}");
    let shown = issue(&rig, &token, &["show", "ACME-1"]).stdout;
    let pull = "pull_request  open  Count  https://github.com/acme/api/pull/7\n";
    assert!(shown.contains(pull) && !shown.contains('{'), "{shown}");
    let done = follow.finish();
    assert_eq!(done.code, Some(0), "{done:?}");
    let seqs: Vec<_> = done.json_lines().iter().map(|line| line["seq"].as_i64()).collect();
    assert_eq!(seqs, [Some(1), Some(2), Some(3), Some(4)]);
    stop(server);
}

#[test]
fn workspaces_and_their_people_are_administrated() {
    let rig = Rig::new();
    acme(&rig);
    let made = finish(&mut rig.ostler([
        "server",
        "workspace",
        "create",
        "--workspace",
        "labs",
        "--email",
        "boss@example.com",
        "--json",
    ]));
    assert_eq!(made.code, Some(0), "{made:?}");
    let list = json_of(&mut rig.ostler(["server", "workspace", "list", "--json"]));
    let slugs: Vec<_> =
        list.as_array().unwrap().iter().map(|it| it["slug"].as_str().unwrap()).collect();
    assert_eq!(slugs, ["acme", "labs"]);
    let mut update = rig.ostler(["server", "workspace", "update", "--json", "--context-file", "-"]);
    update.args(IN_ACME);
    let updated = finish_with_input(&mut update, b"Write tests first.\n");
    let updated: Value = serde_json::from_str(&updated.stdout).unwrap();
    assert_eq!(updated["context"], "Write tests first.\n");
    let dev = ["--email", "dev@example.com"];
    admin_json(&rig, &["user", "create"], &dev);
    assert_eq!(admin_json(&rig, &["user", "list"], &[]).as_array().unwrap().len(), 2);
    let changed = admin_json(&rig, &["user", "update"], &[&dev[..], &["--role", "admin"]].concat());
    assert_eq!(changed["role"], "admin");
    assert_eq!(admin(&rig, &["user", "remove"], &dev).code, Some(0));
    let last = admin(&rig, &["user", "remove"], &["--email", "boss@example.com"]);
    assert_eq!(last.code, Some(4), "a workspace keeps an administrator: {last:?}");
}

/// From the issue to the machine and back, with nothing but the program and raw HTTP.
#[test]
fn an_issue_is_written_assigned_worked_on_and_looked_at() {
    let rig = Rig::new();
    let token = acme(&rig);
    let (server, url) = serve(&rig, &[]);
    let made = issue(
        &rig,
        &token,
        &[
            "create",
            "Fix the redirect",
            "--description",
            "It is **broken**.",
            "--criterion",
            "301 works",
            "--priority",
            "high",
            "--assign",
            "Freya",
            "--json",
        ],
    );
    assert_eq!(made.code, Some(0), "{made:?}");
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!((&made["id"], &made["assignee"]["name"]), (&json!("ACME-1"), &json!("Freya")));
    assert!(made["description"].as_str().unwrap().contains("<strong>broken</strong>"), "{made}");
    let args = ["--user", "boss@example.com", "--name", "lap", "--days", "3", "--kind", "daemon"];
    let machine_token = admin_json(&rig, &["token", "create"], &args);
    let machine_token = machine_token["token"].as_str().unwrap();
    assert_eq!(register(&url, machine_token), 201);
    let runtimes = admin_json(&rig, &["runtime", "list"], &[]);
    assert_eq!(runtimes[0]["status"], "online");
    let claim = json!({ "daemon_id": "m-1" });
    let (status, claimed) = machine(&url, machine_token, "tasks/claim", "", &claim).unwrap();
    assert_eq!(
        (status, &claimed["data"]["issue"]["identifier"]),
        (200, &json!("ACME-1")),
        "{claimed}"
    );
    let task = claimed["data"]["id"].as_str().unwrap();
    let lease = claimed["data"]["lease_token"].as_str().unwrap();
    let result = json!({ "result": { "summary": "Fixed in one line." } });
    for (what, body) in [("start", json!({})), ("complete", result)] {
        let path = format!("tasks/{task}/{what}");
        assert_eq!(machine(&url, machine_token, &path, lease, &body).unwrap().0, 200, "{what}");
    }
    let shown = admin_json(&rig, &["task", "show", task], &[]);
    assert_eq!(shown["status"], "completed");
    let said = finish_with_input(
        rig.ostler(["issue", "comment", "ACME-1", "-"]).env("OSTLER_TOKEN", &token),
        b"Thank *you*.",
    );
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "ACME-1 commented\n"), "{said:?}");
    let shown = issue(&rig, &token, &["show", "ACME-1"]).stdout;
    for part in ["It is **broken**.", "301 works", "Freya", "Fixed in one line.", "Thank *you*."] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(issue(&rig, &token, &["assign", "ACME-1", "--user", "me"]).code, Some(0));
    let listed = issue(&rig, &token, &["list", "--assignee", "me", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed[0]["id"], "ACME-1");
    let again = admin(&rig, &["task", "retry", task], &[]);
    assert_eq!(again.code, Some(0), "{again:?}");
    let cancelled = admin_json(&rig, &["task", "cancel", task], &[]);
    assert_eq!(cancelled["status"], "canceled");
    let by_state =
        admin_json(&rig, &["task", "list"], &["--state", "canceled", "--agent", "Freya"]);
    assert_eq!(by_state[0]["id"], task);
    stop(server);
}
