//! The real server as a process, and what it needs before it is loaded.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Fault, Options, sql};

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(20);

/// Where a server keeps what it knows.
#[derive(Clone)]
pub(crate) struct Database {
    pub(crate) url: String,
    home: PathBuf,
    ostler: PathBuf,
}

/// A server that runs; killed when it is dropped.
pub(crate) struct Product {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// Tokens of the workspace `bench`.
pub(crate) struct Tokens {
    pub(crate) api: String,
    pub(crate) daemon: String,
}

impl Database {
    /// A new SQLite file.
    pub(crate) fn sqlite(options: &Options, name: &str) -> Result<Self, Fault> {
        let home = options.dir.path().join(name);
        std::fs::create_dir_all(&home)?;
        let url = format!("sqlite:{}", home.join("ostler.db").display());
        Ok(Self { url, home, ostler: options.ostler.clone() })
    }

    /// A new database of the cluster, if there is one.
    pub(crate) fn postgres(options: &Options, name: &str) -> Result<Option<Self>, Fault> {
        let Some(cluster) = &options.postgres else { return Ok(None) };
        let home = options.dir.path().join(format!("pg-{name}"));
        std::fs::create_dir_all(&home)?;
        let admin = format!("{cluster}/postgres");
        sql::postgres(&admin, &format!("DROP DATABASE IF EXISTS bench_{name}"))?;
        sql::postgres(&admin, &format!("CREATE DATABASE bench_{name}"))?;
        let url = format!("{cluster}/bench_{name}");
        Ok(Some(Self { url, home, ostler: options.ostler.clone() }))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.ostler);
        command.env("OSTLER_HOME", &self.home).arg("server").args(words);
        command.args(["--database", &self.url]).stdin(Stdio::null());
        command
    }

    fn json(&self, words: &[&str]) -> Result<Value, Fault> {
        let done = self.command(words).output()?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned().into());
        }
        Ok(serde_json::from_slice(&done.stdout)?)
    }

    /// Makes tables, a workspace and tokens.
    pub(crate) fn init(&self) -> Result<Tokens, Fault> {
        let words = ["init", "--workspace", "bench", "--email", "bench@example.com", "--json"];
        let made = self.json(&words)?;
        let text = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
        Ok(Tokens { api: text("api_token"), daemon: text("daemon_token") })
    }

    /// Runs SQL in it.
    pub(crate) fn sql(&self, text: &str) -> Result<String, Fault> {
        if self.url.starts_with("postgres") {
            return sql::postgres(&self.url, text);
        }
        sql::sqlite(Path::new(self.url.trim_start_matches("sqlite:")), text)
    }

    /// Starts a server on it.
    pub(crate) fn serve(&self, name: &str) -> Result<Product, Fault> {
        let home = self.home.join(name);
        std::fs::create_dir_all(&home)?;
        let key = self.home.join("server/secret.key");
        let mut command = self.command(&["--listen", "127.0.0.1:0"]);
        if let Ok(key) = std::fs::read(&key) {
            // A second server has the first one's key.
            std::fs::create_dir_all(home.join("server"))?;
            let copy = home.join("server/secret.key");
            std::fs::write(&copy, key)?;
            std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        }
        command.env("OSTLER_HOME", &home).stdout(Stdio::null()).stderr(Stdio::null());
        for bucket in ["REGISTER", "HEARTBEAT", "CLAIM", "TASKS"] {
            // The load is one token's; the limits would measure themselves.
            command.env(format!("FELAGI_DAEMON_THROTTLE_{bucket}"), "100000000");
        }
        let child = command.spawn()?;
        let mut product = Product { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let url = home.join("server/url");
        let until = Instant::now() + START_MAX;
        loop {
            let text = std::fs::read_to_string(&url).unwrap_or_default();
            if let Some(address) = text.trim().strip_prefix("http://") {
                product.address = address.trim_end_matches('/').parse()?;
                return Ok(product);
            }
            if Instant::now() > until || product.child.try_wait()?.is_some() {
                return Err("the server did not start".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Product {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processor time so far: user and system.
    pub(crate) fn processor(&self) -> Result<Duration, Fault> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let after = stat.rsplit_once(')').ok_or("no stat")?.1;
        let mut fields = after.split_whitespace().skip(11);
        let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let ticks = ticks() + ticks();
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }

    /// Memory that is its own.
    pub(crate) fn private_bytes(&self) -> Result<u64, Fault> {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid()))?;
        let kib = smaps
            .lines()
            .filter(|line| line.starts_with("Private_"))
            .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        Ok(kib.sum::<u64>() * 1024)
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // A process that is gone already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
