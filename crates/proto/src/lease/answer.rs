//! What the server answers, spelled as on the wire.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Every refusal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// For a person.
    pub message: String,
    /// For a program: `lease_lost`, `lease_expired`, `bad_state`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What is wrong with which field (422).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<Value>,
    /// Seconds (429).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// The lowest version that is served (426).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_version: Option<String>,
    /// Where to get it (426).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download_url: Option<String>,
}

/// A workspace, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceBrief {
    /// Its short name in addresses.
    pub slug: String,
    /// Its name.
    pub name: String,
}

/// A runtime, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    /// A ULID.
    pub id: String,
    /// Which agent CLI.
    pub provider: String,
    /// `online`.
    pub status: String,
}

/// The agent an actor became.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The server's id.
    pub id: i64,
    /// The machine's.
    pub external_id: String,
    /// Perhaps with a mark.
    pub name: String,
}

/// 201 of `register`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Whose.
    pub workspace: WorkspaceBrief,
    /// One a provider.
    pub runtimes: Vec<Runtime>,
    /// When actors were sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<Actor>>,
}

/// A person's decision on a waiting run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionMade {
    /// Which run.
    pub task_id: String,
    /// `approved` or `denied`.
    pub decision: String,
    /// What the person wrote.
    pub note: String,
}

/// 200 of `heartbeat`, `complete`, `fail` and `cancel-ack`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// `ok`, or what the task is now.
    pub status: String,
    /// Decisions that wait for a resume, for a heartbeat.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<DecisionMade>,
}

/// 200 of `start` and `session`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStatus {
    /// What the task is now.
    pub status: String,
    /// RFC 3339.
    pub lease_expires_at: Option<String>,
    /// A person wants it to end.
    pub cancel_requested: bool,
}

/// 202 of `messages`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    /// New lines.
    pub accepted: u64,
    /// One above the highest stored.
    pub next_seq: u64,
    /// RFC 3339.
    pub lease_expires_at: Option<String>,
    /// A person wants it to end.
    pub cancel_requested: bool,
}

/// 200 of `await`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// `waiting`.
    pub status: String,
    /// RFC 3339.
    pub waiting_since: Option<String>,
}

/// 200 of `resume`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// `running`.
    pub status: String,
    /// The one for every later call.
    pub lease_token: String,
    /// RFC 3339.
    pub lease_expires_at: Option<String>,
    /// A person wants it to end.
    pub cancel_requested: bool,
}

impl fmt::Debug for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resumed")
            .field("status", &self.status)
            .field("lease_expires_at", &self.lease_expires_at)
            .field("cancel_requested", &self.cancel_requested)
            .finish_non_exhaustive()
    }
}

/// What a claimed run needs to know.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// A ULID in lower case.
    pub id: String,
    /// `dispatched`.
    pub status: String,
    /// RFC 3339.
    pub lease_expires_at: Option<String>,
    /// What every later call shows.
    pub lease_token: String,
    /// The agent's session on this issue, if there was one.
    pub session_id: Option<String>,
    /// Its directory.
    pub work_dir: Option<String>,
    /// Who runs.
    pub agent: Agent,
    /// Where.
    pub workspace: Workspace,
    /// On what.
    pub issue: Issue,
    /// Sentences for the prompt.
    pub harness: Vec<String>,
    /// Documents for the agent.
    pub skills: Vec<Skill>,
    /// For what comes later.
    pub context: Map<String, Value>,
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("id", &self.id)
            .field("status", &self.status)
            .field("lease_expires_at", &self.lease_expires_at)
            .finish_non_exhaustive()
    }
}

/// Who runs.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// The server's id.
    pub id: i64,
    /// How it is called.
    pub name: String,
    /// Which agent CLI.
    pub provider: String,
    /// Its program.
    pub command: String,
    /// Which model, if it matters.
    pub model: Option<String>,
    /// What it is told first.
    pub instructions: String,
    /// Environment of the run.
    pub custom_env: Map<String, Value>,
    /// More arguments.
    pub custom_args: Vec<String>,
    /// MCP servers.
    pub mcp_config: Map<String, Value>,
    /// The machine's own id of it, for an actor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}

/// A repository that may be checked out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Repository {
    /// For clients that know names.
    Named {
        /// `owner-repo`.
        name: String,
        /// Without credentials.
        url: String,
    },
    /// For those that read strings.
    Url(String),
}

/// Who commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committer {
    /// `<slug>[bot]`.
    pub name: String,
    /// `<id>+<login>@users.noreply.github.com`.
    pub email: String,
}

/// Where a run happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// Its short name.
    pub slug: String,
    /// What every agent in it should know.
    pub context: String,
    /// What may be checked out.
    pub repositories: Vec<Repository>,
    /// Who commits, if somebody lent that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub committer: Option<Committer>,
}

/// What a run is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issue {
    /// `ACM-231`.
    pub identifier: String,
    /// Its title.
    pub title: String,
    /// Markdown.
    pub description: String,
    /// What must be so in the end.
    pub acceptance_criteria: Vec<String>,
    /// What was said, oldest first; for clients with `thread`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comments: Option<Vec<Comment>>,
    /// How many older ones are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comments_omitted: Option<u64>,
}

/// A comment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comment {
    /// Who.
    pub author: String,
    /// An agent.
    pub is_agent: bool,
    /// RFC 3339.
    pub posted_at: String,
    /// Markdown.
    pub body: String,
}

/// A skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skill {
    /// How it is called.
    pub name: String,
    /// Its page.
    pub content: String,
    /// Further files.
    pub files: Vec<SkillFile>,
}

/// A file of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillFile {
    /// Relative.
    pub path: String,
    /// Its text.
    pub content: String,
}
