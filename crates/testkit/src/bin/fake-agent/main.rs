//! `fake-agent`: plays agents, mostly misbehaving ones, for tests through the real daemon.
//!
//! `fake-agent MODE [ARGUMENT] [--stay] [--detached] [--ignore-term] [--empty-env] [--token T] [--alive PIPE] [--life SECONDS]`
//!
//! | mode | what it does |
//! |---|---|
//! | `ignore-term` | says so, ignores TERM, INT and HUP with a line for each, and stays |
//! | `exit-on-term N` | stays; on TERM prints a line and exits with N |
//! | `fork-and-leave` | leaves a child in its own group that holds the pipes, and exits 0 |
//! | `double-fork-setsid` | leaves an orphan in a session of its own that holds the pipes, and exits 0 |
//! | `spawn-tool` | a child in a session of its own holds the pipes; waits for it, as a CLI does for its shell tool |
//! | `fork-storm [N [PACE_MS]]` | N (at most 8) chains of processes that replace themselves, each time in a new session, every 20 ms (0: faster than a scan can see); 4,000 in all, then the last ones stay |
//! | `close-stdout` | closes stdout and stderr and stays |
//! | `print-for-ever [BYTES]` | numbered lines without a pause |
//! | `print-nothing`, `sleep [SECONDS]` | stays silent, for ever or that long |
//! | `lines N` | N numbered lines |
//! | `invalid-utf8` | bytes that are no UTF-8, and characters cut across two writes |
//! | `control-bytes` | one line with every byte but LF |
//! | `long-line BYTES` | one line of that many letters, `a` to `z` over and over |
//! | `die [SIGNAL]` | kills itself |
//! | `exit N` | exits with that status |
//! | `print-env`, `print-args` | its environment sorted; its arguments as JSON strings, one a line |
//! | `read-stdin` | reads stdin to its end, prints its length and then itself |
//! | `connect SOCKET` | sends its stdin there and closes that half; prints the length of what comes back, and then that |
//! | `write-file NAME` | writes a file into the working directory |
//! | `result-and-stay` | the closing statement of Claude Code, then stays |
//! | `agent-cli …` | the original's `agent-cli`, see `agent_cli` |
//! | `claude …` | a fake of Claude Code, see `claude` |
//!
//! `--stay` keeps the leader there too; `--detached` gives children no stdout and stderr; `--ignore-term` makes children
//! ignore TERM; `--empty-env` starts them without an environment; `--token` puts a word into their arguments.
//! `--alive` names a pipe whose writing end it and all its descendants (as their stdin) hold until they end.
//! Called as `agent-cli` or `claude` (a link), or with arguments that begin as theirs do, it plays that
//! program. Whatever it is told, no process of it lives longer than `--life` (120 s by default).

mod agent_cli;
mod behaviour;
mod claude;

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How long any process of it lives when nothing else is said.
const LIFE_S_MAX: u64 = 120;
/// The exit status of a wrong call.
pub(crate) const EXIT_USAGE: u8 = 64;

/// What was asked on the command line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) mode: String,
    pub(crate) argument: Option<String>,
    pub(crate) stay: bool,
    pub(crate) detached: bool,
    pub(crate) ignore_term: bool,
    pub(crate) empty_env: bool,
    pub(crate) token: Option<String>,
    pub(crate) alive: Option<Arc<File>>,
    pub(crate) life_s: u64,
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    let called = args.next().unwrap_or_default();
    let called = Path::new(&called).file_name().and_then(|name| name.to_str());
    let args: Vec<String> = args.collect();
    let result = match (called, args.first().map(String::as_str)) {
        (_, Some("agent-cli")) => agent_cli::play(args.get(1..).unwrap_or_default()),
        (_, Some("claude")) => claude::play(args.get(1..).unwrap_or_default()),
        (Some("agent-cli"), _) | (_, Some("--prompt")) => agent_cli::play(&args),
        (Some("claude"), _) | (_, Some("-p" | "--version")) => claude::play(&args),
        _ => match parse(&args) {
            Some(options) => {
                end_after(options.life_s);
                behaviour::play(&options, &args)
            }
            None => Ok(complain("see the head of crates/testkit/src/bin/fake-agent/main.rs")),
        },
    };
    result.unwrap_or_else(|error| match error.kind() {
        // The reader has gone: nothing more to say.
        io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => complain(&error.to_string()),
    })
}

fn parse(args: &[String]) -> Option<Options> {
    let mut args = args.iter();
    let mut options =
        Options { mode: args.next()?.clone(), life_s: LIFE_S_MAX, ..Options::default() };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--stay" => options.stay = true,
            "--detached" => options.detached = true,
            "--ignore-term" => options.ignore_term = true,
            "--empty-env" => options.empty_env = true,
            "--token" => options.token = Some(args.next()?.clone()),
            "--alive" => {
                let pipe = File::options().write(true).open(args.next()?).ok()?;
                options.alive = Some(Arc::new(pipe));
            }
            "--life" => options.life_s = args.next()?.parse().ok()?,
            _ => options.argument = Some(options.argument.map_or(arg.clone(), |a| a + " " + arg)),
        }
    }
    Some(options)
}

/// Ends this process after that long, whatever the rest of it is doing.
pub(crate) fn end_after(seconds: u64) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(seconds));
        std::process::exit(99);
    });
}

/// Says what is wrong with the call.
pub(crate) fn complain(message: &str) -> ExitCode {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "fake-agent: {message}");
    ExitCode::from(EXIT_USAGE)
}
