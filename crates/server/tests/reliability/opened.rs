//! Databases that are opened in bad moments: a newer program has changed them, a server was killed while it made
//! its tables, several make them at once.

use std::time::Instant;

use ostler_server::{Admin, OpenError};
use ostler_testkit::postgres::ScratchPostgres;

use super::child::{OwnProcess, keyring, start_and_kill};
use super::stored::{number, text};

/// Moments of a start at which it is killed.
const MOMENTS: u32 = 10;
const VERSIONS: &str = "SELECT COUNT(*) FROM _sqlx_migrations";
const MARKS: &str = "SELECT COUNT(*) FROM meta";

/// Names of new databases.
enum Databases {
    Sqlite(tempfile::TempDir),
    Postgres(&'static ScratchPostgres, &'static str),
}

impl Databases {
    fn make(&self, name: &str) -> String {
        match self {
            Self::Sqlite(dir) => format!("sqlite:{}", dir.path().join(name).display()),
            Self::Postgres(postgres, test) => postgres.create_database(&format!("{test}_{name}")),
        }
    }
}

async fn init(database: &str) {
    let admin = Admin::open(database, keyring()).await.unwrap();
    admin.init("acme", "admin@example.com").await.unwrap();
    admin.close().await;
}

/// What tables there are, with their columns.
async fn tables(database: &str) -> String {
    let sql = if database.starts_with("postgres:") {
        "SELECT string_agg(table_name || '.' || column_name, ',' ORDER BY table_name, column_name) \
         FROM information_schema.columns WHERE table_schema = 'public'"
    } else {
        "SELECT group_concat(sql) FROM sqlite_schema"
    };
    text(database, sql).await
}

/// Nothing of what a start writes is written.
async fn newer_is_left_alone(databases: Databases) {
    let database = databases.make("newer");
    init(&database).await;
    let change = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                  SELECT 2, description, success, checksum, execution_time FROM _sqlx_migrations \
                  RETURNING version";
    assert_eq!(number(&database, change).await, 2);
    assert!(
        number(&database, "DELETE FROM meta WHERE name = 'key' RETURNING CAST(1 AS BIGINT)").await
            > 0
    );
    let before = (tables(&database).await, number(&database, MARKS).await);
    let Err(error) = Admin::open(&database, keyring()).await else { panic!("it was opened") };
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1 }), "{error}");
    let after = (tables(&database).await, number(&database, MARKS).await);
    assert_eq!((after, number(&database, VERSIONS).await), (before, 2));
}

/// The next start makes the tables, or finds them.
async fn killed_over_its_tables(databases: Databases) {
    let begun = Instant::now();
    OwnProcess::start(&databases.make("whole")).kill();
    let whole = begun.elapsed();
    for moment in 1..=MOMENTS {
        let database = databases.make(&format!("k{moment}"));
        let after = whole * moment / MOMENTS;
        let ended = tokio::task::block_in_place(|| start_and_kill(&database, after));
        assert!(!ended, "the server does not start");
        init(&database).await;
        assert_eq!(number(&database, VERSIONS).await, 1, "killed after {after:?}");
    }
}

/// A server, and commands beside it.
async fn made_by_several_at_once(databases: Databases) {
    for round in 0..3 {
        let database = databases.make(&format!("several{round}"));
        let own = database.clone();
        let server = tokio::task::spawn_blocking(move || OwnProcess::start(&own));
        let open = || async {
            let admin = Admin::open(&database, keyring()).await.unwrap();
            admin.close().await;
        };
        tokio::join!(open(), open(), open());
        server.await.unwrap().kill();
        init(&database).await;
        assert_eq!(number(&database, VERSIONS).await, 1);
    }
}

macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::Databases::Sqlite(tempfile::tempdir().unwrap())).await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let name = concat!("reliability/", stringify!($name));
                let postgres = ostler_testkit::postgres::ScratchPostgres::shared(name);
                let Some(postgres) = postgres else { return };
                super::$name(super::Databases::Postgres(postgres, stringify!($name))).await;
            })*
        }
    };
}

on_both!(newer_is_left_alone, killed_over_its_tables, made_by_several_at_once);

/// SQLite does not wait by itself for a lock while it begins its log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_that_another_program_has_locked_is_waited_for() {
    use sqlx::{ConnectOptions as _, Connection as _, Executor as _};
    let databases = Databases::Sqlite(tempfile::tempdir().unwrap());
    let database = databases.make("locked");
    let file = database.trim_start_matches("sqlite:");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let mut other = options.connect().await.unwrap();
    other.execute("BEGIN IMMEDIATE; CREATE TABLE theirs (id INTEGER)").await.unwrap();
    let open = tokio::spawn(async move { init(&database).await });
    // So long that it has found the lock; when it has not, this shows less and fails no more often.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!open.is_finished());
    other.execute("ROLLBACK").await.unwrap();
    other.close().await.unwrap();
    open.await.unwrap();
}

/// The locks of a process on a file are gone as soon as the process closes the file anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_opened_twice_in_a_process_stays_locked() {
    use std::os::unix::fs::MetadataExt as _;
    let databases = Databases::Sqlite(tempfile::tempdir().unwrap());
    let database = databases.make("twice");
    let first = Admin::open(&database, keyring()).await.unwrap();
    let inode = std::fs::metadata(database.trim_start_matches("sqlite:")).unwrap().ino();
    let ours = format!(" {} ", std::process::id());
    let is_locked = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains(&ours) && lock.contains(&format!(":{inode} ")))
    };
    assert!(is_locked());
    let second = Admin::open(&database, keyring()).await.unwrap();
    assert!(is_locked());
    second.close().await;
    assert!(is_locked());
    first.close().await;
}
