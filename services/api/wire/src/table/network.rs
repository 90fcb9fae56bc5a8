//! Ingresses, network policies, endpoint slices and addresses.

use serde_json::Value;

use super::core::balancer_addresses;
use super::row::{NONE, UNSET, first_few, list_at, selector_or_none, str_at};
use super::{AGE, NAME, Printer, text};

pub(super) fn printer(plural: &str) -> Option<&'static Printer> {
    Some(match plural {
        "ingresses" => &INGRESSES,
        "ingressclasses" => &INGRESS_CLASSES,
        "networkpolicies" => &POLICIES,
        "servicecidrs" => &CIDRS,
        "ipaddresses" => &ADDRESSES,
        "endpointslices" => &SLICES,
        _ => return None,
    })
}

const INGRESSES: Printer = Printer {
    columns: &[
        NAME,
        text("Class", "Which class of controller serves it."),
        text("Hosts", "Host names it answers."),
        text("Address", "Where it is reached."),
        text("Ports", "Ports it opens."),
        AGE,
    ],
    cells: |row| {
        let rules = row.list("spec.rules");
        // The fourth rule decides whether there is more, be it with a host or not.
        let (mut hosts, mut more): (Vec<&str>, bool) = (Vec::new(), false);
        for rule in rules {
            more |= hosts.len() == 3;
            let host = str_at(rule, "host");
            if !more && !host.is_empty() {
                hosts.push(host);
            }
        }
        let hosts = match (hosts.is_empty(), more) {
            (true, _) => "*".to_owned(),
            (false, true) => format!("{} + {} more...", hosts.join(","), rules.len() - 3),
            (false, false) => hosts.join(","),
        };
        let addresses: Vec<String> = balancer_addresses(row).into_iter().collect();
        let ports = if row.list("spec.tls").is_empty() { "80" } else { "80, 443" };
        vec![
            row.name(),
            row.at("spec.ingressClassName").as_str().unwrap_or(NONE).into(),
            hosts.into(),
            addresses.join(",").into(),
            ports.into(),
            row.age(),
        ]
    },
};

const INGRESS_CLASSES: Printer = Printer {
    columns: &[
        NAME,
        text("Controller", "Who serves ingresses of this class."),
        text("Parameters", "Where its settings are."),
        AGE,
    ],
    cells: |row| {
        let mut name = row.object.header.name.to_string();
        if row.annotation("ingressclass.kubernetes.io/is-default-class") == Some("true") {
            name.push_str(" (default)");
        }
        let of = |key: &str| str_at(row.at("spec.parameters"), key).to_owned();
        let parameters = match (row.at("spec.parameters"), row.at("spec.parameters.apiGroup").as_str()) {
            (Value::Object(_), Some(group)) => format!("{}.{group}/{}", of("kind"), of("name")),
            (Value::Object(_), None) => format!("{}/{}", of("kind"), of("name")),
            _ => NONE.to_owned(),
        };
        vec![name.into(), row.str("spec.controller").into(), parameters.into(), row.age()]
    },
};

const POLICIES: Printer = Printer {
    columns: &[NAME, text("Pod-Selector", "Which pods it is about."), AGE],
    cells: |row| vec![row.name(), selector_or_none(row.at("spec.podSelector")).into(), row.age()],
};

const CIDRS: Printer = Printer {
    columns: &[NAME, text("CIDRs", "Ranges services get addresses from."), AGE],
    cells: |row| {
        let cidrs: Vec<&str> = row.list("spec.cidrs").iter().filter_map(Value::as_str).collect();
        vec![row.name(), cidrs.join(",").into(), row.age()]
    },
};

const ADDRESSES: Printer = Printer {
    columns: &[NAME, text("ParentRef", "What the address was given to.")],
    cells: |row| {
        let of = |key: &str| str_at(row.at("spec.parentRef"), key).to_owned();
        let mut parent = match of("group") {
            group if group.is_empty() => of("resource"),
            group => format!("{}.{group}", of("resource")),
        }
        .to_lowercase();
        for part in [of("namespace"), of("name")].iter().filter(|part| !part.is_empty()) {
            parent.push('/');
            parent.push_str(part);
        }
        let parent = if row.at("spec.parentRef").is_object() { parent } else { NONE.to_owned() };
        vec![row.name(), parent.into()]
    },
};

const SLICES: Printer = Printer {
    columns: &[
        NAME,
        text("AddressType", "What kind of addresses it lists."),
        text("Ports", "Ports behind those addresses."),
        text("Endpoints", "The addresses."),
        AGE,
    ],
    cells: |row| {
        let ports: Vec<String> = row
            .list("ports")
            .iter()
            .map(|port| match (port["port"].as_i64(), port["name"].as_str()) {
                (Some(number), _) => number.to_string(),
                (None, Some(name)) => name.to_owned(),
                (None, None) => "*".to_owned(),
            })
            .collect();
        let addresses: Vec<String> = row
            .list("endpoints")
            .iter()
            .flat_map(|endpoint| list_at(endpoint, "addresses"))
            .map(|address| address.as_str().unwrap_or_default().to_owned())
            .collect();
        let shown = |all: &[String]| match first_few(all, 3, UNSET) {
            // A single port without a name leaves nothing to show either.
            text if text.is_empty() => UNSET.to_owned(),
            text => text,
        };
        vec![
            row.name(),
            row.str("addressType").into(),
            shown(&ports).into(),
            shown(&addresses).into(),
            row.age(),
        ]
    },
};
