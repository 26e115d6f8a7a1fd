//! `ostler run`: submit a task, follow it, and end as it ended.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::process::ExitCode;
use std::time::Duration;

use ostler_core::id::{RunId, TaskId};
use ostler_core::task::Refusal;
use ostler_host::client::{Client, ClientError, Update, Updates};
use ostler_host::paths::AGENT_CLI_ENV;
use ostler_proto::framed::command::PROMPT_CHARS_MAX;
use ostler_proto::framed::{Permissions, Submit, Task, TaskStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::cancel::{self, CancelOrder};
use super::logs::{Form, Printer};
use crate::args::{PermissionsArg, RunArgs};
use crate::context::{Context, block_on};
use crate::daemon_client;
use crate::error::{self, Code, Failure};
use crate::output;

/// The longest prompt that is read from standard input; the protocol's own bound.
const PROMPT_BYTES_MAX: u64 = 512 * 1024;

/// How long a pipe may take to say its first byte when nobody asked to wait for it.
const PIPE_WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// After this time in the queue, the person is told.
const WAITING_AFTER: Duration = Duration::from_secs(1);

/// Turns of printing that a cancelled run still gets.
const CANCELLED_TURNS_MAX: u32 = 2;

/// How often the output is looked at while the run goes on.
const POLL: Duration = Duration::from_millis(20);

pub(crate) fn perform(context: &Context, args: &RunArgs) -> Result<ExitCode, Failure> {
    let submit = submission(context, args)?;
    block_on(run(context, args, submit))
}

fn submission(context: &Context, args: &RunArgs) -> Result<Submit, Failure> {
    let named = agent_of(args)?;
    let is_command = named.as_deref() == Some("command");
    let prompt = prompt(args, is_command)?;
    let needs_name = args.model.is_some() && args.provider.is_none()
        || prompt.chars().count() > PROMPT_CHARS_MAX;
    let agent = named.or_else(|| needs_name.then(|| default_agent(context, args)).flatten());
    let cwd = args.cwd.canonicalize_utf8().map_err(|error| {
        Failure::new(Code::Usage, format!("the directory {} cannot be used", args.cwd))
            .because(error)
    })?;
    if !cwd.is_dir() {
        return Err(Failure::new(Code::Usage, format!("{cwd} is not a directory")));
    }
    let provider = provider(args, agent.as_deref())?;
    Ok(Submit {
        task_id: args.id.clone().map_or_else(new_task_id, Ok)?,
        prompt,
        cwd: cwd.into_string(),
        session_id: args.resume.clone(),
        provider,
        model: args.model.clone(),
        effort: args.effort.clone(),
        worktree: args.worktree,
        agent,
        argv: args.program.clone(),
        env: environment(context),
        timeout_seconds: args.timeout,
        budget_micros: args.budget,
        permissions: args.permissions.map(|mode| match mode {
            PermissionsArg::Safe => Permissions::Safe,
            PermissionsArg::Ask => Permissions::Ask,
            PermissionsArg::Full => Permissions::Full,
        }),
    })
}

/// The agent's canonical id. Without `-a`, a program after `--` means `command`.
fn agent_of(args: &RunArgs) -> Result<Option<String>, Failure> {
    let Some(name) = &args.agent else {
        return Ok((!args.program.is_empty()).then(|| "command".to_owned()));
    };
    let agent = ostler_agents::find(name).ok_or_else(|| {
        let known: Vec<_> = ostler_agents::REGISTRY.iter().map(|agent| agent.id()).collect();
        Failure::new(Code::Usage, format!("agent `{name}` is unknown"))
            .hint(format!("known agents: {}", known.join(", ")))
    })?;
    match (agent.id(), args.program.is_empty()) {
        ("command", true) => Err(Failure::new(Code::Usage, "there is no program to run")
            .hint("write it after `--`: ostler run -a command -- make test")),
        ("command", false) | (_, true) => Ok(Some(agent.id().to_owned())),
        (id, false) => {
            Err(Failure::new(Code::Usage, format!("agent `{id}` takes a prompt, not a program"))
                .hint("use `-a command` to run a program"))
        }
    }
}

/// The agent that the daemon would choose, where it is one that can be named: with a name the wire takes a
/// model of the agent's own provider, and a longer prompt. The order is the daemon's (runtime.md, "Where we
/// go further").
fn default_agent(context: &Context, args: &RunArgs) -> Option<String> {
    let path = context.env.get_os("PATH");
    let on_path = |name| ostler_agents::find_program(name, path, args.cwd.as_std_path()).is_some();
    if context.env.get_os(AGENT_CLI_ENV).is_some() || on_path("agent-cli") {
        return None;
    }
    let configured = super::daemon::config(context).ok().and_then(|config| config.default_agent);
    configured.or_else(|| on_path("claude").then(|| "claude_code".to_owned()))
}

/// The wire wants provider and model together; an agent that has one provider is not asked for it.
fn provider(args: &RunArgs, agent: Option<&str>) -> Result<Option<String>, Failure> {
    match (&args.provider, &args.model, agent) {
        (Some(provider), _, _) => Ok(Some(provider.clone())),
        (None, None, _) => Ok(None),
        (None, Some(_), Some("claude_code")) => Ok(Some("anthropic".to_owned())),
        (None, Some(_), _) => {
            Err(Failure::new(Code::Usage, "a model needs its agent or its provider")
                .hint("add `-a claude`, or `--provider NAME`"))
        }
    }
}

fn new_task_id() -> Result<String, Failure> {
    let mut random = [0_u8; 5];
    getrandom::fill(&mut random).map_err(|error| {
        Failure::new(Code::Failed, "no task id could be made")
            .because(std::io::Error::other(error.to_string()))
    })?;
    let seconds = jiff::Timestamp::now().as_second();
    let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("t{seconds:x}-{random}"))
}

fn prompt(args: &RunArgs, is_command: bool) -> Result<String, Failure> {
    match args.prompt.as_deref() {
        Some("-") => read_stdin(),
        Some(prompt) => Ok(prompt.to_owned()),
        None if is_command && std::io::stdin().is_terminal() => Ok(String::new()),
        None if is_command => read_piped(),
        None => Err(Failure::new(Code::Usage, "there is no prompt")
            .hint("write it as an argument, or pipe it in with `-`: ostler run -")),
    }
}

/// What is piped into `run -a command` is the program's input. A terminal is none, and a pipe that
/// somebody left open and writes nothing to is not waited for: `-` waits.
fn read_piped() -> Result<String, Failure> {
    use rustix::fs::FileType;
    let stdin = std::io::stdin();
    let kind = rustix::fs::fstat(&stdin).map(|stat| FileType::from_raw_mode(stat.st_mode));
    match kind {
        Ok(FileType::RegularFile) => read_stdin(),
        Ok(FileType::Fifo | FileType::Socket) if speaks_within(&stdin, PIPE_WAIT) => read_stdin(),
        Ok(FileType::Fifo | FileType::Socket) => {
            output::note("nothing came from standard input; write `-` before `--` to wait for it");
            Ok(String::new())
        }
        _ => Ok(String::new()),
    }
}

/// Whether there is something to read, or the end.
fn speaks_within(stdin: &std::io::Stdin, wait: Timespec) -> bool {
    let mut fds = [PollFd::new(stdin, PollFlags::IN)];
    poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
}

fn read_stdin() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    std::io::stdin().take(PROMPT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| {
        Failure::new(Code::Usage, "the prompt could not be read from standard input").because(error)
    })?;
    if bytes.len() as u64 > PROMPT_BYTES_MAX {
        return Err(Failure::new(
            Code::Usage,
            format!("the prompt is longer than {PROMPT_BYTES_MAX} bytes"),
        )
        .hint("put it into a file and tell the agent to read it"));
    }
    String::from_utf8(bytes)
        .map_err(|error| Failure::new(Code::Usage, "the prompt is not UTF-8").because(error))
}

/// This shell's environment, as much of it as may travel; the daemon passes on what its allowlist
/// has.
fn environment(context: &Context) -> BTreeMap<String, String> {
    /// Variables beyond it are left out; a frame must hold them all beside the prompt.
    const ENV_BYTES_MAX: usize = 128 * 1024;
    let mut left = ENV_BYTES_MAX;
    context
        .text_env()
        .filter(|(key, value)| {
            let bytes = key.len() + value.len() + 2;
            let fits = bytes <= left && !key.is_empty();
            if fits {
                left -= bytes;
            }
            fits
        })
        .collect()
}

async fn run(context: &Context, args: &RunArgs, submit: Submit) -> Result<ExitCode, Failure> {
    let (client, updates) = daemon_client::connect_or_start(context).await?;
    let id = submit.task_id.clone();
    let task = match client.submit(submit).await {
        Ok(result) => result.task,
        Err(error) => return Err(refused(args, error)),
    };
    if args.detach {
        return detached(args, &task);
    }
    let mut follow = Follow {
        context,
        client,
        updates,
        id,
        json: args.json,
        printer: None,
        shown: None,
        told_waiting: false,
        is_cancelling: false,
        order: None,
    };
    follow.show(&task)?;
    follow.until_settled(task).await
}

fn refused(args: &RunArgs, error: ClientError) -> Failure {
    let is_taken =
        matches!(&error, ClientError::Refused(text) if *text == Refusal::AlreadyExists.to_string());
    let failure = daemon_client::failure(error);
    match &args.id {
        Some(id) if is_taken => {
            failure.hint(format!("look at it with `ostler task show {id}`, or choose another --id"))
        }
        _ => failure,
    }
}

fn detached(args: &RunArgs, task: &Task) -> Result<ExitCode, Failure> {
    if args.json {
        output::json_line(&TaskLine { r#type: "task", task })?;
    } else {
        output::line(&task.task_id)?;
        output::note(&format!("look in with `ostler task logs -f {}`", task.task_id));
    }
    Ok(Code::Success.into())
}

#[derive(Serialize)]
struct TaskLine<'a> {
    r#type: &'static str,
    task: &'a Task,
}

/// The last line of `run --json`.
#[derive(Serialize)]
struct ResultLine<'a> {
    r#type: &'static str,
    status: &'static str,
    task_id: &'a str,
    session_id: Option<&'a str>,
    text: Option<&'a str>,
    usage: Option<ostler_proto::framed::Usage>,
    cost_micros: Option<ostler_proto::framed::CostMicros>,
    failure: Option<&'a ostler_proto::framed::Failure>,
    receipt: Option<&'a ostler_proto::framed::Receipt>,
}

struct Follow<'a> {
    context: &'a Context,
    client: Client,
    updates: Updates,
    id: String,
    json: bool,
    printer: Option<Printer>,
    shown: Option<Task>,
    told_waiting: bool,
    is_cancelling: bool,
    order: Option<CancelOrder>,
}

impl Follow<'_> {
    async fn until_settled(&mut self, first: Task) -> Result<ExitCode, Failure> {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| {
            Failure::new(Code::Failed, "signals cannot be received").because(error)
        })?;
        let mut task = first;
        let waiting_at = tokio::time::Instant::now() + WAITING_AFTER;
        while !task.status.is_settled() {
            tokio::select! {
                biased;
                _ = interrupt.recv() => {
                    if let Some(order) = self.order.take() {
                        return order.leave(&self.id).await;
                    }
                    output::note("cancelling; press Ctrl+C again to leave it to the daemon");
                    self.cancel();
                }
                answer = CancelOrder::answered(&mut self.order) => self.cancel_answered(answer),
                update = self.updates.next() => match self.or_reconnected(update).await? {
                    Some(Update::Task { task: changed, .. }) if changed.task_id == self.id => {
                        task = *changed;
                        self.show(&task)?;
                    }
                    Some(Update::Snapshot(snapshot)) => {
                        if let Some(found) = snapshot.tasks.into_iter().find(|task| task.task_id == self.id) {
                            task = found;
                            self.show(&task)?;
                        }
                    }
                    Some(_) | None => {}
                },
                () = tokio::time::sleep(POLL), if task.status == TaskStatus::Running => {}
                () = tokio::time::sleep_until(waiting_at), if task.status == TaskStatus::Queued && !self.told_waiting => self.tell_waiting(),
            }
            self.print_some(&task)?;
        }
        self.print_rest(&mut interrupt).await?;
        self.finish(&task)
    }

    /// A lost connection is made again, with the cursor of the last update: nothing is missed.
    async fn or_reconnected(
        &mut self,
        update: Result<Option<Update>, ClientError>,
    ) -> Result<Option<Update>, Failure> {
        let error = match update {
            Ok(Some(update)) => return Ok(Some(update)),
            Ok(None) => ClientError::Closed("it ended".to_owned()),
            Err(error) => error,
        };
        match daemon_client::reconnect(self.context, self.updates.last_applied()).await {
            Some((client, updates)) => {
                (self.client, self.updates) = (client, updates);
                if self.is_cancelling {
                    // The order may have been lost with the connection; to cancel twice does no harm.
                    self.cancel();
                }
                Ok(None)
            }
            None => Err(Failure::new(Code::Unreachable, "the daemon is gone")
                .because(error)
                .hint(format!("look at the task later with `ostler task show {}`", self.id))),
        }
    }

    fn cancel(&mut self) {
        self.is_cancelling = true;
        self.order = Some(CancelOrder::send(&self.client, &self.id));
    }

    /// The end of the task comes as an event, and a lost connection as the updates' error. What was
    /// refused is told, unless the task has just ended by itself; the next Ctrl+C tries again.
    fn cancel_answered(&mut self, answer: Result<(), ClientError>) {
        let Err(error) = answer else { return };
        if matches!(error, ClientError::Closed(_)) || cancel::is_too_late(&error) {
            return;
        }
        (self.is_cancelling, self.order) = (false, None);
        error::tell(&daemon_client::failure(error));
    }

    /// Shows a change of state once, however often it is told: as an answer, in a snapshot, as an event.
    fn show(&mut self, task: &Task) -> Result<(), Failure> {
        let change = Task { log_tail: Vec::new(), ..task.clone() };
        if self.shown.as_ref().is_some_and(|shown| is_same_state(shown, &change)) {
            return Ok(());
        }
        if self.json {
            output::json_line(&TaskLine { r#type: "task", task: &change })?;
        }
        if task.status != TaskStatus::Queued && self.printer.is_none() {
            self.open_printer(task)?;
        }
        self.shown = Some(change);
        Ok(())
    }

    fn tell_waiting(&mut self) {
        self.told_waiting = true;
        if !self.json {
            output::note(
                "queued; it starts when a place is free (`ostler status` shows what runs)",
            );
        }
    }

    fn open_printer(&mut self, task: &Task) -> Result<(), Failure> {
        let id = TaskId::new(&task.task_id).map_err(|error| {
            Failure::new(Code::Bug, "the daemon's task id is none").because(error)
        })?;
        let dir = self.context.paths.run_dir(&RunId { task: id, attempt: task.attempt });
        // Not there yet, or never: a run that could not be prepared has none.
        if matches!(ostler_supervise::rundir::read_run(&dir), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
        {
            return Ok(());
        }
        let form = if self.json { Form::Json } else { Form::Readable };
        self.printer = Some(Printer::open(&dir, form)?);
        Ok(())
    }

    /// Prints some of what is there. The run's directory may be made after the task is said to run: it is
    /// looked for as long as that runs.
    fn print_some(&mut self, task: &Task) -> Result<(), Failure> {
        if self.printer.is_none() && task.status == TaskStatus::Running {
            self.open_printer(task)?;
        }
        match &mut self.printer {
            Some(printer) => printer.print_some().map(drop),
            None => Ok(()),
        }
    }

    /// Prints what the run still printed. Whoever pressed Ctrl+C does not want gigabytes of it.
    async fn print_rest(&mut self, interrupt: &mut Signal) -> Result<(), Failure> {
        let Some(printer) = &mut self.printer else { return Ok(()) };
        let mut turns = 0;
        while printer.print_some()? {
            turns += 1;
            let is_interrupted = tokio::select! {
                biased;
                _ = interrupt.recv() => true,
                () = std::future::ready(()) => false,
            };
            if is_interrupted || (self.is_cancelling && turns >= CANCELLED_TURNS_MAX) {
                output::note(&format!("there is more: `ostler task logs {}`", self.id));
                return Ok(());
            }
        }
        printer.finish()
    }

    fn finish(&mut self, task: &Task) -> Result<ExitCode, Failure> {
        let (word, colour) = output::status_word(task.status);
        if self.json {
            let receipt = task.receipt.as_ref();
            output::json_line(&ResultLine {
                r#type: "result",
                status: word,
                task_id: &task.task_id,
                session_id: receipt
                    .and_then(|receipt| receipt.session_id.as_deref())
                    .or(task.session_id.as_deref()),
                text: receipt.and_then(|receipt| receipt.text.as_deref()),
                usage: receipt.and_then(|receipt| receipt.usage),
                cost_micros: receipt.and_then(|receipt| receipt.cost_micros),
                failure: task.failure.as_ref(),
                receipt,
            })?;
        } else {
            let summary = output::summary(task);
            let separator = if summary.is_empty() { "" } else { ": " };
            output::note(&format!(
                "{colour}{word}{}{separator}{summary} · task {}",
                output::PLAIN,
                task.task_id
            ));
        }
        Ok(exit_code(task.status).into())
    }
}

/// Output alone also makes an event; what it changes is printed as output.
fn is_same_state(shown: &Task, task: &Task) -> bool {
    shown.status == task.status && shown.attempt == task.attempt
}

fn exit_code(status: TaskStatus) -> Code {
    match status {
        TaskStatus::Completed => Code::Success,
        TaskStatus::Cancelled => Code::Cancelled,
        TaskStatus::Interrupted => Code::Interrupted,
        TaskStatus::Failed | TaskStatus::Queued | TaskStatus::Running => Code::Failed,
    }
}
