//! Numbers for the metrics' page. Each is counted from a small index: tasks that have ended are not counted.

use super::db::args;
use super::{Pools, SqlStore};
use crate::store::StoreError;

/// What the database knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Tasks that have not ended, by state; those that are parked apart.
    pub(crate) tasks: Vec<(&'static str, i64)>,
    pub(crate) runtimes_online: i64,
}

/// State and condition, as the indexes have them.
const TASKS: [(&str, &str); 5] = [
    ("queued", "place = 'queue'"),
    ("parked", "place = 'parked'"),
    ("dispatched", "place = 'held' AND state = 'dispatched'"),
    ("running", "place = 'held' AND state = 'running'"),
    ("waiting", "place = 'waiting'"),
];

impl SqlStore {
    /// Counts.
    pub(crate) async fn counts(&self) -> Result<Counts, StoreError> {
        let mut conn = self.reader().await?;
        let mut tasks = Vec::with_capacity(TASKS.len());
        for (state, condition) in TASKS {
            let sql = format!("SELECT COUNT(*) FROM tasks WHERE {condition}");
            tasks.push((state, conn.number(&sql, args![]).await?));
        }
        let sql = "SELECT COUNT(*) FROM runtimes WHERE online = 1";
        Ok(Counts { tasks, runtimes_online: conn.number(sql, args![]).await? })
    }

    /// Connections to the database, by what they do.
    pub(crate) fn connections(&self) -> [(&'static str, u32); 2] {
        let (size, idle) = match &self.shared.pools {
            Pools::Sqlite(pool) => (pool.size(), pool.num_idle()),
            Pools::Postgres(pool) => (pool.size(), pool.num_idle()),
        };
        let idle = u32::try_from(idle).unwrap_or(size);
        [("idle", idle), ("used", size.saturating_sub(idle))]
    }
}
