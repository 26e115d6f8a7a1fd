//! Claims: who gets which task. Agents that have room first, then their first tasks by index, so that a
//! saturated agent with a long queue costs nothing.

use std::collections::{HashMap, HashSet};

use super::ahead::{self, Candidates, Wanted};
use super::batch::{Saves, new_lease};
use super::db::{Conn, DbError, Row, Value, args};
use super::lane::Tx;
use super::{facts, rows};
use crate::metrics::{ByWhat, Word};
use crate::store::{Claim, Claimed, StoreError, TaskRecord, plan};

/// Agents that one batch of claims looks at, those with the most urgent tasks first. A claim that found
/// nothing among them looks for itself.
const AGENTS_MAX: usize = 64;

/// A task that a claim was given, and its token.
#[derive(Clone)]
pub(super) struct Given {
    pub(super) task: TaskRecord,
    pub(super) lease_token: String,
}

/// An agent with something to do.
pub(super) struct Agent {
    pub(super) id: i64,
    provider: String,
    runtime_id: Option<String>,
    concurrency: i64,
    /// How often a claim was given its tasks.
    claims: i64,
    room: i64,
    /// Tasks that were found, or not more than there is room for.
    found: i64,
}

impl Agent {
    /// It may have more tasks than room.
    pub(super) fn is_full(&self) -> bool {
        self.found >= self.room
    }

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
    for at in 0..claims.len() {
        let first = first_like_it(claims, at).and_then(|first| given.get(first)?.clone());
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
            && other.daemon_id == claim.daemon_id
            && other.request == claim.request
    };
    claims.iter().take(at).position(same)
}

/// Claims whose answer was lost: the task they were given, if its lease is still theirs.
async fn repeated(tx: &mut Tx, claims: &[&Claim]) -> Result<Vec<Option<Given>>, DbError> {
    let mut given: Vec<Option<Given>> = claims.iter().map(|_| None).collect();
    let asked: Vec<&&Claim> = claims.iter().filter(|claim| claim.request.is_some()).collect();
    if asked.is_empty() {
        return Ok(given);
    }
    let workspaces: Vec<i64> = asked.iter().map(|claim| claim.workspace_id).collect();
    let machines: Vec<String> = asked.iter().map(|claim| claim.daemon_id.clone()).collect();
    let requests: Vec<String> = asked.iter().filter_map(|claim| claim.request.clone()).collect();
    let sql = format!(
        "SELECT {} FROM {} WHERE t.place = 'held' AND t.lease_request IS NOT NULL \
         AND {} AND {} AND {}",
        rows::COLUMNS,
        rows::FROM,
        tx.conn.any("t.workspace_id", 1),
        tx.conn.any("t.claimed_by", 2),
        tx.conn.any("t.lease_request", 3),
    );
    for mut row in tx.conn.rows(&sql, args![workspaces, machines, requests]).await? {
        let task = rows::read(&mut row)?;
        let Some(lease_token) = plan::lease_token(&task, &tx.shared.keyring) else { continue };
        for (place, claim) in given.iter_mut().zip(claims) {
            if place.is_none()
                && claim.workspace_id == task.workspace_id
                && claim.request == task.lease_request
                && Some(&claim.daemon_id) == task.claimed_by.as_ref()
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
    let mut saves = Saves::default();
    let chosen = choose(claims, &tasks, &agents);
    let given = assign(tx, chosen, &tasks, &mut agents, &mut saves)?;
    let tasks: Vec<_> = given.iter().map(|(_, given)| &given.task).collect();
    saves.save(tx, &tasks).await?;
    Ok((given, saw_all))
}

/// A claim, and the places of the task and the agent it is given.
struct Choice<'c> {
    at: usize,
    claim: &'c Claim,
    runtime: &'c str,
    task: usize,
    agent: usize,
}

/// The first of the tasks for each claim that is for it, while the agents have room.
fn choose<'c>(
    claims: &[(usize, &'c Claim)],
    tasks: &[TaskRecord],
    agents: &[Agent],
) -> Vec<Choice<'c>> {
    let mut room: Vec<_> = agents.iter().map(|agent| agent.room).collect();
    let mut taken = HashSet::new();
    let mut chosen = Vec::new();
    for (at, claim) in claims {
        let next = tasks.iter().enumerate().find_map(|(task, record)| {
            let agent = agents.iter().position(|agent| agent.id == record.agent_id)?;
            room.get(agent).filter(|room| **room > 0)?;
            let runtime = agents.get(agent)?.runtime(claim)?;
            (!taken.contains(&task)).then_some(Choice { at: *at, claim, runtime, task, agent })
        });
        let Some(choice) = next else { continue };
        taken.insert(choice.task);
        if let Some(room) = room.get_mut(choice.agent) {
            *room -= 1;
        }
        chosen.push(choice);
    }
    chosen
}

/// Gives each claim what was chosen for it.
fn assign(
    tx: &mut Tx,
    chosen: Vec<Choice<'_>>,
    tasks: &[TaskRecord],
    agents: &mut [Agent],
    saves: &mut Saves,
) -> Result<Vec<(usize, Given)>, StoreError> {
    let policy = tx.shared.policy;
    let mut given = Vec::new();
    let mut counted = HashSet::new();
    for choice in chosen {
        let Some(before) = tasks.get(choice.task) else { continue };
        let mut task = before.clone();
        let lease = new_lease(tx, &task.id, task.machine.attempts + 1)?;
        let planned = plan::claim(&mut task, choice.claim, choice.runtime, &lease, tx.now, &policy);
        let Ok(planned) = planned else { continue };
        saves.take(tx, before, &task, 0, planned.changes);
        if let Some(agent) = agents.get_mut(choice.agent) {
            agent.room -= 1;
            agent.found -= 1;
            // Once for all that it is given now.
            if counted.insert(agent.id) {
                saves.claimed(agent.id, agent.claims, agent.concurrency);
                agent.claims += 1;
            }
        }
        given.push((choice.at, Given { task, lease_token: lease.token }));
    }
    Ok(given)
}

/// What claims are given if nobody else is given it first.
pub(super) struct Guessed {
    /// By the place of the claim; nothing where it is certain that there is nothing. Those that are left out are for
    /// [`run`].
    pub(super) claimed: Vec<(usize, Option<Claimed>)>,
    /// To be saved.
    pub(super) tasks: Vec<TaskRecord>,
    /// What is left for the claims after these, when the tasks are saved.
    pub(super) left: Option<Candidates>,
}

/// Guesses what claims are given: read without locks, and to be saved with a guard.
pub(super) async fn guess(
    tx: &mut Tx,
    claims: &[(usize, &Claim)],
    saves: &mut Saves,
) -> Result<Guessed, StoreError> {
    let all: Vec<_> = claims.iter().map(|(_, claim)| *claim).collect();
    let mut workspaces: Vec<_> = all.iter().map(|claim| claim.workspace_id).collect();
    workspaces.sort_unstable();
    workspaces.dedup();
    let (mut given_to, mut bases, mut left) = (Vec::new(), HashMap::new(), None);
    for workspace_id in workspaces {
        let claims: Vec<_> = claims
            .iter()
            .enumerate()
            .filter(|(at, (_, claim))| {
                claim.workspace_id == workspace_id && first_like_it(&all, *at).is_none()
            })
            .map(|(_, claim)| *claim)
            .collect();
        let (mut found, chosen) = candidates(tx, workspace_id, &claims).await?;
        let given = assign(tx, chosen, &found.tasks, &mut found.agents, saves)?;
        for (at, claim) in claims {
            // One with a word may have been given something before.
            let nothing = found.is_all && claim.request.is_none();
            let own = given.iter().find(|(place, _)| *place == at).map(|(_, given)| given.clone());
            if own.is_some() || nothing {
                given_to.push((at, own));
            }
        }
        let given: Vec<_> = given.into_iter().map(|(_, given)| given.task.id).collect();
        for id in &given {
            bases.extend(found.bases.remove_entry(id));
        }
        left = found.without(&given);
    }
    let (places, given): (Vec<_>, Vec<_>) = given_to.into_iter().unzip();
    let tasks = given.iter().flatten().map(|given: &Given| given.task.clone()).collect();
    let claimed = facts::with_bases(tx, given, &bases).await?;
    Ok(Guessed { claimed: places.into_iter().zip(claimed).collect(), tasks, left })
}

/// The most urgent tasks for these claims, those that were read before if they are enough for all of them.
async fn candidates<'c>(
    tx: &mut Tx,
    workspace_id: i64,
    claims: &[(usize, &'c Claim)],
) -> Result<(Candidates, Vec<Choice<'c>>), DbError> {
    let (runtimes, providers) = runtimes_of(claims);
    let wanted = Wanted { workspace_id, runtimes, providers };
    let (kept, is_rush) = tx.shared.ahead.take(&wanted);
    if let Some(kept) = kept {
        let chosen = choose(claims, &kept.tasks, &kept.agents);
        let is_enough = chosen.len() == claims.len();
        if is_enough && ahead::file_version(&mut tx.conn).await? == kept.file_version {
            let what = ByWhat { what: Word("ahead") };
            tx.shared.metrics.guesses.get_or_create(&what).inc();
            return Ok((kept, chosen));
        }
    }
    tx.shared.ahead.read();
    let found = read_candidates(&mut tx.conn, wanted, claims.len(), is_rush).await?;
    let chosen = choose(claims, &found.tasks, &found.agents);
    Ok((found, chosen))
}

/// The most urgent tasks for so many claims, or more of them in a rush.
async fn read_candidates(
    conn: &mut Conn,
    wanted: Wanted,
    claims: usize,
    is_rush: bool,
) -> Result<Candidates, DbError> {
    let read_at = std::time::Instant::now();
    let file_version = if is_rush { ahead::file_version(conn).await? } else { 0 };
    let (mut each, mut limit) = (claims, claims);
    if is_rush {
        each = each.max(ahead::TASKS_OF_AGENT_MAX);
        limit = limit.max(ahead::TASKS_MAX);
    }
    if !conn.is_postgres() {
        // Some of an agent with little room may be too many.
        limit = limit.max(claims * 2);
    }
    let sql = candidates_text(conn);
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let (ids, providers) = (wanted.runtimes.clone(), wanted.providers.clone());
    let args = args![wanted.workspace_id, ids, providers, number(each), number(limit)];
    let (mut tasks, mut agents) = (Vec::new(), Vec::<Agent>::new());
    let (mut bases, mut certain) = (HashMap::new(), usize::MAX);
    for mut row in conn.rows(&sql, args).await? {
        let task = rows::read(&mut row)?;
        bases.insert(task.id.clone(), facts::read_base(&mut row)?);
        let known = agents.iter().position(|agent| agent.id == task.agent_id);
        let agent = match known.and_then(|at| agents.get_mut(at)) {
            Some(agent) => agent,
            None => agents.push_mut(read_agent(&mut row, task.agent_id)?),
        };
        agent.found += 1;
        tasks.push(task);
        if agent.found == number(each) {
            certain = certain.min(tasks.len());
        }
    }
    let is_all = tasks.len() < limit;
    let certain = if is_rush { certain } else { 0 };
    Ok(Candidates { wanted, tasks, agents, bases, is_all, certain, read_at, file_version })
}

fn candidates_text(conn: &Conn) -> String {
    // PostgreSQL counts what is held once for an agent only when it does not merge the two.
    let fence = if conn.is_postgres() { "OFFSET 0" } else { "" };
    let agents = format!(
        "(SELECT a.id, a.provider, a.runtime_id, a.concurrency, a.claims, {HELD} AS held FROM agents a \
         WHERE a.workspace_id = $1 AND a.paused = 0 AND a.archived_at IS NULL \
         AND ({} OR (a.runtime_id IS NULL AND {})) {fence}) AS a",
        conn.any("a.runtime_id", 2),
        conn.any("a.provider", 3)
    );
    let queue = "FROM tasks q WHERE q.agent_id = a.id AND q.place = 'queue' \
                 ORDER BY q.rank, q.id LIMIT";
    let first = if conn.is_postgres() {
        format!(
            "{agents} CROSS JOIN LATERAL \
             (SELECT q.id, q.rank {queue} LEAST($4, a.concurrency - a.held)) AS f \
             WHERE a.held < a.concurrency"
        )
    } else {
        format!(
            "{agents} CROSS JOIN tasks f ON f.id IN (SELECT q.id {queue} $4) \
             WHERE a.held < a.concurrency"
        )
    };
    format!(
        "SELECT {}, {}, c.provider, c.pinned, c.concurrency, c.claims, c.held FROM \
         (SELECT f.id AS task_id, a.provider, a.runtime_id AS pinned, a.concurrency, a.claims, a.held \
          FROM {first} ORDER BY f.rank, f.id LIMIT $5) AS c \
         CROSS JOIN {} {} WHERE t.id = c.task_id ORDER BY t.rank, t.id",
        rows::COLUMNS,
        facts::base_columns(),
        rows::FROM,
        facts::BASE_FROM
    )
}

fn read_agent(row: &mut Row, id: i64) -> Result<Agent, DbError> {
    let (provider, runtime_id) = (row.text()?, row.opt_text()?);
    let (concurrency, claims, held) = (row.int()?, row.int()?, row.int()?);
    Ok(Agent { id, provider, runtime_id, concurrency, claims, room: concurrency - held, found: 0 })
}

/// The runtimes that claims may give tasks to, and their providers; each once.
fn runtimes_of(claims: &[(usize, &Claim)]) -> (Vec<String>, Vec<String>) {
    let runtimes = claims.iter().flat_map(|(_, claim)| &claim.runtimes);
    let (mut ids, mut providers): (Vec<_>, Vec<_>) = runtimes.cloned().unzip();
    for list in [&mut ids, &mut providers] {
        list.sort_unstable();
        list.dedup();
    }
    (ids, providers)
}

/// How many tasks of agent `a` are held.
const HELD: &str = "(SELECT count(*) FROM tasks h WHERE h.agent_id = a.id AND h.place = 'held')";

/// Agents with something to claim that one of the claims could run, the most urgent first. On PostgreSQL they
/// are locked, so that no other server fills the same places, and those that another one has are passed over.
async fn agents(
    conn: &mut Conn,
    workspace_id: i64,
    claims: &[(usize, &Claim)],
) -> Result<Vec<Agent>, DbError> {
    let (ids, providers) = runtimes_of(claims);
    let (own, kind) = (conn.any("a.runtime_id", 2), conn.any("a.provider", 3));
    let lock = if conn.is_postgres() { "FOR NO KEY UPDATE OF a SKIP LOCKED" } else { "" };
    // Not EXISTS: without fresh statistics PostgreSQL makes that a join that reads the whole queue.
    let head = "(SELECT q.rank FROM tasks q WHERE q.agent_id = a.id AND q.place = 'queue' \
                ORDER BY q.rank, q.id LIMIT 1)";
    let sql = format!(
        "SELECT a.id, a.provider, a.runtime_id, a.concurrency, a.claims, {HELD} FROM agents a \
         WHERE a.workspace_id = $1 AND a.paused = 0 AND a.archived_at IS NULL \
         AND ({own} OR (a.runtime_id IS NULL AND {kind})) AND {head} IS NOT NULL \
         AND {HELD} < a.concurrency ORDER BY {head} LIMIT {AGENTS_MAX} {lock}"
    );
    let mut agents = Vec::new();
    for mut row in conn.rows(&sql, args![workspace_id, ids, providers]).await? {
        let id = row.int()?;
        agents.push(read_agent(&mut row, id)?);
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
            "SELECT q.id FROM tasks q WHERE q.agent_id = {agent} AND q.place = 'queue' \
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
             AND h.place = 'held') \
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
