//! How Terraform starts a plugin and the two come to trust each other.
//!
//! Terraform starts us with a cookie, the protocols it speaks and a certificate in the environment. We
//! listen on a socket of our own and answer with one line: versions, socket, and *our* certificate. Both
//! are made for this run alone, so each side accepts exactly the other's one.
//!
//! Facts from go-plugin: the line is `1|6|unix|PATH|grpc|CERT`, the certificate is unpadded base64 of DER
//! and must be a CA for `localhost`; Terraform's is an ECDSA P-521 CA too, which no ordinary verifier takes
//! for a client. Not here: what is served (`server`).

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use tempfile::TempDir;
use tokio::net::UnixListener;

/// Not a secret: it keeps people from starting a plugin by hand and wondering.
pub const COOKIE: (&str, &str) =
    ("TF_PLUGIN_MAGIC_COOKIE", "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2");

/// The one protocol we speak.
const PROTOCOL: &str = "6";

#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error(
        "this is a Terraform plug-in: Terraform starts it by itself. Name the provider in `required_providers` \
         and run `terraform init`"
    )]
    NotTerraform,
    #[error("this Terraform speaks plug-in protocol {0}, and this provider 6; use Terraform 1.0 or newer")]
    Protocol(String),
    #[error("Terraform gave no certificate (PLUGIN_CLIENT_CERT); use Terraform 1.0 or newer")]
    NoCertificate,
    #[error("Terraform's certificate is not readable")]
    Certificate(#[source] rustls::pki_types::pem::Error),
    #[error("a certificate cannot be made")]
    Make(#[source] rcgen::Error),
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    #[error("no socket in {folder}")]
    Socket {
        folder: String,
        #[source]
        cause: std::io::Error,
    },
}

/// What Terraform says through the environment.
#[derive(Debug, Default)]
pub struct Offer {
    cookie: Option<String>,
    protocols: Option<String>,
    client_cert: Option<String>,
    socket_dir: Option<PathBuf>,
}

impl Offer {
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Offer {
        Offer {
            cookie: lookup(COOKIE.0),
            protocols: lookup("PLUGIN_PROTOCOL_VERSIONS"),
            client_cert: lookup("PLUGIN_CLIENT_CERT"),
            socket_dir: lookup("PLUGIN_UNIX_SOCKET_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from),
        }
    }

    /// Terraform's certificate, if this is Terraform and we understand each other.
    fn accept(&self) -> Result<CertificateDer<'static>, HandshakeError> {
        if self.cookie.as_deref() != Some(COOKIE.1) {
            return Err(HandshakeError::NotTerraform);
        }
        let protocols = self.protocols.as_deref().unwrap_or_default();
        if !protocols.split(',').any(|one| one.trim() == PROTOCOL) {
            return Err(HandshakeError::Protocol(protocols.to_owned()));
        }
        let pem = self.client_cert.as_deref().filter(|pem| !pem.is_empty());
        let pem = pem.ok_or(HandshakeError::NoCertificate)?;
        CertificateDer::from_pem_slice(pem.as_bytes()).map_err(HandshakeError::Certificate)
    }
}

/// Listening, and what is needed to go on.
#[derive(Debug)]
pub struct Agreed {
    pub listener: UnixListener,
    pub tls: Arc<ServerConfig>,
    /// What Terraform reads from our standard output.
    pub line: String,
    /// Holds the socket; removed when dropped.
    pub folder: TempDir,
}

/// Answers an offer with a socket that only this user reaches and only Terraform's certificate opens.
pub fn shake(offer: &Offer) -> Result<Agreed, HandshakeError> {
    let client = offer.accept()?;
    let (certificate, key) = identity()?;
    let mut tls = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(HandshakeError::Tls)?
        .with_client_cert_verifier(Arc::new(Pinned::new(client)))
        .with_single_cert(vec![certificate.clone()], key)
        .map_err(HandshakeError::Tls)?;
    tls.alpn_protocols = vec![b"h2".to_vec()];

    let parent = offer.socket_dir.clone().unwrap_or_else(std::env::temp_dir);
    let failed = |cause| HandshakeError::Socket { folder: parent.display().to_string(), cause };
    // Short names: a socket's path has a hundred bytes.
    let folder = tempfile::Builder::new().prefix("tf-").tempdir_in(&parent).map_err(failed)?;
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).map_err(failed)?;
    let line = format!("1|{PROTOCOL}|unix|{}|grpc|{}", path.display(), STANDARD_NO_PAD.encode(&certificate));
    Ok(Agreed { listener, tls: Arc::new(tls), line, folder })
}

fn identity() -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), HandshakeError> {
    let key = KeyPair::generate().map_err(HandshakeError::Make)?;
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).map_err(HandshakeError::Make)?;
    params.distinguished_name.push(DnType::CommonName, "localhost");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.self_signed(&key).map_err(HandshakeError::Make)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    Ok((certificate.der().clone(), key.into()))
}

/// Accepts one certificate, byte by byte; the handshake itself proves that the peer has its key.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    crypto: CryptoProvider,
}

impl Pinned {
    fn new(certificate: CertificateDer<'static>) -> Pinned {
        Pinned { certificate, crypto: aws_lc_rs::default_provider() }
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if *end_entity == self.certificate {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.crypto.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.crypto.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terraform_we_understand_is_answered() {
        let cert = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap().cert.pem();
        let cookie = Some(COOKIE.1);
        for (cookie, protocols, cert, wanted) in [
            (cookie, Some("5,6"), Some(cert.as_str()), "fine"),
            (cookie, Some("6"), Some(&cert), "fine"),
            (None, Some("6"), Some(&cert), "this is a Terraform plug-in"),
            (Some("x"), Some("6"), Some(&cert), "this is a Terraform plug-in"),
            (cookie, Some("4,5"), Some(&cert), "this Terraform speaks plug-in protocol 4,5"),
            (cookie, None, Some(&cert), "this Terraform speaks plug-in protocol "),
            (cookie, Some("6"), None, "Terraform gave no certificate"),
            (cookie, Some("6"), Some("---"), "Terraform's certificate is not readable"),
        ] {
            let offer = Offer::from_env(|name| {
                let value = match name {
                    "PLUGIN_PROTOCOL_VERSIONS" => protocols,
                    "PLUGIN_CLIENT_CERT" => cert,
                    name if name == COOKIE.0 => cookie,
                    _ => None,
                };
                value.map(str::to_owned)
            });
            let said = offer.accept().map_or_else(|error| error.to_string(), |_| "fine".to_owned());
            assert!(said.starts_with(wanted), "{said}");
        }
    }

    #[test]
    fn no_certificate_but_the_pinned_one_is_taken() {
        let make = || {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
            made.cert.der().clone()
        };
        let (own, other) = (make(), make());
        let pinned = Pinned::new(own.clone());
        assert!(pinned.verify_client_cert(&own, &[], UnixTime::now()).is_ok());
        assert!(pinned.verify_client_cert(&other, &[own], UnixTime::now()).is_err());
        assert!(pinned.client_auth_mandatory());
    }
}
