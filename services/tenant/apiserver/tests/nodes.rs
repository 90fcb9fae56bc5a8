//! Logs and exec as far as the kubelet's door: a kubelet of the test's own answers behind a dialer.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use base_clock::SystemClock;
use base_net::pki::Profile;
use base_net::tls::{self, ClientAuth};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use support::cluster_of;
use tenant_auth::ClusterPki;
use tenant_client::{NodeDialer, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Serves what it is asked for, over TLS with a certificate in the node's name.
struct FakeNode {
    tls: Arc<rustls::ServerConfig>,
}

#[async_trait]
impl NodeDialer for FakeNode {
    async fn dial(&self, node: &str, address: SocketAddr) -> std::io::Result<Box<dyn Stream>> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        if node == "n1" && address.to_string() == "10.244.0.5:8080" {
            // A pod that serves plain HTTP.
            tokio::spawn(async move {
                let service = service_fn(pod);
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(far), service)
                    .await;
            });
            return Ok(Box::new(near));
        }
        if node != "n1" || address.port() != 10250 {
            return Err(std::io::Error::other(format!("{node} {address} is not here")));
        }
        let acceptor = tokio_rustls::TlsAcceptor::from(self.tls.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(far).await else { return };
            let authenticated = stream.get_ref().1.peer_certificates().is_some();
            let service = service_fn(move |request| kubelet(request, authenticated));
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
        });
        Ok(Box::new(near))
    }
    fn connected(&self) -> Vec<String> {
        vec!["n1".to_owned()]
    }
}

async fn pod(
    request: http::Request<Incoming>,
) -> Result<http::Response<Full<Bytes>>, std::convert::Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let told = parts.headers.contains_key("authorization");
    let shown = format!("{} {} {} told={told}", parts.method, parts.uri, String::from_utf8_lossy(&body));
    let mut response = http::Response::new(Full::new(Bytes::from(shown)));
    if parts.uri.path() == "/moved" {
        *response.status_mut() = http::StatusCode::FOUND;
        response.headers_mut().insert("location", http::HeaderValue::from_static("/there"));
    }
    Ok(response)
}

async fn kubelet(
    mut request: http::Request<Incoming>,
    authenticated: bool,
) -> Result<http::Response<Full<Bytes>>, std::convert::Infallible> {
    let target = request.uri().to_string();
    let mut response =
        http::Response::new(Full::new(Bytes::from(format!("{target} authenticated={authenticated}\n"))));
    if target.contains("/broken") {
        *response.status_mut() = http::StatusCode::BAD_REQUEST;
        *response.body_mut() = Full::new(Bytes::from_static(
            b"container \"c\" in pod \"broken\" is waiting to start: ContainerCreating",
        ));
    }
    if target.starts_with("/exec/") {
        assert!(request.headers().get("authorization").is_none(), "the client's credentials stay here");
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut buffer = [0u8; 5];
            stream.read_exact(&mut buffer).await.unwrap();
            stream.write_all(&buffer).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
        for (name, value) in [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-protocol", "v5.channel.k8s.io"),
        ] {
            response.headers_mut().insert(name, http::HeaderValue::from_static(value));
        }
    }
    Ok(response)
}

async fn cluster_with_node() -> support::Cluster {
    let pki = ClusterPki::generate().unwrap();
    let identity = pki
        .ca()
        .issue(&Profile {
            common_name: "system:node:n1".to_owned(),
            dns_names: vec!["n1".to_owned()],
            server: true,
            lifetime: base_net::pki::YEAR,
            ..Profile::default()
        })
        .unwrap();
    let tls = tls::server(&identity, Some((pki.ca_pem(), ClientAuth::Required)), &["http/1.1"]).unwrap();
    let cluster = cluster_of(pki, Some(Arc::new(FakeNode { tls })), SystemClock::shared()).await;
    let node = json!({
        "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "172.31.240.2"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}},
    });
    let made = cluster.admin_send("POST", "/api/v1/nodes", node.clone()).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let reported =
        cluster.admin_send("PATCH", "/api/v1/nodes/n1/status", json!({"status": node["status"]})).await;
    assert_eq!(reported.code, 200, "{}", reported.text());
    let account = cluster
        .admin_send(
            "POST",
            "/api/v1/namespaces/default/serviceaccounts",
            json!({"metadata": {"name": "default"}}),
        )
        .await;
    assert_eq!(account.code, 201, "{}", account.text());
    for (name, node) in [("web", "n1"), ("broken", "n1"), ("homeless", ""), ("lost", "n2")] {
        let mut pod =
            json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
        if !node.is_empty() {
            pod["spec"]["nodeName"] = node.into();
        }
        let made = cluster.admin_send("POST", "/api/v1/namespaces/default/pods", pod).await;
        assert_eq!(made.code, 201, "{}", made.text());
    }
    cluster
}

#[tokio::test]
async fn logs_come_from_the_pods_node() {
    let cluster = cluster_with_node().await;
    for (path, code, wanted) in [
        ("web/log", 200, "/containerLogs/default/web/c authenticated=true\n"),
        (
            "web/log?tailLines=5&container=c",
            200,
            "/containerLogs/default/web/c?tailLines=5 authenticated=true\n",
        ),
        ("web/log?container=x", 400, "container x is not valid for pod web"),
        ("homeless/log", 200, ""),
        ("broken/log", 400, "is waiting to start: ContainerCreating"),
        ("lost/log", 500, "nodes \\\"n2\\\" not found"),
        ("gone/log", 404, "pods \\\"gone\\\" not found"),
        ("web/exec?command=ls&stdout=1", 400, "Upgrade request required"),
    ] {
        let answer =
            cluster.admin_send("GET", &format!("/api/v1/namespaces/default/pods/{path}"), Value::Null).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.text());
        assert!(answer.text().contains(wanted), "{path}: {}", answer.text());
    }
}

#[tokio::test]
async fn exec_is_a_tunnel_to_the_kubelet() {
    let cluster = cluster_with_node().await;
    let path = "/api/v1/namespaces/default/pods/web/exec?command=cat&stdin=1&stdout=1";
    let websocket = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "v5.channel.k8s.io"),
    ];
    let response = cluster.open(Some(&cluster.admin()), "GET", path, &websocket, "").await;
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["sec-websocket-protocol"], "v5.channel.k8s.io");
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    let mut echoed = Vec::new();
    stream.read_to_end(&mut echoed).await.unwrap();
    assert_eq!(echoed, b"hello");

    // What the client upgrades to is the kubelet's to know, as long as it is a thing kubelets know.
    for (upgrade, code) in [("SPDY/3.1", 101), ("h2c", 400)] {
        let headers = [("connection", "Upgrade"), ("upgrade", upgrade)];
        let answer = cluster.open(Some(&cluster.admin()), "POST", path, &headers, "").await;
        assert_eq!(answer.status(), code, "{upgrade}");
    }
}

#[tokio::test]
async fn logs_come_over_websocket_too() {
    let cluster = cluster_with_node().await;
    let websocket = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "binary.k8s.io"),
    ];
    let path = "/api/v1/namespaces/default/pods/web/log";
    let response = cluster.open(Some(&cluster.admin()), "GET", path, &websocket, "").await;
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(response.headers()["sec-websocket-protocol"], "binary.k8s.io");
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    let mut frame = vec![0u8; 2 + "/containerLogs/default/web/c authenticated=true\n".len()];
    stream.read_exact(&mut frame).await.unwrap();
    // One final binary frame, unmasked.
    assert_eq!((frame[0], usize::from(frame[1])), (0x82, frame.len() - 2));
    assert_eq!(&frame[2..], b"/containerLogs/default/web/c authenticated=true\n");
}

#[tokio::test]
async fn pods_services_and_nodes_are_proxied_to() {
    let cluster = cluster_with_node().await;
    let admin =
        |method: &'static str, path: &'static str, body: Value| cluster.admin_send(method, path, body);
    let status =
        json!({"status": {"podIP": "10.244.0.5", "podIPs": [{"ip": "10.244.0.5"}], "phase": "Running"}});
    let patched = admin("PATCH", "/api/v1/namespaces/default/pods/web/status", status).await;
    assert_eq!(patched.code, 200, "{}", patched.text());
    for name in ["web", "empty"] {
        let service = json!({"metadata": {"name": name}, "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
        let made = admin("POST", "/api/v1/namespaces/default/services", service).await;
        assert_eq!(made.code, 201, "{}", made.text());
    }
    let slice = json!({
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.244.0.5"], "nodeName": "n1", "conditions": {"ready": true}}],
    });
    let made = admin("POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice).await;
    assert_eq!(made.code, 201, "{}", made.text());

    for (method, path, code, wanted) in [
        ("GET", "/api/v1/namespaces/default/pods/web:8080/proxy/a/b?q=1", 200, "GET /a/b?q=1  told=false"),
        ("POST", "/api/v1/namespaces/default/pods/web:8080/proxy/", 200, "POST / {} told=false"),
        ("GET", "/api/v1/namespaces/default/pods/web:8080/proxy", 301, ""),
        ("GET", "/api/v1/namespaces/default/services/web/proxy/x", 200, "GET /x  told=false"),
        ("GET", "/api/v1/namespaces/default/services/web:http/proxy/x", 200, "GET /x  told=false"),
        ("GET", "/api/v1/namespaces/default/services/web:81/proxy/x", 503, "no service port"),
        (
            "GET",
            "/api/v1/namespaces/default/services/empty/proxy/x",
            503,
            "no endpoints available for service",
        ),
        ("GET", "/api/v1/namespaces/default/services/web/proxy/moved", 302, ""),
        ("GET", "/api/v1/nodes/n1/proxy/pods", 200, "/pods authenticated=true"),
        ("GET", "/api/v1/namespaces/default/pods/ftp:web:1/proxy/", 400, "invalid pods request"),
    ] {
        let body = if method == "POST" { json!({}) } else { Value::Null };
        let answer = cluster.admin_send(method, path, body).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.text());
        assert!(answer.text().contains(wanted), "{path}: {}", answer.text());
        match code {
            301 => assert_eq!(answer.header("location"), format!("{path}/")),
            302 => {
                assert_eq!(answer.header("location"), "/api/v1/namespaces/default/services/web/proxy/there")
            }
            _ => {}
        }
    }
}
