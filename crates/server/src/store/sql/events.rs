//! Events as their readers see them: in an order that never grows in the middle.
//!
//! On SQLite numbers are given by the one writer, in the order of commits. On PostgreSQL a number is taken
//! before its commit, so a reader that goes on from the highest number it saw would miss what commits later with
//! a lower one. Events there are ordered by their transaction first, and a reader sees none whose transaction is
//! not older than every open one.

use ostler_core::clock::Timestamp;

use super::SqlStore;
use super::db::{Conn, DbError, args};
use crate::store::StoreError;

/// Events that one look reads.
pub(crate) const LOOK_MAX: usize = 500;

/// A place in the order. As text: `<transaction>-<number>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Cursor {
    tx: i64,
    id: i64,
}

impl Cursor {
    /// Reads what [`Display`](std::fmt::Display) wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (tx, id) = text.split_once('-')?;
        let number = |text: &str| text.parse().ok().filter(|number| *number >= 0);
        Some(Self { tx: number(tx)?, id: number(id)? })
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}-{}", self.tx, self.id)
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Cursor,
    pub(crate) kind: String,
    /// A JSON object.
    pub(crate) data: String,
    pub(crate) when: Timestamp,
}

/// The condition that keeps events of open transactions, and of later ones, from being read.
fn settled(conn: &Conn) -> &'static str {
    if conn.is_postgres() {
        "AND tx < CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)"
    } else {
        ""
    }
}

impl SqlStore {
    /// The events of a workspace after `after`, oldest first, a bounded number.
    pub(crate) async fn events_after(
        &self,
        workspace_id: i64,
        after: Cursor,
    ) -> Result<Vec<Event>, StoreError> {
        let mut conn = self.reader().await?;
        let settled = settled(&conn);
        let sql = format!(
            "SELECT tx, id, type, data, at FROM events WHERE workspace_id = $1 AND (tx, id) > ($2, $3) {settled} \
             ORDER BY tx, id LIMIT {LOOK_MAX}"
        );
        let mut events = Vec::new();
        for mut row in conn.rows(&sql, args![workspace_id, after.tx, after.id]).await? {
            events.push(Event {
                at: Cursor { tx: row.int()?, id: row.int()? },
                kind: row.text()?,
                data: row.text()?,
                when: Timestamp::from_micros(row.int()?),
            });
        }
        Ok(events)
    }

    /// The newest place from which everything later will be read.
    pub(crate) async fn events_end(&self, workspace_id: i64) -> Result<Cursor, StoreError> {
        let mut conn = self.reader().await?;
        let settled = settled(&conn);
        let sql = format!(
            "SELECT tx, id FROM events WHERE workspace_id = $1 {settled} ORDER BY tx DESC, id DESC LIMIT 1"
        );
        match conn.row(&sql, args![workspace_id]).await? {
            Some(mut row) => Ok(Cursor { tx: row.int()?, id: row.int()? }),
            None => Ok(Cursor::default()),
        }
    }

    /// Everything after this place is still kept.
    pub(crate) async fn event_is_kept(
        &self,
        workspace_id: i64,
        at: Cursor,
    ) -> Result<bool, StoreError> {
        let mut conn = self.reader().await?;
        if at == Cursor::default() {
            // Before the first: whatever was pruned came after it, and left this.
            let sql =
                "SELECT 1 FROM events WHERE workspace_id = $1 AND type = 'events.pruned' LIMIT 1";
            return Ok(conn.row(sql, args![workspace_id]).await?.is_none());
        }
        // They are pruned in the order of their numbers.
        let sql = "SELECT 1 FROM events WHERE workspace_id = $1 AND tx = $2 AND id = $3";
        Ok(conn.row(sql, args![workspace_id, at.tx, at.id]).await?.is_some())
    }
}

/// Gives events of another PostgreSQL cluster a place before all of this one's: a dump that was restored brings
/// numbers of transactions along, and those this cluster has not reached would hide all that comes. Their readers
/// get `reset`, since none of the places they know is there.
pub(super) async fn settle_restored(conn: &mut Conn) -> Result<(), DbError> {
    if !conn.is_postgres() {
        return Ok(());
    }
    let sql = "UPDATE events SET tx = 0 WHERE EXISTS (SELECT 1 FROM events WHERE tx >= \
               CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint))";
    let settled = conn.execute(sql, args![]).await?;
    if settled > 0 {
        tracing::info!(events = settled, "events of another cluster were put before this one's");
    }
    Ok(())
}
