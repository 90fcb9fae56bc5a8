//! Subjects with several organisations, which rcgen can't write.
//!
//! It keeps one value per attribute type, yet in Kubernetes each `O=` is a group of its own. So a
//! certificate (or request) that needs several is made with one, its subject exchanged, and signed again:
//! both are a sequence of what is signed, the algorithm and the signature.

use rcgen::{KeyPair, SigningKey};
use x509_parser::prelude::{FromDer, X509Certificate, X509CertificationRequest};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
/// 2.5.4.10 and 2.5.4.3
const ORGANIZATION: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x0a];
const COMMON_NAME: &[u8] = &[0x06, 0x03, 0x55, 0x04, 0x03];

/// A certificate as it is but for its subject; `None` if it can't be taken apart or signed.
pub(crate) fn certificate(
    der: &[u8],
    common_name: &str,
    organizations: &[String],
    key: &KeyPair,
) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    exchange(
        der,
        parsed.tbs_certificate.as_ref(),
        parsed.tbs_certificate.subject.as_raw(),
        &name(common_name, organizations),
        key,
    )
}

/// The same for a certificate signing request.
pub(crate) fn request(
    der: &[u8],
    common_name: &str,
    organizations: &[String],
    key: &KeyPair,
) -> Option<Vec<u8>> {
    let (_, parsed) = X509CertificationRequest::from_der(der).ok()?;
    let info = &parsed.certification_request_info;
    exchange(der, info.raw, info.subject.as_raw(), &name(common_name, organizations), key)
}

/// `signed` lies in `whole` and `old` in `signed`.
fn exchange(whole: &[u8], signed: &[u8], old: &[u8], new: &[u8], key: &KeyPair) -> Option<Vec<u8>> {
    let offset = |outer: &[u8], inner: &[u8]| (inner.as_ptr() as usize).checked_sub(outer.as_ptr() as usize);
    let content = contents(signed)?;
    let at = offset(content, old)?;
    let changed = [content.get(..at)?, new, content.get(at + old.len()..)?].concat();
    let signed_again = wrap(SEQUENCE, &changed);
    let signature = key.sign(&signed_again).ok()?;

    let after = whole.get(offset(whole, signed)? + signed.len()..)?;
    let (_, algorithm_length) = length(after)?;
    let algorithm = after.get(..algorithm_length)?;
    // A bit string begins with the number of unused bits in its last byte.
    let signature = wrap(BIT_STRING, &[&[0], signature.as_slice()].concat());
    Some(wrap(SEQUENCE, &[signed_again.as_slice(), algorithm, &signature].concat()))
}

fn name(common_name: &str, organizations: &[String]) -> Vec<u8> {
    let attribute = |kind: &[u8], value: &str| {
        wrap(SET, &wrap(SEQUENCE, &[kind, &wrap(UTF8_STRING, value.as_bytes())].concat()))
    };
    let mut parts: Vec<u8> = organizations.iter().flat_map(|one| attribute(ORGANIZATION, one)).collect();
    parts.extend(attribute(COMMON_NAME, common_name));
    wrap(SEQUENCE, &parts)
}

fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let bytes: Vec<u8> = bytes.iter().copied().skip_while(|byte| *byte == 0).collect();
        out.push(0x80 | bytes.len() as u8);
        out.extend(bytes);
    }
    out.extend_from_slice(content);
    out
}

/// How long header and whole of the element are that `der` begins with.
fn length(der: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*der.get(1)?);
    if first < 0x80 {
        return Some((2, 2 + first));
    }
    let count = first & 0x7f;
    let bytes = der.get(2..2 + count)?;
    let length =
        bytes.iter().try_fold(0usize, |sum, byte| sum.checked_mul(256)?.checked_add(usize::from(*byte)))?;
    Some((2 + count, (2 + count).checked_add(length)?))
}

fn contents(der: &[u8]) -> Option<&[u8]> {
    let (header, whole) = length(der)?;
    der.get(header..whole)
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::UnixTime;

    use crate::pki::{Ca, Profile, YEAR, certs_from_pem, request};

    #[test]
    fn every_organisation_is_in_the_certificate_and_the_signature_holds() {
        crate::tls::install_crypto_provider();
        let ca = Ca::generate("kubernetes").unwrap();
        let many: Vec<String> = (0..40).map(|n| format!("group-{n}")).collect();
        for organizations in [&many[..0], &many[..1], &many[..2], &many[..]] {
            let profile = Profile {
                common_name: "ann".to_owned(),
                organizations: organizations.to_vec(),
                client: true,
                lifetime: YEAR,
                ..Profile::default()
            };
            let (csr, _) = request(&profile).unwrap();
            for pem in [ca.issue(&profile).unwrap().cert_pem, ca.sign_csr(&csr, &profile).unwrap()] {
                let chain = certs_from_pem(&pem).unwrap();
                let (_, parsed) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
                let subject = parsed.subject();
                let found: Vec<&str> = subject.iter_organization().map(|one| one.as_str().unwrap()).collect();
                assert_eq!(found, organizations);
                assert_eq!(subject.iter_common_name().next().unwrap().as_str().unwrap(), "ann");

                let mut roots = rustls::RootCertStore::empty();
                roots.add(ca.cert_der().unwrap()).unwrap();
                let verifier = rustls::server::WebPkiClientVerifier::builder(std::sync::Arc::new(roots))
                    .build()
                    .unwrap();
                verifier.verify_client_cert(&chain[0], &[], UnixTime::now()).unwrap();
            }
        }
    }
}
