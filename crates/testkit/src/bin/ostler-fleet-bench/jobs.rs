//! Claim, start and complete, as fast as 24 connections go.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::Client;
use crate::product::{Database, Product, Tokens};
use crate::report::{Target, note, row};
use crate::{Fault, Options, graphile, sql};

/// Connections, as many as graphile-worker gets.
pub(crate) const CONNECTIONS: usize = 24;
/// Agents the tasks are for.
const AGENTS: u64 = 24;
/// Tasks a second that are laid ready.
const TASKS_PER_SECOND: u64 = 8_000;
/// Time before the clock starts.
const WARM_UP: Duration = Duration::from_secs(1);

pub(crate) async fn measure(options: &Options) -> Result<(), Fault> {
    let mut postgres = None;
    if let Some(database) = Database::postgres(options, "jobs")? {
        postgres = Some(on(options, &database, "PostgreSQL").await?);
    }
    let own = postgres.unwrap_or(0.0);
    if let (Some(cluster), Some(rate)) = (&options.postgres, postgres) {
        match graphile::measure(options, cluster)? {
            Some(theirs) => {
                let target = Target::AtLeast(1.5);
                note(&format!(
                    "graphile-worker, one job at a time on 24 connections: {theirs:.0}/s"
                ));
                row(
                    "jobs a second, PostgreSQL, part of graphile-worker's",
                    rate / theirs,
                    "",
                    target,
                );
            }
            None => note("graphile-worker is not installed in GRAPHILE_DIR: no comparison"),
        }
    }
    let sqlite = on(options, &Database::sqlite(options, "jobs")?, "SQLite").await?;
    if own > 0.0 {
        row("the same on SQLite, part of PostgreSQL's", sqlite / own, "", Target::AtLeast(1.0));
    }
    Ok(())
}

async fn on(options: &Options, database: &Database, name: &str) -> Result<f64, Fault> {
    let tokens = database.init()?;
    let tasks = TASKS_PER_SECOND * (options.load + WARM_UP).as_secs();
    database.sql(&sql::issues(tasks))?;
    database.sql(&sql::agents("jobs", AGENTS, "claude_code", 64))?;
    database.sql(&sql::tasks("jobs", tasks))?;
    let product = database.serve("one")?;
    let rate = load(options, &product, &tokens).await?;
    row(&format!("claim, start, complete, 24 connections, {name}"), rate, "/s", Target::None);
    Ok(rate)
}

async fn load(options: &Options, product: &Product, tokens: &Tokens) -> Result<f64, Fault> {
    register(product, tokens).await?;
    let counts: Rc<Cell<(u64, u64)>> = Rc::default();
    let (begin, end) = (Instant::now() + WARM_UP, Instant::now() + WARM_UP + options.load);
    let local = tokio::task::LocalSet::new();
    let mut workers = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = Client::machine(product.address, &tokens.daemon, "streaming").await?;
        workers.push(local.spawn_local(work(client, begin, end, Rc::clone(&counts))));
    }
    let before = product.processor()?;
    local
        .run_until(async {
            for worker in workers {
                worker.await??;
            }
            Ok::<(), Fault>(())
        })
        .await?;
    let used = product.processor()?.saturating_sub(before);
    let (done, all) = counts.get();
    note(&format!(
        "{:.0} us of the server's processor a job",
        used.as_secs_f64() * 1e6 / all as f64
    ));
    Ok(done as f64 / options.load.as_secs_f64())
}

pub(crate) async fn register(product: &Product, tokens: &Tokens) -> Result<(), Fault> {
    let mut client = Client::machine(product.address, &tokens.daemon, "streaming").await?;
    let body = json!({ "daemon_id": "bench", "name": "bench", "version": "0.3.0",
        "providers": ["claude_code"], "capabilities": {} });
    client.expect(201, "/api/daemon/register", None, &body.to_string()).await.map(drop)
}

async fn work(
    mut client: Client,
    begin: Instant,
    end: Instant,
    counts: Rc<Cell<(u64, u64)>>,
) -> Result<(), Fault> {
    loop {
        let now = Instant::now();
        if now >= end {
            return Ok(());
        }
        let body = r#"{"daemon_id":"bench"}"#;
        let (status, claimed) = client.post("/api/daemon/tasks/claim", None, body).await?;
        if status != 200 {
            return Err(format!("a claim was answered {status}: {claimed}").into());
        }
        let task = claimed["data"]["id"].as_str().ok_or("no id")?;
        let lease = claimed["data"]["lease_token"].as_str();
        let path = format!("/api/daemon/tasks/{task}/start");
        client.expect(200, &path, lease, "{}").await?;
        let path = format!("/api/daemon/tasks/{task}/complete");
        let body = r#"{"result":{"summary":"Done."},"session_id":"s","work_dir":"/w"}"#;
        client.expect(200, &path, lease, body).await?;
        let (done, all) = counts.get();
        counts.set((done + u64::from(now >= begin), all + 1));
    }
}
