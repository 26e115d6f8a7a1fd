//! Output: lines of 200 bytes in batches of 50, against `COPY` of the same rows into a table of the same shape.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::http::Client;
use crate::product::{Database, Product, Tokens};
use crate::report::{Target, note, row};
use crate::{Fault, Options, jobs, sql};

/// Tasks that stream at once, a connection each.
const STREAMS: usize = 24;
/// Lines of a batch.
const LINES: usize = 50;
/// Bytes of a line's text.
const LINE_BYTES: usize = 200;
/// Rows that are copied.
const COPIED: usize = 200_000;
/// Times that they are copied; the best counts.
const COPIES: usize = 3;

pub(crate) async fn measure(options: &Options) -> Result<(), Fault> {
    let Some(database) = Database::postgres(options, "lines")? else {
        note("output needs --postgres");
        return Ok(());
    };
    let tokens = database.init()?;
    database.sql(&sql::issues(STREAMS as u64))?;
    database.sql(&sql::agents("lines", STREAMS as u64, "claude_code", 4))?;
    database.sql(&sql::tasks("lines", STREAMS as u64))?;
    let product = database.serve("one")?;
    jobs::register(&product, &tokens).await?;
    let copied = copy(options, &database)?;
    let stored = stream(options, &product, &tokens).await?;
    note(&format!("COPY {copied:.0} rows/s, stored by the server {stored:.0} lines/s"));
    let part = stored / copied;
    row("lines stored a second, PostgreSQL, part of COPY's", part, "", Target::AtLeast(0.5));
    Ok(())
}

fn text(seed: usize) -> String {
    format!("{seed:08} ").repeat(LINE_BYTES.div_ceil(9)).chars().take(LINE_BYTES).collect()
}

async fn stream(options: &Options, product: &Product, tokens: &Tokens) -> Result<f64, Fault> {
    let stored: Rc<Cell<u64>> = Rc::default();
    let local = tokio::task::LocalSet::new();
    let begin = Instant::now() + Duration::from_secs(1);
    let end = begin + options.load;
    let mut streams = Vec::new();
    for at in 0..STREAMS {
        let client = Client::machine(product.address, &tokens.daemon, "streaming").await?;
        streams.push(local.spawn_local(one(client, at, begin, end, Rc::clone(&stored))));
    }
    let before = product.processor()?;
    local
        .run_until(async {
            for stream in streams {
                stream.await??;
            }
            Ok::<(), Fault>(())
        })
        .await?;
    let used = product.processor()?.saturating_sub(before).as_secs_f64();
    let all = stored.get() as f64;
    note(&format!("{:.1} us of the server's processor a line", used * 1e6 / all));
    Ok(all / (end - begin).as_secs_f64())
}

async fn one(
    mut client: Client,
    at: usize,
    begin: Instant,
    end: Instant,
    stored: Rc<Cell<u64>>,
) -> Result<(), Fault> {
    let body = r#"{"daemon_id":"bench"}"#;
    let claimed = client.expect(200, "/api/daemon/tasks/claim", None, body).await?;
    let task = claimed["data"]["id"].as_str().ok_or("no id")?;
    let lease = claimed["data"]["lease_token"].as_str();
    client.expect(200, &format!("/api/daemon/tasks/{task}/start"), lease, "{}").await?;
    let path = format!("/api/daemon/tasks/{task}/messages");
    let content = text(at);
    let (mut seq, mut body) = (0, String::new());
    while Instant::now() < end {
        body.clear();
        for line in 1..=LINES {
            let before = if line == 1 { r#"{"messages":["# } else { "," };
            let seq = seq + line;
            write!(body, r#"{before}{{"seq":{seq},"type":"assistant","content":"{content}"}}"#)?;
        }
        body.push_str("]}");
        seq += LINES;
        client.expect(202, &path, lease, &body).await?;
        if Instant::now() >= begin {
            stored.set(stored.get() + LINES as u64);
        }
    }
    Ok(())
}

/// Rows a second of `COPY` into an empty table like `messages`.
fn copy(options: &Options, database: &Database) -> Result<f64, Fault> {
    let file = options.dir.path().join("rows");
    let mut rows = String::new();
    for at in 0..COPIED {
        let (task, seq) = (at % STREAMS, at / STREAMS);
        writeln!(rows, "linesqueued{task}\t{seq}\tassistant\t{}\t\\N\t\\N\t0", text(task))?;
    }
    std::fs::write(&file, rows)?;
    let mut best = 0.0_f64;
    for _ in 0..COPIES {
        database.sql("DROP TABLE IF EXISTS copied")?;
        database.sql("CREATE TABLE copied (LIKE messages INCLUDING ALL)")?;
        let begin = Instant::now();
        database.sql(&format!("\\copy copied FROM '{}'", file.display()))?;
        best = best.max(COPIED as f64 / begin.elapsed().as_secs_f64());
    }
    Ok(best)
}
