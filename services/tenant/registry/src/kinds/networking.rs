//! Ingresses, NetworkPolicies, IPAddresses and ServiceCIDRs.

use api_machinery::{Document, Field, Object};
use serde_json::{Value, json};

use super::pod_defaults::{items, text};
use crate::strategy::{Generation, NameRule, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{meta, names, selector};

pub(crate) struct Ingresses;

impl Strategy for Ingresses {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        let backend = spec.get("defaultBackend");
        if spec.get("rules").is_empty() && !backend.is_set() {
            errors.push(spec.invalid("either `defaultBackend` or `rules` must be specified"));
        }
        if backend.is_set() {
            check_backend(&backend, &mut errors);
        }
        let class = spec.get("ingressClassName");
        if class.is_set() {
            class.reasons(&mut errors, names::dns_subdomain(class.text()));
        }
        for rule in spec.get("rules").items() {
            let host = rule.get("host");
            if !host.is_empty() {
                if host.text().parse::<std::net::IpAddr>().is_ok() {
                    errors.push(host.invalid("must be a DNS name, not an IP address"));
                } else {
                    let name = host.text().strip_prefix("*.").unwrap_or(host.text());
                    host.reasons(&mut errors, names::dns_subdomain(name));
                }
            }
            let http = rule.get("http");
            if !http.is_set() {
                continue;
            }
            if http.get("paths").is_empty() {
                errors.push(http.get("paths").required(""));
            }
            for path in http.get("paths").items() {
                let (kind, value) = (path.get("pathType"), path.get("path"));
                match kind.text() {
                    "Exact" | "Prefix" => {
                        if !value.text().starts_with('/') {
                            errors.push(value.invalid("must be an absolute path"));
                        }
                        for bad in ["//", "/./", "/../", "%2f", "%2F"] {
                            if value.text().contains(bad) {
                                errors.push(value.invalid(format!("must not contain '{bad}'")));
                            }
                        }
                        for bad in ["/..", "/."] {
                            if value.text().ends_with(bad) {
                                errors.push(value.invalid(format!("cannot end with '{bad}'")));
                            }
                        }
                    }
                    "ImplementationSpecific" => {
                        if !value.is_empty() && !value.text().starts_with('/') {
                            errors.push(value.invalid("must be an absolute path"));
                        }
                    }
                    "" => errors.push(kind.required("pathType must be specified")),
                    _ => errors.push(kind.unsupported(&["Exact", "ImplementationSpecific", "Prefix"])),
                }
                check_backend(&path.get("backend"), &mut errors);
            }
        }
        for entry in spec.get("tls").items() {
            for host in entry.get("hosts").items() {
                let name = host.text().strip_prefix("*.").unwrap_or(host.text());
                host.reasons(&mut errors, names::dns_subdomain(name));
            }
        }
        errors
    }
}

fn check_backend(backend: &At<'_>, errors: &mut Errors) {
    let (service, resource) = (backend.get("service"), backend.get("resource"));
    match (service.is_set(), resource.is_set()) {
        (true, true) => errors.push(backend.invalid("cannot set both resource and service backends")),
        (false, false) => errors.push(backend.required("must set either a service or a resource")),
        (false, true) => {
            resource.get("kind").require(errors);
            resource.get("name").require(errors);
        }
        (true, false) => {
            let name = service.get("name");
            if name.require(errors) {
                name.reasons(errors, names::dns_label(name.text()));
            }
            let port = service.get("port");
            let (number, named) = (port.get("number"), port.get("name"));
            match (number.int().unwrap_or(0) != 0, !named.is_empty()) {
                (true, true) => errors.push(port.invalid("cannot set both port name & port number")),
                (false, false) => errors.push(port.required("port name or number is required")),
                (true, false) => number.reasons(errors, names::port_number(number.int().unwrap_or(0))),
                (false, true) => named.reasons(errors, names::port_name(named.text())),
            }
        }
    }
}

pub(crate) struct NetworkPolicies;

impl Strategy for NetworkPolicies {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        new.set_default("spec.podSelector", json!({}));
        for list in ["spec.ingress", "spec.egress"] {
            for rule in items(new.get_mut(list)) {
                for port in items(rule.get_mut("ports")) {
                    text(port, "protocol", "TCP");
                }
            }
        }
        if new.get_array("spec.policyTypes").is_empty() {
            let out = !new.get_array("spec.egress").is_empty();
            new.set("spec.policyTypes", if out { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let spec = At::top(new, "spec");
        let mut errors = Vec::new();
        let pods = spec.get("podSelector");
        errors.extend(selector::validate(Some(pods.value), &pods.field));
        for (list, side) in [("ingress", "from"), ("egress", "to")] {
            for rule in spec.get(list).items() {
                for port in rule.get("ports").items() {
                    check_port(&port, &mut errors);
                }
                for peer in rule.get(side).items() {
                    check_peer(&peer, &mut errors);
                }
            }
        }
        let kinds = spec.get("policyTypes");
        if kinds.len() > 2 {
            errors.push(kinds.invalid("may not specify more than two policyTypes"));
        }
        for kind in kinds.items() {
            kind.one_of(&mut errors, &["Egress", "Ingress"]);
        }
        errors
    }
}

fn check_port(port: &At<'_>, errors: &mut Errors) {
    port.get("protocol").one_of(errors, &["SCTP", "TCP", "UDP"]);
    let (first, last) = (port.get("port"), port.get("endPort"));
    match first.value {
        Value::Null => {
            if last.is_set() {
                errors.push(last.forbidden("may not be specified when `port` is not specified"));
            }
        }
        Value::String(name) => {
            if last.is_set() {
                errors.push(last.forbidden("may not be specified when `port` is non-numeric"));
            }
            first.reasons(errors, names::port_name(name));
        }
        _ => {
            let number = first.int().unwrap_or(0);
            first.reasons(errors, names::port_number(number));
            if last.int().is_some_and(|last| last < number) {
                errors.push(last.invalid("must be greater than or equal to `port`"));
            }
        }
    }
}

fn check_peer(peer: &At<'_>, errors: &mut Errors) {
    let mut set = 0;
    for name in ["podSelector", "namespaceSelector"] {
        let at = peer.get(name);
        if at.is_set() {
            set += 1;
            errors.extend(selector::validate(Some(at.value), &at.field));
        }
    }
    let block = peer.get("ipBlock");
    if block.is_set() {
        if set > 0 {
            errors.push(peer.forbidden("may not specify both ipBlock and another peer"));
        }
        set += 1;
        let cidr = block.get("cidr");
        if cidr.require(errors) {
            cidr.reasons(errors, names::cidr(cidr.text()));
        }
        for except in block.get("except").items() {
            except.reasons(errors, names::cidr(except.text()));
        }
    }
    if set == 0 {
        errors.push(peer.required("must specify a peer"));
    }
}

pub(crate) struct IpAddresses;

impl Strategy for IpAddresses {
    fn names(&self) -> NameRule {
        NameRule::IpAddress
    }
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let parent = At::top(new, "spec").get("parentRef");
        if !parent.is_set() {
            errors.push(parent.required(""));
        } else {
            parent.get("resource").require(&mut errors);
            parent.get("name").require(&mut errors);
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let path = "spec.parentRef";
        meta::immutable(new.get(path), old.get(path), &Field::new(path)).into_iter().collect()
    }
    fn selectable(&self) -> &'static [&'static str] {
        &[
            "spec.parentRef.name",
            "spec.parentRef.namespace",
            "spec.parentRef.resource",
            "spec.parentRef.group",
        ]
    }
    fn select(&self, object: &Object, path: &str) -> String {
        crate::strategy::field_text(object, path)
    }
}

pub(crate) struct ServiceCidrs;

impl Strategy for ServiceCidrs {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let cidrs = At::top(new, "spec").get("cidrs");
        if cidrs.is_empty() {
            errors.push(cidrs.required("at least one CIDR required"));
        }
        if cidrs.len() > 2 {
            errors.push(cidrs.invalid("may only hold up to 2 values"));
        }
        for cidr in cidrs.items() {
            cidr.reasons(&mut errors, names::cidr(cidr.text()));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        let path = "spec.cidrs";
        errors.extend(meta::immutable(new.get(path), old.get(path), &Field::new(path)));
        errors
    }
}
