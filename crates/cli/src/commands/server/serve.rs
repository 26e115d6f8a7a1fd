//! `ostler server` itself: settings, the first start, signals, and the file that says where it listens.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use camino::Utf8PathBuf;
use ostler_server::config::Config;
use ostler_server::lock::LockFile;
use ostler_server::{Server, StartError, system_clock};

use super::greeting::{Here, greet};
use crate::args::server::{DatabaseArgs, ServeArgs};
use crate::context::{Context, block_on_cores};
use crate::error::{Code, Failure};
use crate::signals::{Signals, end_at_the_second_signal};
use crate::{logging, output};

/// The workspace of a first start.
const WORKSPACE: &str = "main";
/// The administrator of a first start.
const EMAIL: &str = "admin@localhost";

pub(super) fn perform(context: &Context, args: ServeArgs) -> Result<ExitCode, Failure> {
    logging::start(None)?;
    allow_many_connections();
    let mut config = super::config(context, &args.database)?;
    let database = args.database.clone();
    take_flags(&mut config, args);
    block_on_cores(serve(context, config, &database))
}

/// Each connection is an open file, and the usual limit is 1,024 until somebody asks for more.
fn allow_many_connections() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

fn take_flags(config: &mut Config, args: ServeArgs) {
    if let Some(address) = args.listen {
        config.settings.listen = address;
    }
    if let Some(address) = args.metrics_listen {
        config.settings.metrics_listen = Some(address);
    }
    if !args.behind_proxy.is_empty() {
        config.settings.proxies = args.behind_proxy.iter().map(|ip| ip.to_canonical()).collect();
    }
    config.tls_cert = args.tls_cert.or(config.tls_cert.take());
    config.tls_key = args.tls_key.or(config.tls_key.take());
}

/// Where clients on this machine reach it. To listen everywhere is to listen here too, and the address that says
/// everywhere is nobody's.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn serve(
    context: &Context,
    config: Config,
    flags: &DatabaseArgs,
) -> Result<ExitCode, Failure> {
    let settings = config.finish().map_err(super::config_failure)?;
    let mut signals = Signals::listen()?;
    end_at_the_second_signal()?;
    super::make_folder(&super::folder(context))?;
    let keyring = super::keyring(context, &settings.database, super::Missing::Make).await?;
    let database = settings.database.clone();
    let is_behind_proxy = !settings.proxies.is_empty();
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let server = Server::start(settings, keyring, system_clock()).await;
    let server = server.map_err(|error| start_failure(error, &database))?;
    let url = format!("{scheme}://{}", reachable(server.address()));
    let first = server.admin().first_start(WORKSPACE, EMAIL).await.map_err(|error| {
        Failure::new(Code::Failed, "the first workspace could not be made").because(error)
    });
    let note = UrlFile::write(context, &url);
    let ready = first.and_then(|first| note.map(|note| (first, note)));
    let (first, note) = match ready {
        Ok(ready) => ready,
        Err(failure) => {
            server.stop().await;
            return Err(failure);
        }
    };
    output::note(&format!("listening on {url}"));
    if let Some(address) = server.metrics_address() {
        output::note(&format!("metrics on http://{address}/metrics"));
    }
    let here = Here {
        url: &url,
        address: server.address(),
        is_noted: note.is_some(),
        is_behind_proxy,
        database: flags,
    };
    if let Some(first) = first
        && let Err(failure) = greet(context, &here, &first)
    {
        // It serves all the same; another token can be made.
        crate::error::tell(&failure);
    }
    let signal = signals.next().await;
    tracing::info!(signal, "stopping");
    if let Some(note) = note {
        note.remove();
    }
    server.stop().await;
    tracing::info!("stopped");
    Ok(Code::Success.into())
}

fn start_failure(error: StartError, database: &str) -> Failure {
    let hint = match &error {
        StartError::Database(error) => super::open_hint(error, database),
        StartError::Listen { what: "metrics", .. } => {
            Some("is another server there? --metrics-listen names another address")
        }
        StartError::Listen { .. } => Some("is another server there? --listen ADDR:0 picks a port"),
        StartError::Taken { .. } => {
            Some("stop it first; several servers can share a PostgreSQL database")
        }
        StartError::Tls(_) => Some(
            "--tls-cert names the certificate with its chain, --tls-key its private key, both in PEM",
        ),
        StartError::Lock { .. } => None,
    };
    let failure = Failure::new(Code::Failed, "the server cannot start").because(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// `$OSTLER_HOME/server/url`: where programs on this machine find the server.
struct UrlFile {
    file: Utf8PathBuf,
    /// While it is held, no other server writes there.
    _lock: LockFile,
}

impl UrlFile {
    /// `None` when it is another server's, which lives.
    fn write(context: &Context, url: &str) -> Result<Option<Self>, Failure> {
        let file = super::folder(context).join("url");
        let write = || -> std::io::Result<_> {
            let Some(lock) = LockFile::take(&file.with_file_name("url.lock"))? else {
                return Ok(None);
            };
            // Under another name first: nobody reads half a line.
            let draft = file.with_file_name(format!("url.{}", std::process::id()));
            std::fs::File::create(&draft)?.write_all(format!("{url}\n").as_bytes())?;
            std::fs::rename(&draft, &file)?;
            Ok(Some(lock))
        };
        match write() {
            Ok(Some(lock)) => Ok(Some(Self { file, _lock: lock })),
            Ok(None) => {
                output::note(&format!("{file} stays with the server that was here first"));
                Ok(None)
            }
            Err(error) => {
                Err(Failure::new(Code::Failed, format!("{file} could not be written"))
                    .because(error))
            }
        }
    }

    fn remove(self) {
        // What stays behind leads to an address where nobody answers.
        let _ = std::fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_everywhere_is_reached_on_this_machine() {
        for (listens, reached) in [
            ("0.0.0.0:4180", "127.0.0.1:4180"),
            ("[::]:4180", "[::1]:4180"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("192.0.2.1:4180", "192.0.2.1:4180"),
        ] {
            assert_eq!(reachable(listens.parse().unwrap()).to_string(), reached);
        }
    }
}
