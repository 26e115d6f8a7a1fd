//! A whole server out of one database and into another, and a backup while a server runs.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "helpers of tests")]

#[path = "common/made.rs"]
mod made;

use std::io::Cursor;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_server::secrets::Keyring;
use ostler_server::{Admin, BackupError, TransferError, backup};
use ostler_testkit::postgres::ScratchPostgres;
use serde_json::Value;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

fn keyring(byte: u8) -> Keyring {
    Keyring::new(&[byte; 32]).unwrap()
}

struct Rig {
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn at(&self, name: &str) -> Utf8PathBuf {
        Utf8Path::from_path(self.dir.path()).unwrap().join(name)
    }

    fn url(&self, name: &str) -> String {
        format!("sqlite:{}", self.at(name))
    }

    /// The names of all files, in order.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<_> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }

    async fn sqlite(&self, name: &str) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.at(name)).connect().await.unwrap()
    }

    /// A database in which every table has rows, with every kind of value.
    async fn filled(&self, name: &str) {
        let admin = Admin::open(&self.url(name), keyring(7)).await.unwrap();
        admin.init("acme", "admin@example.com").await.unwrap();
        let agent = made::agent(&admin, "Freya", 2).await;
        made::issue_for(&admin, "Grüße \u{1f600} \"quoted\"", agent).await;
        admin.close().await;
        let mut conn = self.sqlite(name).await;
        let tables = "SELECT name FROM sqlite_master WHERE type = 'table' \
                      AND name NOT LIKE 'sqlite_%' AND name NOT LIKE '_sqlx%' ORDER BY rowid";
        let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut conn).await.unwrap();
        for table in tables {
            let count = format!("SELECT COUNT(*) FROM {table}");
            let count = sqlx::AssertSqlSafe(count);
            let rows: i64 = sqlx::query_scalar(count).fetch_one(&mut conn).await.unwrap();
            if rows == 0 {
                fill(&mut conn, &table).await;
            }
        }
        // An id that was given and is free: it must not be given again.
        for sql in [
            "INSERT INTO events (id, workspace_id, type, data, at) VALUES (900, 1, 't', '{}', 1)",
            "DELETE FROM events WHERE id = 900",
        ] {
            sqlx::query(sql).execute(&mut conn).await.unwrap();
        }
        conn.close().await.unwrap();
    }

    async fn export(&self, url: &str) -> Vec<u8> {
        let admin = Admin::open(url, keyring(7)).await.unwrap();
        let mut bytes = Vec::new();
        admin.export(&mut bytes).await.unwrap();
        admin.close().await;
        bytes
    }

    async fn import(&self, url: &str, bytes: &[u8]) -> Result<u64, TransferError> {
        let moved = Admin::import(url, keyring(7), &mut Cursor::new(bytes)).await;
        moved.map(|moved| moved.rows)
    }
}

/// One row of whatever columns there are; references lead to the rows with id 1 and to the one task.
async fn fill(conn: &mut SqliteConnection, table: &str) {
    let sql = format!("SELECT name, type, \"notnull\" FROM pragma_table_info('{table}')");
    let columns = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&mut *conn).await.unwrap();
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for column in columns {
        let (name, kind): (String, String) = (column.get(0), column.get(1));
        values.push(match (name.as_str(), kind.as_str()) {
            ("task_id", _) => "(SELECT id FROM tasks)".to_owned(),
            ("runtime_id", _) => "NULL".to_owned(),
            (_, "BLOB") => "x'00ff10'".to_owned(),
            (_, "TEXT") => format!("'{name} ✓'"),
            _ => "1".to_owned(),
        });
        names.push(name);
    }
    let sql = format!("INSERT INTO {table} ({}) VALUES ({})", names.join(","), values.join(","));
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(conn).await.unwrap();
}

/// The lines but the first, which has the instant; in an order that no collation changes.
fn content(export: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(export).unwrap();
    let mut lines: Vec<_> = text.lines().skip(1).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_moves_whole_from_sqlite_to_sqlite() {
    let rig = Rig::new();
    rig.filled("a.db").await;
    let first = rig.export(&rig.url("a.db")).await;
    let text = String::from_utf8(first.clone()).unwrap();
    for line in text.lines().filter(|line| line.contains("\"table\"")) {
        let head: Value = serde_json::from_str(line).unwrap();
        let name = head["table"].as_str().unwrap();
        let after = text.split(line).nth(1).unwrap().trim_start();
        assert!(after.starts_with('['), "{name} has no row in this test");
    }
    assert!(text.contains("AP8Q"), "attachments travel as base64");
    let rows = rig.import(&rig.url("b.db"), &first).await.unwrap();
    assert!(rows > 20, "{rows}");
    assert_eq!(content(&rig.export(&rig.url("b.db")).await), content(&first));
    // Numbers go on where they stopped.
    let mut conn = rig.sqlite("b.db").await;
    let sql =
        "INSERT INTO events (workspace_id, type, data, at) VALUES (1, 't', '{}', 1) RETURNING id";
    let id: i64 = sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap();
    assert_eq!(id, 901);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_moves_whole_to_postgresql_and_back() {
    let Some(postgres) = ScratchPostgres::shared("a_server_moves_whole_to_postgresql_and_back")
    else {
        return;
    };
    let rig = Rig::new();
    rig.filled("a.db").await;
    let first = rig.export(&rig.url("a.db")).await;
    let url = postgres.create_database("moved");
    rig.import(&url, &first).await.unwrap();
    let second = rig.export(&url).await;
    assert_eq!(content(&second), content(&first));
    // Numbers go on where they stopped, and what was moved can be worked with.
    let event =
        "INSERT INTO events (workspace_id, type, data, at) VALUES (1, 't', '{}', 1) RETURNING id";
    let id = postgres.sql("moved", event);
    assert_eq!(id.lines().next(), Some("901"), "{id}");
    let admin = Admin::open(&url, keyring(7)).await.unwrap();
    let agent = made::agent(&admin, "Loki", 1).await;
    made::issue_for(&admin, "After the move", agent).await;
    admin.close().await;
    let error = rig.import(&url, &first).await.unwrap_err();
    assert!(matches!(error, TransferError::NotEmpty { .. }), "{error}");
    rig.import(&rig.url("b.db"), &second).await.unwrap();
    assert_eq!(content(&rig.export(&rig.url("b.db")).await), content(&first));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postgresql_refuses_leaves_it_empty() {
    let Some(postgres) = ScratchPostgres::shared("what_postgresql_refuses_leaves_it_empty") else {
        return;
    };
    let rig = Rig::new();
    rig.filled("a.db").await;
    let export = String::from_utf8(rig.export(&rig.url("a.db")).await).unwrap();
    let url = postgres.create_database("refused");
    // PostgreSQL's texts have no NUL, SQLite's may.
    let nul = export.replacen("admin@example.com", "admin\\u0000@example.com", 1);
    let cut = &export[..export.len() - 10];
    for text in [nul.as_str(), cut] {
        let error = rig.import(&url, text.as_bytes()).await.unwrap_err();
        assert!(!error.to_string().contains("admin"), "{error}");
        let rows = postgres.sql(
            "refused",
            "SELECT (SELECT COUNT(*) FROM workspaces) + (SELECT COUNT(*) FROM users)",
        );
        assert_eq!(rows.trim(), "0");
    }
    rig.import(&url, export.as_bytes()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_not_empty_is_left_as_it_is() {
    let rig = Rig::new();
    rig.filled("a.db").await;
    let export = rig.export(&rig.url("a.db")).await;
    let error = rig.import(&rig.url("a.db"), &export).await.unwrap_err();
    assert!(
        matches!(&error, TransferError::NotEmpty { table } if table == "workspaces"),
        "{error}"
    );
    assert_eq!(content(&rig.export(&rig.url("a.db")).await), content(&export));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_secret_key_is_refused_and_said() {
    let rig = Rig::new();
    rig.filled("a.db").await;
    let export = rig.export(&rig.url("a.db")).await;
    let import = Admin::import(&rig.url("b.db"), keyring(8), &mut Cursor::new(export)).await;
    let error = import.unwrap_err();
    assert!(matches!(error, TransferError::OtherKey), "{error}");
    assert!(!rig.at("b.db").exists(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_or_changed_is_refused_and_nothing_of_it_stays() {
    let rig = Rig::new();
    rig.filled("a.db").await;
    let export = String::from_utf8(rig.export(&rig.url("a.db")).await).unwrap();
    let lines: Vec<_> = export.lines().collect();
    let end = lines.len();
    let without_end = lines[..end - 1].join("\n") + "\n";
    let cut_in_a_line = &export[..export.len() - 3];
    let without_a_row = [&lines[..end - 2], &lines[end - 1..]].concat().join("\n") + "\n";
    let twice = export.replace("\"table\":\"users\"", "\"table\":\"workspaces\"");
    let injected = export.replace("\"table\":\"users\"", "\"table\":\"users; DROP TABLE tasks\"");
    let column = export.replace("[\"id\",\"email\"", "[\"id\",\"email\\\" text\"");
    let newer = export.replace("\"tables_version\":", "\"tables_version\":9");
    let followed = format!("{export}[1]\n");
    for (what, text) in [
        ("without end", without_end.as_str()),
        ("cut in a line", cut_in_a_line),
        ("without a row", &without_a_row),
        ("a table twice", &twice),
        ("a statement as a name", &injected),
        ("an unknown column", &column),
        ("newer tables", &newer),
        ("more after the end", &followed),
        ("nothing", ""),
        ("another file", "SQLite format 3\n"),
        ("a word", "null\n"),
    ] {
        let error = rig.import(&rig.url("b.db"), text.as_bytes()).await.unwrap_err();
        assert!(!error.to_string().contains("DROP"), "{error}");
        assert_eq!(rig.files(), ["a.db"], "{what}: {error}");
        // A database that was there, empty, is as it was.
        Admin::open(&rig.url("empty.db"), keyring(7)).await.unwrap().close().await;
        rig.import(&rig.url("empty.db"), text.as_bytes()).await.unwrap_err();
        let mut conn = rig.sqlite("empty.db").await;
        let sql = "SELECT (SELECT COUNT(*) FROM workspaces) + (SELECT COUNT(*) FROM users)";
        let rows: i64 = sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap();
        assert_eq!(rows, 0, "{what}: {error}");
        conn.close().await.unwrap();
        std::fs::remove_file(rig.at("empty.db")).unwrap();
    }
    rig.import(&rig.url("b.db"), export.as_bytes()).await.unwrap();
    assert_eq!(rig.files(), ["a.db", "b.db"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_one_state_owner_only_and_never_replaces_a_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let rig = Rig::new();
    rig.filled("a.db").await;
    let admin = Admin::open(&rig.url("a.db"), keyring(7)).await.unwrap();
    let copy = rig.at("copy.db");
    backup(&rig.url("a.db"), &copy).await.unwrap();
    let mode = |file: &Utf8Path| file.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&copy), mode(&rig.at("a.db"))), (0o600, 0o600));
    assert_eq!(mode(&rig.at("a.db-wal")), 0o600);
    admin.close().await;
    assert_eq!(
        content(&rig.export(&rig.url("copy.db")).await),
        content(&rig.export(&rig.url("a.db")).await)
    );
    let before = std::fs::read(&copy).unwrap();
    let error = backup(&rig.url("a.db"), &copy).await.unwrap_err();
    assert!(matches!(error, BackupError::File(_)), "{error}");
    assert_eq!(std::fs::read(&copy).unwrap(), before);
    let error = backup(&rig.url("nowhere.db"), &rig.at("other.db")).await.unwrap_err();
    assert!(matches!(error, BackupError::Database(_)), "{error}");
    assert!(!rig.at("other.db").exists() && !rig.at("nowhere.db").exists());
    let error = backup("postgres://localhost/x", &rig.at("other.db")).await.unwrap_err();
    assert!(matches!(error, BackupError::NotSqlite), "{error}");
}
