//! `GET /api/v1/events`: who comes back misses nothing and sees nothing twice, and sees only what is its own.

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

use common::World;
use ostler_server::settings::Settings;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};

/// For what takes a moment on a busy machine.
const SOON: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Event {
    kind: String,
    id: String,
    data: Value,
}

impl Event {
    /// What it says of an issue's creation: the issue.
    fn created(&self) -> Option<String> {
        (self.kind == "issue.created").then(|| self.data["issue"].as_str().unwrap().to_owned())
    }
}

/// A reader of a stream.
struct Follower {
    answer: reqwest::Response,
    text: String,
}

impl Follower {
    async fn ask(world: &World, token: &str, last: Option<&str>) -> reqwest::Response {
        let mut request = world.client.get(world.url("/api/v1/events")).bearer_auth(token);
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        request.send().await.unwrap()
    }

    /// Opens a stream; its first event is of this kind.
    async fn open(world: &World, token: &str, last: Option<&str>, first: &str) -> (Self, Event) {
        let answer = Self::ask(world, token, last).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut follower = Self { answer, text: String::new() };
        let event = follower.next().await.unwrap();
        assert_eq!(event.kind, first, "{event:?}");
        (follower, event)
    }

    /// The next event; `None` when the server ended the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let event = parse(block);
                self.text = rest.to_owned();
                if event.is_some() {
                    return event;
                }
            }
            let chunk = tokio::time::timeout(SOON, self.answer.chunk()).await;
            let chunk = chunk.expect("an event or the end").unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The issues that were made, up to this one, and the last event's id.
    async fn until(&mut self, last: &str) -> (Vec<String>, String) {
        let mut seen = Vec::new();
        loop {
            let event = self.next().await.expect("the stream goes on");
            if let Some(issue) = event.created() {
                seen.push(issue.clone());
                if issue == last {
                    return (seen, event.id);
                }
            }
        }
    }
}

/// `None` for a comment, which says that the stream lives.
fn parse(block: &str) -> Option<Event> {
    let field =
        |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Some(Event {
        kind: field("event")?.to_owned(),
        id: field("id").unwrap().to_owned(),
        data: serde_json::from_str(field("data").unwrap()).unwrap(),
    })
}

async fn issue(world: &World, title: &str) -> String {
    world.post("/issues", json!({ "title": title })).await["id"].as_str().unwrap().to_owned()
}

on_both! {
    async fn who_comes_back_gets_exactly_the_rest(world) {
        let (mut follower, _) = Follower::open(&world, &world.token, None, "ready").await;
        let (one, two) = (issue(&world, "One").await, issue(&world, "Two").await);
        let (seen, _) = follower.until(&two).await;
        assert_eq!(seen, [one, two.clone()]);
        let three = issue(&world, "Three").await;
        let (seen, last) = follower.until(&three).await;
        assert_eq!(seen, [three]);
        drop(follower);
        let four = issue(&world, "Four").await;
        let five = issue(&world, "Five").await;
        for _ in 0..2 {
            let (mut follower, ready) =
                Follower::open(&world, &world.token, Some(&last), "ready").await;
            assert_eq!(ready.id, last, "who sees nothing more comes back to the same place");
            let six = issue(&world, "Later").await;
            let (seen, _) = follower.until(&six).await;
            assert_eq!(seen[..2], [four.clone(), five.clone()]);
        }
        world.stop().await;
    }

    async fn a_place_that_never_was_is_answered_with_reset(world) {
        let mut made = vec![issue(&world, "One").await];
        for never in ["0-999999999", "9223372036854775807-1", "9223372036854775807-9223372036854775807"] {
            let (mut follower, reset) = Follower::open(&world, &world.token, Some(never), "reset").await;
            assert_ne!(reset.id, never);
            made.push(issue(&world, "Another").await);
            let (seen, _) = follower.until(&made[made.len() - 1]).await;
            // On PostgreSQL what was made just before is still to come while any older transaction is open.
            let is_exact = seen.len() == 1 || world.database.starts_with("postgres");
            assert!(made.ends_with(&seen) && is_exact, "{seen:?} of {made:?}");
        }
        for bad in ["x", "-1-1", "1", "1-", "1-99999999999999999999"] {
            let answer = Follower::ask(&world, &world.token, Some(bad)).await;
            assert_eq!(answer.status(), 422, "{bad}");
        }
        world.stop().await;
    }

    async fn f_002_f_004_a_stream_wants_a_token_and_shows_its_workspace_only(world) {
        for token in ["", "fat_unknown", world.daemon_token.as_str()] {
            assert_eq!(Follower::ask(&world, token, None).await.status(), 401, "{token}");
        }
        let writer = world.token_with(&["write"]).await;
        assert_eq!(Follower::ask(&world, &writer, None).await.status(), 403);
        let (theirs, _) = world.other("other").await;
        let (mut ours, _) = Follower::open(&world, &world.token, None, "ready").await;
        let (mut other, _) = Follower::open(&world, &theirs, None, "ready").await;
        issue(&world, "Ours").await;
        let body = json!({ "title": "Theirs" });
        let made = world.call_as(&theirs, "POST", "/issues", Some(body)).await.data();
        let made = made["id"].as_str().unwrap();
        // What was made before theirs would be seen before it.
        assert_eq!(other.until(made).await.0, [made]);
        let last = issue(&world, "Ours again").await;
        assert!(!ours.until(&last).await.0.contains(&made.to_owned()));
        world.stop().await;
    }

    async fn f_003_a_revoked_token_ends_its_streams(world) {
        let made = world.post("/tokens", json!({ "name": "part", "kind": "api" })).await;
        let token = made["token"].as_str().unwrap();
        let (mut follower, _) = Follower::open(&world, token, None, "ready").await;
        let path = format!("/tokens/{}", made["id"]);
        assert_eq!(world.call("DELETE", &path, None).await.status, 204);
        while let Some(event) = follower.next().await {
            assert!(event.kind.starts_with("token."), "{event:?}");
        }
        assert_eq!(Follower::ask(&world, token, None).await.status(), 401);
        world.stop().await;
    }

    async fn one_token_cannot_take_every_place(world) {
        let token = world.token_with(&["read"]).await;
        let mut open = Vec::new();
        let refused = loop {
            let answer = Follower::ask(&world, &token, None).await;
            if answer.status() != 200 {
                break answer;
            }
            open.push(answer);
            assert!(open.len() < 1_000, "all places are its own");
        };
        assert_eq!(refused.status(), 429);
        assert_eq!(refused.headers()["x-ratelimit-remaining"], "0");
        assert_eq!(refused.headers()["x-ratelimit-limit"], open.len().to_string().as_str());
        assert!(refused.headers().contains_key("retry-after"));
        Follower::open(&world, &world.token, None, "ready").await;
        // A place that was given up is free again.
        open.pop();
        let until = std::time::Instant::now() + SOON;
        while Follower::ask(&world, &token, None).await.status() != 200 {
            assert!(std::time::Instant::now() < until, "the place stays taken");
        }
        world.stop().await;
    }
}

/// Everything that was is pruned; a reader that knows a place of then is told to read anew.
async fn pruned(world: World) {
    let (mut follower, beginning) = Follower::open(&world, &world.token, None, "ready").await;
    let one = issue(&world, "One").await;
    let (_, known) = follower.until(&one).await;
    drop(follower);
    let until = std::time::Instant::now() + SOON;
    loop {
        issue(&world, "More").await;
        let answer = Follower::ask(&world, &world.token, Some(&known)).await;
        let mut follower = Follower { answer, text: String::new() };
        if follower.next().await.unwrap().kind == "reset" {
            // It goes on from here.
            let last = issue(&world, "Last").await;
            follower.until(&last).await;
            break;
        }
        assert!(std::time::Instant::now() < until, "nothing is pruned");
    }
    // The same for whoever came when there was nothing yet.
    Follower::open(&world, &world.token, Some(&beginning.id), "reset").await;
    Follower::open(&world, &world.token, Some("0-0"), "reset").await;
    world.stop().await;
}

fn prunes(settings: &mut Settings) {
    settings.retention.every = Duration::from_millis(5);
    settings.retention.events_max = 3;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_was_pruned_is_answered_with_reset() {
    pruned(World::start_with(prunes).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_was_pruned_is_answered_with_reset_on_postgresql() {
    let name = "a_place_that_was_pruned_is_answered_with_reset_on_postgresql";
    let Some(world) = World::start_on_postgres_with(name, prunes).await else { return };
    pruned(world).await;
}

/// Guesses are counted, and streams are requests like others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_112_f_116_streams_are_counted_by_token_and_guesses_by_address() {
    let world = World::start_with(|settings| {
        settings.limits.unknown = 3;
        settings.limits.api = 2;
    })
    .await;
    // (A minute may end in between; then the count begins anew.)
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(Follower::ask(&world, "fat_unknown", None).await.status().as_u16());
    }
    assert_eq!((statuses[0], statuses.contains(&429)), (401, true), "{statuses:?}");
    world.stop().await;
    let world = World::start_with(|settings| settings.limits.api = 2).await;
    let mut answers = Vec::new();
    for _ in 0..6 {
        answers.push(Follower::ask(&world, &world.token, None).await);
    }
    assert_eq!(answers[0].status(), 200);
    assert_eq!(answers[0].headers()["x-ratelimit-limit"], "2");
    let refused = answers.iter().find(|it| it.status() == 429).expect("a refusal");
    assert_eq!(refused.headers()["x-ratelimit-remaining"], "0");
    world.stop().await;
}

/// An event whose number was taken early and whose transaction ends late is not lost, and nothing is read before
/// it that comes after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql_nothing_is_read_past_an_open_transaction() {
    let name = "on_postgresql_nothing_is_read_past_an_open_transaction";
    let Some(world) = World::start_on_postgres(name).await else { return };
    let (mut follower, start) = Follower::open(&world, &world.token, None, "ready").await;
    let before = issue(&world, "Before").await;
    follower.until(&before).await;
    let mut other = PgConnection::connect(&world.database).await.unwrap();
    let mut late = other.begin().await.unwrap();
    let sql = "INSERT INTO events (workspace_id, type, data, at) SELECT id, 'issue.created', \
               '{\"issue\":\"LATE\"}', 0 FROM workspaces";
    late.execute(sql).await.unwrap();
    let behind = issue(&world, "Behind").await;
    // Three streams whose one look is after that commit: it gives what was before, and would give what is behind.
    let mut streams = vec![follower];
    for _ in 0..3 {
        let (mut follower, _) =
            Follower::open(&world, &world.token, Some(&start.id), "ready").await;
        assert_eq!(follower.until(&before).await.0, std::slice::from_ref(&before));
        streams.push(follower);
    }
    let end = Follower::open(&world, &world.token, None, "ready").await.1.id;
    late.commit().await.unwrap();
    let last = issue(&world, "Last").await;
    for follower in &mut streams {
        assert_eq!(
            follower.until(&last).await.0,
            ["LATE".to_owned(), behind.clone(), last.clone()]
        );
    }
    // Who came while it was open begins before it.
    let (mut follower, _) = Follower::open(&world, &world.token, Some(&end), "ready").await;
    assert_eq!(follower.until(&last).await.0, ["LATE".to_owned(), behind, last]);
    world.stop().await;
}

/// A dump that was restored into another cluster has numbers of transactions that this one reaches in years. What
/// comes is read all the same, and who knows a place of then is told to read anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql_streams_go_on_after_a_restore() {
    let name = "on_postgresql_streams_go_on_after_a_restore";
    let Some(mut world) = World::start_on_postgres(name).await else { return };
    let (mut follower, _) = Follower::open(&world, &world.token, None, "ready").await;
    let (one, two) = (issue(&world, "One").await, issue(&world, "Two").await);
    let (_, early) = follower.until(&one).await;
    let (_, late) = follower.until(&two).await;
    drop(follower);
    // As if the cluster that was dumped had counted further; the first of its numbers this one knows too.
    let mut conn = PgConnection::connect(&world.database).await.unwrap();
    let (_, number) = early.split_once('-').unwrap();
    let sql = "UPDATE events SET tx = tx + 1000000000000 WHERE id > $1";
    let number = number.parse::<i64>().unwrap();
    sqlx::query(sql).bind(number).execute(&mut conn).await.unwrap();
    world.restart().await;
    let far = late.split_once('-').unwrap();
    let far = format!("{}-{}", far.0.parse::<i64>().unwrap() + 1_000_000_000_000, far.1);
    for known in [&early, &late, &far] {
        let (mut follower, _) = Follower::open(&world, &world.token, Some(known), "reset").await;
        let new = issue(&world, "New").await;
        assert_eq!(follower.until(&new).await.0, [new]);
    }
    // A start without a restore changes no place.
    let (mut follower, _) = Follower::open(&world, &world.token, None, "ready").await;
    let new = issue(&world, "New").await;
    let (_, known) = follower.until(&new).await;
    drop(follower);
    world.restart().await;
    Follower::open(&world, &world.token, Some(&known), "ready").await;
    world.stop().await;
}
