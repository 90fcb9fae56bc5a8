//! The road to the API server: TCP, TLS with a server name of its own, and an identity that may change.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base_net::pki::{Issued, certs_from_pem, key_from_pem};
use base_tunnel::BoxedIo;
use http::{HeaderName, HeaderValue, Request, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::Body;
use parking_lot::RwLock;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::ServiceBuilder;

use crate::config::AgentError;

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Where the server is and whom its certificate names.
#[derive(Debug, Clone)]
pub struct Target {
    pub uri: Uri,
    host: String,
    port: u16,
    name: ServerName<'static>,
}

impl Target {
    pub fn parse(server: &str, tls_server_name: Option<&str>) -> Result<Target, AgentError> {
        let bad = || AgentError::Server { given: server.to_owned() };
        let uri: Uri = server.trim_end_matches('/').parse().map_err(|_| bad())?;
        if uri.scheme_str() != Some("https") {
            return Err(bad());
        }
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let named = tls_server_name.unwrap_or(&host).to_owned();
        let name = ServerName::try_from(named.clone())
            .map_err(|_| AgentError::Server { given: format!("{server} (TLS name {named})") })?;
        Ok(Target { uri, host, port, name })
    }

    /// Whom to say one wants in `:authority`.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.name.to_str(), self.port)
    }

    pub fn server(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The address of this machine that leads to the server.
    pub async fn local_address(&self) -> io::Result<std::net::IpAddr> {
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await?;
        Ok(socket.local_addr()?.ip())
    }
}

/// A client certificate that can be replaced; connections made from then on show the new one.
#[derive(Debug, Default)]
pub struct Identity {
    current: RwLock<Option<Arc<CertifiedKey>>>,
}

impl Identity {
    pub fn set(&self, issued: &Issued) -> Result<(), AgentError> {
        let chain = certs_from_pem(&issued.cert_pem)?;
        let key = key_from_pem(&issued.key_pem)?;
        let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)
            .map_err(|error| AgentError::Certificate { what: "this node's key", why: error.to_string() })?;
        *self.current.write() = Some(Arc::new(CertifiedKey::new(chain, signer)));
        Ok(())
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current.read().clone()
    }
    fn has_certs(&self) -> bool {
        self.current.read().is_some()
    }
}

/// Makes connections to one server.
#[derive(Clone)]
pub struct Connector {
    target: Target,
    tls: TlsConnector,
}

impl Connector {
    /// Trusts `ca_pem` and nobody else; shows `identity` when it has one.
    pub fn trusting(
        target: Target,
        ca_pem: &str,
        identity: Option<Arc<Identity>>,
    ) -> Result<Connector, AgentError> {
        let mut config = (*base_net::tls::client(ca_pem, None, &["h2", "http/1.1"])?).clone();
        if let Some(identity) = identity {
            config.client_auth_cert_resolver = identity;
            // A resumed session would go on showing the certificate of the one it resumes.
            config.resumption = Resumption::disabled();
        }
        Ok(Connector { target, tls: TlsConnector::from(Arc::new(config)) })
    }

    /// Trusts anybody: only for reading what is then verified by other means.
    pub fn trusting_anybody(target: Target) -> Result<Connector, AgentError> {
        base_net::tls::install_crypto_provider();
        let provider = CryptoProvider::get_default()
            .cloned()
            .unwrap_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
        let mut config = ClientConfig::builder()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Connector { target, tls: TlsConnector::from(Arc::new(config)) })
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    pub async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
        let tcp = TcpStream::connect((self.target.host.as_str(), self.target.port));
        let tcp = tokio::time::timeout(CONNECT_PATIENCE, tcp).await.map_err(timed_out)??;
        tcp.set_nodelay(true)?;
        let tls = self.tls.connect(self.target.name.clone(), tcp);
        tokio::time::timeout(CONNECT_PATIENCE, tls).await.map_err(timed_out)?
    }

    /// For the tunnel, which speaks HTTP/2 only.
    pub async fn connect_h2(&self) -> io::Result<BoxedIo> {
        let stream = self.connect().await?;
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Ok(Box::new(stream)),
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "the server does not speak HTTP/2")),
        }
    }

    /// A Kubernetes client over connections of this kind, with a bearer token if given.
    pub fn client(&self, bearer: Option<&str>) -> Result<kube::Client, AgentError> {
        let header =
            bearer.map(|token| HeaderValue::from_str(&format!("Bearer {token}"))).transpose().map_err(
                |_| AgentError::TokenForm { given: "(with characters no header may have)".to_owned() },
            )?;
        Ok(self.client_with(header.map(|value| (http::header::AUTHORIZATION, value))))
    }

    /// A Kubernetes client that acts as `user`, whom the cluster lets this identity impersonate.
    pub fn client_as(&self, user: &'static str) -> kube::Client {
        self.client_with(Some((HeaderName::from_static("impersonate-user"), HeaderValue::from_static(user))))
    }

    fn client_with(&self, header: Option<(HeaderName, HeaderValue)>) -> kube::Client {
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(90))
            // Else a server that vanished without a word would hang watches for a quarter of an hour.
            .http2_keep_alive_interval(Some(Duration::from_secs(15)))
            .http2_keep_alive_timeout(Duration::from_secs(15))
            .http2_keep_alive_while_idle(true)
            .build::<_, Body>(self.clone());
        let base = self.target.uri.clone();
        let service = ServiceBuilder::new()
            .map_request(move |mut request: Request<Body>| {
                *request.uri_mut() = absolute(&base, request.uri());
                if let Some((name, value)) = &header {
                    request.headers_mut().insert(name.clone(), value.clone());
                }
                request
            })
            .service(http);
        kube::Client::new(service, "default")
    }
}

fn absolute(base: &Uri, relative: &Uri) -> Uri {
    let mut parts = relative.clone().into_parts();
    parts.scheme = base.scheme().cloned();
    parts.authority = base.authority().cloned();
    if parts.path_and_query.is_none() {
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    }
    Uri::from_parts(parts).unwrap_or_else(|_| base.clone())
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { Ok(TokioIo::new(Stream(connector.connect().await?))) })
    }
}

/// A TLS stream that tells hyper which protocol was agreed on.
pub struct Stream(TlsStream<TcpStream>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        match self.0.get_ref().1.alpn_protocol() {
            Some(b"h2") => connected.negotiated_h2(),
            _ => connected,
        }
    }
}
impl tokio::io::AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}
impl tokio::io::AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Accepts every certificate; signatures are still checked, so the peer has the key it shows.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_say_whom_they_mean() {
        for (server, name, authority) in [
            ("https://172.31.240.1:6443", Some("c1.roadstead.local"), Some("c1.roadstead.local:6443")),
            ("https://api.example.org", None, Some("api.example.org:443")),
            ("https://[fd00::1]:6443/", None, Some("fd00::1:6443")),
            ("http://api.example.org", None, None),
            ("api.example.org:6443", None, None),
            ("https://api.example.org", Some("not a name"), None),
        ] {
            let parsed = Target::parse(server, name).ok().map(|target| target.authority());
            assert_eq!(parsed.as_deref(), authority, "{server} {name:?}");
        }
    }
}
