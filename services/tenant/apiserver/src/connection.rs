//! Connections: TLS, then HTTP/1.1 or HTTP/2, until the client or the plane is done.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base_net::drained::Drained;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::body::erase;
use crate::pipeline;
use crate::plane::ControlPlane;

/// Who is at the other end, as TLS knows it: verified certificates, the client's own first.
pub type PeerCertificates = Arc<[CertificateDer<'static>]>;

/// A client that cannot finish its handshake in this time is not coming.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Requests of one HTTP/2 connection that may be open at once. Upstream has 100; a node's tunnel carries each
/// followed log and each pod's connection to the API as a stream of its own.
const STREAMS: u32 = 576;
/// What one stream may send before it is read: a reader that stalls one of a tunnel's streams must not stall
/// the others.
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// And all streams of a connection together: 64 stalled ones. It is also what a hostile client can make this
/// process hold per connection, which is why it is not the sum over all streams.
const CONNECTION_WINDOW_BYTES: u32 = 64 * STREAM_WINDOW_BYTES;
/// How long running requests may take to end when the plane stops.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    #[error("the TLS handshake took more than {} s", HANDSHAKE.as_secs())]
    Slow,
    #[error("the TLS handshake failed")]
    Tls(#[source] std::io::Error),
}

/// One for the process: settings are the same for every cluster.
static HTTP: LazyLock<Builder<TokioExecutor>> = LazyLock::new(|| {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(30));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(64 * 1024)
        // A client that vanished without a word must not hold its watches for ever.
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(15));
    builder
});

impl ControlPlane {
    /// Serves one raw connection to its end: TLS is done here.
    pub async fn accept<S>(self: &Arc<ControlPlane>, stream: S) -> Result<(), AcceptError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let acceptor = tokio_rustls::TlsAcceptor::from(self.tls_config());
        let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Err(_) => return Err(AcceptError::Slow),
            Ok(Err(cause)) => return Err(AcceptError::Tls(cause)),
            Ok(Ok(stream)) => stream,
        };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = certificates.iter().map(|one| one.clone().into_owned()).collect();
        self.serve(stream, peer).await;
        Ok(())
    }

    /// Serves one connection whose TLS is done, to its end. `peer` are the client's verified certificates.
    pub async fn serve<S>(self: &Arc<ControlPlane>, stream: S, peer: PeerCertificates)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let plane = self.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (plane, peer) = (plane.clone(), peer.clone());
            async move {
                Ok::<_, Infallible>(
                    pipeline::handle(plane, peer, request.map(|body| erase(Drained::new(body)))).await,
                )
            }
        });
        let mut connection = pin!(HTTP.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let stopping = self.tasks.stopping();
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                match tokio::time::timeout(GRACE, connection).await {
                    Ok(ended) => ended,
                    Err(_) => return,
                }
            }
        };
        if let Err(cause) = ended {
            // Clients drop connections all the time; this is for whoever looks into one of them.
            tracing::debug!(tenant = %self.tenant, error = %cause, "connection ended");
        }
    }
}
