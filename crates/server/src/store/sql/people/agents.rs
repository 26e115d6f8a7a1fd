//! Agents: who they are, which CLI runs them, how many tasks they may hold.
//!
//! Environment and MCP servers are sealed before they are stored; what is read shows their names only.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::{At, Filter, Named, Page, Part, at, invalid, locking, opt_at, part, update};
use crate::secrets::{Keyring, Purpose};
use crate::store::StoreError;
use crate::store::sql::db::{Conn, Row, Value, args};
use crate::store::sql::lane::Tx;

/// Tasks that an agent may hold at most.
pub(crate) const CONCURRENCY_MAX: i64 = 1_000;
/// Skills of one agent.
const SKILLS_MAX: usize = 100;
/// Variables of one agent's environment, and its MCP servers.
const ENTRIES_MAX: usize = 100;
/// Bytes of one agent's environment, and of its MCP servers, as JSON.
const SEALED_BYTES_MAX: usize = 256 * 1024;

/// A new agent.
#[derive(Debug, Clone)]
pub(crate) struct NewAgent {
    pub(crate) workspace_id: i64,
    pub(crate) name: String,
    pub(crate) provider: String,
    pub(crate) concurrency: i64,
}

/// What changes of an agent. Of the secrets a name with null is taken out, the others stay.
#[derive(Clone, Default)]
pub(crate) struct AgentChange {
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) provider: Option<String>,
    pub(crate) model: Option<Option<String>>,
    pub(crate) instructions: Option<String>,
    pub(crate) runtime_id: Option<Option<String>>,
    pub(crate) custom_args: Option<Vec<String>>,
    pub(crate) concurrency: Option<i64>,
    pub(crate) paused: Option<bool>,
    pub(crate) archived: Option<bool>,
    pub(crate) custom_env: Option<Map<String, Json>>,
    pub(crate) mcp_config: Option<Map<String, Json>>,
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Agent {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) provider: String,
    pub(crate) model: Option<String>,
    pub(crate) instructions: String,
    pub(crate) custom_args: Json,
    /// Names only.
    pub(crate) custom_env_keys: Vec<String>,
    /// Names only.
    pub(crate) mcp_servers: Vec<String>,
    pub(crate) runtime_id: Option<String>,
    pub(crate) external_id: Option<String>,
    pub(crate) concurrency: i64,
    pub(crate) paused: bool,
    /// A runtime that could run it is online.
    pub(crate) online: bool,
    /// `online` or `offline`, as runtimes say it.
    pub(crate) status: &'static str,
    /// Tasks it holds now.
    pub(crate) held: i64,
    /// Tasks that wait for it.
    pub(crate) queued: i64,
    pub(crate) skills: Vec<Named>,
    pub(crate) archived_at: Option<At>,
    pub(crate) created_at: At,
}

/// Tasks are counted in the parts that have an index, so that a million ended ones cost nothing.
const COLUMNS: &str = "a.id, a.name, a.description, a.provider, a.model, a.instructions, a.custom_args, \
     a.sealed_env, a.sealed_mcp, a.runtime_id, a.external_id, a.concurrency, a.paused, \
     (CASE WHEN EXISTS (SELECT 1 FROM runtimes r WHERE r.workspace_id = a.workspace_id AND r.listed = 1 \
         AND r.online = 1 AND (r.id = a.runtime_id OR (a.runtime_id IS NULL AND r.provider = a.provider))) \
         THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END), \
     (SELECT count(*) FROM tasks h WHERE h.agent_id = a.id AND h.place = 'held'), \
     (SELECT count(*) FROM tasks q WHERE q.agent_id = a.id AND q.place = 'queue') \
     + (SELECT count(*) FROM tasks p WHERE p.agent_id = a.id AND p.place = 'parked'), \
     a.archived_at, a.created_at";

/// The names in a sealed object. One that does not open is shown as empty, so that the rest of a list is seen.
fn names(keyring: &Keyring, purpose: Purpose, sealed: Option<&str>) -> Vec<String> {
    let opened = opened(keyring, purpose, sealed).unwrap_or_else(|| {
        tracing::error!(%purpose, "a sealed value of an agent cannot be opened");
        Map::new()
    });
    let mut names: Vec<_> = opened.into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    names
}

/// A sealed object; `None` when it does not open.
fn opened(keyring: &Keyring, purpose: Purpose, sealed: Option<&str>) -> Option<Map<String, Json>> {
    let Some(sealed) = sealed else { return Some(Map::new()) };
    serde_json::from_slice(&keyring.open(purpose, sealed).ok()?).ok()
}

fn read(row: &mut Row, keyring: &Keyring) -> Result<Agent, sqlx::Error> {
    let (id, name, description) = (row.int()?, row.text()?, row.text()?);
    let (provider, model, instructions) = (row.text()?, row.opt_text()?, row.text()?);
    let custom_args = serde_json::from_str(&row.text()?).unwrap_or_else(|_| json!([]));
    let (env, mcp) = (row.opt_text()?, row.opt_text()?);
    let (runtime_id, external_id) = (row.opt_text()?, row.opt_text()?);
    let (concurrency, paused, online) = (row.int()?, row.flag()?, row.flag()?);
    Ok(Agent {
        id,
        name,
        description,
        provider,
        model,
        instructions,
        custom_args,
        custom_env_keys: names(keyring, Purpose::AgentEnv(id), env.as_deref()),
        mcp_servers: names(keyring, Purpose::AgentMcp(id), mcp.as_deref()),
        runtime_id,
        external_id,
        concurrency,
        paused,
        online,
        status: if online { "online" } else { "offline" },
        held: row.int()?,
        queued: row.int()?,
        skills: Vec::new(),
        archived_at: opt_at(row)?,
        created_at: at(row)?,
    })
}

/// Agents by name; those that are archived only when asked for.
pub(crate) async fn list(
    conn: &mut Conn,
    keyring: &Keyring,
    workspace_id: i64,
    archived: bool,
    page: Page,
) -> Result<Part<Agent>, StoreError> {
    let mut query = Filter::new(
        &format!("SELECT {COLUMNS} FROM agents a WHERE a.workspace_id = $1"),
        args![workspace_id],
    );
    let which = if archived { "NOT NULL" } else { "NULL" };
    query.sql.push_str(&format!(" AND a.archived_at IS {which} ORDER BY a.name, a.id"));
    let mut found = part(conn, &query.sql, query.args, page, |row| read(row, keyring)).await?;
    with_skills(conn, &mut found.items).await?;
    Ok(found)
}

/// One agent, archived or not.
pub(crate) async fn show(
    conn: &mut Conn,
    keyring: &Keyring,
    workspace_id: i64,
    id: i64,
) -> Result<Agent, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM agents a WHERE a.workspace_id = $1 AND a.id = $2");
    let row = conn.row(&sql, args![workspace_id, id]).await?;
    let mut agents = [read(&mut row.ok_or(StoreError::NotFound)?, keyring)?];
    with_skills(conn, &mut agents).await?;
    let [agent] = agents;
    Ok(agent)
}

/// The agent of this name that is not archived.
pub(crate) async fn find(
    conn: &mut Conn,
    workspace_id: i64,
    name: &str,
) -> Result<i64, StoreError> {
    let sql = "SELECT id FROM agents WHERE workspace_id = $1 AND name = $2 AND archived_at IS NULL";
    let row = conn.row(sql, args![workspace_id, name]).await?;
    Ok(row.ok_or(StoreError::NotFound)?.int()?)
}

async fn with_skills(conn: &mut Conn, agents: &mut [Agent]) -> Result<(), StoreError> {
    let ids: Vec<i64> = agents.iter().map(|agent| agent.id).collect();
    let any = conn.any("x.agent_id", 1);
    let sql = format!(
        "SELECT x.agent_id, s.id, s.name FROM agent_skills x JOIN skills s ON s.id = x.skill_id \
         WHERE {any} ORDER BY s.name"
    );
    let mut skills: HashMap<i64, Vec<Named>> = HashMap::new();
    for mut row in conn.rows(&sql, args![ids]).await? {
        let agent_id = row.int()?;
        let skill = Named { id: row.int()?, name: row.text()? };
        skills.entry(agent_id).or_default().push(skill);
    }
    for agent in agents {
        agent.skills = skills.remove(&agent.id).unwrap_or_default();
    }
    Ok(())
}

fn check_concurrency(concurrency: i64) -> Result<(), StoreError> {
    if (1..=CONCURRENCY_MAX).contains(&concurrency) {
        return Ok(());
    }
    Err(invalid("concurrency", format!("must be from 1 to {CONCURRENCY_MAX}")))
}

async fn check_name(
    conn: &mut Conn,
    workspace_id: i64,
    name: &str,
    own: i64,
) -> Result<(), StoreError> {
    let taken = "SELECT 1 FROM agents WHERE workspace_id = $1 AND name = $2 AND id <> $3 \
                 AND archived_at IS NULL";
    match conn.row(taken, args![workspace_id, name, own]).await? {
        Some(_) => {
            Err(StoreError::Conflict("An agent of this workspace has that name.".to_owned()))
        }
        None => Ok(()),
    }
}

/// Makes an agent.
pub(crate) async fn create(tx: &mut Tx, new: NewAgent) -> Result<i64, StoreError> {
    check_concurrency(new.concurrency)?;
    check_name(&mut tx.conn, new.workspace_id, &new.name, 0).await?;
    let sql = "INSERT INTO agents (workspace_id, name, description, provider, instructions, custom_args, \
               concurrency, paused, created_at) VALUES ($1, $2, '', $3, '', '[]', $4, 0, $5) \
               ON CONFLICT DO NOTHING RETURNING id";
    let args =
        args![new.workspace_id, &new.name, &new.provider, new.concurrency, tx.now.as_micros()];
    let row = tx.conn.row(sql, args).await?;
    let taken = || StoreError::Conflict("An agent of this workspace has that name.".to_owned());
    let id = row.ok_or_else(taken)?.int()?;
    let data = json!({ "agent_id": id, "name": new.name });
    tx.event(new.workspace_id, "agent.created", &data).await?;
    Ok(id)
}

/// What a change is compared with.
struct Before {
    name: String,
    provider: String,
    runtime_id: Option<String>,
    sealed_env: Option<String>,
    sealed_mcp: Option<String>,
    archived: bool,
}

/// Changes an agent. Waiting claims learn when it may do more than before.
pub(crate) async fn change(
    tx: &mut Tx,
    workspace_id: i64,
    id: i64,
    change: AgentChange,
) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT name, provider, runtime_id, sealed_env, sealed_mcp, archived_at FROM agents \
         WHERE workspace_id = $1 AND id = $2 {}",
        locking(&tx.conn)
    );
    let row = tx.conn.row(&sql, args![workspace_id, id]).await?;
    let mut row = row.ok_or(StoreError::NotFound)?;
    let before = Before {
        name: row.text()?,
        provider: row.text()?,
        runtime_id: row.opt_text()?,
        sealed_env: row.opt_text()?,
        sealed_mcp: row.opt_text()?,
        archived: row.opt_int()?.is_some(),
    };
    check(tx, workspace_id, id, &before, &change).await?;
    let sets = columns(tx, id, before, &change)?;
    let fields = update(tx, "agents", id, sets, false).await?;
    if fields.is_empty() {
        return Ok(());
    }
    if change.provider.is_some() || change.runtime_id.is_some() {
        // Boards remember who could run it.
        tx.hints.anything = true;
    }
    tx.hints.freed(workspace_id, id);
    tx.event(workspace_id, "agent.changed", &json!({ "agent_id": id, "fields": fields })).await?;
    Ok(())
}

async fn check(
    tx: &mut Tx,
    workspace_id: i64,
    id: i64,
    before: &Before,
    change: &AgentChange,
) -> Result<(), StoreError> {
    if let Some(concurrency) = change.concurrency {
        check_concurrency(concurrency)?;
    }
    let archived = change.archived.unwrap_or(before.archived);
    if !archived && (change.name.is_some() || before.archived) {
        let name = change.name.as_ref().unwrap_or(&before.name);
        check_name(&mut tx.conn, workspace_id, name, id).await?;
    }
    let provider = change.provider.as_ref().unwrap_or(&before.provider);
    let runtime_id = change.runtime_id.as_ref().unwrap_or(&before.runtime_id);
    if let (Some(runtime_id), true) =
        (runtime_id, change.provider.is_some() || change.runtime_id.is_some())
    {
        let sql = "SELECT provider FROM runtimes WHERE workspace_id = $1 AND id = $2";
        let row = tx.conn.row(sql, args![workspace_id, runtime_id]).await?;
        let Some(mut row) = row else {
            return Err(invalid("runtime_id", "is no runtime of this workspace"));
        };
        if &row.text()? != provider {
            return Err(invalid("runtime_id", "is a runtime of another provider"));
        }
    }
    Ok(())
}

fn columns(
    tx: &Tx,
    id: i64,
    before: Before,
    change: &AgentChange,
) -> Result<Vec<(&'static str, Value)>, StoreError> {
    let mut sets: Vec<(&'static str, Value)> = Vec::new();
    let mut set = |name, value: Option<Value>| sets.extend(value.map(|value| (name, value)));
    set("name", change.name.as_ref().map(Value::from));
    set("description", change.description.as_ref().map(Value::from));
    set("provider", change.provider.as_ref().map(Value::from));
    set("model", change.model.clone().map(Value::from));
    set("instructions", change.instructions.as_ref().map(Value::from));
    set("runtime_id", change.runtime_id.clone().map(Value::from));
    let arguments = change.custom_args.as_ref();
    set("custom_args", arguments.map(|it| Value::from(json!(it).to_string())));
    set("concurrency", change.concurrency.map(Value::from));
    set("paused", change.paused.map(Value::from));
    // Archiving twice keeps the first instant.
    let archived = change.archived.filter(|archived| *archived != before.archived);
    set("archived_at", archived.map(|it| Value::from(it.then(|| tx.now.as_micros()))));
    let keyring = &tx.shared.keyring;
    let env = ("custom_env", Purpose::AgentEnv(id), before.sealed_env);
    let mcp = ("mcp_config", Purpose::AgentMcp(id), before.sealed_mcp);
    for ((field, purpose, sealed), change, column) in
        [(env, &change.custom_env, "sealed_env"), (mcp, &change.mcp_config, "sealed_mcp")]
    {
        if let Some(change) = change {
            // What does not open is not overwritten: the right key may come back.
            let before = opened(keyring, purpose, sealed.as_deref()).ok_or_else(|| {
                let message = "What is stored of it does not open with this server's key; nothing was changed.";
                StoreError::Conflict(format!("{field}: {message}"))
            })?;
            let merged = merged(before, change);
            set(column, Some(Value::from(seal(keyring, field, purpose, &merged)?)));
        }
    }
    Ok(sets)
}

fn merged(mut object: Map<String, Json>, change: &Map<String, Json>) -> BTreeMap<String, Json> {
    object.extend(change.clone());
    object.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

/// The object as it is stored; nothing when it is empty.
fn seal(
    keyring: &Keyring,
    field: &'static str,
    purpose: Purpose,
    object: &BTreeMap<String, Json>,
) -> Result<Option<String>, StoreError> {
    if object.is_empty() {
        return Ok(None);
    }
    if object.len() > ENTRIES_MAX {
        return Err(invalid(field, format!("must have at most {ENTRIES_MAX} entries")));
    }
    let bytes = json!(object).to_string();
    if bytes.len() > SEALED_BYTES_MAX {
        return Err(invalid(field, format!("must have at most {SEALED_BYTES_MAX} bytes")));
    }
    keyring.seal(purpose, bytes.as_bytes()).map(Some).map_err(|_| StoreError::Busy)
}

/// Gives an agent a skill; again is no fault.
pub(crate) async fn skill_attach(
    tx: &mut Tx,
    workspace_id: i64,
    id: i64,
    skill_id: i64,
) -> Result<(), StoreError> {
    both(tx, workspace_id, id, skill_id).await?;
    let sql = "SELECT count(*) FROM agent_skills WHERE agent_id = $1";
    let count = tx.conn.number(sql, args![id]).await?;
    if usize::try_from(count).unwrap_or(usize::MAX) >= SKILLS_MAX {
        return Err(StoreError::Conflict(format!("An agent has at most {SKILLS_MAX} skills.")));
    }
    let sql =
        "INSERT INTO agent_skills (agent_id, skill_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    tx.conn.execute(sql, args![id, skill_id]).await?;
    skills_changed(tx, workspace_id, id).await
}

/// Takes a skill from an agent; again is no fault.
pub(crate) async fn skill_detach(
    tx: &mut Tx,
    workspace_id: i64,
    id: i64,
    skill_id: i64,
) -> Result<(), StoreError> {
    both(tx, workspace_id, id, skill_id).await?;
    let sql = "DELETE FROM agent_skills WHERE agent_id = $1 AND skill_id = $2";
    tx.conn.execute(sql, args![id, skill_id]).await?;
    skills_changed(tx, workspace_id, id).await
}

/// Agent and skill are of this workspace.
async fn both(tx: &mut Tx, workspace_id: i64, id: i64, skill_id: i64) -> Result<(), StoreError> {
    let sql = "SELECT 1 FROM agents a JOIN skills s ON s.workspace_id = a.workspace_id \
               WHERE a.workspace_id = $1 AND a.id = $2 AND s.id = $3";
    let found = tx.conn.row(sql, args![workspace_id, id, skill_id]).await?;
    found.map(drop).ok_or(StoreError::NotFound)
}

async fn skills_changed(tx: &mut Tx, workspace_id: i64, id: i64) -> Result<(), StoreError> {
    let data = json!({ "agent_id": id, "fields": ["skills"] });
    Ok(tx.event(workspace_id, "agent.changed", &data).await?)
}
