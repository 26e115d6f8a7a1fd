//! The reserve of the journal: whatever was admitted can also end, on a disk that is full by then.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use camino::Utf8PathBuf;
use ostler_core::task::LIMIT_MAX;
use ostler_journal::{Visit, read};
use serde_json::{Value, json};

use super::raw::submit;
use super::replay::fill_tail;
use super::rig::Rig;
use super::runner::AT_ONCE;

/// Tasks of the live set, by default.
const LIVE_MAX: usize = 1_000;

/// A small file system of its own; unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    /// None where mounting is not permitted and need not be.
    fn new(dir: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256m,mode=0700", "tmpfs"]).arg(dir);
        let mounted = mount.output().expect("the program mount");
        if mounted.status.success() {
            return Some(Self(dir.to_owned()));
        }
        let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(std::env::var_os("CI").is_none(), "cannot mount: {why}");
        eprintln!("skipped, mounting is not permitted here: {why}");
        None
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Takes all the space there is.
    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        for bytes in [1024 * 1024, 4 * 1024, 1] {
            while file.write_all(&vec![b'x'; bytes]).is_ok() {}
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A daemon with the documented settings on a file system of its own, at the highest limit.
fn rig() -> Option<(Rig, Mount)> {
    let mut rig = Rig::stopped(|_| {});
    let mount = Mount::new(rig.folder())?;
    rig.start();
    let limit = json!({"version": 1, "type": "set_limit", "limit": LIMIT_MAX});
    rig.client().call(&limit).unwrap();
    Some((rig, mount))
}

/// Submits as many tasks as the live set holds: the first ones run until the test ends them, with as much
/// output as is kept, and the others wait and then succeed at once. Which were admitted; the others were
/// refused with the reason.
fn admitted(rig: &Rig, cwd: &str) -> Vec<String> {
    let mut raw = rig.client();
    let mut admitted = Vec::new();
    for batch in (0..LIVE_MAX).collect::<Vec<_>>().chunks(200) {
        let commands = batch.iter().map(|n| {
            let task = format!("t{n}");
            let mut command = submit(&task);
            command["cwd"] = json!(cwd);
            if *n >= usize::from(LIMIT_MAX) {
                command["prompt"] = json!(AT_ONCE);
            }
            (raw.command(&command), task)
        });
        for (id, task) in commands.collect::<Vec<_>>() {
            match raw.result(&id) {
                Ok(_) => admitted.push(task),
                Err(error) => assert!(error.contains("the journal's reserve is taken"), "{error}"),
            }
        }
    }
    for n in 0..usize::from(LIMIT_MAX) {
        rig.runner.wait_started(&format!("t{n}"), 1);
        fill_tail(rig, &format!("t{n}"));
    }
    admitted
}

/// The status of every task in the journal, as the files say.
fn on_disk(rig: &Rig) -> BTreeMap<String, String> {
    let dir = Utf8PathBuf::from_path_buf(rig.runtime_dir().join("journal")).unwrap();
    let mut statuses = BTreeMap::new();
    let mut take = |task: &Value| {
        let text = |key: &str| task[key].as_str().unwrap().to_owned();
        statuses.insert(text("taskId"), text("status"));
    };
    read(&dir, &rig.settings().journal, &mut |visit| {
        match visit {
            // Records that the snapshot covers come again; the last word is the newest.
            Visit::Snapshot { payload, .. } => {
                let snapshot: Value = serde_json::from_slice(payload).unwrap();
                snapshot["tasks"].as_array().unwrap().iter().for_each(|it| take(&it["task"]));
            }
            Visit::Entry(entry) => {
                let record: Value = serde_json::from_slice(entry.payload).unwrap();
                if record["task"].is_object() {
                    take(&record["task"]);
                }
            }
        }
        Ok(())
    })
    .unwrap();
    statuses
}

fn all_are(statuses: &BTreeMap<String, String>, tasks: &[String], status: &str) {
    let others: Vec<_> =
        tasks.iter().filter(|task| statuses.get(*task).is_none_or(|it| it != status)).collect();
    assert!(others.is_empty(), "{} of {} are not {status}: {others:?}", others.len(), tasks.len());
}

/// On the full disk everything that was admitted runs and succeeds, and that is on disk.
fn all_complete(cwd: &str, at_least: usize) {
    let Some((mut rig, mount)) = rig() else { return };
    let admitted = admitted(&rig, cwd);
    assert!(admitted.len() >= at_least, "{} were admitted", admitted.len());
    mount.fill();
    let mut mirror = rig.mirror().opened();
    for n in 0..usize::from(LIMIT_MAX) {
        rig.runner.complete(&format!("t{n}"));
    }
    mirror.until(|known| {
        let mut statuses = known.tasks.values().map(|task| &task["status"]);
        statuses.all(|status| status == "TaskCompleted")
    });
    all_are(&on_disk(&rig), &admitted, "TaskCompleted");
    assert_eq!(rig.log.with("the journal has failed"), Vec::<String>::new());
    rig.kill();
    all_are(&on_disk(&rig), &admitted, "TaskCompleted");
}

/// On the full disk an orderly end interrupts everything that was admitted, and that is on disk.
fn all_are_interrupted(cwd: &str) {
    let Some((mut rig, mount)) = rig() else { return };
    let admitted = admitted(&rig, cwd);
    mount.fill();
    rig.stop();
    assert_eq!(rig.log.with("the journal has failed"), Vec::<String>::new());
    all_are(&on_disk(&rig), &admitted, "TaskInterrupted");
    std::fs::remove_file(mount.filler()).unwrap();
    rig.start();
    let known = rig.mirror().opened().known;
    assert_eq!(known.tasks.len(), admitted.len());
}

#[test]
fn r_80_what_a_kill_left_is_interrupted_by_a_start_on_a_full_disk() {
    let Some((mut rig, mount)) = rig() else { return };
    let admitted = admitted(&rig, &long_cwd());
    mount.fill();
    rig.kill_and_start();
    assert_eq!(rig.mirror().opened().known.tasks.len(), admitted.len());
    rig.stop();
    assert_eq!(rig.log.with("the journal has failed"), Vec::<String>::new());
    all_are(&on_disk(&rig), &admitted, "TaskInterrupted");
}

/// The largest working directory in the fewest characters: each takes six bytes in a record.
fn long_cwd() -> String {
    format!("/{}", "\u{1}".repeat(3_999))
}

#[test]
fn a_live_set_of_unfinished_tasks_is_admitted_and_completes_on_a_full_disk() {
    all_complete("/work", LIVE_MAX);
}

#[test]
fn a_live_set_of_unfinished_tasks_is_interrupted_on_a_full_disk() {
    all_are_interrupted("/work");
}

#[test]
fn what_was_admitted_of_long_tasks_completes_on_a_full_disk() {
    all_complete(&long_cwd(), usize::from(LIMIT_MAX));
}

#[test]
fn what_was_admitted_of_long_tasks_is_interrupted_on_a_full_disk() {
    all_are_interrupted(&long_cwd());
}
