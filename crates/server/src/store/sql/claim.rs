//! Claims: who gets which task. Agents that have room first, then their first tasks by index, so that a
//! saturated agent with a long queue costs nothing.

use std::collections::HashSet;

use super::batch::{Saves, new_lease};
use super::db::{Conn, DbError, Value, args};
use super::lane::Tx;
use super::rows;
use crate::store::{Claim, StoreError, TaskRecord, plan};

/// Agents that one batch of claims looks at, those with the most urgent tasks first. A claim that found
/// nothing among them looks for itself.
const AGENTS_MAX: usize = 64;
/// The kind of PostgreSQL's advisory locks for claims that may be sent twice.
const REQUEST_LOCK: i64 = 0x6f73;

/// A task that a claim was given, and its token.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) task: TaskRecord,
    pub(super) lease_token: String,
}

/// An agent with something to do.
struct Agent {
    id: i64,
    provider: String,
    runtime_id: Option<String>,
    concurrency: i64,
    room: i64,
}

impl Agent {
    /// The runtime of the claim that may run it.
    fn runtime<'c>(&self, claim: &'c Claim) -> Option<&'c str> {
        let fits = |(id, provider): &&(String, String)| match &self.runtime_id {
            Some(own) => own == id,
            None => &self.provider == provider,
        };
        claim.runtimes.iter().find(fits).map(|(id, _)| id.as_str())
    }
}

/// Gives each claim a task or nothing, in their order.
pub(super) async fn run(tx: &mut Tx, claims: &[&Claim]) -> Result<Vec<Option<Given>>, StoreError> {
    let mut given: Vec<Option<Given>> = repeated(tx, claims).await?;
    let mut workspaces: Vec<_> = claims.iter().map(|claim| claim.workspace_id).collect();
    workspaces.sort_unstable();
    workspaces.dedup();
    for workspace_id in workspaces {
        let open = |given: &[Option<Given>]| -> Vec<(usize, &Claim)> {
            let open = claims.iter().enumerate().filter(|(at, claim)| {
                claim.workspace_id == workspace_id
                    && !claim.repeats_only
                    && given.get(*at).is_some_and(Option::is_none)
                    && first_like_it(claims, *at).is_none()
            });
            open.map(|(at, claim)| (at, *claim)).collect()
        };
        let all = open(&given);
        if all.is_empty() {
            continue;
        }
        let (mut found, saw_all) = in_workspace(tx, workspace_id, &all).await?;
        give(&mut given, found);
        // Agents of others may have hidden the ones that a claim needs.
        for claim in if saw_all || all.len() == 1 { Vec::new() } else { open(&given) } {
            (found, _) = in_workspace(tx, workspace_id, &[claim]).await?;
            give(&mut given, found);
        }
    }
    for (at, claim) in claims.iter().enumerate() {
        let first = first_like_it(claims, at).and_then(|first| given.get(first)?.clone());
        let first = first.filter(|it| may_have(claim, &it.task));
        if let (Some(first), Some(place @ None)) = (first, given.get_mut(at)) {
            *place = Some(first);
        }
    }
    Ok(given)
}

fn give(given: &mut [Option<Given>], found: Vec<(usize, Given)>) {
    for (at, task) in found {
        if let Some(place) = given.get_mut(at) {
            *place = Some(task);
        }
    }
}

/// An earlier claim of the batch that is this one, sent twice.
fn first_like_it(claims: &[&Claim], at: usize) -> Option<usize> {
    let claim = claims.get(at).filter(|claim| claim.request.is_some())?;
    let same = |other: &&Claim| {
        other.workspace_id == claim.workspace_id
            && other.request == claim.request
            && other.runtimes.iter().any(|runtime| claim.runtimes.contains(runtime))
    };
    claims.iter().take(at).position(same)
}

/// The task was given to one of the claim's runtimes.
fn may_have(claim: &Claim, task: &TaskRecord) -> bool {
    claim.runtimes.iter().any(|(id, _)| Some(id) == task.runtime_id.as_ref())
}

/// Claims whose answer was lost: the task they were given, if its lease is still theirs.
async fn repeated(tx: &mut Tx, claims: &[&Claim]) -> Result<Vec<Option<Given>>, DbError> {
    let mut given: Vec<Option<Given>> = claims.iter().map(|_| None).collect();
    let requests: Vec<String> = claims.iter().filter_map(|claim| claim.request.clone()).collect();
    if requests.is_empty() {
        return Ok(given);
    }
    if tx.conn.is_postgres() {
        // The same claim may be on its way through another server at this moment. Always in one order.
        let mut words = requests.clone();
        words.sort_unstable();
        words.dedup();
        let sql = "SELECT count(pg_advisory_xact_lock($1::int, hashtext(word))) \
                   FROM unnest($2::text[]) AS word";
        tx.conn.number(sql, args![REQUEST_LOCK, words]).await?;
    }
    let any = tx.conn.any("t.lease_request", 1);
    let sql = format!(
        "SELECT {} FROM {} WHERE t.state IN ('dispatched', 'running') AND {any} ORDER BY t.rank, t.id",
        rows::COLUMNS,
        rows::FROM
    );
    for mut row in tx.conn.rows(&sql, args![requests]).await? {
        let task = rows::read(&mut row)?;
        let Some(lease_token) = plan::lease_token(&task, &tx.shared.keyring) else { continue };
        for (place, claim) in given.iter_mut().zip(claims) {
            if place.is_none()
                && claim.workspace_id == task.workspace_id
                && claim.request == task.lease_request
                && may_have(claim, &task)
            {
                *place = Some(Given { task: task.clone(), lease_token: lease_token.clone() });
            }
        }
    }
    Ok(given)
}

/// Tasks for the claims of one workspace; false when there were more agents than it looked at.
async fn in_workspace(
    tx: &mut Tx,
    workspace_id: i64,
    claims: &[(usize, &Claim)],
) -> Result<(Vec<(usize, Given)>, bool), StoreError> {
    let mut agents = agents(&mut tx.conn, workspace_id, claims).await?;
    let saw_all = agents.len() < AGENTS_MAX;
    if agents.is_empty() {
        return Ok((Vec::new(), saw_all));
    }
    let tasks = first_tasks(&mut tx.conn, &mut agents, claims.len()).await?;
    let policy = tx.shared.policy;
    let mut saves = Saves::default();
    let mut given = Vec::new();
    let mut taken = HashSet::new();
    for (at, claim) in claims {
        let next = tasks.iter().enumerate().find_map(|(place, task)| {
            let agent = agents.iter().position(|agent| agent.id == task.agent_id)?;
            let agent = agents.get(agent).filter(|agent| agent.room > 0)?;
            let runtime = agent.runtime(claim)?;
            (!taken.contains(&place)).then_some((place, task, runtime))
        });
        let Some((place, task, runtime)) = next else { continue };
        let mut task = task.clone();
        taken.insert(place);
        let lease = new_lease(tx, &task.id, task.machine.attempts + 1)?;
        let how = (claim.request.as_deref(), claim.starts_soon);
        let Ok(planned) = plan::claim(&mut task, runtime, &lease, how, tx.now, &policy) else {
            continue;
        };
        saves.take(tx, &task, 0, planned.changes);
        if let Some(agent) = agents.iter_mut().find(|agent| agent.id == task.agent_id) {
            agent.room -= 1;
        }
        given.push((*at, Given { task, lease_token: lease.token }));
    }
    saves.save(tx, given.iter().map(|(_, given)| &given.task)).await?;
    Ok((given, saw_all))
}

/// Agents with something to claim that one of the claims could run, the most urgent first. On PostgreSQL they
/// are locked, so that no other server fills the same places, and those that another one has are passed over.
async fn agents(
    conn: &mut Conn,
    workspace_id: i64,
    claims: &[(usize, &Claim)],
) -> Result<Vec<Agent>, DbError> {
    let runtimes = claims.iter().flat_map(|(_, claim)| &claim.runtimes);
    let (mut ids, mut providers): (Vec<_>, Vec<_>) = runtimes.cloned().unzip();
    providers.sort_unstable();
    providers.dedup();
    ids.sort_unstable();
    ids.dedup();
    let (own, kind) = (conn.any("a.runtime_id", 2), conn.any("a.provider", 3));
    let lock = if conn.is_postgres() { "FOR NO KEY UPDATE OF a SKIP LOCKED" } else { "" };
    let held = "(SELECT count(*) FROM tasks h WHERE h.agent_id = a.id AND h.state IN ('dispatched', 'running'))";
    // Not EXISTS: without fresh statistics PostgreSQL makes that a join that reads the whole queue.
    let head = "(SELECT q.rank FROM tasks q WHERE q.agent_id = a.id AND q.state = 'queued' AND q.parked = 0 \
                ORDER BY q.rank, q.id LIMIT 1)";
    let sql = format!(
        "SELECT a.id, a.provider, a.runtime_id, a.concurrency, {held} FROM agents a \
         WHERE a.workspace_id = $1 AND a.paused = 0 AND a.archived_at IS NULL \
         AND ({own} OR (a.runtime_id IS NULL AND {kind})) AND {head} IS NOT NULL \
         AND {held} < a.concurrency ORDER BY {head} LIMIT {AGENTS_MAX} {lock}"
    );
    let mut agents = Vec::new();
    for mut row in conn.rows(&sql, args![workspace_id, ids, providers]).await? {
        let mut agent = Agent {
            id: row.int()?,
            provider: row.text()?,
            runtime_id: row.opt_text()?,
            concurrency: row.int()?,
            room: 0,
        };
        agent.room = agent.concurrency - row.int()?;
        agents.push(agent);
    }
    Ok(agents)
}

/// The first tasks of each agent, as many as there are claims, in the order of the queue; and each agent's
/// room as it is now. (A statement of its own: its snapshot must be younger than the lock on the agents.)
async fn first_tasks(
    conn: &mut Conn,
    agents: &mut [Agent],
    claims: usize,
) -> Result<Vec<TaskRecord>, DbError> {
    let claims = i64::try_from(claims).unwrap_or(i64::MAX);
    let first = |agent: &str, limit: &str| {
        format!(
            "SELECT q.id FROM tasks q WHERE q.agent_id = {agent} AND q.state = 'queued' AND q.parked = 0 \
             ORDER BY q.rank, q.id LIMIT {limit}"
        )
    };
    let of: Vec<i64> = agents.iter().map(|agent| agent.id).collect();
    let (ids, lock, args) = if conn.is_postgres() {
        // One text whatever the number of agents, so that it is planned once.
        let first = first("a.id", "$2");
        let ids = format!(
            "SELECT q.id FROM unnest($1::bigint[]) AS a(id) CROSS JOIN LATERAL ({first}) AS q"
        );
        (ids, "FOR NO KEY UPDATE OF t SKIP LOCKED", args![of, claims])
    } else {
        let part = |at: usize| {
            format!("SELECT * FROM ({}) AS q{at}", first(&format!("${}", at + 2), "$1"))
        };
        let parts: Vec<_> = (0..of.len()).map(part).collect();
        let args = args![claims].into_iter().chain(of.into_iter().map(Value::from));
        (parts.join(" UNION ALL "), "", args.collect())
    };
    let sql = format!(
        "SELECT {}, (SELECT count(*) FROM tasks h WHERE h.agent_id = t.agent_id \
             AND h.state IN ('dispatched', 'running')) \
         FROM {} WHERE t.id IN ({ids}) AND t.state = 'queued' ORDER BY t.rank, t.id {lock}",
        rows::COLUMNS,
        rows::FROM,
    );
    let mut tasks = Vec::new();
    for mut row in conn.rows(&sql, args).await? {
        let task = rows::read(&mut row)?;
        let held = row.int()?;
        for agent in agents.iter_mut().filter(|agent| agent.id == task.agent_id) {
            agent.room = agent.concurrency - held;
        }
        tasks.push(task);
    }
    Ok(tasks)
}
