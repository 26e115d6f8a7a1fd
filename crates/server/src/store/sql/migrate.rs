//! Brings a database's tables up to date, forward only, and refuses one that is newer or has another key.

use std::borrow::Cow;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlitePool};

use super::db::{Conn, args};
use super::{OpenError, Pools};
use crate::secrets::Keyring;

/// Every step, oldest first. One that was released is never changed.
const STEPS: &[(i64, &str, &str)] = &[(1, "begin", include_str!("schema_0001.sql"))];

/// Times that the tables of a SQLite file are tried. Nothing keeps apart programs that open a new file at once, as a
/// lock does on PostgreSQL: who comes second fails, and finds the tables when it looks again.
const SQLITE_TRIES_MAX: u32 = 3;

/// The version of the tables that this program knows.
pub(super) fn newest() -> i64 {
    STEPS.last().map_or(0, |(version, _, _)| *version)
}

/// The tables that the steps make, each after those it refers to.
pub(super) fn tables() -> impl Iterator<Item = &'static str> {
    let lines = STEPS.iter().flat_map(|(_, _, step)| step.lines());
    lines.filter_map(|line| line.strip_prefix("CREATE TABLE ")?.strip_suffix(" ("))
}

/// The steps' text for one of the databases.
fn text(step: &str, postgres: bool) -> String {
    let (ours, other) =
        if postgres { ("--postgres ", "--sqlite ") } else { ("--sqlite ", "--postgres ") };
    step.lines()
        .filter(|line| !line.starts_with(other))
        .map(|line| line.strip_prefix(ours).unwrap_or(line))
        .fold(String::new(), |text, line| text + line + "\n")
}

fn migrator(postgres: bool) -> Migrator {
    let steps = STEPS.iter().map(|(version, name, step)| {
        let sql = AssertSqlSafe(text(step, postgres)).into_sql_str();
        Migration::new(*version, Cow::Borrowed(*name), MigrationType::Simple, sql, false)
    });
    Migrator::with_migrations(steps.collect())
}

pub(super) async fn run(pools: &Pools, keyring: &Keyring) -> Result<(), OpenError> {
    let known = newest();
    let done = match pools {
        Pools::Sqlite(pool) => run_sqlite(pool).await,
        Pools::Postgres(pool) => migrator(true).run(pool).await,
    };
    match done {
        Ok(()) => {}
        Err(MigrateError::VersionMissing(found)) => return Err(OpenError::Newer { found, known }),
        Err(error) => return Err(OpenError::Migrate(error)),
    }
    let mut conn = match pools {
        Pools::Sqlite(pool) => Conn::sqlite(pool.acquire().await.map_err(OpenError::Open)?),
        Pools::Postgres(pool) => Conn::postgres(pool.acquire().await.map_err(OpenError::Open)?),
    };
    check_key(&mut conn, keyring).await?;
    super::events::settle_restored(&mut conn).await.map_err(OpenError::Open)
}

async fn run_sqlite(pool: &SqlitePool) -> Result<(), MigrateError> {
    for _ in 1..SQLITE_TRIES_MAX {
        match migrator(false).run(pool).await {
            Err(MigrateError::Execute(_) | MigrateError::ExecuteMigration(..)) => {}
            done => return done,
        }
    }
    migrator(false).run(pool).await
}

/// The first server to open a database leaves its key's mark there; another key opens nothing.
async fn check_key(conn: &mut Conn, keyring: &Keyring) -> Result<(), OpenError> {
    let mark = keyring.fingerprint();
    let insert = "INSERT INTO meta (name, value) VALUES ('key', $1) ON CONFLICT (name) DO NOTHING";
    conn.execute(insert, args![mark]).await.map_err(OpenError::Open)?;
    let insert =
        "INSERT INTO meta (name, value) VALUES ('tokens', '0') ON CONFLICT (name) DO NOTHING";
    conn.execute(insert, args![]).await.map_err(OpenError::Open)?;
    let row = conn.row("SELECT value FROM meta WHERE name = 'key'", args![]).await;
    let found = match row.map_err(OpenError::Open)? {
        Some(mut row) => row.text().map_err(OpenError::Open)?,
        None => return Err(OpenError::OtherKey),
    };
    if found == mark { Ok(()) } else { Err(OpenError::OtherKey) }
}
