//! Services. What they take exclusively (cluster IPs, node ports) is in `service_allocation`.

use std::collections::HashSet;

use api_machinery::{Document, Status};
use serde_json::{Map, Value, json};
use store_mvcc::Op;

use super::pod_defaults::{items, text};
use super::service_allocation as allocation;
use crate::strategy::{Moment, NameRule, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{meta, names};

pub(crate) struct Services;

pub(crate) fn kind_of(service: &Document) -> &str {
    service.get_str("spec.type").unwrap_or("ClusterIP")
}
pub(crate) fn is_headless(service: &Document) -> bool {
    service.get_str("spec.clusterIP") == Some("None")
}
pub(crate) fn needs_cluster_ip(service: &Document) -> bool {
    kind_of(service) != "ExternalName"
}
/// Node ports of a load balancer can be declined.
pub(crate) fn needs_node_ports(service: &Document) -> bool {
    match kind_of(service) {
        "NodePort" => true,
        "LoadBalancer" => service.get("spec.allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}
pub(crate) fn needs_health_port(service: &Document) -> bool {
    kind_of(service) == "LoadBalancer" && service.get_str("spec.externalTrafficPolicy") == Some("Local")
}
fn externally_accessible(service: &Document) -> bool {
    matches!(kind_of(service), "NodePort" | "LoadBalancer")
        || (kind_of(service) == "ClusterIP" && !service.get_array("spec.externalIPs").is_empty())
}

impl Strategy for Services {
    fn names(&self) -> NameRule {
        NameRule::DnsLabel
    }
    fn creates_on_update(&self) -> bool {
        true
    }
    fn defaults(&self, new: &mut Document) {
        text(new.object_mut("spec"), "type", "ClusterIP");
        text(new.object_mut("spec"), "sessionAffinity", "None");
        match new.get_str("spec.sessionAffinity") {
            Some("None") => {
                new.remove("spec.sessionAffinityConfig");
            }
            Some("ClientIP") => new.set_default("spec.sessionAffinityConfig.clientIP.timeoutSeconds", 10800),
            _ => {}
        }
        for port in items(new.get_mut("spec.ports")) {
            text(port, "protocol", "TCP");
            let unset = match port.get("targetPort") {
                None | Some(Value::Null) => true,
                Some(target) => target.as_i64() == Some(0) || target.as_str() == Some(""),
            };
            if unset && let Some(number) = port.get("port").cloned() {
                port.insert("targetPort".to_owned(), number);
            }
            if port.get("nodePort").and_then(Value::as_i64) == Some(0) {
                port.remove("nodePort");
            }
        }
        if externally_accessible(new) {
            text(new.object_mut("spec"), "externalTrafficPolicy", "Cluster");
        }
        if needs_cluster_ip(new) {
            new.set_default("spec.internalTrafficPolicy", "Cluster");
        }
        if kind_of(new) == "LoadBalancer" {
            new.set_default("spec.allocateLoadBalancerNodePorts", true);
            for ingress in items(new.get_mut("status.loadBalancer.ingress")) {
                if ingress.contains_key("ip") {
                    ingress.entry("ipMode").or_insert_with(|| "VIP".into());
                }
            }
        }
        if new.get("spec.publishNotReadyAddresses") == Some(&Value::Bool(false)) {
            new.remove("spec.publishNotReadyAddresses");
        }
        cluster_ip_names(new);
    }
    fn prepare_for_create(&self, _moment: &Moment<'_>, new: &mut Document) {
        new.set("status", json!({"loadBalancer": {}}));
    }
    fn prepare_for_update(&self, _moment: &Moment<'_>, new: &mut Document, old: &Document) {
        drop_what_the_type_left_behind(new, old);
        keep_what_was_allocated(new, old);
        if new.get("status.loadBalancer").is_none() {
            new.set("status.loadBalancer", json!({}));
        }
        if kind_of(new) != "LoadBalancer" {
            new.set("status.loadBalancer", json!({}));
        }
    }
    fn allocate(
        &self,
        moment: &Moment<'_>,
        new: Option<&mut Document>,
        old: Option<&Document>,
    ) -> Result<Vec<Op>, Status> {
        allocation::allocate(moment, new, old)
    }
    fn validate(&self, new: &Document) -> Errors {
        validate(new)
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = Vec::new();
        if needs_cluster_ip(old) && needs_cluster_ip(new) {
            for (at, before) in old.get_array("spec.clusterIPs").iter().enumerate() {
                let now = new.get_array("spec.clusterIPs").get(at);
                // A second family may be given back, the first address is for good.
                if now != Some(before) && (at == 0 || now.is_some()) {
                    let field = api_machinery::Field::new("spec.clusterIPs").index(at);
                    errors.push(
                        field.invalid(now.cloned().unwrap_or(Value::from("")), "may not change once set"),
                    );
                }
            }
        }
        if kind_of(old) == "LoadBalancer" && kind_of(new) == "LoadBalancer" {
            let at = At::top(new, "spec").get("loadBalancerClass");
            let before = At::top(old, "spec").get("loadBalancerClass");
            if at.value != before.value {
                errors.push(at.invalid("may not change once set"));
            }
        }
        errors.extend(validate(new));
        errors
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        let mut errors = Vec::new();
        let balancer = At::top(new, "status").get("loadBalancer");
        let ingress = balancer.get("ingress");
        if kind_of(new) != "LoadBalancer" && !ingress.is_empty() {
            errors.push(ingress.forbidden("may only be used when `spec.type` is 'LoadBalancer'"));
        }
        for one in ingress.items() {
            let ip = one.get("ip");
            if !ip.is_empty() {
                ip.reasons(&mut errors, names::ip(ip.text()));
            }
            let host = one.get("hostname");
            if !host.is_empty() {
                host.reasons(&mut errors, names::dns_subdomain(host.text()));
            }
        }
        errors
    }
    fn warnings(&self, new: &Document, _old: Option<&Document>) -> Vec<String> {
        warnings(new)
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["spec.clusterIP", "spec.type"]
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

/// What a service says in vain, or in words that are on their way out; upstream's `GetWarningsForService`.
fn warnings(new: &Document) -> Vec<String> {
    let mut all = Vec::new();
    let set = |path: &str| new.get_str(path).is_some_and(|text| !text.is_empty());
    let external = !new.get_array("spec.externalIPs").is_empty();
    let by_name = kind_of(new) == "ExternalName";
    if new.annotation("service.kubernetes.io/topology-aware-hints").is_some() {
        all.push("annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead".to_owned());
    }
    if is_headless(new) {
        if set("spec.loadBalancerIP") {
            all.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if external {
            all.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if new.get_str("spec.sessionAffinity") != Some("None") {
            all.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    if external && !is_headless(new) && !by_name {
        let why = "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        all.push(why.to_owned());
    }
    if by_name && external {
        all.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if !by_name && set("spec.externalName") {
        all.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if new.get_str("spec.trafficDistribution") == Some("PreferClose") {
        let why = "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        all.push(why.to_owned());
    }
    all
}

/// `clusterIP` and `clusterIPs` are two names of one thing; whichever is there fills the other.
fn cluster_ip_names(new: &mut Document) {
    let single = new.get_str("spec.clusterIP").unwrap_or_default().to_owned();
    let first =
        new.get_array("spec.clusterIPs").first().and_then(Value::as_str).unwrap_or_default().to_owned();
    if single.is_empty() && !first.is_empty() {
        new.set("spec.clusterIP", first);
    } else if !single.is_empty() && first.is_empty() {
        new.set("spec.clusterIPs", json!([single]));
    } else if single.is_empty() {
        new.remove("spec.clusterIP");
        new.remove("spec.clusterIPs");
    }
}

/// A port is the same port if number and protocol are.
fn port_key(port: &Map<String, Value>) -> (i64, String) {
    let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
    (number, port.get("protocol").and_then(Value::as_str).unwrap_or("TCP").to_owned())
}

/// PUT without addresses and ports means: those it has.
fn keep_what_was_allocated(new: &mut Document, old: &Document) {
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        let unset = new.get_str("spec.clusterIP").is_none_or(str::is_empty);
        let changed_alone = !unset
            && new.get("spec.clusterIP") != old.get("spec.clusterIP")
            && new.get("spec.clusterIPs") == old.get("spec.clusterIPs");
        if unset {
            for name in ["spec.clusterIP", "spec.clusterIPs"] {
                if let Some(value) = old.get(name) {
                    new.set(name, value.clone());
                }
            }
        } else if changed_alone {
            let single = new.get_str("spec.clusterIP").unwrap_or_default().to_owned();
            new.set("spec.clusterIPs", json!([single]));
        }
        for name in ["spec.ipFamilies", "spec.ipFamilyPolicy"] {
            if let Some(value) = old.get(name) {
                new.set_default(name, value.clone());
            }
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        let mut used: HashSet<i64> = HashSet::new();
        for port in new.get_array("spec.ports") {
            used.extend(port.get("nodePort").and_then(Value::as_i64));
        }
        let before: Vec<Map<String, Value>> =
            old.get_array("spec.ports").iter().filter_map(Value::as_object).cloned().collect();
        for port in items(new.get_mut("spec.ports")) {
            if port.contains_key("nodePort") {
                continue;
            }
            let same = before.iter().find(|one| port_key(one) == port_key(port));
            let number = same.and_then(|one| one.get("nodePort")?.as_i64());
            if let Some(number) = number.filter(|number| !used.contains(number)) {
                used.insert(number);
                port.insert("nodePort".to_owned(), number.into());
            }
        }
    }
    if needs_health_port(old)
        && needs_health_port(new)
        && let Some(port) = old.get("spec.healthCheckNodePort")
    {
        new.set_default("spec.healthCheckNodePort", port.clone());
    }
}

/// A client that changes only the type sends the old type's fields back unchanged: they go with it.
fn drop_what_the_type_left_behind(new: &mut Document, old: &Document) {
    let unchanged = |new: &Document, path: &str| new.get(path).is_some() && new.get(path) == old.get(path);
    if needs_cluster_ip(old) && !needs_cluster_ip(new) && unchanged(new, "spec.clusterIP") {
        for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            new.remove(&format!("spec.{name}"));
        }
    }
    if needs_node_ports(old) && !needs_node_ports(new) {
        let before: HashSet<i64> =
            old.get_array("spec.ports").iter().filter_map(|port| port.get("nodePort")?.as_i64()).collect();
        for port in items(new.get_mut("spec.ports")) {
            if port.get("nodePort").and_then(Value::as_i64).is_some_and(|number| before.contains(&number)) {
                port.remove("nodePort");
            }
        }
    }
    if needs_health_port(old) && !needs_health_port(new) && unchanged(new, "spec.healthCheckNodePort") {
        new.remove("spec.healthCheckNodePort");
    }
    if !externally_accessible(new) && unchanged(new, "spec.externalTrafficPolicy") {
        new.remove("spec.externalTrafficPolicy");
    }
    if kind_of(new) != "LoadBalancer" {
        for name in ["spec.allocateLoadBalancerNodePorts", "spec.loadBalancerClass"] {
            if unchanged(new, name) {
                new.remove(name);
            }
        }
    }
    if kind_of(new) != "ExternalName" && unchanged(new, "spec.externalName") {
        new.remove("spec.externalName");
    }
}

fn validate(new: &Document) -> Errors {
    let spec = At::top(new, "spec");
    let mut errors = Vec::new();
    let kind = kind_of(new);
    spec.get("type").one_of(&mut errors, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    let ports = spec.get("ports");
    if ports.is_empty() && !is_headless(new) && kind != "ExternalName" {
        errors.push(ports.required(""));
    }
    match kind {
        "LoadBalancer" if is_headless(new) => errors.push(
            spec.get("clusterIPs")
                .get("0")
                .field
                .invalid("None", "may not be set to 'None' for LoadBalancer services"),
        ),
        "NodePort" if is_headless(new) => errors.push(
            spec.get("clusterIPs")
                .get("0")
                .field
                .invalid("None", "may not be set to 'None' for NodePort services"),
        ),
        "ExternalName" => {
            let ips = spec.get("clusterIPs");
            if !ips.is_empty() {
                errors.push(ips.forbidden("may not be set for ExternalName services"));
            }
            let name = spec.get("externalName");
            let text = name.text().strip_suffix('.').unwrap_or(name.text());
            if text.is_empty() {
                errors.push(name.required(""));
            } else {
                name.reasons(&mut errors, names::dns_subdomain(text));
            }
        }
        _ => {}
    }
    validate_ports(&ports, kind, &mut errors);
    errors.extend(meta::labels(Some(spec.get("selector").value), &spec.get("selector").field));
    let affinity = spec.get("sessionAffinity");
    affinity.must_be_one_of(&mut errors, &["ClientIP", "None"]);
    if affinity.text() == "ClientIP" {
        let seconds = spec.get("sessionAffinityConfig").get("clientIP").get("timeoutSeconds");
        if !seconds.int().is_some_and(|seconds| (1..=86400).contains(&seconds)) {
            errors.push(seconds.invalid("must be greater than 0 and less than 86400"));
        }
    }
    for ip in spec.get("externalIPs").items() {
        ip.reasons(&mut errors, names::ip(ip.text()));
        let refused = ip.text().parse::<std::net::IpAddr>().is_ok_and(|ip| {
            ip.is_unspecified()
                || ip.is_loopback()
                || matches!(ip, std::net::IpAddr::V4(v4) if v4.is_link_local() || v4.is_multicast())
        });
        if refused {
            errors.push(ip.invalid("may not be unspecified, loopback, link-local or multicast"));
        }
    }
    let ranges = spec.get("loadBalancerSourceRanges");
    if !ranges.is_empty() && kind != "LoadBalancer" {
        errors.push(ranges.forbidden("may only be used when `type` is 'LoadBalancer'"));
    }
    for range in ranges.items() {
        range.reasons(&mut errors, names::cidr(range.text().trim()));
    }
    let external = spec.get("externalTrafficPolicy");
    if externally_accessible(new) {
        external.must_be_one_of(&mut errors, &["Cluster", "Local"]);
    } else if !external.is_empty() {
        errors.push(external.invalid("may only be set for externally-accessible services"));
    }
    spec.get("internalTrafficPolicy").one_of(&mut errors, &["Cluster", "Local"]);
    spec.get("trafficDistribution").one_of(&mut errors, &["PreferClose", "PreferSameNode", "PreferSameZone"]);
    let class = spec.get("loadBalancerClass");
    if class.is_set() {
        class.reasons(&mut errors, names::qualified_name(class.text()));
        if kind != "LoadBalancer" {
            errors.push(class.forbidden("may only be used when `type` is 'LoadBalancer'"));
        }
    }
    let declined = spec.get("allocateLoadBalancerNodePorts");
    if declined.is_set() && kind != "LoadBalancer" {
        errors.push(declined.forbidden("may only be used when `type` is 'LoadBalancer'"));
    }
    errors
}

fn validate_ports(ports: &At<'_>, kind: &str, errors: &mut Errors) {
    let several = ports.len() > 1;
    let mut seen_names: HashSet<&str> = HashSet::new();
    let mut seen_ports: HashSet<(i64, &str)> = HashSet::new();
    let mut seen_node_ports: HashSet<(i64, &str)> = HashSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if name.is_empty() {
            if several {
                errors.push(name.required(""));
            }
        } else {
            name.reasons(errors, names::dns_label(name.text()));
            if !seen_names.insert(name.text()) {
                errors.push(name.duplicate());
            }
        }
        let number = port.get("port");
        let shown = number.int().unwrap_or(0);
        errors.extend(names::port_number(shown).into_iter().map(|why| number.field.invalid(shown, why)));
        let protocol = port.get("protocol");
        protocol.must_be_one_of(errors, &["SCTP", "TCP", "UDP"]);
        let target = port.get("targetPort");
        match target.value {
            Value::String(text) => target.reasons(errors, names::port_name(text)),
            _ => target.reasons(errors, names::port_number(target.int().unwrap_or(0))),
        }
        if !seen_ports.insert((shown, protocol.text())) {
            errors.push(port.field.duplicate(json!({"protocol": protocol.text(), "port": shown})));
        }
        let node = port.get("nodePort");
        if let Some(number) = node.int() {
            if !matches!(kind, "NodePort" | "LoadBalancer") {
                errors.push(node.forbidden("may not be used when `type` is 'ClusterIP'"));
            }
            if !seen_node_ports.insert((number, protocol.text())) {
                errors.push(node.duplicate());
            }
        }
        let app = port.get("appProtocol");
        if app.is_set() {
            app.reasons(errors, names::qualified_name(app.text()));
        }
    }
}
