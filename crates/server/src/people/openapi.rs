//! `GET /openapi.json`: both tables of endpoints and the schemas of `schemas.json`, as OpenAPI 3.1.
//!
//! Nothing is said here twice: paths, abilities and answers come from the tables that the routers are built
//! from, and what a body may hold is judged by the same schemas (see [`unknown_fields`]).

use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::response::Response;
use ostler_core::suggest;
use serde_json::{Map, Value, json};

use super::table::{ENDPOINTS, Endpoint, FILE, Shape};
use crate::machine::{self, Action};

/// Unknown fields or parameters that one refusal names.
pub(super) const UNKNOWN_MAX: usize = 20;
/// Characters of such a name.
const NAME_CHARS_MAX: usize = 64;

static SCHEMAS: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("schemas.json")).unwrap_or(Value::Null));

static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

/// The document.
pub(super) fn answer() -> Response {
    crate::http::json(StatusCode::OK, &*DOCUMENT)
}

/// A name that the sender made up: cut, and shown as data only.
pub(super) fn shown(name: &str) -> String {
    name.chars().filter(|it| !it.is_control()).take(NAME_CHARS_MAX).collect()
}

/// The fields of a body that a closed schema does not name, at any depth: where each is, as faults name it, and
/// the name that may have been meant.
pub(super) fn unknown_fields(schema: &str, value: &Value) -> Vec<(String, Option<&'static str>)> {
    let mut found = Vec::new();
    if let Some(schema) = SCHEMAS.get("schemas").and_then(|schemas| schemas.get(schema)) {
        strangers(schema, value, "", &mut found);
    }
    found
}

fn strangers(
    schema: &'static Value,
    value: &Value,
    place: &str,
    found: &mut Vec<(String, Option<&'static str>)>,
) {
    let at =
        |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    if let (Some(items), Some(entries)) = (schema.get("items"), value.as_array()) {
        for (number, entry) in entries.iter().enumerate() {
            strangers(items, entry, &at(&number.to_string()), found);
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let (Some(properties), Some(object)) = (properties, value.as_object()) else { return };
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    for (name, value) in object {
        if found.len() >= UNKNOWN_MAX {
            return;
        }
        match properties.get(name) {
            Some(schema) => strangers(schema, value, &at(name), found),
            None if closed => {
                let meant = suggest::nearest(name, properties.keys().map(String::as_str));
                found.push((at(&shown(name)), meant));
            }
            None => {}
        }
    }
}

/// Refusals that every endpoint may give, and what they mean.
const REFUSALS: [(&str, &str); 10] = [
    ("400", "The body cannot be read, or has a field twice"),
    ("401", "The token is missing, unknown, revoked or expired"),
    ("404", "There is no such thing in the token's workspace"),
    ("405", "The path takes other methods; Allow names them"),
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
    ("415", "The body is compressed, or of another kind than is read"),
    ("422", "What was sent is not valid; errors says what of it"),
    ("429", "Too many requests; Retry-After says when to come again"),
    ("503", "The server cannot take this now; Retry-After says when to come again"),
];

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

fn document() -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        put(&mut paths, endpoint.path, endpoint.method, people(endpoint));
    }
    for endpoint in machine::ENDPOINTS {
        put(&mut paths, endpoint.path, "POST", for_machines(endpoint));
    }
    put(&mut paths, "/api/v1/events", "GET", events());
    let mut responses = Map::new();
    let special = [
        ("403", "The token lacks the ability, or the person is no administrator"),
        ("409", "It contradicts what is there, or the task's state or lease does not allow it"),
        ("410", "The machine is not registered: register it again"),
        ("426", "The client is too old, or unknown"),
    ];
    for (status, description) in REFUSALS.into_iter().chain(special) {
        responses.insert(format!("E{status}"), refusal(status, description));
    }
    let bearer =
        |description| json!({ "type": "http", "scheme": "bearer", "description": description });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ostler fleet server",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Issues, agents and leases. Instants are RFC 3339 in UTC; lists go on at \
                            links.next; answers may gain fields.",
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS.get("schemas"),
            "parameters": SCHEMAS.get("parameters"),
            "responses": responses,
            "headers": header_components(),
            "securitySchemes": {
                "people": bearer("A token that begins with fat_"),
                "machines": bearer("A token that begins with fdt_"),
            },
        },
    })
}

fn put(paths: &mut Map<String, Value>, path: &str, method: &str, operation: Value) {
    let entry = paths.entry(path.to_owned()).or_insert_with(|| json!({}));
    if let Some(entry) = entry.as_object_mut() {
        entry.insert(method.to_lowercase(), operation);
    }
}

/// The parts of a path in braces.
fn parts(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|it| it.strip_prefix('{')?.strip_suffix('}'));
    let part = |name: &str| {
        let schema = match name {
            "issue" | "task" | "runtime" => json!({ "type": "string" }),
            _ => json!({ "type": "integer", "minimum": 1 }),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    };
    names.map(part).collect()
}

fn refusals(more: &[&str]) -> Map<String, Value> {
    let common = REFUSALS.iter().map(|(status, _)| *status);
    let mut statuses: Vec<&str> = common.chain(more.iter().copied()).collect();
    statuses.sort_unstable();
    let response =
        |status: &str| (status.to_owned(), reference("responses", &format!("E{status}")));
    statuses.into_iter().map(response).collect()
}

/// What a response's headers say beside what HTTP says of them.
const HEADERS: [(&str, &str); 3] = [
    ("X-RateLimit-Limit", "Requests of this kind that the token has in a minute"),
    ("X-RateLimit-Remaining", "How many of them are left"),
    ("Retry-After", "Seconds until it is worth asking again"),
];

fn header_components() -> Value {
    let header = |(name, description): &(&str, &str)| {
        let schema = json!({ "type": "integer", "minimum": 0 });
        ((*name).to_owned(), json!({ "description": description, "schema": schema }))
    };
    Value::Object(HEADERS.iter().map(header).collect())
}

fn headers(names: &[&str]) -> Value {
    let headers = names.iter().map(|name| ((*name).to_owned(), reference("headers", name)));
    Value::Object(headers.collect())
}

/// A refusal's response. Those of before the request was counted do not tell where the caller stands.
fn refusal(status: &str, description: &str) -> Value {
    let limits = ["X-RateLimit-Limit", "X-RateLimit-Remaining"];
    let told = match status {
        "401" | "426" => headers(&[]),
        "429" => headers(&[&limits[..], &["Retry-After"]].concat()),
        "503" => headers(&["Retry-After"]),
        _ => headers(&limits),
    };
    let content = content(reference("schemas", "Error"));
    json!({ "description": description, "headers": told, "content": content })
}

/// A success' response, without its content.
fn done(description: &str) -> Value {
    let told = headers(&["X-RateLimit-Limit", "X-RateLimit-Remaining"]);
    json!({ "description": description, "headers": told })
}

fn done_with(description: &str, content: Value) -> Value {
    let mut response = done(description);
    if let Some(response) = response.as_object_mut() {
        response.insert("content".to_owned(), content);
    }
    response
}

fn content(schema: Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}

fn people(endpoint: &Endpoint) -> Value {
    let mut parameters = parts(endpoint.path);
    parameters.extend(endpoint.query.iter().map(|name| reference("parameters", name)));
    let mut responses = refusals(&["403", "409"]);
    responses.insert(endpoint.answer.status.to_string(), success(endpoint));
    let ability = endpoint.ability.word();
    let mut operation = json!({
        "summary": endpoint.summary,
        "description": format!("Needs the ability `{ability}`."),
        "security": [{ "people": [] }],
        "parameters": parameters,
        "responses": responses,
    });
    if let (Some(body), Some(operation)) = (endpoint.body, operation.as_object_mut()) {
        operation.insert("requestBody".to_owned(), request(body));
    }
    operation
}

fn request(body: &str) -> Value {
    if body == FILE {
        let schema = json!({ "type": "object", "required": ["file"],
            "properties": { "file": { "type": "string", "format": "binary" } } });
        return json!({ "required": true,
            "content": { "multipart/form-data": { "schema": schema } } });
    }
    json!({ "required": true, "content": content(reference("schemas", body)) })
}

fn success(endpoint: &Endpoint) -> Value {
    let schema = reference("schemas", endpoint.answer.schema);
    let wrapped = |data: Value| {
        content(json!({ "type": "object", "properties": { "data": data }, "required": ["data"] }))
    };
    let content = match endpoint.answer.shape {
        Shape::Bare => content(schema),
        Shape::Data => wrapped(schema),
        Shape::OrNull => wrapped(json!({ "oneOf": [schema, { "type": "null" }] })),
        Shape::List => content(json!({
            "type": "object",
            "properties": { "data": { "type": "array", "items": schema },
                "links": reference("schemas", "Links") },
            "required": ["data", "links"],
        })),
        Shape::Nothing => return done("Done"),
        Shape::File => json!({ "*/*": { "schema": { "type": "string", "format": "binary" } } }),
    };
    done_with("Done", content)
}

/// Summary, body, status and answer of a machine endpoint.
fn machine_words(action: Action) -> (&'static str, Option<&'static str>, u16, &'static str) {
    match action {
        Action::Register => ("Say what the machine is", Some("Register"), 201, "Registered"),
        Action::Heartbeat => ("Give a sign of life", Some("Heartbeat"), 200, "MachineStatus"),
        Action::Claim => ("Ask for work; 204 when there is none", Some("Claim"), 200, "Claimed"),
        Action::Start => ("The process runs", None, 200, "StreamStatus"),
        Action::Messages => ("Output", Some("Messages"), 202, "Appended"),
        Action::Session => ("The agent's session", Some("Session"), 200, "StreamStatus"),
        Action::Complete => ("The run ended well", Some("Complete"), 200, "MachineStatus"),
        Action::Fail => ("The run ended badly", Some("Fail"), 200, "MachineStatus"),
        Action::CancelAck => ("The process was stopped", None, 200, "MachineStatus"),
        Action::Await => ("The run waits for a person", Some("Await"), 200, "MachineWaiting"),
        Action::Resume => ("The run goes on", Some("Resume"), 200, "Resumed"),
    }
}

fn for_machines(endpoint: &machine::Endpoint) -> Value {
    let (summary, body, status, schema) = machine_words(endpoint.action);
    let header = |name: &str, required: bool| {
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": "header", "required": required, "schema": schema })
    };
    let mut parameters = parts(endpoint.path);
    parameters.push(header("X-Felagi-Client-Version", false));
    parameters.push(header("X-Felagi-Client", false));
    parameters.push(header("X-Felagi-Client-Capabilities", false));
    if endpoint.leased {
        parameters.push(header("X-Felagi-Lease", true));
    }
    let mut responses = refusals(&["409", "410", "426"]);
    let content = content(reference("schemas", schema));
    responses.insert(status.to_string(), done_with("Done", content));
    if endpoint.action == Action::Claim {
        responses.insert("204".to_owned(), done("There is nothing to do"));
    }
    let mut operation = json!({
        "summary": summary,
        "security": [{ "machines": [] }],
        "parameters": parameters,
        "responses": responses,
    });
    if let (Some(body), Some(operation)) = (body, operation.as_object_mut()) {
        operation.insert("requestBody".to_owned(), request(body));
    }
    operation
}

fn events() -> Value {
    let mut responses = refusals(&["403", "422"]);
    let stream = json!({ "text/event-stream": { "schema": { "type": "string" } } });
    responses.insert("200".to_owned(), done_with("A stream", stream));
    let last = json!({ "name": "Last-Event-ID", "in": "header", "required": false,
        "schema": { "type": "string" } });
    json!({
        "summary": "What happens in the workspace, as server-sent events that can be resumed",
        "description": "Needs the ability `read`.",
        "security": [{ "people": [] }],
        "parameters": [last],
        "responses": responses,
    })
}
