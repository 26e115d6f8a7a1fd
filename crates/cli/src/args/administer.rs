//! The command line of the server's administration: `ostler server
//! workspace|user|agent|skill|repository|token|runtime|task`.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand, ValueEnum};

use super::JsonFlag;
use super::server::DatabaseArgs;

/// What is administrated.
#[derive(Debug, Subcommand)]
pub(crate) enum AdministerCommand {
    /// Workspaces: a team's issues, agents and machines
    #[command(subcommand)]
    Workspace(WorkspaceCommand),
    /// People of a workspace
    #[command(subcommand)]
    User(UserCommand),
    /// Agents: who work on issues
    #[command(subcommand)]
    Agent(AgentCommand),
    /// Skills: documents that go with an agent's tasks
    #[command(subcommand)]
    Skill(SkillCommand),
    /// Repositories: what runs may check out
    #[command(subcommand)]
    Repository(RepositoryCommand),
    /// Tokens of machines, people and programs
    #[command(subcommand)]
    Token(TokenCommand),
    /// Runtimes: agent CLIs on machines
    #[command(subcommand)]
    Runtime(RuntimeCommand),
    /// Tasks: look, cancel, run again, decide
    #[command(subcommand)]
    Task(FleetTaskCommand),
}

/// Which database, and how to print.
#[derive(Debug, Args)]
pub(crate) struct AtArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    #[command(flatten)]
    pub(crate) json: JsonFlag,
}

/// The same in one workspace.
#[derive(Debug, Args)]
pub(crate) struct InArgs {
    /// The workspace's short name
    #[arg(long, value_name = "SLUG")]
    pub(crate) workspace: String,
    #[command(flatten)]
    pub(crate) at: AtArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkspaceCommand {
    /// Make a workspace with its administrator
    Create {
        #[command(flatten)]
        at: InArgs,
        /// The administrator's e-mail address; a user is made if nobody has it
        #[arg(long, value_name = "E")]
        email: String,
        /// How people call it [default: the short name]
        #[arg(long, value_name = "N")]
        name: Option<String>,
    },
    /// List workspaces
    List(AtArgs),
    /// Show one with its settings
    Show(InArgs),
    /// Change its name, or what every agent in it should know
    Update {
        #[command(flatten)]
        at: InArgs,
        /// How people call it
        #[arg(long, value_name = "N")]
        name: Option<String>,
        /// A file with what every agent should know, or `-`
        #[arg(long, value_name = "FILE|-")]
        context_file: Option<Utf8PathBuf>,
    },
}

/// What a member may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArg {
    /// Works
    Member,
    /// Administrates the workspace too
    Admin,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Add a person to a workspace
    Create {
        #[command(flatten)]
        at: InArgs,
        /// The person's e-mail address
        #[arg(long, value_name = "E")]
        email: String,
        /// The person's name [default: from the address]
        #[arg(long, value_name = "N")]
        name: Option<String>,
        /// What the person may do
        #[arg(long, value_enum, default_value = "member")]
        role: RoleArg,
    },
    /// List a workspace's members
    List(InArgs),
    /// Give a member another role
    Update {
        #[command(flatten)]
        at: InArgs,
        /// The member's e-mail address
        #[arg(long, value_name = "E")]
        email: String,
        /// What the person may do
        #[arg(long, value_enum)]
        role: RoleArg,
    },
    /// Remove a member and revoke its tokens
    Remove {
        #[command(flatten)]
        at: InArgs,
        /// The member's e-mail address
        #[arg(long, value_name = "E")]
        email: String,
    },
}

/// What may change of an agent.
#[derive(Debug, Args)]
pub(crate) struct AgentFields {
    /// Which agent CLI runs it: claude_code, codex, … [a new agent's default: claude_code]
    #[arg(long, value_name = "P")]
    pub(crate) provider: Option<String>,
    /// Tasks it may hold at once
    #[arg(long, value_name = "N")]
    pub(crate) concurrency: Option<i64>,
    /// The model, in the CLI's own words
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
    /// A file with what it is told before every task, or `-`
    #[arg(long, value_name = "FILE|-")]
    pub(crate) instructions_file: Option<Utf8PathBuf>,
    /// A file with lines NAME=VALUE for its runs' environment, added to what is there; NAME alone takes one out
    #[arg(long, value_name = "FILE|-")]
    pub(crate) env_file: Option<Utf8PathBuf>,
    /// A file with a JSON object of MCP servers, added by name to what is there; null takes one out
    #[arg(long, value_name = "FILE|-")]
    pub(crate) mcp_config: Option<Utf8PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Make an agent; it runs on any machine with its provider
    Create {
        #[command(flatten)]
        at: InArgs,
        /// Its name in the workspace
        #[arg(long, value_name = "N")]
        name: String,
        #[command(flatten)]
        fields: AgentFields,
    },
    /// Change an agent
    Update {
        #[command(flatten)]
        at: InArgs,
        /// Its name
        #[arg(long, value_name = "N")]
        name: String,
        /// Its new name
        #[arg(long, value_name = "N")]
        rename: Option<String>,
        #[command(flatten)]
        fields: AgentFields,
    },
    /// Give it nothing new; what runs goes on
    Pause(AgentArgs),
    /// Give it work again
    Resume(AgentArgs),
    /// Show one, archived or not
    Show(AgentArgs),
    /// List agents
    List {
        #[command(flatten)]
        at: InArgs,
        /// Of this name only
        #[arg(long, value_name = "N")]
        name: Option<String>,
        /// Those that were archived
        #[arg(long)]
        archived: bool,
    },
    /// Take it away; what it did stays
    Archive(AgentArgs),
    /// Bring back one that was archived
    Restore(AgentArgs),
}

/// An agent by its name.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) at: InArgs,
    /// Its name
    #[arg(long, value_name = "N")]
    pub(crate) name: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SkillCommand {
    /// Make a skill from SKILL.md, or from a folder with it and other files
    Create {
        #[command(flatten)]
        skill: SkillArgs,
        /// SKILL.md or its folder
        path: Utf8PathBuf,
    },
    /// Replace a skill's content and files
    Update {
        #[command(flatten)]
        skill: SkillArgs,
        /// SKILL.md or its folder
        path: Utf8PathBuf,
    },
    /// List skills
    List(InArgs),
    /// Show one with its files
    Show(SkillArgs),
    /// Remove a skill, from its agents too
    Remove(SkillArgs),
    /// Give an agent a skill
    Attach {
        #[command(flatten)]
        skill: SkillArgs,
        /// The agent's name
        #[arg(long, value_name = "N")]
        agent: String,
    },
    /// Take a skill from an agent
    Detach {
        #[command(flatten)]
        skill: SkillArgs,
        /// The agent's name
        #[arg(long, value_name = "N")]
        agent: String,
    },
}

/// A skill by its name.
#[derive(Debug, Args)]
pub(crate) struct SkillArgs {
    #[command(flatten)]
    pub(crate) at: InArgs,
    /// Its name
    #[arg(long, value_name = "N")]
    pub(crate) name: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RepositoryCommand {
    /// Let runs of the workspace check a repository out
    Add {
        #[command(flatten)]
        at: InArgs,
        /// Where it is, without a password: machines use what they have
        url: String,
    },
    /// List repositories
    List(InArgs),
    /// Take a repository off the list
    Remove {
        #[command(flatten)]
        at: InArgs,
        /// Its number in the list
        #[arg(value_name = "ID")]
        id: i64,
    },
}

/// Whose token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// For a machine that runs agents
    Daemon,
    /// For a person or a program
    Api,
}

/// What a token for a person or a program may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AbilityArg {
    /// Look
    Read,
    /// Change what the team works on
    Write,
    /// Tokens, members, settings
    Admin,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token, which is shown this once
    Create {
        #[command(flatten)]
        at: InArgs,
        /// The e-mail address of the member it acts for
        #[arg(long, value_name = "E")]
        user: String,
        /// What it is for, to know it again
        #[arg(long, value_name = "N")]
        name: String,
        /// Days until it is refused
        #[arg(long, value_name = "D")]
        days: u32,
        /// Whose it is
        #[arg(long, value_enum)]
        kind: KindArg,
        /// What a token of the kind api may do [default: read,write]
        #[arg(long, value_enum, value_delimiter = ',', value_name = "ABILITY[,…]")]
        abilities: Vec<AbilityArg>,
    },
    /// List tokens; of each only how it begins
    List(InArgs),
    /// Refuse a token from now on, within 5 seconds on every server
    Revoke {
        #[command(flatten)]
        at: InArgs,
        /// Its number in the list
        #[arg(value_name = "ID")]
        id: i64,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum RuntimeCommand {
    /// List machines and their agent CLIs
    List(InArgs),
    /// Show one
    Show {
        #[command(flatten)]
        at: InArgs,
        /// Its id in the list
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum FleetTaskCommand {
    /// List tasks, newest first
    List {
        #[command(flatten)]
        at: InArgs,
        /// In these states only: queued, dispatched, running, waiting, completed, failed, canceled
        #[arg(long, value_name = "STATE[,…]")]
        state: Option<String>,
        /// Of this agent only
        #[arg(long, value_name = "N")]
        agent: Option<String>,
    },
    /// Show one: what came of it, or why it is still queued
    Show(TaskArgs),
    /// Show what it printed, of all attempts
    Logs {
        #[command(flatten)]
        task: TaskArgs,
        /// Go on until it has ended
        #[arg(short, long)]
        follow: bool,
    },
    /// Cancel a task; its machine learns of it with its next line of output
    Cancel(TaskArgs),
    /// Run an ended task again
    Retry(TaskArgs),
    /// Let a waiting run go on
    Approve {
        #[command(flatten)]
        task: TaskArgs,
        /// What the agent should know
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// Tell a waiting run no
    Deny {
        #[command(flatten)]
        task: TaskArgs,
        /// What the agent should know
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
}

/// A task by its id.
#[derive(Debug, Args)]
pub(crate) struct TaskArgs {
    #[command(flatten)]
    pub(crate) at: InArgs,
    /// Its id
    #[arg(value_name = "TASK")]
    pub(crate) task: String,
}
