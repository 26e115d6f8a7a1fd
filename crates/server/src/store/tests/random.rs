//! Random sequences: the model and a database answer the same and end with the same contents.
//!
//! Ids, tokens and their hashes differ between stores; both are told by the number in which they were given.
//! `PROPTEST_CASES` sets how many sequences there are.

mod driver;
mod ops;

use std::cell::RefCell;
use std::collections::BTreeSet;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, TestRunner};

use self::driver::Driver;
use self::ops::{Op, any_ops};
use super::world::{self, TestClock};
use crate::store::sql::SqlStore;
use crate::store::sql::db::args;

/// Sequences when nobody says otherwise; a commit of SQLite is a flush of the disk.
const CASES: u32 = 48;
/// Sequences on PostgreSQL: each operation goes to another process.
const POSTGRES_CASES: u32 = 16;

fn cases(otherwise: u32) -> u32 {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    said.unwrap_or(otherwise)
}

/// Empties the database: what a sequence left would be swept by the next one.
async fn wipe(store: &SqlStore) {
    let tables = [
        "messages",
        "results",
        "sessions",
        "comments",
        "time_entries",
        "deliveries",
        "events",
        "tasks",
        "issues",
        "agents",
        "runtimes",
        "workspaces",
    ];
    let wiped = store.write(move |tx| {
        Box::pin(async move {
            for table in tables {
                tx.conn.execute(&format!("DELETE FROM {table}"), args![]).await?;
            }
            Ok(())
        })
    });
    wiped.await.unwrap();
}

async fn equal(store: SqlStore, clock: TestClock, ops: &[Op]) -> SqlStore {
    wipe(&store).await;
    clock.reset();
    let mut model = Driver::new(world::memory()).await;
    let mut other = Driver::new(world::World { store, clock }).await;
    for (at, op) in ops.iter().enumerate() {
        let (expected, answer) = (model.apply(op).await, other.apply(op).await);
        assert_eq!(answer, expected, "operation {at}: {op:?}");
    }
    let (expected, contents) = (model.contents().await, other.contents().await);
    for (contents, expected) in contents.iter().zip(&expected) {
        assert_eq!(contents, expected);
    }
    assert_eq!(contents.len(), expected.len());
    other.world.store
}

pub(super) fn equal_to_model(
    runtime: &tokio::runtime::Runtime,
    store: SqlStore,
    clock: &TestClock,
    otherwise: u32,
) {
    let mut runner = TestRunner::new(Config::with_cases(cases(otherwise)));
    let store = RefCell::new(Some(store));
    let run = |ops: Vec<Op>| {
        // A sequence that failed took its handle along; the store itself is shared.
        let own = store.borrow().clone().unwrap();
        runtime.block_on(equal(own, clock.clone(), &ops));
        Ok(())
    };
    runner.run(&any_ops(), run).unwrap();
    if let Some(store) = store.take() {
        runtime.block_on(store.close());
    }
}

#[test]
fn the_model_and_sqlite_do_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let world = runtime.block_on(world::sqlite(dir.path()));
    equal_to_model(&runtime, world.store, &world.clock, CASES);
}

#[test]
fn the_model_and_postgres_do_the_same() {
    let Some(url) = world::postgres_url("random") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = TestClock::new();
    let store = runtime.block_on(world::open(&url, &clock));
    equal_to_model(&runtime, store, &clock, POSTGRES_CASES);
}

/// Random sequences are worth something only if they reach the interesting places.
#[tokio::test]
async fn the_random_sequences_reach_the_interesting_places() {
    let places = [
        "claimed",
        "claimed nothing",
        "claimed again",
        "resumed",
        "resumed again",
        "old lines",
        "NotFound",
        "LeaseLost",
        "LeaseExpired",
        "BadState",
        "OtherMachine",
        "repeated",
        "swept",
        "unparked",
        "offline",
        "actor renamed",
        "delivered",
        "in_review",
        "together",
    ];
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    for _ in 0..300 {
        let ops = any_ops().new_tree(&mut runner).unwrap().current();
        let mut driver = Driver::new(world::memory()).await;
        for op in &ops {
            driver.apply(op).await;
        }
        driver.contents().await;
        seen.extend(driver.seen);
    }
    for place in places {
        assert!(seen.contains(place), "never reached: {place}; reached: {seen:?}");
    }
}
