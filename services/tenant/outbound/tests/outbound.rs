//! Calls over real TLS on loopback: what is answered, what is refused, and in which words.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base_net::tasks::Tasks;
use bytes::Bytes;
use http::{Request, Response};
use serde_json::{Value, json};
use tenant_outbound::testing::{OneNode, OneService, TlsServer, certificate};
use tenant_outbound::{ClusterOutbound, Destination, Egress, EgressConfig, Limits, Outbound, Place, Trust};

const LIMITS: Limits = Limits { timeout: Duration::from_secs(5), response_bytes: 1024 };

fn egress(allow: &[String]) -> Arc<Egress> {
    Egress::new(&EgressConfig { allow: allow.to_vec(), ..EgressConfig::default() }).unwrap()
}

fn out(allow: &[String]) -> Arc<ClusterOutbound> {
    ClusterOutbound::new(Arc::new(OneService(Vec::new())), None, egress(allow), Tasks::new())
}

fn url(address: SocketAddr, path: &str, trust: Trust) -> Destination {
    let place = Place::Url(format!("https://{address}{path}").parse().unwrap());
    Destination { place, trust, identity: None }
}

fn ca(server: &TlsServer) -> Trust {
    Trust::Ca(server.ca_pem.as_str().into())
}

fn post(to: &Destination, body: &str) -> Request<Bytes> {
    Request::post(to.target("")).body(Bytes::copy_from_slice(body.as_bytes())).unwrap()
}

async fn said(out: &ClusterOutbound, to: &Destination, limits: Limits) -> String {
    match out.call(to, post(to, "hello"), limits).await {
        Ok(response) => {
            format!("{} {}", response.status().as_u16(), String::from_utf8_lossy(response.body()))
        }
        Err(cause) => cause.to_string(),
    }
}

fn answer(request: Request<Bytes>) -> Response<Bytes> {
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/redirect" => Response::builder()
            .status(307)
            .header("location", "https://127.0.0.1:1/")
            .body(Bytes::new())
            .unwrap(),
        "/long" => Response::new(Bytes::from(vec![b'x'; 2000])),
        "/slow" => {
            let mut response = Response::new(Bytes::new());
            response.extensions_mut().insert(Duration::from_secs(30));
            response
        }
        _ => {
            let host = request.headers()["host"].to_str().unwrap().to_owned();
            Response::new(format!("{host} {path} {}", String::from_utf8_lossy(request.body())).into())
        }
    }
}

#[tokio::test]
async fn a_url_is_called_within_its_limits() {
    let server = TlsServer::start(&["127.0.0.1"], answer).await;
    let other = TlsServer::start(&["127.0.0.1"], answer).await;
    let wrong_name = TlsServer::start(&["else.example.com"], answer).await;
    let address = server.address;
    let out = out(&[address.to_string(), wrong_name.address.to_string()]);
    let short = Limits { timeout: Duration::from_millis(300), ..LIMITS };
    for (to, limits, wanted) in [
        (url(address, "/a", ca(&server)), LIMITS, format!("200 {address} /a hello")),
        (url(address, "/redirect", ca(&server)), LIMITS, "307 ".to_owned()),
        (url(address, "/long", ca(&server)), LIMITS, "the response is longer than 1024 bytes".to_owned()),
        (url(address, "/slow", ca(&server)), short, "context deadline exceeded".to_owned()),
        (url(address, "/a", Trust::Anyone), LIMITS, format!("200 {address} /a hello")),
        (
            url(address, "/a", ca(&other)),
            LIMITS,
            "tls: failed to verify certificate: x509: certificate signed by unknown authority".to_owned(),
        ),
        (
            url(address, "/a", Trust::System),
            LIMITS,
            "tls: failed to verify certificate: x509: certificate signed by unknown authority".to_owned(),
        ),
        (
            url(wrong_name.address, "/a", ca(&wrong_name)),
            LIMITS,
            "tls: failed to verify certificate: x509: certificate is not valid for 127.0.0.1".to_owned(),
        ),
        (
            url(address, "/a", Trust::Ca("nothing".into())),
            LIMITS,
            "unable to load root certificates: unable to parse bytes as PEM block".to_owned(),
        ),
        (
            url(other.address, "/a", ca(&other)),
            LIMITS,
            format!("dial tcp {}: address not allowed", other.address),
        ),
    ] {
        assert_eq!(said(&out, &to, limits).await, wanted);
    }
    assert_eq!(other.connections(), 0, "nothing was sent to what is not allowed");
}

#[tokio::test]
async fn a_certificate_that_is_its_own_root_is_trusted() {
    // As `openssl req -x509` makes them: able to sign, and used as a server's.
    let own = |name: &str| {
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let cert_pem = params.self_signed(&key).unwrap().pem();
        base_net::pki::Issued { cert_pem, key_pem: key.serialize_pem() }
    };
    for (name, trusted, wanted) in
        [("127.0.0.1", true, true), ("127.0.0.1", false, false), ("else.example.com", true, false)]
    {
        let identity = own(name);
        let server = TlsServer::with(&identity, &identity.cert_pem, None, answer).await;
        let pem = if trusted { identity.cert_pem.clone() } else { own(name).cert_pem };
        let got = said(
            &out(&[server.address.to_string()]),
            &url(server.address, "/", Trust::Ca(pem.into())),
            LIMITS,
        )
        .await;
        assert_eq!(got.starts_with("200 "), wanted, "{name} {trusted}: {got}");
        assert!(wanted || got.starts_with("tls: failed to verify certificate: x509: "), "{got}");
    }
}

#[tokio::test]
async fn connections_are_reused_and_replaced_when_the_other_side_closes_them() {
    let server = TlsServer::start(&["127.0.0.1"], |request| {
        let mut response = Response::new(Bytes::from_static(b"ok"));
        if request.uri().path() == "/close" {
            response.headers_mut().insert("connection", "close".parse().unwrap());
        }
        response
    })
    .await;
    let out = out(&[server.address.to_string()]);
    let (keep, close) =
        (url(server.address, "/keep", ca(&server)), url(server.address, "/close", ca(&server)));
    for (to, connections) in [(&keep, 1), (&keep, 1), (&close, 1), (&keep, 2), (&keep, 2)] {
        assert_eq!(said(&out, to, LIMITS).await, "200 ok");
        assert_eq!(server.connections(), connections);
    }
    assert_eq!(server.requests(), 5);
}

fn slice(ip: &str, port: u16, node: Option<&str>) -> Value {
    let mut endpoint = json!({"addresses": [ip]});
    if let Some(node) = node {
        endpoint["nodeName"] = node.into();
    }
    json!({"ports": [{"name": "", "port": port}], "endpoints": [endpoint]})
}

#[tokio::test]
async fn a_service_is_called_through_the_node_that_runs_its_endpoint() {
    let server = TlsServer::start(&["web.ns.svc"], answer).await;
    let provider =
        Egress::new(&EgressConfig { refuse: vec!["198.41.0.4".to_owned()], ..EgressConfig::default() })
            .unwrap();
    // The manager and another cell, on addresses of their own.
    provider.refuse("10.200.0.1".parse().unwrap());
    for (ip, node, wanted) in [
        ("10.244.0.5", Some("n1"), "200 web.ns.svc:443 /check hello"),
        ("10.244.0.5", None, "200 web.ns.svc:443 /check hello"),
        ("127.0.0.1", Some("n1"), "dial tcp 127.0.0.1:8443: address not allowed"),
        ("::1", None, "dial tcp [::1]:8443: address not allowed"),
        ("::ffff:127.0.0.1", None, "dial tcp [::ffff:127.0.0.1]:8443: address not allowed"),
        ("169.254.169.254", Some("n1"), "dial tcp 169.254.169.254:8443: address not allowed"),
        ("0.0.0.0", Some("n1"), "dial tcp 0.0.0.0:8443: address not allowed"),
        ("198.41.0.4", None, "dial tcp 198.41.0.4:8443: address not allowed"),
        ("10.200.0.1", Some("n1"), "dial tcp 10.200.0.1:8443: address not allowed"),
    ] {
        let node_dialer = OneNode::new("n1", server.address);
        let directory = Arc::new(OneService(vec![slice(ip, 8443, node)]));
        let out = ClusterOutbound::new(directory, Some(node_dialer.clone()), provider.clone(), Tasks::new());
        let place =
            Place::Service { namespace: "ns".into(), name: "web".into(), port: 443, path: "/check".into() };
        let to = Destination { place, trust: ca(&server), identity: None };
        assert_eq!(said(&out, &to, LIMITS).await, wanted, "{ip}");
        let dialled = node_dialer.dialled.lock().len();
        assert_eq!(dialled, usize::from(wanted.starts_with("200")), "{ip}: dialled {dialled}");
    }
}

#[tokio::test]
async fn a_front_proxy_shows_its_certificate() {
    let (identity, server_ca) = certificate(&["web.ns.svc"]);
    let (shown, client_ca) = certificate(&["front-proxy-client"]);
    let server = TlsServer::with(&identity, server_ca.cert_pem(), Some(client_ca.cert_pem()), answer).await;
    let directory = Arc::new(OneService(vec![slice("10.244.0.5", 8443, Some("n1"))]));
    let out =
        ClusterOutbound::new(directory, Some(OneNode::new("n1", server.address)), egress(&[]), Tasks::new());
    let place = Place::Service { namespace: "ns".into(), name: "web".into(), port: 443, path: "/".into() };
    let client = base_net::pki::Profile {
        common_name: "front-proxy-client".to_owned(),
        client: true,
        lifetime: base_net::pki::YEAR,
        ..base_net::pki::Profile::default()
    };
    let shown = base_net::pki::Issued { ..client_ca.issue(&client).unwrap_or(shown) };
    let to = Destination { place, trust: ca(&server), identity: Some(Arc::new(shown)) };
    assert_eq!(said(&out, &to, LIMITS).await, "200 web.ns.svc:443 / hello");
    let without = Destination { identity: None, ..to };
    let got = said(&out, &without, LIMITS).await;
    assert!(!got.starts_with("200"), "{got}");
}
