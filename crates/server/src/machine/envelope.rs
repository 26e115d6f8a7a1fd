//! The envelope of a claimed task, as this client can read it.

use std::sync::Arc;

use ostler_proto::lease::{
    Agent, Comment, Envelope, Issue, Repository, Skill, SkillFile, Workspace,
};
use serde_json::{Map, Value};

use super::lend;
use crate::app::App;
use crate::harness::{self, HarnessFacts};
use crate::http::instant;
use crate::secrets::Purpose;
use crate::store::{ACTOR_PROVIDER, AgentFacts, Claimed, CommentFacts, Facts, SkillFacts};
use crate::text;
use crate::thread::{self, ThreadBounds};
use crate::version::Capabilities;

/// Builds it. Nothing here can fail the claim: the task is given already.
pub(super) async fn of(app: &Arc<App>, capabilities: &Capabilities, claimed: Claimed) -> Envelope {
    let Claimed { task, lease_token, mut facts } = claimed;
    if facts.agent.provider == ACTOR_PROVIDER {
        facts.repositories.clear();
    }
    let mut agent = agent(app, &facts.agent);
    let loan = lend::lend(app, task.workspace_id, &facts, &mut agent.custom_env).await;
    let mut workspace = workspace(capabilities, &facts);
    workspace.committer = loan.committer;
    let identifier = format!("{}-{}", facts.workspace_prefix, task.issue_number);
    let has_checkout = !facts.repositories.is_empty();
    let skills = std::mem::take(&mut facts.skills).into_iter().map(skill).collect();
    Envelope {
        id: task.id,
        status: task.machine.state.word().to_owned(),
        lease_expires_at: task.machine.lease.map(|lease| instant(lease.expires_at)),
        lease_token,
        session_id: facts.session_id.clone(),
        work_dir: facts.work_dir.clone(),
        agent,
        workspace,
        issue: issue(capabilities, identifier, facts),
        harness: harness::sentences(HarnessFacts { has_checkout, has_lent_token: loan.has_token }),
        skills,
        context: Map::new(),
    }
}

/// The program of an agent CLI.
fn command(provider: &str) -> &str {
    match provider {
        "claude_code" => "claude",
        "agent_cli" => "agent-cli",
        "cursor" => "cursor-agent",
        other => other,
    }
}

fn opened(app: &App, sealed: Option<&str>, purpose: Purpose) -> Map<String, Value> {
    let Some(sealed) = sealed else { return Map::new() };
    let opened = app.store.shared().keyring.open(purpose, sealed).ok();
    let object = opened.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if object.is_none() {
        tracing::error!(
            %purpose,
            "a sealed value of an agent cannot be opened; the run goes without"
        );
    }
    object.unwrap_or_default()
}

fn agent(app: &App, facts: &AgentFacts) -> Agent {
    Agent {
        id: facts.id,
        name: facts.name.clone(),
        provider: facts.provider.clone(),
        command: command(&facts.provider).to_owned(),
        model: facts.model.clone(),
        instructions: facts.instructions.clone(),
        custom_env: opened(app, facts.sealed_env.as_deref(), Purpose::AgentEnv(facts.id)),
        custom_args: serde_json::from_str(&facts.custom_args).unwrap_or_default(),
        mcp_config: opened(app, facts.sealed_mcp.as_deref(), Purpose::AgentMcp(facts.id)),
        external_id: facts.external_id.clone(),
    }
}

/// The workspace, with repositories as the client reads them.
fn workspace(capabilities: &Capabilities, facts: &Facts) -> Workspace {
    let named = capabilities.reads_repository_objects();
    let repositories = facts.repositories.iter().map(|(name, url)| {
        if named {
            Repository::Named { name: name.clone(), url: url.clone() }
        } else {
            Repository::Url(url.clone())
        }
    });
    Workspace {
        slug: facts.workspace_slug.clone(),
        context: facts.workspace_context.clone(),
        repositories: repositories.collect(),
        committer: None,
    }
}

fn skill(facts: SkillFacts) -> Skill {
    let files = facts.files.into_iter().map(|(path, content)| SkillFile { path, content });
    Skill { name: facts.name, content: facts.content, files: files.collect() }
}

fn issue(capabilities: &Capabilities, identifier: String, facts: Facts) -> Issue {
    let thread = capabilities.has("thread").then(|| {
        let (kept, omitted) = thread_of(facts.comments);
        (kept, omitted as u64 + facts.comments_before)
    });
    let (comments, comments_omitted) = thread.unzip();
    Issue {
        identifier,
        title: facts.title,
        description: text::html_to_markdown(&facts.description),
        acceptance_criteria: serde_json::from_str(&facts.acceptance_criteria).unwrap_or_default(),
        comments,
        comments_omitted,
    }
}

/// The newest comments that fit, as Markdown, and how many of these were left out.
pub(crate) fn thread_of(comments: Vec<CommentFacts>) -> (Vec<Comment>, usize) {
    let comments: Vec<_> = comments
        .into_iter()
        .map(|it| Comment {
            author: it.author,
            is_agent: it.is_agent,
            posted_at: instant(it.posted_at),
            body: text::html_to_markdown(&it.body),
        })
        .collect();
    thread::cut(comments, ThreadBounds::default(), |comment: &Comment| comment.body.chars().count())
}
