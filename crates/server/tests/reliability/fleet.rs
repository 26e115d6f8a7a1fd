//! Machines that work off a queue, and an account of what they were told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::child::LEASE_MAX;
use super::clients::Http;

/// How long a fleet may take for all its work.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long a claim waits for work.
const WAIT_SECONDS: u64 = 2;
/// Requests with output of one run, and lines of each.
const PARTS: u64 = 4;
const LINES: u64 = 5;

/// What the clients know.
#[derive(Debug, Default, Clone)]
pub(crate) struct Known {
    /// Lines that were sent, by task.
    pub(crate) sent: BTreeMap<String, BTreeSet<String>>,
    /// Lines that were accepted.
    pub(crate) acknowledged: BTreeMap<String, BTreeSet<String>>,
    pub(crate) completed: BTreeSet<String>,
    /// Every lease that was given, with its task.
    pub(crate) leases: BTreeMap<String, String>,
    /// When the holder of a task last asked for what then was granted.
    pub(crate) renewed: BTreeMap<String, Instant>,
    /// Runs whose lease was gone.
    pub(crate) lost: u64,
}

impl Known {
    /// Nobody is given what somebody else may hold: a lease lasts from its last renewal, which came after it was
    /// asked for.
    fn claimed(&mut self, task: &str, lease: &str, asked: Instant) {
        let twice = self.leases.insert(lease.to_owned(), task.to_owned());
        assert_eq!(twice, None, "a lease was given twice");
        if let Some(before) = self.renewed.insert(task.to_owned(), asked) {
            assert!(before.elapsed() >= LEASE_MAX, "{task} was held twice: {:?}", before.elapsed());
        }
    }
}

#[derive(Clone)]
pub(crate) struct Fleet {
    http: Http,
    tasks: usize,
    known: Arc<Mutex<Known>>,
    /// Requests that were answered.
    answered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Fleet {
    /// A fleet that works until so many tasks are completed.
    pub(crate) fn new(http: Http, tasks: usize) -> Self {
        let (known, answered, stop) = (Arc::default(), Arc::default(), Arc::default());
        Self { http, tasks, known, answered, stop }
    }

    /// Sets so many machines to work; ends when all is done.
    pub(crate) fn start(&self, machines: usize) -> tokio::task::JoinHandle<Known> {
        let fleet = self.clone();
        tokio::spawn(async move {
            let work = (0..machines).map(|number| fleet.machine(format!("m-{number}")));
            join_all(work).await;
            fleet.known.lock().unwrap().clone()
        })
    }

    fn is_done(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
            || self.known.lock().unwrap().completed.len() >= self.tasks
    }

    /// Tries that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.http.failed.load(Ordering::Relaxed)
    }

    /// Waits until so many more requests were answered; false when the work is done.
    pub(crate) async fn answers(&self, more: u64) -> bool {
        let goal = self.answered.load(Ordering::Relaxed) + more;
        let until = Instant::now() + PATIENCE;
        while self.answered.load(Ordering::Relaxed) < goal {
            if self.is_done() {
                return false;
            }
            assert!(Instant::now() < until, "no progress");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }

    async fn post(&self, path: &str, lease: Option<&str>, body: &Value) -> Vec<(u16, Value)> {
        let answers = self.http.post(path, lease, body).await;
        self.answered.fetch_add(1, Ordering::Relaxed);
        answers
    }

    async fn machine(&self, name: String) {
        let registration = json!({ "daemon_id": name, "name": name, "version": "0.3.0",
            "providers": ["claude_code"], "capabilities": {} });
        for (status, answer) in self.post("register", None, &registration).await {
            assert_eq!(status, 201, "{answer}");
        }
        let until = Instant::now() + PATIENCE;
        for number in 0u64.. {
            if self.is_done() {
                return;
            }
            assert!(Instant::now() < until, "not done: {:?}", self.known.lock().unwrap().lost);
            let beat = self.post("heartbeat", None, &json!({ "daemon_id": name })).await;
            assert!(beat.iter().all(|(status, _)| *status == 200), "{beat:?}");
            let claim = json!({ "daemon_id": name, "request_id": format!("{name}/{number}"),
                "wait_seconds": WAIT_SECONDS });
            let (mut given, asked) = (BTreeMap::new(), Instant::now());
            for (status, answer) in self.post("tasks/claim", None, &claim).await {
                assert!([200, 204].contains(&status), "{status} {answer}");
                if status == 200 {
                    let text = |name: &str| answer["data"][name].as_str().unwrap().to_owned();
                    given.insert(text("id"), text("lease_token"));
                }
            }
            assert!(given.len() <= 1, "one claim was given several tasks: {given:?}");
            if let Some((task, lease)) = given.pop_first() {
                self.known.lock().unwrap().claimed(&task, &lease, asked);
                if self.run(&task, &lease, &format!("{name}/{number}")).await.is_none() {
                    self.known.lock().unwrap().lost += 1;
                }
            }
        }
    }

    /// One run; none when its lease is gone.
    async fn run(&self, task: &str, lease: &str, run: &str) -> Option<()> {
        let path = |what: &str| format!("tasks/{task}/{what}");
        self.held(&path("start"), lease, &json!({}), 200).await?;
        let part = |part: u64| -> Vec<(u64, String)> {
            (part * LINES + 1..=(part + 1) * LINES)
                .map(|seq| (seq, format!("{run}:{seq}")))
                .collect()
        };
        let mut parts: Vec<_> = (0..PARTS).map(part).collect();
        if self.http.manner.unordered {
            // The last first, and all at once, overlapping.
            let mut all = parts.concat();
            all.rotate_left(usize::try_from(LINES).unwrap() / 2);
            parts.reverse();
            parts.push(all);
            let said = parts.iter().map(|lines| self.output(task, lease, lines));
            join_all(said).await.into_iter().collect::<Option<()>>()?;
        } else {
            for lines in &parts {
                self.output(task, lease, lines).await?;
            }
        }
        let session = json!({ "session_id": run, "work_dir": "/w" });
        self.held(&path("session"), lease, &session, 200).await?;
        let result = json!({ "result": { "summary": format!("Done by {run}."),
            "usage": { "cost_micros": 1_000 } } });
        self.held(&path("complete"), lease, &result, 200).await?;
        let new = self.known.lock().unwrap().completed.insert(task.to_owned());
        assert!(new, "{task} was completed twice");
        Some(())
    }

    async fn output(&self, task: &str, lease: &str, lines: &[(u64, String)]) -> Option<()> {
        let texts = || lines.iter().map(|(_, text)| text.clone());
        let messages: Vec<_> = lines
            .iter()
            .map(|(seq, text)| json!({ "seq": seq, "type": "assistant", "content": text }))
            .collect();
        self.known.lock().unwrap().sent.entry(task.to_owned()).or_default().extend(texts());
        let path = format!("tasks/{task}/messages");
        self.held(&path, lease, &json!({ "messages": messages }), 202).await?;
        let mut known = self.known.lock().unwrap();
        known.acknowledged.entry(task.to_owned()).or_default().extend(texts());
        Some(())
    }

    /// A call with a lease; none when that is gone.
    async fn held(&self, path: &str, lease: &str, body: &Value, expected: u16) -> Option<()> {
        let asked = Instant::now();
        let answers = self.post(path, Some(lease), body).await;
        let gone = |(status, answer): &(u16, Value)| {
            *status == 409
                && ["lease_lost", "lease_expired"].contains(&answer["code"].as_str().unwrap())
        };
        for answer in &answers {
            assert!(answer.0 == expected || gone(answer), "{path}: {answer:?}");
        }
        answers.iter().all(|answer| answer.0 == expected).then_some(())?;
        let mut known = self.known.lock().unwrap();
        let task = known.leases[lease].clone();
        let renewed = known.renewed.entry(task).or_insert(asked);
        *renewed = asked.max(*renewed);
        Some(())
    }
}
