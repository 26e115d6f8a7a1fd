//! Rate limits by token, one bucket for each kind of call; by address only for who is not known (F-111 to F-117).

use serde_json::{Value, json};

use crate::world::{Answer, Machine, World};

/// A well-behaved machine polls every three seconds, beats every fifteen, registers once, and sends a batch
/// of lines a second for each of some runs.
const CLAIMS: i64 = 20;
const BEATS: i64 = 4;
const REGISTRATIONS: i64 = 1;
const TASK_CALLS: i64 = 4 * 60;
/// What "far above" means here.
const FAR: i64 = 10;

fn is_refused(answer: &Answer, limit: i64) {
    assert_eq!(answer.status, 429, "{answer:?}");
    let after = answer.number("retry-after");
    assert!((1..=60).contains(&after), "{after}");
    assert_eq!(answer.body["retry_after"], after);
    assert_eq!(
        (answer.number("x-ratelimit-limit"), answer.number("x-ratelimit-remaining")),
        (limit, 0)
    );
}

/// Claims until it is refused; how often it was served. (A minute may end in between: then it is served on.)
async fn drain(machine: &Machine, limit: i64) {
    for _ in 0..4 * limit {
        let answer = machine.ask().await;
        if answer.status == 429 {
            return is_refused(&answer, limit);
        }
        assert_eq!(answer.status, 204, "{answer:?}");
    }
    panic!("{limit} a minute were never over");
}

/// Refused within the window that `drain` has used up.
async fn is_over(machine: &Machine) -> bool {
    machine.ask().await.status == 429
}

on_both! {
    async fn f_111_f_112_f_116_the_count_is_by_token_whatever_the_address(world
        with |settings| settings.limits.claim = 5) {
        let machine = world.registered("m-1").await;
        let other = Machine { token: world.new_token(None).await.1, ..machine.clone() };
        // One token from another address, with a header that says a third: still over. (Tried again where a
        // minute ended in between.)
        let moved = Machine { http: World::client_at([127, 0, 0, 2]), ..machine.clone() };
        let mut held = false;
        for _ in 0..3 {
            drain(&machine, 5).await;
            let claim = moved.request("tasks/claim", None).json(&json!({ "daemon_id": "m-1" }));
            let forwarded = claim.header("X-Forwarded-For", "203.0.113.9");
            let forwarded = forwarded.header("Forwarded", "for=203.0.113.9");
            if is_over(&moved).await && Answer::read(forwarded).await.status == 429 {
                held = true;
                break;
            }
        }
        assert!(held, "a changed address got through");
        // Another token behind the same address has its own.
        let answer = other.ask().await;
        assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (204, 4), "{answer:?}");
        world.stop().await;
    }

    async fn f_111_a_machine_with_a_bad_token_locks_out_nobody_behind_its_address(world
        with |settings| settings.limits.unknown = 4) {
        let machine = world.registered("m-1").await;
        for bad in ["fdt_unknown", "", "nothing like a token"] {
            let bad = Machine { token: bad.to_owned(), ..machine.clone() };
            let refused = loop {
                let answer = bad.beat().await;
                if answer.status == 429 {
                    break answer;
                }
                answer.expect(401);
            };
            is_refused(&refused, 4);
            // A token that this server never saw before.
            let (_, token) = world.new_token(None).await;
            Machine { token, ..machine.clone() }.beat().await.expect(200);
        }
        world.stop().await;
    }

    async fn f_111_f_116_who_guesses_is_refused_by_address_and_good_tokens_beside_it_are_served(world
        with |settings| settings.limits.unknown = 3) {
        let machine = world.registered("m-1").await;
        let (id, revoked) = world.new_token(None).await;
        let mut tokens = (0..).map(|number| format!("fdt_unknown_{number}"));
        let mut unknown = || Machine { token: tokens.next().unwrap(), ..machine.clone() };
        world.get("/me").await;
        let people = async |token: &str| {
            let (status, body) = world.api_as(token, "GET", "/me", None).await;
            (status, body["code"].clone())
        };
        // (Tried again where a minute ended in between.)
        let mut held = false;
        for _ in 0..3 {
            let refused = loop {
                let answer = unknown().beat().await;
                if answer.status == 429 {
                    break answer;
                }
                answer.expect(401);
            };
            is_refused(&refused, 3);
            let theirs = people("fat_unknown").await;
            // A token that was never accepted here is a guess as well.
            let new = Machine { token: revoked.clone(), ..machine.clone() }.beat().await.status;
            machine.beat().await.expect(200);
            assert_eq!(people(&world.people).await, (200, Value::Null));
            if theirs == (429, json!("too_many_requests")) && new == 429 {
                held = true;
                break;
            }
        }
        assert!(held, "guesses are not counted together");
        // When any token is revoked all are looked up again; good ones are no guesses by that.
        world.api("DELETE", &format!("/tokens/{id}"), None).await;
        machine.beat().await.expect(200);
        assert_eq!(people(&world.people).await, (200, Value::Null));
        world.stop().await;
    }

    async fn f_113_f_114_a_machine_that_is_throttled_on_claim_still_beats_and_works(world
        with |settings| settings.limits.claim = 5) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        world.issue("Held", agent).await;
        let task = machine.claim().await;
        drain(&machine, 5).await;
        for _ in 0..10 {
            machine.beat().await.expect(200);
            machine.start(&task).await;
        }
        machine.register(&["claude_code"]).await;
        machine.complete(&task, json!({})).await;
        world.stop().await;
    }

    async fn f_113_heartbeats_do_not_use_up_another_bucket(world
        with |settings| settings.limits.heartbeat = 3) {
        let machine = world.registered("m-1").await;
        let mut refused = None;
        for _ in 0..20 {
            let answer = machine.beat().await;
            if answer.status == 429 {
                refused = Some(answer);
                break;
            }
        }
        is_refused(&refused.expect("a refusal"), 3);
        assert_eq!(machine.ask().await.status, 204);
        world.stop().await;
    }

    async fn f_115_the_defaults_lie_far_above_what_a_well_behaved_machine_sends(world) {
        let machine = world.machine("m-1");
        let registered = machine.post("register", None,
            json!({ "daemon_id": "m-1", "name": "m", "version": "1", "providers": ["claude_code"] })).await;
        let agent = world.agent("Freya").await;
        world.issue("One", agent).await;
        let claimed = machine.ask().await;
        let data = &claimed.body["data"];
        let path = format!("tasks/{}/start", data["id"].as_str().unwrap());
        let started = machine.post(&path, data["lease_token"].as_str(), json!({})).await;
        let beaten = machine.beat().await;
        let sends = [(registered, REGISTRATIONS), (claimed, CLAIMS), (started, TASK_CALLS), (beaten, BEATS)];
        for (answer, sends) in sends {
            assert!(answer.status < 300, "{answer:?}");
            let limit = answer.number("x-ratelimit-limit");
            assert!(limit >= FAR * sends, "{limit} for {sends} a minute");
        }
        world.stop().await;
    }

    async fn f_117_a_success_tells_limit_and_remainder_which_goes_down_by_bucket(world) {
        let machine = world.registered("m-1").await;
        let agent = world.agent("Freya").await;
        world.issue("One", agent).await;
        let task = machine.claim().await;
        let mut kinds = 0;
        for kind in ["beat", "ask", "start"] {
            let call = async || match kind {
                "beat" => machine.beat().await,
                "ask" => machine.ask().await,
                _ => machine.at(&task, "start", json!({})).await,
            };
            // A minute may end between two calls, and not between any two of three.
            let mut left = Vec::new();
            for _ in 0..3 {
                let answer = call().await;
                assert!(answer.status < 300, "{answer:?}");
                assert!(answer.number("x-ratelimit-limit") > answer.number("x-ratelimit-remaining"));
                left.push(answer.number("x-ratelimit-remaining"));
            }
            assert!(left.windows(2).any(|two| two[0] - two[1] == 1), "{kind}: {left:?}");
            kinds += 1;
        }
        assert_eq!(kinds, 3);
        // A refusal of the state or the body tells it too.
        let refused = machine.at(&task, "cancel-ack", json!({})).await;
        assert_eq!(refused.status, 409);
        assert!(refused.number("x-ratelimit-remaining") < refused.number("x-ratelimit-limit"));
        world.stop().await;
    }
}
