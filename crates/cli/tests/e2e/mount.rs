//! Working directories on a mount that does not answer: a run that gets ready there waits, and nobody else.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ostler_proto::framed::{Submit, TaskStatus};

use crate::rig::{PATIENCE, Rig, finish, is};

/// Less than the twenty seconds after which a run that does not get ready fails by itself, and with some room
/// more than the daemon grants a shutdown.
const AT_ONCE: Duration = Duration::from_secs(12);

/// A file system whose server never answers; whoever asks it waits until this is dropped.
struct DeadMount {
    dir: PathBuf,
    _server: File,
}

impl DeadMount {
    /// None where mounting is not permitted and need not be.
    fn new(test: &str, dir: &Path) -> Option<Self> {
        fs::create_dir_all(dir).unwrap();
        let why = match File::options().read(true).write(true).open("/dev/fuse") {
            // A kernel without it cannot have such a mount; the same is shown with a paused clock in
            // `runner::attempt`.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("{test}: skipped, there is no /dev/fuse");
                return None;
            }
            Err(error) => error.to_string(),
            Ok(server) => {
                let mut mount = Command::new("mount");
                mount.args(["-i", "-t", "fuse", "-o"]);
                mount.args(["fd=0,rootmode=40000,user_id=0,group_id=0", "dead"]).arg(dir);
                let mounted = mount.stdin(server.try_clone().unwrap()).output().unwrap();
                if mounted.status.success() {
                    return Some(Self { dir: dir.to_owned(), _server: server });
                }
                String::from_utf8_lossy(&mounted.stderr).into_owned()
            }
        };
        assert!(std::env::var_os("CI").is_none(), "{test}: cannot mount: {why}");
        eprintln!("{test}: skipped, mounting is not permitted here: {why}");
        None
    }
}

impl Drop for DeadMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.dir).status();
    }
}

fn submit(rig: &Rig, id: &str, cwd: &Path) {
    let submit = Submit {
        task_id: id.to_owned(),
        agent: Some("command".to_owned()),
        argv: vec!["./program".to_owned()],
        cwd: cwd.to_str().unwrap().to_owned(),
        ..Submit::default()
    };
    let mut wire = rig.wire();
    wire.block_on(wire.client.submit(submit)).expect("an answer");
    wire.until(id, |task| task.status == TaskStatus::Running);
}

/// Others run meanwhile, a cancel does not wait for the mount, and neither does the daemon's end.
#[test]
fn a_working_directory_on_a_dead_mount_holds_up_its_own_run_only() {
    let mut rig = Rig::serving();
    let cwd = rig.scratch.path().join("dead");
    let Some(dead) = DeadMount::new("dead_mount", &cwd) else { return };
    submit(&rig, "cancelled", &cwd.join("work"));
    for n in 0..3 {
        let began = Instant::now();
        let done = finish(&mut rig.ostler(["run", "--id", &format!("other{n}"), "--", "true"]));
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    }
    let began = Instant::now();
    let task = rig.cancel("cancelled");
    assert!(is(&task, TaskStatus::Cancelled) && began.elapsed() < AT_ONCE, "{task:?}");

    submit(&rig, "left", &cwd.join("work"));
    let began = Instant::now();
    rig.stop_daemon();
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    rig.start_daemon();
    assert!(is(&rig.settled("left"), TaskStatus::Interrupted));
    drop(dead);
    rig.assert_gone_within(PATIENCE);
}
