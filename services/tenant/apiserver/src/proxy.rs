//! `pods|services|nodes/<name>/proxy`: HTTP to something inside the cluster, through a node's tunnel.
//!
//! The name may carry a scheme and a port: `https:web:8443`. For a Service this server picks a ready
//! endpoint itself, so no node needs a proxy for it.

use std::net::{IpAddr, SocketAddr};

use api_machinery::{Document, Gvr, LabelSelector, Requirement, Status};
use http::header::{HOST, LOCATION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use hyper::client::conn::http1::SendRequest;
use rustls_pki_types::ServerName;
use tenant_outbound::{Endpoint, port_name, ready_endpoints};
use tenant_registry::{Context, ListOptions};

use crate::body::{Body, Response, empty, erase};
use crate::kubelet::{self, Kubelet, PODS};
use crate::pipeline::{Call, Inbound};
use crate::request::ResourcePath;
use crate::streams;

const SERVICES: Gvr = Gvr::core("services");
const ENDPOINT_SLICES: Gvr = Gvr::new("discovery.k8s.io", "v1", "endpointslices");

/// Headers that end at each hop.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// `[scheme:]name[:port]`
#[derive(Debug, PartialEq, Eq)]
struct Named<'a> {
    scheme: &'a str,
    name: &'a str,
    port: &'a str,
}

fn parse_name(text: &str) -> Option<Named<'_>> {
    let parts: Vec<&str> = text.split(':').collect();
    let named = match parts[..] {
        [name] => Named { scheme: "", name, port: "" },
        [name, port] => Named { scheme: "", name, port },
        [scheme, name, port] if matches!(scheme, "" | "http" | "https") => Named { scheme, name, port },
        _ => return None,
    };
    (!named.name.is_empty()).then_some(named)
}

pub async fn answer(call: &Call, at: &ResourcePath, inbound: Inbound) -> Result<Response, Status> {
    if at.rest.is_none() && matches!(call.method, Method::GET | Method::HEAD) {
        // Relative links of what is behind must resolve below the proxy's own path.
        return redirect(call);
    }
    let Some(named) = parse_name(&at.name) else {
        return Err(Status::bad_request(format!("invalid {} request {:?}", at.resource, at.name)));
    };
    let mut backend = match at.resource.as_str() {
        "pods" => pod(call, at, &named).await?,
        "services" => service(call, at, &named).await?,
        _ => node(call, &named).await?,
    };
    let path = at.rest.as_deref().unwrap_or("/");
    let target = match call.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let upgrading = call.headers.contains_key(UPGRADE);
    let headers = forwarded_headers(call, &backend.authority, upgrading);
    let body = if upgrading { empty() } else { inbound.body };
    let request = streams::build(call.method.clone(), &target, headers, body)?;
    let response = backend.send(request).await?;
    if upgrading && response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return streams::join(call, inbound.upgrade, response);
    }
    Ok(returned(call, at, response))
}

fn redirect(call: &Call) -> Result<Response, Status> {
    let mut to = format!("{}/", call.uri.path());
    if let Some(query) = call.uri.query() {
        to += &format!("?{query}");
    }
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let location = HeaderValue::from_str(&to).map_err(|_| Status::bad_request("unusable path"))?;
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

fn forwarded_headers(call: &Call, authority: &str, upgrading: bool) -> HeaderMap {
    let mut headers = call.headers.clone();
    streams::strip_credentials(&mut headers);
    if !upgrading {
        strip_hop_by_hop(&mut headers);
    }
    if let Ok(host) = HeaderValue::from_str(authority) {
        headers.insert(HOST, host);
    }
    if let Ok(uri) = HeaderValue::from_str(call.uri.path()) {
        headers.insert(HeaderName::from_static("x-forwarded-uri"), uri);
    }
    headers
}

fn returned(call: &Call, at: &ResourcePath, response: http::Response<Body>) -> Response {
    let (mut parts, body) = response.into_parts();
    strip_hop_by_hop(&mut parts.headers);
    // A redirect inside the backend must stay below the proxy.
    if let Some(to) =
        parts.headers.get(LOCATION).and_then(|to| to.to_str().ok()).filter(|to| to.starts_with('/'))
    {
        let own = call.uri.path();
        let base = own.strip_suffix(at.rest.as_deref().unwrap_or_default()).unwrap_or(own);
        if let Ok(value) = HeaderValue::from_str(&format!("{base}{to}")) {
            parts.headers.insert(LOCATION, value);
        }
    }
    let mut answer = Response::new(body);
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = parts.headers;
    answer
}

/// A connection to what is proxied to.
struct Backend {
    sender: Sender,
    authority: String,
}

enum Sender {
    Direct(SendRequest<Body>),
    Kubelet(Kubelet),
}

impl Backend {
    async fn send(&mut self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        match &mut self.sender {
            Sender::Kubelet(kubelet) => kubelet.forward(request).await,
            Sender::Direct(sender) => match sender.send_request(request).await {
                Ok(response) => Ok(response.map(erase)),
                Err(cause) => Err(Status::unavailable(format!("error trying to reach service: {cause}"))),
            },
        }
    }

    async fn connect(call: &Call, node: &str, address: SocketAddr, scheme: &str) -> Result<Backend, Status> {
        let unreachable =
            |cause: String| Status::unavailable(format!("error trying to reach service: {cause}"));
        if !call.plane.egress.may_reach_inside(address) {
            return Err(Status::bad_request("address not allowed"));
        }
        let stream = kubelet::dial(&call.plane, node, address).await.map_err(unreachable)?;
        let sender = if scheme == "https" {
            let tls = tokio_rustls::TlsConnector::from(tenant_outbound::unverified())
                .connect(ServerName::IpAddress(address.ip().into()), stream)
                .await
                .map_err(|cause| unreachable(format!("tls: {cause}")))?;
            kubelet::handshake(&call.plane, tls).await
        } else {
            kubelet::handshake(&call.plane, stream).await
        };
        Ok(Backend { sender: Sender::Direct(sender.map_err(unreachable)?), authority: address.to_string() })
    }
}

async fn pod(call: &Call, at: &ResourcePath, named: &Named<'_>) -> Result<Backend, Status> {
    let pod = kubelet::get(call, &PODS, Some(&at.namespace), named.name).await?;
    let port = if named.port.is_empty() {
        first_port(&pod).unwrap_or(if named.scheme == "https" { 443 } else { 80 })
    } else {
        named.port.parse().map_err(|_| Status::bad_request(format!("invalid pod request {:?}", at.name)))?
    };
    let ip = pod.get_str("status.podIP").and_then(|ip| ip.parse::<IpAddr>().ok());
    let node = pod.get_str("spec.nodeName").filter(|node| !node.is_empty());
    match (ip, node) {
        (Some(ip), Some(node)) => Backend::connect(call, node, SocketAddr::new(ip, port), named.scheme).await,
        _ => Err(Status::bad_request("address not allowed")),
    }
}

fn first_port(pod: &Document) -> Option<u16> {
    let mut containers = pod.get_array("spec.containers").iter();
    let port = containers
        .find_map(|container| container.get("ports")?.as_array()?.first()?.get("containerPort")?.as_u64())?;
    u16::try_from(port).ok()
}

async fn service(call: &Call, at: &ResourcePath, named: &Named<'_>) -> Result<Backend, Status> {
    let service = kubelet::get(call, &SERVICES, Some(&at.namespace), named.name).await?;
    let Some(port_name) = port_name(&service, named.port) else {
        return Err(Status::unavailable(format!(
            "no service port {:?} found for service {:?}",
            named.port, named.name
        )));
    };
    let labels = LabelSelector {
        requirements: vec![Requirement::In(
            "kubernetes.io/service-name".to_owned(),
            vec![named.name.to_owned()],
        )],
    };
    let options = ListOptions { labels, resource_version: "0".to_owned(), ..ListOptions::default() };
    let ctx = Context::of(call.user.clone());
    let slices = call.plane.registry().list(&ctx, &ENDPOINT_SLICES, Some(&at.namespace), &options).await?;
    let mut candidates = Vec::new();
    for slice in &slices.items {
        let slice = kubelet::taken_apart(slice)?;
        candidates.extend(ready_endpoints(&slice, &port_name));
    }
    if candidates.is_empty() {
        return Err(Status::unavailable(format!("no endpoints available for service {:?}", named.name)));
    }
    // The request's own random id spreads load well enough without a random generator.
    let seed = call
        .request_id
        .bytes()
        .fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
    let Endpoint { address, node } = candidates.swap_remove(seed % candidates.len());
    let node = match node {
        Some(node) => node,
        // Endpoints that somebody wrote by hand name no node: any that is connected may try.
        None => call
            .plane
            .dialer
            .as_ref()
            .and_then(|dialer| dialer.connected().into_iter().next())
            .unwrap_or_default(),
    };
    Backend::connect(call, &node, address, named.scheme).await
}

async fn node(call: &Call, named: &Named<'_>) -> Result<Backend, Status> {
    let port = match named.port {
        "" => None,
        text => {
            Some(text.parse().map_err(|_| Status::bad_request(format!("invalid node request {text:?}")))?)
        }
    };
    let kubelet = Kubelet::connect(&call.plane, named.name, port).await.map_err(|failed| {
        Status::unavailable(format!("error trying to reach service: {}", failed.dialing().message))
    })?;
    let authority = kubelet.authority().to_owned();
    Ok(Backend { sender: Sender::Kubelet(kubelet), authority })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_scheme_and_port() {
        for (text, wanted) in [
            ("web", Some(("", "web", ""))),
            ("web:http", Some(("", "web", "http"))),
            ("https:web:8443", Some(("https", "web", "8443"))),
            (":web:80", Some(("", "web", "80"))),
            ("ftp:web:21", None),
            ("a:b:c:d", None),
            ("", None),
        ] {
            let got = parse_name(text).map(|named| (named.scheme, named.name, named.port));
            assert_eq!(got, wanted, "{text:?}");
        }
    }
}
