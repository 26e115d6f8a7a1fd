//! The shipped runner: agent CLIs as supervised processes.
//!
//! Owns the way from a task to a program: which agent, which executable, which arguments and
//! environment, which run directory. The run itself is `attempt`'s; the process tree is the shim's.
//! Deliberately absent: rules about tasks, and the reading of any one agent (`agents`).

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use ostler_agents::{Agent, AgentEvent, Launch, LaunchRequest, LaunchStdin};
use ostler_core::clock::Clock;
use ostler_core::id::RunId;
use ostler_core::outcome::{Failure, FailureClass};
use ostler_core::task::TaskSpec;
use ostler_supervise::rundir::{self, Item, RunDir, RunRecord};
use ostler_supervise::{RunSpec, Stdin, StopPlan};
use sha2::{Digest, Sha256};

use super::attempt::{Attempt, Prepared, Preparing};
use super::retention::Retention;
use super::spare::SpareShim;
use super::version::Versions;
use super::{LogSink, RunFuture, RunOrder, StopSignal, TaskInput, TaskRunner};
use crate::{paths, redact};

/// What the shipped runner needs to know.
#[derive(Debug, Clone)]
pub struct RunnerSettings {
    /// `$OSTLER_HOME/runs`.
    pub runs_dir: Utf8PathBuf,
    /// The program whose `__shim` command supervises runs: this binary.
    pub shim_program: PathBuf,
    /// `HASKELL_AGENT_CLI`.
    pub agent_cli: Option<PathBuf>,
    /// The configured default agent.
    pub default_agent: Option<String>,
    /// Configured executables by agent id.
    pub programs: HashMap<String, PathBuf>,
    /// The daemon's own environment, for clients that send none.
    pub env: Vec<(String, String)>,
    /// Names of processes that may outlive a run.
    pub keep: Vec<String>,
    /// How long an agent may say nothing, by agent id; overrides the agent's own bound.
    pub silence: HashMap<String, Duration>,
    /// How long an agent has to exit after its own terminal statement.
    pub terminal_grace: Duration,
    /// What of a run's output stays on disk.
    pub kept: ostler_supervise::KeptBytes,
    /// All run directories together.
    pub runs_bytes_max: u64,
    /// How long a run directory is kept.
    pub runs_days_max: u64,
}

/// See the module's documentation.
#[derive(Clone)]
pub struct ProcessRunner {
    inner: Arc<Inner>,
}

struct Inner {
    settings: RunnerSettings,
    clock: Arc<dyn Clock>,
    versions: Versions,
    retention: Retention,
    spare: SpareShim,
    /// Runs that get ready while they are made durable.
    preparing: Mutex<HashMap<RunId, Preparing>>,
}

/// How long the processes of an interrupted run may take to be found and killed.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(10);

/// Lines of an interrupted run that are read back; the tail's own bound cuts them further.
const LAST_WORDS_LINES_MAX: usize = 500;

/// Bytes of output that are read for them.
const LAST_WORDS_BYTES_MAX: u64 = 256 * 1024;

/// Runs that may get ready and not be started; the machine starts at most its limit at once.
const PREPARING_MAX: usize = 64;

impl ProcessRunner {
    /// A runner for these settings.
    pub fn new(settings: RunnerSettings, clock: Arc<dyn Clock>) -> Self {
        let retention = Retention::new(
            settings.runs_dir.clone(),
            settings.runs_bytes_max,
            settings.runs_days_max,
        );
        let spare = SpareShim::new(settings.shim_program.clone());
        let inner = Inner {
            settings,
            clock,
            versions: Versions::default(),
            retention,
            spare,
            preparing: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Removes old runs and lets a supervisor wait for the first run. To be called inside a runtime, once the
    /// daemon has its endpoint and has recovered: a start that fails changes nothing.
    pub fn warm_up(&self) {
        self.inner.retention.sweep_soon();
        self.inner.refill_spare();
    }
}

impl TaskRunner for ProcessRunner {
    fn admit(&self, spec: &TaskSpec, input: &TaskInput) -> Result<(), String> {
        if !spec.cwd.starts_with('/') {
            return Err("cwd must be an absolute path".to_owned());
        }
        let Some(name) = &spec.agent else {
            return Ok(());
        };
        let Some(agent) = ostler_agents::find(name) else {
            let known: Vec<_> = ostler_agents::REGISTRY.iter().map(|agent| agent.id()).collect();
            return Err(format!("agent `{name}` is unknown; known agents: {}", known.join(", ")));
        };
        // The arguments are judged without looking at the machine; whether the program is there is
        // the task's own end.
        request(agent, spec, input, PathBuf::from("agent"))
            .and_then(|request| agent.launch(&request).map_err(|error| error.to_string()))
            .map(drop)
    }

    fn prepare(&self, order: &RunOrder) {
        let mut preparing = self.inner.preparing();
        if preparing.len() < PREPARING_MAX {
            preparing.insert(order.run.clone(), self.inner.get_ready(order));
        }
    }

    fn abandoned(&self, run: &RunId) -> Vec<String> {
        let dir = self.inner.settings.runs_dir.join(paths::run_dir_name(run));
        match rundir::read_run(&dir) {
            Ok(left) => {
                // Its shim ended it to the last process, but for those that are kept.
                if !left.exit.is_some_and(|exit| exit.empty) {
                    self.inner.end_what_is_left(&left.record.marker, &dir, run);
                }
                last_words(&dir, &left.record.agent)
            }
            Err(error) => {
                tracing::warn!(%run, %error, "an interrupted run left no readable directory");
                Vec::new()
            }
        }
    }

    fn run(&self, order: RunOrder, log: LogSink, stop: StopSignal) -> RunFuture {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let preparing = inner.preparing().remove(&order.run);
            let preparing = preparing.unwrap_or_else(|| inner.get_ready(&order));
            let attempt = Attempt {
                order,
                log,
                stop,
                settings: &inner.settings,
                clock: inner.clock.as_ref(),
                versions: &inner.versions,
            };
            let end = attempt.run(preparing).await;
            inner.retention.after_run(end.outcome.receipt.output_bytes);
            end
        })
    }
}

fn request<'a>(
    agent: &dyn Agent,
    spec: &'a TaskSpec,
    input: &'a TaskInput,
    executable: PathBuf,
) -> Result<LaunchRequest<'a>, String> {
    let permissions = spec.permissions.unwrap_or_else(|| agent.default_permissions());
    if !agent.permissions().contains(&permissions) {
        let known: Vec<_> = agent.permissions().iter().map(|mode| mode.as_str()).collect();
        return Err(format!(
            "agent `{}` has no permissions `{}`; it runs with: {}",
            agent.id(),
            permissions.as_str(),
            known.join(", ")
        ));
    }
    Ok(LaunchRequest {
        prompt: &input.prompt,
        argv: &input.argv,
        cwd: Utf8Path::new(&spec.cwd),
        resume: spec.session.as_ref().map(|session| session.as_str()),
        provider: spec.provider.as_deref(),
        model: spec.model.as_deref(),
        effort: spec.effort.as_deref(),
        worktree: spec.worktree,
        permissions,
        budget_micros: spec.budget_micros,
        is_root: rustix::process::geteuid().is_root(),
        executable,
    })
}

/// The place of a shim that a run has taken: when this is dropped, another comes to wait there. A run
/// drops it when its agent has started, and however else it ends.
pub(super) struct TakenSpare(Arc<Inner>);

impl Drop for TakenSpare {
    fn drop(&mut self) {
        if tokio::runtime::Handle::try_current().is_ok() {
            self.0.refill_spare();
        }
    }
}

impl Inner {
    fn preparing(&self) -> MutexGuard<'_, HashMap<RunId, Preparing>> {
        self.preparing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Off the daemon's thread: a working directory or a `PATH` on a mount that does not answer holds up
    /// its own run and nobody else.
    fn get_ready(self: &Arc<Self>, order: &RunOrder) -> Preparing {
        let (inner, order) = (Arc::clone(self), order.clone());
        tokio::task::spawn_blocking(move || inner.prepare(&order))
    }

    /// The shim of a daemon that died ends its run by itself; this is for shims that died too.
    fn end_what_is_left(&self, marker: &str, dir: &Utf8Path, run: &RunId) {
        let (marker, dir, run) = (marker.to_owned(), dir.to_owned(), run.to_string());
        tokio::spawn(async move {
            let swept = ostler_supervise::sweep(&marker, Some(&dir), None, SWEEP_TIME_MAX).await;
            if !swept.remaining.is_empty() {
                let left = swept.remaining.len();
                tracing::error!(%run, left, "processes of an interrupted run could not be killed");
            }
        });
    }

    fn refill_spare(self: &Arc<Self>) {
        let inner = Arc::clone(self);
        tokio::task::spawn_blocking(move || inner.spare.refill());
    }

    /// Everything up to the start of the agent: nothing of it matters when the start never comes.
    fn prepare(self: &Arc<Self>, order: &RunOrder) -> Result<Prepared, Failure> {
        let spec = &order.spec;
        let (agent, program) = self.resolve(order)?;
        let launch = request(agent, spec, &order.input, program.clone())
            .map_err(|message| Failure::new(FailureClass::PermissionDenied, message))
            .and_then(|request| agent.launch(&request).map_err(|error| error.failure()))?;
        let taken = TakenSpare(Arc::clone(self));
        let shim =
            self.spare.take().map_err(|error| spawn_failure("the run's supervisor", &error))?;
        let marker = shim.marker().to_owned();
        let run_dir = self.create_run_dir(order, agent, &program, &launch, &marker)?;
        let run_spec =
            self.run_spec(order, agent, &program, launch.clone(), marker, run_dir.path());
        let head_before = crate::git::head(Utf8Path::new(&spec.cwd));
        let silence = self.settings.silence.get(agent.id()).copied().or(launch.silence);
        // Told at once, so that it is ready when the intent is durable.
        let shim = shim
            .prepare(&run_spec)
            .map_err(|error| spawn_failure("the run's supervisor", &error))?;
        Ok(Prepared { shim, taken, run_spec, run_dir, agent, program, head_before, silence })
    }

    fn create_run_dir(
        &self,
        order: &RunOrder,
        agent: &dyn Agent,
        program: &Path,
        launch: &Launch,
        marker: &str,
    ) -> Result<RunDir, Failure> {
        let record = RunRecord {
            task_id: order.run.task.to_string(),
            attempt: order.run.attempt,
            agent: agent.id().to_owned(),
            program: program.to_string_lossy().into_owned(),
            version: ostler_supervise::rundir::LAYOUT_VERSION,
            argv: launch.public_args.iter().map(|arg| redact::line(arg).into_owned()).collect(),
            cwd: order.spec.cwd.clone(),
            prompt_bytes: order.input.prompt.len() as u64,
            prompt_sha256: hex(&Sha256::digest(order.input.prompt.as_bytes())),
            marker: marker.to_owned(),
            created_at_micros: self.clock.now().wall.as_micros(),
        };
        let name = paths::run_dir_name(&order.run);
        let failure = |error: std::io::Error| {
            Failure::new(
                FailureClass::Storage,
                format!("the run directory could not be made: {error}"),
            )
        };
        self.set_aside(&name).map_err(failure)?;
        let run_dir = RunDir::create(&self.settings.runs_dir, &name).map_err(failure)?;
        run_dir.write_record(&record).map_err(failure)?;
        Ok(run_dir)
    }

    /// A run directory of the same name belongs to a task that the archive has forgotten; its output
    /// stays until retention takes it.
    fn set_aside(&self, name: &str) -> std::io::Result<()> {
        let path = self.settings.runs_dir.join(name);
        let aside = self
            .settings
            .runs_dir
            .join(format!("{name}.old-{}", self.clock.now().wall.as_micros()));
        match std::fs::rename(path, aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn run_spec(
        &self,
        order: &RunOrder,
        agent: &dyn Agent,
        program: &Path,
        launch: Launch,
        marker: String,
        run_dir: &Utf8Path,
    ) -> RunSpec {
        let mut run_spec = RunSpec::new(
            run_dir.to_owned(),
            marker,
            program.as_os_str().to_owned(),
            Utf8PathBuf::from(&order.spec.cwd),
        );
        run_spec.args = launch.args;
        run_spec.env = self.environment(order, agent, &launch.env_set);
        run_spec.stdin = match launch.stdin {
            LaunchStdin::Null => Stdin::Null,
            LaunchStdin::Prompt(bytes) => Stdin::Bytes(bytes),
        };
        if launch.scrub && !order.input.prompt.trim().is_empty() {
            run_spec.scrub = vec![order.input.prompt.trim().as_bytes().to_vec()];
        }
        run_spec.stream_bytes_max = launch.stream_bytes_max;
        run_spec.kept = self.settings.kept;
        run_spec.stop = StopPlan {
            steps: launch
                .stop
                .iter()
                .map(|step| (step.signal, Duration::from_millis(step.grace_ms)))
                .collect(),
        };
        run_spec.keep = self.settings.keep.clone();
        run_spec
    }

    fn environment(
        &self,
        order: &RunOrder,
        agent: &dyn Agent,
        set: &[(String, String)],
    ) -> Vec<(OsString, OsString)> {
        let env = ostler_agents::environment_for(
            agent,
            order.input.env.clone(),
            self.settings.env.iter().cloned(),
        );
        let kept = env.into_iter().filter(|(key, _)| !set.iter().any(|(name, _)| name == key));
        let pwd = ("PWD".to_owned(), order.spec.cwd.clone());
        kept.filter(|(key, _)| key != "PWD")
            .chain(set.iter().cloned())
            .chain([pwd])
            .map(|(key, value)| (OsString::from(key), OsString::from(value)))
            .collect()
    }

    fn path_of(&self, order: &RunOrder) -> Option<OsString> {
        let own =
            || self.settings.env.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value);
        order.input.env.get("PATH").or_else(own).map(OsString::from)
    }

    /// The agent and the executable of a task, as runtime.md ("Where we go further", 5) orders them.
    fn resolve(&self, order: &RunOrder) -> Result<(&'static dyn Agent, PathBuf), Failure> {
        let cwd = Path::new(&order.spec.cwd);
        let path = self.path_of(order);
        let path = path.as_deref();
        if let Some(name) = &order.spec.agent {
            let agent = ostler_agents::find(name).ok_or_else(|| {
                Failure::new(FailureClass::NotInstalled, format!("agent `{name}` is unknown"))
            })?;
            return self.named(agent, order, path, cwd);
        }
        self.default_agent(path, cwd)
    }

    fn named(
        &self,
        agent: &'static dyn Agent,
        order: &RunOrder,
        path: Option<&OsStr>,
        cwd: &Path,
    ) -> Result<(&'static dyn Agent, PathBuf), Failure> {
        if let Some(first) = order.input.argv.first() {
            return match ostler_agents::find_program(first, path, cwd) {
                Some(program) => Ok((agent, program)),
                None if first.contains('/') => Ok((agent, cwd.join(first))),
                None => Err(Failure::new(
                    FailureClass::NotInstalled,
                    format!("program `{first}` was not found on PATH"),
                )),
            };
        }
        let mut looked = Vec::new();
        self.find(agent, path, cwd, &mut looked)
            .map(|program| (agent, program))
            .ok_or_else(|| not_found(agent.id(), &looked))
    }

    fn default_agent(
        &self,
        path: Option<&OsStr>,
        cwd: &Path,
    ) -> Result<(&'static dyn Agent, PathBuf), Failure> {
        let mut looked = Vec::new();
        let configured = self.settings.default_agent.as_deref();
        for name in ["agent_cli"].into_iter().chain(configured).chain(["claude_code"]) {
            let Some(agent) = ostler_agents::find(name) else {
                looked.push(format!("agent `{name}` (unknown)"));
                continue;
            };
            if let Some(program) = self.find(agent, path, cwd, &mut looked) {
                return Ok((agent, program));
            }
        }
        Err(not_found("agent", &looked))
    }

    /// The executable of an agent: configured, or one of its names on `PATH`.
    fn find(
        &self,
        agent: &dyn Agent,
        path: Option<&OsStr>,
        cwd: &Path,
        looked: &mut Vec<String>,
    ) -> Option<PathBuf> {
        if agent.id() == "agent_cli"
            && let Some(program) = &self.settings.agent_cli
        {
            // Named on purpose: it is this one or none, and the start says what is wrong with it.
            looked.push(format!("HASKELL_AGENT_CLI={}", program.display()));
            return Some(
                ostler_agents::find_program(&program.to_string_lossy(), path, cwd)
                    .unwrap_or_else(|| program.clone()),
            );
        }
        if let Some(program) = self.settings.programs.get(agent.id()) {
            looked.push(format!("{} (configured)", program.display()));
            return ostler_agents::find_program(&program.to_string_lossy(), path, cwd);
        }
        for name in agent.programs() {
            looked.push(format!("`{name}` on PATH"));
            if let Some(program) = ostler_agents::find_program(name, path, cwd) {
                return Some(program);
            }
        }
        None
    }
}

/// The last lines of an interrupted run, read back from its directory.
fn last_words(dir: &Utf8Path, agent: &str) -> Vec<String> {
    let Some(agent) = ostler_agents::find(agent) else { return Vec::new() };
    let mut lines = VecDeque::new();
    let mut keep = |events: &mut Vec<AgentEvent>| {
        for line in events.drain(..).filter_map(super::display_line) {
            if lines.len() >= LAST_WORDS_LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    };
    let (mut reader, mut events) = (agent.reader(), Vec::new());
    // What a run of gigabytes printed is not read from the start.
    let end = rundir::output_end(dir).unwrap_or_default();
    let Ok(mut output) = rundir::OutputReader::open(dir, end.saturating_sub(LAST_WORDS_BYTES_MAX))
    else {
        return Vec::new();
    };
    // The shim may still write; a bound keeps a start from following it.
    while output.position() < end
        && let Ok(Some(item)) = output.next_item()
    {
        if let Item::Chunk(chunk) = item {
            reader.push(super::agent_stream(chunk.stream), &chunk.bytes, &mut events);
            keep(&mut events);
        }
    }
    reader.finish_streams(&mut events);
    keep(&mut events);
    lines.into()
}

fn not_found(what: &str, looked: &[String]) -> Failure {
    Failure::new(
        FailureClass::NotInstalled,
        format!("no {what} can be run; looked for: {}", looked.join(", ")),
    )
}

fn spawn_failure(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(FailureClass::Spawn, format!("{what} could not be started: {error}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that prints many small pieces has a log of which a good part is headers.
    #[test]
    fn the_last_words_of_a_chatty_run_are_its_last_lines() {
        const LINES: u64 = 100_000;
        let scratch = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(scratch.path()).unwrap();
        std::fs::create_dir(dir.join("output")).unwrap();
        let (mut log, mut offset) = (Vec::new(), 0_u64);
        for n in 1..=LINES {
            let line = format!("line {n}\n");
            log.extend(b"OL\x01\x01");
            log.extend(u32::try_from(line.len()).unwrap().to_le_bytes());
            log.extend(0_i64.to_le_bytes());
            log.extend(offset.to_le_bytes());
            log.extend(line.as_bytes());
            offset += line.len() as u64;
        }
        std::fs::write(dir.join("output/00000000000000000000.log"), log).unwrap();
        let lines = last_words(dir, "command");
        let first = LINES + 1 - LAST_WORDS_LINES_MAX as u64;
        let expected: Vec<String> = (first..=LINES).map(|n| format!("line {n}")).collect();
        assert_eq!(lines, expected);
    }
}
