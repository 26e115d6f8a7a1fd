//! How soon a machine that waits learns of work: from the request that assigns an issue to the claim's answer.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::Client;
use crate::product::{Database, Product, Tokens};
use crate::report::{Samples, Target, millis, note, row};
use crate::{Fault, Options, jobs, sql};

/// Assignments that are timed.
const TIMES: usize = 300;

pub(crate) async fn measure(options: &Options) -> Result<(), Fault> {
    let database = Database::sqlite(options, "wake")?;
    let tokens = database.init()?;
    prepare(&database)?;
    let one = database.serve("one")?;
    judge("SQLite", &time(&one, &one, &tokens).await?);
    drop(one);
    if let Some(database) = Database::postgres(options, "wake")? {
        let tokens = database.init()?;
        prepare(&database)?;
        let one = database.serve("one")?;
        judge("PostgreSQL", &time(&one, &one, &tokens).await?);
        let other = database.serve("two")?;
        judge("across two servers on one PostgreSQL", &time(&one, &other, &tokens).await?);
    }
    Ok(())
}

fn prepare(database: &Database) -> Result<(), Fault> {
    database.sql(&sql::agents("wake", 1, "claude_code", 1_000)).map(drop)
}

fn judge(what: &str, waits: &Samples) {
    note(&format!("{what}: {}", waits.summary()));
    let p50 = millis(waits.percentile(50));
    row(&format!("assigned to claimed, p50, {what}"), p50, "ms", Target::AtMost(5.0));
    let p99 = millis(waits.percentile(99));
    row(&format!("assigned to claimed, p99, {what}"), p99, "ms", Target::AtMost(25.0));
}

/// Assigns at one server, waits at another.
async fn time(assign: &Product, claim: &Product, tokens: &Tokens) -> Result<Samples, Fault> {
    jobs::register(claim, tokens).await?;
    let mut person = Client::person(assign.address, &tokens.api).await?;
    let capabilities = "streaming,long_poll";
    let mut machine = Client::machine(claim.address, &tokens.daemon, capabilities).await?;
    let mut samples = Samples::default();
    for at in 0..TIMES + 20 {
        let body = r#"{"daemon_id":"bench","wait_seconds":25}"#;
        let wait = machine.post("/api/daemon/tasks/claim", None, body);
        let assign = async {
            // The claim must wait before there is work.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let body = json!({ "title": "Wake", "assignee_type": "agent", "assignee_id": 1 });
            let begin = Instant::now();
            person.expect(201, "/api/v1/issues", None, &body.to_string()).await?;
            Ok::<_, Fault>(begin)
        };
        let (claimed, begin) = tokio::join!(timed(wait), assign);
        let (answered, (status, claimed)) = claimed?;
        if status != 200 {
            return Err(format!("the claim was answered {status}").into());
        }
        // The first ones warm caches up.
        if at >= 20 {
            samples.push(answered.duration_since(begin?));
        }
        let task = claimed["data"]["id"].as_str().ok_or("no id")?;
        let lease = claimed["data"]["lease_token"].as_str();
        let path = format!("/api/daemon/tasks/{task}/complete");
        machine.expect(200, &path, lease, r#"{"result":{}}"#).await?;
    }
    Ok(samples)
}

async fn timed<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<(Instant, T), Fault> {
    let value = work.await?;
    Ok((Instant::now(), value))
}
