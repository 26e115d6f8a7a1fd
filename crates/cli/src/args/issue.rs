//! The command line of `ostler issue`.

use camino::Utf8PathBuf;
use clap::{Args, Subcommand};

use super::JsonFlag;

/// Which server, as whom, and how to print.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// The server [default: the one that runs here, else http://127.0.0.1:4180]
    #[arg(long, value_name = "URL", env = "OSTLER_SERVER_URL", hide_env_values = true)]
    pub(crate) server: Option<String>,
    /// A file with the token that only you can read [default: OSTLER_TOKEN, else the file of
    /// OSTLER_TOKEN_FILE, else token beside config.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<Utf8PathBuf>,
    #[command(flatten)]
    pub(crate) json: JsonFlag,
}

/// To whom an issue is given.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct AssigneeArgs {
    /// An agent, by its name; this queues a task
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// A person, by e-mail address, or `me`
    #[arg(long, value_name = "E|me")]
    pub(crate) user: Option<String>,
    /// Nobody
    #[arg(long)]
    pub(crate) nobody: bool,
}

/// A new issue.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// What is to be done, in a line
    pub(crate) title: String,
    /// More about it, in Markdown
    #[arg(long, value_name = "TEXT", conflicts_with = "description_file")]
    pub(crate) description: Option<String>,
    /// A file with more about it, in Markdown, or `-`
    #[arg(long, value_name = "FILE|-")]
    pub(crate) description_file: Option<Utf8PathBuf>,
    /// What must hold in the end; may be given several times
    #[arg(long = "criterion", value_name = "TEXT")]
    pub(crate) criteria: Vec<String>,
    /// none, low, medium, high or urgent
    #[arg(long, value_name = "WORD")]
    pub(crate) priority: Option<String>,
    /// The agent that does it, by its name
    #[arg(long, value_name = "AGENT")]
    pub(crate) assign: Option<String>,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  \
ostler issue create \"Fix the redirect\" --assign Freya\n  \
ostler issue list --status todo,in_progress\n  \
ostler issue comment ACME-12 \"Please keep the old address working.\"\n\n\
Environment:\n  \
OSTLER_SERVER_URL    the server\n  \
OSTLER_TOKEN         the token, which is never an argument: others see those\n  \
OSTLER_TOKEN_FILE    a file with the token, when OSTLER_TOKEN has none")]
pub(crate) enum IssueCommand {
    /// Write an issue; assigning it to an agent queues a task
    Create(CreateArgs),
    /// List issues, the newest activity first
    List {
        /// In these only: backlog, todo, in_progress, in_review, on_hold, done, canceled
        #[arg(long, value_name = "STATUS[,…]")]
        status: Option<String>,
        /// Of `me`, `none`, an agent by its name, or a person by e-mail address
        #[arg(long, value_name = "WHO")]
        assignee: Option<String>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 50)]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show one with what was said
    Show {
        /// Its identifier, as ACME-12
        issue: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Give an issue to an agent, to a person, or to nobody
    Assign {
        /// Its identifier, as ACME-12
        issue: String,
        #[command(flatten)]
        to: AssigneeArgs,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Say something
    Comment {
        /// Its identifier, as ACME-12
        issue: String,
        /// In Markdown, or `-` to read it from standard input
        #[arg(value_name = "TEXT|-")]
        text: String,
        #[command(flatten)]
        client: ClientArgs,
    },
}
