//! CertificateSigningRequests: the spec is for good, and says who asked.

use api_machinery::{Document, Field};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::strategy::{Moment, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::meta;

pub(crate) struct SigningRequests;

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

impl Strategy for SigningRequests {
    fn prepare_for_create(&self, moment: &Moment<'_>, new: &mut Document) {
        // Who asks is what was authenticated, whatever the body says.
        let user = moment.user;
        let spec = new.object_mut("spec");
        spec.insert("username".to_owned(), user.name.as_str().into());
        for name in ["uid", "groups", "extra"] {
            spec.remove(name);
        }
        if !user.uid.is_empty() {
            spec.insert("uid".to_owned(), user.uid.as_str().into());
        }
        if !user.groups.is_empty() {
            spec.insert("groups".to_owned(), Value::from(user.groups.clone()));
        }
        if !user.extra.is_empty() {
            let extra: Map<String, Value> =
                user.extra.iter().map(|(key, values)| (key.clone(), Value::from(values.clone()))).collect();
            spec.insert("extra".to_owned(), extra.into());
        }
        new.set("status", Map::new());
    }
    fn prepare_for_update(&self, _moment: &Moment<'_>, new: &mut Document, old: &Document) {
        if let Some(spec) = old.spec() {
            new.set("spec", spec.clone());
        }
    }
    fn prepare_for_status_update(&self, moment: &Moment<'_>, new: &mut Document, old: &Document) {
        // Approval has a subresource of its own: status keeps what was decided there.
        let is_decision = |one: &Value| matches!(one["type"].as_str(), Some("Approved" | "Denied"));
        let kept: Vec<Value> =
            old.get_array("status.conditions").iter().filter(|one| is_decision(one)).cloned().collect();
        let others = new.get_array("status.conditions").iter().filter(|one| !is_decision(one)).cloned();
        let all: Vec<Value> = kept.into_iter().chain(others).collect();
        if !all.is_empty() {
            new.set("status.conditions", all);
        }
        stamp_conditions(new, old, moment.now);
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        let request = spec.get("request");
        let pem = STANDARD
            .decode(request.text())
            .ok()
            .and_then(|raw| String::from_utf8(raw).ok())
            .unwrap_or_default();
        if !pem.trim_start().starts_with("-----BEGIN CERTIFICATE REQUEST-----") {
            let shown = Value::from(pem);
            errors.push(request.field.invalid(shown, "PEM block type must be CERTIFICATE REQUEST"));
        }
        let usages = spec.get("usages");
        if usages.is_empty() {
            errors.push(usages.required("usages is required"));
        }
        let mut seen = std::collections::HashSet::new();
        for usage in usages.items() {
            usage.one_of(&mut errors, &USAGES);
            if !seen.insert(usage.text()) {
                errors.push(usage.duplicate());
            }
        }
        let signer = spec.get("signerName");
        if signer.text() == "kubernetes.io/legacy-unknown" {
            errors.push(signer.invalid("legacy-unknown is not allowed via this API version"));
        } else if signer.require(&mut errors) {
            match signer.text().split_once('/') {
                Some((domain, path)) if !domain.is_empty() && !path.is_empty() => {
                    signer.reasons(&mut errors, crate::validation::names::dns_subdomain(domain));
                }
                _ => errors.push(signer.invalid(
                    "must be a fully qualified domain and path of the form 'example.com/signer-name'",
                )),
            }
        }
        let seconds = spec.get("expirationSeconds");
        if seconds.int().is_some_and(|seconds| seconds < 600) {
            errors.push(seconds.invalid("may not specify a duration less than 600 seconds (10 minutes)"));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        errors.extend(meta::immutable(new.spec(), old.spec(), &Field::new("spec")));
        errors
    }
    fn validate_status_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = decisions_stand(new, old);
        let certificate = At::top(new, "status").get("certificate");
        let before = At::top(old, "status").get("certificate");
        if !before.is_empty() && certificate.value != before.value {
            errors.push(certificate.field.invalid("<certificate data>", "field is immutable once set"));
        }
        errors
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["spec.signerName"]
    }
}

/// Sets the times of conditions that changed.
pub(crate) fn stamp_conditions(new: &mut Document, old: &Document, now: jiff::Timestamp) {
    let before: Vec<Value> = old.get_array("status.conditions").to_vec();
    let Some(Value::Array(conditions)) = new.get_mut("status.conditions") else { return };
    for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
        let same = before.iter().find(|one| one.get("type") == condition.get("type"));
        let unchanged = same.is_some_and(|one| one.get("status") == condition.get("status"));
        let now = Value::from(base_clock::rfc3339(now));
        if !condition.contains_key("lastUpdateTime") {
            condition.insert("lastUpdateTime".to_owned(), now.clone());
        }
        if !condition.contains_key("lastTransitionTime") {
            let at = same.and_then(|one| one.get("lastTransitionTime")).filter(|_| unchanged).cloned();
            condition.insert("lastTransitionTime".to_owned(), at.unwrap_or(now));
        }
    }
}

/// `approval` says yes or no, once.
pub(crate) fn validate_approval(new: &Document, old: &Document) -> Errors {
    let mut errors = decisions_stand(new, old);
    for condition in At::top(new, "status").get("conditions").items() {
        let kind = condition.get("type");
        let status = condition.get("status");
        kind.require(&mut errors);
        if status.is_empty() {
            errors.push(status.required(""));
        } else if matches!(kind.text(), "Approved" | "Denied" | "Failed") && status.text() != "True" {
            errors.push(status.unsupported(&["True"]));
        }
    }
    let has = |kind: &str| new.get_array("status.conditions").iter().any(|one| one["type"] == kind);
    if has("Approved") && has("Denied") {
        let field = Field::new("status.conditions");
        errors.push(field.invalid("Denied", "Approved and Denied conditions are mutually exclusive"));
    }
    errors
}

fn decisions_stand(new: &Document, old: &Document) -> Errors {
    let mut errors = Vec::new();
    for kind in ["Approved", "Denied", "Failed"] {
        let count = |document: &Document| {
            document.get_array("status.conditions").iter().filter(|one| one["type"] == kind).count()
        };
        if count(old) > count(new) {
            let why = format!("updates may not remove a condition of type {kind:?}");
            errors.push(Field::new("status.conditions").forbidden(why));
        }
    }
    errors
}
