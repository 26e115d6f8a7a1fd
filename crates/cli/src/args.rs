//! The command line: what can be asked, and the help that teaches it.

pub(crate) mod administer;
pub(crate) mod issue;
pub(crate) mod server;

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Run coding agents as durable, supervised tasks.
#[derive(Debug, Parser)]
#[command(
    name = "ostler",
    version,
    about = "Run coding agents as durable, supervised tasks",
    long_about = "Ostler runs the coding agents you already use as durable, supervised tasks: they go on when you \
close the terminal, nothing of them is left behind when they end, and you can always see what became of them.",
    after_help = "Examples:\n  \
ostler run \"Fix the failing test\"            run the default agent here and follow it\n  \
ostler run -a command -- make test           run any program the same way\n  \
ostler run --detach \"Update the docs\"        start it and walk away\n  \
ostler task list                             what runs, what ended, and how\n  \
ostler task logs -f TASK                     everything it printed, and what comes\n\n\
Exit codes: 0 success, 1 the task failed, 2 usage, 3 daemon not reachable, 4 refused by the daemon,\n\
5 cancelled, 6 interrupted, 70 a bug in Ostler",
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run an agent on a prompt and follow it to its end
    Run(Box<RunArgs>),
    /// Look at tasks, cancel them, run them again
    #[command(subcommand)]
    Task(TaskCommand),
    /// Show the daemon, what runs and what needs a person
    Status(JsonFlag),
    /// Run the daemon in the foreground (`run` starts one by itself when none runs)
    Daemon(DaemonArgs),
    /// Serve a team: issues, agents and machines over HTTP, and its administration
    Server(Box<server::ServerArgs>),
    /// Write, list and assign a team's issues, on a server
    #[command(subcommand)]
    Issue(issue::IssueCommand),
    /// Check or export the journal; the daemon may run or be stopped
    #[command(subcommand)]
    Journal(JournalCommand),
    /// Fold a run directory again, without the agent and without the daemon
    Replay(ReplayArgs),
    /// Print the completion script of a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// `--json`, wherever data is printed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct JsonFlag {
    /// Print JSON instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// What an agent may do without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PermissionsArg {
    /// The agent's own sandbox or edit-only mode; what needs more is denied
    Safe,
    /// A person decides (needs a live session)
    Ask,
    /// Everything
    Full,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
ostler run \"Explain this repository\"\n  \
git diff | ostler run -                      the prompt comes from standard input\n  \
ostler run -a claude -m opus --permissions full \"Upgrade the dependencies\"\n  \
ostler run -a command -- cargo test          any program; exit status 0 is success\n  \
ostler run --resume SESSION \"And now the tests\"\n\n\
The first Ctrl+C cancels the task and waits for its end; the second leaves it to the daemon.\n\n\
With --json one object a line: {\"type\":\"task\"} when it changes, {\"type\":\"output\"} for what it prints, and last\n\
{\"type\":\"result\",\"status\":…,\"task_id\":…,\"session_id\":…,\"text\":…,\"usage\":…,\"cost_micros\":…,\"failure\":…,\"receipt\":…}")]
pub(crate) struct RunArgs {
    /// Which agent: claude_code (claude), agent_cli, command [default: what the daemon finds]
    #[arg(short, long, value_name = "AGENT")]
    pub(crate) agent: Option<String>,
    /// Which model of the agent
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Which provider of the model, for agents that have several
    #[arg(long, value_name = "PROVIDER", requires = "model")]
    pub(crate) provider: Option<String>,
    /// How hard the model should think, in the agent's own words
    #[arg(long, value_name = "EFFORT")]
    pub(crate) effort: Option<String>,
    /// Run in this directory
    #[arg(short = 'C', long = "cwd", value_name = "DIR", default_value = ".")]
    pub(crate) cwd: Utf8PathBuf,
    /// What the agent may do without asking [default: the agent's safest]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) permissions: Option<PermissionsArg>,
    /// Continue this session of the agent
    #[arg(long, value_name = "SESSION")]
    pub(crate) resume: Option<String>,
    /// Work in a fresh git worktree, for agents that can
    #[arg(long, conflicts_with = "resume")]
    pub(crate) worktree: bool,
    /// End the run after this time, as 90s, 15m or 6h [default: 6h]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
    /// End the run when it has cost this much, in US dollars
    #[arg(long, value_name = "DOLLARS", value_parser = parse_micros)]
    pub(crate) budget: Option<u64>,
    /// Name the task; an id that exists is refused, so a repeated command runs nothing twice
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Start it and return at once; prints the task's id
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// The prompt, or `-` to read it from standard input
    #[arg(value_name = "PROMPT|-")]
    pub(crate) prompt: Option<String>,
    /// Program and arguments, for `-a command`; the prompt, or what is piped in, becomes its input
    #[arg(last = true, value_name = "PROGRAM ARGS")]
    pub(crate) program: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// List tasks, newest last
    List {
        /// Also those that moved to the archive
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        json: JsonFlag,
    },
    /// Show one task with its receipt
    Show {
        /// The task's id, or the beginning of it
        task: String,
        #[command(flatten)]
        json: JsonFlag,
    },
    /// Print everything a task printed, from the beginning; works with the daemon stopped
    Logs {
        /// The task's id, or the beginning of it
        task: String,
        /// Go on with what comes, until the task ends
        #[arg(short, long)]
        follow: bool,
        /// Which run of the task, counted from 1 [default: the last]
        #[arg(long, value_name = "N")]
        attempt: Option<u32>,
        /// The agent's own output, byte for byte, instead of its readable form
        #[arg(long, conflicts_with = "json")]
        raw: bool,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Cancel a task; returns when nothing of it is left
    Cancel {
        /// The task's id, or the beginning of it
        task: String,
        #[command(flatten)]
        json: JsonFlag,
    },
    /// Run a failed or cancelled task again with its original prompt
    Retry {
        /// The task's id, or the beginning of it
        task: String,
        #[command(flatten)]
        json: JsonFlag,
    },
    /// Set how many tasks run at once
    Limit {
        /// From 1 to 32
        #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
        limit: u8,
        #[command(flatten)]
        json: JsonFlag,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Environment:\n  \
HASKELL_AGENT_RUNTIME_DIR   where socket, lock and journal are [default: ~/.haskell-agent/runtime]\n  \
HASKELL_AGENT_CLI           the program of the agent `agent_cli`\n  \
OSTLER_HOME                 where runs are kept [default: $XDG_STATE_HOME/ostler]\n  \
OSTLER_CONFIG               the configuration file [default: $XDG_CONFIG_HOME/ostler/config.toml]\n  \
OSTLER_LOG                  what is logged to standard error, as `info` or `ostler_host=debug`\n\n\
TERM or Ctrl+C ends it in good order within 10 seconds: tasks are ended and become interrupted, the journal is\n\
flushed, the socket removed. A second signal ends it at once.")]
pub(crate) struct DaemonArgs {
    /// Log to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<Utf8PathBuf>,
    /// Leave the terminal: what `run` starts
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Check every record; changes nothing
    Verify {
        /// The journal's directory [default: the daemon's]
        dir: Option<Utf8PathBuf>,
        #[command(flatten)]
        json: JsonFlag,
    },
    /// Print every record as one JSON object a line
    Export {
        /// The journal's directory [default: the daemon's]
        dir: Option<Utf8PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The run directory
    pub(crate) dir: Utf8PathBuf,
    #[command(flatten)]
    pub(crate) json: JsonFlag,
}

/// The longest a run may be told to last.
const TIMEOUT_SECONDS_MAX: u64 = 30 * 24 * 60 * 60;

fn parse_seconds(text: &str) -> Result<u64, String> {
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "s" | "" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err("write it as 90s, 15m, 6h or 1d".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "write it as 90s, 15m, 6h or 1d")?;
    match number.checked_mul(factor) {
        Some(seconds @ 1..=TIMEOUT_SECONDS_MAX) => Ok(seconds),
        _ => Err("it must be between 1 second and 30 days".to_owned()),
    }
}

/// Dollars with at most six decimals, as integer micro-dollars; no float on the way.
fn parse_micros(text: &str) -> Result<u64, String> {
    let malformed = || "write it as dollars, like 2 or 0.50".to_owned();
    let (whole, part) = text
        .strip_prefix('$')
        .unwrap_or(text)
        .split_once('.')
        .unwrap_or((text.strip_prefix('$').unwrap_or(text), ""));
    if part.len() > 6 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return Err(malformed());
    }
    let whole: u64 = whole.parse().map_err(|_| malformed())?;
    let part: u64 = format!("{part:0<6}").parse().map_err(|_| malformed())?;
    match whole.checked_mul(1_000_000).and_then(|micros| micros.checked_add(part)) {
        Some(0) | None => Err("it must be more than nothing".to_owned()),
        Some(micros) => Ok(micros),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn times_and_money_are_read_exactly() {
        assert_eq!(parse_seconds("90s"), Ok(90));
        assert_eq!(parse_seconds("6h"), Ok(21_600));
        assert_eq!(parse_seconds("15"), Ok(15));
        assert!(parse_seconds("0s").is_err());
        assert!(parse_seconds("31d").is_err());
        assert!(parse_seconds("6 hours").is_err());
        assert_eq!(parse_micros("0.50"), Ok(500_000));
        assert_eq!(parse_micros("$2"), Ok(2_000_000));
        assert_eq!(parse_micros("0.000001"), Ok(1));
        assert!(parse_micros("0").is_err());
        assert!(parse_micros("1.0000001").is_err());
        assert!(parse_micros("-1").is_err());
    }
}
