//! Cluster IPs and node ports: taken and given back in the same command as the Service that has them.
//!
//! An address in use is an `IPAddress` object named after it, a node port an entry of the internal collection
//! `_nodeports`; both are put with "must be absent", so two Services can never hold the same one, and the
//! loser of a race decides again.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use api_kinds::kinds;
use api_machinery::{Document, Field, Gvr, Status};
use rand::Rng;
use serde_json::{Value, json};
use store_mvcc::{Expect, Key, Op};
use uuid::Uuid;

use super::pod_defaults::items;
use super::service::{is_headless, kind_of, needs_cluster_ip, needs_health_port, needs_node_ports};
use crate::registry::{key, stored_value};
use crate::strategy::Moment;

pub(crate) const NODE_PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;
const NODE_PORT_COLLECTION: &str = "_nodeports";
const IP_ADDRESSES: Gvr = Gvr::new("networking.k8s.io", "v1", "ipaddresses");
const SERVICE_CIDRS: Gvr = Gvr::new("networking.k8s.io", "v1", "servicecidrs");
/// Random picks before the range is walked in order.
const PICKS: usize = 64;
/// Of a range, at most this many addresses at its start are left to people who choose one themselves.
const STATIC_BAND: u32 = 256;

pub(crate) fn allocate(
    moment: &Moment<'_>,
    new: Option<&mut Document>,
    old: Option<&Document>,
) -> Result<Vec<Op>, Status> {
    let mut ops = Vec::new();
    let held_ips = old.map(ips_of).unwrap_or_default();
    let held_ports = old.map(node_ports_of).unwrap_or_default();
    let (mut wanted_ips, mut wanted_ports) = (BTreeSet::new(), BTreeSet::new());
    if let Some(new) = new {
        addresses(moment, new, &held_ips)?;
        ports(moment, new, &held_ports)?;
        wanted_ips = ips_of(new);
        wanted_ports = node_ports_of(new);
        for ip in wanted_ips.difference(&held_ips) {
            ops.push(take_ip(moment, new, *ip)?);
        }
        let owner = format!("{}/{}", new.namespace(), new.name());
        for port in wanted_ports.difference(&held_ports) {
            ops.push(Op::Put {
                key: port_key(*port),
                value: store_mvcc::Value { body: owner.clone().into(), stamp: Default::default() },
                expect: Expect::Absent,
                expires_at_ms: None,
                shared: false,
            });
        }
    }
    for ip in held_ips.difference(&wanted_ips) {
        if let Some(resource) = kinds().resource(&IP_ADDRESSES) {
            ops.push(Op::Delete { key: key(resource, "", &ip.to_string()), expect: Expect::Any });
        }
    }
    for port in held_ports.difference(&wanted_ports) {
        ops.push(Op::Delete { key: port_key(*port), expect: Expect::Any });
    }
    Ok(ops)
}

fn ips_of(service: &Document) -> BTreeSet<IpAddr> {
    if !needs_cluster_ip(service) {
        return BTreeSet::new();
    }
    service.get_array("spec.clusterIPs").iter().filter_map(|ip| ip.as_str()?.parse().ok()).collect()
}

fn node_ports_of(service: &Document) -> BTreeSet<u16> {
    let mut all = BTreeSet::new();
    // Ports stay taken also where the type no longer needs them but the client keeps them.
    for port in service.get_array("spec.ports") {
        all.extend(port.get("nodePort").and_then(Value::as_i64).and_then(|port| u16::try_from(port).ok()));
    }
    if needs_health_port(service) {
        all.extend(service.get_i64("spec.healthCheckNodePort").and_then(|port| u16::try_from(port).ok()));
    }
    all.retain(|port| *port != 0);
    all
}

fn port_key(port: u16) -> Key {
    Key::new(NODE_PORT_COLLECTION, port.to_string())
}

// ---- addresses ----

fn addresses(moment: &Moment<'_>, new: &mut Document, held: &BTreeSet<IpAddr>) -> Result<(), Status> {
    if !needs_cluster_ip(new) {
        return Ok(());
    }
    families(moment, new)?;
    if is_headless(new) {
        return Ok(());
    }
    let field = Field::new("spec.clusterIPs");
    let ranges = ranges(moment);
    match new.get_str("spec.clusterIP").map(str::to_owned).filter(|ip| !ip.is_empty()) {
        Some(text) => {
            let wrong = |why: &str| {
                let error = field.invalid(json!([text]), format!("failed to allocate IP {text}: {why}"));
                invalid(new, error)
            };
            let Ok(ip) = text.parse::<IpAddr>() else {
                let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                return Err(invalid(new, field.index(0).invalid(text.as_str(), why)));
            };
            if held.contains(&ip) {
                return Ok(());
            }
            if !ranges.iter().any(|range| range.contains(ip)) {
                let all: Vec<&str> = ranges.iter().map(|range| range.text.as_str()).collect();
                return Err(wrong(&format!(
                    "the provided IP is not in the valid range. The range of valid IPs is {}",
                    all.join(", ")
                )));
            }
            if in_use(moment, ip) {
                return Err(wrong("provided IP is already allocated"));
            }
        }
        None => {
            let free = ranges.iter().find_map(|range| range.pick(moment)).ok_or_else(|| {
                Status::internal("failed to allocate a serviceIP: range is full".to_owned())
            })?;
            new.set("spec.clusterIP", free.to_string());
        }
    }
    let single = new.get_str("spec.clusterIP").unwrap_or_default().to_owned();
    if new.get_array("spec.clusterIPs").is_empty() {
        new.set("spec.clusterIPs", json!([single]));
    }
    Ok(())
}

/// This cluster has one family; what asks for two gets one, or an error if it insists.
fn families(moment: &Moment<'_>, new: &mut Document) -> Result<(), Status> {
    let own =
        if ranges(moment).iter().any(|range| matches!(range.first, IpAddr::V4(_))) { "IPv4" } else { "IPv6" };
    let free_standing = is_headless(new)
        && new.get("spec.selector").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty);
    if free_standing {
        // Whoever writes the endpoints by hand may give addresses of both families.
        new.set_default("spec.ipFamilyPolicy", "RequireDualStack");
        if new.get_array("spec.ipFamilies").is_empty() {
            new.set("spec.ipFamilies", json!([own]));
        }
        let one = new.get_array("spec.ipFamilies").len() == 1;
        if one && new.get_str("spec.ipFamilyPolicy") != Some("SingleStack") {
            let first = new.get_array("spec.ipFamilies")[0].clone();
            let other = if first == "IPv4" { "IPv6" } else { "IPv4" };
            new.set("spec.ipFamilies", json!([first, other]));
        }
        return Ok(());
    }
    new.set_default("spec.ipFamilyPolicy", "SingleStack");
    match new.get_str("spec.ipFamilyPolicy").unwrap_or_default() {
        "SingleStack" | "PreferDualStack" => {}
        "RequireDualStack" => {
            let field = Field::new("spec.ipFamilyPolicy");
            let error =
                field.invalid("RequireDualStack", "this cluster is not configured for dual-stack services");
            return Err(invalid(new, error));
        }
        other => {
            let supported = ["PreferDualStack", "RequireDualStack", "SingleStack"];
            return Err(invalid(new, Field::new("spec.ipFamilyPolicy").not_supported(other, &supported)));
        }
    }
    if new.get_array("spec.ipFamilies").is_empty() {
        new.set("spec.ipFamilies", json!([own]));
    }
    for (at, family) in new.get_array("spec.ipFamilies").iter().enumerate() {
        let field = Field::new("spec.ipFamilies").index(at);
        match family.as_str() {
            Some(family) if family == own => {}
            Some(family @ ("IPv4" | "IPv6")) => {
                return Err(invalid(new, field.invalid(family, "not configured on this cluster")));
            }
            _ => return Err(invalid(new, field.not_supported(family.clone(), &["IPv4", "IPv6"]))),
        }
    }
    Ok(())
}

fn invalid(service: &Document, error: api_machinery::FieldError) -> Status {
    Status::invalid("", "Service", service.name(), &[error])
}

fn in_use(moment: &Moment<'_>, ip: IpAddr) -> bool {
    moment.lookup.get(&IP_ADDRESSES, None, &ip.to_string()).is_some()
}

fn take_ip(moment: &Moment<'_>, service: &Document, ip: IpAddr) -> Result<Op, Status> {
    let resource = kinds().resource(&IP_ADDRESSES).ok_or_else(Status::no_route)?;
    let object = ip_address(ip, service.namespace(), service.name(), moment.now);
    Ok(Op::Put {
        key: key(resource, "", &ip.to_string()),
        value: stored_value(&object),
        expect: Expect::Absent,
        expires_at_ms: None,
        shared: false,
    })
}

/// The object that says who holds an address.
pub(crate) fn ip_address(ip: IpAddr, namespace: &str, name: &str, now: jiff::Timestamp) -> Document {
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let value = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": ip.to_string(), "generation": 1,
            "uid": Uuid::new_v4().to_string(), "creationTimestamp": base_clock::rfc3339(now),
            "labels": {"ipaddress.kubernetes.io/ip-family": family,
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": namespace, "name": name}}
    });
    Document::from_value(value).unwrap_or_default()
}

struct Range {
    first: IpAddr,
    bits: u8,
    text: String,
}

/// Of every ServiceCIDR that isn't being deleted.
fn ranges(moment: &Moment<'_>) -> Vec<Range> {
    let mut ranges = Vec::new();
    for object in moment.lookup.list(&SERVICE_CIDRS, None) {
        if object.header.deleting_since.is_some() {
            continue;
        }
        let cidrs = object.field("spec.cidrs");
        for cidr in cidrs.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str) {
            if let Some((address, bits)) = cidr.split_once('/')
                && let (Ok(first), Ok(bits)) = (address.parse(), bits.parse())
            {
                ranges.push(Range { first, bits, text: cidr.to_owned() });
            }
        }
    }
    ranges
}

impl Range {
    fn v4(&self) -> Option<(u32, u32)> {
        let IpAddr::V4(first) = self.first else { return None };
        let size = 32u8.checked_sub(self.bits).and_then(|free| 1u32.checked_shl(free.into()))?;
        Some((u32::from(first), size))
    }
    fn contains(&self, ip: IpAddr) -> bool {
        let (Some((first, size)), IpAddr::V4(ip)) = (self.v4(), ip) else { return false };
        let offset = u32::from(ip).wrapping_sub(first);
        // Neither the network's nor the broadcast address.
        offset > 0 && offset < size - 1
    }
    /// A free address: somewhere in the upper part, else in order from there, else from the static band.
    fn pick(&self, moment: &Moment<'_>) -> Option<IpAddr> {
        let (first, size) = self.v4()?;
        let band = (size / 16).clamp(16, STATIC_BAND).min(size / 2);
        let last = size.checked_sub(1).filter(|last| *last > 1)?;
        let at = |offset: u32| IpAddr::V4(Ipv4Addr::from(first + offset));
        let mut rng = rand::rng();
        if band < last {
            for _ in 0..PICKS {
                let ip = at(rng.random_range(band..last));
                if !in_use(moment, ip) {
                    return Some(ip);
                }
            }
        }
        (band.max(1)..last).chain(1..band.max(1)).map(at).find(|ip| !in_use(moment, *ip))
    }
}

// ---- node ports ----

fn ports(moment: &Moment<'_>, new: &mut Document, held: &BTreeSet<u16>) -> Result<(), Status> {
    let taken = |port: u16| moment.space.get(&port_key(port)).is_some();
    let own: BTreeSet<u16> = node_ports_of(new);
    let named: Vec<i64> = new
        .get_array("spec.ports")
        .iter()
        .map(|port| port.get("nodePort").and_then(Value::as_i64).unwrap_or(0))
        .collect();
    for (at, number) in named.iter().enumerate().filter(|(_, number)| **number != 0) {
        let field = Field::new("spec.ports").index(at).child("nodePort");
        check_port(new, &field, *number, held, &taken)?;
    }
    let mut chosen = own;
    if needs_node_ports(new) {
        for port in items(new.get_mut("spec.ports")) {
            if port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) == 0 {
                let free = free_port(&chosen, &taken)?;
                chosen.insert(free);
                port.insert("nodePort".to_owned(), free.into());
            }
        }
    }
    if needs_health_port(new) && kind_of(new) == "LoadBalancer" {
        match new.get_i64("spec.healthCheckNodePort").filter(|port| *port != 0) {
            Some(number) => check_port(new, &Field::new("spec.healthCheckNodePort"), number, held, &taken)?,
            None => new.set("spec.healthCheckNodePort", free_port(&chosen, &taken)?),
        }
    }
    Ok(())
}

fn check_port(
    new: &Document,
    field: &Field,
    number: i64,
    held: &BTreeSet<u16>,
    taken: &dyn Fn(u16) -> bool,
) -> Result<(), Status> {
    let port = u16::try_from(number).ok().filter(|port| NODE_PORTS.contains(port));
    match port {
        None => {
            let why = "provided port is not in the valid range. The range of valid ports is 30000-32767";
            Err(invalid(new, field.invalid(number, why)))
        }
        Some(port) if !held.contains(&port) && taken(port) => {
            Err(invalid(new, field.invalid(number, "provided port is already allocated")))
        }
        Some(_) => Ok(()),
    }
}

fn free_port(chosen: &BTreeSet<u16>, taken: &dyn Fn(u16) -> bool) -> Result<u16, Status> {
    let fine = |port: &u16| !chosen.contains(port) && !taken(*port);
    let mut rng = rand::rng();
    (0..PICKS)
        .map(|_| rng.random_range(NODE_PORTS))
        .find(|port| fine(port))
        .or_else(|| NODE_PORTS.into_iter().find(|port| fine(port)))
        .ok_or_else(|| Status::internal("failed to allocate a nodePort: range is full"))
}
