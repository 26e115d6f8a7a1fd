//! What a server decides from the tasks it knows, while others change them in the same database: another server, a
//! command, a person, the sweeper. Each test is done on SQLite and on PostgreSQL, with two stores.

use futures_util::future::{join, join_all, join4};
use ostler_core::lease::{Call, Input, Priority, Refusal, State};
use tokio::sync::oneshot;

use super::subject::Subject as _;
use super::world::{self, TestClock, Usual, World, done, lines, run};
use crate::metrics::{ByWhat, Word};
use crate::store::sql::lane::Hot;
use crate::store::sql::{SqlStore, batch};
use crate::store::{Payload, StoreError, TaskCall, What};

/// Two stores on one database, with one clock.
pub(super) struct Two {
    pub(super) own: World<SqlStore>,
    pub(super) other: World<SqlStore>,
    _dir: tempfile::TempDir,
}

pub(super) async fn two(url: &str, dir: tempfile::TempDir) -> Two {
    let clock = TestClock::new();
    let own = World { store: world::open(url, &clock).await, clock: clock.clone() };
    let other = World { store: world::open(url, &clock).await, clock };
    Two { own, other, _dir: dir }
}

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test]
            async fn $name() {
                let dir = tempfile::tempdir().unwrap();
                let url = format!("sqlite:{}", dir.path().join("ostler.db").display());
                super::$name(super::super::guesses::two(&url, dir).await).await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test]
            async fn $name() {
                let dir = tempfile::tempdir().unwrap();
                let Some(url) = super::super::world::postgres_url(stringify!($name)) else { return };
                super::$name(super::super::guesses::two(&url, dir).await).await;
            })*
        }
    };
}
pub(super) use on_both;

on_both!(
    a_run_is_claimed_and_done_without_reading_its_task_again,
    what_others_changed_is_seen_by_the_next_call,
    what_a_transaction_decided_that_was_rolled_back_is_not_known,
    f_033_places_that_another_server_filled_are_not_filled_again,
);

/// Guesses that were saved, and those that were not.
fn guesses(world: &World<SqlStore>) -> (u64, u64) {
    let of = |what| {
        let word = ByWhat { what: Word(what) };
        world.store.shared().metrics.guesses.get_or_create(&word).get()
    };
    (of("saved"), of("outdated"))
}

async fn a_run_is_claimed_and_done_without_reading_its_task_again(two: Two) {
    let world = &two.own;
    let usual = world.usual(5).await;
    let held = world.given(&usual).await;
    world.say(&held, (Call::Start, Payload::None)).await.unwrap();
    world.say(&held, lines(&[1, 2])).await.unwrap();
    world.say(&held, done()).await.unwrap();
    assert_eq!(guesses(world), (4, 0));
    // What is refused or repeated is answered from what is stored, not from what is known.
    assert!(world.say(&held, done()).await.unwrap().answer.repeated);
    assert_eq!(world.say(&held, lines(&[3])).await, Err(Refusal::LeaseLost));
    assert_eq!(guesses(world), (4, 0));
    assert_eq!(world.state(&held).await, State::Completed);
}

async fn what_others_changed_is_seen_by_the_next_call(two: Two) {
    let Two { own, other, .. } = &two;
    let usual = own.usual(5).await;
    let held = own.given(&usual).await;
    own.say(&held, (Call::Start, Payload::None)).await.unwrap();
    // The machine is sent to the other server, and back.
    other.say(&held, lines(&[1])).await.unwrap();
    let stepped = own.say(&held, lines(&[1, 2])).await.unwrap();
    assert_eq!((stepped.accepted, stepped.next_seq), (1, 3));
    assert_eq!(guesses(own).1, 1, "it was known otherwise");
    // A person cancels, through the other server.
    other.person(&held, Input::Cancel).await.unwrap();
    let stepped = own.say(&held, lines(&[3])).await.unwrap();
    assert!(stepped.answer.cancel_requested);
    assert_eq!((stepped.accepted, stepped.next_seq), (1, 4));
    // The other server's sweeper takes the lease, and another machine has it.
    let second = own.given(&usual).await;
    own.say(&second, (Call::Start, Payload::None)).await.unwrap();
    own.pass(300);
    assert_eq!(other.sweep().await, 2);
    assert_eq!(own.say(&second, done()).await, Err(Refusal::LeaseExpired));
    let third = other.take(&usual.machine).await;
    assert_eq!(third.task_id, second.task_id);
    assert_eq!(own.say(&second, done()).await, Err(Refusal::LeaseExpired));
    assert_eq!(own.state(&third).await, State::Dispatched);
}

async fn what_a_transaction_decided_that_was_rolled_back_is_not_known(two: Two) {
    let Two { own, other, .. } = &two;
    let usual = own.usual(5).await;
    let held = own.given(&usual).await;
    own.say(&held, (Call::Start, Payload::None)).await.unwrap();
    let cancel = TaskCall {
        workspace_id: held.workspace_id,
        task_id: held.task_id.clone(),
        what: What::Input(Input::Cancel),
        with: Payload::None,
    };
    // While something else is done, two more wait, and share a transaction on SQLite. The first of them fails.
    let (begun, wait_begun) = oneshot::channel::<()>();
    let (end, wait_end) = oneshot::channel::<()>();
    let before = own.store.write(move |_| {
        Box::pin(async move {
            begun.send(()).unwrap();
            wait_end.await.unwrap();
            Ok(())
        })
    });
    let failed = own.store.write(move |tx| {
        Box::pin(async move {
            batch::calls_run(tx, &[&cancel]).await?;
            Err::<(), _>(StoreError::NotFound)
        })
    });
    let fine = own.store.write(|_| Box::pin(async { Ok(()) }));
    let release = async {
        wait_begun.await.unwrap();
        tokio::task::yield_now().await;
        end.send(()).unwrap();
    };
    let (before, failed, fine, ()) = join4(before, failed, fine, release).await;
    assert!(matches!(failed, Err(StoreError::NotFound)));
    before.and(fine).unwrap();
    // The next change gets the number that the one which was rolled back had.
    other.say(&held, lines(&[1])).await.unwrap();
    let stepped = own.say(&held, lines(&[2])).await.unwrap();
    assert_eq!((stepped.answer.cancel_requested, stepped.next_seq), (false, 3));
}

/// Two servers see the agent's only place; since the first of them looked, something more urgent came.
#[tokio::test]
async fn f_033_a_place_that_was_filled_since_it_was_seen_is_not_filled_again() {
    let Some(url) = world::postgres_url("a_place_filled_since") else { return };
    let Two { own, other, .. } = &two(&url, tempfile::tempdir().unwrap()).await;
    let usual = own.usual(1).await;
    own.queue(usual.workspace, usual.issue, usual.agent).await;
    let (begun, wait_begun) = oneshot::channel::<()>();
    let (end, wait_end) = oneshot::channel::<()>();
    let claim = usual.machine.claim();
    let seen = own.store.write(move |tx| {
        Box::pin(async move {
            let jobs = [Hot::Claim(claim, oneshot::channel().0)];
            let guess = batch::guess(tx, &jobs).await?.expect("there is something to claim");
            begun.send(()).unwrap();
            wait_end.await.unwrap();
            Ok(tx.conn.write(guess.writes).await.is_ok())
        })
    });
    let filled = async {
        wait_begun.await.unwrap();
        let urgent = own.store.issue_create(usual.workspace, "now", Priority::Urgent).await;
        let task = own.queue(usual.workspace, urgent, usual.agent).await;
        assert_eq!(other.take(&usual.machine).await.task_id, task);
        end.send(()).unwrap();
    };
    let (seen, ()) = join(seen, filled).await;
    assert!(!seen.unwrap(), "two tasks of an agent that may hold one");
}

async fn f_033_places_that_another_server_filled_are_not_filled_again(two: Two) {
    let Two { own, other, .. } = &two;
    let usual: Usual = own.usual(2).await;
    for round in 0..10 {
        for _ in 0..4 {
            own.queue(usual.workspace, usual.issue, usual.agent).await;
        }
        let claims =
            (0..6).map(|n| if n % 2 == 0 { own } else { other }.claim(usual.machine.claim()));
        let given = join_all(claims).await;
        let mut held: Vec<_> = given.iter().flatten().map(run).collect();
        // One that another server looked at the agent of at that moment may have been passed over.
        if held.len() < 2 {
            held.extend(own.claim(usual.machine.claim()).await.as_ref().map(run));
        }
        assert_eq!(held.len(), 2, "round {round}");
        assert!(own.claim(usual.machine.claim()).await.is_none(), "round {round}");
        for it in &held {
            own.say(it, done()).await.unwrap();
        }
        for world in [own, other, own, other] {
            if let Some(rest) = world.claim(usual.machine.claim()).await {
                world.say(&run(&rest), done()).await.unwrap();
            }
        }
    }
}
