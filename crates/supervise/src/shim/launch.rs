//! Everything that can be done before the agent may start, and starting it.
//!
//! Every descriptor of daemon and shim closes at the agent's `exec`. One that the daemon itself
//! inherited open for everybody goes through: closing numbers nobody holds needs `unsafe`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, MemfdFlags};
use rustix::pipe::PipeFlags;

use super::log::{Directory, Log};
use crate::MARKER_ENV;
use crate::cgroup::Cgroup;
use crate::procfs::Identity;
use crate::protocol::{self, SpawnErrorKind};
use crate::rundir::{LAYOUT_VERSION, SHIM_JSON, ShimRecord, SpawnErrorRecord};
use crate::spec::{RunSpec, Stdin};

/// Where programs are looked for when the run's environment has no `PATH`.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// A run that only waits for `START`.
pub(super) struct Prepared {
    pub(super) directory: Directory,
    pub(super) log: Log,
    /// What to execute, or why it cannot be.
    pub(super) command: Result<Ready, SpawnErrorRecord>,
}

pub(super) struct Ready {
    command: Command,
    program: PathBuf,
    cwd: PathBuf,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

pub(super) fn error(kind: SpawnErrorKind, message: impl Into<String>) -> SpawnErrorRecord {
    SpawnErrorRecord { kind: kind.as_str().to_owned(), message: message.into() }
}

/// Prepares the run directory and the command. Only a run directory that cannot be used is an error
/// here; everything else is told, and recorded, when the run is started.
pub(super) fn prepare(
    spec: &RunSpec,
    cgroup: Option<&Cgroup>,
) -> Result<Prepared, SpawnErrorRecord> {
    let storage = |cause: io::Error| {
        error(
            SpawnErrorKind::Storage,
            format!("cannot use the run directory {}: {cause}", spec.run_dir),
        )
    };
    let directory = Directory::open(&spec.run_dir).map_err(storage)?;
    let me = Identity::of(std::process::id()).map_err(storage)?;
    let record = ShimRecord {
        version: LAYOUT_VERSION,
        protocol: protocol::VERSION,
        boot_id: me.boot_id,
        pid: me.pid,
        start_time: me.start_time,
        cgroup: cgroup.and_then(|cgroup| cgroup.path().to_str()).map(str::to_owned),
    };
    directory.write_new(SHIM_JSON, &record).map_err(storage)?;
    directory.reserve_exit().map_err(storage)?;
    let log = Log::create(&directory, spec.kept).map_err(storage)?;
    Ok(Prepared { directory, log, command: ready(spec) })
}

fn ready(spec: &RunSpec) -> Result<Ready, SpawnErrorRecord> {
    let cwd = PathBuf::from(spec.cwd.as_str());
    check_cwd(&cwd)?;
    let program = resolve(spec, &cwd)?;
    let other = |cause: io::Error| {
        error(SpawnErrorKind::Other, format!("cannot start {}: {cause}", program.display()))
    };
    let (stdout, agent_stdout) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| other(e.into()))?;
    let (stderr, agent_stderr) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| other(e.into()))?;
    for ours in [&stdout, &stderr] {
        rustix::io::ioctl_fionbio(ours, true).map_err(|e| other(e.into()))?;
    }
    let mut command = Command::new(&program);
    command
        .args(&spec.args)
        .env_clear()
        .envs(spec.env.iter().map(|(key, value)| (key, value)))
        .env(MARKER_ENV, &spec.marker)
        .current_dir(&cwd)
        .process_group(0)
        .stdin(stdin(&spec.stdin).map_err(other)?)
        .stdout(Stdio::from(agent_stdout))
        .stderr(Stdio::from(agent_stderr));
    Ok(Ready { command, program, cwd, stdout, stderr })
}

/// Input is a file in memory and no pipe: nothing has to be pumped, nobody can block on it, and its end
/// is there from the beginning.
fn stdin(stdin: &Stdin) -> io::Result<Stdio> {
    let Stdin::Bytes(bytes) = stdin else {
        return Ok(Stdio::null());
    };
    let file = fs::File::from(rustix::fs::memfd_create(c"stdin", MemfdFlags::CLOEXEC)?);
    file.write_all_at(bytes, 0)?;
    Ok(Stdio::from(file))
}

fn check_cwd(cwd: &Path) -> Result<(), SpawnErrorRecord> {
    let bad = |why: String| {
        error(SpawnErrorKind::BadCwd, format!("cannot run in {}: {why}", cwd.display()))
    };
    let meta = fs::metadata(cwd).map_err(|cause| bad(cause.to_string()))?;
    if !meta.is_dir() {
        return Err(bad("not a directory".to_owned()));
    }
    rustix::fs::access(cwd, Access::EXEC_OK)
        .map_err(|cause| bad(io::Error::from(cause).to_string()))
}

/// Finds the program now, so that the error can say what was looked for.
fn resolve(spec: &RunSpec, cwd: &Path) -> Result<PathBuf, SpawnErrorRecord> {
    let name = spec.program.as_os_str();
    if name.as_bytes().contains(&b'/') {
        let program = cwd.join(name);
        return executable(&program).map(|()| program);
    }
    let path =
        spec.env.iter().rev().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_os_str());
    let path = path.unwrap_or(OsStr::new(PATH_DEFAULT));
    let mut not_executable = None;
    // An empty name would find the folders themselves.
    let folders = path.as_bytes().split(|byte| *byte == b':').filter(|_| !name.is_empty());
    for folder in folders {
        let program = cwd.join(OsStr::from_bytes(folder)).join(name);
        match executable(&program) {
            Ok(()) => return Ok(program),
            Err(found) if found.kind == SpawnErrorKind::NotExecutable.as_str() => {
                not_executable.get_or_insert(found);
            }
            Err(_) => {}
        }
    }
    let shown = name.to_string_lossy();
    Err(not_executable.unwrap_or_else(|| {
        error(
            SpawnErrorKind::NotFound,
            format!("no program {shown:?} in PATH ({})", path.to_string_lossy()),
        )
    }))
}

fn executable(program: &Path) -> Result<(), SpawnErrorRecord> {
    let shown = program.display();
    let meta = fs::metadata(program).map_err(|cause| {
        let kind = match cause.kind() {
            io::ErrorKind::PermissionDenied => SpawnErrorKind::NotExecutable,
            _ => SpawnErrorKind::NotFound,
        };
        error(kind, format!("no program {shown}: {cause}"))
    })?;
    if !meta.is_file() {
        return Err(error(SpawnErrorKind::NotExecutable, format!("{shown} is not a file")));
    }
    rustix::fs::access(program, Access::EXEC_OK)
        .map_err(|_| error(SpawnErrorKind::NotExecutable, format!("{shown} is not executable")))
}

impl Ready {
    /// Executes the agent. Its number stays ours until [`super::tree::Tree::reap`] reports it: the
    /// handle that would reap it is given up.
    pub(super) fn start(mut self) -> Result<(i32, OwnedFd, OwnedFd), SpawnErrorRecord> {
        match self.command.spawn() {
            Ok(child) => {
                Ok((i32::try_from(child.id()).unwrap_or(i32::MAX), self.stdout, self.stderr))
            }
            Err(cause) => Err(self.why(&cause)),
        }
    }

    fn why(&self, cause: &io::Error) -> SpawnErrorRecord {
        if let Err(bad) = check_cwd(&self.cwd).and_then(|()| executable(&self.program)) {
            return bad;
        }
        let shown = self.program.display();
        match cause.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::NOEXEC) => error(
                SpawnErrorKind::NotExecutable,
                format!("{shown} is no program for this machine and has no #! line"),
            ),
            Some(rustix::io::Errno::NOENT) => error(
                SpawnErrorKind::NotFound,
                format!("cannot start {shown}: the interpreter it names does not exist"),
            ),
            Some(rustix::io::Errno::ACCESS) => {
                error(SpawnErrorKind::NotExecutable, format!("cannot start {shown}: {cause}"))
            }
            _ => error(SpawnErrorKind::Other, format!("cannot start {shown}: {cause}")),
        }
    }
}
