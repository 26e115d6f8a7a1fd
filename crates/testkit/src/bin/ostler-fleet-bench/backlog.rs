//! A claim beside a million finished tasks, with ten thousand of a busy agent in front of it.

use std::time::Instant;

use crate::http::Client;
use crate::product::{Database, Product, Tokens};
use crate::report::{Samples, Target, millis, note, row};
use crate::{Fault, Options, jobs, sql};

/// Finished tasks.
const FINISHED: u64 = 1_000_000;
/// Queued tasks of the busy agent, all of them before the ones that are claimed.
const QUEUED: u64 = 10_000;
/// Claims that are timed.
const TIMES: u64 = 400;

pub(crate) async fn measure(options: &Options) -> Result<(), Fault> {
    let few = on(options, &Database::sqlite(options, "few")?, false).await?;
    let many = on(options, &Database::sqlite(options, "many")?, true).await?;
    judge("SQLite", &few, &many);
    let few = Database::postgres(options, "few")?;
    let many = Database::postgres(options, "many")?;
    if let (Some(few), Some(many)) = (few, many) {
        let few = on(options, &few, false).await?;
        let many = on(options, &many, true).await?;
        judge("PostgreSQL", &few, &many);
    }
    Ok(())
}

fn judge(what: &str, few: &Samples, many: &Samples) {
    note(&format!("{what}: without {}; with {}", few.summary(), many.summary()));
    let ratio = millis(many.percentile(50)) / millis(few.percentile(50));
    row(
        &format!("claim with a backlog, part of one without, {what}"),
        ratio,
        "",
        Target::AtMost(1.25),
    );
}

async fn on(_: &Options, database: &Database, backlog: bool) -> Result<Samples, Fault> {
    let tokens = database.init()?;
    database.sql(&sql::issues(QUEUED))?;
    database.sql(&sql::agents("busy", 1, "claude_code", 1))?;
    if backlog {
        database.sql(&sql::finished("busy", FINISHED, QUEUED))?;
        database.sql(&sql::tasks("busy", QUEUED))?;
        database.sql("ANALYZE")?;
    }
    let product = database.serve("one")?;
    jobs::register(&product, &tokens).await?;
    let mut client = Client::machine(product.address, &tokens.daemon, "streaming").await?;
    if backlog {
        // The busy agent's only place.
        let body = r#"{"daemon_id":"bench"}"#;
        client.expect(200, "/api/daemon/tasks/claim", None, body).await?;
    }
    database.sql(&sql::agents("free", 1, "claude_code", 100_000))?;
    database.sql(&sql::tasks("free", TIMES))?;
    // The server looks for itself every two seconds.
    tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
    time(&product, &tokens).await
}

async fn time(product: &Product, tokens: &Tokens) -> Result<Samples, Fault> {
    let mut client = Client::machine(product.address, &tokens.daemon, "streaming").await?;
    let mut samples = Samples::default();
    for at in 0..TIMES {
        let begin = Instant::now();
        let body = r#"{"daemon_id":"bench"}"#;
        client.expect(200, "/api/daemon/tasks/claim", None, body).await?;
        // The first ones warm caches up.
        if at >= TIMES / 4 {
            samples.push(begin.elapsed());
        }
    }
    Ok(samples)
}
