//! Machines and their runtimes: register, find, signs of life.

use ostler_core::clock::Timestamp;
use serde_json::json;

use super::db::{Conn, DbError, args};
use super::lane::Tx;
use crate::store::{
    ACTOR_PROVIDER, Actor, ActorAgent, Registered, Registration, Runtime, Seen, StoreError,
};

/// What follows the name of an actor whose name is taken.
const ACTOR_MARK: &str = " (Huskarl)";
/// The kind of PostgreSQL's advisory locks for registrations.
const REGISTER_LOCK: i64 = 0x6f72;
/// Tasks a new actor's agent may hold at once.
const ACTOR_CONCURRENCY: i64 = 1;

/// Registers a machine.
pub(super) async fn register(tx: &mut Tx, it: Registration) -> Result<Registered, StoreError> {
    let now = tx.now.as_micros();
    if tx.conn.is_postgres() {
        // One registration of a machine after the other: what the first one inserts, the next one must lock.
        let alone = "SELECT count(pg_advisory_xact_lock($1::int, hashtext($2::text || ' ' || $3)))";
        let key = args![REGISTER_LOCK, it.workspace_id, &it.daemon_id];
        tx.conn.number(alone, key).await?;
        // Rows of runtimes are locked in one order by all: other servers hear of this machine as well.
        let lock = "SELECT id FROM runtimes WHERE workspace_id = $1 AND daemon_id = $2 ORDER BY id \
                    FOR NO KEY UPDATE";
        tx.conn.rows(lock, args![it.workspace_id, &it.daemon_id]).await?;
    }
    let unlist = "UPDATE runtimes SET listed = 0 WHERE workspace_id = $1 AND daemon_id = $2";
    tx.conn.execute(unlist, args![it.workspace_id, &it.daemon_id]).await?;
    let mut providers = it.providers.clone();
    // In one order for all, so that two registrations do not wait for each other.
    providers.sort_unstable();
    for provider in &providers {
        let sql = "INSERT INTO runtimes (id, workspace_id, daemon_id, provider, name, version, capabilities, \
                   listed, online, last_seen, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, 1, 1, $8, $8) \
                   ON CONFLICT (workspace_id, daemon_id, provider) DO UPDATE SET name = excluded.name, \
                   version = excluded.version, capabilities = excluded.capabilities, listed = 1, online = 1, \
                   last_seen = excluded.last_seen";
        let id = ulid::Ulid::generate().to_string().to_lowercase();
        let args = args![
            id,
            it.workspace_id,
            &it.daemon_id,
            provider,
            &it.name,
            &it.version,
            &it.capabilities,
            now
        ];
        tx.conn.execute(sql, args).await?;
    }
    let gone =
        "UPDATE runtimes SET online = 0 WHERE workspace_id = $1 AND daemon_id = $2 AND listed = 0";
    tx.conn.execute(gone, args![it.workspace_id, &it.daemon_id]).await?;
    let all = find(&mut tx.conn, it.workspace_id, &it.daemon_id).await?;
    let of = |provider: &String| all.iter().find(|runtime| &runtime.provider == provider).cloned();
    let runtimes: Vec<_> = it.providers.iter().filter_map(of).collect();
    let event = json!({ "name": it.name, "providers": it.providers, "online": true });
    tx.event(it.workspace_id, "machine.registered", &event).await?;
    tx.hints.machine(it.workspace_id, &it.daemon_id);
    let own = all.iter().find(|it| it.listed && it.provider == ACTOR_PROVIDER);
    let agents = match (it.actors, own) {
        (Some(actors), Some(runtime)) => {
            register_actors(tx, it.workspace_id, &runtime.id, actors).await?
        }
        _ => Vec::new(),
    };
    Ok(Registered { runtimes, agents })
}

async fn register_actors(
    tx: &mut Tx,
    workspace_id: i64,
    runtime_id: &str,
    actors: Vec<Actor>,
) -> Result<Vec<ActorAgent>, StoreError> {
    if tx.conn.is_postgres() {
        // Names are given out one machine after the other.
        let lock = "SELECT id FROM workspaces WHERE id = $1 FOR NO KEY UPDATE";
        tx.conn.number(lock, args![workspace_id]).await?;
    }
    let listed: Vec<String> = actors.iter().map(|actor| actor.external_id.clone()).collect();
    let any = tx.conn.any("external_id", 3);
    let archive = format!(
        "UPDATE agents SET archived_at = $2 WHERE runtime_id = $1 AND external_id IS NOT NULL \
         AND archived_at IS NULL AND NOT ({any})"
    );
    tx.conn.execute(&archive, args![runtime_id, tx.now.as_micros(), listed]).await?;
    let mut agents = Vec::new();
    for actor in actors {
        agents.push(register_actor(tx, workspace_id, runtime_id, actor).await?);
    }
    Ok(agents)
}

async fn register_actor(
    tx: &mut Tx,
    workspace_id: i64,
    runtime_id: &str,
    actor: Actor,
) -> Result<ActorAgent, StoreError> {
    let sql = "SELECT id FROM agents WHERE runtime_id = $1 AND external_id = $2";
    let known = match tx.conn.row(sql, args![runtime_id, &actor.external_id]).await? {
        Some(mut row) => Some(row.int()?),
        None => None,
    };
    let name = free_name(&mut tx.conn, workspace_id, &actor.name, known).await?;
    let id = if let Some(id) = known {
        let sql = "UPDATE agents SET name = $2, description = $3, archived_at = NULL WHERE id = $1";
        tx.conn.execute(sql, args![id, &name, &actor.description]).await?;
        id
    } else {
        let sql = "INSERT INTO agents (workspace_id, name, description, provider, instructions, custom_args, \
                   runtime_id, external_id, concurrency, paused, created_at) \
                   VALUES ($1, $2, $3, $4, '', '[]', $5, $6, $7, 0, $8) RETURNING id";
        let args = args![
            workspace_id,
            &name,
            &actor.description,
            ACTOR_PROVIDER,
            runtime_id,
            &actor.external_id,
            ACTOR_CONCURRENCY,
            tx.now.as_micros()
        ];
        tx.conn.number(sql, args).await?
    };
    Ok(ActorAgent { id, external_id: actor.external_id, name })
}

/// The name, with a mark (and then a number) when another agent of the workspace has it.
async fn free_name(
    conn: &mut Conn,
    workspace_id: i64,
    name: &str,
    own: Option<i64>,
) -> Result<String, DbError> {
    let sql =
        "SELECT name FROM agents WHERE workspace_id = $1 AND archived_at IS NULL AND id <> $2";
    let mut taken = std::collections::HashSet::new();
    for mut row in conn.rows(sql, args![workspace_id, own.unwrap_or(0)]).await? {
        taken.insert(row.text()?);
    }
    let marked = format!("{name}{ACTOR_MARK}");
    let numbered = (2..).map(|number| format!("{marked} {number}"));
    let mut names = [name.to_owned(), marked.clone()].into_iter().chain(numbered);
    Ok(names.find(|name| !taken.contains(name)).unwrap_or(marked))
}

/// The runtimes of a machine.
pub(super) async fn find(
    conn: &mut Conn,
    workspace_id: i64,
    daemon_id: &str,
) -> Result<Vec<Runtime>, StoreError> {
    let sql = "SELECT id, provider, listed, online, last_seen FROM runtimes \
               WHERE workspace_id = $1 AND daemon_id = $2 ORDER BY provider";
    let mut runtimes = Vec::new();
    for mut row in conn.rows(sql, args![workspace_id, daemon_id]).await? {
        runtimes.push(Runtime {
            id: row.text()?,
            provider: row.text()?,
            listed: row.flag()?,
            online: row.flag()?,
            last_seen: Timestamp::from_micros(row.int()?),
        });
    }
    if runtimes.is_empty() { Err(StoreError::NotFound) } else { Ok(runtimes) }
}

/// Signs of life of many machines at once. A row's instant never goes back, though the clock may.
pub(super) async fn seen(tx: &mut Tx, mut seen: Vec<Seen>) -> Result<(), StoreError> {
    seen.sort_by(|a, b| (a.workspace_id, &a.daemon_id).cmp(&(b.workspace_id, &b.daemon_id)));
    if tx.conn.is_postgres() {
        let sql = "UPDATE runtimes SET last_seen = GREATEST(last_seen, s.at), online = 1 FROM ( \
                       SELECT r.id, v.at FROM runtimes r \
                       JOIN unnest($1::bigint[], $2::text[], $3::bigint[]) AS v(workspace_id, daemon_id, at) \
                           ON r.workspace_id = v.workspace_id AND r.daemon_id = v.daemon_id \
                       WHERE r.listed = 1 AND (r.last_seen < v.at OR r.online = 0) \
                       ORDER BY r.id FOR NO KEY UPDATE OF r \
                   ) AS s WHERE runtimes.id = s.id";
        let workspaces: Vec<i64> = seen.iter().map(|it| it.workspace_id).collect();
        let at: Vec<i64> = seen.iter().map(|it| it.at.as_micros()).collect();
        let daemons: Vec<String> = seen.into_iter().map(|it| it.daemon_id).collect();
        tx.conn.execute(sql, args![workspaces, daemons, at]).await?;
        return Ok(());
    }
    let values: Vec<_> =
        seen.iter().map(|it| json!([it.workspace_id, it.daemon_id, it.at.as_micros()])).collect();
    let sql = "UPDATE runtimes SET last_seen = max(last_seen, v.at), online = 1 FROM (SELECT \
                   json_extract(value, '$[0]') AS workspace_id, json_extract(value, '$[1]') AS daemon_id, \
                   json_extract(value, '$[2]') AS at FROM json_each($1)) AS v \
                   WHERE runtimes.workspace_id = v.workspace_id AND runtimes.daemon_id = v.daemon_id \
                   AND runtimes.listed = 1 AND (runtimes.last_seen < v.at OR runtimes.online = 0)";
    tx.conn.execute(sql, args![json!(values).to_string()]).await?;
    Ok(())
}
