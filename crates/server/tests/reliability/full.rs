//! The disk is full, on SQLite: what writes is told that the server cannot, nothing is saved in part, what reads goes
//! on; and with room again the same requests succeed.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::child::{Made, start};
use super::clients::{Http, Manner};
use super::fleet::Known;
use super::held::{Lease, claim, register, start as started};
use super::stored::{Stored, number};

/// Room for a database and its log, and not for long.
const DISK: &str = "size=12m";
/// What fills the rest is written in pieces of this size.
const PIECE_BYTES: usize = 4_096;
/// Requests that a full disk may still have room for, in the log that is there.
const REQUESTS_MAX: u64 = 3_000;

/// A disk of its own; dropped, it is gone.
struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    /// None where nobody may mount one.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(folder.path());
        if mount.output().is_ok_and(|output| output.status.success()) {
            return Some(Self { folder });
        }
        assert!(std::env::var_os("CI").is_none(), "no disk can be mounted here");
        eprintln!("skipped: no disk can be mounted here");
        None
    }

    fn ballast(&self) -> PathBuf {
        self.folder.path().join("ballast")
    }

    /// Takes all the room there is.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.ballast()).unwrap();
        while file.write_all(&[0; PIECE_BYTES]).is_ok() {}
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(self.folder.path());
    }
}

fn unmount(path: &Path) {
    // Lazily, since a test that failed has files open; an error shows as a folder that is left.
    let _ = Command::new("umount").arg("--lazy").arg(path).status();
}

/// A line of so many bytes, as a request.
fn lines(seq: u64, bytes: usize) -> (String, Value) {
    let text = format!("{}:{seq}", "x".repeat(bytes));
    let line = json!({ "seq": seq, "type": "assistant", "content": text });
    (text, json!({ "messages": [line] }))
}

async fn at(http: &Http, (task, lease): &Lease, what: &str, body: &Value) -> u16 {
    http.once(&format!("tasks/{task}/{what}"), Some(lease), body).await.expect("an answer").0
}

/// Says lines until one finds no room; what was acknowledged. The number of the one that was not is left in `seq`.
async fn until_full(http: &Http, held: &Lease, seq: &mut u64, bytes: usize, known: &mut Known) {
    for _ in 0..REQUESTS_MAX {
        let (text, body) = lines(*seq, bytes);
        known.sent.entry(held.0.clone()).or_default().insert(text.clone());
        match at(http, held, "messages", &body).await {
            202 => known.acknowledged.entry(held.0.clone()).or_default().insert(text),
            status => return assert_eq!(status, 503),
        };
        *seq += 1;
    }
    panic!("the disk does not get full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_what_writes_saves_nothing_in_part_and_is_over_when_there_is_room() {
    let Some(disk) = Disk::new() else { return };
    let database = format!("sqlite:{}", disk.folder.path().join("ostler.db").display());
    let made = Made::new(&database).await;
    made.queue(2).await;
    made.admin.close().await;
    let server = start(&database).await;
    let http = Http::new(vec![server.address()], made.daemon_token, Manner::default());
    register(&http).await;
    let (one, two) = (claim(&http).await.unwrap(), claim(&http).await.unwrap());
    for held in [&one, &two] {
        assert_eq!(started(&http, held).await.0, 200);
    }
    disk.fill();
    let (mut known, mut seq) = (Known::default(), 1);
    for bytes in [40_000, 10, 10] {
        until_full(&http, &one, &mut seq, bytes, &mut known).await;
        disk.fill();
    }
    let result = json!({ "result": { "summary": "Done.", "usage": { "cost_micros": 1_000 } } });
    for held in [&one, &two] {
        assert_eq!(at(&http, held, "complete", &result).await, 503);
    }
    let url = format!("http://{}/api/v1/tasks/{}/messages", server.address(), one.0);
    let read = reqwest::Client::new().get(url).bearer_auth(&made.people_token).send().await;
    assert_eq!(read.unwrap().status(), 200);
    let stored = "SELECT COUNT(*) FROM messages";
    let acknowledged = known.acknowledged.values().map(|it| it.len() as i64).sum::<i64>();
    assert_eq!(number(&database, stored).await, acknowledged, "in part");
    let running = "SELECT COUNT(*) FROM tasks WHERE state = 'running'";
    assert_eq!(number(&database, running).await, 2);
    fs::remove_file(disk.ballast()).unwrap();
    let (text, body) = lines(seq, 10);
    known.acknowledged.entry(one.0.clone()).or_default().insert(text);
    assert_eq!(at(&http, &one, "messages", &body).await, 202);
    for held in [&one, &two] {
        assert_eq!(at(&http, held, "complete", &result).await, 200);
        known.completed.insert(held.0.clone());
    }
    server.stop().await;
    Stored::read(&database).await.compare(&known, 2);
}
