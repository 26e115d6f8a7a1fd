//! The command line of `ostler server`.

use std::net::{IpAddr, SocketAddr};

use camino::Utf8PathBuf;
use clap::{Args, Subcommand};

use super::JsonFlag;
use super::administer::AdministerCommand;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
ostler server                                serve this machine; the first start prints a token\n  \
ostler server --listen 0.0.0.0:4180 --behind-proxy 10.0.0.2\n  \
OSTLER_SERVER_DATABASE=postgres://ostler:…@db/ostler ostler server\n  \
ostler server backup before-upgrade.db       while it serves\n\n\
Environment:\n  \
OSTLER_HOME                 the database is in server/ of it [default: $XDG_STATE_HOME/ostler]\n  \
OSTLER_SECRET_KEY           32 bytes, hex or base64 [default: secret.key beside the database]\n  \
OSTLER_SERVER_…             every setting of the file: see docs/server.md\n  \
FELAGI_DAEMON_THROTTLE_…    requests a minute: REGISTER, HEARTBEAT, CLAIM, TASKS\n  \
OSTLER_LOG                  what is logged to standard error, as `info` or `ostler_server=debug`\n\n\
Flags win over the environment, the environment over the file. `listening on http://…` goes to\n\
standard error, and the URL to server/url in OSTLER_HOME while it serves. TERM or Ctrl+C ends it\n\
when what is on its way is answered; leases stay with their machines. A second signal ends it at\n\
once."
)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    #[command(subcommand)]
    pub(crate) command: Option<ServerCommand>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 picks one [default: 127.0.0.1:4180]
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// A certificate with its chain, PEM; needs --tls-key
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<Utf8PathBuf>,
    /// The certificate's key, PEM; needs --tls-cert
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<Utf8PathBuf>,
    /// Proxies in front that do TLS; only their forwarding headers are believed
    #[arg(long, value_name = "IP[,IP…]", value_delimiter = ',')]
    pub(crate) behind_proxy: Vec<IpAddr>,
    /// Serve /metrics there; port 0 picks one [default: nowhere]
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub(crate) metrics_listen: Option<SocketAddr>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "an IP address and a port are needed, as 127.0.0.1:4180 or [::1]:4180".to_owned()
    })
}

/// Which database, for every command of the server.
#[derive(Debug, Clone, Args)]
pub(crate) struct DatabaseArgs {
    /// sqlite:FILE or postgres://…; one with a password belongs in OSTLER_SERVER_DATABASE
    /// [default: sqlite:$OSTLER_HOME/server/ostler.db]
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
    /// The server's settings [default: server.toml beside config.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<Utf8PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServerCommand {
    /// Make database, workspace and administrator if they are not there, and two fresh tokens
    Init {
        /// The workspace's short name: small letters, digits, dashes
        #[arg(long, value_name = "SLUG")]
        workspace: String,
        /// The administrator's e-mail address
        #[arg(long, value_name = "E")]
        email: String,
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        json: JsonFlag,
    },
    /// Copy a SQLite database to a new file, also while a server runs
    Backup {
        /// The new file
        #[arg(value_name = "FILE")]
        file: Utf8PathBuf,
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        json: JsonFlag,
    },
    /// Write a whole server as lines of JSON, to move it to another database
    Export {
        /// The new file, or `-` for standard output
        #[arg(value_name = "FILE|-")]
        file: Utf8PathBuf,
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Fill an empty database from an export; needs the same secret key
    Import {
        /// The export, or `-` for standard input
        #[arg(value_name = "FILE|-")]
        file: Utf8PathBuf,
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        json: JsonFlag,
    },
    #[command(flatten)]
    Administer(AdministerCommand),
}
