//! `ostler task list --all` and `ostler task limit`: every task there ever was, and how many run at once.

use std::collections::BTreeSet;
use std::fs;

use ostler_host::client::Update;
use ostler_proto::framed::{Submit, Task, TaskStatus};
use serde_json::{Value, json};

use crate::rig::{Rig, Running, Wire, finish};

/// The tasks that `ostler task list ARGS --json` prints.
fn listed(rig: &Rig, args: &[&str]) -> Vec<Value> {
    let done = finish(rig.ostler(["task", "list", "--json"]).args(args));
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

fn ids(tasks: &[Value]) -> Vec<&str> {
    tasks.iter().map(|task| task["taskId"].as_str().unwrap()).collect()
}

/// The rows of the table without its heading, each as its first two words.
fn table(rig: &Rig) -> Vec<(String, String)> {
    let done = finish(&mut rig.ostler(["task", "list", "--all"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    let row = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        (words.next().unwrap(), words.next().unwrap())
    };
    done.stdout.lines().skip(1).map(row).collect()
}

/// Whatever has left the live set, and however: everything is listed once, the oldest first, with what became
/// of it; also when no daemon runs, and the same after it was killed.
#[test]
fn list_all_shows_live_and_archived_tasks_with_and_without_a_daemon() {
    let mut rig = Rig::configured("[tasks]\nlive_max = 3\n");
    rig.detach("a-good", &["lines", "1"]);
    rig.settled("a-good");
    rig.detach("b-bad", &["exit", "3"]);
    rig.settled("b-bad");
    for id in ["c", "d"] {
        rig.detach(id, &["lines", "1"]);
        rig.settled(id);
    }
    rig.detach("e-stays", &["lines", "1", "--stay"]);
    rig.printed("e-stays", "line 1");

    let all = ["a-good", "b-bad", "c", "d", "e-stays"];
    let row = |(id, status): (&str, &str)| (id.to_owned(), status.to_owned());
    let ends = ["completed", "failed", "completed", "completed"];
    let rows = |last| all.into_iter().zip(ends.into_iter().chain([last])).map(row).collect();
    let live = listed(&rig, &[]);
    assert_eq!(ids(&live), all[2..], "the live set has its bound");
    let everything = listed(&rig, &["--all"]);
    assert_eq!(ids(&everything), all);
    assert_eq!(everything[2..], live, "a live task is shown as it is");
    assert_eq!(everything[1]["failure"]["class"], "exit_status", "{}", everything[1]);
    assert_eq!(everything[0]["receipt"]["exit"], json!({"code": 0}));
    assert_eq!(everything[0]["logTail"], json!(["line 1"]));
    let running: Vec<_> = rows("running");
    assert_eq!(table(&rig), running);
    assert_eq!(rig.show("b-bad"), everything[1], "an archived task is found by its id");

    rig.stop_daemon();
    let stopped = listed(&rig, &["--all"]);
    assert_eq!(ids(&stopped), all);
    assert_eq!(stopped[..4], everything[..4], "what was settled is the same");
    // R-78, in the archive's own record, too.
    assert_eq!(stopped[1]["logTail"], json!(["command exited with status 3"]));
    assert_eq!(ids(&listed(&rig, &[])), all[2..]);
    let interrupted: Vec<_> = rows("interrupted");
    assert_eq!(table(&rig), interrupted);
    assert!(rig.scratch.processes().is_empty(), "looking starts nothing");

    rig.start_daemon();
    assert_eq!(ids(&listed(&rig, &["--all"])), all);
    rig.kill_daemon();
    assert_eq!(table(&rig), interrupted);
}

/// A task is on its way into the archive for a while: in no moment is it missing from the list, not after a
/// `kill -9` in that moment either.
#[test]
fn list_all_misses_no_task_on_its_way_into_the_archive() {
    /// More than the appends after which the daemon lets tasks wait for the archive.
    const TASKS: usize = 60;
    let mut rig = Rig::configured("[tasks]\nlive_max = 2\n");
    let wire = rig.wire().without_updates();
    let expected: Vec<String> = (0..TASKS).map(|n| format!("t{n:02}")).collect();
    let mut lists = Vec::new();
    for (n, id) in expected.iter().enumerate() {
        run_to_its_end(&rig, &wire, id);
        if n % 8 == 7 {
            // Some are read while others leave.
            lists.push((n, Running::start(&mut rig.ostler(["task", "list", "--all", "--json"]))));
        }
    }
    for (n, running) in lists {
        let done = running.finish();
        let tasks: Vec<Value> = serde_json::from_str(&done.stdout).expect(&done.stderr);
        let shown = ids(&tasks);
        assert!(shown.len() > n && shown == expected[..shown.len()], "after {n}: {shown:?}");
    }
    assert_eq!(ids(&listed(&rig, &["--all"])), expected);
    assert_eq!(rig.show("t50")["status"], "TaskCompleted", "found by its id, too");
    rig.kill_daemon();
    assert_eq!(ids(&listed(&rig, &["--all"])), expected, "after kill -9");
    rig.start_daemon();
    assert_eq!(ids(&listed(&rig, &["--all"])), expected, "after the next start");
}

/// Submits `true` and waits for its end.
fn run_to_its_end(rig: &Rig, wire: &Wire, id: &str) {
    let submit = Submit {
        task_id: id.to_owned(),
        agent: Some("command".to_owned()),
        argv: vec!["true".to_owned()],
        cwd: rig.scratch.work().to_str().unwrap().to_owned(),
        ..Submit::default()
    };
    wire.block_on(wire.client.submit(submit)).expect("an answer");
    let settled =
        |tasks: &[Task]| tasks.iter().any(|task| task.task_id == id && task.status.is_settled());
    while !settled(&wire.block_on(wire.client.list()).expect("a list").tasks) {}
}

/// What a limit changes, as the events of the daemon tell it: who ran when.
#[test]
fn a_limit_set_by_hand_is_followed_up_and_down_and_remembered() {
    let mut rig = Rig::configured("[tasks]\nlimit = 4\n");
    let limit = |rig: &Rig, args: &[&str]| finish(rig.ostler(["task", "limit"]).args(args));
    let mut wire = rig.wire();
    let done = limit(&rig, &["1"]);
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(0), "up to 1 tasks run at once\n"),
        "{done:?}"
    );

    let detach = |id: &str| {
        let script = format!("echo ready; until [ -e go-{id} ]; do sleep 0.02; done");
        let done = finish(&mut rig.ostler(["run", "-d", "--id", id, "--", "sh", "-c", &script]));
        assert_eq!(done.code, Some(0), "{done:?}");
    };
    ["a", "b", "c", "d"].iter().for_each(|id| detach(id));
    rig.printed("a", "ready");
    // Upwards it counts at once: nobody has ended yet.
    let done = limit(&rig, &["3", "--json"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(
        serde_json::from_str::<Value>(&done.stdout).unwrap(),
        json!({"version": 1, "limit": 3})
    );
    rig.printed("b", "ready");
    rig.printed("c", "ready");
    // Downwards it ends nobody, and nobody starts until it is kept again.
    assert_eq!(limit(&rig, &["1"]).code, Some(0));
    for id in ["a", "b", "c", "d"] {
        fs::write(rig.scratch.work().join(format!("go-{id}")), "").unwrap();
        assert_eq!(rig.settled(id).status, TaskStatus::Completed);
    }

    let (mut running, mut allowed, mut starts) = (BTreeSet::new(), 4, Vec::new());
    while starts.len() < 4 {
        match wire.next_update() {
            Update::Limit { limit, .. } => allowed = limit,
            Update::Task { task, .. } if task.status == TaskStatus::Running => {
                if running.insert(task.task_id.clone()) {
                    starts.push((task.task_id.clone(), running.len(), allowed));
                }
            }
            Update::Task { task, .. } => drop(running.remove(&task.task_id)),
            Update::Snapshot(_) => {}
        }
    }
    let start = |id: &str, running, allowed| (id.to_owned(), running, allowed);
    assert_eq!(starts, [start("a", 1, 1), start("b", 2, 3), start("c", 3, 3), start("d", 1, 1)]);

    for wrong in ["0", "33", "many"] {
        let done = limit(&rig, &[wrong]);
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{wrong}: {done:?}");
    }
    // Remembered: the configuration says 4.
    drop(wire);
    rig.stop_daemon();
    rig.start_daemon();
    rig.detach("e", &["lines", "1", "--stay"]);
    rig.printed("e", "line 1");
    rig.detach("f", &["lines", "1"]);
    rig.cancel("e");
    let ended = rig.settled("f");
    let began = ended.receipt.unwrap().started_at.unwrap();
    let before = rig.show("e")["receipt"]["ended_at"].as_str().unwrap().to_owned();
    assert!(began >= before, "f began at {began}, e ended at {before}");
}

#[test]
fn what_the_daemon_refuses_comes_with_what_to_do_about_it() {
    let rig = Rig::serving();
    rig.detach("good", &["lines", "1"]);
    rig.settled("good");
    rig.detach("stays", &["lines", "1", "--stay"]);
    rig.printed("stays", "line 1");
    let asking = ["run", "-a", "command", "--permissions", "ask", "--", "true"];
    for (args, said, hint) in [
        (&["task", "cancel", "good"][..], "task is not active", "`ostler task show` says how"),
        (&["task", "retry", "good"], "completed tasks cannot be retried", "with `ostler run`"),
        (&["task", "retry", "stays"], "active tasks cannot be retried", "`ostler task cancel`"),
        (&["run", "--id", "good", "--", "true"], "already exists", "`ostler task show good`"),
        (&asking, "has no permissions `ask`", "with `--permissions`"),
    ] {
        let done = finish(&mut rig.ostler(args));
        assert_eq!(done.code, Some(4), "{args:?}: {done:?}");
        let told = done.stderr.split_once("hint: ").expect(&done.stderr);
        assert!(told.0.contains(said) && told.1.contains(hint), "{args:?}: {done:?}");
    }
    // Whoever submits over the wire may name an agent that this daemon does not know.
    let wire = rig.wire().without_updates();
    let submit = Submit {
        task_id: "odd".to_owned(),
        agent: Some("nobody".to_owned()),
        prompt: "hello".to_owned(),
        cwd: "/".to_owned(),
        ..Submit::default()
    };
    let error = wire.block_on(wire.client.submit(submit)).unwrap_err().to_string();
    assert!(error.contains("` is unknown; known agents: "), "its hint hangs on this: {error}");
    rig.cancel("stays");
}
