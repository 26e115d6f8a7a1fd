//! Disks that are full, read-only or damaged, runtime directories that are not ours, and what can be done
//! with the daemon stopped.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use camino::Utf8PathBuf;
use ostler_host::client::{Client, ClientError, ConnectOptions, Update};
use ostler_proto::framed::{Submit, TaskStatus};
use serde_json::Value;

use crate::rig::{PATIENCE, Rig, Wire, finish, is};

/// A small file system of its own on `dir`; unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    /// None where mounting is not permitted and need not be.
    fn new(test: &str, dir: &Path, options: &str) -> Option<Self> {
        fs::create_dir_all(dir).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(dir)
            .output()
            .expect("the program mount");
        if mounted.status.success() {
            return Some(Self(dir.to_owned()));
        }
        let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(std::env::var_os("CI").is_none(), "{test}: cannot mount: {why}");
        eprintln!("{test}: skipped, mounting is not permitted here: {why}");
        None
    }
}

impl Mount {
    /// Gives it another `size=…` or `nr_inodes=…`.
    fn remount(&self, bound: &str) {
        let options = format!("remount,{bound}");
        let status = Command::new("mount").args(["-o", &options]).arg(&self.0).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Takes all the space there is.
fn fill(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    for bytes in [64 * 1024, 4 * 1024, 1] {
        while file.write_all(&vec![b'x'; bytes]).is_ok() {}
    }
}

fn submit(wire: &Wire, id: &str, cwd: &str, argv: &[&str]) -> Result<(), ClientError> {
    let submit = Submit {
        task_id: id.to_owned(),
        agent: Some("command".to_owned()),
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        cwd: cwd.to_owned(),
        ..Submit::default()
    };
    wire.block_on(wire.client.submit(submit)).map(drop)
}

/// A full disk refuses new work in words, keeps what runs and records its end; with space there is work
/// again, and everything that was admitted comes to its end.
#[test]
fn a_full_disk_refuses_new_work_and_keeps_what_runs() {
    let mut rig = Rig::new();
    let dir = rig.scratch.runtime_dir();
    let Some(mount) = Mount::new("full_disk", &dir, "size=10m,mode=0700") else { return };
    rig.configure("[tasks]\nlimit = 1\n");
    rig.start_daemon();
    let wire = rig.wire().without_updates();
    let work = rig.scratch.work();
    let script = "echo waiting; until [ -e go ]; do sleep 0.05; done; echo gone";
    submit(&wire, "runs", work.to_str().unwrap(), &["sh", "-c", script]).unwrap();
    rig.printed("runs", "waiting");

    let filler = dir.join("filler");
    fill(&filler);
    // Long records, so that what is allocated ahead is soon used up; none of these can start.
    let long = format!("/{}", "\u{1}".repeat(4_000));
    let mut admitted = Vec::new();
    let refusal = (0..900).find_map(|n| {
        let id = format!("n{n}");
        match submit(&wire, &id, &long, &["true"]) {
            Ok(()) => admitted.push(id),
            Err(error) => return Some(error.to_string()),
        }
        None
    });
    let refusal = refusal.expect("a refusal");
    assert!(refusal.contains("the disk is full") && refusal.contains("free space"), "{refusal}");
    let done = finish(&mut rig.ostler(["run", "--", "true"]));
    assert_eq!(done.code, Some(4), "{done:?}");
    assert!(done.stderr.contains("the disk is full"), "{done:?}");
    assert!(done.stderr.contains("hint: run directories take the most space"), "{done:?}");

    // The running one ends and that is recorded.
    fs::write(work.join("go"), "").unwrap();
    let task = rig.settled("runs");
    assert!(is(&task, TaskStatus::Completed), "{task:?}");
    assert_eq!(task.log_tail.last().unwrap(), "gone");

    // Room for more segments than the one there was from the beginning.
    fs::remove_file(&filler).unwrap();
    mount.remount("size=60m");
    submit(&wire, "after", work.to_str().unwrap(), &["true"]).expect("room again");
    rig.stop_daemon();
    let verified = finish(&mut rig.ostler(["journal", "verify"]));
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let listed = finish(&mut rig.ostler(["task", "list", "--json"]));
    let tasks: Vec<Value> = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(tasks.len(), admitted.len() + 2);
    let ends = ["TaskCompleted", "TaskFailed", "TaskInterrupted"];
    assert!(tasks.iter().all(|task| ends.contains(&task["status"].as_str().unwrap())));
    drop(mount);
}

/// A disk without room for a journal: the daemon serves all the same, says so of new work, and takes it as soon
/// as there is room, without a restart.
#[test]
fn a_daemon_that_starts_on_a_full_disk_refuses_work_until_there_is_space() {
    let mut rig = Rig::new();
    let dir = rig.scratch.runtime_dir();
    let Some(_mount) = Mount::new("full_start", &dir, "size=10m,mode=0700") else { return };
    let filler = dir.join("filler");
    fill(&filler);
    for _ in 0..2 {
        rig.start_daemon();
        let done = finish(&mut rig.ostler(["run", "--id", "none", "--", "touch", "ran"]));
        assert_eq!(done.code, Some(4), "{done:?}");
        assert!(done.stderr.contains("the disk is full"), "{done:?}");
        assert!(done.stderr.contains("free space and submit again"), "{done:?}");
        let listed = finish(&mut rig.ostler(["task", "list", "--all", "--json"]));
        assert_eq!(listed.stdout, "[]\n", "{listed:?}");
        rig.stop_daemon();
    }
    assert!(!rig.scratch.work().join("ran").exists() && !rig.run_dir("none").exists());

    rig.start_daemon();
    fs::remove_file(&filler).unwrap();
    let done = finish(&mut rig.ostler(["run", "--id", "none", "--", "touch", "ran"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(rig.scratch.work().join("ran").exists());

    // With a journal that is there, a full disk keeps nobody from recording what a crash interrupted.
    rig.detach("stays", &["lines", "1", "--stay"]);
    rig.printed("stays", "line 1");
    rig.kill_daemon();
    fill(&filler);
    rig.start_daemon();
    assert_eq!(rig.settled("stays").status, TaskStatus::Interrupted);
    rig.kill_daemon();
    let verified = finish(&mut rig.ostler(["journal", "verify"]));
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let listed = finish(&mut rig.ostler(["task", "list", "--json"]));
    let tasks: Vec<Value> = serde_json::from_str(&listed.stdout).unwrap();
    let ends: Vec<_> = tasks.iter().map(|task| task["status"].as_str().unwrap()).collect();
    assert_eq!(ends, ["TaskCompleted", "TaskInterrupted"]);
    rig.assert_gone_within(PATIENCE);
}

/// a file system that takes no file any more, with and without a journal on it.
#[test]
fn r_19_a_start_without_room_for_its_files_says_what_to_do_and_changes_nothing() {
    const FILES: &str = "size=20m,mode=0700,nr_inodes=";
    let mut rig = Rig::new();
    let dir = rig.scratch.runtime_dir();
    // The folder itself, and the files that a start makes first.
    for (files, missing) in [(1, "daemon.sock.lock"), (2, "journal"), (3, "journal.lock")] {
        let options = format!("{FILES}{files}");
        let Some(_mount) = Mount::new("no_files", &dir, &options) else { return };
        for _ in 0..2 {
            does_not_start(
                &rig,
                &dir,
                &["No space left", missing, "file system is full", "free some space"],
            );
        }
        assert!(contents(&dir).values().all(|(_, bytes)| bytes.is_empty()), "nothing but locks");
    }

    let Some(mount) = Mount::new("no_files", &dir, &format!("{FILES}100")) else { return };
    rig.start_daemon();
    rig.detach("before", &["lines", "3"]);
    let before = rig.settled("before");
    rig.stop_daemon();
    let mut fillers = 0;
    while fs::File::create(dir.join(format!("filler-{fillers}"))).is_ok() {
        fillers += 1;
        assert!(fillers < 100, "the mount has its bound");
    }
    let held = contents(&dir);
    does_not_start(
        &rig,
        &dir,
        &["No space left", "daemon.sock", "file system is full", "free some space"],
    );
    let done = finish(&mut rig.ostler(["run", "--", "true"]));
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.stderr.contains("No space left") && done.stderr.contains("free some space"));
    assert_eq!(contents(&dir), held);

    mount.remount("nr_inodes=200");
    rig.start_daemon();
    assert_eq!(rig.settled("before"), before);
    assert_eq!(finish(&mut rig.ostler(["run", "--", "true"])).code, Some(0));
}

/// The daemon's end when it cannot start.
fn does_not_start(rig: &Rig, dir: &Path, said: &[&str]) {
    let mut command = rig.ostler(["daemon"]);
    let done = finish(command.env("HASKELL_AGENT_RUNTIME_DIR", dir));
    assert_eq!(done.code, Some(1), "{done:?}");
    for text in said.iter().chain(&["error: the daemon cannot start", "caused by:", "hint:"]) {
        assert!(done.stderr.contains(text), "{text}: {}", done.stderr);
    }
}

#[test]
fn a_read_only_file_system_is_named() {
    let rig = Rig::new();
    let dir = rig.scratch.runtime_dir();
    let Some(_mount) = Mount::new("read_only", &dir, "size=1m,mode=0700,ro") else { return };
    does_not_start(&rig, &dir, &["read-only", dir.to_str().unwrap()]);
    // `run` cannot start one either, and says why.
    let done = finish(&mut rig.ostler(["run", "--", "true"]));
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.stderr.to_lowercase().contains("read-only"), "{done:?}");
}

///
#[test]
fn r_11_r_12_r_19_a_runtime_directory_that_is_not_ours_stays_as_it_is() {
    let rig = Rig::new();
    let root = rig.scratch.path();
    let target = root.join("target");
    fs::create_dir(&target).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&target, root.join("link")).unwrap();
    does_not_start(&rig, &root.join("link"), &["symbolic link"]);
    assert!(fs::read_dir(&target).unwrap().next().is_none());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&target), 0o755);

    let shared = root.join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    does_not_start(&rig, &shared, &["shared with others", "1777"]);
    assert_eq!(mode(&shared), 0o1777);

    let file = root.join("file");
    fs::write(&file, "mine").unwrap();
    does_not_start(&rig, &file, &["regular file"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");

    if rustix::process::geteuid().is_root() {
        let foreign = root.join("foreign");
        fs::create_dir(&foreign).unwrap();
        chown(&foreign, Some(65_534), Some(65_534)).unwrap();
        does_not_start(&rig, &foreign, &["belongs to the user id 65534"]);
        assert!(fs::read_dir(&foreign).unwrap().next().is_none());
    }
    let long = root.join("l".repeat(120));
    does_not_start(&rig, &long, &["bytes, at most 107 are possible", "shorter path"]);
    assert!(!long.exists());
}

/// the second names the lock, and the first goes on.
#[test]
fn r_15_r_17_a_second_daemon_does_not_start() {
    let rig = Rig::serving();
    // The state directory is locked first; a second daemon with another one meets the socket's lock.
    let other = rig.scratch.path().join("state/other");
    for (home, lock) in [(rig.scratch.ostler_home(), "ostler.lock"), (other, "daemon.sock.lock")] {
        let done = finish(rig.ostler(["daemon"]).env("OSTLER_HOME", home));
        assert_eq!(done.code, Some(4), "{done:?}");
        assert!(done.stderr.contains("another daemon holds the lock"), "{done:?}");
        assert!(done.stderr.contains(lock) && done.stderr.contains("hint:"), "{done:?}");
    }
    assert_eq!(finish(&mut rig.ostler(["run", "--", "true"])).code, Some(0));
}

/// Every file below `dir` with its bytes and mode.
fn contents(dir: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                folders.push(path);
            } else if meta.is_file() {
                let bytes = fs::read(&path).unwrap();
                found.insert(path, (meta.permissions().mode(), bytes));
            }
        }
    }
    found
}

/// A rig that has done some work and is stopped.
fn stopped() -> Rig {
    let mut rig = Rig::serving();
    rig.detach("good", &["lines", "3"]);
    rig.settled("good");
    rig.detach("bad", &["exit", "3"]);
    rig.settled("bad");
    rig.stop_daemon();
    rig
}

/// the start fails, names the place and what to do, and changes no byte.
#[test]
fn r_82_a_damaged_journal_stops_the_start_and_nothing_changes() {
    let rig = stopped();
    let journal = rig.scratch.runtime_dir().join("journal");
    let segment = fs::read_dir(&journal).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
        .min()
        .expect("a segment");
    let mut bytes = fs::read(&segment).unwrap();
    let place = bytes.windows(4).position(|window| window == b"good").expect("the task's id");
    bytes[place] ^= 0x20;
    fs::write(&segment, bytes).unwrap();
    let before = contents(&rig.scratch.runtime_dir());

    let name = segment.file_name().unwrap().to_str().unwrap();
    does_not_start(&rig, &rig.scratch.runtime_dir(), &[name, "corrupt at byte", "backup"]);
    let verified = finish(&mut rig.ostler(["journal", "verify"]));
    assert_eq!(verified.code, Some(1), "{verified:?}");
    assert!(verified.stderr.contains(name) && verified.stderr.contains("corrupt at byte"));
    let listed = finish(&mut rig.ostler(["task", "list"]));
    assert_eq!(listed.code, Some(1), "{listed:?}");
    assert!(listed.stderr.contains("corrupt at byte"), "{listed:?}");
    let run = finish(&mut rig.ostler(["run", "--", "true"]));
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.stderr.contains("corrupt at byte"), "{run:?}");
    assert_eq!(contents(&rig.scratch.runtime_dir()), before);
}

/// Everything that was is readable with every process dead.
#[test]
fn with_the_daemon_stopped_tasks_logs_and_journal_are_read() {
    let rig = stopped();
    assert!(rig.scratch.processes().is_empty());
    let ostler = |args: &[&str]| finish(&mut rig.ostler(args));
    let listed = ostler(&["task", "list", "--json"]);
    let tasks: Vec<Value> = serde_json::from_str(&listed.stdout).unwrap();
    let text = |task: &Value, key: &str| task[key].as_str().unwrap().to_owned();
    let ends: Vec<_> =
        tasks.iter().map(|task| text(task, "taskId") + " " + &text(task, "status")).collect();
    assert_eq!(ends, ["good TaskCompleted", "bad TaskFailed"]);
    let table = ostler(&["task", "list"]);
    assert!(table.stdout.contains("good") && table.stdout.contains("failed"), "{table:?}");
    let shown = ostler(&["task", "show", "bad"]);
    assert!(shown.stdout.contains("status 3") && shown.code == Some(0), "{shown:?}");
    assert_eq!(rig.logs("good"), "line 1\nline 2\nline 3\n");
    assert_eq!(ostler(&["task", "logs", "-f", "good"]).stdout, "line 1\nline 2\nline 3\n");
    let status = ostler(&["status", "--json"]);
    let said: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!((status.code, &said["daemon"]), (Some(3), &Value::from("stopped")));

    let verified = ostler(&["journal", "verify", "--json"]);
    let report: Value = serde_json::from_str(&verified.stdout).unwrap();
    assert_eq!((verified.code, &report["warnings"]), (Some(0), &Value::Array(Vec::new())));
    let exported = ostler(&["journal", "export"]);
    let records = exported.json_lines();
    assert_eq!(records.len() as u64, report["records"].as_u64().unwrap());
    assert!(records.windows(2).all(|pair| {
        pair[0]["sequence"].as_u64().unwrap() + 1 == pair[1]["sequence"].as_u64().unwrap()
    }));
    let run_dir = rig.run_dir("bad");
    let replayed = ostler(&["replay", run_dir.to_str().unwrap(), "--json"]);
    let last = replayed.json_lines().pop().unwrap();
    assert_eq!((&last["status"], &last["task_id"]), (&"failed".into(), &"bad".into()));
    assert!(rig.scratch.processes().is_empty(), "looking starts nothing");

    let none = ostler(&["task", "show", "nobody"]);
    assert_eq!(none.code, Some(4), "{none:?}");
    assert!(none.stderr.contains("no task is called `nobody`") && none.stderr.contains("hint:"));
}

/// a copy of the directory is a whole backup.
#[test]
fn r_86_a_copy_of_the_stopped_runtime_directory_is_a_backup() {
    let mut rig = stopped();
    let before = finish(&mut rig.ostler(["task", "list", "--json"])).stdout;
    let copy = rig.scratch.path().join("copy");
    let copied = Command::new("cp").arg("-a").arg(rig.scratch.runtime_dir()).arg(&copy).status();
    assert!(copied.unwrap().success());
    fs::remove_dir_all(rig.scratch.runtime_dir()).unwrap();
    fs::rename(&copy, rig.scratch.runtime_dir()).unwrap();
    rig.start_daemon();
    assert_eq!(finish(&mut rig.ostler(["task", "list", "--json"])).stdout, before);
    // The same cursors: what came after the first event comes again, and no snapshot.
    let wire = rig.wire();
    let socket = Utf8PathBuf::from_path_buf(rig.scratch.socket()).unwrap();
    let options = ConnectOptions { resume_after: Some(1), ..ConnectOptions::default() };
    let update = wire.block_on(async {
        let (_client, mut updates) = Client::connect(&socket, options).await.unwrap();
        updates.next().await.unwrap().unwrap()
    });
    assert!(matches!(update, Update::Task { sequence: 2, .. }), "{update:?}");
}

/// Many ends with long output on a disk that stays full: each is recorded, the later ones in a shorter form,
/// and a repeated submission still learns that it arrived.
#[test]
fn r_58_a_disk_that_stays_full_has_room_for_every_end() {
    let mut rig = Rig::new();
    let dir = rig.scratch.runtime_dir();
    let Some(_mount) = Mount::new("stays_full", &dir, "size=10m,mode=0700") else { return };
    rig.configure("[tasks]\nlimit = 1\n");
    rig.start_daemon();
    let wire = rig.wire().without_updates();
    let work = rig.scratch.work();
    let cwd = work.to_str().unwrap();
    submit(&wire, "first", cwd, &["sh", "-c", "until [ -e go ]; do sleep 0.05; done"]).unwrap();
    // The first 32 use up most of what the journal has; the others would still need twice the rest.
    let ids: Vec<_> = (0..300).map(|n| format!("n{n}")).collect();
    for (n, id) in ids.iter().enumerate() {
        let (form, lines) = if n < 32 { ("%0500g", "500") } else { ("%090g", "100") };
        submit(&wire, id, cwd, &["seq", "-f", form, lines]).unwrap();
    }
    fill(&dir.join("filler"));
    let refusal = submit(&wire, "first", cwd, &["true"]).unwrap_err().to_string();
    assert_eq!(refusal, "task id already exists");
    fs::write(work.join("go"), "").unwrap();
    let last = rig.settled(ids.last().unwrap());
    assert!(is(&last, TaskStatus::Completed), "{last:?}");
    let refusal = submit(&wire, "late", cwd, &["true"]).unwrap_err().to_string();
    assert!(refusal.contains("the disk is full"), "{refusal}");
    rig.kill_daemon();
    let verified = finish(&mut rig.ostler(["journal", "verify"]));
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let listed = finish(&mut rig.ostler(["task", "list", "--json"]));
    let tasks: Vec<Value> = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(tasks.len(), ids.len() + 1);
    assert!(tasks.iter().all(|task| task["status"] == "TaskCompleted"));
}
