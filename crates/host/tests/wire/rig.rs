//! A daemon on a thread of its own, with its directory, its runner and its settings.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use camino::Utf8PathBuf;
use ostler_host::{Daemon, Settings, StartError};
use serde_json::Value;
use tokio::sync::oneshot;

use super::logged::Logged;
use super::mirror::Mirror;
use super::raw::{Raw, wait_for};
use super::runner::Scripted;

/// How the daemon is to leave.
enum Leave {
    /// As on SIGTERM.
    InOrder,
    /// As with `kill -9`: nothing is said, nothing is written.
    AtOnce,
}

pub(crate) struct Server {
    leave: Option<oneshot::Sender<Leave>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a daemon; returns when it serves or did not start.
    pub(crate) fn start(settings: Settings, runner: Scripted) -> Result<Self, StartError> {
        Self::start_logged(settings, runner, Logged::default())
    }

    /// The same with a log.
    pub(crate) fn start_logged(
        settings: Settings,
        runner: Scripted,
        log: Logged,
    ) -> Result<Self, StartError> {
        let (leave, left) = oneshot::channel();
        let (started, starting) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let _log = tracing::subscriber::set_default(log);
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let daemon = match Daemon::start(settings, Arc::new(runner)) {
                    Ok(daemon) => daemon,
                    Err(error) => return started.send(Err(error)).unwrap(),
                };
                started.send(Ok(())).unwrap();
                let (stop, stopped) = oneshot::channel();
                let serve = daemon.serve(async {
                    let _ = stopped.await;
                });
                tokio::pin!(serve);
                tokio::select! {
                    () = &mut serve => return,
                    how = left => if !matches!(how, Ok(Leave::InOrder)) { return },
                }
                stop.send(()).unwrap();
                serve.await;
            });
        });
        match starting.recv().unwrap() {
            Ok(()) => Ok(Self { leave: Some(leave), thread: Some(thread) }),
            Err(error) => {
                thread.join().unwrap();
                Err(error)
            }
        }
    }

    fn leave(&mut self, how: Leave) {
        if let Some(leave) = self.leave.take() {
            let _ = leave.send(how);
        }
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the daemon panicked");
        }
    }

    /// Ends it as SIGTERM does.
    pub(crate) fn stop(mut self) {
        self.leave(Leave::InOrder);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.leave(Leave::AtOnce);
    }
}

pub(crate) struct Rig {
    folder: tempfile::TempDir,
    change: fn(&mut Settings),
    pub(crate) runner: Scripted,
    /// What the daemons said; not what the journal's thread said.
    pub(crate) log: Logged,
    server: Option<Server>,
}

impl Rig {
    /// A daemon with the documented settings.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// A daemon with changed settings.
    pub(crate) fn with(change: fn(&mut Settings)) -> Self {
        let mut rig = Self::stopped(change);
        rig.start();
        rig
    }

    /// A daemon on a disk whose flushes take no time, where there is one: there a lone client's appends are
    /// made on the daemon's own thread.
    pub(crate) fn fast(change: fn(&mut Settings)) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let mut rig = Self { folder, ..Self::stopped(change) };
        rig.start();
        rig
    }

    /// Everything but the daemon.
    pub(crate) fn stopped(change: fn(&mut Settings)) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            change,
            runner: Scripted::default(),
            log: Logged::default(),
            server: None,
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn runtime_dir(&self) -> PathBuf {
        self.folder.path().join("rt")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime_dir().join("daemon.sock")
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings_in(self.runtime_dir())
    }

    pub(crate) fn settings_in(&self, runtime_dir: PathBuf) -> Settings {
        let mut settings = Settings::new(Utf8PathBuf::from_path_buf(runtime_dir).unwrap());
        (self.change)(&mut settings);
        settings
    }

    pub(crate) fn try_start(&mut self) -> Result<(), StartError> {
        assert!(self.server.is_none(), "it runs already");
        self.server =
            Some(Server::start_logged(self.settings(), self.runner.clone(), self.log.clone())?);
        Ok(())
    }

    #[track_caller]
    pub(crate) fn start(&mut self) {
        self.try_start().expect("a start");
    }

    /// Ends the daemon as SIGTERM does.
    pub(crate) fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }

    /// Ends the daemon with no chance to say or write anything.
    pub(crate) fn kill(&mut self) {
        drop(self.server.take());
    }

    /// [`Rig::kill`], then a start as soon as the killed one's thread has let go of its files.
    pub(crate) fn kill_and_start(&mut self) {
        self.kill();
        wait_for("a start after a kill", || self.try_start().ok());
    }

    pub(crate) fn client(&self) -> Raw {
        Raw::hello(&self.socket(), None).0
    }

    /// A client that holds the state.
    pub(crate) fn mirror(&self) -> Mirror {
        Mirror::connect(&self.socket(), None)
    }

    /// Submits a task whose run waits for the test.
    #[track_caller]
    pub(crate) fn running(&self, client: &mut Raw, task: &str) -> Value {
        let result = client.submit(task).unwrap();
        self.runner.wait_started(task, 1);
        result
    }
}
