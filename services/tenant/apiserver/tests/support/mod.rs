//! One cluster on a loopback port and a client that speaks to it over real TLS and HTTP.

#![allow(dead_code)] // Each test file uses its own part.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base_clock::SystemClock;
use base_ids::TenantId;
use base_net::pki::Issued;
use base_net::tasks::Tasks;
use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use serde_json::Value;
use store_mvcc::Limits;
use store_raft::Group;
use tenant_apiserver::{Config, ControlPlane};
use tenant_auth::{ClusterPki, policy};
use tenant_client::NodeDialer;
use tenant_registry::bootstrap;
use tokio::net::{TcpListener, TcpStream};

/// A served cluster; it stops with the test's runtime.
pub struct Cluster {
    pub address: SocketAddr,
    pub pki: ClusterPki,
    pub plane: Arc<ControlPlane>,
    pub tasks: Tasks,
}

/// What came back.
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|cause| panic!("{cause} in {:?}", String::from_utf8_lossy(&self.body)))
    }
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

pub async fn cluster() -> Cluster {
    cluster_with(None).await
}

pub async fn cluster_with(dialer: Option<Arc<dyn NodeDialer>>) -> Cluster {
    let clock = SystemClock::shared();
    let pki = ClusterPki::generate().unwrap();
    cluster_of(pki, dialer, clock).await
}

/// With keys made before, for tests whose nodes need certificates.
pub async fn cluster_of(
    pki: ClusterPki,
    dialer: Option<Arc<dyn NodeDialer>>,
    clock: base_clock::SharedClock,
) -> Cluster {
    let group = Group::in_memory(Limits::default());
    let first = bootstrap::command(&bootstrap::Options {
        now: clock.now(),
        keys: pki.to_entries(),
        client_ca_pem: pki.ca_pem().to_owned(),
        front_proxy_ca_pem: pki.front_proxy_ca().cert_pem().to_owned(),
        defaults: policy::default_objects(),
    })
    .unwrap();
    group.write(first).await.unwrap();
    let tasks = Tasks::new();
    let plane = ControlPlane::start(Config {
        tenant: TenantId::generate(),
        group,
        pki: pki.clone(),
        clock,
        dialer,
        egress: tenant_outbound::Egress::new(&tenant_outbound::EgressConfig::default()).unwrap(),
        mount: None,
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
        tasks: tasks.clone(),
    })
    .unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (serving, spawner) = (plane.clone(), tasks.clone());
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let plane = serving.clone();
            spawner.spawn(async move {
                let _ = plane.accept(stream).await;
            });
        }
    });
    Cluster { address, pki, plane, tasks }
}

impl Cluster {
    pub fn admin(&self) -> Issued {
        self.pki.issue_client("admin", &["system:masters"], Duration::from_secs(3600)).unwrap()
    }

    pub async fn connect(
        &self,
        identity: Option<&Issued>,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let config = base_net::tls::client(self.pki.ca_pem(), identity, &["http/1.1"]).unwrap();
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("kubernetes.default.svc").unwrap();
        tokio_rustls::TlsConnector::from(config).connect(name, stream).await
    }

    /// One request on a connection of its own.
    pub async fn send(
        &self,
        identity: Option<&Issued>,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let response = self.open(identity, method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Like [`Cluster::send`], with the body still to come.
    pub async fn open(
        &self,
        identity: Option<&Issued>,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> http::Response<hyper::body::Incoming> {
        let stream = self.connect(identity).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let mut request = http::Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path)
            .header("host", "kubernetes");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        sender.send_request(request.body(Full::new(body.into())).unwrap()).await.unwrap()
    }

    /// As an admin, in JSON.
    pub async fn admin_send(&self, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let kind = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        self.send(Some(&self.admin()), method, path, &[("content-type", kind)], body).await
    }
}
