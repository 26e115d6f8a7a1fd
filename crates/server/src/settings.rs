//! What a server is told at its start.

use std::net::SocketAddr;
use std::time::Duration;

use camino::Utf8PathBuf;
use ostler_core::lease::Policy;

use crate::rate::Limits;
use crate::version::Minimums;

/// How a server behaves. Everything has a default but where its database is.
#[derive(Debug, Clone)]
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
            policy: Policy::DEFAULT,
            offline_after: Duration::from_secs(45),
            sweep_every: Duration::from_secs(30),
            limits: Limits::default(),
            minimums: Minimums::default(),
        }
    }
}
