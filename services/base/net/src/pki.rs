//! Certificate authorities and what they issue.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use crate::subject;

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("{what} is not usable")]
    Input {
        what: &'static str,
        #[source]
        cause: rcgen::Error,
    },
    #[error("the CA's key is not usable")]
    CaKey {
        #[source]
        cause: rcgen::Error,
    },
    #[error("the CA's certificate is of another key")]
    NotAPair,
    #[error("{what} is not PEM")]
    Pem {
        what: &'static str,
        #[source]
        cause: rustls_pki_types::pem::Error,
    },
    #[error("making a certificate failed")]
    Make(#[source] rcgen::Error),
    #[error("a certificate's subject could not be written")]
    Subject,
}

/// What a certificate is for and whom it names.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    pub common_name: String,
    /// `O=`: groups, in Kubernetes.
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub ip_addresses: Vec<IpAddr>,
    pub server: bool,
    pub client: bool,
    /// How long it is valid, counted from now.
    pub lifetime: Duration,
}

/// Certificates start to be valid this long before they are made, for clocks that lag. So a certificate of ours was
/// made this long after its `notBefore`.
pub const BACKDATE: Duration = Duration::from_secs(5 * 60);

/// A year and a bit: what kubeadm gives leaf certificates.
pub const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A certificate with its key, both PEM.
#[derive(Clone)]
pub struct Issued {
    pub cert_pem: String,
    pub key_pem: String,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

/// A certificate authority that can sign.
pub struct Ca {
    cert_pem: String,
    key_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    /// A self-signed authority, valid for ten years.
    pub fn generate(common_name: &str) -> Result<Ca, PkiError> {
        let key = KeyPair::generate().map_err(PkiError::Make)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(common_name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        valid_for(&mut params, SystemTime::now(), 10 * YEAR);
        let cert_pem = params.self_signed(&key).map_err(PkiError::Make)?.pem();
        let key_pem = key.serialize_pem();
        Ca::from_pem(&cert_pem, &key_pem)
    }

    /// Fails when either is not usable or they do not belong together.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Ca, PkiError> {
        let key = KeyPair::from_pem(key_pem).map_err(|cause| PkiError::CaKey { cause })?;
        let public = key.subject_public_key_info();
        let issuer = Issuer::from_ca_cert_pem(cert_pem, key)
            .map_err(|cause| PkiError::Input { what: "CA certificate", cause })?;
        let der = CertificateDer::from_pem_slice(cert_pem.as_bytes())
            .map_err(|cause| PkiError::Pem { what: "CA certificate", cause })?;
        let of_key = x509_parser::parse_x509_certificate(&der)
            .is_ok_and(|(_, certificate)| certificate.public_key().raw == public);
        if !of_key {
            return Err(PkiError::NotAPair);
        }
        Ok(Ca { cert_pem: cert_pem.to_owned(), key_pem: key_pem.to_owned(), issuer })
    }

    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }
    pub fn cert_der(&self) -> Result<CertificateDer<'static>, PkiError> {
        CertificateDer::from_pem_slice(self.cert_pem.as_bytes())
            .map_err(|cause| PkiError::Pem { what: "CA certificate", cause })
    }

    /// A fresh key and its certificate.
    pub fn issue(&self, profile: &Profile) -> Result<Issued, PkiError> {
        self.issue_at(profile, SystemTime::now())
    }

    /// The same, made at `now` as far as the certificate says.
    pub fn issue_at(&self, profile: &Profile, now: SystemTime) -> Result<Issued, PkiError> {
        let key = KeyPair::generate().map_err(PkiError::Make)?;
        let cert = params(profile, now)?.signed_by(&key, &self.issuer).map_err(PkiError::Make)?;
        Ok(Issued { cert_pem: self.finished(&cert, profile)?, key_pem: key.serialize_pem() })
    }

    /// Whether `issued` was issued here, says what `profile` says, and is valid for `left` from now.
    pub fn has_issued(&self, issued: &Issued, profile: &Profile, left: Duration) -> bool {
        self.says(issued, profile, left).unwrap_or(false)
    }

    /// `None` when it cannot be read.
    fn says(&self, issued: &Issued, profile: &Profile, left: Duration) -> Option<bool> {
        let der = CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
        let key = KeyPair::from_pem(&issued.key_pem).ok()?;
        // What it would say if it were issued now, written down in the same way.
        let fresh = params(profile, SystemTime::now()).ok()?.signed_by(&key, &self.issuer).ok()?;
        let (_, fresh) = x509_parser::parse_x509_certificate(fresh.der()).ok()?;
        let until = std::time::SystemTime::now().checked_add(left)?;
        let extensions = |one: &x509_parser::certificate::X509Certificate<'_>| -> Vec<(String, Vec<u8>)> {
            one.extensions().iter().map(|one| (one.oid.to_id_string(), one.value.to_vec())).collect()
        };
        Some(
            certificate.issuer().as_raw() == fresh.issuer().as_raw()
                && certificate.public_key().raw == fresh.public_key().raw
                && certificate.subject().as_raw() == fresh.subject().as_raw()
                // Names, usage, and which key of an authority of this name has signed.
                && extensions(&certificate) == extensions(&fresh)
                && ends_at(&issued.cert_pem)? >= until,
        )
    }

    /// A certificate for the key of a CSR (PEM). Subject and names come from `profile`, not from the CSR:
    /// whoever approves has decided what it may say. The CSR's own signature is verified.
    pub fn sign_csr(&self, csr_pem: &str, profile: &Profile) -> Result<String, PkiError> {
        let mut csr = CertificateSigningRequestParams::from_pem(csr_pem)
            .map_err(|cause| PkiError::Input { what: "certificate signing request", cause })?;
        csr.params = params(profile, SystemTime::now())?;
        let cert = csr.signed_by(&self.issuer).map_err(PkiError::Make)?;
        self.finished(&cert, profile)
    }

    /// The certificate as PEM, with every organisation of the profile in it (see `subject.rs`).
    fn finished(&self, cert: &rcgen::Certificate, profile: &Profile) -> Result<String, PkiError> {
        if profile.organizations.len() < 2 {
            return Ok(cert.pem());
        }
        let key =
            KeyPair::from_pem(&self.key_pem).map_err(|cause| PkiError::Input { what: "CA key", cause })?;
        let der = subject::certificate(cert.der(), &profile.common_name, &profile.organizations, &key)
            .ok_or(PkiError::Subject)?;
        Ok(to_pem("CERTIFICATE", &der))
    }
}

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca").field("cert_pem", &self.cert_pem).finish_non_exhaustive()
    }
}

/// A fresh key and a CSR for it, both PEM.
pub fn request(profile: &Profile) -> Result<(String, String), PkiError> {
    let key = KeyPair::generate().map_err(PkiError::Make)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name(&profile.common_name, &profile.organizations);
    params.subject_alt_names = alt_names(profile)?;
    let csr = params.serialize_request(&key).map_err(PkiError::Make)?;
    let pem = if profile.organizations.len() < 2 {
        csr.pem().map_err(PkiError::Make)?
    } else {
        let der = subject::request(csr.der(), &profile.common_name, &profile.organizations, &key)
            .ok_or(PkiError::Subject)?;
        to_pem("CERTIFICATE REQUEST", &der)
    };
    Ok((pem, key.serialize_pem()))
}

fn to_pem(label: &str, der: &[u8]) -> String {
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in STANDARD.encode(der).as_bytes().chunks(64) {
        // Base64 is ASCII, so every piece of it is text.
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem + &format!("-----END {label}-----\n")
}

/// All certificates of a PEM bundle, in order.
pub fn certs_from_pem(pem: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|cause| PkiError::Pem { what: "certificate bundle", cause })
}

pub fn key_from_pem(pem: &str) -> Result<PrivateKeyDer<'static>, PkiError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|cause| PkiError::Pem { what: "private key", cause })
}

/// `sha256:<hex>` of the certificate's public key (SubjectPublicKeyInfo), which is how
/// `--discovery-token-ca-cert-hash` names a CA.
pub fn public_key_hash(cert_pem: &str) -> Result<String, PkiError> {
    use sha2::{Digest, Sha256};
    let der = CertificateDer::from_pem_slice(cert_pem.as_bytes())
        .map_err(|cause| PkiError::Pem { what: "CA certificate", cause })?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).map_err(|_| PkiError::Input {
        what: "CA certificate",
        cause: rcgen::Error::CouldNotParseCertificate,
    })?;
    Ok(format!("sha256:{}", hex::encode(Sha256::digest(certificate.public_key().raw))))
}

/// When the first certificate of `pem` ends; `None` when there is none.
pub fn ends_at(pem: &str) -> Option<std::time::SystemTime> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    std::time::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn params(profile: &Profile, now: SystemTime) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name(&profile.common_name, &profile.organizations);
    params.subject_alt_names = alt_names(profile)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    if profile.server {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    if profile.client {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    }
    valid_for(&mut params, now, profile.lifetime);
    Ok(params)
}

fn alt_names(profile: &Profile) -> Result<Vec<SanType>, PkiError> {
    let mut names = Vec::new();
    for name in &profile.dns_names {
        let name = name.as_str().try_into().map_err(|cause| PkiError::Input { what: "DNS name", cause })?;
        names.push(SanType::DnsName(name));
    }
    names.extend(profile.ip_addresses.iter().copied().map(SanType::IpAddress));
    Ok(names)
}

fn distinguished_name(common_name: &str, organizations: &[String]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for organization in organizations {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

fn valid_for(params: &mut CertificateParams, now: SystemTime, lifetime: Duration) {
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + lifetime).into();
}
