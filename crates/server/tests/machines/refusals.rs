//! Every machine endpoint of the table refuses what it must, in the fixed order, and nothing changes by it
//! (F-001 to F-004, F-012, F-013, F-060, F-065).

use std::io::Write as _;

use ostler_server::machine::{Action, ENDPOINTS, Endpoint};
use ostler_server::settings::Settings;
use serde_json::{Value, json};

use crate::world::{Answer, Claimed, MANY, Machine, World};

/// Nesting that a parser which calls itself does not survive.
const NESTED: usize = 200_000;

fn unlimited(settings: &mut Settings) {
    let limits = &mut settings.limits;
    (limits.register, limits.heartbeat, limits.claim, limits.tasks) = (MANY, MANY, MANY, MANY);
}

/// One of everything that an endpoint could change: a run, another one, and one that waits.
struct Things {
    machine: Machine,
    running: Claimed,
    other: Claimed,
    waiting: Claimed,
}

async fn furnish(world: &World) -> Things {
    let machine = world.registered("m-1").await;
    let agent = world.agent("Freya").await;
    for number in 0..4 {
        world.issue(&format!("Number {number}"), agent).await;
    }
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let task = machine.claim().await;
        machine.start(&task).await;
        machine
            .say(&task, json!([{ "seq": 1, "type": "system", "content": "x" }]))
            .await
            .expect(202);
        tasks.push(task);
    }
    let waiting = tasks.pop().unwrap();
    machine
        .at(&waiting, "await", json!({ "waiting_for": "input", "summary": "?" }))
        .await
        .expect(200);
    Things { machine, other: tasks.pop().unwrap(), running: tasks.pop().unwrap(), waiting }
}

impl Things {
    /// The task that this endpoint could be asked for.
    fn task(&self, row: &Endpoint) -> &Claimed {
        if row.action == Action::Resume { &self.waiting } else { &self.running }
    }

    fn path(&self, row: &Endpoint) -> String {
        of(row, &self.task(row).id)
    }

    fn lease(&self, row: &Endpoint) -> Option<&str> {
        row.leased.then_some(&*self.running.lease)
    }

    fn request(&self, row: &Endpoint) -> reqwest::RequestBuilder {
        self.machine.request(&self.path(row), self.lease(row))
    }
}

/// Its path below `/api/daemon/`, for this task.
fn of(row: &Endpoint, task: &str) -> String {
    row.path.strip_prefix("/api/daemon/").unwrap().replace("{task}", task)
}

/// A body that is right.
fn sample(action: Action) -> Value {
    match action {
        Action::Register => json!({ "daemon_id": "m-9", "name": "nine", "version": "0.3.0",
            "providers": ["claude_code"], "capabilities": { "os": "linux", "arch": "x86_64" } }),
        Action::Heartbeat | Action::Claim | Action::Resume => json!({ "daemon_id": "m-1" }),
        Action::Start | Action::CancelAck => json!({}),
        Action::Messages => {
            json!({ "messages": [{ "seq": 9, "type": "assistant", "content": "nine" }] })
        }
        Action::Session => json!({ "session_id": "sess_9", "work_dir": "/nine" }),
        Action::Complete => {
            json!({ "result": { "summary": "Nine" }, "session_id": "s", "work_dir": "/w" })
        }
        Action::Fail => json!({ "error": "nine", "retryable": true }),
        Action::Await => json!({ "waiting_for": "approval", "summary": "Nine?" }),
    }
}

/// Fields that are wrong: with each of them the body is no longer right.
fn faults(action: Action) -> Vec<(&'static str, Value)> {
    let ids =
        || [json!(7), json!(""), json!([]), json!(null), json!("a".repeat(129)), json!("a\nb")];
    let mut faults: Vec<(&'static str, Value)> = Vec::new();
    let mut add =
        |field, values: &[Value]| faults.extend(values.iter().map(|it| (field, it.clone())));
    match action {
        Action::Register => {
            add("daemon_id", &ids());
            add("name", &[json!(7), json!(null), json!({})]);
            add(
                "providers",
                &[json!("claude_code"), json!([7]), json!([null]), json!(null), json!({})],
            );
            add("capabilities", &[json!(7), json!("x")]);
            add("actors", &[json!(7), json!([7]), json!([{ "external_id": 7 }]), json!([{}])]);
        }
        Action::Heartbeat | Action::Claim | Action::Resume => add("daemon_id", &ids()),
        // An odd part of a completion is left out: see the module `odd`.
        Action::Start | Action::CancelAck | Action::Complete => {}
        Action::Messages => add(
            "messages",
            &[
                json!(7),
                json!(null),
                json!({}),
                json!([7]),
                json!([{}]),
                json!([]),
                json!([{ "type": "system" }]),
                json!([{ "seq": 9 }]),
                json!([{ "seq": 0, "type": "system" }]),
                json!([{ "seq": -1, "type": "system" }]),
                json!([{ "seq": 1.5, "type": "system" }]),
                json!([{ "seq": "9", "type": "system" }]),
                json!([{ "seq": 9, "type": 7 }]),
                json!([{ "seq": 9, "type": "" }]),
                json!([{ "seq": 9, "type": "x".repeat(33) }]),
                json!([{ "seq": 9, "type": "system", "content": 7 }]),
                json!([{ "seq": 1e300, "type": "system" }]),
                json!([{ "seq": 9, "type": "system" }, { "seq": u64::MAX, "type": "system" }]),
                json!(
                    (1..=201)
                        .map(|n| json!({ "seq": n + 8, "type": "system" }))
                        .collect::<Vec<_>>()
                ),
            ],
        ),
        Action::Session => {
            add("session_id", &[json!(7), json!([]), json!("x".repeat(100_000))]);
            add("work_dir", &[json!(7), json!({}), json!("x".repeat(100_000))]);
        }
        Action::Fail => {
            add("retryable", &[json!("yes"), json!(7), json!([])]);
            add("error", &[json!(7), json!({})]);
        }
        Action::Await => add("waiting_for", &[json!(7), json!(null), json!("coffee"), json!([])]),
    }
    faults
}

/// All that people see, but signs of life.
async fn snapshot(world: &World) -> Value {
    let mut seen = serde_json::Map::new();
    let mut look = async |path: String| {
        let mut shown = world.get(&path).await;
        // What goes on by itself.
        if let Some(task) = shown.as_object_mut() {
            task.remove("worked_seconds");
        }
        if let Some(list) = shown.as_array_mut() {
            for it in list.iter_mut().filter_map(Value::as_object_mut) {
                it.remove("last_seen");
            }
        }
        seen.insert(path, shown.clone());
        shown
    };
    for path in
        ["/issues", "/agents", "/runtimes", "/approvals", "/usage?by=issue", "/time-entries"]
    {
        look(path.to_owned()).await;
    }
    let tasks = look("/tasks".to_owned()).await;
    for task in tasks.as_array().unwrap() {
        let id = task["id"].as_str().unwrap();
        look(format!("/tasks/{id}")).await;
        look(format!("/tasks/{id}/messages")).await;
        let issue = task["issue"]["id"].as_str().unwrap();
        look(format!("/issues/{issue}/comments")).await;
        look(format!("/issues/{issue}/deliveries")).await;
    }
    Value::Object(seen)
}

#[track_caller]
fn same(before: &Value, after: &Value, what: &str) {
    for (path, shown) in before.as_object().unwrap() {
        assert_eq!(Some(shown), after.get(path), "{what} changed {path}");
    }
    assert_eq!(before, after, "{what}");
}

fn gzip_of_zeros() -> Vec<u8> {
    // A stored block is a valid gzip without a library for it.
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1, 2, 0, 0xfd, 0xff];
    file.write_all(b"{}").unwrap();
    file.extend([0x43, 0xbf, 0xa6, 0xa3, 2, 0, 0, 0]);
    file
}

#[test]
fn every_endpoint_is_in_the_page_for_authors_of_daemons() {
    let page = include_str!("../../../../docs/machines.md");
    for row in ENDPOINTS {
        let path = format!("/{}", of(row, "{id}"));
        assert!(page.contains(&path), "{path}");
    }
}

on_both! {
    async fn f_001_every_endpoint_is_post_and_other_methods_are_refused_as_json(world with unlimited) {
        let things = furnish(&world).await;
        let before = snapshot(&world).await;
        assert_eq!(ENDPOINTS.len(), 11);
        for row in ENDPOINTS {
            assert!(row.path.starts_with("/api/daemon/"), "{}", row.path);
            let url = format!("{}/api/daemon/{}", things.machine.base, things.path(row));
            for method in ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"] {
                let request = world.http.request(method.parse().unwrap(), &url)
                    .bearer_auth(&world.token)
                    .header("X-Felagi-Client-Version", "0.3.0")
                    .header("X-Felagi-Lease", &things.running.lease)
                    .json(&sample(row.action));
                let answer = Answer::read(request).await;
                assert_eq!(answer.status, 405, "{method} {}", row.path);
                assert_eq!(answer.header("allow"), Some("POST"), "{method} {}", row.path);
            }
        }
        // What is no endpoint is refused as JSON too.
        for path in ["", "nothing", "tasks", "tasks/x/nothing", "tasks/claim/", "tasks/%00/start"] {
            let answer = things.machine.post(path, Some(&things.running.lease), json!({})).await;
            assert!(matches!(answer.status, 404 | 405), "{path}: {answer:?}");
        }
        same(&before, &snapshot(&world).await, "another method");
        world.stop().await;
    }

    async fn f_002_f_004_f_010_every_endpoint_wants_a_machines_token_of_its_workspace_and_a_version(world
        with unlimited) {
        let things = furnish(&world).await;
        let (_, theirs) = world.other("other").await;
        let stranger = Machine { token: theirs, ..things.machine.clone() };
        stranger.register(&["claude_code"]).await;
        let before = snapshot(&world).await;
        for row in ENDPOINTS {
            let (path, lease, body) = (things.path(row), things.lease(row), sample(row.action));
            let unknown = format!("fdt_{}", "x".repeat(32));
            let cut = &world.token[..world.token.len() - 1];
            for token in ["", "x", &unknown, cut, &world.people, &world.token.to_uppercase()] {
                let machine = Machine { token: token.to_owned(), ..things.machine.clone() };
                machine.post(&path, lease, body.clone()).await.expect(401);
            }
            let url = format!("{}/api/daemon/{path}", things.machine.base);
            let plain = || world.http.post(&url).header("X-Felagi-Client-Version", "0.3.0");
            Answer::read(plain().json(&body)).await.expect(401);
            for scheme in ["Basic", "Token", ""] {
                let credential = format!("{scheme} {}", world.token);
                Answer::read(plain().header("Authorization", credential).json(&body)).await.expect(401);
            }
            // Neither is a token taken from elsewhere.
            let query = world.http.post(format!("{url}?token={0}&access_token={0}", world.token));
            Answer::read(query.header("X-Felagi-Client-Version", "0.3.0").json(&body)).await.expect(401);
            for version in [None, Some("0.1.0")] {
                let old = Machine { version, ..things.machine.clone() };
                old.post(&path, lease, body.clone()).await.expect(426);
            }
            if row.path.contains("{task}") {
                stranger.post(&path, lease, body.clone()).await.expect(404);
            }
        }
        same(&before, &snapshot(&world).await, "a stranger");
        world.stop().await;
    }

    async fn f_013_headers_that_are_no_text_or_too_many_are_refused_and_no_fault_of_the_server(world
        with unlimited) {
        let things = furnish(&world).await;
        let before = snapshot(&world).await;
        let odd = |bytes: &[u8]| reqwest::header::HeaderValue::from_bytes(bytes).unwrap();
        let odds = [odd(b"\xff\xfe"), odd("æøå".as_bytes()), odd(b"a\tb"), odd(&[b'z'; 6_000])];
        for row in ENDPOINTS {
            let (path, body) = (things.path(row), sample(row.action));
            for (at, value) in odds.iter().enumerate() {
                let url = format!("{}/api/daemon/{path}", things.machine.base);
                let request = world.http.post(url).json(&body);
                let answer = request.try_clone().unwrap().header("Authorization", value);
                Answer::read(answer).await.expect(401);
                let known = request.bearer_auth(&world.token);
                let answer = known.try_clone().unwrap().header("X-Felagi-Client-Version", value);
                Answer::read(answer).await.expect(426);
                let answer = known.try_clone().unwrap().header("X-Felagi-Client", value);
                Answer::read(answer).await.expect(426);
                if row.leased {
                    let answer = known.header("X-Felagi-Client-Version", "0.3.0")
                        .header("X-Felagi-Client-Capabilities", value)
                        .header("X-Felagi-Lease", value);
                    let answer = Answer::read(answer).await;
                    assert_eq!(answer.status, 409, "{} {at}: {answer:?}", row.path);
                }
            }
        }
        same(&before, &snapshot(&world).await, "an odd header");
        world.stop().await;
    }

    async fn f_060_f_004_task_endpoints_want_a_task_that_exists_and_its_own_lease(world with unlimited) {
        let things = furnish(&world).await;
        let before = snapshot(&world).await;
        for row in ENDPOINTS.iter().filter(|row| row.path.contains("{task}")) {
            let body = sample(row.action);
            // Not even a path that is no text is looked at before the token.
            let unknown = Machine { token: "x".to_owned(), ..things.machine.clone() };
            unknown.post(&of(row, "%FF"), things.lease(row), body.clone()).await.expect(401);
            let long = "9".repeat(2_000);
            for id in ["01kyt0000000000000000000zz", "x", "%00", "%FF", "%C3%28", "..%2Fclaim", "%F0%9F%A6%80", &long] {
                let answer = things.machine.post(&of(row, id), things.lease(row), body.clone()).await;
                assert_eq!(answer.status, 404, "{} of {id}: {answer:?}", row.path);
            }
            let path = things.path(row);
            let long = "f".repeat(4_000);
            let mut reversed: Vec<_> = things.running.lease.chars().collect();
            reversed.reverse();
            let reversed: String = reversed.into_iter().collect();
            let other = &things.other.lease;
            for lease in [None, Some(""), Some("x"), Some(other), Some(&*long), Some(&*reversed),
                Some(&*things.waiting.lease)] {
                if row.leased {
                    let answer = things.machine.post(&path, lease, body.clone()).await;
                    answer.refused(409, "lease_lost");
                }
            }
            // The lease of the run that waits is gone; resume asks for none, but of the machine that ran.
            if row.leased {
                let waiting = of(row, &things.waiting.id);
                let answer = things.machine.post(&waiting, Some(&things.waiting.lease), body.clone()).await;
                answer.refused(409, "lease_lost");
            } else {
                let nobody = json!({ "daemon_id": "m-2" });
                assert_eq!(things.machine.post(&path, None, nobody).await.status, 409);
            }
        }
        same(&before, &snapshot(&world).await, "a call without the lease");
        world.stop().await;
    }

    async fn f_065_every_endpoint_refuses_bodies_that_are_not_right_and_does_nothing(world with unlimited) {
        let things = furnish(&world).await;
        let before = snapshot(&world).await;
        for row in ENDPOINTS {
            let name = row.path;
            let body = sample(row.action);
            let text = body.to_string();
            // No JSON at all: 400. (No body is an empty object for those that need nothing.)
            let nested = format!("{}{}", "[".repeat(NESTED), "]".repeat(NESTED));
            let opened = "{\"a\":".repeat(NESTED);
            let cut = &text[..text.len() - 1];
            let trailing = format!("{text} {text}");
            let garbage: [&[u8]; 8] = [b"{", b"not json", b"\xff\xfe{}", b"{\"a\":\"\xc3\x28\"}",
                opened.as_bytes(), cut.as_bytes(), trailing.as_bytes(), b"{'a':1}"];
            for bytes in garbage {
                let sent = things.request(row).header("Content-Type", "application/json");
                let sent = sent.body(bytes.to_vec());
                let answer = Answer::read(sent).await;
                let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
                // Nobody asked for a cancellation: the state comes before the body.
                let expected = if row.action == Action::CancelAck { 409 } else { 400 };
                assert_eq!(answer.status, expected, "{name} {shown}: {answer:?}");
            }
            let sent = things.request(row).header("Content-Type", "application/json").body(nested);
            let answer = Answer::read(sent).await;
            let not_asked = row.action == Action::CancelAck;
            let is_refused = |status| matches!(status, 400 | 422) || not_asked && status == 409;
            assert!(is_refused(answer.status), "{name} nested: {answer:?}");
            // JSON, but no object. (Start reads no field: what is sent does not matter to it.)
            let without_fields = matches!(row.action, Action::Start | Action::CancelAck);
            for odd in [json!([]), json!("text"), json!(7), json!(true), json!([body.clone()])] {
                if without_fields {
                    continue;
                }
                let answer = Answer::read(things.request(row).json(&odd)).await;
                assert!(matches!(answer.status, 400 | 422), "{name} {odd}: {answer:?}");
            }
            // A field twice, whether or not both are alike.
            for (field, value) in body.as_object().unwrap() {
                let twice = format!("{{{}:{value},{}", json!(field), &text[1..]);
                let sent = things.request(row).header("Content-Type", "application/json").body(twice);
                let answer = Answer::read(sent).await;
                assert!(matches!(answer.status, 400 | 422), "{name} {field} twice: {answer:?}");
            }
            for (field, value) in faults(row.action) {
                let mut wrong = body.clone();
                wrong[field] = value.clone();
                let answer = Answer::read(things.request(row).json(&wrong)).await;
                assert_eq!(answer.status, 422, "{name} {field}: {value}: {answer:?}");
                let errors = answer.body["errors"].as_object().unwrap_or_else(|| panic!("{answer:?}"));
                assert!(errors.keys().any(|key| key.starts_with(field)), "{name} {field}: {answer:?}");
            }
        }
        same(&before, &snapshot(&world).await, "a wrong body");
        world.stop().await;
    }

    async fn f_071_f_075_characters_that_a_database_refuses_lose_no_line_and_no_result(world with unlimited) {
        let things = furnish(&world).await;
        let agent = world.agent("Odin").await;
        for odd in ["a\\u0000b", "\\ud800", "\\udfff\\ud800x", "\\uffff\\u202e", "\\u007f\\u001b[31m"] {
            world.issue("Odd", agent).await;
            // A machine with an odd name may take one of them.
            world.issue("Spare", agent).await;
            for row in ENDPOINTS {
                // Each text of the body, one after the other; it is no fault of the server.
                let text = sample(row.action).to_string();
                let words =
                    ["m-1", "m-9", "nine", "0.3.0", "claude_code", "linux", "assistant", "sess_9", "Nine"];
                for word in words {
                    // What ends the run comes below.
                    if !text.contains(word) || matches!(row.action, Action::Complete | Action::Fail) {
                        continue;
                    }
                    let body = text.replace(word, odd);
                    let sent = things.request(row).header("Content-Type", "application/json").body(body);
                    Answer::read(sent).await;
                }
            }
            let task = things.machine.claim().await;
            let issue = task.envelope["issue"]["identifier"].as_str().unwrap();
            things.machine.start(&task).await;
            let send = async |what: &str, body: String| {
                let path = format!("tasks/{}/{what}", task.id);
                let sent = things.machine.request(&path, Some(&task.lease));
                Answer::read(sent.header("Content-Type", "application/json").body(body)).await
            };
            let lines = format!("{{\"messages\":[{{\"seq\":1,\"type\":\"stderr\",\"content\":\"{odd}\"}},\
                {{\"seq\":2,\"type\":\"tool_use\",\"tool\":\"T\",\"payload\":{{\"{odd}\":[\"{odd}\"]}}}}]}}");
            assert_eq!(send("messages", lines).await.expect(202)["accepted"], 2, "{odd}");
            let result = format!("{{\"result\":{{\"summary\":\"S {odd}\",\"{odd}\":\"{odd}\",\
                \"artifacts\":[{{\"type\":\"branch\",\"reference\":\"{odd}\"}}]}}}}");
            send("complete", result).await.expect(200);
            assert_eq!(world.messages(&task).await.len(), 2, "{odd}");
            assert_eq!(world.comments(issue).await.len(), 1, "{odd}");
            assert!(world.task(&task.id).await["result"].is_object(), "{odd}");
            world.issue("Fails", agent).await;
            let fails = things.machine.claim().await;
            things.machine.start(&fails).await;
            let path = format!("tasks/{}/fail", fails.id);
            let sent = things.machine.request(&path, Some(&fails.lease));
            Answer::read(sent.body(format!("{{\"error\":\"{odd}\"}}"))).await.expect(200);
        }
        world.stop().await;
    }

    async fn f_065_bodies_over_their_bound_and_compressed_ones_are_refused_unread(world with unlimited) {
        let things = furnish(&world).await;
        let before = snapshot(&world).await;
        for row in ENDPOINTS {
            let (name, bound) = (row.path, if row.action == Action::Messages { 16 << 20 } else { 4 << 20 });
            assert_eq!(row.body_bytes_max, bound, "{name}");
            let mut large = sample(row.action);
            large["pad"] = json!("x".repeat(bound));
            let answer = Answer::read(things.request(row).json(&large)).await;
            // Nobody asked for a cancellation: the state comes before the body.
            let (too_large, compressed) =
                if row.action == Action::CancelAck { (409, 409) } else { (413, 415) };
            assert_eq!(answer.status, too_large, "{name}: {answer:?}");
            // Who is not known is not told about bodies.
            let unknown = Machine { token: "x".to_owned(), ..things.machine.clone() };
            let sent = unknown.request(&things.path(row), things.lease(row)).json(&large);
            assert_eq!(Answer::read(sent).await.status, 401, "{name}");
            for encoding in ["gzip", "deflate", "br", "zstd", "gzip, gzip"] {
                let sent = things.request(row)
                    .header("Content-Type", "application/json")
                    .header("Content-Encoding", encoding)
                    .body(gzip_of_zeros());
                let answer = Answer::read(sent).await;
                assert_eq!(answer.status, compressed, "{name} {encoding}: {answer:?}");
            }
        }
        same(&before, &snapshot(&world).await, "a large or compressed body");
        world.stop().await;
    }

    async fn f_065_f_012_the_refusals_come_in_the_order_of_the_protocol(world
        with |settings| settings.limits.tasks = 30) {
        let things = furnish(&world).await;
        let used_up = world.new_token(None).await.1;
        let body = "not json";
        for row in ENDPOINTS.iter().filter(|row| row.leased) {
            // Everything is wrong at once; then one thing after the other is put right.
            let mut machine = things.machine.clone();
            let absent = of(row, "01kyt0000000000000000000zz");
            let send = async |machine: &Machine, path: &str, lease: Option<&str>| {
                Answer::read(machine.request(path, lease).body(body)).await
            };
            machine.version = Some("0.1.0");
            machine.token = "unknown".to_owned();
            send(&machine, &absent, None).await.expect(401);
            machine.token = used_up.clone();
            // Over the rate, as far as one minute goes: version before rate.
            let mut is_shown = false;
            for _ in 0..3 {
                machine.version = Some("0.3.0");
                let mut left = 200;
                while send(&machine, &absent, None).await.status != 429 && left > 0 {
                    left -= 1;
                }
                machine.version = Some("0.1.0");
                send(&machine, &absent, None).await.expect(426);
                machine.version = Some("0.3.0");
                is_shown |= send(&machine, &absent, None).await.status == 429;
                if is_shown {
                    break;
                }
            }
            assert!(is_shown, "{}: never over the rate", row.path);
            // A token that has not used its minute up, each time another.
            machine.token = world.new_token(None).await.1;
            send(&machine, &absent, None).await.expect(404);
            let ours = things.path(row);
            send(&machine, &ours, None).await.refused(409, "lease_lost");
            send(&machine, &ours, Some(&things.other.lease)).await.refused(409, "lease_lost");
            if row.action == Action::CancelAck {
                send(&machine, &ours, Some(&things.running.lease)).await.refused(409, "bad_state");
            } else {
                send(&machine, &ours, Some(&things.running.lease)).await.expect(400);
            }
        }
        // State before body, where a lease that is right has a state that is wrong.
        let mut machine = things.machine.clone();
        machine.token = world.new_token(None).await.1;
        machine.complete(&things.other, json!({})).await;
        let wrong = json!({ "retryable": "yes" });
        machine.at(&things.other, "fail", wrong.clone()).await.refused(409, "bad_state");
        machine.at(&things.running, "fail", wrong).await.expect(422);
        let resume = |id: &str| format!("tasks/{id}/resume");
        machine.post(&resume(&things.running.id), None, json!({})).await.refused(409, "bad_state");
        machine.post(&resume(&things.waiting.id), None, json!({})).await.expect(422);
        world.stop().await;
    }
}
