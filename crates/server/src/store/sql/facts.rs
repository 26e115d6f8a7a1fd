//! What the runs of a batch of claims need to know, read by few statements for all of them.

use std::collections::HashMap;
use std::hash::Hash;

use ostler_core::clock::Timestamp;

use super::claim::Given;
use super::db::{Conn, DbError, Row, args};
use super::lane::Tx;
use crate::store::{AgentFacts, Claimed, CommentFacts, Facts, GithubFacts, SkillFacts};

/// Comments of an issue that are read for a run, as many as a thread has at most; older ones are counted.
const COMMENTS_MAX: usize = 40;

/// Joins what was given with what its run needs to know.
pub(super) async fn of(
    tx: &mut Tx,
    given: Vec<Option<Given>>,
) -> Result<Vec<Option<Claimed>>, DbError> {
    let tasks: Vec<_> = given.iter().flatten().map(|given| &given.task).collect();
    if tasks.is_empty() {
        return Ok(given.into_iter().map(|_| None).collect());
    }
    let conn = &mut tx.conn;
    let unique = |mut ids: Vec<i64>| {
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let agents = unique(tasks.iter().map(|task| task.agent_id).collect());
    let issues = unique(tasks.iter().map(|task| task.issue_id).collect());
    let workspaces = unique(tasks.iter().map(|task| task.workspace_id).collect());
    let repositories = repositories(conn, workspaces.clone()).await?;
    let workspaces = workspaces_of(conn, workspaces).await?;
    let comments = comments(conn, issues.clone()).await?;
    let sessions = sessions(conn, issues.clone()).await?;
    let issues = issues_of(conn, issues).await?;
    let skills = skills(conn, agents.clone()).await?;
    let agents = agents_of(conn, agents).await?;
    let facts = |given: Given| {
        let task = given.task;
        let mut facts = Facts { agent: found(&agents, &task.agent_id), ..Facts::default() };
        ((facts.workspace_slug, facts.workspace_context, facts.workspace_prefix), facts.github) =
            found(&workspaces, &task.workspace_id);
        (facts.title, facts.description, facts.acceptance_criteria) =
            found(&issues, &task.issue_id);
        facts.repositories = found(&repositories, &task.workspace_id);
        (facts.comments_before, facts.comments) = found(&comments, &task.issue_id);
        facts.skills = found(&skills, &task.agent_id);
        (facts.session_id, facts.work_dir) = found(&sessions, &(task.agent_id, task.issue_id));
        Claimed { task, lease_token: given.lease_token, facts }
    };
    Ok(given.into_iter().map(|given| given.map(facts)).collect())
}

fn found<K: Eq + Hash, V: Clone + Default>(all: &HashMap<K, V>, key: &K) -> V {
    all.get(key).cloned().unwrap_or_default()
}

type Texts = (String, String, String);

async fn workspaces_of(
    conn: &mut Conn,
    ids: Vec<i64>,
) -> Result<HashMap<i64, (Texts, Option<GithubFacts>)>, DbError> {
    let any = conn.any("w.id", 1);
    let sql = format!(
        "SELECT w.id, w.slug, w.context, w.prefix, g.app_id, g.installation_id, g.base_url, g.sealed_key \
         FROM workspaces w LEFT JOIN github_apps g ON g.workspace_id = w.id WHERE {any}"
    );
    keyed(conn.rows(&sql, args![ids]).await?, |row| {
        let texts = (row.text()?, row.text()?, row.text()?);
        let (app_id, installation_id) = (row.opt_text()?, row.opt_text()?);
        let (base_url, sealed_key) = (row.opt_text()?, row.opt_text()?);
        let github = app_id.map(|app_id| GithubFacts {
            app_id,
            installation_id,
            base_url: base_url.unwrap_or_default(),
            sealed_key: sealed_key.unwrap_or_default(),
        });
        Ok((texts, github))
    })
}

async fn issues_of(conn: &mut Conn, ids: Vec<i64>) -> Result<HashMap<i64, Texts>, DbError> {
    let any = conn.any("id", 1);
    let sql = format!("SELECT id, title, description, acceptance_criteria FROM issues WHERE {any}");
    keyed(conn.rows(&sql, args![ids]).await?, |row| Ok((row.text()?, row.text()?, row.text()?)))
}

async fn agents_of(conn: &mut Conn, ids: Vec<i64>) -> Result<HashMap<i64, AgentFacts>, DbError> {
    let any = conn.any("id", 1);
    let sql = format!(
        "SELECT id, name, provider, model, instructions, sealed_env, sealed_mcp, custom_args, external_id \
         FROM agents WHERE {any}"
    );
    let mut agents = keyed(conn.rows(&sql, args![ids]).await?, |row| {
        Ok(AgentFacts {
            id: 0,
            name: row.text()?,
            provider: row.text()?,
            model: row.opt_text()?,
            instructions: row.text()?,
            sealed_env: row.opt_text()?,
            sealed_mcp: row.opt_text()?,
            custom_args: row.text()?,
            external_id: row.opt_text()?,
        })
    })?;
    for (id, agent) in &mut agents {
        agent.id = *id;
    }
    Ok(agents)
}

/// Rows whose first column is the key, one row a key.
fn keyed<V>(
    rows: Vec<Row>,
    read: impl Fn(&mut Row) -> Result<V, DbError>,
) -> Result<HashMap<i64, V>, DbError> {
    rows.into_iter().map(|mut row| Ok((row.int()?, read(&mut row)?))).collect()
}

async fn repositories(
    conn: &mut Conn,
    ids: Vec<i64>,
) -> Result<HashMap<i64, Vec<(String, String)>>, DbError> {
    let any = conn.any("workspace_id", 1);
    let sql = format!("SELECT workspace_id, name, url FROM repositories WHERE {any} ORDER BY name");
    let mut all: HashMap<_, Vec<_>> = HashMap::new();
    for mut row in conn.rows(&sql, args![ids]).await? {
        all.entry(row.int()?).or_default().push((row.text()?, row.text()?));
    }
    Ok(all)
}

async fn sessions(
    conn: &mut Conn,
    issues: Vec<i64>,
) -> Result<HashMap<(i64, i64), (Option<String>, Option<String>)>, DbError> {
    let any = conn.any("issue_id", 1);
    let sql = format!("SELECT agent_id, issue_id, session_id, work_dir FROM sessions WHERE {any}");
    let rows = conn.rows(&sql, args![issues]).await?;
    rows.into_iter()
        .map(|mut row| Ok(((row.int()?, row.int()?), (row.opt_text()?, row.opt_text()?))))
        .collect()
}

/// How many older ones there are, and the newest, oldest first; by issue.
async fn comments(
    conn: &mut Conn,
    issues: Vec<i64>,
) -> Result<HashMap<i64, (u64, Vec<CommentFacts>)>, DbError> {
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
