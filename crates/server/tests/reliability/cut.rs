//! Connections to PostgreSQL end just before a statement reaches it, or just before its answer comes back: nobody can
//! tell whether it was done.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ostler_testkit::postgres::ScratchPostgres;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::child::{Made, start};
use super::clients::{Http, Manner};
use super::fleet::Known;
use super::held::register;
use super::stored::Stored;

/// What a connection ends over: a statement with this text, before it or after it.
#[derive(Clone, Copy)]
struct Cut {
    text: &'static str,
    is_done: bool,
}

/// Stands between a server and its database.
struct Proxy {
    address: SocketAddr,
    next: Arc<Mutex<Option<Cut>>>,
}

impl Proxy {
    async fn start(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let next: Arc<Mutex<Option<Cut>>> = Arc::default();
        let armed = Arc::clone(&next);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                for side in [&client, &server] {
                    side.set_nodelay(true).unwrap();
                }
                let ((from, back), (answers, to)) = (client.into_split(), server.into_split());
                let over = Arc::new(AtomicBool::new(false));
                let there = questions(from, to, Arc::clone(&armed), Arc::clone(&over));
                // Whichever ends first ends both.
                tokio::spawn(async move {
                    tokio::select! { _ = there => {}, _ = replies(answers, back, over) => {} }
                });
            }
        });
        Self { address, next }
    }

    fn arm(&self, text: &'static str, is_done: bool) {
        *self.next.lock().unwrap() = Some(Cut { text, is_done });
    }

    /// Whether no connection ended over it; none does any more.
    fn disarm(&self) -> bool {
        self.next.lock().unwrap().take().is_some()
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    over: Arc<AtomicBool>,
) -> Option<()> {
    let mut bytes = vec![0; 65_536];
    loop {
        let count = from.read(&mut bytes).await.ok().filter(|count| *count > 0)?;
        if over.load(Ordering::SeqCst) {
            return None;
        }
        to.write_all(&bytes[..count]).await.ok()?;
    }
}

/// Passes messages on, each when it is whole.
async fn questions(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    next: Arc<Mutex<Option<Cut>>>,
    over: Arc<AtomicBool>,
) -> Option<()> {
    let mut texts: HashMap<String, String> = HashMap::new();
    let length = from.read_u32().await.ok()?;
    let mut first = vec![0; length as usize - 4];
    from.read_exact(&mut first).await.ok()?;
    to.write_all(&[&length.to_be_bytes()[..], &first].concat()).await.ok()?;
    loop {
        let kind = from.read_u8().await.ok()?;
        let length = from.read_u32().await.ok()?;
        let mut body = vec![0; length as usize - 4];
        from.read_exact(&mut body).await.ok()?;
        let mut words = body.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let (one, two) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if kind == b'P' {
            texts.insert(one.into_owned(), two.into_owned());
        } else if kind == b'B' {
            let text = texts.get(&*two).cloned().unwrap_or_default();
            let cut = next.lock().unwrap().take_if(|cut| text.contains(cut.text));
            match cut {
                Some(Cut { is_done: false, .. }) => return None,
                Some(_) => over.store(true, Ordering::SeqCst),
                None => {}
            }
        }
        to.write_all(&[&[kind][..], &length.to_be_bytes(), &body].concat()).await.ok()?;
    }
}

/// Says it while the connection ends; and again, if it shall: the answers are one.
async fn say(http: &Http, is_again: bool, path: &str, lease: Option<&str>, body: &Value) -> Value {
    let (status, answer) = http.post(path, lease, body).await.remove(0);
    assert!(status < 300, "{path}: {status} {answer}");
    if !is_again {
        return answer;
    }
    let (again, same) = http.post(path, lease, body).await.remove(0);
    assert_eq!(again, status, "{path}: {same}");
    for name in ["status", "next_seq"] {
        assert_eq!(answer[name], same[name], "{path}");
    }
    assert_eq!(answer["data"]["lease_token"], same["data"]["lease_token"], "{path}");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cut_off_before_or_after_it_was_done_is_done_once() {
    let Some(postgres) = ScratchPostgres::shared("reliability/cut") else { return };
    let direct = postgres.create_database("cut");
    let made = Made::new(&direct).await;
    let port = url::Url::parse(&direct).unwrap().port().unwrap();
    let proxy = Proxy::start(port).await;
    let by = direct.replace(&format!(":{port}/"), &format!(":{}/", proxy.address.port()));
    let server = start(&format!("{by}?sslmode=disable")).await;
    let http = Http::new(vec![server.address()], made.daemon_token.clone(), Manner::default());
    register(&http).await;
    let (mut known, mut cuts) = (Known::default(), [0, 0]);
    let kinds =
        [("UPDATE tasks", false), ("UPDATE tasks", true), ("COMMIT", false), ("COMMIT", true)];
    for (number, (text, is_done)) in kinds.into_iter().enumerate() {
        made.queue(1).await;
        // Else a repeat would mend what was told and not done.
        let is_again = text != "COMMIT";
        let claim = json!({ "daemon_id": "m", "request_id": number.to_string() });
        proxy.arm(text, is_done);
        let given = say(&http, is_again, "tasks/claim", None, &claim).await["data"].take();
        cuts[usize::from(is_done)] += usize::from(!proxy.disarm());
        let (task, lease) =
            (given["id"].as_str().unwrap().to_owned(), given["lease_token"].as_str().unwrap());
        let line = format!("{number}:1");
        let messages = json!({ "messages": [{ "seq": 1, "type": "assistant", "content": line }] });
        let artifacts = json!([{ "type": "branch", "reference": "b" }]);
        let result = json!({ "result": { "summary": "Done.", "artifacts": artifacts } });
        let calls = [
            ("start", json!({})),
            ("messages", messages),
            ("session", json!({ "session_id": "s" })),
            ("complete", result),
        ];
        for (what, body) in calls {
            proxy.arm(text, is_done);
            say(&http, is_again, &format!("tasks/{task}/{what}"), Some(lease), &body).await;
            cuts[usize::from(is_done)] += usize::from(!proxy.disarm());
        }
        known.sent.entry(task.clone()).or_default().insert(line.clone());
        known.acknowledged.entry(task.clone()).or_default().insert(line);
        known.completed.insert(task);
    }
    println!("{cuts:?} connections were cut");
    assert!(cuts[0] >= 6 && cuts[1] >= 6, "{cuts:?}");
    made.admin.close().await;
    server.stop().await;
    Stored::read(&direct).await.compare(&known, kinds.len());
}
