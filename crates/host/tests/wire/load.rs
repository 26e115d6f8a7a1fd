//! Clients that do not read, and many at once.

use std::time::{Duration, Instant};

use serde_json::json;

use super::mirror::Mirror;
use super::raw::{Raw, frame, submit, wait_for};
use super::replay::fill_tail;
use super::rig::Rig;
use super::runner::AT_ONCE;

fn at_once(task: &str) -> serde_json::Value {
    let mut command = submit(task);
    command["prompt"] = json!(AT_ONCE);
    command
}

/// R-44: closed when its socket took nothing for the deadline; nobody else waits for it.
#[test]
fn r_44_a_client_that_reads_nothing_is_closed_and_delays_nobody() {
    let rig = Rig::with(|settings| settings.wire.frame_deadline = Duration::from_secs(5));
    let mut stuck = rig.client();
    let mut mirror = rig.mirror().opened();
    let mut raw = rig.client();
    // More than a socket's buffer holds.
    rig.running(&mut raw, "big");
    fill_tail(&rig, "big");
    rig.runner.complete("big");
    mirror.until_status("big", "TaskCompleted");
    for n in 0..20 {
        raw.call(&at_once(&format!("t{n}"))).unwrap();
        mirror.until_status(&format!("t{n}"), "TaskCompleted");
    }
    // None of that waited for it: its deadline has not even passed.
    assert!(stuck.try_bytes(&frame(br#"{"type":"pong","sequence":0}"#)), "it is still connected");
    wait_for("the end of the stuck client", || {
        (!stuck.try_bytes(&frame(br#"{"type":"pong","sequence":0}"#))).then_some(())
    });
    mirror.raw.list();
}

/// R-44: a burst closes nobody. The client reads nothing while it lasts, and all of it afterwards.
#[test]
fn r_44_a_burst_closes_nobody() {
    let rig = Rig::new();
    const TASKS: u64 = 500;
    let mut sleepers: Vec<_> = (0..5).map(|_| rig.mirror()).collect();
    let mut raw = rig.client();
    let ids: Vec<_> = (0..TASKS).map(|n| raw.command(&at_once(&format!("t{n}")))).collect();
    for id in ids {
        raw.result(&id).unwrap();
    }
    let mut faithful = rig.mirror();
    faithful.until_sequence(3 * TASKS);
    for sleeper in &mut sleepers {
        sleeper.until_sequence(3 * TASKS);
        assert_eq!(sleeper.known, faithful.known);
        let bytes = sleeper.raw.received.len();
        assert!(bytes > 500_000, "{bytes} bytes are no burst");
    }
}

/// R-44: a cursor that falls out of what is kept is closed, and starts again with a snapshot.
#[test]
fn r_44_a_client_that_falls_out_of_what_is_kept_is_closed_and_resumes() {
    let rig = Rig::with(|settings| {
        settings.feed.events_max = 50;
        settings.feed.events_bytes_max = 64 * 1024;
        settings.feed.backlog_bytes_max = 64 * 1024;
    });
    let mut sleeper = rig.mirror().opened();
    let mut raw = rig.client();
    for batch in 0..10 {
        let ids: Vec<_> =
            (0..30).map(|n| raw.command(&at_once(&format!("t{batch}-{n}")))).collect();
        for id in ids {
            raw.result(&id).unwrap();
        }
    }
    let mut faithful = rig.mirror();
    faithful.until_sequence(900);
    while sleeper.take() {}
    assert!(sleeper.known.last < 900, "it was closed before it had everything");
    let mut again = Mirror::connect(&rig.socket(), Some(sleeper.known));
    again.until_sequence(900);
    assert_eq!((again.snapshots, &again.known), (1, &faithful.known));
}

/// The original serves eight; this one serves all.
#[test]
fn many_clients_see_the_same() {
    let rig = Rig::new();
    let mut clients: Vec<_> = (0..200).map(|_| rig.mirror()).collect();
    let mut raw = rig.client();
    for n in 0..10 {
        raw.call(&at_once(&format!("t{n}"))).unwrap();
    }
    for client in &mut clients {
        client.until_sequence(30);
    }
    assert!(clients.iter().all(|client| client.known == clients[0].known));
}

/// R-44: one that sends commands and takes no answers is not read further, and holds up nobody.
#[test]
fn a_client_that_takes_no_answers_holds_up_nobody() {
    let rig = Rig::with(|settings| settings.wire.frame_deadline = Duration::from_millis(1_000));
    let mut raw = rig.client();
    for n in 0..50 {
        raw.call(&at_once(&format!("t{n}"))).unwrap();
    }
    let greedy = rig.client();
    let mut stream = greedy.stream();
    let flood = std::thread::spawn(move || {
        use std::io::Write as _;
        let list = r#"{"type":"command","id":"x","command":{"version":1,"type":"list"}}"#;
        let many = frame(list.as_bytes()).repeat(1_000);
        // Ends when the daemon closes the connection.
        while stream.write_all(&many).is_ok() {}
    });
    let begin = Instant::now();
    let mut served = 0;
    while !flood.is_finished() {
        assert_eq!(raw.list().len(), 50);
        served += 1;
        assert!(begin.elapsed() < super::raw::DEADLINE, "it was never closed");
    }
    assert!(served > 5, "{served} lists were answered meanwhile");
    flood.join().unwrap();
}

/// R-67: after a connection was cut, `list` tells whether it happened.
#[test]
fn r_67_a_list_tells_whether_a_cut_off_mutation_happened() {
    let rig = Rig::new();
    for n in 0..30 {
        let task = format!("t{n}");
        let (mut raw, _) = Raw::hello(&rig.socket(), None);
        raw.command(&submit(&task));
        drop(raw);
        let mut raw = rig.client();
        let happened = raw.list().iter().any(|it| it["taskId"] == *task);
        match raw.submit(&task) {
            Ok(_) => assert!(!happened, "it was there"),
            Err(error) => assert_eq!(error, "task id already exists"),
        }
        raw.on("cancel", &task).unwrap();
    }
    let started = rig.runner.started();
    let distinct: std::collections::BTreeSet<_> = started.iter().collect();
    assert_eq!(distinct.len(), started.len(), "none ran twice");
}
