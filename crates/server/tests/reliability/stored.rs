//! What is in the database, compared with what the clients know.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sqlx::Connection as _;

use super::fleet::Known;

/// What is in the database.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    tasks: Vec<(String, String)>,
    lines: Vec<(String, i64, String)>,
    /// How many results, comments and entries of time a task has.
    results: BTreeMap<String, i64>,
    comments: BTreeMap<String, i64>,
    times: BTreeMap<String, i64>,
    events: Vec<(String,)>,
}

macro_rules! read {
    ($pool:expr) => {{
        let pool = $pool;
        let tasks = sqlx::query_as("SELECT id, state FROM tasks").fetch_all(&pool).await.unwrap();
        let lines = "SELECT task_id, seq, content FROM messages ORDER BY task_id, seq";
        let lines = sqlx::query_as(lines).fetch_all(&pool).await.unwrap();
        let results = "SELECT task_id, COUNT(*) FROM results GROUP BY task_id";
        let results: Vec<(String, i64)> = sqlx::query_as(results).fetch_all(&pool).await.unwrap();
        let comments =
            "SELECT task_id, COUNT(*) FROM comments WHERE task_id IS NOT NULL GROUP BY task_id";
        let comments: Vec<(String, i64)> = sqlx::query_as(comments).fetch_all(&pool).await.unwrap();
        let times =
            "SELECT task_id, COUNT(*) FROM time_entries WHERE task_id IS NOT NULL GROUP BY task_id";
        let times: Vec<(String, i64)> = sqlx::query_as(times).fetch_all(&pool).await.unwrap();
        let events = "SELECT data FROM events WHERE type = 'task.changed'";
        let events = sqlx::query_as(events).fetch_all(&pool).await.unwrap();
        pool.close().await;
        let counts = |rows: Vec<(String, i64)>| rows.into_iter().collect();
        let (results, comments, times) = (counts(results), counts(comments), counts(times));
        Stored { tasks, lines, results, comments, times, events }
    }};
}

macro_rules! value {
    ($database:expr, $sql:expr, $type:ty) => {{
        let sql = sqlx::AssertSqlSafe($sql.to_owned());
        let value: $type = if $database.starts_with("postgres:") {
            let mut conn = sqlx::PgConnection::connect($database).await.unwrap();
            sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
        } else {
            let mut conn = sqlx::SqliteConnection::connect($database).await.unwrap();
            sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap()
        };
        value
    }};
}

/// The one number that a statement answers.
pub(crate) async fn number(database: &str, sql: &str) -> i64 {
    value!(database, sql, i64)
}

/// The one text.
pub(crate) async fn text(database: &str, sql: &str) -> String {
    value!(database, sql, String)
}

impl Stored {
    /// Of a database that no server need be using.
    pub(crate) async fn read(database: &str) -> Self {
        if database.starts_with("postgres:") {
            return read!(sqlx::PgPool::connect(database).await.unwrap());
        }
        let pool = sqlx::SqlitePool::connect(database).await.unwrap();
        let sound: (String,) =
            sqlx::query_as("PRAGMA integrity_check").fetch_one(&pool).await.unwrap();
        assert_eq!(sound.0, "ok");
        read!(pool)
    }

    /// Nothing is lost, nothing is there twice, everything has ended.
    pub(crate) fn compare(&self, known: &Known, tasks: usize) {
        assert_eq!(self.tasks.len(), tasks, "tasks");
        for (id, state) in &self.tasks {
            assert_eq!(state, "completed", "{id}");
            assert!(known.completed.contains(id), "nobody was told that {id} is completed");
            for (what, counts) in
                [("result", &self.results), ("comment", &self.comments), ("time", &self.times)]
            {
                assert_eq!(counts.get(id), Some(&1), "{what} of {id}");
            }
            self.compare_lines(known, id);
        }
        let mut ends: BTreeMap<String, u32> = BTreeMap::new();
        for (data,) in &self.events {
            let data: Value = serde_json::from_str(data).unwrap();
            if data["status"] == "completed" {
                *ends.entry(data["task_id"].as_str().unwrap().to_owned()).or_default() += 1;
            }
        }
        assert_eq!(ends.len(), tasks, "events of ends");
        assert!(ends.values().all(|count| *count == 1), "{ends:?}");
    }

    fn compare_lines(&self, known: &Known, id: &str) {
        let mut stored = BTreeSet::new();
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        for (_, _, content) in self.lines.iter().filter(|(task, _, _)| task == id) {
            assert!(stored.insert(content.clone()), "{content} is there twice");
            let (run, number) = content.split_once(':').unwrap();
            let number = number.parse().unwrap();
            assert!(last.insert(run, number) < Some(number), "the order of {content}");
        }
        let (none, sent) = (BTreeSet::new(), known.sent.get(id));
        assert!(stored.is_subset(sent.unwrap_or(&none)), "what nobody sent, of {id}");
        let acknowledged = known.acknowledged.get(id).unwrap_or(&none);
        let lost: Vec<_> = acknowledged.difference(&stored).collect();
        assert!(lost.is_empty(), "lines of {id} were lost: {lost:?}");
    }
}
