//! What becomes of a task that somebody holds, and what is kept of it.

use futures_util::future::join_all;
use ostler_core::lease::{Call, Decided, Decision, Failing, Input, Priority, Refusal, State};

use super::subject::Subject;
use super::world::{
    POLICY, Run, World, call_of, completion, delivery, done, failure, lines, session, status,
    waiting,
};
use crate::store::{Completion, Line, Payload, SessionReport, Sweep, Usage};

const START: (Call, Payload) = (Call::Start, Payload::None);

pub(super) async fn f_066_f_075_repeats_of_start_and_ends_give_the_first_answer(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    let run = world.given(&usual).await;
    let started = world.say(&run, START).await.unwrap();
    assert_eq!(started.answer.status, State::Running);
    let began = world.store.task(&run.task_id).await.started_at;
    world.pass(10);
    let again = world.say(&run, START).await.unwrap();
    assert_eq!(again.answer.status, State::Running);
    assert!(again.answer.expires_at > started.answer.expires_at, "F-072: a start renews");
    assert_eq!(world.store.task(&run.task_id).await.started_at, began);

    for _ in 0..3 {
        assert_eq!(status(&world.say(&run, done()).await), Ok(State::Completed));
    }
    assert_eq!(world.store.results(&run.task_id).await.len(), 1);
    let other = world.say(&run, failure(true)).await;
    assert_eq!(status(&other), Err(Refusal::BadState(State::Completed)));

    let run = world.given(&usual).await;
    for _ in 0..3 {
        assert_eq!(status(&world.say(&run, failure(true)).await), Ok(State::Queued));
    }
    assert_eq!(status(&world.say(&run, done()).await), Err(Refusal::BadState(State::Queued)));
    // The first answer stays, whatever became of the task since.
    let next = world.take(&usual.machine).await;
    assert_eq!(next.task_id, run.task_id);
    assert_eq!(status(&world.say(&run, failure(true)).await), Ok(State::Queued));
    assert_eq!(world.state(&next).await, State::Dispatched);
}

pub(super) async fn f_060_f_062_wrong_and_old_leases_change_nothing(world: World<impl Subject>) {
    let usual = world.usual(2).await;
    let old = world.given(&usual).await;
    world.say(&old, failure(true)).await.unwrap();
    for held in [false, true] {
        if held {
            let next = world.take(&usual.machine).await;
            assert_ne!(next.token, old.token, "F-059: a new one for each claim");
        }
        let before = world.store.task(&old.task_id).await;
        for (call, with) in [START, lines(&[1]), waiting(), (Call::CancelAck, Payload::None)] {
            for token in [None, Some(old.token.as_str()), Some("guessed")] {
                if call == Call::CancelAck && token == Some(&old.token) {
                    // It ended otherwise.
                    continue;
                }
                let call =
                    call_of(usual.workspace, &old.task_id, token, call.clone(), with.clone());
                assert_eq!(status(&world.call(call).await), Err(Refusal::LeaseLost));
            }
        }
        assert_eq!(world.store.task(&old.task_id).await, before);
        assert_eq!(world.store.lines(&old.task_id).await, []);
    }
    // The lease of another task is no lease of this one.
    let other = world.given(&usual).await;
    let mixed = Run { token: other.token.clone(), ..old.clone() };
    assert_eq!(status(&world.say(&mixed, START).await), Err(Refusal::LeaseLost));
}

pub(super) async fn f_068_f_069_lines_are_stored_once_gaps_and_repeats_included(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    let run = world.given(&usual).await;
    let sent: [(&[u64], u64, u64); 7] = [
        (&[1, 2, 3], 3, 4),
        (&[1, 2, 3], 0, 4),
        (&[2, 3, 4], 1, 5),
        (&[9, 7], 2, 10),
        (&[8, 8, 7, 10], 2, 11),
        (&[5, 6], 2, 11),
        (&[5, 6, 1, 10], 0, 11),
    ];
    for (numbers, accepted, next_seq) in sent {
        let stepped = world.say(&run, lines(numbers)).await.unwrap();
        assert_eq!((stepped.accepted, stepped.next_seq), (accepted, next_seq), "{numbers:?}");
    }
    let changed = Line {
        seq: 1,
        kind: "user".to_owned(),
        content: None,
        tool: Some("Bash".to_owned()),
        payload: Some("{}".to_owned()),
    };
    let again = (Call::Messages { highest: 1 }, Payload::Lines(vec![changed.clone()]));
    world.say(&run, again).await.unwrap();
    let stored = world.store.lines(&run.task_id).await;
    assert_eq!(
        stored.iter().map(|line| line.seq).collect::<Vec<_>>(),
        (1..=10).collect::<Vec<_>>()
    );
    assert!(stored.iter().all(|line| line.content == Some(format!("line {}", line.seq))));
    let eleventh = Line { seq: 11, ..changed };
    let new = (Call::Messages { highest: 11 }, Payload::Lines(vec![eleventh.clone()]));
    world.say(&run, new).await.unwrap();
    assert_eq!(world.store.lines(&run.task_id).await.last(), Some(&eleventh));
}

pub(super) async fn f_068_a_batch_may_hold_several_calls_of_one_task(world: World<impl Subject>) {
    let usual = world.usual(2).await;
    let (one, two) = (world.given(&usual).await, world.given(&usual).await);
    let what = [
        (&one, START),
        (&two, START),
        (&one, lines(&[1, 2])),
        (&one, lines(&[2, 3])),
        (&two, lines(&[3])),
        (&two, lines(&[1, 2, 3])),
        (&one, lines(&[1, 2, 3])),
        (&one, done()),
        (&one, lines(&[4])),
        (&one, done()),
        (&two, failure(true)),
        (&two, failure(true)),
    ];
    let said = join_all(what.map(|(run, call)| world.say(run, call))).await;
    let said: Vec<_> =
        said.into_iter().map(|it| it.map(|it| (it.answer.status, it.accepted))).collect();
    let (running, lost) = (State::Running, Err(Refusal::LeaseLost));
    assert_eq!(
        said,
        [
            Ok((running, 0)),
            Ok((running, 0)),
            Ok((running, 2)),
            Ok((running, 1)),
            Ok((running, 1)),
            Ok((running, 2)),
            Ok((running, 0)),
            Ok((State::Completed, 0)),
            lost,
            Ok((State::Completed, 0)),
            Ok((State::Queued, 0)),
            Ok((State::Queued, 0)),
        ]
    );
    for run in [&one, &two] {
        let stored = world.store.lines(&run.task_id).await;
        assert_eq!(stored.iter().map(|line| line.seq).collect::<Vec<_>>(), [1, 2, 3]);
    }
    assert_eq!(world.store.task(&two.task_id).await.machine.attempts, 1);
}

pub(super) async fn f_071_an_attempt_begins_its_numbers_anew(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    let run = world.given(&usual).await;
    world.say(&run, lines(&[1, 2, 5])).await.unwrap();
    world.say(&run, failure(true)).await.unwrap();
    let run = world.take(&usual.machine).await;
    let stepped = world.say(&run, lines(&[1, 2])).await.unwrap();
    assert_eq!((stepped.accepted, stepped.next_seq), (2, 3));
    let stored = world.store.lines(&run.task_id).await;
    assert_eq!(stored.iter().map(|line| line.seq).collect::<Vec<_>>(), [1, 2, 5, 6, 7]);
}

pub(super) async fn f_035_f_074_f_076_a_session_is_carried_to_the_next_run(
    world: World<impl Subject>,
) {
    let usual = world.usual(9).await;
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    let claimed = world.claim(usual.machine.claim()).await.unwrap();
    assert_eq!((claimed.facts.session_id, claimed.facts.work_dir), (None, None));
    let run = Run { token: claimed.lease_token, ..run_of(usual.workspace, &claimed.task.id) };
    let said = (Call::Session, Payload::Session(session("s-1")));
    let before = world.store.task(&run.task_id).await.machine.lease;
    world.say(&run, said).await.unwrap();
    assert_eq!(world.store.task(&run.task_id).await.machine.lease, before, "F-072: no renewal");
    let kept = async || world.store.session(usual.agent, usual.issue).await;
    assert_eq!(kept().await, Some(session("s-1")));

    // Silence keeps what is known, one half as well.
    let half = SessionReport { session_id: Some("s-2".to_owned()), work_dir: None };
    world
        .say(
            &run,
            completion(Completion {
                result: "{}".to_owned(),
                session: half,
                ..Completion::default()
            }),
        )
        .await
        .unwrap();
    let expected = SessionReport {
        session_id: Some("s-2".to_owned()),
        work_dir: Some("/work/s-1".to_owned()),
    };
    assert_eq!(kept().await, Some(expected));
    let next = world.given(&usual).await;
    world.say(&next, done()).await.unwrap();

    world.queue(usual.workspace, usual.issue, usual.agent).await;
    let claimed = world.claim(usual.machine.claim()).await.unwrap();
    assert_eq!(claimed.facts.session_id.as_deref(), Some("s-2"));
    assert_eq!(claimed.facts.work_dir.as_deref(), Some("/work/s-1"));
    // Another issue, another agent: other sessions.
    let issue = world.store.issue_create(usual.workspace, "y", Priority::None).await;
    let agent = world.agent(usual.workspace, "Odin", 1).await;
    for (issue, agent) in [(issue, usual.agent), (usual.issue, agent)] {
        world.queue(usual.workspace, issue, agent).await;
        let claimed = world.claim(usual.machine.claim()).await.unwrap();
        assert_eq!((claimed.facts.session_id, claimed.facts.work_dir), (None, None));
    }
}

fn run_of(workspace_id: i64, task_id: &str) -> Run {
    Run { workspace_id, task_id: task_id.to_owned(), token: String::new() }
}

pub(super) async fn f_078_usage_that_was_not_reported_is_not_zero(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    let some = Usage { input_tokens: Some(0), cost_micros: Some(i64::MAX / 2), ..Usage::default() };
    for usage in [None, Some(some)] {
        let run = world.given(&usual).await;
        let result = "{\"a\":1,\"a\":2}".to_owned();
        let it = Completion { result: result.clone(), usage, ..Completion::default() };
        world.say(&run, completion(it)).await.unwrap();
        let kept = world.store.results(&run.task_id).await;
        assert_eq!(kept, [(result, usage.unwrap_or_default())]);
    }
}

pub(super) async fn f_079_f_090_a_summary_becomes_a_comment_and_a_failure_none(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    world.store.comment_create(usual.issue, "ann@example.com", "<p>Please.</p>").await;
    world.pass(5);
    let run = world.given(&usual).await;
    world.say(&run, START).await.unwrap();
    world.pass(5);
    world.say(&run, failure(false)).await.unwrap();
    assert_eq!(world.store.comments(usual.issue).await.len(), 1);
    assert_eq!(world.store.issue(usual.issue).await.1, 0);
    assert_eq!(world.store.task(&run.task_id).await.error.as_deref(), Some("it broke"));

    let run = world.given(&usual).await;
    let it = Completion {
        result: "{}".to_owned(),
        comment: Some("<p>Done.</p>".to_owned()),
        ..Completion::default()
    };
    for _ in 0..2 {
        world.say(&run, completion(it.clone())).await.unwrap();
    }
    let comments = world.store.comments(usual.issue).await;
    assert_eq!(comments.len(), 2);
    assert_eq!((comments[1].author.as_str(), comments[1].is_agent), ("Freya", true));
    assert_eq!(comments[1].body, "<p>Done.</p>");
    assert_eq!(comments[1].posted_at, world.clock.now());
    // The next run reads both.
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    let claimed = world.claim(usual.machine.claim()).await.unwrap();
    let authors: Vec<_> = claimed.facts.comments.iter().map(|it| it.author.clone()).collect();
    assert_eq!(authors, ["ann@example.com", "Freya"]);
}

pub(super) async fn f_080_time_is_spent_once_and_without_waiting(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    let run = world.given(&usual).await;
    world.pass(100);
    world.say(&run, START).await.unwrap();
    world.pass(7);
    world.say(&run, waiting()).await.unwrap();
    world.pass(10_000);
    let resumed = world.resume(&run, usual.machine.ids(), None).await.unwrap();
    let run = Run { token: resumed.lease_token.unwrap(), ..run };
    world.clock.pass_micros(3_250_500);
    for _ in 0..3 {
        world.say(&run, done()).await.unwrap();
    }
    assert_eq!(world.store.issue(usual.issue).await.1, 10_250);
    let run = world.given(&usual).await;
    world.say(&run, START).await.unwrap();
    world.pass(1);
    world.say(&run, done()).await.unwrap();
    assert_eq!(world.store.issue(usual.issue).await.1, 11_250);
}

pub(super) async fn f_085_a_delivery_reported_again_is_the_same_one(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    let first =
        delivery("pull_request", "pr 1", Some("https://x/1"), Some("1"), Some("One"), Some("open"));
    let again = delivery("pull_request", "pr 1", Some("https://x/1/"), None, Some("Two"), None);
    let other = delivery("branch", "b", None, Some("fix"), None, None);
    for deliveries in [vec![first], vec![again, other.clone()]] {
        let run = world.given(&usual).await;
        let result = "{}".to_owned();
        let it = Completion { result, deliveries, ..Completion::default() };
        for _ in 0..2 {
            world.say(&run, completion(it.clone())).await.unwrap();
        }
    }
    let merged = delivery(
        "pull_request",
        "pr 1",
        Some("https://x/1/"),
        Some("1"),
        Some("Two"),
        Some("open"),
    );
    assert_eq!(world.store.deliveries(usual.issue).await, [other, merged]);
}

pub(super) async fn f_086_f_087_a_pull_request_moves_an_issue_only_from_before_review(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    for (status, kind, becomes) in [
        ("backlog", "pull_request", "in_review"),
        ("todo", "pull_request", "in_review"),
        ("in_progress", "pull_request", "in_review"),
        ("in_review", "pull_request", "in_review"),
        ("on_hold", "pull_request", "on_hold"),
        ("done", "pull_request", "done"),
        ("canceled", "pull_request", "canceled"),
        ("todo", "branch", "todo"),
    ] {
        world.store.issue_move(usual.issue, status).await;
        let run = world.given(&usual).await;
        world.say(&run, START).await.unwrap();
        assert_eq!(world.store.issue(usual.issue).await.0, status);
        let deliveries = vec![delivery(kind, "d", Some("https://x/1"), None, None, None)];
        let result = "{}".to_owned();
        let it = Completion { result, deliveries, ..Completion::default() };
        world.say(&run, completion(it)).await.unwrap();
        assert_eq!(world.store.issue(usual.issue).await.0, becomes, "{status} {kind}");
    }
    let moved = world.store.events(usual.workspace).await;
    assert_eq!(moved.iter().filter(|(kind, _)| kind == "issue.changed").count(), 3);
}

pub(super) async fn f_088_f_089_failures_requeue_until_attempts_are_used_up(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    let first = world.given(&usual).await;
    world.say(&first, failure(true)).await.unwrap();
    for becomes in [State::Queued, State::Failed] {
        let run = world.take(&usual.machine).await;
        assert_eq!(run.task_id, first.task_id);
        assert_eq!(status(&world.say(&run, failure(true)).await), Ok(becomes));
    }
    assert_eq!(world.claim(usual.machine.claim()).await, None);
    let task = world.store.task(&first.task_id).await;
    assert_eq!((task.machine.attempts, task.ended_at), (3, Some(world.clock.now())));
    // A person may try again.
    world.person(&first, Input::Retry).await.unwrap();
    let run = world.take(&usual.machine).await;
    assert_eq!(status(&world.say(&run, failure(false)).await), Ok(State::Failed));
}

pub(super) async fn f_091_f_092_f_101_cancelling(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    let run = world.given(&usual).await;
    let ack = || (Call::CancelAck, Payload::None);
    let refused = world.say(&run, ack()).await;
    assert_eq!(status(&refused), Err(Refusal::BadState(State::Dispatched)));
    assert_eq!(status(&world.person(&run, Input::Cancel).await), Ok(State::Dispatched));
    assert!(world.say(&run, START).await.unwrap().answer.cancel_requested, "F-073");
    assert!(world.say(&run, lines(&[1])).await.unwrap().answer.cancel_requested);
    for _ in 0..2 {
        assert_eq!(status(&world.say(&run, ack()).await), Ok(State::Canceled));
    }
    assert_eq!(world.state(&run).await, State::Canceled);

    let run = world.given(&usual).await;
    world.say(&run, waiting()).await.unwrap();
    assert_eq!(status(&world.person(&run, Input::Cancel).await), Ok(State::Canceled));
    let refused = world.resume(&run, usual.machine.ids(), None).await;
    assert_eq!(status(&refused), Err(Refusal::BadState(State::Canceled)));

    let queued = world.queue(usual.workspace, usual.issue, usual.agent).await;
    let queued = run_of(usual.workspace, &queued);
    assert_eq!(status(&world.person(&queued, Input::Cancel).await), Ok(State::Canceled));
    assert_eq!(world.claim(usual.machine.claim()).await, None);
}

pub(super) async fn f_098_f_099_f_100_resume_is_for_the_machine_that_ran(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    let other = world.machine(usual.workspace, "m-2", &["claude_code"]).await;
    let run = world.given(&usual).await;
    let ours = usual.machine.ids();
    let refused = world.resume(&run, ours.clone(), None).await;
    assert_eq!(status(&refused), Err(Refusal::BadState(State::Dispatched)));
    world.say(&run, lines(&[1, 2])).await.unwrap();
    let waits = world.say(&run, waiting()).await.unwrap();
    assert_eq!(
        (waits.answer.status, waits.waiting_since),
        (State::Waiting, Some(world.clock.now()))
    );
    assert_eq!(status(&world.say(&run, START).await), Err(Refusal::LeaseLost), "F-094");
    for others in [other.ids(), Vec::new()] {
        let refused = world.resume(&run, others, Some("r")).await;
        assert_eq!(status(&refused), Err(Refusal::OtherMachine));
    }
    let first = world.resume(&run, ours.clone(), Some("r-1")).await.unwrap();
    assert_eq!(first.answer.status, State::Running);
    assert_ne!(first.lease_token.as_ref(), Some(&run.token));
    // The same once more, whose answer was lost; then with another word.
    let again = world.resume(&run, ours.clone(), Some("r-1")).await.unwrap();
    assert_eq!(again.lease_token, first.lease_token);
    assert_eq!(again.answer.expires_at, first.answer.expires_at);
    for request in [None, Some("r-2")] {
        let refused = world.resume(&run, ours.clone(), request).await;
        assert_eq!(status(&refused), Err(Refusal::BadState(State::Running)));
    }
    let refused = world.resume(&run, other.ids(), Some("r-1")).await;
    assert_eq!(status(&refused), Err(Refusal::BadState(State::Running)));
    // Lines go on where they were.
    let run = Run { token: first.lease_token.unwrap(), ..run };
    let stepped = world.say(&run, lines(&[2, 3])).await.unwrap();
    assert_eq!((stepped.accepted, stepped.next_seq), (1, 4));
}

pub(super) async fn f_097_a_decision_waits_until_the_run_resumes(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    let run = world.given(&usual).await;
    let decide = |decided, note: &str| Input::Decide(Decision { decided, note: note.to_owned() });
    let refused = world.person(&run, decide(Decided::Approved, "")).await;
    assert_eq!(status(&refused), Err(Refusal::BadState(State::Dispatched)));
    world.say(&run, waiting()).await.unwrap();
    let waits = async || world.store.task(&run.task_id).await.machine.waits;
    assert_eq!(waits().await.unwrap().summary, "Which?");
    for _ in 0..2 {
        world.person(&run, decide(Decided::Denied, "no")).await.unwrap();
    }
    let refused = world.person(&run, decide(Decided::Approved, "no")).await;
    assert_eq!(status(&refused), Err(Refusal::Decided(Decided::Denied)));
    let decision = waits().await.unwrap().decision.unwrap();
    assert_eq!((decision.decided, decision.note.as_str()), (Decided::Denied, "no"));
    world.resume(&run, usual.machine.ids(), None).await.unwrap();
    assert_eq!(waits().await, None);
}

pub(super) async fn f_109_f_064_the_sweeper_takes_what_ran_out_and_nothing_else(
    world: World<impl Subject>,
) {
    let usual = world.usual(2).await;
    let (gone, alive) = (world.given(&usual).await, world.given(&usual).await);
    world.say(&gone, lines(&[1])).await.unwrap();
    world.pass(299);
    assert_eq!(world.sweep().await, 0);
    world.say(&alive, START).await.unwrap();
    world.pass(1);
    // Not swept yet: a matching token renews.
    assert_eq!(world.sweep().await, 1);
    assert_eq!(world.sweep().await, 0);
    assert_eq!(world.state(&gone).await, State::Queued);
    assert_eq!(world.state(&alive).await, State::Running);
    for call in [START, lines(&[2]), done(), failure(true)] {
        assert_eq!(status(&world.say(&gone, call).await), Err(Refusal::LeaseExpired));
    }
    assert_eq!(world.store.lines(&gone.task_id).await.len(), 1);
    world.pass(1_000);
    world.say(&alive, START).await.unwrap();
    assert_eq!(world.sweep().await, 0, "a token that matches renews what was not taken");
    for becomes in [State::Queued, State::Failed] {
        let run = world.take(&usual.machine).await;
        assert_eq!(run.task_id, gone.task_id);
        world.pass(300);
        world.say(&alive, START).await.unwrap();
        assert_eq!(world.sweep().await, 1);
        assert_eq!(world.state(&run).await, becomes);
    }
    assert!(world.store.task(&gone.task_id).await.error.is_some());
    // One that a person had cancelled is cancelled.
    world.person(&alive, Input::Cancel).await.unwrap();
    world.pass(1_000);
    world.sweep().await;
    assert_eq!(world.state(&alive).await, State::Canceled);
}

pub(super) async fn f_096_the_sweeper_leaves_waiting_tasks_alone(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    let run = world.given(&usual).await;
    world.say(&run, waiting()).await.unwrap();
    world.pass(30 * 24 * 3_600);
    assert_eq!(world.sweep().await, 0);
    let resumed = world.resume(&run, usual.machine.ids(), None).await.unwrap();
    assert_eq!(
        resumed.answer.expires_at,
        Some(world.clock.now().after(super::world::POLICY.lease))
    );
}

pub(super) async fn a_late_start_and_hand_backs_cost_no_attempt_until_they_are_too_many(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    let id = world.queue(usual.workspace, usual.issue, usual.agent).await;
    let claim = || crate::store::Claim { starts_soon: true, ..usual.machine.claim() };
    let attempts = async || world.store.task(&id).await.machine.attempts;
    let handed_back = || {
        let failing = Failing { retryable: true, handed_back: true, not_before: None };
        (Call::Fail(failing), Payload::Failure("stopping".to_owned()))
    };
    // A start in time.
    let run = super::world::run(&world.claim(claim()).await.unwrap());
    world.say(&run, START).await.unwrap();
    world.pass(60);
    assert_eq!(world.sweep().await, 0);
    world.say(&run, handed_back()).await.unwrap();
    assert_eq!(attempts().await, 0);
    // One that does not come.
    world.claim(claim()).await.unwrap();
    world.pass(59);
    assert_eq!(world.sweep().await, 0);
    world.pass(1);
    assert_eq!(world.sweep().await, 1);
    assert_eq!(attempts().await, 0);
    // Two are free; from here on they count.
    for n in 1..=3 {
        let run = super::world::run(&world.claim(claim()).await.unwrap());
        world.say(&run, handed_back()).await.unwrap();
        assert_eq!(attempts().await, n);
    }
    assert_eq!(world.store.task(&id).await.machine.state, State::Failed);
    assert_eq!(world.claim(claim()).await, None);
}

pub(super) async fn f_110_after_a_clock_went_back_a_lease_lasts_no_longer_than_else(
    world: World<impl Subject>,
) {
    let usual = world.usual(1).await;
    let held = world.given(&usual).await;
    world.pass(-3_600);
    let behind = Sweep { bring_back: false, ..world.sweep_now() };
    assert_eq!(world.store.leases_sweep(behind).await.unwrap().leases, 0);
    let lease = world.store.task(&held.task_id).await.machine.lease.unwrap();
    assert!(lease.expires_at > world.clock.now().after(POLICY.lease));
    let back = Sweep { take_leases: false, ..world.sweep_now() };
    assert_eq!(world.store.leases_sweep(back).await.unwrap().leases, 0);
    world.pass(299);
    assert_eq!(world.sweep().await, 0);
    assert_eq!(world.state(&held).await, State::Dispatched);
    world.pass(1);
    assert_eq!(world.sweep().await, 1);
    assert_eq!(world.state(&held).await, State::Queued);
}
