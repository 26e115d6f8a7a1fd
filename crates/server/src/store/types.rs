//! The records and orders that go into a store and come out of it.

use std::fmt;
use std::time::Duration;

use ostler_core::clock::Timestamp;
use ostler_core::lease::{Answer, Input, Task};

use crate::delivery::Delivery;

/// A machine's agent CLI, as registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// A ULID.
    pub id: String,
    /// Which agent CLI.
    pub provider: String,
    /// The last registration named it.
    pub listed: bool,
    /// It was heard of lately.
    pub online: bool,
    /// When.
    pub last_seen: Timestamp,
}

/// What a machine says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Whose.
    pub workspace_id: i64,
    /// The machine's own id.
    pub daemon_id: String,
    /// How people know it.
    pub name: String,
    /// The daemon's version.
    pub version: String,
    /// Its agent CLIs; at least one, each once.
    pub providers: Vec<String>,
    /// Operating system, architecture and what else it sent: a JSON object.
    pub capabilities: String,
    /// Agents it runs of its own, if it said so.
    pub actors: Option<Vec<Actor>>,
}

/// The provider whose machines register agents of their own.
pub const ACTOR_PROVIDER: &str = "huskarl";

/// An agent that a machine brings along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The machine's id of it.
    pub external_id: String,
    /// How it is called there.
    pub name: String,
    /// What it does.
    pub description: String,
}

/// What a registration made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// In the order of the providers.
    pub runtimes: Vec<Runtime>,
    /// The actors' agents; empty when none were sent.
    pub agents: Vec<ActorAgent>,
}

/// The agent an actor became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorAgent {
    /// Ours.
    pub id: i64,
    /// The machine's.
    pub external_id: String,
    /// Perhaps with a mark, when another agent has the name.
    pub name: String,
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Whose machine.
    pub workspace_id: i64,
    /// Which.
    pub daemon_id: String,
    /// When.
    pub at: Timestamp,
}

/// A machine asks for work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Whose.
    pub workspace_id: i64,
    /// The machine.
    pub daemon_id: String,
    /// Its runtimes that may be given work: id and provider.
    pub runtimes: Vec<(String, String)>,
    /// The machine's own word for this claim: the same word again gives the same task and lease.
    pub request: Option<String>,
    /// It starts within a minute or gives back.
    pub starts_soon: bool,
}

/// A task was given.
#[derive(Clone, PartialEq)]
pub struct Claimed {
    /// The task.
    pub task: TaskRecord,
    /// What its later calls show. Known here only.
    pub lease_token: String,
    /// What the run needs to know.
    pub facts: Facts,
}

impl fmt::Debug for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed").field("task", &self.task.id).finish_non_exhaustive()
    }
}

/// A task with what the store keeps beside the machine's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskRecord {
    /// A ULID in lower case.
    pub id: String,
    /// Whose.
    pub workspace_id: i64,
    /// On which issue.
    pub issue_id: i64,
    /// The issue's number in its workspace.
    pub issue_number: i64,
    /// For which agent.
    pub agent_id: i64,
    /// Where it runs or ran last.
    pub runtime_id: Option<String>,
    /// Its place in the queue.
    pub rank: i64,
    /// What the lease's token is derived from.
    pub lease_nonce: Option<String>,
    /// The word of the claim or resume that gave the lease.
    pub lease_request: Option<String>,
    /// The machine whose claim, with a word, gave the lease.
    pub(crate) claimed_by: Option<String>,
    /// Of the last failure.
    pub error: Option<String>,
    /// When it was queued first.
    pub created_at: Timestamp,
    /// When this attempt's process ran first.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Bytes of the output that is kept.
    pub line_bytes: u64,
    /// Its output was removed by age or size.
    pub pruned: bool,
    /// How often the stored record was changed: it is saved only over the one it was made from.
    pub(crate) version: i64,
    /// Where it is.
    pub machine: Task,
}

/// What a run needs to know, as it is stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Facts {
    /// The agent.
    pub agent: AgentFacts,
    /// The workspace's slug.
    pub workspace_slug: String,
    /// What every agent in it should know.
    pub workspace_context: String,
    /// The prefix of its issues.
    pub workspace_prefix: String,
    /// The GitHub App it lends its agents, if it has one.
    pub github: Option<GithubFacts>,
    /// What may be checked out: name and URL.
    pub repositories: Vec<(String, String)>,
    /// The issue's title.
    pub title: String,
    /// Its description, as HTML.
    pub description: String,
    /// Its acceptance criteria, a JSON array of texts.
    pub acceptance_criteria: String,
    /// How many comments there are before these.
    pub comments_before: u64,
    /// What was said on it last, oldest first.
    pub comments: Vec<CommentFacts>,
    /// Skills of the agent.
    pub skills: Vec<SkillFacts>,
    /// The agent's last session on this issue.
    pub session_id: Option<String>,
    /// And its directory.
    pub work_dir: Option<String>,
}

/// A GitHub App, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GithubFacts {
    /// The App's id.
    pub app_id: String,
    /// Its installation, if somebody said which.
    pub installation_id: Option<String>,
    /// GitHub's API.
    pub base_url: String,
    /// Its private key, sealed.
    pub sealed_key: String,
}

/// An agent, as a run needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentFacts {
    /// Its id.
    pub id: i64,
    /// How it is called.
    pub name: String,
    /// Which CLI.
    pub provider: String,
    /// Which model, if it matters.
    pub model: Option<String>,
    /// What it is told first.
    pub instructions: String,
    /// Its environment, sealed.
    pub sealed_env: Option<String>,
    /// Its MCP servers, sealed.
    pub sealed_mcp: Option<String>,
    /// More arguments: a JSON array of texts.
    pub custom_args: String,
    /// The machine's own id of it.
    pub external_id: Option<String>,
}

/// A comment that was not withdrawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommentFacts {
    /// Who.
    pub author: String,
    /// An agent.
    pub is_agent: bool,
    /// When.
    pub posted_at: Timestamp,
    /// HTML.
    pub body: String,
}

/// A skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillFacts {
    /// How it is called.
    pub name: String,
    /// Its page.
    pub content: String,
    /// Further files: path and content.
    pub files: Vec<(String, String)>,
}

/// One thing done to one task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskCall {
    /// The caller's workspace; a task of another is not found.
    pub workspace_id: i64,
    /// Which task.
    pub task_id: String,
    /// What.
    pub what: What,
    /// What comes with it.
    pub with: Payload,
}

/// What is done to a task.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// As the lease machine knows it.
    Input(Input),
    /// A machine goes on with a waiting run; the store makes the lease.
    Resume {
        /// The caller's runtimes.
        runtimes: Vec<String>,
        /// The caller's own word: the same again gives the same lease.
        request: Option<String>,
    },
}

/// What comes with a call, to be kept.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// Output, in order of seq.
    Lines(Vec<Line>),
    /// The agent's session.
    Session(SessionReport),
    /// A result.
    Completion(Box<Completion>),
    /// What went wrong, and the session if it is known.
    Failure(String),
}

/// One line of output.
#[derive(Clone, PartialEq, Eq)]
pub struct Line {
    /// From 1 within the attempt.
    pub seq: u64,
    /// What it is.
    pub kind: String,
    /// Its text.
    pub content: Option<String>,
    /// The tool.
    pub tool: Option<String>,
    /// The tool's arguments or result: JSON.
    pub payload: Option<String>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("seq", &self.seq)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Line {
    /// Bytes that it takes, without what the database adds.
    pub(crate) fn bytes(&self) -> u64 {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let bytes = length(&self.content) + length(&self.tool) + length(&self.payload);
        (bytes + self.kind.len()) as u64
    }
}

/// Where an agent's work can be resumed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionReport {
    /// The CLI's id.
    pub session_id: Option<String>,
    /// The directory on the machine.
    pub work_dir: Option<String>,
}

/// How a run ended well.
#[derive(Clone, PartialEq, Default)]
pub struct Completion {
    /// As it came: JSON.
    pub result: String,
    /// The summary as HTML, if there was one.
    pub comment: Option<String>,
    /// Where it can be resumed.
    pub session: SessionReport,
    /// What it cost, if it said so.
    pub usage: Option<Usage>,
    /// Valid artifacts.
    pub deliveries: Vec<Delivery>,
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("usage", &self.usage).finish_non_exhaustive()
    }
}

/// What a run used. All of it may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens in.
    pub input_tokens: Option<i64>,
    /// Tokens out.
    pub output_tokens: Option<i64>,
    /// Tokens read from a cache.
    pub cached_tokens: Option<i64>,
    /// Tokens written to a cache.
    pub cache_write_tokens: Option<i64>,
    /// Millionths of a dollar.
    pub cost_micros: Option<i64>,
}

/// What came of a call.
#[derive(Clone, PartialEq)]
pub struct Stepped {
    /// Of the machine.
    pub answer: Answer,
    /// New lines.
    pub accepted: u64,
    /// One above the highest line of this attempt.
    pub next_seq: u64,
    /// Since when the run waits.
    pub waiting_since: Option<Timestamp>,
    /// The new lease's token, for a resume.
    pub lease_token: Option<String>,
}

impl fmt::Debug for Stepped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stepped")
            .field("answer", &self.answer)
            .field("accepted", &self.accepted)
            .field("next_seq", &self.next_seq)
            .finish_non_exhaustive()
    }
}

/// What the sweeper is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sweep {
    /// When this was decided. However late the transaction is, nothing is taken that ran out after it.
    pub now: Timestamp,
    /// Machines not heard of for this long are offline; none becomes so soon after a start, when they had nobody
    /// to beat for.
    pub offline_after: Option<Duration>,
    /// Take leases; not so soon after a start, when machines had nobody to renew with.
    pub take_leases: bool,
    /// Leases and signs of life that lie too far ahead were written by a clock that has been set back since: bring
    /// them back. Not with a clock that may be behind that of another server.
    pub bring_back: bool,
}

/// What the sweeper did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Another server sweeps now.
    pub skipped: bool,
    /// Leases that ran out.
    pub leases: u64,
    /// There are more.
    pub more: bool,
    /// Runtimes that went offline.
    pub runtimes: u64,
}
