//! Why a task is still queued: the facts by SQL, the reason by the core, the sentence for a person.

use ostler_core::clock::Timestamp;
use ostler_core::lease::{QueueFacts, WhyQueued, why_queued};
use serde::Serialize;

use crate::store::StoreError;
use crate::store::sql::db::{Conn, args};

/// Why a task is still queued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Why {
    /// A word for programs.
    pub(crate) reason: &'static str,
    /// A sentence for people.
    pub(crate) message: String,
}

/// Says why a queued task was not claimed yet.
pub(super) async fn of(conn: &mut Conn, task_id: &str, now: Timestamp) -> Result<Why, StoreError> {
    let could = "FROM runtimes r WHERE r.workspace_id = t.workspace_id \
                 AND (r.id = a.runtime_id OR (a.runtime_id IS NULL AND r.provider = a.provider))";
    let sql = format!(
        "SELECT a.name, a.provider, a.archived_at, a.paused, a.concurrency, t.not_before, \
             (SELECT count(*) {could}), \
             (SELECT count(*) {could} AND r.listed = 1 AND r.online = 1), \
             (SELECT count(*) FROM tasks h WHERE h.agent_id = a.id \
                 AND h.place = 'held'), \
             (SELECT count(*) FROM tasks q WHERE q.agent_id = a.id AND q.place = 'queue' \
                 AND (q.rank < t.rank OR (q.rank = t.rank AND q.id < t.id))) \
         FROM tasks t JOIN agents a ON a.id = t.agent_id WHERE t.id = $1"
    );
    let row = conn.row(&sql, args![task_id]).await?;
    let mut row = row.ok_or(StoreError::NotFound)?;
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    let (agent, provider) = (row.text()?, row.text()?);
    let (agent_archived, agent_paused) = (row.opt_int()?.is_some(), row.flag()?);
    let limit = count(row.int()?);
    let not_before = row.opt_int()?.map(Timestamp::from_micros);
    let facts = QueueFacts {
        agent_archived,
        agent_paused,
        runtimes: count(row.int()?),
        runtimes_online: count(row.int()?),
        held: count(row.int()?),
        limit,
        ahead: count(row.int()?),
        not_before,
    };
    Ok(told(why_queued(&facts, now), &agent, &provider))
}

fn told(why: WhyQueued, agent: &str, provider: &str) -> Why {
    let (reason, message) = match why {
        WhyQueued::AgentArchived => (
            "agent_archived",
            format!("{agent} is archived: bring it back, or assign the issue to another agent."),
        ),
        WhyQueued::AgentPaused => {
            ("agent_paused", format!("{agent} is paused: end the pause, and it goes on."))
        }
        WhyQueued::NoRuntime => (
            "no_runtime",
            format!("No machine with {provider} was ever connected for {agent}: connect one."),
        ),
        WhyQueued::RuntimesOffline => (
            "runtimes_offline",
            format!("Every machine that could run {agent} is offline: start one of them."),
        ),
        WhyQueued::Parked(at) => (
            "parked",
            format!("It waits until {}, most likely for a usage limit.", crate::http::instant(at)),
        ),
        WhyQueued::AgentBusy { held, limit } => {
            let tasks = if held == 1 { "task" } else { "tasks" };
            ("agent_busy", format!("{agent} works on {held} {tasks} and may hold {limit}."))
        }
        WhyQueued::Behind(1) => ("behind", format!("1 task of {agent} comes before it.")),
        WhyQueued::Behind(ahead) => ("behind", format!("{ahead} tasks of {agent} come before it.")),
        WhyQueued::Next => {
            ("next", "Nothing stands in its way: the next machine that asks gets it.".to_owned())
        }
    };
    Why { reason, message }
}
