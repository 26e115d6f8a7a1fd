//! The Rust client against a server that says and does what the test wants.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;

use camino::Utf8PathBuf;
use ostler_host::client::{Client, ClientError, ConnectOptions, Update, Updates};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::raw::{DEADLINE, frame};

/// More events than the client keeps for somebody who takes none.
const EVENTS: u64 = 1_100;

struct Script {
    folder: tempfile::TempDir,
    server: JoinHandle<()>,
}

impl Script {
    /// Serves one client: takes its hello, welcomes it, and goes on with `then`.
    fn new(then: impl FnOnce(UnixStream) + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            assert_eq!(take(&mut stream)["type"], "hello");
            let welcome = json!({"version": 3, "currentSequence": 0, "heartbeatSeconds": 60});
            say(&mut stream, &json!({"type": "welcome", "welcome": welcome}));
            then(stream);
        });
        Self { folder, server }
    }

    async fn connect(&self) -> (Client, Updates) {
        let socket = Utf8PathBuf::from_path_buf(self.folder.path().join("s")).unwrap();
        Client::connect(&socket, ConnectOptions::default()).await.unwrap()
    }
}

fn say(stream: &mut UnixStream, message: &Value) {
    stream.write_all(&frame(message.to_string().as_bytes())).unwrap();
}

fn take(stream: &mut UnixStream) -> Value {
    let mut header = [0; 4];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; u32::from_be_bytes(header) as usize];
    stream.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn event(sequence: u64, kind: &str) -> Value {
    let payload = json!({"version": 1, "limit": 7});
    json!({"type": "event", "event": {
        "sequenceNumber": sequence, "eventType": kind, "payload": payload
    }})
}

fn is_closed<T>(result: &Result<T, ClientError>) -> bool {
    matches!(result, Err(ClientError::Closed(_)))
}

/// also while the client's own reader is held up, because nobody takes its updates.
#[tokio::test]
async fn r_89_no_call_waits_for_a_daemon_that_is_gone() {
    let script = Script::new(|mut stream| {
        (1..=EVENTS).for_each(|n| say(&mut stream, &event(n, "scheduler_limit_changed")));
        assert_eq!(take(&mut stream)["command"]["type"], "list");
    });
    let (client, _updates) = script.connect().await;
    let asking = client.clone();
    let outstanding = tokio::spawn(async move { asking.list().await });
    let server = script.server;
    tokio::task::spawn_blocking(move || server.join()).await.unwrap().unwrap();
    let later = timeout(DEADLINE, client.list()).await.expect("an end of the later call");
    assert!(is_closed(&later), "{later:?}");
    let first = timeout(DEADLINE, outstanding).await.expect("an end of the first call").unwrap();
    assert!(is_closed(&first), "{first:?}");
    let after = timeout(DEADLINE, client.list()).await.expect("an end of the last call");
    assert!(is_closed(&after), "{after:?}");
}

/// not even a call whose message has found no place yet.
#[tokio::test]
async fn r_89_no_call_waits_behind_a_daemon_that_takes_nothing() {
    let (told, wait) = std::sync::mpsc::channel();
    let (done, end) = std::sync::mpsc::channel();
    let script = Script::new(move |mut stream| {
        wait.recv_timeout(DEADLINE).unwrap();
        say(&mut stream, &json!({"type": "nonsense"}));
        // Open until everybody was answered, and nothing is read.
        end.recv_timeout(DEADLINE).unwrap();
    });
    let (client, _updates) = script.connect().await;
    let id = "x".repeat(8_000);
    let calls: Vec<_> = (0..EVENTS)
        .map(|_| {
            let (client, id) = (client.clone(), id.clone());
            tokio::spawn(async move { client.cancel(&id).await })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    told.send(()).unwrap();
    for call in calls {
        let answer = timeout(DEADLINE / 2, call).await.expect("an end of the call").unwrap();
        assert!(is_closed(&answer), "{answer:?}");
    }
    done.send(()).unwrap();
    script.server.join().unwrap();
}

/// a later daemon may tell what this client does not know.
#[tokio::test]
async fn r_89_an_event_of_an_unknown_type_is_passed_over_and_counted() {
    let script = Script::new(|mut stream| {
        for (sequence, kind) in [
            (1, "scheduler_limit_changed"),
            (2, "weather_changed"),
            (3, "scheduler_limit_changed"),
            (5, "weather_changed"),
        ] {
            say(&mut stream, &event(sequence, kind));
        }
    });
    let (_client, mut updates) = script.connect().await;
    for expected in [1, 3] {
        let update = timeout(DEADLINE, updates.next()).await.unwrap().unwrap();
        assert!(matches!(update, Some(Update::Limit { sequence, .. }) if sequence == expected));
    }
    let gap = timeout(DEADLINE, updates.next()).await.unwrap();
    assert!(matches!(gap, Err(ClientError::Protocol(_))), "a gap is one in any type: {gap:?}");
}
