//! Endpoints and EndpointSlices.

use api_machinery::Document;
use serde_json::Value;

use super::pod_defaults::{items, text};
use crate::strategy::{Generation, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{meta, names};

pub(crate) struct Endpoints;

/// More endpoints than this belong into another slice.
const MAX_ENDPOINTS: usize = 1000;
const MAX_PORTS: usize = 20_000;
const MAX_ADDRESSES: usize = 100;

impl Strategy for Endpoints {
    fn creates_on_update(&self) -> bool {
        true
    }
    fn defaults(&self, new: &mut Document) {
        for subset in items(new.0.get_mut("subsets")) {
            for port in items(subset.get_mut("ports")) {
                text(port, "protocol", "TCP");
            }
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        for subset in At::top(new, "subsets").items() {
            let lists = [subset.get("addresses"), subset.get("notReadyAddresses")];
            if lists.iter().all(At::is_empty) {
                errors.push(subset.field.required("must specify `addresses` or `notReadyAddresses`"));
            }
            for address in lists.iter().flat_map(At::items) {
                check_ip(&address.get("ip"), &mut errors);
                let host = address.get("hostname");
                if !host.is_empty() {
                    host.reasons(&mut errors, names::dns_label(host.text()));
                }
            }
            let several = subset.get("ports").len() > 1;
            for port in subset.get("ports").items() {
                let name = port.get("name");
                if name.is_empty() {
                    if several {
                        errors.push(name.required(""));
                    }
                } else {
                    name.reasons(&mut errors, names::dns_label(name.text()));
                }
                let number = port.get("port");
                number.reasons(&mut errors, names::port_number(number.int().unwrap_or(0)));
                port.get("protocol").must_be_one_of(&mut errors, &["SCTP", "TCP", "UDP"]);
            }
        }
        errors
    }
}

/// Addresses of endpoints are somewhere else: not this host and not a group.
fn check_ip(at: &At<'_>, errors: &mut Errors) {
    at.reasons(errors, names::ip(at.text()));
    let Ok(ip) = at.text().parse::<std::net::IpAddr>() else { return };
    let why = if ip.is_unspecified() {
        format!("may not be unspecified ({ip})")
    } else if ip.is_loopback() {
        "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()
    } else if matches!(ip, std::net::IpAddr::V4(v4) if v4.is_link_local()) {
        "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()
    } else if ip.is_multicast() {
        "may not be in the multicast range (224.0.0.0/4, ff00::/8)".to_owned()
    } else {
        return;
    };
    errors.push(at.invalid(why));
}

pub(crate) struct EndpointSlices;

impl Strategy for EndpointSlices {
    fn generation(&self) -> Generation {
        Generation::OnContent
    }
    fn defaults(&self, new: &mut Document) {
        for port in items(new.0.get_mut("ports")) {
            text(port, "protocol", "TCP");
            port.entry("name").or_insert_with(|| "".into());
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let kind = At::top(new, "addressType");
        kind.must_be_one_of(&mut errors, &["FQDN", "IPv4", "IPv6"]);
        let endpoints = At::top(new, "endpoints");
        if endpoints.len() > MAX_ENDPOINTS {
            errors.push(endpoints.field.too_many(endpoints.len(), MAX_ENDPOINTS));
            return errors;
        }
        for endpoint in endpoints.items() {
            let addresses = endpoint.get("addresses");
            if addresses.is_empty() {
                errors.push(addresses.required("must contain at least 1 address"));
            } else if addresses.len() > MAX_ADDRESSES {
                errors.push(addresses.field.too_many(addresses.len(), MAX_ADDRESSES));
            }
            for address in addresses.items() {
                match kind.text() {
                    "FQDN" => address.reasons(&mut errors, names::dns_subdomain(address.text())),
                    family => {
                        check_ip(&address, &mut errors);
                        let parsed = address.text().parse::<std::net::IpAddr>();
                        if family == "IPv4" && matches!(parsed, Ok(ip) if !ip.is_ipv4()) {
                            errors.push(address.invalid("must be an IPv4 address"));
                        }
                        if family == "IPv6" && matches!(parsed, Ok(ip) if !ip.is_ipv6()) {
                            errors.push(address.invalid("must be an IPv6 address"));
                        }
                    }
                }
            }
            let host = endpoint.get("hostname");
            if host.is_set() {
                host.reasons(&mut errors, names::dns_label(host.text()));
            }
            let node = endpoint.get("nodeName");
            if node.is_set() {
                node.reasons(&mut errors, names::dns_subdomain(node.text()));
            }
        }
        let ports = At::top(new, "ports");
        if ports.len() > MAX_PORTS {
            errors.push(ports.field.too_many(ports.len(), MAX_PORTS));
            return errors;
        }
        let mut seen = std::collections::HashSet::new();
        for port in ports.items() {
            let name = port.get("name");
            if !name.is_empty() {
                name.reasons(&mut errors, names::dns_label(name.text()));
            }
            if !seen.insert(name.text()) {
                errors.push(name.duplicate());
            }
            port.get("protocol").must_be_one_of(&mut errors, &["SCTP", "TCP", "UDP"]);
            let number = port.get("port");
            if let Some(number) = number.int() {
                let field = port.get("port").field;
                errors.extend(names::port_number(number).into_iter().map(|why| field.invalid(number, why)));
            }
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        let field = api_machinery::Field::new("addressType");
        errors.extend(meta::immutable(new.0.get("addressType"), old.0.get("addressType"), &field));
        errors
    }
    fn warnings(&self, new: &Document, _old: Option<&Document>) -> Vec<String> {
        if new.0.get("addressType").and_then(Value::as_str) == Some("FQDN") {
            return vec!["addressType: FQDN endpoints are deprecated".to_owned()];
        }
        Vec::new()
    }
}
