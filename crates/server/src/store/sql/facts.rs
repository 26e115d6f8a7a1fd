//! What the runs of a batch of claims need to know, read by few statements for all of them.

use std::collections::HashMap;
use std::hash::Hash;

use ostler_core::clock::Timestamp;

use super::claim::Given;
use super::db::{Conn, DbError, Row, args};
use super::lane::Tx;
use crate::store::{AgentFacts, Claimed, CommentFacts, Facts, GithubFacts, SkillFacts, TaskRecord};

/// Comments of an issue that are read for a run, as many as a thread has at most; older ones are counted.
const COMMENTS_MAX: usize = 40;

/// What most runs need, and whether there is more to read for them.
#[derive(Clone, Default)]
pub(super) struct Base {
    facts: Facts,
    has_repositories: bool,
    has_comments: bool,
    has_skills: bool,
}

impl Base {
    /// Bytes of its long texts.
    pub(super) fn bytes(&self) -> usize {
        let facts = &self.facts;
        let own = [&facts.description, &facts.acceptance_criteria, &facts.workspace_context];
        let sealed = facts.agent.sealed_mcp.as_ref().map_or(0, String::len)
            + facts.agent.sealed_env.as_ref().map_or(0, String::len);
        own.map(String::len).iter().sum::<usize>() + facts.agent.instructions.len() + sealed
    }
}

/// Joins what was given with what its run needs to know.
pub(super) async fn of(
    tx: &mut Tx,
    given: Vec<Option<Given>>,
) -> Result<Vec<Option<Claimed>>, DbError> {
    let tasks: Vec<_> = given.iter().flatten().map(|given| given.task.id.clone()).collect();
    if tasks.is_empty() {
        return Ok(given.into_iter().map(|_| None).collect());
    }
    let bases = bases(&mut tx.conn, tasks).await?;
    with_bases(tx, given, &bases).await
}

/// The same when the bases of all of them were read already.
pub(super) async fn with_bases(
    tx: &mut Tx,
    given: Vec<Option<Given>>,
    bases: &HashMap<String, Base>,
) -> Result<Vec<Option<Claimed>>, DbError> {
    let conn = &mut tx.conn;
    let tasks: Vec<_> = given.iter().flatten().map(|given| &given.task).collect();
    let with = |has: fn(&Base) -> bool, id: fn(&TaskRecord) -> i64| {
        let tasks = tasks.iter().filter(|task| bases.get(&task.id).is_some_and(has));
        let mut ids: Vec<_> = tasks.map(|task| id(task)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let workspaces = with(|base| base.has_repositories, |task| task.workspace_id);
    let issues = with(|base| base.has_comments, |task| task.issue_id);
    let agents = with(|base| base.has_skills, |task| task.agent_id);
    let repositories = repositories(conn, workspaces).await?;
    let comments = comments(conn, issues).await?;
    let skills = skills(conn, agents).await?;
    let facts = |given: Given| {
        let task = given.task;
        let mut facts = found(bases, &task.id).facts;
        facts.repositories = found(&repositories, &task.workspace_id);
        (facts.comments_before, facts.comments) = found(&comments, &task.issue_id);
        facts.skills = found(&skills, &task.agent_id);
        Claimed { task, lease_token: given.lease_token, facts }
    };
    Ok(given.into_iter().map(|given| given.map(facts)).collect())
}

fn found<K: Eq + Hash, V: Clone + Default>(all: &HashMap<K, V>, key: &K) -> V {
    all.get(key).cloned().unwrap_or_default()
}

async fn bases(conn: &mut Conn, tasks: Vec<String>) -> Result<HashMap<String, Base>, DbError> {
    let any = conn.any("t.id", 1);
    let (columns, from) = (base_columns(), BASE_FROM);
    let sql = format!(
        "SELECT t.id, {columns} FROM tasks t JOIN issues i ON i.id = t.issue_id {from} WHERE {any}"
    );
    let mut bases = HashMap::new();
    for mut row in conn.rows(&sql, args![tasks]).await? {
        bases.insert(row.text()?, read_base(&mut row)?);
    }
    Ok(bases)
}

/// What [`read_base`] reads, of tasks `t`, their issues `i` and what [`BASE_FROM`] joins.
pub(super) fn base_columns() -> String {
    let exists = |what: &str| {
        format!("CAST(CASE WHEN EXISTS (SELECT 1 FROM {what}) THEN 1 ELSE 0 END AS BIGINT)")
    };
    format!(
        "a.id, a.name, a.provider, a.model, a.instructions, a.sealed_env, a.sealed_mcp, \
         a.custom_args, a.external_id, w.slug, w.context, w.prefix, g.app_id, g.installation_id, g.base_url, \
         g.sealed_key, i.title, i.description, i.acceptance_criteria, s.session_id, s.work_dir, {}, {}, {}",
        exists("repositories r WHERE r.workspace_id = t.workspace_id"),
        exists("comments c WHERE c.issue_id = t.issue_id AND c.withdrawn_at IS NULL"),
        exists("agent_skills x WHERE x.agent_id = t.agent_id"),
    )
}

/// The tables [`base_columns`] are of, beside the task and its issue.
pub(super) const BASE_FROM: &str = "JOIN agents a ON a.id = t.agent_id \
     JOIN workspaces w ON w.id = t.workspace_id LEFT JOIN github_apps g ON g.workspace_id = t.workspace_id \
     LEFT JOIN sessions s ON s.agent_id = t.agent_id AND s.issue_id = t.issue_id";

/// A row of [`base_columns`].
pub(super) fn read_base(row: &mut Row) -> Result<Base, DbError> {
    let facts = read_facts(row)?;
    let (has_repositories, has_comments, has_skills) = (row.flag()?, row.flag()?, row.flag()?);
    Ok(Base { facts, has_repositories, has_comments, has_skills })
}

fn read_facts(row: &mut Row) -> Result<Facts, DbError> {
    let agent = AgentFacts {
        id: row.int()?,
        name: row.text()?,
        provider: row.text()?,
        model: row.opt_text()?,
        instructions: row.text()?,
        sealed_env: row.opt_text()?,
        sealed_mcp: row.opt_text()?,
        custom_args: row.text()?,
        external_id: row.opt_text()?,
    };
    let (workspace_slug, workspace_context) = (row.text()?, row.text()?);
    let workspace_prefix = row.text()?;
    let (app_id, installation_id) = (row.opt_text()?, row.opt_text()?);
    let (base_url, sealed_key) = (row.opt_text()?, row.opt_text()?);
    let github = app_id.map(|app_id| GithubFacts {
        app_id,
        installation_id,
        base_url: base_url.unwrap_or_default(),
        sealed_key: sealed_key.unwrap_or_default(),
    });
    Ok(Facts {
        agent,
        workspace_slug,
        workspace_context,
        workspace_prefix,
        github,
        title: row.text()?,
        description: row.text()?,
        acceptance_criteria: row.text()?,
        session_id: row.opt_text()?,
        work_dir: row.opt_text()?,
        ..Facts::default()
    })
}

async fn repositories(
    conn: &mut Conn,
    ids: Vec<i64>,
) -> Result<HashMap<i64, Vec<(String, String)>>, DbError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let any = conn.any("workspace_id", 1);
    let sql = format!("SELECT workspace_id, name, url FROM repositories WHERE {any} ORDER BY name");
    let mut all: HashMap<_, Vec<_>> = HashMap::new();
    for mut row in conn.rows(&sql, args![ids]).await? {
        all.entry(row.int()?).or_default().push((row.text()?, row.text()?));
    }
    Ok(all)
}

/// How many older ones there are, and the newest, oldest first; by issue.
async fn comments(
    conn: &mut Conn,
    issues: Vec<i64>,
) -> Result<HashMap<i64, (u64, Vec<CommentFacts>)>, DbError> {
    if issues.is_empty() {
        return Ok(HashMap::new());
    }
    let mut all: HashMap<i64, (u64, Vec<CommentFacts>)> = HashMap::new();
    let any = conn.any("issue_id", 1);
    let sql = format!(
        "SELECT issue_id, count(*) FROM comments WHERE {any} AND withdrawn_at IS NULL GROUP BY issue_id"
    );
    for mut row in conn.rows(&sql, args![issues]).await? {
        let (issue, count) = (row.int()?, row.int()?);
        all.insert(issue, (u64::try_from(count).unwrap_or(0), Vec::new()));
    }
    let sql = format!(
        "SELECT c.author_type, COALESCE(a.name, u.name, ''), c.created_at, c.body FROM comments c \
         LEFT JOIN agents a ON c.author_type = 'agent' AND a.id = c.author_id \
         LEFT JOIN users u ON c.author_type = 'user' AND u.id = c.author_id \
         WHERE c.issue_id = $1 AND c.withdrawn_at IS NULL ORDER BY c.id DESC LIMIT {COMMENTS_MAX}"
    );
    for (issue, (before, comments)) in &mut all {
        for mut row in conn.rows(&sql, args![*issue]).await? {
            comments.push(CommentFacts {
                is_agent: row.text()? == "agent",
                author: row.text()?,
                posted_at: Timestamp::from_micros(row.int()?),
                body: row.text()?,
            });
        }
        comments.reverse();
        *before = before.saturating_sub(comments.len() as u64);
    }
    Ok(all)
}

async fn skills(
    conn: &mut Conn,
    agents: Vec<i64>,
) -> Result<HashMap<i64, Vec<SkillFacts>>, DbError> {
    if agents.is_empty() {
        return Ok(HashMap::new());
    }
    let mut all: HashMap<i64, Vec<SkillFacts>> = HashMap::new();
    let any = conn.any("x.agent_id", 1);
    let sql = format!(
        "SELECT x.agent_id, s.id, s.name, s.content FROM agent_skills x JOIN skills s ON s.id = x.skill_id \
         WHERE {any} ORDER BY s.name"
    );
    let rows = conn.rows(&sql, args![agents]).await?;
    if rows.is_empty() {
        return Ok(all);
    }
    let mut found = Vec::new();
    for mut row in rows {
        found.push((row.int()?, row.int()?, row.text()?, row.text()?));
    }
    let ids: Vec<i64> = found.iter().map(|(_, skill, _, _)| *skill).collect();
    let any = conn.any("skill_id", 1);
    let sql = format!("SELECT skill_id, path, content FROM skill_files WHERE {any} ORDER BY path");
    let mut files: HashMap<i64, Vec<(String, String)>> = HashMap::new();
    for mut row in conn.rows(&sql, args![ids]).await? {
        files.entry(row.int()?).or_default().push((row.text()?, row.text()?));
    }
    for (agent, skill, name, content) in found {
        let files = files.get(&skill).cloned().unwrap_or_default();
        all.entry(agent).or_default().push(SkillFacts { name, content, files });
    }
    Ok(all)
}
