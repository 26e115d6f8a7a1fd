//! graphile-worker beside us: the same number of connections, jobs that do nothing, one at a time.
//!
//! `GRAPHILE_DIR` is a folder in which `npm install graphile-worker pg` was run.

use std::process::Command;

use crate::jobs::CONNECTIONS;
use crate::{Fault, Options, sql};

/// Jobs that it works off.
const JOBS: u64 = 20_000;

/// Works off jobs that are there, and prints how many a second. `localQueue` and batching stay off.
const PROGRAM: &str = r#"
const { run, runMigrations } = require("graphile-worker");
const { Pool } = require("pg");
const [url, connections, jobs] = process.argv.slice(2);
(async () => {
  const pgPool = new Pool({ connectionString: url, max: Number(connections) });
  await runMigrations({ pgPool });
  await pgPool.query("SELECT graphile_worker.add_job('noop', '{}') FROM generate_series(1, $1::int)", [jobs]);
  await pgPool.query("ANALYZE");
  let done = 0, begin = 0, runner;
  const noop = async () => {
    if (done === 0) begin = process.hrtime.bigint();
    if (++done === Number(jobs)) {
      const seconds = Number(process.hrtime.bigint() - begin) / 1e9;
      console.log(Number(jobs) / seconds);
      process.exit(0);
    }
  };
  await run({ pgPool, concurrency: Number(connections), noHandleSignals: true, pollInterval: 100, taskList: { noop } });
})().catch((error) => { console.error(error.message); process.exit(1); });
"#;

/// Its jobs a second; nothing when it is not installed.
pub(crate) fn measure(options: &Options, cluster: &str) -> Result<Option<f64>, Fault> {
    let Some(folder) = std::env::var_os("GRAPHILE_DIR") else { return Ok(None) };
    let admin = format!("{cluster}/postgres");
    sql::postgres(&admin, "DROP DATABASE IF EXISTS bench_graphile")?;
    sql::postgres(&admin, "CREATE DATABASE bench_graphile")?;
    let program = options.dir.path().join("graphile.js");
    std::fs::write(&program, PROGRAM)?;
    let mut command = Command::new("node");
    command
        .arg(&program)
        .arg(format!("{cluster}/bench_graphile"))
        .args([CONNECTIONS.to_string(), JOBS.to_string()])
        .env("NODE_PATH", std::path::Path::new(&folder).join("node_modules"))
        .env("GRAPHILE_LOGGER_DEBUG", "0")
        .current_dir(options.dir.path());
    let done = command.output()?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned().into());
    }
    let text = String::from_utf8_lossy(&done.stdout);
    let rate = text.lines().rev().find_map(|line| line.trim().parse::<f64>().ok());
    Ok(Some(rate.ok_or("graphile-worker told no rate")?))
}
