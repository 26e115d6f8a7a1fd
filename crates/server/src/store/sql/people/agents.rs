//! Agents: who they are, which CLI runs them, how many tasks they may hold.

use serde_json::json;

use crate::store::StoreError;
use crate::store::sql::db::args;
use crate::store::sql::lane::Tx;

/// Tasks that an agent may hold at most.
const CONCURRENCY_MAX: i64 = 1_000;

/// A new agent.
#[derive(Debug, Clone)]
pub(crate) struct NewAgent {
    pub(crate) workspace_id: i64,
    pub(crate) name: String,
    pub(crate) provider: String,
    pub(crate) concurrency: i64,
}

/// Makes an agent.
pub(crate) async fn create(tx: &mut Tx, new: NewAgent) -> Result<i64, StoreError> {
    if !(1..=CONCURRENCY_MAX).contains(&new.concurrency) {
        let fault = format!("must be from 1 to {CONCURRENCY_MAX}");
        return Err(StoreError::Invalid { field: "concurrency", fault });
    }
    let taken =
        "SELECT 1 FROM agents WHERE workspace_id = $1 AND name = $2 AND archived_at IS NULL";
    if tx.conn.row(taken, args![new.workspace_id, &new.name]).await?.is_some() {
        return Err(StoreError::Conflict("An agent of this workspace has that name.".to_owned()));
    }
    let sql = "INSERT INTO agents (workspace_id, name, description, provider, instructions, custom_args, \
               concurrency, paused, created_at) VALUES ($1, $2, '', $3, '', '[]', $4, 0, $5) RETURNING id";
    let args =
        args![new.workspace_id, &new.name, &new.provider, new.concurrency, tx.now.as_micros()];
    let id = tx.conn.number(sql, args).await?;
    let data = json!({ "agent_id": id, "name": new.name });
    tx.event(new.workspace_id, "agent.created", &data).await?;
    Ok(id)
}
