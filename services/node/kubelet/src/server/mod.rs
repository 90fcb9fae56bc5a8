//! The kubelet's HTTPS server: logs, exec, attach, port-forward, and what monitoring reads.
//!
//! Whoever calls shows a client certificate of the cluster's CA and is the API server or one of its masters;
//! `/healthz` alone is open. Start at [`router`].

mod spdy;
mod stats;
mod streams;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, RawQuery, Request, State, WebSocketUpgrade};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use base_net::pki::{Issued, certs_from_pem, key_from_pem};
use base_net::shares::Shares;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use node_runtime::cri::{AttachRequest, ExecRequest, PortForwardRequest};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::config::Serving;
use crate::container::{chain, log_path};
use crate::logs;
use crate::observed::Seen;
use crate::pod::PodExt;
use crate::pods::Pods;
use crate::sandbox::log_folder;
use crate::shared::Shared;
use crate::worker::View;

/// Connections at the same time: the API server keeps few, each `kubectl logs -f` and `exec` is one.
const CONNECTIONS: usize = 1000;

/// Of these, what one address may hold without the API server's certificate: pods reach this port, and must not
/// keep it from being reached.
const CONNECTIONS_OF_STRANGERS: usize = 32;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take over a request's head, and stay without one between two.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);

/// Lines of a log on their way to a slow reader.
const LOG_QUEUE: usize = 64;

/// Who may call, besides the group `system:masters`.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
const MASTERS: &str = "system:masters";

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address} for the kubelet")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        cause: io::Error,
    },
    #[error("the CA of the kubelet's clients is not usable")]
    ClientCa(#[source] Box<dyn std::error::Error + Send + Sync>),
}

#[derive(Clone)]
struct App {
    shared: Arc<Shared>,
    pods: Pods,
}

/// Who is at the other end of the connection, by certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Caller {
    name: String,
    groups: Vec<String>,
}

/// Listens and serves until the node stops. Gives the address, for a configured port of 0.
pub async fn start(shared: Arc<Shared>, pods: Pods) -> Result<std::net::SocketAddr, ServerError> {
    let Serving { listen, identity, client_ca_pem } = shared.config.serving.clone();
    let tls = tls(identity, &client_ca_pem)?;
    let failed = |cause| ServerError::Listen { address: listen, cause };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let app = App { shared: shared.clone(), pods };
    shared.tasks.spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), router(app)));
    Ok(address)
}

fn router(app: App) -> Router {
    Router::new()
        .route("/pods", get(list_pods))
        .route("/runningpods/", get(list_pods))
        .route("/stats/summary", get(summary))
        .route("/metrics", get(metrics))
        .route("/metrics/resource", get(resource_metrics))
        .route("/containerLogs/{namespace}/{pod}/{container}", any(container_logs))
        .route("/exec/{namespace}/{pod}/{container}", any(exec))
        .route("/exec/{namespace}/{pod}/{uid}/{container}", any(exec))
        .route("/attach/{namespace}/{pod}/{container}", any(attach))
        .route("/attach/{namespace}/{pod}/{uid}/{container}", any(attach))
        .route("/portForward/{namespace}/{pod}", any(port_forward))
        .route("/portForward/{namespace}/{pod}/{uid}", any(port_forward))
        .layer(middleware::from_fn(only_the_api_server))
        .route("/healthz", get(healthz))
        .with_state(app)
}

async fn only_the_api_server(request: Request, next: Next) -> Response {
    match request.extensions().get::<Option<Caller>>().cloned().flatten() {
        None => (StatusCode::UNAUTHORIZED, "Unauthorized").into_response(),
        Some(caller) if caller.name == API_SERVER || caller.groups.iter().any(|group| group == MASTERS) => {
            next.run(request).await
        }
        Some(caller) => {
            let message =
                format!("Forbidden (user={}, verb={}, resource=nodes)", caller.name, request.method());
            (StatusCode::FORBIDDEN, message).into_response()
        }
    }
}

async fn healthz(State(app): State<App>) -> Response {
    match app.shared.cri.version().await {
        Ok(_) => "ok".into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, chain(&error)).into_response(),
    }
}

async fn list_pods(State(app): State<App>) -> Response {
    let with_status = |(pod, view): (Arc<Pod>, View)| {
        let mut pod = (*pod).clone();
        pod.status = Some(view.status);
        pod
    };
    let items: Vec<Pod> = app.pods.all().into_iter().map(with_status).collect();
    let list = serde_json::json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items });
    axum::Json(list).into_response()
}

async fn summary(State(app): State<App>) -> Response {
    match stats::summary(&app.shared, &app.pods).await {
        Ok(summary) => axum::Json(summary).into_response(),
        Err(error) => internal(&error),
    }
}

async fn metrics(State(app): State<App>) -> Response {
    stats::metrics(&app.pods).into_response()
}

async fn resource_metrics(State(app): State<App>) -> Response {
    match stats::resource_metrics(&app.shared).await {
        Ok(text) => text.into_response(),
        Err(error) => internal(&error),
    }
}

/// A query string with repeated names.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(raw: Option<String>) -> Query {
        let uri = format!("/?{}", raw.unwrap_or_default());
        let parsed = uri.parse::<http::Uri>().ok();
        let pairs =
            parsed.and_then(|uri| axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&uri).ok());
        Query(pairs.map(|axum::extract::Query(pairs)| pairs).unwrap_or_default())
    }
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
    fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(own, _)| own == name).map(|(_, value)| value.clone()).collect()
    }
    fn flag(&self, names: &[&str]) -> bool {
        names.iter().any(|name| matches!(self.get(name), Some("1" | "true")))
    }
}

type Names = Path<HashMap<String, String>>;

/// The pod that a path names, if its uid, when given, is right.
fn find(app: &App, names: &HashMap<String, String>) -> Result<(Arc<Pod>, View), Box<Response>> {
    let name = |key: &str| names.get(key).map(String::as_str).unwrap_or_default();
    let found = app.pods.find(name("namespace"), name("pod"));
    let found = found.filter(|(pod, _)| names.get("uid").is_none_or(|uid| pod.uid() == uid));
    found.ok_or_else(|| Box::new((StatusCode::NOT_FOUND, "pod does not exist").into_response()))
}

async fn container_logs(
    State(app): State<App>,
    Path(names): Names,
    RawQuery(query): RawQuery,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Response {
    let query = Query::of(query);
    let container = names.get("container").cloned().unwrap_or_default();
    let (pod, view) = match find(&app, &names) {
        Ok(found) => found,
        Err(response) => return *response,
    };
    let wanted = match wanted_log(&query, app.shared.config.clock.now()) {
        Ok(wanted) => wanted,
        Err(message) => return (StatusCode::BAD_REQUEST, message).into_response(),
    };
    if !pod.roles().iter().any(|(_, one)| one.name == container) {
        let message = format!("container {container} is not valid for pod {}", pod.name());
        return (StatusCode::BAD_REQUEST, message).into_response();
    }
    let previous = query.flag(&["previous"]);
    let folder = log_folder(&app.shared.around.logs, &pod);
    let Some((id, attempt)) = log_of(&view, &container, previous, &folder) else {
        let message = if previous {
            format!("previous terminated container \"{container}\" in pod \"{}\" not found", pod.name())
        } else {
            let reason = waiting_reason(&view, &container);
            format!("container \"{container}\" in pod \"{}\" is waiting to start: {reason}", pod.name())
        };
        return (StatusCode::BAD_REQUEST, message).into_response();
    };
    let path = folder.join(log_path(&container, attempt));
    let (to, from) = mpsc::channel::<Bytes>(LOG_QUEUE);
    let pods = app.pods.clone();
    app.shared.tasks.spawn(async move {
        let runs = || {
            let found = pods.find(pod.namespace(), pod.name());
            found.is_some_and(|(_, view)| view.seen.running().any(|one| one.id == id))
        };
        if let Err(error) = logs::read(&path, &wanted, runs, &to).await {
            tracing::debug!(path = %path.display(), %error, "log is not readable");
        }
    });
    if let Ok(upgrade) = upgrade {
        return upgrade.protocols(["binary.k8s.io"]).on_upgrade(move |socket| streams::lines(socket, from));
    }
    let lines = futures::stream::unfold(from, |mut from| async move {
        from.recv().await.map(|line| (Ok::<_, std::convert::Infallible>(line), from))
    });
    ([("content-type", "text/plain")], Body::from_stream(lines)).into_response()
}

fn wanted_log(query: &Query, now: Timestamp) -> Result<logs::Wanted, String> {
    let number = |name: &str| match query.get(name).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => {
            text.parse::<usize>().map(Some).map_err(|_| format!("{name}: {text:?} is not a number"))
        }
    };
    let since_time = match query.get("sinceTime").filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => {
            Some(text.parse::<Timestamp>().map_err(|_| format!("sinceTime: {text:?} is not a time"))?)
        }
    };
    let since_seconds = number("sinceSeconds")?.and_then(|s| i64::try_from(s).ok());
    let since_seconds = since_seconds.and_then(|s| now.checked_sub(SignedDuration::from_secs(s)).ok());
    Ok(logs::Wanted {
        follow: query.flag(&["follow"]),
        timestamps: query.flag(&["timestamps"]),
        tail_lines: number("tailLines")?,
        since: since_time.or(since_seconds),
        limit_bytes: number("limitBytes")?,
        stream: match query.get("stream") {
            Some("Stdout") => Some("stdout".to_owned()),
            Some("Stderr") => Some("stderr".to_owned()),
            _ => None,
        },
    })
}

/// The container whose log is meant: its id and how often it was started before.
fn log_of(view: &View, container: &str, previous: bool, folder: &std::path::Path) -> Option<(String, u32)> {
    let latest = view.seen.latest(container);
    let found = match previous {
        true => view.seen.all(container).skip(1).find(|one| one.exit().is_some()),
        false => latest,
    };
    if let Some(one) = found {
        return Some((one.id.clone(), one.attempt));
    }
    // The runtime has forgotten it, but what it said is still there.
    let before = latest.filter(|_| previous)?.attempt.checked_sub(1)?;
    folder.join(log_path(container, before)).exists().then(|| (String::new(), before))
}

fn waiting_reason(view: &View, container: &str) -> String {
    let status = &view.status;
    let all =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let found = all.into_iter().flatten().flatten().find(|one| one.name == container);
    let waiting = found.and_then(|one| one.state.as_ref()?.waiting.as_ref()?.reason.clone());
    waiting.unwrap_or_else(|| "ContainerCreating".to_owned())
}

fn wanted_streams(query: &Query) -> streams::Wanted {
    streams::Wanted {
        stdin: query.flag(&["input", "stdin"]),
        stdout: query.flag(&["output", "stdout"]),
        stderr: query.flag(&["error", "stderr"]),
        tty: query.flag(&["tty"]),
    }
}

async fn exec(
    state: State<App>,
    Path(names): Names,
    RawQuery(query): RawQuery,
    request: Request,
) -> Response {
    let State(app) = state;
    let query = Query::of(query);
    let wanted = wanted_streams(&query);
    let one = match running(&app, &names) {
        Ok(one) => one,
        Err(response) => return *response,
    };
    let command = ExecRequest {
        container_id: one.id,
        cmd: query.all("command"),
        tty: wanted.tty,
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr && !wanted.tty,
    };
    if !wanted.stdin && !wanted.stdout && !wanted.stderr {
        let message = "you must specify at least 1 of stdin, stdout, stderr";
        return (StatusCode::BAD_REQUEST, message).into_response();
    }
    match app.shared.cri.exec(command).await {
        Ok(url) => stream_command(request, url, wanted, None).await,
        Err(error) => internal(&error),
    }
}

async fn attach(
    state: State<App>,
    Path(names): Names,
    RawQuery(query): RawQuery,
    request: Request,
) -> Response {
    let State(app) = state;
    let wanted = wanted_streams(&Query::of(query));
    let one = match running(&app, &names) {
        Ok(one) => one,
        Err(response) => return *response,
    };
    let command = AttachRequest {
        container_id: one.id,
        stdin: wanted.stdin,
        tty: wanted.tty,
        stdout: wanted.stdout,
        stderr: wanted.stderr && !wanted.tty,
    };
    // `kubectl run -i` attaches to a container that runs already and may have said everything by then. One that
    // takes standard input once is there for whoever attaches first, so that one gets all of its words.
    let words = find(&app, &names).ok().and_then(|(pod, view)| {
        let name = names.get("container")?;
        let once = pod.roles().iter().any(|(_, one)| one.name == *name && one.stdin_once == Some(true));
        let attempt = view.seen.latest(name)?.attempt;
        let path = log_folder(&app.shared.around.logs, &pod).join(log_path(name, attempt));
        (once && wanted.stdin && !wanted.tty).then_some(path)
    });
    match app.shared.cri.attach(command).await {
        Ok(url) => stream_command(request, url, wanted, words).await,
        Err(error) => internal(&error),
    }
}

/// The running container that a path names.
fn running(app: &App, names: &HashMap<String, String>) -> Result<Seen, Box<Response>> {
    let (_, view) = find(app, names)?;
    let container = names.get("container").map(String::as_str).unwrap_or_default();
    let one = view.seen.latest(container).filter(|one| one.is_running()).cloned();
    one.ok_or_else(|| {
        Box::new((StatusCode::NOT_FOUND, format!("container not found (\"{container}\")")).into_response())
    })
}

/// `words` is the log of a container whose earlier output belongs to this session, too.
async fn stream_command(
    request: Request,
    url: String,
    wanted: streams::Wanted,
    words: Option<PathBuf>,
) -> Response {
    if is_spdy(request.headers()) {
        return relay_spdy(request, &url).await;
    }
    let (mut parts, _) = request.into_parts();
    match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
        Ok(upgrade) => upgrade
            .protocols([streams::V5, streams::V4])
            .on_upgrade(move |socket| async move { streams::command(socket, &url, wanted, words).await }),
        Err(rejection) => rejection.into_response(),
    }
}

async fn port_forward(
    state: State<App>,
    Path(names): Names,
    RawQuery(query): RawQuery,
    request: Request,
) -> Response {
    let State(app) = state;
    let query = Query::of(query);
    let view = match find(&app, &names) {
        Ok((_, view)) => view,
        Err(response) => return *response,
    };
    let Some(sandbox) = view.seen.sandboxes.first().filter(|sandbox| sandbox.ready) else {
        return (StatusCode::BAD_REQUEST, "the pod has no running sandbox").into_response();
    };
    let ports: Vec<String> =
        query.all("port").iter().flat_map(|list| list.split(',')).map(str::to_owned).collect();
    let ports: Result<Vec<u16>, _> = ports.iter().map(|port| port.parse::<u16>()).collect();
    let Ok(ports) = ports else { return (StatusCode::BAD_REQUEST, "port is not a number").into_response() };
    let forward = PortForwardRequest {
        pod_sandbox_id: sandbox.id.clone(),
        port: ports.iter().map(|port| i32::from(*port)).collect(),
    };
    let url = match app.shared.cri.port_forward(forward).await {
        Ok(url) => url,
        Err(error) => return internal(&error),
    };
    if is_spdy(request.headers()) {
        return relay_spdy(request, &url).await;
    }
    let (mut parts, _) = request.into_parts();
    let upgrade = match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
        Ok(upgrade) => upgrade.protocols([streams::TUNNEL, streams::V4]),
        Err(rejection) => return rejection.into_response(),
    };
    upgrade.on_upgrade(move |socket| async move {
        let tunnelled =
            socket.protocol().is_some_and(|protocol| protocol.as_bytes() == streams::TUNNEL.as_bytes());
        if tunnelled {
            streams::tunnel(socket, &url).await
        } else {
            streams::ports(socket, &url, &ports).await
        }
    })
}

fn is_spdy(headers: &HeaderMap) -> bool {
    let upgrade = headers.get("upgrade").and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|upgrade| upgrade.eq_ignore_ascii_case("SPDY/3.1"))
}

/// A SPDY client is what the runtime's server waits for: bytes go through as they are.
async fn relay_spdy(mut request: Request, url: &str) -> Response {
    let offered = request.headers().get_all("x-stream-protocol-version").iter();
    let offered = offered.filter_map(|value| value.to_str().ok()).flat_map(|list| list.split(','));
    let offered: Vec<String> =
        offered.map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect();
    let upgraded = match spdy::upgrade(url, &offered).await {
        Ok(upgraded) => upgraded,
        Err(error) => return internal(&error),
    };
    let client = hyper::upgrade::on(&mut request);
    let protocol = upgraded.protocol.clone();
    tokio::spawn(async move {
        let spdy::Upgraded { stream, early, .. } = upgraded;
        let relayed = async {
            let mut client = TokioIo::new(client.await.map_err(io::Error::other)?);
            client.write_all(&early).await?;
            base_net::relay(client, stream).await
        };
        if let Err(error) = relayed.await {
            tracing::debug!(%error, "SPDY relay broke off");
        }
    });
    let mut response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    if let Some(protocol) = protocol {
        response = response.header("x-stream-protocol-version", protocol);
    }
    response.body(Body::empty()).unwrap_or_else(|error| internal(&error))
}

fn internal(error: &dyn std::error::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, chain(error)).into_response()
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let strangers = Shares::new(CONNECTIONS_OF_STRANGERS);
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: others must end first.
                tracing::warn!(%error, "kubelet's server does not accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(stranger) = strangers.take(peer.ip().to_canonical()) else { continue };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
            let Ok(Ok(stream)) = handshake else {
                tracing::debug!(%peer, "no TLS with this client");
                return;
            };
            let caller = stream.get_ref().1.peer_certificates().and_then(|chain| caller(chain.first()?));
            // Held for as long as nobody knows who it is.
            let _stranger = caller.is_none().then_some(stranger);
            let service = tower::ServiceExt::<Request>::map_request(
                router,
                move |mut request: http::Request<hyper::body::Incoming>| {
                    request.extensions_mut().insert(caller.clone());
                    request.map(Body::new)
                },
            );
            let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
            builder
                .http2()
                .timer(TokioTimer::new())
                .max_header_list_size(64 * 1024)
                .keep_alive_interval(HEADERS_TIMEOUT)
                .keep_alive_timeout(HEADERS_TIMEOUT);
            let served = builder
                .serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service));
            if let Err(error) = served.await {
                tracing::debug!(%peer, %error, "connection broke off");
            }
        });
    }
}

fn tls(
    identity: watch::Receiver<Option<Issued>>,
    client_ca_pem: &str,
) -> Result<rustls::ServerConfig, ServerError> {
    base_net::tls::install_crypto_provider();
    let mut roots = rustls::RootCertStore::empty();
    for cert in certs_from_pem(client_ca_pem).map_err(|error| ServerError::ClientCa(Box::new(error)))? {
        roots.add(cert).map_err(|error| ServerError::ClientCa(Box::new(error)))?;
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build();
    let verifier = verifier.map_err(|error| ServerError::ClientCa(Box::new(error)))?;
    let mut config = rustls::ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(Newest { identity }));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Serves with the certificate of the moment. A handshake before the first one fails, and is tried again.
#[derive(Debug)]
struct Newest {
    identity: watch::Receiver<Option<Issued>>,
}

impl ResolvesServerCert for Newest {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let identity = self.identity.borrow().clone()?;
        let certified = || -> Result<CertifiedKey, Box<dyn std::error::Error>> {
            let key = key_from_pem(&identity.key_pem)?;
            let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)?;
            Ok(CertifiedKey::new(certs_from_pem(&identity.cert_pem)?, key))
        };
        match certified() {
            Ok(certified) => Some(Arc::new(certified)),
            Err(error) => {
                tracing::warn!(%error, "the kubelet's serving certificate is not usable");
                None
            }
        }
    }
}

fn caller(certificate: &rustls::pki_types::CertificateDer<'_>) -> Option<Caller> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().ok().map(str::to_owned);
    let subject = parsed.subject();
    let name = subject.iter_common_name().filter_map(text).next()?;
    Some(Caller { name, groups: subject.iter_organization().filter_map(text).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_asked_for_in_the_query() {
        let now: Timestamp = "2026-11-30T21:00:00Z".parse().unwrap();
        let plain = logs::Wanted::default();
        for (query, expected) in [
            ("", Ok(plain.clone())),
            (
                "follow=true&timestamps=true",
                Ok(logs::Wanted { follow: true, timestamps: true, ..plain.clone() }),
            ),
            (
                "tailLines=3&limitBytes=5",
                Ok(logs::Wanted { tail_lines: Some(3), limit_bytes: Some(5), ..plain.clone() }),
            ),
            (
                "sinceSeconds=60",
                Ok(logs::Wanted { since: Some("2026-11-30T20:59:00Z".parse().unwrap()), ..plain.clone() }),
            ),
            (
                "sinceTime=2026-11-30T20%3A00%3A00Z",
                Ok(logs::Wanted { since: Some("2026-11-30T20:00:00Z".parse().unwrap()), ..plain.clone() }),
            ),
            ("tailLines=-1", Err("tailLines: \"-1\" is not a number".to_owned())),
            ("sinceTime=yesterday", Err("sinceTime: \"yesterday\" is not a time".to_owned())),
        ] {
            assert_eq!(wanted_log(&Query::of(Some(query.to_owned())), now), expected, "{query}");
        }
        let command = Query::of(Some("command=sh&command=-c&command=a%20b%26c&input=1".to_owned()));
        assert_eq!(command.all("command"), ["sh", "-c", "a b&c"]);
        assert!(wanted_streams(&command).stdin && !wanted_streams(&command).stdout);
    }

    #[test]
    fn a_caller_is_known_by_its_certificate() {
        let ca = base_net::pki::Ca::generate("test").unwrap();
        let profile = base_net::pki::Profile {
            common_name: "kube-admin".into(),
            organizations: vec![MASTERS.into(), "others".into()],
            client: true,
            lifetime: base_net::pki::YEAR,
            ..Default::default()
        };
        let issued = ca.issue(&profile).unwrap();
        let certificate = &certs_from_pem(&issued.cert_pem).unwrap()[0];
        let expected = Caller { name: "kube-admin".into(), groups: vec![MASTERS.into(), "others".into()] };
        assert_eq!(caller(certificate), Some(expected));
    }
}
