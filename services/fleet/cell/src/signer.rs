//! Signs what a cluster's controllers approved, with the cluster's CA.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use base_net::pki::{Ca, PkiError, Profile, YEAR};
use tenant_controllers::{SignError, SignProfile, Signer};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

/// Shortest and longest life of a certificate: upstream's bounds for `spec.expirationSeconds` and the
/// default of `--cluster-signing-duration`.
const SHORTEST: Duration = Duration::from_secs(600);
const LONGEST: Duration = YEAR;

pub(crate) struct ClusterSigner {
    pub(crate) ca: Arc<Ca>,
    /// The name clients verify the API server by. Whoever is certified under it could stand in for it, so
    /// nobody is, whatever was approved.
    pub(crate) server_name: String,
}

/// The Service `kubernetes`, as pods dial it.
const SERVICE_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));

impl ClusterSigner {
    fn is_ours(&self, wanted: &Profile) -> bool {
        wanted
            .dns_names
            .iter()
            .any(|name| name.eq_ignore_ascii_case(&self.server_name) || tenant_auth::is_api_server_name(name))
            || wanted.ip_addresses.contains(&SERVICE_IP)
    }
}

impl Signer for ClusterSigner {
    fn sign(&self, request_pem: &str, profile: &SignProfile) -> Result<String, SignError> {
        let bad = |why: &str| SignError::BadRequest(why.to_owned());
        let (_, pem) =
            x509_parser::pem::parse_x509_pem(request_pem.as_bytes()).map_err(|_| bad("not PEM"))?;
        let (_, request) = X509CertificationRequest::from_der(&pem.contents)
            .map_err(|_| bad("not a certificate request"))?;
        let subject = &request.certification_request_info.subject;
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().map(str::to_owned);
        let common_name = match subject.iter_common_name().next().map(text) {
            Some(Ok(name)) => name,
            _ => return Err(bad("no common name")),
        };
        let organizations = subject
            .iter_organization()
            .map(text)
            .collect::<Result<_, _>>()
            .map_err(|_| bad("an organization that is not text"))?;
        let mut wanted = Profile {
            common_name,
            organizations,
            server: profile.usages.iter().any(|usage| usage == "server auth"),
            client: profile.usages.iter().any(|usage| usage == "client auth"),
            lifetime: profile.lifetime.unwrap_or(LONGEST).clamp(SHORTEST, LONGEST),
            ..Profile::default()
        };
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(name) => wanted.dns_names.push((*name).to_owned()),
                    GeneralName::IPAddress(bytes) => {
                        wanted.ip_addresses.push(ip(bytes).ok_or_else(|| bad("an IP address of odd length"))?)
                    }
                    _ => {
                        return Err(bad(
                            "a subject alternative name that is neither DNS name nor IP address",
                        ));
                    }
                }
            }
        }
        if self.is_ours(&wanted) {
            return Err(bad("a name or an address of the API server"));
        }
        self.ca.sign_csr(request_pem, &wanted).map_err(|error| match error {
            PkiError::Input { .. } | PkiError::Pem { .. } | PkiError::Subject => {
                SignError::BadRequest(error.to_string())
            }
            PkiError::Make(_) | PkiError::CaKey { .. } | PkiError::NotAPair => {
                SignError::Unavailable(error.to_string())
            }
        })
    }
}

fn ip(bytes: &[u8]) -> Option<std::net::IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(Into::into),
        16 => <[u8; 16]>::try_from(bytes).ok().map(Into::into),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_certified_as_the_api_server() {
        let ca = Arc::new(Ca::generate("test").unwrap());
        let signer = ClusterSigner { ca, server_name: "c1.roadstead.local".to_owned() };
        for (dns, ip, wanted) in [
            (&["n1"][..], "10.0.0.1", true),
            (&["n1", "kubernetes.default.svc"], "10.0.0.1", false),
            (&["Kubernetes"], "10.0.0.1", false),
            (&["localhost"], "10.0.0.1", false),
            (&["C1.roadstead.local"], "10.0.0.1", false),
            (&["n1"], "10.96.0.1", false),
        ] {
            let asked = Profile {
                common_name: "system:node:n1".to_owned(),
                organizations: vec!["system:nodes".to_owned()],
                dns_names: dns.iter().map(|&name| name.to_owned()).collect(),
                ip_addresses: vec![ip.parse().unwrap()],
                ..Profile::default()
            };
            let (request, _) = base_net::pki::request(&asked).unwrap();
            let profile = SignProfile {
                signer_name: "kubernetes.io/kubelet-serving".to_owned(),
                usages: vec!["server auth".to_owned()],
                lifetime: None,
            };
            let signed = signer.sign(&request, &profile);
            assert_eq!(signed.is_ok(), wanted, "{dns:?} {ip} {signed:?}");
        }
    }
}
