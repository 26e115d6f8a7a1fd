//! What a database does that memory cannot: fail in the middle. Each fault is one that was there.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::{join, join_all};
use ostler_core::lease::{Call, Priority, Refusal, State};
use ostler_testkit::postgres::ScratchPostgres;

use super::subject::Subject as _;
use super::world::{self, TestClock, World, done, failure, lines, run, status};
use crate::store::sql::SqlStore;
use crate::store::sql::db::args;
use crate::store::{Completion, LeaseStore as _, Payload, Seen, StoreError};

/// For what takes a moment on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A transaction whose commit fails, and stays open by that on SQLite: a reference is checked at the end.
async fn commit_fails(store: &SqlStore) {
    let failed = store.write(|tx| {
        Box::pin(async move {
            tx.conn.execute("PRAGMA defer_foreign_keys = ON", args![]).await?;
            let sql = "INSERT INTO timers (workspace_id, user_id, issue_id, started_at) VALUES (-1, -1, -1, 0)";
            Ok(tx.conn.execute(sql, args![]).await?)
        })
    });
    let failed = failed.await;
    assert!(matches!(failed, Err(StoreError::Busy)), "{failed:?}");
}

#[tokio::test]
async fn a_commit_that_fails_leaves_no_transaction_open() {
    let dir = tempfile::tempdir().unwrap();
    let world = world::sqlite(dir.path()).await;
    let usual = world.usual(1).await;
    for _ in 0..8 {
        commit_fails(&world.store).await;
        let run = world.given(&usual).await;
        world.say(&run, done()).await.unwrap();
    }
    let mut reader = world.store.reader().await.unwrap();
    assert_eq!(reader.number("SELECT count(*) FROM timers", args![]).await.unwrap(), 0);
}

/// Which is what makes a commit durable, also when the machine loses its power.
#[tokio::test]
async fn f_110_who_writes_to_sqlite_waits_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let world = world::sqlite(dir.path()).await;
    let asked = world.store.write(|tx| {
        Box::pin(async move {
            let synchronous = tx.conn.number("PRAGMA synchronous", args![]).await?;
            let mode = tx.conn.row("PRAGMA journal_mode", args![]).await?.unwrap().text()?;
            Ok((synchronous, mode))
        })
    });
    // 2 is FULL.
    assert_eq!(asked.await.unwrap(), (2, "wal".to_owned()));
}

/// Two servers on one database, with one clock.
async fn two(name: &str) -> Option<(World<SqlStore>, World<SqlStore>)> {
    let url = world::postgres_url(name)?;
    let clock = TestClock::new();
    let one = World { store: world::open(&url, &clock).await, clock: clock.clone() };
    let two = World { store: world::open(&url, &clock).await, clock };
    Some((one, two))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_031_f_033_claims_on_two_servers_give_each_task_once_and_keep_limits() {
    let Some((a, b)) = two("two_servers_claim").await else { return };
    super::claims::claim_at_once(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_sent_to_two_servers_gives_one_task() {
    let Some((a, b)) = two("two_servers_one_word").await else { return };
    let usual = a.usual(1_000).await;
    for round in 0..20 {
        for _ in 0..4 {
            a.queue(usual.workspace, usual.issue, usual.agent).await;
        }
        let claim = || usual.machine.claim_as(&format!("r-{round}"));
        let given = join_all((0..6).map(|n| if n % 2 == 0 { &a } else { &b }.claim(claim()))).await;
        // One that came while the other server looked at the agent may have got nothing; asked again it
        // gets it.
        let mut given: Vec<_> = given.into_iter().flatten().collect();
        given.extend(b.claim(claim()).await);
        let tokens: BTreeSet<_> = given.iter().map(|it| it.lease_token.clone()).collect();
        assert_eq!(tokens.len(), 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_a_message_and_two_completions_at_once_have_one_outcome() {
    let Some((a, b)) = two("two_servers_one_outcome").await else { return };
    let usual = a.usual(1).await;
    let mut outcomes = BTreeSet::new();
    for round in 0..30 {
        let held = a.given(&usual).await;
        a.pass(300);
        let ends = join(a.say(&held, done()), b.say(&held, done()));
        let others = join(b.sweep(), a.say(&held, lines(&[1])));
        let ((one, two), _) = if round % 2 == 0 {
            join(ends, others).await
        } else {
            let (others, ends) = join(others, ends).await;
            (ends, others)
        };
        let state = a.state(&held).await;
        outcomes.insert(state.word());
        let results = a.store.results(&held.task_id).await.len();
        if state == State::Completed {
            assert_eq!((status(&one), status(&two)), (Ok(state), Ok(state)), "round {round}");
            assert_eq!(results, 1);
        } else {
            assert_eq!(state, State::Queued);
            let lost = Err(Refusal::LeaseExpired);
            assert_eq!((status(&one), status(&two)), (lost, lost), "round {round}");
            assert_eq!(results, 0);
            let again = a.take(&usual.machine).await;
            a.say(&again, failure(false)).await.unwrap();
        }
    }
    assert!(!outcomes.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_sweeps_at_a_time_and_any_other_may_next() {
    let Some((a, b)) = two("two_servers_sweep").await else { return };
    let usual = a.usual(100).await;
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(a.given(&usual).await);
    }
    a.pass(300);
    let sweep = a.sweep_now();
    // While a sweep is on its way, another server's does nothing.
    let (begun, wait_begun) = tokio::sync::oneshot::channel::<()>();
    let (end, wait_end) = tokio::sync::oneshot::channel::<()>();
    let own = a.store.clone();
    let first = tokio::spawn(async move {
        let work = own.write(move |tx| {
            Box::pin(async move {
                let swept = crate::store::sql::sweep::run(tx, sweep).await?;
                begun.send(()).unwrap();
                wait_end.await.unwrap();
                Ok(swept)
            })
        });
        work.await.unwrap()
    });
    wait_begun.await.unwrap();
    let other = tokio::time::timeout(SOON, b.store.leases_sweep(sweep)).await;
    assert!(other.expect("a sweep does not wait for another").unwrap().skipped);
    end.send(()).unwrap();
    let swept = first.await.unwrap();
    assert_eq!((swept.skipped, swept.leases), (false, 20));
    let swept = b.store.leases_sweep(sweep).await.unwrap();
    assert_eq!((swept.skipped, swept.leases), (false, 0));
}

#[tokio::test]
async fn connections_that_were_ended_are_not_noticed_by_anybody() {
    let Some(postgres) = ScratchPostgres::shared("store/ended_connections") else { return };
    let url = world::postgres_url("ended_connections").unwrap();
    let database = url.rsplit('/').next().unwrap().to_owned();
    let clock = TestClock::new();
    let world = World { store: world::open(&url, &clock).await, clock };
    let usual = world.usual(100).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(world.given(&usual).await);
    }
    for round in 1..=3 {
        assert!(postgres.terminate_backends(&database) > 0);
        for it in &held {
            let (call, with) = lines(&[round]);
            let stepped = world.say(it, (call, with)).await.unwrap();
            assert_eq!((stepped.accepted, stepped.next_seq), (1, round + 1));
        }
        assert!(postgres.terminate_backends(&database) > 0);
        world.queue(usual.workspace, usual.issue, usual.agent).await;
        let claimed = world.claim(usual.machine.claim()).await.unwrap();
        world.say(&run(&claimed), (Call::Start, Payload::None)).await.unwrap();
    }
}

/// Two servers behind one balancer hear of the same machines, and write it down at once, and the machines
/// register, and runs end on the same issues: nobody is refused because two transactions waited for each
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_two_servers_do_not_wait_for_each_other() {
    let Some((a, b)) = two("two_servers_no_deadlock").await else { return };
    let usual = a.usual(1_000).await;
    let other = a.store.issue_create(usual.workspace, "y", Priority::None).await;
    let names: Vec<_> = (0..40).map(|number| format!("m-{number}")).collect();
    for name in &names {
        a.machine(usual.workspace, name, &["codex", "claude_code", "huskarl"]).await;
    }
    for round in 0..20 {
        a.pass(1);
        let mut held = Vec::new();
        for number in 0..8 {
            let issue = if number % 2 == 0 { usual.issue } else { other };
            a.queue(usual.workspace, issue, usual.agent).await;
            held.push(a.take(&usual.machine).await);
        }
        let seen = |reverse: bool| {
            let seen = |name: &String| Seen {
                workspace_id: usual.workspace,
                daemon_id: name.clone(),
                at: a.clock.now(),
            };
            let mut all: Vec<_> = names.iter().map(seen).collect();
            if reverse {
                all.reverse();
            }
            all
        };
        let registers = names.iter().take(6).enumerate().map(|(at, name)| {
            let server = if (at + round) % 2 == 0 { &a } else { &b };
            let registration = world::registration(usual.workspace, name, &["huskarl", "codex"]);
            server.store.machine_register(registration)
        });
        let ends = held.iter().rev().enumerate().map(|(at, run)| {
            let deliveries = vec![world::delivery("branch", "b", None, Some("fix"), None, None)];
            let result = "{}".to_owned();
            let it = Completion {
                result,
                deliveries,
                session: world::session("s"),
                ..Completion::default()
            };
            let server = if at < 4 { &a } else { &b };
            server.say(run, world::completion(it))
        });
        let (one, two, registered, ended) = tokio::join!(
            a.store.machines_seen(seen(false)),
            b.store.machines_seen(seen(true)),
            join_all(registers),
            join_all(ends),
        );
        one.unwrap();
        two.unwrap();
        registered.into_iter().for_each(|it| _ = it.unwrap());
        ended.into_iter().for_each(|it| _ = it.unwrap());
    }
}
