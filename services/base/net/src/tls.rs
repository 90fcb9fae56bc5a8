//! rustls configurations from PEM.

use std::sync::{Arc, Once};

use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::pki::{Issued, PkiError, certs_from_pem, key_from_pem};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("certificate or key is not usable")]
    Pki(#[from] PkiError),
    #[error("TLS configuration is not usable")]
    Rustls(#[from] rustls::Error),
    #[error("client certificate verifier is not usable")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Chooses aws-lc-rs for the process. Called first thing by every `main` and every test that uses TLS.
pub fn install_crypto_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Fails only when somebody else installed one already, which is as good.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
}

/// `unrecognized_name`, fatal (RFC 6066), as bytes: what a client gets before any handshake that names a server
/// nobody is. It learns that the name is at fault, not the network.
pub const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Which client certificates a server wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// Asked for and verified when given; bearer tokens remain possible. What an API server does.
    Optional,
    /// mTLS between our own processes.
    Required,
}

/// A server for HTTP/2 and HTTP/1.1 whose clients are verified against `client_ca_pem`, if given.
pub fn server(
    identity: &Issued,
    client_ca: Option<(&str, ClientAuth)>,
    alpn: &[&str],
) -> Result<Arc<ServerConfig>, TlsError> {
    install_crypto_provider();
    let builder = ServerConfig::builder();
    let builder = match client_ca {
        Some((pem, auth)) => {
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots(pem)?));
            let verifier = match auth {
                ClientAuth::Optional => verifier.allow_unauthenticated(),
                ClientAuth::Required => verifier,
            };
            builder.with_client_cert_verifier(verifier.build()?)
        }
        None => builder.with_no_client_auth(),
    };
    let chain = certs_from_pem(&identity.cert_pem)?;
    let mut config = builder.with_single_cert(chain, key_from_pem(&identity.key_pem)?)?;
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

/// A client that trusts `ca_pem` alone and shows `identity`, if given.
pub fn client(ca_pem: &str, identity: Option<&Issued>, alpn: &[&str]) -> Result<Arc<ClientConfig>, TlsError> {
    install_crypto_provider();
    let builder = ClientConfig::builder().with_root_certificates(roots(ca_pem)?);
    let mut config = match identity {
        Some(issued) => builder
            .with_client_auth_cert(certs_from_pem(&issued.cert_pem)?, key_from_pem(&issued.key_pem)?)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

fn roots(pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for cert in certs_from_pem(pem)? {
        roots.add(cert)?;
    }
    Ok(roots)
}
