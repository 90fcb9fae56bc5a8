//! `pods|services|nodes/<name>/proxy`: HTTP to something inside the cluster, through a node's tunnel.
//!
//! The name may carry a scheme and a port: `https:web:8443`. For a Service this server picks a ready
//! endpoint itself, so no node needs a proxy for it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api_machinery::{Document, Gvr, LabelSelector, Requirement, Status};
use http::header::{HOST, LOCATION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use hyper::client::conn::http1::SendRequest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::Value;
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
        for name in HOP_BY_HOP {
            headers.remove(name);
        }
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
    for name in HOP_BY_HOP {
        parts.headers.remove(name);
    }
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
        if !is_proxyable(address.ip()) {
            return Err(Status::bad_request("address not allowed"));
        }
        let stream = kubelet::dial(&call.plane, node, address).await.map_err(unreachable)?;
        let sender = if scheme == "https" {
            let tls = tokio_rustls::TlsConnector::from(unverified())
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

/// Whether tenants may be taken there: a pod's address is what somebody wrote into its status, and no pod lives
/// on a node's loopback or link-local addresses, where clouds keep their credentials.
fn is_proxyable(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_loopback()
                || ip.is_link_local()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_broadcast())
        }
        IpAddr::V6(ip) => {
            !(ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast())
        }
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
    let (address, node) = candidates.swap_remove(seed % candidates.len());
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

/// The name of the Service's port that is meant; an unnamed port's is "".
fn port_name(service: &Document, asked: &str) -> Option<String> {
    let ports = service.get_array("spec.ports");
    let name = |port: &Value| port.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if asked.is_empty() {
        return match ports {
            [] => Some(String::new()),
            [only] => Some(name(only)),
            // Several and none named: upstream takes the unnamed one, which cannot be among several.
            _ => None,
        };
    }
    let number = asked.parse::<u64>().ok();
    ports
        .iter()
        .find(|port| {
            name(port) == asked || (number.is_some() && port.get("port").and_then(Value::as_u64) == number)
        })
        .map(name)
}

fn ready_endpoints(slice: &Document, port_name: &str) -> Vec<(SocketAddr, Option<String>)> {
    let port = slice
        .get_array("ports")
        .iter()
        .find(|port| port.get("name").and_then(Value::as_str).unwrap_or_default() == port_name)
        .and_then(|port| u16::try_from(port.get("port")?.as_u64()?).ok());
    let Some(port) = port else { return Vec::new() };
    let ready =
        |endpoint: &&Value| endpoint.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false);
    let endpoints = slice.get_array("endpoints").iter().filter(ready);
    endpoints
        .flat_map(|endpoint| {
            let node = endpoint.get("nodeName").and_then(Value::as_str).map(str::to_owned);
            let addresses =
                endpoint.get("addresses").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            addresses.iter().filter_map(move |address| {
                let ip = address.as_str()?.parse::<IpAddr>().ok()?;
                Some((SocketAddr::new(ip, port), node.clone()))
            })
        })
        .collect()
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

/// TLS to pods and Services without checking who answers, as upstream has it: their certificates are the
/// tenant's own and name nothing we know. The connection stays inside the cluster's tunnel.
fn unverified() -> Arc<rustls::ClientConfig> {
    base_net::tls::install_crypto_provider();
    let config = rustls::ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    Arc::new(config)
}

#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &provider()?.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &provider()?.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .map(|provider| provider.signature_verification_algorithms.supported_schemes())
            .unwrap_or_default()
    }
}

fn provider() -> Result<&'static Arc<CryptoProvider>, rustls::Error> {
    CryptoProvider::get_default().ok_or_else(|| rustls::Error::General("no crypto provider".to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    #[test]
    fn endpoints_are_chosen_by_port_and_readiness() {
        let slice = Document::from_value(json!({
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [
                {"addresses": ["10.244.0.5"], "nodeName": "n1", "conditions": {"ready": true}},
                {"addresses": ["10.244.0.6"], "conditions": {"ready": false}},
                {"addresses": ["10.244.0.7"]},
            ],
        }))
        .unwrap();
        let shown = |port: &str| -> Vec<String> {
            ready_endpoints(&slice, port).into_iter().map(|(at, node)| format!("{at} {node:?}")).collect()
        };
        assert_eq!(shown("http"), ["10.244.0.5:8080 Some(\"n1\")", "10.244.0.7:8080 None"]);
        assert!(shown("").is_empty());

        let service =
            Document::from_value(json!({"spec": {"ports": [{"name": "http", "port": 80}]}})).unwrap();
        for (asked, wanted) in
            [("", Some("http")), ("80", Some("http")), ("http", Some("http")), ("81", None)]
        {
            assert_eq!(port_name(&service, asked).as_deref(), wanted, "{asked:?}");
        }
    }
}
