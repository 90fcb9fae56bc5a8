//! The REST API: its listener, and what stands before every handler.
//!
//! A request passes `observe`, `whole_body`, `access::admit`, `idempotency::once` and then its handler. `routes`
//! is the table of all routes and what each needs; start reading there. `extract` and `body` are what handlers
//! take from a request, [`crate::problem`] is how they refuse one.
//!
//! Not here: the console's files (`fleet-console`), which are what every path is that is no route.

mod access;
mod body;
mod clusters;
mod events;
mod extract;
mod fleet;
pub(crate) mod idempotency;
mod joining;
mod members;
pub(crate) mod openapi;
mod operations;
mod organizations;
mod pools;
mod proxy;
pub(crate) mod routes;
mod session;
mod tokens;

use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Extension, Request, State as Extract};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use base_net::drained::Drained;
use base_net::tasks::Tasks;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::problem::Failure;
use crate::{ManagerError, State};

/// Every request body of this API is a few fields.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// A client that has not finished its TLS handshake by then is let go. Long, since a thousand that come at once
/// wait for one another, and for a client the handshake is over before it is for us: it would see its connection
/// closed without an answer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a client may take over a request's head, and stay without one between two.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);

/// And over its body, which is 64 KiB at most.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// What an HTTP/2 client begins with (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;

/// Connections open at the same time: people and their tools, not machines by the thousand.
const MAX_CONNECTIONS: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    route: String,
    code: u16,
}

/// What `/metrics` shows.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: base_telemetry::Registry,
    requests: Family<RequestLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = base_telemetry::Registry::default();
        let requests = Family::<RequestLabels, Counter>::default();
        registry.register("roadstead_manager_requests", "Requests to the REST API", requests.clone());
        Metrics { registry, requests }
    }
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

type Answer<T> = Result<T, Failure>;
type Shared = Extract<Arc<State>>;

/// Binds the REST listener and serves it until `tasks` is stopped.
pub(crate) async fn serve(state: Arc<State>, tasks: &Tasks) -> Result<SocketAddr, ManagerError> {
    let address = state.config.listen;
    let tls = base_net::tls::server(&state.config.https, None, &["h2", "http/1.1"])?;
    let acceptor = TlsAcceptor::from(tls);
    let listener =
        TcpListener::bind(address).await.map_err(|cause| ManagerError::Listen { address, cause })?;
    let bound = listener.local_addr().map_err(|cause| ManagerError::Listen { address, cause })?;
    let app = router(state);
    let group = tasks.clone();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    tasks.spawn(async move {
        loop {
            // The slot comes first: a full manager leaves newcomers in the kernel's backlog.
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (acceptor, app) = (acceptor.clone(), app.clone().layer(Extension(Peer(peer))));
            group.spawn(async move {
                let _slot = slot;
                // Without it, small answers would wait for the peer's delayed acknowledgement.
                let _ = stream.set_nodelay(true);
                let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await
                else {
                    return;
                };
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                if let Err(error) = converse(is_http2, stream, TowerToHyperService::new(app)).await {
                    tracing::debug!(error, "connection ended");
                }
            });
        }
    });
    Ok(bound)
}

/// Serves one connection until either side ends it.
///
/// The version is what TLS agreed on, not what the first bytes look like: whoever waits for those in order to
/// tell has no clock running yet, and a client that sends none would hold its slot for ever.
async fn converse(
    is_http2: bool,
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: TowerToHyperService<Router>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if !is_http2 {
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
        return Ok(server.serve_connection(TokioIo::new(stream), service).await?);
    }
    // Hyper's own clock, the pings, starts once the preface is there.
    let mut preface = [0u8; PREFACE_BYTES];
    tokio::time::timeout(HEADERS_TIMEOUT, stream.read_exact(&mut preface)).await??;
    let (reader, writer) = tokio::io::split(stream);
    let stream = tokio::io::join(Cursor::new(preface).chain(reader), writer);
    let mut server = http2::Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        .max_concurrent_streams(100)
        .max_header_list_size(64 * 1024)
        .keep_alive_interval(HEADERS_TIMEOUT)
        .keep_alive_timeout(HEADERS_TIMEOUT);
    Ok(server.serve_connection(TokioIo::new(stream), service).await?)
}

pub(crate) fn router(state: Arc<State>) -> Router {
    let mut router = Router::new();
    for route in routes::all() {
        let admit = middleware::from_fn_with_state((state.clone(), route.need), access::admit);
        let once = middleware::from_fn_with_state(state.clone(), idempotency::once);
        // The proxy's bodies are streams, which nobody can keep.
        let handler =
            if routes::is_streamed(route.path) { route.handler } else { route.handler.route_layer(once) };
        router = router.route(route.path, handler.route_layer(admit));
    }
    router
        .fallback(elsewhere)
        .method_not_allowed_fallback(|| async { Failure::MethodNotAllowed })
        .layer(middleware::from_fn(whole_body))
        .layer(middleware::from_fn_with_state(state.clone(), observe))
        .layer(middleware::map_request(async |request: Request| {
            request.map(|body| axum::body::Body::new(Drained::new(body)))
        }))
        .with_state(state)
}

/// What is no route: the console's pages, whose addresses the console itself makes sense of. Below `/api` an
/// unknown path is a mistake that a program has to hear of.
async fn elsewhere(request: Request) -> Response {
    let path = request.uri().path();
    if path == "/api" || path.starts_with("/api/") {
        return Failure::NotFound("path").into_response();
    }
    fleet_console::respond(request.method(), path, request.headers())
}

/// Takes in the whole body before anything is decided: an answer that leaves a body unread resets the
/// stream, and clients then show the reset instead of the answer.
async fn whole_body(request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<axum::extract::MatchedPath>();
    if matched.is_some_and(|path| routes::is_streamed(path.as_str())) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let whole = tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, MAX_BODY_BYTES));
    let Ok(whole) = whole.await else { return Failure::TooSlow.into_response() };
    match whole {
        Ok(bytes) => next.run(Request::from_parts(parts, bytes.into())).await,
        Err(_) => Failure::TooLarge.into_response(),
    }
}

/// Counts and logs every request under its route, never under its path: paths carry names.
async fn observe(state: Shared, request: Request, next: Next) -> Response {
    // A method is any word a client likes; each would stay in memory as a series of its own.
    let method = match request.method().as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS") => known.to_owned(),
        _ => "other".to_owned(),
    };
    let route = request
        .extensions()
        .get::<axum::extract::MatchedPath>()
        .map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    let code = response.status().as_u16();
    tracing::debug!(%method, %route, code, "request");
    state.metrics.requests.get_or_create(&RequestLabels { method, route, code }).inc();
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Time is paused: half a minute passes at once.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_in_the_middle_is_let_go() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        assert_eq!(preface.len(), PREFACE_BYTES);
        for (is_http2, sent) in [
            (false, &b""[..]),
            (false, b"GET / HTTP/1.1\r\nhost: "),
            (false, b"PRI * HTTP/2.0\r\n"),
            (true, b""),
            (true, b"PRI * HT"),
            (true, preface),
        ] {
            let (mut client, server) = tokio::io::duplex(4096);
            client.write_all(sent).await.unwrap();
            let service = TowerToHyperService::new(Router::new());
            let ended = tokio::time::timeout(3 * HEADERS_TIMEOUT, converse(is_http2, server, service)).await;
            assert!(ended.is_ok(), "{is_http2} {:?}", String::from_utf8_lossy(sent));
        }
    }

    #[tokio::test]
    async fn both_versions_are_spoken() {
        use hyper::client::conn;
        for is_http2 in [false, true] {
            let (client, server) = tokio::io::duplex(4096);
            let app = Router::new().route("/x", axum::routing::get(|| async { "here" }));
            let serving = tokio::spawn(converse(is_http2, server, TowerToHyperService::new(app)));
            let request =
                Request::builder().uri("https://manager/x").body(axum::body::Body::empty()).unwrap();
            let status = if is_http2 {
                let (mut sender, connection) =
                    conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
                let driven = tokio::spawn(connection);
                let status = sender.send_request(request).await.unwrap().status();
                drop(sender);
                driven.await.unwrap().unwrap();
                status
            } else {
                let (mut sender, connection) = conn::http1::handshake(TokioIo::new(client)).await.unwrap();
                let driven = tokio::spawn(connection);
                let status = sender.send_request(request).await.unwrap().status();
                drop(sender);
                driven.await.unwrap().unwrap();
                status
            };
            assert_eq!(status, 200, "{is_http2}");
            serving.await.unwrap().unwrap();
        }
    }
}
