//! EndpointSlices and Endpoints: which addresses stand behind a Service.
//!
//! [`Backends`] reads a Service and its pods once for both; `slices` and `legacy` write their kind, and
//! `mirror` copies Endpoints that somebody made by hand.
//!
//! Not here: the endpoints of Services without selector, which are their owner's.

pub(crate) mod legacy;
pub(crate) mod mirror;
pub(crate) mod slices;

use std::collections::HashMap;
use std::sync::Arc;

use api_machinery::{LabelSelector, Object};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::catalog::res;
use crate::controller::{Change, ChangeKind, Key};
use crate::convert;
use crate::workloads::pods::PodView;
use crate::world::World;

/// The selectors of all Services, so that a pod's change finds those it concerns without parsing any.
#[derive(Default)]
pub(crate) struct Selectors {
    of: HashMap<Key, LabelSelector>,
}

impl Selectors {
    /// Wakes the Services that a change concerns.
    pub fn concerns(&mut self, change: &Change<'_>, wake: &mut dyn FnMut(Key)) {
        match change.of {
            res::SERVICES => {
                let key = Key::of(res::SERVICES, change.object);
                match convert::map_selector(change.object.field("spec.selector").as_ref()) {
                    Some(selector) if change.kind != ChangeKind::Gone => {
                        self.of.insert(key.clone(), selector);
                    }
                    _ => drop(self.of.remove(&key)),
                }
                wake(key);
            }
            res::PODS => {
                if change.kind == ChangeKind::Changed
                    && change.old.is_some_and(|old| is_same(old, change.object))
                {
                    return;
                }
                let namespace = change.object.header.namespace.as_deref().unwrap_or_default();
                let labels =
                    [Some(change.object), change.old].into_iter().flatten().map(|pod| &pod.header.labels);
                let labels: Vec<_> = labels.collect();
                for (key, selector) in &self.of {
                    if &*key.namespace == namespace && labels.iter().any(|labels| selector.matches(labels)) {
                        wake(key.clone());
                    }
                }
            }
            _ => {}
        }
    }
}

/// Whether two versions of a pod look the same from a Service.
fn is_same(old: &Object, new: &Object) -> bool {
    if old.header.labels != new.header.labels
        || old.header.deleting_since.is_some() != new.header.deleting_since.is_some()
    {
        return false;
    }
    let (old, new) = (PodView::of(old), PodView::of(new));
    old.is_ready() == new.is_ready()
        && old.is_over() == new.is_over()
        && old.status.pod_ip == new.status.pod_ip
        && old.ips() == new.ips()
        && old.node() == new.node()
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceSpec {
    pub selector: Option<Value>,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    pub ip_families: Option<Vec<String>>,
    pub ports: Option<Vec<ServicePort>>,
    pub publish_not_ready_addresses: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServicePort {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub app_protocol: Option<String>,
    pub port: i64,
    pub target_port: Option<Value>,
}

impl ServiceSpec {
    pub fn of(service: &Object) -> ServiceSpec {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Outer {
            spec: ServiceSpec,
        }
        serde_json::from_slice::<Outer>(service.body()).unwrap_or_default().spec
    }
    pub fn is_headless(&self) -> bool {
        self.cluster_ip.as_deref() == Some("None")
    }
    pub fn families(&self) -> Vec<&str> {
        match self.ip_families.as_deref() {
            Some(families) if !families.is_empty() => families.iter().map(String::as_str).collect(),
            _ if self.cluster_ip.as_deref().is_some_and(|ip| ip.contains(':')) => vec!["IPv6"],
            _ => vec!["IPv4"],
        }
    }
}

/// One pod behind a Service.
pub(crate) struct Backend {
    pub ips: Vec<String>,
    pub ready: bool,
    pub terminating: bool,
    /// `None` when the pod has no port of the name that the Service targets.
    pub ports: Vec<Value>,
    pub node: String,
    pub zone: Option<String>,
    pub hostname: Option<String>,
    pub target: Value,
}

/// All pods a Service selects that can be reached at all.
pub(crate) fn backends(world: &World, service: &Arc<Object>, spec: &ServiceSpec) -> Option<Vec<Backend>> {
    let selector = convert::map_selector(spec.selector.as_ref())?;
    if spec.kind == "ExternalName" {
        return None;
    }
    let namespace = service.header.namespace.as_deref().unwrap_or_default();
    let mut backends = Vec::new();
    for pod in world.select(res::PODS, namespace, &selector) {
        let view = PodView::of(pod);
        let ips = view.ips();
        if view.is_over() || ips.is_empty() {
            continue;
        }
        let ports = ports(spec, pod);
        if ports.is_empty() && spec.ports.as_ref().is_some_and(|ports| !ports.is_empty()) {
            continue;
        }
        let node = world.get(res::NODES, "", view.node());
        let in_subdomain = view.spec.subdomain.as_deref() == Some(&*service.header.name);
        backends.push(Backend {
            ips,
            ready: view.is_ready(),
            terminating: pod.header.deleting_since.is_some(),
            ports,
            node: view.node().to_owned(),
            zone: node.and_then(|node| node.header.labels.get("topology.kubernetes.io/zone").cloned()),
            hostname: view.spec.hostname.clone().filter(|name| !name.is_empty() && in_subdomain),
            target: json!({"kind": "Pod", "namespace": namespace, "name": pod.header.name,
                "uid": pod.header.uid.to_string()}),
        });
    }
    Some(backends)
}

fn ports(spec: &ServiceSpec, pod: &Object) -> Vec<Value> {
    let mut containers = None;
    let mut found = Vec::new();
    for port in spec.ports.iter().flatten() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let number = match &port.target_port {
            None | Some(Value::Null) => Some(port.port),
            Some(Value::Number(number)) if number.as_i64() == Some(0) => Some(port.port),
            Some(Value::Number(number)) => number.as_i64(),
            Some(Value::String(name)) => {
                let containers =
                    containers.get_or_insert_with(|| pod.field("spec.containers").unwrap_or_default());
                named_port(containers, name, protocol)
            }
            Some(_) => None,
        };
        let Some(number) = number else { continue };
        let mut entry =
            json!({"name": port.name.clone().unwrap_or_default(), "port": number, "protocol": protocol});
        if let Some(app_protocol) = &port.app_protocol {
            entry["appProtocol"] = json!(app_protocol);
        }
        found.push(entry);
    }
    found
}

fn named_port(containers: &Value, name: &str, protocol: &str) -> Option<i64> {
    let containers = containers.as_array().into_iter().flatten();
    let mut ports = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let port =
        ports.find(|port| port["name"] == name && port["protocol"].as_str().unwrap_or("TCP") == protocol)?;
    port["containerPort"].as_i64()
}

pub(crate) fn is_family(ip: &str, family: &str) -> bool {
    ip.contains(':') == (family == "IPv6")
}
