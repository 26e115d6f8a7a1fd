//! What is asked about the queue: which agents have work, whose decisions wait, whether a lease holds.

use std::collections::BTreeMap;

use ostler_core::lease::{Input, step};
use ostler_proto::lease::DecisionMade;

use super::db::{Row, args};
use super::{SqlStore, rows};
use crate::board::Offer;
use crate::store::{LeaseStore as _, StoreError, TaskRecord};

/// Agents with work that a look finds. When there are more, claims ask the database.
const OFFERS_MAX: usize = 10_000;

/// Decisions that are compared with what machines are told. When there are more, machines that were told otherwise
/// learn it when they are looked up again anyway.
const DECISIONS_MAX: usize = 1_000;

/// Decisions that wait, by workspace and machine.
pub(crate) type Decisions = BTreeMap<(i64, String), Vec<DecisionMade>>;

fn decision(row: &mut Row) -> Result<DecisionMade, StoreError> {
    Ok(DecisionMade {
        task_id: row.text()?,
        decision: row.text()?,
        note: row.opt_text()?.unwrap_or_default(),
    })
}

impl SqlStore {
    /// Ends pauses that are over, and finds the agents that have something to claim and room for it; whether these
    /// are all.
    pub(crate) async fn offers(&self) -> Result<(Vec<Offer>, bool), StoreError> {
        let mut conn = self.reader().await?;
        let due = "SELECT 1 FROM tasks WHERE place = 'parked' AND not_before <= $1 LIMIT 1";
        let due = conn.row(due, args![self.now().as_micros()]).await?.is_some();
        if due {
            drop(conn);
            self.tasks_unpark().await?;
            conn = self.reader().await?;
        }
        let sql = format!(
            "SELECT workspace_id, id, provider, runtime_id, concurrency - held FROM ( \
                 SELECT a.workspace_id, a.id, a.provider, a.runtime_id, a.concurrency, \
                     (SELECT count(*) FROM tasks h WHERE h.agent_id = a.id \
                         AND h.place = 'held') AS held \
                 FROM agents a WHERE a.paused = 0 AND a.archived_at IS NULL \
                     AND (SELECT q.rank FROM tasks q WHERE q.agent_id = a.id AND q.place = 'queue' \
                          ORDER BY q.rank, q.id LIMIT 1) IS NOT NULL \
             ) AS a WHERE held < concurrency LIMIT {OFFERS_MAX}"
        );
        let mut offers = Vec::new();
        for mut row in conn.rows(&sql, args![]).await? {
            offers.push(Offer {
                workspace_id: row.int()?,
                agent_id: row.int()?,
                provider: row.text()?,
                runtime_id: row.opt_text()?,
                room: usize::try_from(row.int()?).unwrap_or(0),
            });
        }
        let is_all = offers.len() < OFFERS_MAX;
        Ok((offers, is_all))
    }

    /// All decisions that wait for machines, by workspace and machine; none when there are too many to read.
    pub(crate) async fn decisions(&self) -> Result<Option<Decisions>, StoreError> {
        let sql = format!(
            "SELECT r.workspace_id, r.daemon_id, t.id, t.decision, t.decision_note FROM tasks t \
             JOIN runtimes r ON r.id = t.runtime_id \
             WHERE t.place = 'waiting' AND t.decision IS NOT NULL ORDER BY t.id LIMIT {DECISIONS_MAX}"
        );
        let rows = self.reader().await?.rows(&sql, args![]).await?;
        if rows.len() == DECISIONS_MAX {
            return Ok(None);
        }
        let mut decisions = Decisions::new();
        for mut row in rows {
            let machine = (row.int()?, row.text()?);
            decisions.entry(machine).or_default().push(decision(&mut row)?);
        }
        Ok(Some(decisions))
    }

    /// Decisions of people that wait until this machine resumes.
    pub(crate) async fn decisions_of(
        &self,
        workspace_id: i64,
        daemon_id: &str,
    ) -> Result<Vec<DecisionMade>, StoreError> {
        let sql = "SELECT t.id, t.decision, t.decision_note FROM tasks t \
                   JOIN runtimes r ON r.id = t.runtime_id \
                   WHERE t.place = 'waiting' AND t.decision IS NOT NULL \
                   AND r.workspace_id = $1 AND r.daemon_id = $2 ORDER BY t.id";
        let mut decisions = Vec::new();
        let mut conn = self.reader().await?;
        for mut row in conn.rows(sql, args![workspace_id, daemon_id]).await? {
            decisions.push(decision(&mut row)?);
        }
        Ok(decisions)
    }

    /// A task of the workspace.
    pub(crate) async fn task(&self, workspace_id: i64, id: &str) -> Result<TaskRecord, StoreError> {
        let sql = format!(
            "SELECT {} FROM {} WHERE t.id = $1 AND t.workspace_id = $2",
            rows::COLUMNS,
            rows::FROM
        );
        let row = self.reader().await?.row(&sql, args![id, workspace_id]).await?;
        Ok(rows::read(&mut row.ok_or(StoreError::NotFound)?)?)
    }

    /// The task exists, and it could be done to it: nothing is.
    pub(crate) async fn task_check(
        &self,
        workspace_id: i64,
        id: &str,
        input: Input,
    ) -> Result<(), StoreError> {
        let mut task = self.task(workspace_id, id).await?.machine;
        let stepped = step(&mut task, input, self.now(), &self.shared().policy);
        stepped.answer.map(drop).map_err(StoreError::Refused)
    }
}
