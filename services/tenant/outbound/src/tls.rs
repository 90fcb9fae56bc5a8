//! TLS towards what a tenant named: whom to trust, and Go's words when that fails.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use base_net::pki::{certs_from_pem, key_from_pem};
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::destination::{Destination, OutboundError, Trust};

/// Configurations kept per cluster: more than a cluster has webhooks. Beyond it all are made anew.
const KEPT: usize = 64;

/// One cluster's client configurations, by whom they trust and what they show.
#[derive(Default)]
pub(crate) struct Configs(Mutex<HashMap<Asked, Arc<ClientConfig>>>);

/// The authorities, and how they are used with which certificate.
type Asked = (Option<Arc<str>>, String);

impl Configs {
    pub(crate) fn of(&self, to: &Destination) -> Result<Arc<ClientConfig>, OutboundError> {
        let (ca, kind) = match &to.trust {
            Trust::System if to.identity.is_none() => return system(),
            Trust::System => (None, "system"),
            Trust::Ca(pem) => (Some(pem.clone()), "ca"),
            Trust::Anyone => (None, "anyone"),
        };
        let shown = to.identity.as_ref().map(|issued| issued.cert_pem.as_str()).unwrap_or_default();
        let key = (ca, format!("{kind} {shown}"));
        if let Some(found) = self.0.lock().get(&key) {
            return Ok(found.clone());
        }
        let made = make(to)?;
        let mut kept = self.0.lock();
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(key, made.clone());
        Ok(made)
    }
}

fn make(to: &Destination) -> Result<Arc<ClientConfig>, OutboundError> {
    base_net::tls::install_crypto_provider();
    let failed = |cause: &dyn std::fmt::Display| OutboundError::Trust(cause.to_string());
    let verifier: Arc<dyn ServerCertVerifier> = match &to.trust {
        Trust::System => Arc::new(Trusting::new(system_roots()?)?),
        Trust::Ca(pem) => Arc::new(Trusting::new(roots_of(pem)?)?),
        Trust::Anyone => Arc::new(AnyCertificate),
    };
    let builder = ClientConfig::builder().dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match &to.identity {
        Some(issued) => {
            let chain = certs_from_pem(&issued.cert_pem).map_err(|cause| failed(&cause))?;
            let key = key_from_pem(&issued.key_pem).map_err(|cause| failed(&cause))?;
            builder.with_client_auth_cert(chain, key).map_err(|cause| failed(&cause))?
        }
        None => builder.with_no_client_auth(),
    };
    // Upstream speaks HTTP/1.1 to webhooks, so that requests spread over what is behind a Service.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// What most webhooks on the internet need: made once for all clusters, for it holds 140 certificates.
fn system() -> Result<Arc<ClientConfig>, OutboundError> {
    static MADE: LazyLock<Result<Arc<ClientConfig>, String>> = LazyLock::new(|| {
        let place = crate::destination::Place::Url(http::Uri::default());
        let to = Destination { place, trust: Trust::System, identity: None };
        // With an identity of none this is what the cache would hold.
        make(&to).map_err(|cause| cause.to_string())
    });
    MADE.clone().map_err(OutboundError::Trust)
}

fn system_roots() -> Result<Vec<CertificateDer<'static>>, OutboundError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(OutboundError::Trust("this machine has no certificate authorities".to_owned()));
    }
    Ok(found.certs)
}

/// What of a bundle can be read; upstream skips the rest.
fn roots_of(pem: &str) -> Result<Vec<CertificateDer<'static>>, OutboundError> {
    use rustls_pki_types::pem::PemObject;
    let readable: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect();
    if readable.is_empty() {
        return Err(OutboundError::Trust("unable to parse bytes as PEM block".to_owned()));
    }
    Ok(readable)
}

/// Verifies against given roots; a root may also be the server's own certificate.
///
/// Many webhooks are given one self-signed certificate and are configured to trust just that. Go takes it;
/// webpki refuses a certificate that could sign others as a server's, whoever trusts it.
#[derive(Debug)]
struct Trusting {
    inner: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl Trusting {
    fn new(roots: Vec<CertificateDer<'static>>) -> Result<Trusting, OutboundError> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.iter().cloned());
        let inner = WebPkiServerVerifier::builder(Arc::new(store))
            .build()
            .map_err(|cause| OutboundError::Trust(cause.to_string()))?;
        Ok(Trusting { inner, roots })
    }

    /// Is one of the roots itself, names what was asked for and is in its time.
    fn is_root_itself(
        &self,
        leaf: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        if !self.roots.iter().any(|root| root.as_ref() == leaf.as_ref()) {
            return Err(CertificateError::UnknownIssuer.into());
        }
        rustls::client::verify_server_name(&ParsedCertificate::try_from(leaf)?, name)?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(leaf).map_err(|_| CertificateError::BadEncoding)?;
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let (from, to) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        if seconds < from {
            return Err(CertificateError::NotValidYet.into());
        }
        if seconds > to {
            return Err(CertificateError::Expired.into());
        }
        Ok(())
    }
}

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.inner.verify_server_cert(leaf, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::Other(_) | CertificateError::UnknownIssuer,
            )) if self.is_root_itself(leaf, name, now).is_ok() => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// TLS without checking who answers, for `pods|services/proxy` as upstream has it: their certificates are the
/// tenant's own and name nothing we know. The connection stays inside the cluster's tunnel.
pub fn unverified() -> Arc<ClientConfig> {
    base_net::tls::install_crypto_provider();
    let config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    Arc::new(config)
}

#[derive(Debug)]
struct AnyCertificate;

fn provider() -> Result<&'static Arc<CryptoProvider>, rustls::Error> {
    CryptoProvider::get_default().ok_or_else(|| rustls::Error::General("no crypto provider".to_owned()))
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
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

/// Why a handshake failed, as people know it from Go.
pub(crate) fn in_gos_words(cause: &std::io::Error, name: &str) -> String {
    let inner = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let x509 = |what: String| format!("tls: failed to verify certificate: x509: {what}");
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => match why {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                x509("certificate signed by unknown authority".to_owned())
            }
            CertificateError::Expired
            | CertificateError::NotValidYet
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYetContext { .. } => {
                x509("certificate has expired or is not yet valid".to_owned())
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                x509(format!("certificate is not valid for {name}"))
            }
            other => x509(other.to_string()),
        },
        Some(rustls::Error::InvalidMessage(_)) => {
            "http: server gave HTTP response to HTTPS client".to_owned()
        }
        Some(other) => format!("tls: {other}"),
        None if cause.kind() == std::io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => crate::egress::in_gos_words(std::io::Error::new(cause.kind(), cause.to_string())).to_string(),
    }
}
