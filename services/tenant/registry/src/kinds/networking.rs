//! Ingresses and their classes, NetworkPolicies, IPAddresses and ServiceCIDRs.

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
        let mut errors = check_ingress(new, None);
        let (annotation, class) = (new.annotation(CLASS_ANNOTATION), new.get_str("spec.ingressClassName"));
        if let (Some(annotation), Some(class)) = (annotation, class)
            && annotation != class
        {
            let field = Field::new("annotations").child(CLASS_ANNOTATION);
            errors.push(field.invalid(annotation, "must match `ingressClassName` when both are specified"));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        check_ingress(new, Some(old))
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        let mut errors = Vec::new();
        for one in At::top(new, "status").get("loadBalancer").get("ingress").items() {
            let (ip, host) = (one.get("ip"), one.get("hostname"));
            if !ip.is_empty() {
                ip.reasons(&mut errors, names::ip(ip.text()));
            }
            if !host.is_empty() {
                host.reasons(&mut errors, names::dns_subdomain(host.text()));
                if host.text().parse::<std::net::IpAddr>().is_ok() {
                    errors.push(host.invalid("must be a DNS name, not an IP address"));
                }
            }
        }
        errors
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        match new.annotation(CLASS_ANNOTATION) {
            Some(_) if old.is_none() && new.get("spec.ingressClassName").is_none() => vec![format!(
                "annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead"
            )],
            _ => Vec::new(),
        }
    }
}

/// From before classes were a field.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// A secret name that was wrong before the rule may stay wrong.
fn check_ingress(new: &Document, old: Option<&Document>) -> Errors {
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
        let secret = entry.get("secretName");
        if !secret.is_empty() && !old.is_some_and(has_bad_secret_name) {
            secret.reasons(&mut errors, names::dns_subdomain(secret.text()));
        }
    }
    errors
}

fn has_bad_secret_name(ingress: &Document) -> bool {
    let names = ingress.get_array("spec.tls").iter().filter_map(|entry| entry.get("secretName")?.as_str());
    names.filter(|name| !name.is_empty()).any(|name| !names::dns_subdomain(name).is_empty())
}

fn check_backend(backend: &At<'_>, errors: &mut Errors) {
    let (service, resource) = (backend.get("service"), backend.get("resource"));
    match (service.is_set(), resource.is_set()) {
        (true, true) => {
            errors.push(backend.field.invalid("", "cannot set both resource and service backends"))
        }
        (false, false) => errors.push(backend.field.invalid("", "resource or service backend is required")),
        (false, true) => {
            typed_reference(&resource, errors);
        }
        (true, false) => {
            let name = service.get("name");
            if name.require(errors) {
                name.reasons(errors, names::dns_label(name.text()));
            }
            let port = service.get("port");
            let (number, named) = (port.get("number"), port.get("name"));
            match (number.int().unwrap_or(0) != 0, !named.is_empty()) {
                (true, true) => {
                    errors.push(backend.field.invalid("", "cannot set both port name & port number"))
                }
                (false, false) => errors.push(backend.required("port name or number is required")),
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
                errors.push(last.invalid("may not be specified when `port` is not specified"));
            }
        }
        Value::String(name) => {
            if last.is_set() {
                errors.push(last.invalid("may not be specified when `port` is non-numeric"));
            }
            first.reasons(errors, names::port_name(name));
        }
        _ => {
            let number = first.int().unwrap_or(0);
            first.reasons(errors, names::port_number(number));
            if let Some(end) = last.int() {
                if end < number {
                    errors.push(last.field.invalid(number, "must be greater than or equal to `port`"));
                }
                last.reasons(errors, names::port_number(end));
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
            let reasons = names::cidr(except.text());
            let shaped = reasons.is_empty() && names::cidr(cidr.text()).is_empty();
            except.reasons(errors, reasons);
            if shaped && !names::within(except.text(), cidr.text()) {
                errors.push(except.invalid("must be a strict subset of `cidr`"));
            }
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
            let group = parent.get("group");
            if !group.is_empty() {
                group.reasons(&mut errors, names::dns_subdomain(group.text()));
            }
            for (name, needed) in [("resource", true), ("name", true), ("namespace", false)] {
                let at = parent.get(name);
                if at.is_empty() {
                    if needed {
                        errors.push(at.required(""));
                    }
                } else {
                    at.reasons(&mut errors, names::path_segment(at.text(), false));
                }
            }
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
            return errors;
        }
        if cidrs.len() > 2 {
            errors.push(cidrs.invalid("may only hold up to 2 values"));
            return errors;
        }
        for cidr in cidrs.items() {
            cidr.reasons(&mut errors, names::cidr(cidr.text()));
        }
        let of_six = |cidr: &Value| cidr.as_str().is_some_and(|text| text.contains(':'));
        if let [first, second] = new.get_array("spec.cidrs")
            && errors.is_empty()
            && of_six(first) == of_six(second)
        {
            errors.push(cidrs.invalid(
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
            ));
        }
        errors
    }
    /// A range is for good; a second, of the other family, may join it.
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let (now, before) = (new.get_array("spec.cidrs"), old.get_array("spec.cidrs"));
        let cidrs = At::top(new, "spec").get("cidrs");
        let joins = before.len() == 1 && now.len() == 2;
        if now.len() != before.len() && !joins {
            return vec![cidrs.invalid(meta::IMMUTABLE)];
        }
        let changed = cidrs.items().zip(before).filter(|(at, before)| at.value != *before);
        let mut errors: Errors = changed.map(|(at, _)| at.invalid(meta::IMMUTABLE)).collect();
        if joins {
            errors.extend(self.validate(new));
        }
        errors
    }
}

/// An object of any kind in the same namespace: group, kind and name.
fn typed_reference(at: &At<'_>, errors: &mut Errors) {
    let group = at.get("apiGroup");
    if group.is_set() {
        group.reasons(errors, names::dns_subdomain(group.text()));
    }
    for name in ["kind", "name"] {
        let part = at.get(name);
        if part.require(errors) {
            part.reasons(errors, names::path_segment(part.text(), false));
        }
    }
}

pub(crate) struct IngressClasses;

const MAX_CONTROLLER_BYTES: usize = 250;

impl Strategy for IngressClasses {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        if new.get("spec.parameters").is_some_and(Value::is_object) {
            new.set_default("spec.parameters.scope", "Cluster");
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let spec = At::top(new, "spec");
        let controller = spec.get("controller");
        if controller.text().len() > MAX_CONTROLLER_BYTES {
            errors.push(controller.field.too_long(MAX_CONTROLLER_BYTES));
        }
        names::domain_prefixed_path(&controller, &mut errors);
        let parameters = spec.get("parameters");
        if !parameters.is_set() {
            return errors;
        }
        typed_reference(&parameters, &mut errors);
        let (scope, namespace) = (parameters.get("scope"), parameters.get("namespace"));
        match scope.text() {
            "Namespace" if !namespace.is_set() => {
                errors.push(namespace.required("`parameters.scope` is set to 'Namespace'"));
            }
            "Namespace" => namespace.reasons(&mut errors, names::dns_label(namespace.text())),
            "Cluster" if namespace.is_set() => {
                errors.push(namespace.forbidden("`parameters.scope` is set to 'Cluster'"));
            }
            "Cluster" => {}
            _ => errors.push(scope.unsupported(&["Cluster", "Namespace"])),
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let path = "spec.controller";
        let mut errors: Errors =
            meta::immutable(new.get(path), old.get(path), &Field::new(path)).into_iter().collect();
        errors.extend(self.validate(new));
        errors
    }
}
