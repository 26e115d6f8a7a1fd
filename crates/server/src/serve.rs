//! The listener: connections in, requests to the router, an end that finishes what is on its way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Connections at once; a further one waits until another ends.
const CONNECTIONS_MAX: usize = 30_000;
/// How long the head of a request may take.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(15);
/// How long requests that are on their way may take when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(8);
/// How long the listener pauses when it may open no more files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`; then finishes what is on its way.
pub(crate) async fn run(listener: TcpListener, router: Router, stop: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
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
        let router = with_address(router.clone(), address);
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WAIT_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_MAX, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time");
    }
}

fn with_address(router: Router, address: SocketAddr) -> Router {
    router.layer(axum::Extension(ConnectInfo(address)))
}
