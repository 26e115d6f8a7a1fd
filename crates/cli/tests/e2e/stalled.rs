//! Clients that connect and read nothing, beside a real run that prints a lot.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ostler_host::client::{Client, ConnectOptions, Update};
use ostler_proto::framed::TaskStatus;
use ostler_testkit::process::wait_until;
use serde_json::{Value, json};

use crate::rig::{PATIENCE, Rig, Running, finish, is};

/// One burst of output, and how many there are, with a pause between: clients are told of output at most once
/// a second, and each time more than a socket holds.
const BURST_BYTES: usize = 16 * 1024 * 1024;
const BURSTS: usize = 5;

/// What the daemon may need more than without the clients that read nothing.
const MORE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// The lines of the output.
fn line() -> String {
    "x".repeat(500)
}

fn script() -> String {
    let burst = format!("yes {} | head -c {BURST_BYTES}", line());
    format!("for i in 1 2 3 4; do {burst}; sleep 1; done; {burst}")
}

/// Runs it to its end; how long that took.
fn run(rig: &Rig, id: &str) -> Duration {
    let mut wire = rig.wire();
    let began = Instant::now();
    let done = finish(&mut rig.ostler(["run", "-d", "--id", id, "--", "sh", "-c", &script()]));
    assert_eq!(done.code, Some(0), "{done:?}");
    // A client beside them sees the output grow, and the end.
    let mut tails = 0;
    let task = wire.until(id, |task| {
        tails += usize::from(task.status == TaskStatus::Running && !task.log_tail.is_empty());
        task.status.is_settled()
    });
    assert!(is(&task, TaskStatus::Completed) && tails >= 2, "{tails} tails: {:?}", task.status);
    assert!(task.log_tail.len() > 400, "{} lines", task.log_tail.len());
    began.elapsed()
}

/// All of it, byte for byte.
#[track_caller]
fn assert_whole(output: &[u8]) {
    assert_eq!(output.len(), BURSTS * BURST_BYTES);
    let line = line() + "\n";
    let whole = output
        .chunks(BURST_BYTES)
        .all(|burst| burst.chunks(line.len()).all(|part| part == &line.as_bytes()[..part.len()]));
    assert!(whole, "some of it is not what was printed");
}

/// The most memory the daemon ever had.
fn peak_bytes(rig: &Rig) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", rig.daemon().pid)).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn frame(body: &str) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_be_bytes(), body.as_bytes()].concat()
}

/// Shakes hands with this cursor.
fn hello(socket: &Path, resume_after: Option<u64>) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let hello = json!({"clientId": "s", "versions": [3], "resumeAfter": resume_after});
    let hello = json!({"type": "hello", "hello": hello}).to_string();
    stream.write_all(&frame(&hello)).unwrap();
    stream
}

/// The newest sequence there is.
fn current(socket: &Path) -> u64 {
    let mut stream = hello(socket, None);
    let mut header = [0; 4];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; u32::from_be_bytes(header) as usize];
    stream.read_exact(&mut body).unwrap();
    let welcome: Value = serde_json::from_slice(&body).unwrap();
    welcome["welcome"]["currentSequence"].as_u64().unwrap()
}

/// Whether the daemon has hung up on a client that still speaks.
fn is_closed(client: &mut UnixStream) -> bool {
    let pong = frame(r#"{"type":"pong","sequence":0}"#);
    match client.write_all(&pong) {
        Ok(()) => false,
        Err(error) => {
            let ends = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
            assert!(ends.contains(&error.kind()), "it is not even heard: {error}");
            true
        }
    }
}

/// The newest sequence among the whole frames that had reached it.
fn newest(mut stream: UnixStream) -> u64 {
    let mut bytes = Vec::new();
    // What follows a cut-off frame is an end or an error.
    let _ = stream.read_to_end(&mut bytes);
    let (mut rest, mut newest) = (&bytes[..], 0);
    while let Some((header, body)) = rest.split_first_chunk::<4>() {
        let Some((body, after)) = body.split_at_checked(u32::from_be_bytes(*header) as usize)
        else {
            break;
        };
        let message: Value = serde_json::from_slice(body).unwrap();
        let sequence = [&message["sequence"], &message["event"]["sequenceNumber"]];
        newest = sequence.into_iter().filter_map(|it| it.as_u64()).fold(newest, u64::max);
        rest = after;
    }
    newest
}

/// R-44: the run is as fast as without them, its output is whole, everybody else is told everything; they are
/// closed, cost next to nothing, and go on from their cursors.
#[test]
fn r_44_clients_that_read_nothing_beside_a_run_that_prints_a_lot() {
    let rig = Rig::configured("[wire]\nframe_deadline_seconds = 2\n");
    let alone = run(&rig, "alone");
    let peak_alone = peak_bytes(&rig);

    // They are up to date, so that it is the run's events that they do not take.
    let socket = rig.scratch.socket();
    let cursor = current(&socket);
    let mut clients: Vec<_> = (0..4).map(|_| hello(&socket, Some(cursor))).collect();
    let id = "beside";
    let follower = std::thread::scope(|scope| {
        let beside = scope.spawn(|| run(&rig, id));
        wait_until("the run is there", PATIENCE, || rig.run_dir(id).join("run.json").exists());
        let follower = Running::start(&mut rig.ostler(["task", "logs", "-f", "--raw", id]));
        let took = beside.join().unwrap();
        assert!(took < alone * 2 + Duration::from_secs(5), "{took:?}, alone {alone:?}");
        follower
    });
    assert_whole(&follower.finish().stdout_bytes);
    assert_whole(&rig.raw_logs(id));
    let peak = peak_bytes(&rig);
    assert!(peak < peak_alone + MORE_BYTES_MAX, "{peak} bytes, alone {peak_alone}");

    for client in &mut clients {
        wait_until("it is closed", PATIENCE, || is_closed(client));
    }
    let last = newest(clients.pop().unwrap());
    assert!(last > cursor, "it was told the beginning of the run");
    let options = ConnectOptions { resume_after: Some(last), ..ConnectOptions::default() };
    let socket = camino::Utf8PathBuf::from_path_buf(socket).unwrap();
    let wire = rig.wire().without_updates();
    let end = wire.block_on(async {
        let (_client, mut updates) = Client::connect(&socket, options).await.unwrap();
        let mut next = last + 1;
        loop {
            match updates.next().await.unwrap().expect("an update") {
                Update::Task { sequence, task } => {
                    assert_eq!(sequence, next, "none is missing");
                    next += 1;
                    if task.status.is_settled() && task.task_id == id {
                        return task;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    });
    assert!(is(&end, TaskStatus::Completed));
}
