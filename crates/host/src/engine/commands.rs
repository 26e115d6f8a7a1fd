//! Commands of clients on their way into the machine, and the answers on their way back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ostler_core::id::{SessionId, TaskId};
use ostler_core::task::{self, Input, Permissions, RequestId, TaskSpec};
use ostler_proto::framed::{self, Command};
use tokio::sync::{mpsc, oneshot};

use super::feed::{Feed, Published, SharedTail};
use super::{ADMISSION_BYTES, COMMANDS_PER_TURN_MAX, Engine};
use crate::runner::TaskInput;

/// Refused admissions name the cause and the way out.
const DISK_FULL: &str = "the disk is full: the journal has no room for new work; free space and submit again (running tasks go on)";

/// The disk has space, but the journal's own reserve is spoken for.
const RESERVED: &str = "the journal's reserve is taken by the tasks that are not finished; submit again when some are, or raise journal.segment_bytes";

/// What left the live set can go nowhere, so the journal would only fill up.
const ARCHIVE_FAILED: &str =
    "the archive cannot be written; restart the daemon when the disk is well (running tasks go on)";

/// The text of a full command queue (runtime.md, "Commands").
pub(crate) const QUEUE_FULL: &str = "task scheduler command queue is full";

/// Success of a command, still in the engine's words.
#[derive(Debug)]
pub(crate) enum CommandReply {
    /// `list`; shared by all that were asked at the same moment.
    List(Arc<[Published]>),
    /// `submit`, `cancel`, `retry`: the wire's word for what happened, and the task.
    Task { state: framed::TaskState, task: Box<task::Task>, tail: Option<SharedTail> },
    /// `set_limit`.
    Limit(u8),
}

/// The way back to a client. Dropping it without an answer answers that the daemon is stopping.
pub(crate) struct Reply(Option<AnswerFn>);

type AnswerFn = Box<dyn FnOnce(Result<CommandReply, String>) + Send>;

impl Reply {
    pub(crate) fn new(answer: impl FnOnce(Result<CommandReply, String>) + Send + 'static) -> Self {
        Self(Some(Box::new(answer)))
    }

    pub(crate) fn send(mut self, result: Result<CommandReply, String>) {
        if let Some(answer) = self.0.take() {
            answer(result);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer(Err("daemon is shutting down".to_owned()));
        }
    }
}

/// One command of a client.
pub(crate) struct CommandRequest {
    pub(crate) command: Command,
    pub(crate) reply: Reply,
    /// Turns true when the client has gone; its command is then not executed.
    pub(crate) gone: Arc<AtomicBool>,
}

/// Reaches the engine.
#[derive(Debug)]
pub(crate) struct EngineHandle {
    commands: mpsc::Sender<CommandRequest>,
    feed: Arc<Feed>,
    shutdown: Option<oneshot::Sender<()>>,
    recovered: Option<oneshot::Receiver<()>>,
}

/// The part of the handle that connections share.
#[derive(Debug, Clone)]
pub(crate) struct EngineClient {
    commands: mpsc::Sender<CommandRequest>,
    pub(crate) feed: Arc<Feed>,
}

impl EngineHandle {
    pub(crate) fn new(
        commands: mpsc::Sender<CommandRequest>,
        feed: Arc<Feed>,
        shutdown: oneshot::Sender<()>,
        recovered: oneshot::Receiver<()>,
    ) -> Self {
        Self { commands, feed, shutdown: Some(shutdown), recovered: Some(recovered) }
    }

    pub(crate) fn client(&self) -> EngineClient {
        EngineClient { commands: self.commands.clone(), feed: Arc::clone(&self.feed) }
    }

    /// Becomes ready when the recovered state is durable and shown; for whoever asks first.
    pub(crate) fn recovered(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let recovered = self.recovered.take();
        async move {
            if let Some(recovered) = recovered {
                // An engine that has ended lets nobody in either.
                let _ = recovered.await;
            }
        }
    }

    /// Asks the engine to end: no admission, runs ended, everything flushed. Its `run` returns then.
    pub(crate) fn shut_down(&mut self) {
        if let Some(shutdown) = self.shutdown.take() {
            // The engine may have ended already.
            let _ = shutdown.send(());
        }
    }
}

impl EngineClient {
    /// Puts a command into the queue; a full queue answers at once.
    pub(crate) fn send(&self, request: CommandRequest) {
        match self.commands.try_send(request) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(request)) => {
                request.reply.send(Err(QUEUE_FULL.to_owned()))
            }
            Err(mpsc::error::TrySendError::Closed(request)) => drop(request),
        }
    }
}

impl Engine {
    pub(super) fn take_commands(&mut self, first: Option<CommandRequest>) {
        let mut next = first;
        for _ in 0..COMMANDS_PER_TURN_MAX {
            let Some(request) = next else { break };
            self.take_command(request);
            next = if self.pending.takes_more() { self.commands.try_recv().ok() } else { None };
        }
    }

    /// Executes a command, unless its client has gone while it waited.
    fn take_command(&mut self, request: CommandRequest) {
        let CommandRequest { command, reply, gone } = request;
        if gone.load(Ordering::Relaxed) {
            return;
        }
        if let Some(error) = &self.failed
            && !matches!(command, Command::List)
        {
            return reply.send(Err(format!(
                "the journal has failed and nothing can be recorded; restart the daemon ({error})"
            )));
        }
        match command {
            Command::List => self.pending.list(reply),
            // Whatever comes behind an admission that waits also waits: nothing is overtaken, and a
            // cancel finds its task.
            command if self.waits_behind_others(&command) || !self.admits(&command) => {
                self.hold(CommandRequest { command, reply, gone });
            }
            Command::Submit(submit) => self.submit(submit, reply),
            Command::Cancel { task_id } => {
                self.on_task(&task_id, reply, |request, task| Input::Cancel { request, task })
            }
            Command::Retry { task_id } => {
                self.on_task(&task_id, reply, |request, task| Input::Retry { request, task })
            }
            Command::SetLimit { limit } => {
                let request = self.register(reply);
                self.step(Input::SetLimit { request, limit });
            }
            Command::Approval { task_id, .. } => {
                let refusal = match TaskId::new(&task_id) {
                    Ok(task) => self.state.approval_refusal(&task).to_string(),
                    Err(error) => format!("task_id {error}"),
                };
                self.pending.refusal(reply, refusal);
            }
        }
    }

    fn on_task(
        &mut self,
        task_id: &str,
        reply: Reply,
        input: impl FnOnce(RequestId, TaskId) -> Input,
    ) {
        match TaskId::new(task_id) {
            Ok(task) => {
                let request = self.register(reply);
                self.step(input(request, task));
            }
            Err(error) => reply.send(Err(format!("task_id {error}"))),
        }
    }

    fn submit(&mut self, submit: framed::Submit, reply: Reply) {
        let (spec, input) = match split(submit) {
            Ok(parts) => parts,
            Err(error) => return reply.send(Err(error)),
        };
        if let Err(error) = self.runner.admit(&spec, &input) {
            return reply.send(Err(error));
        }
        let known_elsewhere = self.archive.contains(&spec.id);
        let id = spec.id.clone();
        // An id that exists keeps the input it has.
        let new = !known_elsewhere && self.state.get(&id).is_none();
        if new {
            self.inputs.insert(id.clone(), Arc::new(input));
        }
        let request = self.register(reply);
        self.step(Input::Submit { request, spec, known_elsewhere });
        if new && self.state.get(&id).is_none() {
            self.inputs.remove(&id);
        }
    }

    fn register(&mut self, reply: Reply) -> RequestId {
        self.next_request += 1;
        self.requests.insert(self.next_request, reply);
        RequestId(self.next_request)
    }

    pub(super) fn answer(&mut self, request: u64, result: Result<task::Reply, task::Refusal>) {
        let Some(reply) = self.requests.remove(&request) else {
            return;
        };
        reply.send(match result {
            Ok(task::Reply::Limit(limit)) => Ok(CommandReply::Limit(limit)),
            Ok(task::Reply::Submitted(task)) => {
                Ok(self.task_reply(framed::TaskState::Submitted, task))
            }
            Ok(task::Reply::Cancelled(task)) => {
                Ok(self.task_reply(framed::TaskState::Cancelled, task))
            }
            Ok(task::Reply::Queued(task)) => Ok(self.task_reply(framed::TaskState::Queued, task)),
            Err(refusal) => Err(refusal.to_string()),
        });
    }

    /// A task that has settled is answered as it is shown: with its last lines.
    fn task_reply(&self, state: framed::TaskState, task: task::Task) -> CommandReply {
        let shown = self.feed.task(&task.spec.id).filter(|shown| {
            task.status.is_settled()
                && (shown.task.status, shown.task.attempt) == (task.status, task.attempt)
        });
        let (task, tail) = shown.map_or((task, None), |shown| (shown.task, shown.tail));
        CommandReply::Task { state, task: Box::new(task), tail }
    }

    pub(super) fn refuse(&mut self, request: u64, error: &str) {
        if let Some(reply) = self.requests.remove(&request) {
            reply.send(Err(format!(
                "the journal has failed and nothing can be recorded; restart the daemon ({error})"
            )));
        }
    }

    /// Whether new work can be taken now: the archive can be asked and written, and the journal has room for
    /// it and for the ends of everything that is not finished.
    fn admits(&self, command: &Command) -> bool {
        let has_room = || !self.standing.archive_failed && self.has_room(ADMISSION_BYTES);
        match command {
            // Whoever repeats a submission learns that it arrived, also when the disk is full.
            Command::Submit(submit) => {
                self.archive_ready && (has_room() || self.is_known(&submit.task_id))
            }
            Command::Retry { .. } | Command::SetLimit { .. } => has_room(),
            _ => true,
        }
    }

    /// Whether others wait that this command could overtake. A cancel of a task that is there overtakes nothing
    /// it depends on, and whoever asks for it may not wait for its answer.
    fn waits_behind_others(&self, command: &Command) -> bool {
        let cancels = |command: &Command| match command {
            Command::Cancel { task_id } => {
                TaskId::new(task_id).is_ok_and(|id| self.state.get(&id).is_some())
            }
            _ => false,
        };
        !self.held.is_empty() && !cancels(command)
    }

    fn is_known(&self, task_id: &str) -> bool {
        TaskId::new(task_id)
            .is_ok_and(|id| self.state.get(&id).is_some() || self.archive.contains(&id))
    }

    /// An admission waits for the answer to one question: the archive's index, or whether the disk
    /// has room. As many wait as may queue.
    fn hold(&mut self, request: CommandRequest) {
        if self.held.len() >= self.command_queue_max {
            return request.reply.send(Err(QUEUE_FULL.to_owned()));
        }
        self.held.push_back(request);
    }

    /// Asks the disk when admissions wait for room. Called when the store is idle.
    pub(super) fn ask_for_room(&mut self) {
        if self.archive_ready && !self.held.is_empty() && !self.asked_for_room {
            self.asked_for_room = true;
            self.store.ensure_room();
        }
    }

    pub(super) fn room_answered(&mut self, result: Result<(), String>, standing: super::Standing) {
        self.standing = standing;
        self.asked_for_room = false;
        let full = match &result {
            _ if standing.archive_failed => ARCHIVE_FAILED.to_owned(),
            Ok(()) => RESERVED.to_owned(),
            Err(error) => {
                tracing::warn!(%error, "no room for new work");
                format!("{DISK_FULL} [{error}]")
            }
        };
        for request in std::mem::take(&mut self.held) {
            if self.admits(&request.command) {
                self.take_command(request);
            } else {
                request.reply.send(Err(full.clone()));
            }
        }
    }

    pub(super) fn retry_held(&mut self) {
        for request in std::mem::take(&mut self.held) {
            self.take_command(request);
        }
    }

    pub(super) fn refuse_held(&mut self, error: &str) {
        for request in std::mem::take(&mut self.held) {
            request.reply.send(Err(error.to_owned()));
        }
    }
}

/// Parts a submission into what is journaled and what is only remembered.
fn split(submit: framed::Submit) -> Result<(TaskSpec, TaskInput), String> {
    let session = submit
        .session_id
        .as_deref()
        .map(SessionId::new)
        .transpose()
        .map_err(|error| format!("session_id {error}"))?;
    let spec = TaskSpec {
        id: TaskId::new(&submit.task_id).map_err(|error| format!("task_id {error}"))?,
        session,
        cwd: submit.cwd,
        provider: submit.provider,
        model: submit.model,
        effort: submit.effort,
        worktree: submit.worktree,
        agent: submit.agent,
        permissions: submit.permissions.map(permissions),
        timeout: submit.timeout_seconds.map(std::time::Duration::from_secs),
        budget_micros: submit.budget_micros,
    };
    Ok((spec, TaskInput { prompt: submit.prompt, argv: submit.argv, env: submit.env }))
}

fn permissions(wire: framed::Permissions) -> Permissions {
    match wire {
        framed::Permissions::Safe => Permissions::Safe,
        framed::Permissions::Ask => Permissions::Ask,
        framed::Permissions::Full => Permissions::Full,
    }
}
