//! One test's surroundings: scratch folder, daemon, commands with a deadline, and the wire to ask what became
//! of a task.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use ostler_host::client::{Client, ConnectOptions, Update, Updates};
use ostler_proto::framed::{Task, TaskStatus};
use ostler_testkit::process::{self, Process, wait_for, wait_until};
use ostler_testkit::scratch::Scratch;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The program under test.
pub(crate) const OSTLER: &str = env!("CARGO_BIN_EXE_ostler");
/// How long anything may take that is not about time; the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// Rounds of a loop that kills real processes.
pub(crate) const ROUNDS: u32 = 5;

/// How often such a loop repeats: [`ROUNDS`] in CI, elsewhere as often as it has time for; `.ci/nightly` asks for
/// more.
pub(crate) fn rounds(elsewhere: u32) -> u32 {
    let usual = if std::env::var_os("CI").is_some() { ROUNDS } else { elsewhere };
    std::env::var("OSTLER_TEST_LOOPS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// See the module.
pub(crate) struct Rig {
    pub(crate) scratch: Scratch,
    pub(crate) agent: PathBuf,
    daemon: Option<Child>,
}

impl Rig {
    /// A scratch folder with `fake-agent` on the `PATH`, and no daemon.
    pub(crate) fn new() -> Self {
        let (scratch, agent) = (Scratch::new(), process::fake_agent());
        scratch.install("fake-agent", &agent);
        scratch.install("ostler", Path::new(OSTLER));
        Self { scratch, agent, daemon: None }
    }

    /// The same with a daemon that serves.
    pub(crate) fn serving() -> Self {
        let mut rig = Self::new();
        rig.start_daemon();
        rig
    }

    /// The same with this configuration file.
    pub(crate) fn configured(config: &str) -> Self {
        let mut rig = Self::new();
        rig.configure(config);
        rig.start_daemon();
        rig
    }

    pub(crate) fn configure(&self, config: &str) {
        let dir = self.scratch.path().join("config/ostler");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("config.toml"), config).unwrap();
    }

    /// `ostler ARGS` in the scratch folder's environment, without input.
    pub(crate) fn ostler<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.scratch.command(OSTLER);
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Starts `ostler daemon` and waits until it serves.
    pub(crate) fn start_daemon(&mut self) {
        let command = self.ostler(["daemon"]);
        self.start_daemon_with(command);
    }

    /// The same with a command of the caller's.
    pub(crate) fn start_daemon_with(&mut self, mut command: Command) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let daemon = self.daemon.insert(child);
        let socket = self.scratch.socket();
        let log = self.scratch.path().join("daemon.err");
        wait_until("the daemon serves", PATIENCE, || {
            if let Some(status) = daemon.try_wait().unwrap() {
                panic!("the daemon ended with {status}: {}", fs::read_to_string(&log).unwrap());
            }
            UnixStream::connect(&socket).is_ok()
        });
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("daemon.err")
    }

    /// What the daemons of this test wrote to standard error.
    pub(crate) fn daemon_log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The daemon this test started, as a process.
    pub(crate) fn daemon(&self) -> Process {
        let id = self.daemon.as_ref().expect("a daemon").id();
        Process::read(i32::try_from(id).unwrap()).expect("the daemon's process")
    }

    /// Signals the daemon.
    pub(crate) fn signal_daemon(&self, signal: Signal) {
        signal_child(self.daemon.as_ref().expect("a daemon"), signal);
    }

    /// Waits for the daemon's end.
    pub(crate) fn daemon_ended(&mut self, deadline: Duration) -> ExitStatus {
        let mut daemon = self.daemon.take().expect("a daemon");
        let log = self.log_path();
        let started = Instant::now();
        wait_for("the daemon ends", deadline, || daemon.try_wait().unwrap()).tap(|status| {
            eprintln!("the daemon ended with {status} after {:?}, log {log:?}", started.elapsed());
        })
    }

    /// `kill -9` of the daemon, and its end.
    pub(crate) fn kill_daemon(&mut self) {
        self.signal_daemon(Signal::KILL);
        self.daemon_ended(PATIENCE);
    }

    /// TERM to the daemon, and its end in good order.
    pub(crate) fn stop_daemon(&mut self) {
        self.signal_daemon(Signal::TERM);
        let status = self.daemon_ended(PATIENCE);
        assert!(status.success(), "{status}: {}", self.daemon_log());
    }

    /// `ostler run --detach --id ID -a command -- fake-agent ARGS`.
    pub(crate) fn detach(&self, id: &str, args: &[&str]) {
        let mut command = self.ostler(["run", "--detach", "--id", id, "-a", "command", "--"]);
        let done = finish(command.arg(&self.agent).args(args));
        assert_eq!(
            (done.code, done.stdout.as_str()),
            (Some(0), format!("{id}\n").as_str()),
            "{done:?}"
        );
    }

    /// A connection to the daemon.
    pub(crate) fn wire(&self) -> Wire {
        Wire::connect(&self.scratch.socket())
    }

    /// The task as soon as it is settled.
    pub(crate) fn settled(&self, id: &str) -> Task {
        self.wire().until(id, |task| task.status.is_settled())
    }

    /// Waits until the task runs and has printed `text`.
    pub(crate) fn printed(&self, id: &str, text: &str) {
        self.wire().until(id, |task| task.log_tail.iter().any(|line| line.contains(text)));
    }

    /// `ostler task show ID --json`.
    pub(crate) fn show(&self, id: &str) -> Value {
        let done = finish(&mut self.ostler(["task", "show", id, "--json"]));
        assert_eq!(done.code, Some(0), "{done:?}");
        serde_json::from_str(&done.stdout).unwrap()
    }

    /// `ostler task cancel ID`, which returns when nothing of it is left.
    pub(crate) fn cancel(&self, id: &str) -> Task {
        let done = finish(&mut self.ostler(["task", "cancel", id, "--json"]));
        assert_eq!(done.code, Some(0), "{done:?}");
        let result: Value = serde_json::from_str(&done.stdout).unwrap();
        serde_json::from_value(result["task"].clone()).unwrap()
    }

    /// Everything `task logs --raw` gives on standard output.
    pub(crate) fn raw_logs(&self, id: &str) -> Vec<u8> {
        let done = finish(&mut self.ostler(["task", "logs", "--raw", id]));
        assert_eq!(done.code, Some(0), "{done:?}");
        done.stdout_bytes
    }

    /// `task logs`, as people read it.
    pub(crate) fn logs(&self, id: &str) -> String {
        let done = finish(&mut self.ostler(["task", "logs", id]));
        assert_eq!(done.code, Some(0), "{done:?}");
        done.stdout
    }

    pub(crate) fn run_dir(&self, id: &str) -> PathBuf {
        self.scratch.ostler_home().join(format!("runs/{id}.1"))
    }

    /// Everything started from here but daemons, shims and commands: agents and what they left, marked or
    /// not.
    pub(crate) fn run_processes(&self) -> Vec<Process> {
        let mut found = self.scratch.processes();
        found.retain(|process| !process.argv.first().is_some_and(|word| word.ends_with("/ostler")));
        found
    }

    /// The shim of a task's first run.
    pub(crate) fn shim(&self, id: &str) -> Process {
        living_shim(&self.run_dir(id)).expect("the shim")
    }

    /// All living shims; their environment is empty but for the marker, so they are found by their records.
    fn shims(&self) -> Vec<Process> {
        let runs = fs::read_dir(self.scratch.ostler_home().join("runs"));
        runs.into_iter().flatten().filter_map(|run| living_shim(&run.unwrap().path())).collect()
    }

    /// Panics when anything of a run is there. Nothing may be left when a task is settled, so there is no
    /// waiting; only the shim, which has nothing below it any more, may still be on its way out.
    #[track_caller]
    pub(crate) fn assert_nothing_runs(&self) {
        // A process that is past its own exit has no command line any more: a command of the test may be
        // on its way out just now.
        let is_exiting = |process: &Process| process.argv.iter().all(String::is_empty);
        let (exiting, left): (Vec<_>, Vec<_>) =
            self.run_processes().into_iter().partition(is_exiting);
        assert!(left.is_empty(), "{left:#?}");
        wait_until("who was exiting has gone", PATIENCE, || !exiting.iter().any(Process::is_alive));
        wait_until("the shims have gone", PATIENCE, || self.shims().is_empty());
    }

    /// Panics when anything of a run is there after `deadline`.
    #[track_caller]
    pub(crate) fn assert_gone_within(&self, deadline: Duration) {
        // A scan that meets a process as it is forked may miss it, so two in a row must find nothing.
        let mut empty_looks = 0;
        wait_until("everything of the runs is gone", deadline, || {
            let left = self.run_processes().len() + self.shims().len();
            empty_looks = if left == 0 { empty_looks + 1 } else { 0 };
            empty_looks == 2
        });
    }

    /// Files below `dir` that contain `text`.
    pub(crate) fn files_with(&self, dir: &Path, text: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![dir.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let kind = fs::symlink_metadata(&path).unwrap().file_type();
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() && contains(&fs::read(&path).unwrap(), text.as_bytes()) {
                    found.push(path);
                }
            }
        }
        found
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        if thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.daemon_log());
        }
    }
}

fn living_shim(run_dir: &Path) -> Option<Process> {
    let record = fs::read(run_dir.join("shim.json")).ok()?;
    let record: Value = serde_json::from_slice(&record).ok()?;
    let shim = Process::read(i32::try_from(record["pid"].as_i64()?).ok()?)?;
    let is_it = Some(shim.start_time) == record["start_time"].as_u64() && !shim.is_zombie();
    is_it.then_some(shim)
}

trait Tap: Sized {
    fn tap(self, look: impl FnOnce(&Self)) -> Self {
        look(&self);
        self
    }
}

impl<T> Tap for T {}

pub(crate) fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// A connection to the daemon, for tests that wait for events.
pub(crate) struct Wire {
    runtime: tokio::runtime::Runtime,
    pub(crate) client: Client,
    /// Dropped where nobody looks at them: a client that does not take its events is hung up on.
    updates: Option<Updates>,
}

impl Wire {
    fn connect(socket: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let socket = Utf8PathBuf::from_path_buf(socket.to_owned()).unwrap();
        let (client, updates) = runtime
            .block_on(Client::connect(&socket, ConnectOptions::default()))
            .expect("a connection to the daemon");
        Self { runtime, client, updates: Some(updates) }
    }

    /// For commands alone.
    pub(crate) fn without_updates(mut self) -> Self {
        self.updates = None;
        self
    }

    /// The task as soon as it is as wanted.
    #[track_caller]
    pub(crate) fn until(&mut self, id: &str, mut wanted: impl FnMut(&Task) -> bool) -> Task {
        let updates = self.updates.as_mut().expect("updates");
        let mut last = None;
        let search = async {
            loop {
                let update =
                    updates.next().await.expect("an update").expect("a daemon that serves");
                let tasks = match update {
                    Update::Snapshot(snapshot) => snapshot.tasks,
                    Update::Task { task, .. } => vec![*task],
                    Update::Limit { .. } => continue,
                };
                for task in tasks.into_iter().filter(|task| task.task_id == id) {
                    if wanted(&task) {
                        return task;
                    }
                    last = Some(task);
                }
            }
        };
        // A timer is made inside of its runtime.
        let waited = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, search).await });
        waited.unwrap_or_else(|_| panic!("waited in vain for {id}: {last:?}"))
    }

    /// The next snapshot or event.
    #[track_caller]
    pub(crate) fn next_update(&mut self) -> Update {
        let updates = self.updates.as_mut().expect("updates");
        let waited =
            self.runtime.block_on(async { tokio::time::timeout(PATIENCE, updates.next()).await });
        waited.expect("an update in time").expect("a daemon that serves").expect("an update")
    }

    /// Runs a future of this connection.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

/// A finished program.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) stdout_bytes: Vec<u8>,
}

impl Done {
    /// The lines of `--json`.
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

/// Runs a program to its end.
pub(crate) fn finish(command: &mut Command) -> Done {
    Running::start(command).finish()
}

/// Runs a program to its end with this input.
pub(crate) fn finish_with_input(command: &mut Command, input: &[u8]) -> Done {
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    let mut stdin = running.child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let done = running.finish();
    writer.join().unwrap();
    done
}

/// A program whose output is collected while it runs.
pub(crate) struct Running {
    pub(crate) child: Child,
    stdout: Collected,
    stderr: Collected,
}

type Shared = std::sync::Arc<std::sync::Mutex<Vec<u8>>>;

struct Collected(Shared, JoinHandle<()>);

impl Collected {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Shared::default();
        let shared = Shared::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                shared.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self(bytes, reader)
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    fn all(self) -> Vec<u8> {
        self.1.join().unwrap();
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = Collected::of(child.stdout.take().unwrap());
        let stderr = Collected::of(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    /// Waits until it has printed `text` on standard output.
    #[track_caller]
    pub(crate) fn prints(&self, text: &str) {
        wait_until(&format!("{text:?} is printed"), PATIENCE, || {
            self.stdout.so_far().contains(text)
        });
    }

    /// Waits until it has said `text` on standard error.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) {
        wait_until(&format!("{text:?} is said"), PATIENCE, || self.stderr.so_far().contains(text));
    }

    /// What it has said on standard error so far.
    pub(crate) fn said(&self) -> String {
        self.stderr.so_far()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_child(&self.child, signal);
    }

    #[track_caller]
    pub(crate) fn finish(mut self) -> Done {
        let child = &mut self.child;
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("it does not end: {:?} {:?}", self.stdout.so_far(), self.stderr.so_far());
            }
            thread::sleep(Duration::from_millis(5));
        };
        let (stdout_bytes, stderr) = (self.stdout.all(), self.stderr.all());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Done {
            code: status.code(),
            stdout: text(&stdout_bytes),
            stderr: text(&stderr),
            stdout_bytes,
        }
    }
}

fn signal_child(child: &Child, signal: Signal) {
    // Not reaped before we wait for it, so its number is its own.
    let pid = Pid::from_child(child);
    kill_process(pid, signal).unwrap();
}

/// Whether a status is one of those.
pub(crate) fn is(task: &Task, status: TaskStatus) -> bool {
    task.status == status
}
