//! One multiplexed connection per cluster, made when it is needed and let go when it is not.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response};
use base_ids::TenantId;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// A cell that does not take a connection by then is passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection on which nobody asked for this long is let go; running watches keep theirs.
const IDLE: Duration = Duration::from_secs(120);

/// Connections at the same time; the longest unused one goes first. Far more than people look at.
const MOST: usize = 256;

/// So often a quiet connection is asked whether its cell is still there.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("no cell serves the cluster just now")]
    NoRoute,
    #[error("TLS")]
    Tls(#[from] base_net::tls::TlsError),
    #[error("{0:?} is no server name")]
    Name(String),
    #[error("no cell of the cluster takes a connection")]
    Connect(#[source] std::io::Error),
    #[error("HTTP/2")]
    Http(#[from] hyper::Error),
}

/// Where a cluster is reached.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) cluster: TenantId,
    pub(crate) server_name: String,
    /// In order of preference.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) ca_pem: String,
}

struct Link {
    sender: SendRequest<Body>,
    address: SocketAddr,
    used: Instant,
}

/// Connections to clusters.
#[derive(Default)]
pub(crate) struct Links(Mutex<HashMap<TenantId, Link>>);

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Links").field(&self.0.lock().len()).finish()
    }
}

impl Links {
    /// Sends a request on; the answer's body comes as the cluster sends it.
    pub(crate) async fn send(
        &self,
        to: &Target,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, LinkError> {
        let mut sender = self.connected(to).await?;
        sender.ready().await?;
        Ok(sender.send_request(request).await?)
    }

    async fn connected(&self, to: &Target) -> Result<SendRequest<Body>, LinkError> {
        {
            let mut links = self.0.lock();
            links.retain(|_, link| !link.sender.is_closed() && link.used.elapsed() < IDLE);
            // A cell that no longer serves the cluster is left at once.
            if let Some(link) = links.get_mut(&to.cluster).filter(|link| to.addresses.contains(&link.address))
            {
                link.used = Instant::now();
                return Ok(link.sender.clone());
            }
        }
        // Two that come at once both dial, and the later one's connection is kept: rare, and harmless.
        let (sender, address) = dial(to).await?;
        let mut links = self.0.lock();
        if links.len() >= MOST {
            let oldest = links.iter().min_by_key(|(_, link)| link.used).map(|(id, _)| *id);
            oldest.map(|id| links.remove(&id));
        }
        links.insert(to.cluster, Link { sender: sender.clone(), address, used: Instant::now() });
        Ok(sender)
    }
}

async fn dial(to: &Target) -> Result<(SendRequest<Body>, SocketAddr), LinkError> {
    let tls = TlsConnector::from(base_net::tls::client(&to.ca_pem, None, &["h2"])?);
    let name =
        ServerName::try_from(to.server_name.clone()).map_err(|_| LinkError::Name(to.server_name.clone()))?;
    let mut failed = None;
    for &address in &to.addresses {
        let attempt = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            tls.connect(name.clone(), stream).await
        };
        let outcome = tokio::time::timeout(CONNECT_TIMEOUT, attempt).await;
        let stream = match outcome.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok(stream) => stream,
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to a cluster ended");
            }
        });
        return Ok((sender, address));
    }
    Err(failed.map_or(LinkError::NoRoute, LinkError::Connect))
}

/// The addresses of a routing table, in its order; what is no address is left out.
pub(crate) fn addresses(given: &[String]) -> Vec<SocketAddr> {
    given.iter().filter_map(|text| text.parse().ok()).collect()
}
