//! What only a kubelet can answer: logs, exec, attach, port-forward.
//!
//! The API server finds the pod's node, dials the kubelet's HTTPS API through the node's tunnel and passes
//! bytes on. It shows the client certificate that kubelets trust and checks the kubelet's against the
//! cluster's CA under the node's name, so that one node cannot answer for another.
//!
//! Not here: the frames inside an exec stream, which client and kubelet settle between them (`streams`
//! carries the bytes).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{Document, Field, Gvr, Object, Reason, Status};
use futures::TryStreamExt;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Method};
use http_body_util::BodyExt;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tenant_client::Access;
use tenant_registry::{Context, GetOptions};

use crate::body::{Body, Response, empty, erase, read_within};
use crate::pipeline::{Call, Inbound};
use crate::plane::ControlPlane;
use crate::query::{Query, encode};
use crate::request::ResourcePath;
use crate::streams;

pub const PODS: Gvr = Gvr::core("pods");
pub const NODES: Gvr = Gvr::core("nodes");

/// The kubelet's port where its Node does not say another.
const KUBELET_PORT: u16 = 10250;
/// Dialing through a tunnel, TLS included.
const DIAL: Duration = Duration::from_secs(20);
/// Of a kubelet's error text.
const ERROR_BYTES: usize = 64 * 1024;

/// `pods/<name>/log`
pub async fn log(call: &Call, at: &ResourcePath, inbound: Inbound) -> Result<Response, Status> {
    let query = log_query(&call.query, &at.name)?;
    let pod = get(call, &PODS, Some(&at.namespace), &at.name).await?;
    let container = container_of(&pod, call.query.get("container").unwrap_or_default())?;
    let Some(node) = pod.get_str("spec.nodeName").filter(|node| !node.is_empty()) else {
        // Upstream: a pod without a node has logged nothing yet.
        return Ok(text(empty()));
    };
    let path =
        format!("/containerLogs/{}/{}/{}", encode(&at.namespace), encode(&at.name), encode(&container));
    let target = if query.is_empty() { path } else { format!("{path}?{query}") };
    let mut kubelet =
        Kubelet::connect(&call.plane, node, None).await.map_err(|failed| failed.get(&target))?;
    let response = kubelet.send(Method::GET, &target).await?;
    let response = check(response, &PODS, &at.name).await?;
    if streams::is_websocket(&call.headers) {
        let chunks = response.into_body().into_data_stream().map_err(|cause| cause.to_string());
        return streams::send_websocket(
            call,
            inbound.upgrade,
            chunks,
            &["binary.k8s.io", "base64.binary.k8s.io"],
        );
    }
    Ok(text(response.into_body()))
}

fn text(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// `exec`, `attach` and `portforward`: an upgraded connection from end to end.
pub async fn stream(call: &Call, at: &ResourcePath, inbound: Inbound) -> Result<Response, Status> {
    if call.info.verb != "create" {
        // A WebSocket can only be opened by GET, which is authorized as `get`; running things in a pod is no
        // reading, so the right to create is needed whichever way it is asked for (upstream since 1.35).
        let access = Access { verb: "create".to_owned(), ..call.info.access() };
        call.plane.authority.require(&call.user, &access)?;
    }
    let pod = get(call, &PODS, Some(&at.namespace), &at.name).await?;
    let (namespace, name) = (encode(&at.namespace), encode(&at.name));
    let target = if at.subresource == "portforward" {
        let ports: Vec<String> = call
            .query
            .all("ports")
            .filter(|ports| !ports.is_empty())
            .map(|ports| format!("port={}", encode(ports)))
            .collect();
        format!("/portForward/{namespace}/{name}?{}", ports.join("&"))
    } else {
        let phase = pod.get_str("status.phase").unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return Err(Status::bad_request(format!(
                "cannot exec into a container in a completed pod; current phase is {phase}"
            )));
        }
        let container = container_of(&pod, call.query.get("container").unwrap_or_default())?;
        let query = stream_query(&call.query, at.subresource == "exec")?;
        format!("/{}/{namespace}/{name}/{}?{query}", at.subresource, encode(&container))
    };
    let Some(node) = pod.get_str("spec.nodeName").filter(|node| !node.is_empty()) else {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", at.name)));
    };
    streams::require_upgrade(call)?;
    let kubelet = Kubelet::connect(&call.plane, node, None).await.map_err(|failed| failed.dialing())?;
    streams::tunnel(call, inbound.upgrade, kubelet, &target).await
}

/// Exec's parameters as the kubelet names them.
fn stream_query(query: &Query, exec: bool) -> Result<String, Status> {
    let mut parts = Vec::new();
    for (ours, theirs) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if query.flag(ours) {
            parts.push(format!("{theirs}=1"));
        }
    }
    if parts.is_empty() {
        return Err(Status::bad_request("you must specify at least one of stdin, stdout, stderr"));
    }
    if exec {
        let commands: Vec<String> =
            query.all("command").map(|word| format!("command={}", encode(word))).collect();
        if commands.is_empty() {
            return Err(Status::bad_request("you must specify at least one command for the container"));
        }
        parts.extend(commands);
    }
    Ok(parts.join("&"))
}

/// `PodLogOptions`, validated and in the kubelet's words.
fn log_query(query: &Query, pod: &str) -> Result<String, Status> {
    let mut errors = Vec::new();
    let mut parts = Vec::new();
    for name in ["follow", "previous", "timestamps"] {
        if query.flag(name) {
            parts.push(format!("{name}=true"));
        }
    }
    for (name, least, words) in [
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("limitBytes", 1, "must be greater than 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
    ] {
        if let Some(value) = query.int(name)? {
            if value < least {
                errors.push(Field::new(name).invalid(value, words));
            }
            parts.push(format!("{name}={value}"));
        }
    }
    if let Some(since) = query.text("sinceTime") {
        if query.text("sinceSeconds").is_some() {
            errors.push(
                Field::default().forbidden("at most one of `sinceTime` or `sinceSeconds` may be specified"),
            );
        }
        if since.parse::<jiff::Timestamp>().is_err() {
            return Err(Status::bad_request(format!("parsing time {since:?} as RFC 3339 failed")));
        }
        parts.push(format!("sinceTime={}", encode(since)));
    }
    if let Some(stream) = query.text("stream") {
        if !["All", "Stdout", "Stderr"].contains(&stream) {
            errors.push(Field::new("stream").not_supported(stream, &["All", "Stderr", "Stdout"]));
        }
        parts.push(format!("stream={}", encode(stream)));
    }
    if !errors.is_empty() {
        return Err(Status::invalid("", "PodLogOptions", pod, &errors));
    }
    Ok(parts.join("&"))
}

/// The container meant, or what upstream says when that is not clear.
fn container_of(pod: &Document, asked: &str) -> Result<String, Status> {
    let names = |path: &str| -> Vec<String> {
        let items = pod.get_array(path).iter();
        items.filter_map(|one| one.get("name").and_then(Value::as_str)).map(str::to_owned).collect()
    };
    let (plain, init) = (names("spec.containers"), names("spec.initContainers"));
    if !asked.is_empty() {
        let ephemeral = names("spec.ephemeralContainers");
        if [&plain, &init, &ephemeral].iter().any(|list| list.iter().any(|one| one == asked)) {
            return Ok(asked.to_owned());
        }
        return Err(Status::bad_request(format!("container {asked} is not valid for pod {}", pod.name())));
    }
    match plain.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {}", pod.name()))),
        many => {
            let mut message = format!(
                "a container name must be specified for pod {}, choose one of: [{}]",
                pod.name(),
                many.join(" ")
            );
            if !init.is_empty() {
                message += &format!(" or one of the init containers: [{}]", init.join(" "));
            }
            Err(Status::bad_request(message))
        }
    }
}

/// An object taken apart, read under the caller's identity.
pub async fn get(call: &Call, of: &Gvr, namespace: Option<&str>, name: &str) -> Result<Document, Status> {
    let ctx = Context::of(call.user.clone());
    let object = call.plane.registry().get(&ctx, of, namespace, name, &GetOptions::default()).await?;
    taken_apart(&object)
}

pub fn taken_apart(object: &Arc<Object>) -> Result<Document, Status> {
    object.to_document().map_err(|cause| {
        tracing::error!(error = %cause, "a stored object cannot be taken apart");
        Status::internal("a stored object cannot be read")
    })
}

/// A kubelet's refusal in the API's words.
async fn check(response: http::Response<Body>, of: &Gvr, name: &str) -> Result<http::Response<Body>, Status> {
    let code = response.status().as_u16();
    if (200..=206).contains(&code) {
        return Ok(response);
    }
    let body = read_within(response.into_body(), ERROR_BYTES).await.unwrap_or_default();
    let message = String::from_utf8_lossy(&body).trim().to_owned();
    Err(match code {
        400 => Status::bad_request(message),
        404 => {
            let mut status = Status::not_found(of, name);
            status.message =
                format!("the server could not find the requested resource ( {} {name})", of.resource);
            if !message.is_empty() {
                status.message = message;
            }
            status
        }
        500 => Status::internal(message),
        code => Status::failure(code, Reason::Unknown, message),
    })
}

/// One connection to one kubelet.
pub struct Kubelet {
    sender: SendRequest<Body>,
    authority: String,
}

/// Why there is none, to be worded by who wanted it.
pub struct Unreachable {
    address: String,
    cause: String,
}

impl Unreachable {
    /// As Go's HTTP client words a failed GET: what people find when they search for it.
    fn get(&self, target: &str) -> Status {
        Status::failure(
            500,
            Reason::InternalError,
            format!("Get \"https://{}{target}\": {}", self.address, self.cause),
        )
    }
    pub fn dialing(&self) -> Status {
        Status::internal(format!("error dialing backend: {}", self.cause))
    }
}

impl Kubelet {
    /// Dials the kubelet of `node` and shakes hands with it; on another port than its own if
    /// `nodes/<name>:<port>/proxy` asks for one.
    pub async fn connect(
        plane: &Arc<ControlPlane>,
        node: &str,
        port: Option<u16>,
    ) -> Result<Kubelet, Unreachable> {
        let failed = |address: &str, cause: String| Unreachable { address: address.to_owned(), cause };
        let unnamed = format!("{node}:{KUBELET_PORT}");
        let ctx = Context::default();
        let options = GetOptions { resource_version: "0".to_owned() };
        let object = plane
            .registry()
            .get(&ctx, &NODES, None, node, &options)
            .await
            .map_err(|status| failed(&unnamed, status.message))?;
        let document = taken_apart(&object).map_err(|status| failed(&unnamed, status.message))?;
        let address = address_of(&document, port).ok_or_else(|| {
            failed(&unnamed, format!("no preferred addresses found; node {node} has no IP address"))
        })?;
        let authority = address.to_string();
        let attempt = async {
            if !plane.egress.may_reach_inside(address) {
                // Whoever may write a node's status would be led to what only the node itself may reach.
                return Err(format!("dial tcp {address}: address not allowed"));
            }
            if tenant_auth::is_api_server_name(node) {
                // Its certificate would be ours: a node could lead us back to ourselves, with our own rights.
                return Err(format!("node name {node:?} is the API server's own"));
            }
            let stream = dial(plane, node, address).await?;
            let name = ServerName::try_from(node.to_owned())
                .map_err(|_| format!("node name {node:?} is no DNS name, so no certificate can carry it"))?;
            let config = client_config(plane)?;
            let tls = tokio_rustls::TlsConnector::from(config)
                .connect(name, stream)
                .await
                .map_err(|cause| format!("tls: {cause}"))?;
            handshake(plane, tls).await
        };
        let sender = match tokio::time::timeout(DIAL, attempt).await {
            Ok(Ok(sender)) => sender,
            Ok(Err(cause)) => return Err(failed(&authority, cause)),
            Err(_) => return Err(failed(&authority, format!("dial tcp {authority}: i/o timeout"))),
        };
        Ok(Kubelet { sender, authority })
    }

    async fn send(&mut self, method: Method, target: &str) -> Result<http::Response<Body>, Status> {
        let request = http::Request::builder()
            .method(method)
            .uri(target)
            .header(HOST, &self.authority)
            .body(empty())
            .map_err(|cause| Status::internal(cause.to_string()))?;
        self.forward(request).await
    }

    /// Sends a request made elsewhere; its target is a path.
    pub async fn forward(&mut self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let response = self.sender.send_request(request).await.map_err(|cause| {
            Status::internal(format!("error sending request to https://{}: {cause}", self.authority))
        })?;
        Ok(response.map(erase))
    }

    pub fn authority(&self) -> &str {
        &self.authority
    }
}

/// A raw stream to something that `node` can reach.
pub async fn dial(
    plane: &Arc<ControlPlane>,
    node: &str,
    address: SocketAddr,
) -> Result<Box<dyn tenant_client::Stream>, String> {
    let Some(dialer) = &plane.dialer else {
        return Err(format!("dial tcp {address}: no tunnel to node {node:?}"));
    };
    dialer.dial(node, address).await.map_err(|cause| format!("dial tcp {address}: {cause}"))
}

/// HTTP/1.1 over `stream`, driven by a task that ends with the connection or the plane.
pub async fn handshake<S>(plane: &Arc<ControlPlane>, stream: S) -> Result<SendRequest<Body>, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream))
        .await
        .map_err(|cause| cause.to_string())?;
    plane.tasks.spawn(async move {
        // How it ended is told to whoever waits for the response.
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

/// Where a node's kubelet listens: the internal address first, for tunnels end inside the node.
fn address_of(node: &Document, port: Option<u16>) -> Option<SocketAddr> {
    let addresses = node.get_array("status.addresses");
    let ip = ["InternalIP", "ExternalIP"].iter().find_map(|wanted| {
        addresses
            .iter()
            .filter(|one| one.get("type").and_then(Value::as_str) == Some(wanted))
            .find_map(|one| one.get("address").and_then(Value::as_str)?.parse::<IpAddr>().ok())
    })?;
    let said =
        node.get_i64("status.daemonEndpoints.kubeletEndpoint.Port").and_then(|port| u16::try_from(port).ok());
    let port = port.or(said.filter(|port| *port != 0)).unwrap_or(KUBELET_PORT);
    Some(SocketAddr::new(ip, port))
}

fn client_config(plane: &Arc<ControlPlane>) -> Result<Arc<rustls::ClientConfig>, String> {
    if let Some(config) = plane.kubelet_tls.get() {
        return Ok(config.clone());
    }
    let pki = plane.pki();
    let identity = pki
        // No group: kubelets know this name, and to the API server itself it is nobody much.
        .issue_client("kube-apiserver-kubelet-client", &[], base_net::pki::YEAR)
        .map_err(|cause| cause.to_string())?;
    let config = base_net::tls::client(pki.ca_pem(), Some(&identity), &["http/1.1"])
        .map_err(|cause| cause.to_string())?;
    Ok(plane.kubelet_tls.get_or_init(|| config).clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(containers: &[&str], init: &[&str]) -> Document {
        let named = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
        Document::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"containers": named(containers), "initContainers": named(init)},
        }))
        .unwrap()
    }

    #[test]
    fn a_container_is_chosen_or_asked_for() {
        for (containers, init, asked, wanted) in [
            (&["a"][..], &[][..], "", Ok("a")),
            (&["a", "b"], &[], "b", Ok("b")),
            (&["a"], &["i"], "i", Ok("i")),
            (
                &["a", "b"],
                &[],
                "",
                Err("a container name must be specified for pod web, choose one of: [a b]"),
            ),
            (
                &["a", "b"],
                &["i"],
                "",
                Err(
                    "a container name must be specified for pod web, choose one of: [a b] or one of the init containers: [i]",
                ),
            ),
            (&["a"], &[], "x", Err("container x is not valid for pod web")),
        ] {
            let got = container_of(&pod(containers, init), asked);
            assert_eq!(
                got.map_err(|status| status.message),
                wanted.map(str::to_owned).map_err(str::to_owned)
            );
        }
    }

    #[test]
    fn parameters_are_translated_for_the_kubelet() {
        for (raw, wanted) in [
            ("follow=true&tailLines=5&timestamps=true", Ok("follow=true&timestamps=true&tailLines=5")),
            ("sinceTime=2026-11-30T21%3A00%3A00Z", Ok("sinceTime=2026-11-30T21%3A00%3A00Z")),
            ("tailLines=-1", Err(422)),
            ("limitBytes=0", Err(422)),
            ("tailLines=x", Err(400)),
            ("sinceSeconds=1&sinceTime=2026-11-30T21:00:00Z", Err(422)),
        ] {
            let got = log_query(&Query::parse(Some(raw)), "web").map_err(|status| status.code);
            assert_eq!(got, wanted.map(str::to_owned), "{raw}");
        }
        for (raw, exec, wanted) in [
            (
                "stdin=true&stdout=true&tty=false&command=sh&command=-c&command=a%20b",
                true,
                Ok("input=1&output=1&command=sh&command=-c&command=a%20b"),
            ),
            ("stdout=true", true, Err(400)),
            ("stdout=true", false, Ok("output=1")),
            ("command=sh", true, Err(400)),
        ] {
            let got = stream_query(&Query::parse(Some(raw)), exec).map_err(|status| status.code);
            assert_eq!(got, wanted.map(str::to_owned), "{raw}");
        }
    }
}
