//! What a server is told at its start.

use std::net::SocketAddr;
use std::time::Duration;

use camino::Utf8PathBuf;
use ostler_core::lease::Policy;

use crate::rate::Limits;
use crate::version::Minimums;

/// How a server behaves. Everything has a default but where its database is.
#[derive(Clone)]
pub struct Settings {
    /// Where it listens; port 0 picks one.
    pub listen: SocketAddr,
    /// Where its metrics are, if anywhere.
    pub metrics_listen: Option<SocketAddr>,
    /// A certificate and its key, PEM files.
    pub tls: Option<(Utf8PathBuf, Utf8PathBuf)>,
    /// Proxies in front of it, whose forwarding headers are believed.
    pub proxies: Vec<std::net::IpAddr>,
    /// `sqlite:<file>` or `postgres://…`.
    pub database: String,
    /// How long the database may take over one thing. One that says nothing for so long, and does not close the
    /// connection either, has vanished with its machine or network: the connection is given up, with what was begun
    /// on it. Who waits for an answer, and a server that stops, wait half as long again; who waits for a connection,
    /// a quarter as long.
    pub database_wait: Duration,
    /// The numbers of the lease rules.
    pub policy: Policy,
    /// Machines not heard of for this long are offline.
    pub offline_after: Duration,
    /// How often the sweeper comes.
    pub sweep_every: Duration,
    /// Requests a minute.
    pub limits: Limits,
    /// The oldest clients that are served.
    pub minimums: Minimums,
    /// What is kept of the past.
    pub retention: Retention,
    /// How slow clients may be.
    pub waits: Waits,
    /// The server's clock is turned by hand, and that is time passing: no absence, and the database's clock says
    /// nothing. For tests.
    pub is_clock_turned: bool,
}

/// What is kept of the past, and for how long. Totals, usage and results stay for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Output of tasks that ended longer ago is removed.
    pub messages_age: Duration,
    /// Bytes of output that a workspace keeps of ended tasks; beyond it the oldest goes first.
    pub messages_bytes_max: u64,
    /// Events older than this are removed.
    pub events_age: Duration,
    /// Events kept, of all workspaces together.
    pub events_max: u64,
    /// How often it is looked.
    pub every: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        Self {
            messages_age: 90 * DAY,
            messages_bytes_max: 20 << 30,
            events_age: 30 * DAY,
            events_max: 1_000_000,
            every: Duration::from_secs(10 * 60),
        }
    }
}

/// How slow a client may be; a slower one is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// How long the head of a request may take, from the end of the one before.
    pub head_max: Duration,
    /// How long the body of a request may take, beside what its bytes take on a slow line.
    pub body_max: Duration,
    /// How long a client may take nothing of what it is sent. One that is sent nothing waits as long as it likes.
    pub stall_max: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            head_max: Duration::from_secs(15),
            body_max: Duration::from_secs(60),
            stall_max: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// The protocol's numbers, on 127.0.0.1:4180.
    pub fn new(database: String) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 4180)),
            metrics_listen: None,
            tls: None,
            proxies: Vec::new(),
            database,
            database_wait: Duration::from_secs(20),
            policy: Policy::DEFAULT,
            offline_after: Duration::from_secs(45),
            sweep_every: Duration::from_secs(30),
            limits: Limits::default(),
            minimums: Minimums::default(),
            retention: Retention::default(),
            waits: Waits::default(),
            is_clock_turned: false,
        }
    }
}

/// The database's URL may hold a password, so it is not shown.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("listen", &self.listen)
            .field("proxies", &self.proxies)
            .field("policy", &self.policy)
            .field("limits", &self.limits)
            .field("retention", &self.retention)
            .finish_non_exhaustive()
    }
}
