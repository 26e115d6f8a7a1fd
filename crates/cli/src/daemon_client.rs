//! The way to the daemon: connect, and start one when none runs.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use ostler_host::client::{Client, ClientError, ConnectOptions, Update, Updates};
use ostler_proto::framed::Task;
use tokio::time::Instant;

use crate::context::Context;
use crate::error::{Code, Failure};

/// How long a daemon that was just started may take until it answers.
const START_DEADLINE: Duration = Duration::from_secs(10);

/// The log is set aside at a start when it is longer.
const LOG_BYTES_MAX: u64 = 1024 * 1024;

/// Pause before another start, when another daemon had the place.
const RESPAWN_PAUSE: Duration = Duration::from_millis(100);

/// Tries to get back to a daemon whose connection was lost, and the pause between.
const RECONNECTS_MAX: u32 = 10;
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Pause between two tries to reach it.
const START_RETRY: Duration = Duration::from_millis(10);

/// Connects to a daemon that runs.
pub(crate) async fn connect(context: &Context) -> Result<(Client, Updates), Failure> {
    let socket = context.paths.socket();
    Client::connect(&socket, ConnectOptions::default()).await.map_err(failure)
}

/// Connects for commands only.
pub(crate) async fn connect_for_commands(context: &Context) -> Result<Client, Failure> {
    let (client, updates) = connect(context).await?;
    drop(updates);
    Ok(client)
}

/// The live tasks as the daemon has them, in the order of their submission; `None` when none runs. From the
/// snapshot, which has every task, where a `list` has what fits one frame.
pub(crate) async fn live_tasks(
    context: &Context,
) -> Result<Option<(Option<u32>, Vec<Task>)>, Failure> {
    let connected = Client::connect(&context.paths.socket(), ConnectOptions::default()).await;
    let (client, mut updates) = match connected {
        Err(ClientError::Unreachable { source, .. }) if is_absent(&source) => return Ok(None),
        other => other.map_err(failure)?,
    };
    match updates.next().await.map_err(failure)? {
        Some(Update::Snapshot(snapshot)) => Ok(Some((client.daemon_pid(), snapshot.tasks))),
        _ => Err(failure(ClientError::Protocol("no snapshot after welcome".to_owned()))),
    }
}

/// Connects again after a loss, where `last` was applied. `None` when there is no daemon to go on with.
pub(crate) async fn reconnect(context: &Context, last: Option<u64>) -> Option<(Client, Updates)> {
    let options = ConnectOptions { resume_after: last, ..ConnectOptions::default() };
    for _ in 0..RECONNECTS_MAX {
        match Client::connect(&context.paths.socket(), options.clone()).await {
            Ok(connected) => return Some(connected),
            Err(_) => tokio::time::sleep(RECONNECT_PAUSE).await,
        }
    }
    None
}

/// Connects, and starts a daemon first when none runs. Never from inside a run: its environment names the
/// places of the daemon that runs it, so an agent that calls `ostler` talks to that daemon, or to none.
pub(crate) async fn connect_or_start(context: &Context) -> Result<(Client, Updates), Failure> {
    let socket = context.paths.socket();
    match Client::connect(&socket, ConnectOptions::default()).await {
        Err(ClientError::Unreachable { source, .. }) if is_absent(&source) => {}
        other => return other.map_err(failure),
    }
    if ostler_supervise::inside_a_run() {
        return Err(Failure::new(
            Code::Unreachable,
            "no daemon runs, and none is started from inside a run",
        )
        .hint("start it outside of the agent, with `ostler daemon`"));
    }
    start(context).await
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}

async fn start(context: &Context) -> Result<(Client, Updates), Failure> {
    let log = log_file(context)?;
    let said_before = std::fs::metadata(&log).map_or(0, |meta| meta.len());
    let mut daemon = spawn(context, &log)?;
    let deadline = Instant::now() + START_DEADLINE;
    loop {
        let error = match Client::connect(&context.paths.socket(), ConnectOptions::default()).await
        {
            Ok(connected) => return Ok(connected),
            Err(error) => error,
        };
        let is_coming =
            matches!(&error, ClientError::Unreachable { source, .. } if is_absent(source));
        if !is_coming || Instant::now() >= deadline {
            return Err(not_started(context, &log, said_before, error));
        }
        match daemon.try_wait() {
            Ok(None) => {}
            // Another daemon has the place: one that another command has just started, and that will
            // answer, or one that is about to leave.
            Ok(Some(status)) if status.code() == Some(Code::Refused as i32) => {
                tokio::time::sleep(RESPAWN_PAUSE).await;
                daemon = spawn(context, &log)?;
            }
            Ok(Some(_)) | Err(_) => return Err(not_started(context, &log, said_before, error)),
        }
        tokio::time::sleep(START_RETRY).await;
    }
}

fn not_started(
    context: &Context,
    log: &camino::Utf8Path,
    said_before: u64,
    error: ClientError,
) -> Failure {
    let said = std::fs::read(log).unwrap_or_default();
    let said = said.get(usize::try_from(said_before).unwrap_or(0)..).unwrap_or(&said);
    let said = String::from_utf8_lossy(said);
    let failure = Failure::new(
        Code::Unreachable,
        format!("no daemon could be started for {}", context.paths.runtime_dir),
    );
    let (reason, hint) = last_error(&said);
    let failure = match reason {
        Some(reason) => failure.because(reason),
        None => failure.because(error),
    };
    failure.hint(match hint {
        Some(hint) => format!("{hint} (the daemon's log is {log})"),
        None => format!("see {log}, or run `ostler daemon` in the foreground"),
    })
}

/// The causes and the hint of the last error in a daemon's log, else its last line.
fn last_error(log: &str) -> (Option<String>, Option<&str>) {
    let Some((_, error)) = log.rsplit_once("error: ") else {
        return (log.lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned), None);
    };
    let causes: Vec<_> =
        error.lines().filter_map(|line| line.trim_start().strip_prefix("caused by: ")).collect();
    let heading = error.lines().next().unwrap_or_default().to_owned();
    let reason = if causes.is_empty() { heading } else { causes.join(": ") };
    (Some(reason), error.lines().find_map(|line| line.strip_prefix("hint: ")))
}

fn log_file(context: &Context) -> Result<camino::Utf8PathBuf, Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let dir = &context.paths.state_dir;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| {
        Failure::new(Code::Unreachable, format!("the state directory {dir} could not be made"))
            .because(error)
    })?;
    Ok(dir.join("daemon.log"))
}

/// Starts `ostler daemon` in a session of its own, so that it outlives this terminal.
fn spawn(context: &Context, log: &camino::Utf8Path) -> Result<std::process::Child, Failure> {
    let failure = |error: std::io::Error| {
        Failure::new(Code::Unreachable, "the daemon could not be started").because(error)
    };
    let program = std::env::current_exe().map_err(failure)?;
    // One generation is kept; what is written at the end of it says how a start failed.
    if std::fs::metadata(log).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        let _ = std::fs::rename(log, log.with_extension("log.old"));
    }
    let errors =
        File::options().append(true).create(true).mode(0o600).open(log).map_err(failure)?;
    let home = context.paths.home.as_deref().unwrap_or(camino::Utf8Path::new("/"));
    Command::new(program)
        .args(["daemon", "--log-file", log.as_str(), "--background"])
        .current_dir(home)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .map_err(failure)
}

/// What to do about a refusal, by the beginning of its text: the wire has no other name for it
/// (docs/protocol.md, "Errors").
const HINTS: &[(&str, &str)] = &[
    ("task id already exists", "look at it with `ostler task show`, or choose another --id"),
    ("task id is unknown", "`ostler task list --all` shows every task"),
    ("task is not active", "it has ended; `ostler task show` says how"),
    ("task is being cancelled", "wait for its end, with `ostler task logs -f`"),
    ("task failed: some of its processes could not be ended", "`ostler status` shows what is left"),
    ("active tasks cannot be retried", "wait for its end, or end it with `ostler task cancel`"),
    ("completed tasks cannot be retried", "submit it again with `ostler run`"),
    ("task input is unavailable after daemon restart", "submit it again with `ostler run`"),
    ("task has no attempts left", "submit it again with `ostler run`"),
    ("task scheduler command queue is full", "the daemon is busy; try again in a moment"),
    (
        "live task set is full",
        "`ostler status` shows them; wait for some, or raise `tasks.live_max`",
    ),
    ("limit must be between", "write a number in that range: ostler task limit 4"),
    ("daemon is shutting down", "when it is gone, `ostler run` starts another"),
    ("the disk is full", "run directories take the most space; `runs.bytes_max` bounds them"),
    ("the journal's reserve is taken", "`ostler status` shows the tasks that are not finished"),
    ("the journal has failed", "look at the disk (`dmesg`), then restart the daemon"),
    ("cwd must be an absolute path", "name the directory with `-C`"),
];

/// The same for refusals that begin with a name.
const HINTS_WITHIN: &[(&str, &str)] = &[
    (" is unknown; known agents: ", "the daemon is of another version: restart it"),
    (" has no permissions `", "choose one of these with `--permissions`"),
    (" cannot run with permissions `", "choose another mode with `--permissions`"),
];

fn hint_of(refusal: &str) -> Option<&'static str> {
    let begins = HINTS.iter().find(|(text, _)| refusal.starts_with(text));
    begins
        .or_else(|| HINTS_WITHIN.iter().find(|(text, _)| refusal.contains(text)))
        .map(|hint| hint.1)
}

/// A client's error with what to do about it.
pub(crate) fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Refused(text) => {
            let hint = hint_of(&text);
            let failure = Failure::new(Code::Refused, text);
            match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        }
        error @ ClientError::Unreachable { .. } => {
            Failure::new(Code::Unreachable, "the daemon is not reachable")
                .because(error)
                .hint("start one with `ostler daemon`, or let `ostler run` start it")
        }
        error @ (ClientError::Closed(_)
        | ClientError::Version { .. }
        | ClientError::Protocol(_)) => {
            Failure::new(Code::Unreachable, "the daemon did not answer as expected")
                .because(error)
                .hint(
                    "look at `ostler task list` before you repeat a command: it may have been done",
                )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are those of the daemon's own rules: when one changes, its hint is missed here.
    #[test]
    fn every_refusal_of_the_machine_says_what_to_do() {
        use ostler_core::task::Refusal;
        for refusal in [
            Refusal::AlreadyExists,
            Refusal::UnknownTask,
            Refusal::NotActive,
            Refusal::ActiveRetry,
            Refusal::CompletedRetry,
            Refusal::InputUnavailable,
            Refusal::CommandQueueFull,
            Refusal::LimitOutOfRange,
            Refusal::LiveSetFull { live_tasks_max: 1_000 },
            Refusal::ShuttingDown,
            Refusal::KillFailed,
            Refusal::TooManyCancels,
            Refusal::AttemptsExhausted,
        ] {
            assert!(hint_of(&refusal.to_string()).is_some(), "{refusal}");
        }
        let permissions = ostler_agents::LaunchError::Permissions {
            agent: "claude_code",
            asked: "ask",
            why: "nobody is there",
        };
        assert!(hint_of(&permissions.to_string()).is_some(), "{permissions}");
        assert_eq!(hint_of("something new"), None);
    }

    #[test]
    fn the_last_error_of_a_log_is_told_with_its_causes_and_its_hint() {
        let log = "2026 INFO serving\nerror: the daemon cannot start\n  caused by: a\n  caused by: b\nhint: c\n";
        assert_eq!(last_error(log), (Some("a: b".to_owned()), Some("c")));
        assert_eq!(last_error("error: alone\n"), (Some("alone".to_owned()), None));
        assert_eq!(last_error("one\ntwo\n\n"), (Some("two".to_owned()), None));
        assert_eq!(last_error(""), (None, None));
    }
}
