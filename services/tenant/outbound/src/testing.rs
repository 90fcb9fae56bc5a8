//! A TLS server on loopback that counts and answers, and a dialer that stands in for a node.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api_machinery::Document;
use async_trait::async_trait;
use base_net::pki::{Ca, Issued, Profile, YEAR};
use base_net::tls::ClientAuth;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tenant_client::{NodeDialer, Stream};
use tokio::net::{TcpListener, TcpStream};

use crate::endpoints::Directory;

type Answer = Arc<dyn Fn(Request<Bytes>) -> Response<Bytes> + Send + Sync>;

/// Serves until it is dropped.
pub struct TlsServer {
    pub address: SocketAddr,
    /// What signed its certificate.
    pub ca_pem: String,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A certificate for `names` under a fresh authority, and that authority.
pub fn certificate(names: &[&str]) -> (Issued, Ca) {
    let ca = Ca::generate("test").expect("keys can be made");
    let profile = Profile {
        common_name: names[0].to_owned(),
        dns_names: names
            .iter()
            .filter(|name| name.parse::<std::net::IpAddr>().is_err())
            .map(|&n| n.to_owned())
            .collect(),
        ip_addresses: names.iter().filter_map(|name| name.parse().ok()).collect(),
        server: true,
        lifetime: YEAR,
        ..Profile::default()
    };
    (ca.issue(&profile).expect("an authority can issue"), ca)
}

impl TlsServer {
    /// Answers every request with `answer`; a delay is what `Response::extensions` says as a `Duration`.
    pub async fn start(
        names: &[&str],
        answer: impl Fn(Request<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> TlsServer {
        let (identity, ca) = certificate(names);
        TlsServer::with(&identity, ca.cert_pem(), None, answer).await
    }

    /// With a certificate made elsewhere, and asking clients for one signed by `client_ca`.
    pub async fn with(
        identity: &Issued,
        ca_pem: &str,
        client_ca: Option<&str>,
        answer: impl Fn(Request<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> TlsServer {
        let config =
            base_net::tls::server(identity, client_ca.map(|ca| (ca, ClientAuth::Required)), &["http/1.1"])
                .expect("a usable identity");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a port");
        let address = listener.local_addr().expect("bound");
        let (connections, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (opened, asked) = (connections.clone(), requests.clone());
        let answer: Answer = Arc::new(answer);
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        let task = tokio::spawn(async move {
            let mut served = tokio::task::JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::SeqCst);
                let (acceptor, answer, asked) = (acceptor.clone(), answer.clone(), asked.clone());
                served.spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else { return };
                    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                        let (answer, asked) = (answer.clone(), asked.clone());
                        async move {
                            asked.fetch_add(1, Ordering::SeqCst);
                            let (parts, body) = request.into_parts();
                            let body = body.collect().await?.to_bytes();
                            let response = answer(Request::from_parts(parts, body));
                            if let Some(delay) = response.extensions().get::<std::time::Duration>() {
                                tokio::time::sleep(*delay).await;
                            }
                            Ok::<_, hyper::Error>(response.map(Full::new))
                        }
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(tls), service).with_upgrades().await;
                });
            }
        });
        TlsServer { address, ca_pem: ca_pem.to_owned(), connections, requests, task }
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Whatever a node is asked to dial ends at one address; what was asked is remembered.
pub struct OneNode {
    pub node: &'static str,
    pub to: SocketAddr,
    pub dialled: Mutex<Vec<SocketAddr>>,
}

impl OneNode {
    pub fn new(node: &'static str, to: SocketAddr) -> Arc<OneNode> {
        Arc::new(OneNode { node, to, dialled: Mutex::default() })
    }
}

#[async_trait]
impl NodeDialer for OneNode {
    async fn dial(&self, node: &str, address: SocketAddr) -> io::Result<Box<dyn Stream>> {
        if node != self.node {
            return Err(io::Error::other(format!("no tunnel to node {node:?}")));
        }
        self.dialled.lock().push(address);
        Ok(Box::new(TcpStream::connect(self.to).await?))
    }
    fn connected(&self) -> Vec<String> {
        vec![self.node.to_owned()]
    }
}

/// One Service `ns/web` on port 443 with given EndpointSlices.
pub struct OneService(pub Vec<Value>);

impl Directory for OneService {
    fn service(&self, namespace: &str, name: &str) -> Option<Document> {
        let known = (namespace, name) == ("ns", "web");
        let service = serde_json::json!({"spec": {"type": "ClusterIP", "ports": [{"port": 443}]}});
        known.then(|| Document::from_value(service)).flatten()
    }
    fn endpoint_slices(&self, _namespace: &str, _service: &str) -> Vec<Document> {
        self.0.iter().cloned().filter_map(Document::from_value).collect()
    }
}
