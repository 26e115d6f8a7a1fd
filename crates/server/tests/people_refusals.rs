//! Every endpoint of the table refuses what it must: generated from the table and the schemas.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "helpers of tests"
)]

#[macro_use]
mod common;

use common::{Reply, Things, World, furnish, sample};
use ostler_server::people::{Ability, ENDPOINTS, Endpoint, FILE};
use serde_json::{Value, json};

/// Requests that each endpoint's generated test sends at least, so that it cannot be empty.
const BAD_BODIES_MIN: usize = 8;

fn body_of(row: &Endpoint) -> Option<Value> {
    row.body.filter(|body| *body != FILE).map(sample)
}

async fn raw(
    world: &World,
    row: &Endpoint,
    path: &str,
    kind: &str,
    body: impl Into<reqwest::Body>,
) -> Reply {
    let request = world
        .client
        .request(row.method.parse().unwrap(), world.url(path))
        .bearer_auth(&world.token)
        .header("Content-Type", kind)
        .body(body);
    world.send(request).await
}

/// Everything that can be read, but what tells of the reading itself.
async fn snapshot(world: &World, things: &Things) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for row in
        ENDPOINTS.iter().filter(|row| row.method == "GET" && !row.path.ends_with("{attachment}"))
    {
        let path = things.path(row.path);
        let mut reply = world.call("GET", &path, None).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        if let Some(list) = reply.body["data"].as_array_mut() {
            // Signs of life go on by themselves.
            list.iter_mut()
                .filter_map(Value::as_object_mut)
                .for_each(|it| drop(it.remove("last_seen")));
        }
        if let Some(data) = reply.body["data"].as_object_mut() {
            data.remove("last_seen");
        }
        all.push((path, reply.body));
    }
    all
}

on_both! {
    async fn f_002_every_endpoint_refuses_without_a_token_and_with_a_machines(world) {
        let things = furnish(&world).await;
        let before = snapshot(&world, &things).await;
        for row in ENDPOINTS {
            let path = things.path(row.path);
            for token in ["", "nonsense", "fat_00000000000000000000000000000000", &world.daemon_token] {
                let reply = world.call_as(token, row.method, &path, body_of(row)).await;
                assert_eq!(reply.status, 401, "{} {} with {token:?}", row.method, row.path);
                assert_eq!(reply.headers["www-authenticate"], "Bearer");
            }
        }
        assert_eq!(snapshot(&world, &things).await, before);
        world.stop().await;
    }
}

on_both! {
    async fn every_endpoint_refuses_a_token_without_the_ability(world) {
        let things = furnish(&world).await;
        let all = [Ability::Read, Ability::Write, Ability::Admin];
        let mut lacking = Vec::new();
        for ability in all {
            let others: Vec<_> = all.iter().filter(|it| **it != ability).map(|it| it.word()).collect();
            lacking.push((ability, world.token_with(&others).await));
        }
        let before = snapshot(&world, &things).await;
        for row in ENDPOINTS {
            let (_, token) = lacking.iter().find(|(ability, _)| *ability == row.ability).unwrap();
            let reply = world.call_as(token, row.method, &things.path(row.path), body_of(row)).await;
            assert_eq!(reply.status, 403, "{} {}: {}", row.method, row.path, reply.body);
            assert_eq!(reply.code(), "forbidden");
        }
        assert_eq!(snapshot(&world, &things).await, before);
        world.stop().await;
    }
}

/// Values that a field of this schema does not take.
fn wrong(schema: &Value) -> Vec<Value> {
    let kinds = schema["type"].to_string();
    let all = [json!("x"), json!(true), json!(-7.5), json!([[]]), json!({ "a": 1 }), Value::Null];
    let fits = |value: &Value| match value {
        Value::Null => kinds.contains("null"),
        Value::Bool(_) => kinds.contains("boolean"),
        Value::String(_) => kinds.contains("string") && schema["enum"].is_null(),
        Value::Array(_) | Value::Number(_) => false,
        Value::Object(_) => {
            schema["properties"].is_null()
                && schema["additionalProperties"].is_null()
                && kinds.contains("object")
        }
    };
    let mut values: Vec<_> = all.into_iter().filter(|value| !fits(value)).collect();
    if let Some(most) = schema["maxLength"].as_u64() {
        values.push(json!("a".repeat(usize::try_from(most).unwrap() + 1)));
    }
    if schema["minLength"].is_u64() {
        values.push(json!(""));
    }
    if kinds.contains("integer") {
        values.push(json!(schema["minimum"].as_i64().unwrap() - 1));
        values.push(json!(u64::MAX));
        values.extend(schema["maximum"].as_i64().map(|most| json!(most + 1)));
    }
    if let Some(most) = schema["maxItems"].as_u64() {
        values.push(json!(vec!["a"; usize::try_from(most).unwrap() + 1]));
    }
    values
}

on_both! {
    async fn every_body_with_a_wrong_field_is_refused_and_changes_nothing(world) {
        let things = furnish(&world).await;
        let before = snapshot(&world, &things).await;
        for row in ENDPOINTS.iter().filter(|row| row.body.is_some_and(|body| body != FILE)) {
            let name = row.body.unwrap();
            let schema = world.document["components"]["schemas"][name].clone();
            let path = things.path(row.path);
            let refused = |reply: &Reply, why: &str| {
                assert!(
                    [400, 413, 415, 422].contains(&reply.status),
                    "{} {} took {why}: {} {}",
                    row.method,
                    row.path,
                    reply.status,
                    reply.body
                );
            };
            let mut sent = 0;
            for (field, schema) in schema["properties"].as_object().unwrap() {
                for value in wrong(schema) {
                    let mut body = sample(name);
                    body[field] = value.clone();
                    let shown: String = value.to_string().chars().take(40).collect();
                    let reply = world.call(row.method, &path, Some(body)).await;
                    refused(&reply, &format!("{field} = {shown}"));
                    assert!(reply.body["errors"].is_object(), "{} {field}: {}", row.path, reply.body);
                    sent += 1;
                }
            }
            for field in schema["required"].as_array().into_iter().flatten() {
                let mut body = sample(name);
                body.as_object_mut().unwrap().remove(field.as_str().unwrap());
                refused(&world.call(row.method, &path, Some(body)).await, &format!("no {field}"));
            }
            if schema["additionalProperties"] == json!(false) {
                let mut body = sample(name);
                body["surprise"] = json!(1);
                let reply = world.call(row.method, &path, Some(body)).await;
                refused(&reply, "an unknown field");
                assert!(reply.body["errors"]["surprise"].is_array(), "{}", reply.body);
            }
            let text = sample(name).to_string();
            let first = schema["properties"].as_object().unwrap().keys().next().unwrap();
            let inner = text.trim_matches(['{', '}']);
            let deep = format!("{{\"{first}\":{}{}}}", "[".repeat(200), "]".repeat(200));
            let large = format!("{{\"{first}\":\"{}\"}}", "a".repeat(5 * 1024 * 1024));
            for (body, status, why) in [
                (format!("{{\"{first}\":1,\"{first}\":2,{inner}}}"), 400, "a field twice"),
                (text[..text.len() - 1].to_owned(), 400, "half a body"),
                ("nonsense".to_owned(), 400, "no JSON"),
                ("[]".to_owned(), 422, "a list"),
                ("null".to_owned(), 422, "null"),
                ("\"x\"".to_owned(), 422, "a text"),
                (deep, 400, "a deep body"),
                (large, 413, "a large body"),
            ] {
                let reply = raw(&world, row, &path, "application/json", body).await;
                assert_eq!(reply.status, status, "{} {} {why}: {}", row.method, row.path, reply.body);
                sent += 1;
            }
            let reply = raw(&world, row, &path, "application/json", vec![b'"', 0xff, 0xfe, b'"']).await;
            assert_eq!(reply.status, 400);
            let packed = world
                .client
                .request(row.method.parse().unwrap(), world.url(&path))
                .bearer_auth(&world.token)
                .header("Content-Encoding", "gzip")
                .body(vec![0x1f, 0x8b, 8, 0]);
            let refused = world.send(packed).await;
            assert_eq!((refused.status, refused.code()), (415, "unsupported"));
            assert!(sent >= BAD_BODIES_MIN, "{} {}", row.method, row.path);
        }
        assert_eq!(snapshot(&world, &things).await, before);
        world.stop().await;
    }
}

on_both! {
    async fn odd_queries_and_paths_are_refused_and_never_an_accident(world) {
        let things = furnish(&world).await;
        let before = snapshot(&world, &things).await;
        let long = "9".repeat(3_000);
        let odd = [
            "-1",
            "0",
            "abc",
            "%00",
            "%ff%fe",
            "1e9",
            "99999999999999999999",
            "a,b",
            ":",
            "user:",
            "user:x",
            "2026-99-99",
            "-9999-01-01",
            "'",
            "\\",
            &long,
        ];
        for row in ENDPOINTS.iter().filter(|row| row.method == "GET") {
            for name in row.query {
                for value in odd {
                    let path = format!("{}?{name}={value}", things.path(row.path));
                    let reply = world.call("GET", &path, None).await;
                    assert!([200, 422].contains(&reply.status), "{path}: {}", reply.status);
                }
            }
        }
        for row in ENDPOINTS.iter().filter(|row| row.path.contains('{')) {
            for value in [
                "0",
                "-1",
                "abc",
                "%00",
                "%ff%fe",
                "..%2f..",
                "99999999999999999999",
                "ACME-",
                "ACME-0",
                "-1-1",
                "ACME-99999999999999999999",
                "%F0%9F%92%A9",
                &long,
            ] {
                let mut path = row.path.to_owned();
                for (name, _) in &things.0 {
                    path = path.replace(&format!("{{{name}}}"), value);
                }
                let reply = if row.body == Some(FILE) {
                    world.attach(&path.replace("/api/v1", ""), "a.txt", "x").await
                } else {
                    world.call(row.method, &path, body_of(row)).await
                };
                assert_eq!(reply.status, 404, "{} {path}: {}", row.method, reply.body);
            }
        }
        for path in ["/api/v1/nothing", "/api/v1/issues/ACME-1/nothing"] {
            assert_eq!(world.call("GET", path, None).await.status, 404);
        }
        let wrong = world.call("PUT", "/issues", None).await;
        assert_eq!((wrong.status, &wrong.headers["allow"]), (405, &"GET, POST".parse().unwrap()));
        assert_eq!(snapshot(&world, &things).await, before);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_116_too_many_requests_are_refused_with_when_to_come_again() {
    let world = World::start_with(|settings| settings.limits.api = 3).await;
    for left in [2, 1, 0] {
        let reply = world.call("GET", "/me", None).await;
        assert_eq!(reply.headers["x-ratelimit-remaining"], left.to_string().as_str());
    }
    let reply = world.call("GET", "/me", None).await;
    assert_eq!((reply.status, reply.code()), (429, "too_many_requests"));
    assert_eq!(reply.headers["retry-after"], reply.body["retry_after"].to_string().as_str());
    world.stop().await;
}

on_both! {
    async fn f_116_what_no_route_takes_is_refused_as_json_and_headers_are_as_described(world) {
        let refusals = [
            ("POST", "/api/v1/events", 405), ("DELETE", "/healthz", 405), ("POST", "/openapi.json", 405),
            ("GET", "/", 404), ("GET", "/nope", 404), ("GET", "/api/v1", 404), ("GET", "/api/v1/", 404),
            ("GET", "/metrics", 404), ("PATCH", "/api", 404),
        ];
        for (method, path, status) in refusals {
            let request = world.client.request(method.parse().unwrap(), world.url(path));
            let answer = request.send().await.unwrap();
            let is_json = answer.headers()["content-type"] == "application/json";
            assert_eq!((answer.status().as_u16(), is_json), (status, true), "{method} {path}");
            assert_eq!(answer.headers().contains_key("allow"), status == 405, "{method} {path}");
            let body: Value = answer.json().await.unwrap();
            assert!(!body["message"].as_str().unwrap().is_empty(), "{method} {path}: {body}");
        }
        for (status, names) in [("429", 3), ("422", 2), ("401", 0)] {
            let described = &world.document["components"]["responses"][format!("E{status}")]["headers"];
            let described = described.as_object().unwrap();
            assert_eq!(described.len(), names, "{status}");
            for header in described.values() {
                common::schema::follow(&world.document, header["$ref"].as_str().unwrap());
            }
        }
        world.stop().await;
    }
}
