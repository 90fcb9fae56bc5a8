//! One cluster's way out.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base_net::tasks::Tasks;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tenant_client::{NodeDialer, Stream};
use tokio::sync::Semaphore;

use crate::destination::{Destination, Limits, OutboundError, Place};
use crate::egress::Egress;
use crate::endpoints::{Directory, pick};
use crate::pool::{Key, Pool, Rules, Sender};
use crate::tls::{Configs, in_gos_words};

/// The only way to an address that a tenant chose.
#[async_trait]
pub trait Outbound: Send + Sync + 'static {
    /// One request and its whole answer, whatever its code; a redirect is an answer like any other. The
    /// request's target is a path ([`Destination::target`]); `Host` is set here.
    async fn call(
        &self,
        to: &Destination,
        request: Request<Bytes>,
        limits: Limits,
    ) -> Result<Response<Bytes>, OutboundError>;

    /// A TLS connection, for what streams or is upgraded.
    async fn connect(&self, to: &Destination, timeout: Duration) -> Result<Connection, OutboundError>;
}

/// Bytes to a destination whose certificate was checked.
pub struct Connection {
    pub stream: Box<dyn Stream>,
    /// For the `Host` header.
    pub authority: String,
}

/// Calls of one cluster under way: more than its webhooks need while they answer, and few enough that one
/// cluster whose webhooks hang holds little of the process.
const CALLS: usize = 128;

/// See [`Outbound`].
pub struct ClusterOutbound {
    directory: Arc<dyn Directory>,
    dialer: Option<Arc<dyn NodeDialer>>,
    egress: Arc<Egress>,
    budget: Semaphore,
    configs: Configs,
    pool: Arc<Pool>,
    /// Connections end with these.
    tasks: Tasks,
}

/// Where a destination is, right now.
struct Route {
    key: Key,
    server_name: ServerName<'static>,
}

impl ClusterOutbound {
    /// Without a `dialer` no node is connected, and only URLs can be reached.
    pub fn new(
        directory: Arc<dyn Directory>,
        dialer: Option<Arc<dyn NodeDialer>>,
        egress: Arc<Egress>,
        tasks: Tasks,
    ) -> Arc<ClusterOutbound> {
        Arc::new(ClusterOutbound {
            directory,
            dialer,
            egress,
            budget: Semaphore::new(CALLS),
            configs: Configs::default(),
            pool: Arc::default(),
            tasks,
        })
    }

    fn route(&self, to: &Destination) -> Result<Route, OutboundError> {
        let config = self.configs.of(to)?;
        let (name, through) = match &to.place {
            Place::Url(url) => (url.host().unwrap_or_default().to_owned(), None),
            Place::Service { namespace, name, port, .. } => {
                let connected = self.dialer.as_ref().map(|dialer| dialer.connected()).unwrap_or_default();
                let (address, node) = pick(&*self.directory, namespace, name, *port, &connected)
                    .map_err(OutboundError::NoEndpoint)?;
                (format!("{name}.{namespace}.svc"), Some((node, address)))
            }
        };
        let bare = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let server_name = ServerName::try_from(bare)
            .map_err(|_| OutboundError::Tls(format!("tls: {name:?} can be in no certificate")))?;
        Ok(Route { key: Key { authority: to.authority(), through, tls: Rules(config) }, server_name })
    }

    async fn open(&self, to: &Destination, route: &Route) -> Result<Box<dyn Stream>, OutboundError> {
        let tcp: Box<dyn Stream> = match (&route.key.through, &to.place) {
            (Some((node, address)), _) => {
                if !self.egress.may_reach_inside(*address) {
                    return Err(OutboundError::Refused(*address));
                }
                let dialer = self.dialer.as_ref().ok_or_else(|| {
                    OutboundError::NoEndpoint(format!("dial tcp {address}: no tunnel to node {node:?}"))
                })?;
                dialer.dial(node, *address).await.map_err(|cause| OutboundError::Connect {
                    address: *address,
                    cause: crate::egress::in_gos_words(cause),
                })?
            }
            (None, Place::Url(url)) => {
                let port = url.port_u16().unwrap_or(443);
                Box::new(self.egress.dial(url.host().unwrap_or_default(), port).await?)
            }
            (None, Place::Service { .. }) => {
                return Err(OutboundError::NoEndpoint("no endpoint was chosen".to_owned()));
            }
        };
        let tls = tokio_rustls::TlsConnector::from(route.key.tls.0.clone())
            .connect(route.server_name.clone(), tcp)
            .await
            .map_err(|cause| OutboundError::Tls(in_gos_words(&cause, &route.server_name.to_str())))?;
        Ok(Box::new(tls))
    }

    async fn fresh(&self, to: &Destination, route: &Route) -> Result<Sender, OutboundError> {
        let stream = self.open(to, route).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|cause| OutboundError::Http(cause.to_string()))?;
        self.tasks.spawn(async move {
            // How it ended is told to whoever waits for the response.
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn exchange(
        &self,
        to: &Destination,
        request: Request<Bytes>,
        response_bytes: usize,
    ) -> Result<Response<Bytes>, OutboundError> {
        let _turn = self.budget.acquire().await.map_err(|_| OutboundError::Busy)?;
        let route = self.route(to)?;
        let mut request = request.map(Full::new);
        let host = HeaderValue::from_str(&route.key.authority)
            .map_err(|_| OutboundError::Http(format!("{:?} is no host", route.key.authority)))?;
        request.headers_mut().insert(HOST, host);
        let mut kept = self.pool.take(&route.key);
        loop {
            let reused = kept.is_some();
            let mut sender = match kept.take() {
                Some(sender) => sender,
                None => self.fresh(to, &route).await?,
            };
            if sender.ready().await.is_err() && reused {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let (parts, body) = response.into_parts();
                    let body = Limited::new(body, response_bytes).collect().await.map_err(|cause| {
                        if cause.downcast_ref::<LengthLimitError>().is_some() {
                            OutboundError::TooLarge(response_bytes)
                        } else {
                            OutboundError::Http(cause.to_string())
                        }
                    })?;
                    self.pool.put(route.key, sender, &self.tasks);
                    return Ok(Response::from_parts(parts, body.to_bytes()));
                }
                // The other side had closed an idle connection and has seen nothing of the request.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if reused => request = unsent,
                    _ => return Err(OutboundError::Http(http_words(&failed.into_error()))),
                },
            }
        }
    }
}

fn http_words(cause: &hyper::Error) -> String {
    if cause.is_incomplete_message() || cause.is_canceled() {
        return "EOF".to_owned();
    }
    if cause.is_parse() {
        return format!("net/http: HTTP/1.x transport connection broken: {cause}");
    }
    cause.to_string()
}

#[async_trait]
impl Outbound for ClusterOutbound {
    async fn call(
        &self,
        to: &Destination,
        request: Request<Bytes>,
        limits: Limits,
    ) -> Result<Response<Bytes>, OutboundError> {
        let exchange = self.exchange(to, request, limits.response_bytes);
        tokio::time::timeout(limits.timeout, exchange).await.map_err(|_| OutboundError::Timeout)?
    }

    async fn connect(&self, to: &Destination, timeout: Duration) -> Result<Connection, OutboundError> {
        let open = async {
            let route = self.route(to)?;
            let stream = self.open(to, &route).await?;
            Ok(Connection { stream, authority: route.key.authority })
        };
        tokio::time::timeout(timeout, open).await.map_err(|_| OutboundError::Timeout)?
    }
}
