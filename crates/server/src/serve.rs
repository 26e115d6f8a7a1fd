//! The listeners: connections in, in clear or with TLS, requests to a router, an end that finishes what is on
//! its way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use camino::{Utf8Path, Utf8PathBuf};
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::impatient::Impatient;
use crate::settings::Waits;

/// Connections at once; a further one waits until another ends.
const CONNECTIONS_MAX: usize = 30_000;
/// How long the two sides may take to agree on TLS.
const HANDSHAKE_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long requests that are on their way may take when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(8);
/// How long the listener pauses when it may open no more files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no TLS. Nothing of a key is shown.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read, or holds no PEM.
    #[error("cannot read {what} from {file}")]
    Read {
        /// A certificate or a key.
        what: &'static str,
        /// Which file.
        file: Utf8PathBuf,
        /// Why.
        source: rustls::pki_types::pem::Error,
    },
    /// A file without a certificate.
    #[error("there is no certificate in {file}")]
    NoCertificate {
        /// Which file.
        file: Utf8PathBuf,
    },
    /// They do not go together.
    #[error("the key in {key} is not that of the certificate in {cert}")]
    Mismatch {
        /// The certificate's file.
        cert: Utf8PathBuf,
        /// The key's.
        key: Utf8PathBuf,
    },
    /// They cannot be used.
    #[error("certificate and key cannot be used")]
    Unusable(#[from] rustls::Error),
}

/// From PEM files: the certificate with its chain, and its key.
pub(crate) fn tls(cert: &Utf8Path, key: &Utf8Path) -> Result<TlsAcceptor, TlsError> {
    let read = |what, file: &Utf8Path| {
        let file = file.to_owned();
        move |source| TlsError::Read { what, file, source }
    };
    let chain = CertificateDer::pem_file_iter(cert).map_err(read("a certificate", cert))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(read("a certificate", cert))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { file: cert.to_owned() });
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(read("a key", key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                TlsError::Mismatch { cert: cert.to_owned(), key: key.to_owned() }
            }
            error => error.into(),
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Makes ring the cryptography of every TLS connection of this process; called once at its start.
pub fn use_ring() {
    // A second call changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Serves until `stop`; then finishes what is on its way.
pub(crate) async fn run(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    waits: Waits,
    stop: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            place = Arc::clone(&places).acquire_owned() => place,
        };
        let Ok(place) = place else { break };
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // An answer is one write; waiting for more to send would only delay it. It works without, too.
        let _ = stream.set_nodelay(true);
        let (router, tls, watcher) = (router.clone(), tls.clone(), graceful.watcher());
        let stop = stop.clone();
        tokio::spawn(async move {
            match tls {
                None => converse(stream, address, router, waits, watcher).await,
                Some(tls) => {
                    let shaken = tokio::select! {
                        biased;
                        () = stop.cancelled() => None,
                        shaken = shake_hands(&tls, stream) => shaken,
                    };
                    if let Some(stream) = shaken {
                        converse(stream, address, router, waits, watcher).await;
                    }
                }
            }
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_MAX, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time");
    }
}

async fn shake_hands(
    tls: &TlsAcceptor,
    stream: TcpStream,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    match tokio::time::timeout(HANDSHAKE_WAIT_MAX, tls.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection without TLS");
            None
        }
        Err(_) => {
            tracing::debug!("a connection that did not finish its TLS handshake");
            None
        }
    }
}

/// One connection, to its end.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    router: Router,
    waits: Waits,
    watcher: Watcher,
) {
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(address));
        service.call(request)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(waits.head_max)
        .serve_connection(TokioIo::new(Impatient::new(stream, waits.stall_max)), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended");
    }
}
