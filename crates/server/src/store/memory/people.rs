//! What people make, in the few words that tests need, and what tests look at.

use ostler_core::clock::Timestamp;
use ostler_core::lease::Priority;

use super::{Author, Comment, Inner, MemoryStore};
use crate::delivery::Delivery;
use crate::store::{AgentFacts, CommentFacts, Facts, Line, SessionReport, TaskRecord, Usage};

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    /// Whose.
    pub workspace_id: i64,
    /// How it is called.
    pub name: String,
    /// Which CLI.
    pub provider: String,
    /// The only runtime that may run it, if there is one.
    pub runtime_id: Option<String>,
    /// The machine's id of it.
    pub external_id: Option<String>,
    /// Tasks it may hold at once.
    pub concurrency: i64,
    /// It is given nothing.
    pub paused: bool,
    /// It is gone.
    pub archived: bool,
}

/// A new agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAgent {
    /// Whose.
    pub workspace_id: i64,
    /// How it is called.
    pub name: String,
    /// Which CLI.
    pub provider: String,
    /// The only runtime that may run it, if there is one.
    pub runtime_id: Option<String>,
    /// Tasks it may hold at once.
    pub concurrency: i64,
}

/// An issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssueRow {
    /// Whose.
    pub workspace_id: i64,
    /// In its workspace.
    pub number: i64,
    /// What it is called.
    pub title: String,
    /// How urgent it is.
    pub priority: Priority,
    /// Where it is.
    pub status: String,
    /// Work that was spent on it.
    pub spent_ms: i64,
}

/// A comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommentRow {
    /// On which issue.
    pub issue_id: i64,
    /// Who said it.
    pub author: String,
    /// An agent.
    pub is_agent: bool,
    /// When.
    pub posted_at: Timestamp,
    /// HTML.
    pub body: String,
}

/// What a completion brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultRow {
    /// Of which task.
    pub task_id: String,
    /// As it came.
    pub result: String,
    /// What it said it used.
    pub usage: Usage,
}

impl MemoryStore {
    /// Makes a workspace; its id.
    pub fn workspace_create(&self, slug: &str) -> i64 {
        let mut inner = self.lock();
        let id = inner.number();
        inner.workspaces.insert(id, slug.to_owned());
        id
    }

    /// Makes an agent; its id.
    pub fn agent_create(&self, new: NewAgent) -> i64 {
        let mut inner = self.lock();
        let id = inner.number();
        let NewAgent { workspace_id, name, provider, runtime_id, concurrency } = new;
        let (external_id, paused, archived) = (None, false, false);
        let row = AgentRow {
            workspace_id,
            name,
            provider,
            runtime_id,
            external_id,
            concurrency,
            paused,
            archived,
        };
        inner.agents.insert(id, row);
        id
    }

    /// Pauses an agent, or lets it work again.
    pub fn agent_pause(&self, id: i64, paused: bool) {
        if let Some(agent) = self.lock().agents.get_mut(&id) {
            agent.paused = paused;
        }
    }

    /// Makes an issue; its id.
    pub fn issue_create(&self, workspace_id: i64, title: &str, priority: Priority) -> i64 {
        let mut inner = self.lock();
        let id = inner.number();
        let others = inner.issues.values().filter(|issue| issue.workspace_id == workspace_id);
        let row = IssueRow {
            workspace_id,
            number: i64::try_from(others.count()).unwrap_or(i64::MAX) + 1,
            title: title.to_owned(),
            priority,
            status: "todo".to_owned(),
            spent_ms: 0,
        };
        inner.issues.insert(id, row);
        id
    }

    /// Moves an issue.
    pub fn issue_move(&self, id: i64, status: &str) {
        if let Some(issue) = self.lock().issues.get_mut(&id) {
            status.clone_into(&mut issue.status);
        }
    }

    /// A person says something on an issue.
    pub fn comment_create(&self, issue_id: i64, author: &str, body: &str) {
        let posted_at = (self.clock)();
        let (author, body) = (Author::Person(author.to_owned()), body.to_owned());
        self.lock().comments.push(Comment { issue_id, author, posted_at, body });
    }

    /// A task.
    pub fn task(&self, id: &str) -> Option<TaskRecord> {
        self.lock().tasks.get(id).cloned()
    }

    /// All tasks, in the order in which they were made.
    pub fn tasks(&self) -> Vec<TaskRecord> {
        self.lock().tasks.values().cloned().collect()
    }

    /// A task's lines, in the order of their numbers, counted through all attempts.
    pub fn lines(&self, task_id: &str) -> Vec<Line> {
        let inner = self.lock();
        let own = inner.lines.iter().filter(|((task, _), _)| task == task_id);
        own.map(|(_, line)| line.clone()).collect()
    }

    /// What was said on an issue, oldest first.
    pub fn comments(&self, issue_id: i64) -> Vec<CommentRow> {
        self.lock().comments_on(issue_id)
    }

    /// An issue.
    pub fn issue(&self, id: i64) -> Option<IssueRow> {
        self.lock().issues.get(&id).cloned()
    }

    /// An agent.
    pub fn agent(&self, id: i64) -> Option<AgentRow> {
        self.lock().agents.get(&id).cloned()
    }

    /// What was handed over on an issue, by what makes two reports one delivery.
    pub fn deliveries(&self, issue_id: i64) -> Vec<Delivery> {
        let inner = self.lock();
        let own = inner.deliveries.iter().filter(|((issue, _), _)| *issue == issue_id);
        own.map(|(_, delivery)| delivery.clone()).collect()
    }

    /// The session last reported for an agent on an issue.
    pub fn session(&self, agent_id: i64, issue_id: i64) -> Option<SessionReport> {
        self.lock().sessions.get(&(agent_id, issue_id)).cloned()
    }

    /// What the completions of a task brought.
    pub fn results(&self, task_id: &str) -> Vec<ResultRow> {
        self.lock().results.iter().filter(|it| it.task_id == task_id).cloned().collect()
    }

    /// What happened in a workspace: kind and data.
    pub fn events(&self, workspace_id: i64) -> Vec<(String, String)> {
        let inner = self.lock();
        let own = inner.events.iter().filter(|(workspace, _, _)| *workspace == workspace_id);
        own.map(|(_, kind, data)| (kind.clone(), data.clone())).collect()
    }
}

impl Inner {
    fn comments_on(&self, issue_id: i64) -> Vec<CommentRow> {
        let row = |it: &Comment| {
            let (author, is_agent) = match &it.author {
                Author::Agent(id) => (self.agents.get(id).map(|agent| agent.name.clone()), true),
                Author::Person(name) => (Some(name.clone()), false),
            };
            let (author, body) = (author.unwrap_or_default(), it.body.clone());
            CommentRow { issue_id, author, is_agent, posted_at: it.posted_at, body }
        };
        self.comments.iter().filter(|it| it.issue_id == issue_id).map(row).collect()
    }

    /// What a run needs to know, as far as this store keeps it.
    pub(super) fn facts(&self, task: &TaskRecord) -> Facts {
        let mut facts = Facts::default();
        if let Some(agent) = self.agents.get(&task.agent_id) {
            facts.agent = AgentFacts {
                id: task.agent_id,
                name: agent.name.clone(),
                provider: agent.provider.clone(),
                custom_args: "[]".to_owned(),
                external_id: agent.external_id.clone(),
                ..AgentFacts::default()
            };
        }
        if let Some(slug) = self.workspaces.get(&task.workspace_id) {
            facts.workspace_slug.clone_from(slug);
            facts.workspace_prefix = slug.to_uppercase();
        }
        if let Some(issue) = self.issues.get(&task.issue_id) {
            facts.title.clone_from(&issue.title);
            facts.acceptance_criteria = "[]".to_owned();
        }
        let comments = self.comments_on(task.issue_id).into_iter().map(|it| CommentFacts {
            author: it.author,
            is_agent: it.is_agent,
            posted_at: it.posted_at,
            body: it.body,
        });
        facts.comments = comments.collect();
        if let Some(session) = self.sessions.get(&(task.agent_id, task.issue_id)) {
            (facts.session_id, facts.work_dir) =
                (session.session_id.clone(), session.work_dir.clone());
        }
        facts
    }
}
