//! Ten thousand machines that have nothing to do: each polls every 3 s and beats every 15 s, on time whether the
//! server is late or not, and waits are counted from the moment a request was due.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::Client;
use crate::product::{Database, Product, Tokens};
use crate::report::{Samples, Target, millis, note, row};
use crate::{Fault, Options};

/// Machines, each with a connection of its own.
const MACHINES: usize = 10_000;
/// Time between two polls of a machine.
const POLL_EVERY: Duration = Duration::from_secs(3);
/// Polls between two heartbeats.
const POLLS_PER_BEAT: u32 = 5;
/// Machines that register at once.
const REGISTER_AT_ONCE: usize = 50;

#[derive(Default)]
struct Seen {
    waits: Samples,
    requests: u64,
    wrong: u64,
}

pub(crate) async fn measure(options: &Options) -> Result<(), Fault> {
    on(options, &Database::sqlite(options, "idle")?, "SQLite").await?;
    if let Some(database) = Database::postgres(options, "idle")? {
        on(options, &database, "PostgreSQL").await?;
    }
    Ok(())
}

async fn on(options: &Options, database: &Database, name: &str) -> Result<(), Fault> {
    let tokens = database.init()?;
    let product = database.serve("one")?;
    let local = tokio::task::LocalSet::new();
    local.run_until(load(options, &product, &tokens, name)).await
}

async fn load(
    options: &Options,
    product: &Product,
    tokens: &Tokens,
    name: &str,
) -> Result<(), Fault> {
    let mut clients = Vec::with_capacity(MACHINES);
    for first in (0..MACHINES).step_by(REGISTER_AT_ONCE) {
        let some =
            (first..MACHINES.min(first + REGISTER_AT_ONCE)).map(|at| register(product, tokens, at));
        clients.extend(futures_util::future::try_join_all(some).await?);
    }
    let seen: Rc<RefCell<Seen>> = Rc::default();
    let begin = Instant::now() + Duration::from_millis(200);
    let rounds = u32::try_from(options.load.as_secs().max(15) / POLL_EVERY.as_secs())?;
    let before = product.processor()?;
    let machines = clients.into_iter().enumerate().map(|(at, client)| {
        let phase = POLL_EVERY.mul_f64(at as f64 / MACHINES as f64);
        tokio::task::spawn_local(live(client, at, begin + phase, rounds, Rc::clone(&seen)))
    });
    for machine in machines.collect::<Vec<_>>() {
        machine.await??;
    }
    let used = product.processor()?.saturating_sub(before);
    let seen = seen.borrow();
    let seconds = begin.elapsed().as_secs_f64();
    note(&format!(
        "{name}: {MACHINES} machines, {} requests in {seconds:.0} s; answered in {}; private {:.0} MiB",
        seen.requests,
        seen.waits.summary(),
        product.private_bytes()? as f64 / 1048576.0
    ));
    row(&format!("requests not served, {name}"), seen.wrong as f64, "", Target::AtMost(0.0));
    let p99 = millis(seen.waits.percentile(99));
    row(&format!("idle machines, answered in, p99, {name}"), p99, "ms", Target::AtMost(25.0));
    let each = used.as_secs_f64() * 1e6 / seen.requests as f64;
    row(&format!("server's processor a request, {name}"), each, "us", Target::AtMost(120.0));
    Ok(())
}

async fn register(product: &Product, tokens: &Tokens, at: usize) -> Result<Client, Fault> {
    let mut client = Client::machine(product.address, &tokens.daemon, "streaming").await?;
    let body = json!({ "daemon_id": format!("m{at}"), "name": format!("m{at}"), "version": "0.3.0",
        "providers": ["claude_code"], "capabilities": {} });
    client.expect(201, "/api/daemon/register", None, &body.to_string()).await?;
    Ok(client)
}

/// One machine's polls and beats, each when it is due.
async fn live(
    mut client: Client,
    at: usize,
    first: Instant,
    rounds: u32,
    seen: Rc<RefCell<Seen>>,
) -> Result<(), Fault> {
    let body = format!(r#"{{"daemon_id":"m{at}"}}"#);
    for round in 0..rounds {
        let due = first + POLL_EVERY * round;
        tokio::time::sleep_until(due.into()).await;
        request(&mut client, "/api/daemon/tasks/claim", &body, 204, due, &seen).await?;
        if (round + u32::try_from(at)?) % POLLS_PER_BEAT == 0 {
            let due = due.max(Instant::now());
            request(&mut client, "/api/daemon/heartbeat", &body, 200, due, &seen).await?;
        }
    }
    Ok(())
}

async fn request(
    client: &mut Client,
    path: &str,
    body: &str,
    right: u16,
    due: Instant,
    seen: &RefCell<Seen>,
) -> Result<(), Fault> {
    let (status, _) = client.post(path, None, body).await?;
    let mut seen = seen.borrow_mut();
    seen.requests += 1;
    seen.wrong += u64::from(status != right);
    seen.waits.push(due.elapsed());
    Ok(())
}
