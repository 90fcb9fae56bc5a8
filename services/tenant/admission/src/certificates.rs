//! CertificateSigningRequests: approving and signing for a signer takes a permission on that signer, and
//! nobody gets a certificate of the masters' group this way.

use api_machinery::{Document, Status};
use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tenant_client::{Access, Target};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;

pub(crate) struct Certificates;

const GROUP: &str = "certificates.k8s.io";
/// Signers whose certificates the API server takes for what they say, and whose subject nothing else limits.
const SIGN_FOR_US: [&str; 2] = ["kubernetes.io/kube-apiserver-client", "kubernetes.io/legacy-unknown"];
const MASTERS: &str = "system:masters";

#[async_trait]
impl Admission for Certificates {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let Some(new) = object.filter(|_| attributes.is_under(GROUP, "certificatesigningrequests")) else {
            return Ok(Vec::new());
        };
        match (attributes.operation, attributes.subresource) {
            (Operation::Create, "") => {
                let signer = new.get_str("spec.signerName").unwrap_or_default();
                if SIGN_FOR_US.contains(&signer) && asks_for_masters(new) {
                    return Err(attributes
                        .forbidden(format!("use of {signer} signer with {MASTERS} group is not allowed")));
                }
            }
            (Operation::Update, "approval") => {
                let signer = old.and_then(|old| old.get_str("spec.signerName")).unwrap_or_default();
                if !permitted(attributes, "approve", signer) {
                    let why = format!("user not permitted to approve requests with signerName {signer:?}");
                    return Err(attributes.forbidden(why));
                }
            }
            (Operation::Update, "status") => {
                let certificate = |document: Option<&Document>| {
                    document.and_then(|document| document.get("status.certificate")).cloned()
                };
                let conditions = |document: Option<&Document>| {
                    let all = document.map(|document| document.get_array("status.conditions")).unwrap_or(&[]);
                    all.iter().filter(|one| one["type"] == "Failed").count()
                };
                if certificate(Some(new)) != certificate(old) || conditions(Some(new)) != conditions(old) {
                    let signer = old.and_then(|old| old.get_str("spec.signerName")).unwrap_or_default();
                    if !permitted(attributes, "sign", signer) {
                        let why = format!("user not permitted to sign requests with signerName {signer:?}");
                        return Err(attributes.forbidden(why));
                    }
                }
            }
            _ => {}
        }
        Ok(Vec::new())
    }
}

/// On the signer itself, or on all of its domain.
fn permitted(attributes: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    [signer.to_owned(), format!("{domain}/*")].into_iter().any(|name| {
        let target = Target::Resource {
            group: GROUP.to_owned(),
            version: "v1".to_owned(),
            resource: "signers".to_owned(),
            subresource: String::new(),
            namespace: String::new(),
            name,
        };
        let access = Access { verb: verb.to_owned(), target, ..Access::default() };
        attributes.lookup.authorizer().decide(attributes.user, &access).is_allowed()
    })
}

fn asks_for_masters(request: &Document) -> bool {
    let Ok(pem) = STANDARD.decode(request.get_str("spec.request").unwrap_or_default()) else { return false };
    let Ok((_, block)) = x509_parser::pem::parse_x509_pem(&pem) else { return false };
    let Ok((_, parsed)) = X509CertificationRequest::from_der(&block.contents) else { return false };
    parsed
        .certification_request_info
        .subject
        .iter_organization()
        .any(|name| name.as_str().is_ok_and(|name| name == MASTERS))
}
