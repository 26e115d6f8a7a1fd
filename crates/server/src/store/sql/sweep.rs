//! The sweeper's transaction: leases that ran out, machines that fell silent, tasks whose pause is over.

use ostler_core::clock::Timestamp;
use ostler_core::lease::CLOCKS_DIFFER_MAX;
use serde_json::json;

use super::SqlStore;
use super::batch::Saves;
use super::db::{Conn, args};
use super::lane::Tx;
use super::rows;
use crate::store::{StoreError, Sweep, Swept, plan};

/// Leases taken in one transaction; the rest is left to the next one.
const LEASES_MAX: usize = 500;
/// What servers on one PostgreSQL agree on, so that one sweeps at a time: "ostler" as a number.
const LOCK: i64 = 0x6f73_746c_6572;

impl SqlStore {
    /// What the clock shows that all servers of one database share; none where there is one server.
    pub(crate) async fn clock_shared(&self) -> Result<Option<Timestamp>, StoreError> {
        if !self.is_postgres() {
            return Ok(None);
        }
        let sql = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)";
        let micros = self.reader().await?.number(sql, args![]).await?;
        Ok(Some(Timestamp::from_micros(micros)))
    }
}

/// Sweeps once.
pub(crate) async fn run(tx: &mut Tx, sweep: Sweep) -> Result<Swept, StoreError> {
    if tx.conn.is_postgres() {
        // Of the transaction: it ends with it, however that ends.
        let sql =
            "SELECT CAST(CASE WHEN pg_try_advisory_xact_lock($1) THEN 1 ELSE 0 END AS BIGINT)";
        if tx.conn.number(sql, args![LOCK]).await? == 0 {
            return Ok(Swept { skipped: true, ..Swept::default() });
        }
    }
    let mut swept = Swept::default();
    if sweep.take_leases || sweep.bring_back {
        (swept.leases, swept.more) = take_leases(tx, sweep).await?;
    }
    if sweep.bring_back {
        bring_back(tx, sweep.now).await?;
    }
    if let Some(silent) = sweep.offline_after {
        swept.runtimes = mark_offline(tx, sweep.now.before(silent)).await?;
    }
    Ok(swept)
}

/// Tasks whose pause is over can be claimed. Any server does this, at any time.
pub(super) async fn unpark(tx: &mut Tx) -> Result<u64, StoreError> {
    // Over is over, also when the clock goes back.
    let sql = format!(
        "UPDATE tasks SET place = 'queue', not_before = NULL, version = version + 1 \
         WHERE id IN (SELECT id FROM tasks \
         WHERE place = 'parked' AND not_before <= $1 {}) RETURNING workspace_id, agent_id",
        free_rows(&tx.conn)
    );
    let due = tx.conn.rows(&sql, args![tx.now.as_micros()]).await?;
    let count = due.len() as u64;
    for mut row in due {
        let (workspace_id, agent_id) = (row.int()?, row.int()?);
        tx.hints.queued(workspace_id, agent_id);
    }
    Ok(count)
}

/// What keeps a statement for many rows from waiting: those that another transaction has are left for the
/// next round.
fn free_rows(conn: &Conn) -> &'static str {
    if conn.is_postgres() { "FOR NO KEY UPDATE SKIP LOCKED" } else { "" }
}

/// How many, and whether there may be more.
async fn take_leases(tx: &mut Tx, sweep: Sweep) -> Result<(u64, bool), StoreError> {
    let lock = if tx.conn.is_postgres() { "FOR NO KEY UPDATE OF t SKIP LOCKED" } else { "" };
    let sql = format!(
        "SELECT {} FROM {} WHERE t.place = 'held' \
         AND (t.lease_expires_at <= $1 OR (t.state = 'dispatched' AND t.lease_start_by <= $1) \
         OR t.lease_expires_at > $2) \
         ORDER BY t.id LIMIT {LEASES_MAX} {lock}",
        rows::COLUMNS,
        rows::FROM
    );
    let mut saves = Saves::default();
    let mut taken = Vec::new();
    let policy = tx.shared.policy;
    // Nothing ran out before all time, and nothing lasts beyond its end.
    let ran_out = if sweep.take_leases { sweep.now.as_micros() } else { i64::MIN };
    let ahead =
        if sweep.bring_back { policy.lease_end_max(sweep.now).as_micros() } else { i64::MAX };
    let mut count = 0;
    for mut row in tx.conn.rows(&sql, args![ran_out, ahead]).await? {
        let before = rows::read(&mut row)?;
        let mut record = before.clone();
        let changes = plan::sweep(&mut record, sweep.now, &policy);
        count += u64::from(!changes.is_empty());
        saves.take(tx, &before, &record, 0, changes);
        taken.push(record);
    }
    saves.save(tx, &taken.iter().collect::<Vec<_>>()).await?;
    Ok((count, taken.len() == LEASES_MAX))
}

/// A machine was not heard of in the future.
async fn bring_back(tx: &mut Tx, now: Timestamp) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE runtimes SET last_seen = $1 WHERE id IN (SELECT id FROM runtimes \
         WHERE online = 1 AND last_seen > $2 {})",
        free_rows(&tx.conn)
    );
    let last = now.after(CLOCKS_DIFFER_MAX).as_micros();
    tx.conn.execute(&sql, args![now.as_micros(), last]).await?;
    Ok(())
}

async fn mark_offline(tx: &mut Tx, silent_since: Timestamp) -> Result<u64, StoreError> {
    let sql = format!(
        "UPDATE runtimes SET online = 0 WHERE id IN (SELECT id FROM runtimes \
         WHERE online = 1 AND last_seen < $1 {}) RETURNING workspace_id, id, name, provider, daemon_id",
        free_rows(&tx.conn)
    );
    let mut events = Vec::new();
    for mut row in tx.conn.rows(&sql, args![silent_since.as_micros()]).await? {
        let workspace_id = row.int()?;
        let data = json!({ "runtime_id": row.text()?, "name": row.text()?, "provider": row.text()?,
            "online": false });
        tx.hints.machine(workspace_id, &row.text()?);
        events.push((workspace_id, "runtime.changed".to_owned(), data.to_string()));
    }
    let count = events.len() as u64;
    tx.events(events).await?;
    Ok(count)
}
