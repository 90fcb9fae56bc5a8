//! Which certificate requests are granted without a person.
//!
//! Reads a request and answers; knows no key and signs nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api_machinery::Document;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509CertificationRequest};

pub(super) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(super) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub(super) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(super) const LEGACY: &str = "kubernetes.io/legacy-unknown";

const NODE_PREFIX: &str = "system:node:";
const NODES: &str = "system:nodes";

/// In the `extra` of who came with a bootstrap token that was made for one machine: its node's name.
const NODE_OF_TOKEN: &str = "roadstead.dev/node";

/// A subresource of the request that whoever may `create` it gets the certificate by, and what is then said.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) subresource: &'static str,
    pub(super) message: &'static str,
}

const SELF_NODE_CLIENT: Right = Right {
    subresource: "selfnodeclient",
    message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
};
const NODE_CLIENT: Right = Right {
    subresource: "nodeclient",
    message: "Auto approving kubelet client certificate after SubjectAccessReview.",
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opinion {
    Approve(&'static str),
    /// Good if the one who asks has one of these rights.
    Ask(&'static [Right]),
    /// Left to people, or to a later look.
    None,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    name: String,
    organisations: Vec<String>,
    dns: Vec<String>,
    ips: Vec<IpAddr>,
    /// E-mail addresses, URIs and whatever else no node needs.
    others: usize,
}

/// `addresses_of` gives a node's `status.addresses`, if the node exists.
pub(super) fn judge(request: &Document, addresses_of: impl Fn(&str) -> Option<Value>) -> Opinion {
    let Some(asked) = read(request) else { return Opinion::None };
    let user = request.get_str("spec.username").unwrap_or_default();
    let groups: Vec<&str> = request.get_array("spec.groups").iter().filter_map(Value::as_str).collect();
    if unfit(request).is_some() {
        return Opinion::None;
    }
    let token_of = request.get("spec.extra").and_then(|extra| extra.get(NODE_OF_TOKEN)).map(strings);
    if token_of.is_some_and(|nodes| nodes.iter().any(|node| asked.name != format!("{NODE_PREFIX}{node}"))) {
        return Opinion::None;
    }
    match request.get_str("spec.signerName").unwrap_or_default() {
        KUBELET_CLIENT if user == asked.name => Opinion::Ask(&[SELF_NODE_CLIENT, NODE_CLIENT]),
        KUBELET_CLIENT => Opinion::Ask(&[NODE_CLIENT]),
        KUBELET_SERVING if user == asked.name && groups.contains(&NODES) => {
            let name = asked.name.strip_prefix(NODE_PREFIX).unwrap_or_default();
            let Some(addresses) = addresses_of(name) else { return Opinion::None };
            // A node says itself what it is called, so what another one is called is not for it to say.
            let foreign = asked.dns.iter().any(|dns| dns != name && addresses_of(dns).is_some());
            if !foreign && owns(name, &addresses, &asked) {
                Opinion::Approve(
                    "Auto approving kubelet serving certificate for the node's own names and addresses.",
                )
            } else {
                Opinion::None
            }
        }
        _ => Opinion::None,
    }
}

/// Why an approved request can still not be signed for its signer; `None` when it can.
pub(super) fn unfit(request: &Document) -> Option<String> {
    let signer = request.get_str("spec.signerName").unwrap_or_default();
    if signer == CLIENT || signer == LEGACY {
        return None;
    }
    let Some(asked) = read(request) else {
        return Some("spec.request is not a certificate request".to_owned());
    };
    let usages: BTreeSet<&str> = request.get_array("spec.usages").iter().filter_map(Value::as_str).collect();
    let (needed, sans) =
        if signer == KUBELET_SERVING { ("server auth", true) } else { ("client auth", false) };
    let mut wanted = BTreeSet::from([needed, "digital signature"]);
    let plain = usages == wanted;
    wanted.insert("key encipherment");
    let named = !asked.dns.is_empty() || !asked.ips.is_empty();
    let why = if asked.organisations != [NODES] {
        "the organization must be system:nodes"
    } else if asked.name.strip_prefix(NODE_PREFIX).is_none_or(str::is_empty) {
        "the common name must begin with system:node: and name a node"
    } else if !plain && usages != wanted {
        "the usages are not those of this signer"
    } else if asked.others > 0 {
        "only DNS and IP subjectAltNames are possible"
    } else if sans && !named {
        "at least one DNS or IP subjectAltName is required"
    } else if !sans && named {
        "subjectAltNames are not possible"
    } else {
        return None;
    };
    Some(why.to_owned())
}

fn owns(name: &str, addresses: &Value, asked: &Asked) -> bool {
    let addresses = addresses.as_array().map_or(&[][..], Vec::as_slice);
    let of = |kinds: &[&str]| -> Vec<&str> {
        let wanted = addresses.iter().filter(|one| kinds.iter().any(|kind| one["type"] == *kind));
        wanted.filter_map(|one| one["address"].as_str()).collect()
    };
    let names = of(&["Hostname", "InternalDNS", "ExternalDNS"]);
    let ips: Vec<IpAddr> =
        of(&["InternalIP", "ExternalIP", "Hostname"]).iter().filter_map(|ip| ip.parse().ok()).collect();
    asked.dns.iter().all(|dns| dns == name || names.contains(&dns.as_str()))
        && asked.ips.iter().all(|ip| ips.contains(ip))
}

/// A list's strings; what is no string is nobody's name.
fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|one| one.as_str().unwrap_or_default()).collect()
}

fn read(request: &Document) -> Option<Asked> {
    let pem = BASE64.decode(request.get_str("spec.request")?).ok()?;
    let (_, block) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    let (_, parsed) = X509CertificationRequest::from_der(&block.contents).ok()?;
    let subject = &parsed.certification_request_info.subject;
    let mut asked = Asked {
        name: subject.iter_common_name().next()?.as_str().ok()?.to_owned(),
        organisations: subject
            .iter_organization()
            .filter_map(|one| one.as_str().ok().map(str::to_owned))
            .collect(),
        ..Asked::default()
    };
    for extension in parsed.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(dns) => asked.dns.push((*dns).to_owned()),
                GeneralName::IPAddress(bytes) => asked.ips.push(address(bytes)?),
                _ => asked.others += 1,
            }
        }
    }
    Some(asked)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use serde_json::json;

    fn request(
        signer: &str,
        user: &str,
        groups: &[&str],
        (name, organisation): (&str, &str),
        sans: &[&str],
        usage: &str,
    ) -> Document {
        let mut params =
            CertificateParams::new(sans.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, organisation);
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        Document::from_value(json!({"spec": {
            "request": BASE64.encode(pem), "signerName": signer, "username": user, "groups": groups,
            "usages": ["digital signature", usage],
        }}))
        .unwrap()
    }

    #[test]
    fn nodes_get_what_is_theirs_and_nobody_gets_more() {
        let node = ("system:node:n1", "system:nodes");
        let nodes = &["system:nodes", "system:authenticated"][..];
        let token = &["system:bootstrappers", "system:authenticated"][..];
        let (client, server) = ("client auth", "server auth");
        for (signer, user, groups, subject, sans, usage, wanted) in [
            (KUBELET_CLIENT, "system:bootstrap:abcdef", token, node, &[][..], client, "nodeclient"),
            (KUBELET_CLIENT, "system:node:n1", nodes, node, &[], client, "selfnodeclient nodeclient"),
            (KUBELET_CLIENT, "system:node:n2", nodes, node, &[], client, "nodeclient"),
            (KUBELET_CLIENT, "eve", &["system:authenticated"], node, &[], client, "nodeclient"),
            (
                KUBELET_CLIENT,
                "system:bootstrap:abcdef",
                token,
                ("system:node:n1", "system:masters"),
                &[],
                client,
                "no",
            ),
            (KUBELET_CLIENT, "system:bootstrap:abcdef", token, ("admin", "system:nodes"), &[], client, "no"),
            (KUBELET_CLIENT, "system:bootstrap:abcdef", token, node, &["n1"], client, "no"),
            (KUBELET_CLIENT, "system:bootstrap:abcdef", token, node, &[], server, "no"),
            (KUBELET_SERVING, "system:node:n1", nodes, node, &["n1", "10.0.0.1"], server, "yes"),
            (KUBELET_SERVING, "system:node:n1", nodes, node, &["other"], server, "no"),
            (KUBELET_SERVING, "system:node:n1", nodes, node, &["10.0.0.2"], server, "no"),
            // What n1 says it is called is what another node is called.
            (KUBELET_SERVING, "system:node:n1", nodes, node, &["n1", "n2"], server, "no"),
            (KUBELET_SERVING, "system:node:n1", nodes, node, &[], server, "no"),
            (KUBELET_SERVING, "system:node:n2", nodes, node, &["n1"], server, "no"),
            (KUBELET_SERVING, "system:node:n1", nodes, node, &["n1"], client, "no"),
            (CLIENT, "system:node:n1", nodes, node, &[], client, "no"),
        ] {
            let addresses = json!([{"type": "InternalIP", "address": "10.0.0.1"},
                {"type": "Hostname", "address": "n1"}, {"type": "InternalDNS", "address": "n2"}]);
            let request = request(signer, user, groups, subject, sans, usage);
            let got = match judge(&request, |name| ["n1", "n2"].contains(&name).then(|| addresses.clone())) {
                Opinion::None => "no".to_owned(),
                Opinion::Approve(_) => "yes".to_owned(),
                Opinion::Ask(rights) => {
                    rights.iter().map(|right| right.subresource).collect::<Vec<_>>().join(" ")
                }
            };
            assert_eq!(got, wanted, "{signer} {user} {subject:?} {sans:?} {usage}");
        }
    }

    #[test]
    fn a_machines_token_makes_that_machine() {
        let token = &["system:bootstrappers", "system:authenticated"][..];
        let subject = ("system:node:n1", "system:nodes");
        let ours = Opinion::Ask(&[NODE_CLIENT]);
        for (extra, wanted) in [
            (json!({}), ours),
            (json!({"roadstead.dev/node": ["n1"]}), ours),
            (json!({"roadstead.dev/node": ["n2"]}), Opinion::None),
            (json!({"roadstead.dev/node": ["n1", "n2"]}), Opinion::None),
            (json!({"roadstead.dev/node": [7]}), Opinion::None),
            (json!({"other": ["n2"]}), ours),
        ] {
            let mut request =
                request(KUBELET_CLIENT, "system:bootstrap:abcdef", token, subject, &[], "client auth");
            request.set("spec.extra", extra.clone());
            assert_eq!(judge(&request, |_| None), wanted, "{extra}");
        }
    }

    #[test]
    fn garbage_is_nobodys_request() {
        for text in ["", "!!", "LS0tLS1CRUdJTi"] {
            let request =
                Document::from_value(json!({"spec": {"request": text, "signerName": KUBELET_CLIENT}}))
                    .unwrap();
            assert_eq!(judge(&request, |_| None), Opinion::None);
            assert!(unfit(&request).is_some());
        }
    }
}
