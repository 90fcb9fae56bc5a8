//! EndpointSlices.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_machinery::{Document, Object};
use api_reconcile::{Action, Plan};
use serde_json::{Map, Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

use super::{Backend, Selectors, ServiceSpec, backends, is_family};

pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Endpoints in one slice, as upstream: a change of one pod rewrites at most this much.
const MOST: usize = 100;

#[derive(Default)]
pub struct Slices {
    selectors: Selectors,
}

impl Controller for Slices {
    fn name(&self) -> &'static str {
        "endpointslice-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::SERVICES, res::PODS, res::SLICES, res::NODES]
    }

    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == res::SLICES {
            let labels = &change.object.header.labels;
            if labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER)
                && let Some(service) = labels.get(SERVICE_NAME)
            {
                let namespace = change.object.header.namespace.as_deref().unwrap_or_default();
                wake(Key::new(res::SERVICES, namespace, service));
            }
            return;
        }
        self.selectors.concerns(change, wake);
    }

    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let Some(service) = world.at(key) else { return Plan::nothing() };
        if world.is_deleting(service) {
            return Plan::nothing();
        }
        let spec = ServiceSpec::of(service);
        let Some(backends) = backends(world, service, &spec) else { return Plan::nothing() };
        let mut existing: Vec<Slice> = Vec::new();
        for object in world.within(res::SLICES, &key.namespace) {
            let labels = &object.header.labels;
            let ours = labels.get(SERVICE_NAME).is_some_and(|name| **name == *key.name)
                && labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
            if ours && !world.is_deleting(object) {
                existing.extend(Slice::read(world, object));
            }
        }
        let mut plan = Plan::nothing();
        let labels = labels(service, &spec);
        let families = spec.families();
        for family in &families {
            let (mine, rest): (Vec<Slice>, Vec<Slice>) =
                existing.into_iter().partition(|slice| slice.family == **family);
            existing = rest;
            reconcile(world, service, &spec, family, &labels, &backends, mine, &mut plan);
        }
        // Slices of a family the Service no longer has.
        for slice in existing {
            plan.push(Action::Delete(convert::deletion(world, res::SLICES, &slice.object)));
        }
        plan
    }
}

struct Slice {
    object: Arc<Object>,
    document: Document,
    family: String,
    ports: Vec<Value>,
    endpoints: Vec<Value>,
}

impl Slice {
    fn read(world: &World, object: &Arc<Object>) -> Option<Slice> {
        let document = convert::document(world.catalog().get(res::SLICES), object)?;
        Some(Slice {
            family: document.get_str("addressType").unwrap_or_default().to_owned(),
            ports: document.get_array("ports").to_vec(),
            endpoints: document.get_array("endpoints").to_vec(),
            object: object.clone(),
            document,
        })
    }
}

/// What makes an endpoint the same one with other conditions.
fn identity(endpoint: &Value) -> String {
    format!("{} {}", endpoint["targetRef"]["uid"].as_str().unwrap_or_default(), endpoint["addresses"][0])
}

#[allow(clippy::too_many_arguments)]
fn reconcile(
    world: &World,
    service: &Arc<Object>,
    spec: &ServiceSpec,
    family: &str,
    labels: &Map<String, Value>,
    backends: &[Backend],
    existing: Vec<Slice>,
    plan: &mut Plan,
) {
    // Pods may answer the same name on different ports; each set of ports has slices of its own.
    let mut wanted: BTreeMap<String, (Vec<Value>, BTreeMap<String, Value>)> = BTreeMap::new();
    for backend in backends {
        if let Some(endpoint) = endpoints(backend, spec, family) {
            let ports = json!(backend.ports).to_string();
            let group = wanted.entry(ports).or_insert_with(|| (backend.ports.clone(), BTreeMap::new()));
            group.1.insert(identity(&endpoint), endpoint);
        }
    }
    let mut spare: Vec<Slice> = Vec::new();
    let mut kept: Vec<(Slice, Vec<Value>)> = Vec::new();
    for slice in existing {
        let group = wanted.values_mut().find(|(ports, _)| same_ports(ports, &slice.ports));
        let Some((_, group)) = group else {
            spare.push(slice);
            continue;
        };
        let endpoints: Vec<Value> =
            slice.endpoints.iter().filter_map(|endpoint| group.remove(&identity(endpoint))).collect();
        kept.push((slice, endpoints));
    }
    let mut fresh: Vec<(Vec<Value>, Vec<Value>)> = Vec::new();
    for (ports, group) in wanted.into_values() {
        let mut rest: Vec<Value> = group.into_values().collect();
        for (slice, endpoints) in &mut kept {
            if same_ports(&ports, &slice.ports) {
                let room = MOST.saturating_sub(endpoints.len()).min(rest.len());
                endpoints.extend(rest.drain(..room));
            }
        }
        while !rest.is_empty() {
            let more = rest.split_off(rest.len().min(MOST));
            fresh.push((ports.clone(), rest));
            rest = more;
        }
    }
    // A Service without endpoints keeps one empty slice: it says "none", where no slice says nothing.
    let mut nothing = kept.iter().all(|(_, endpoints)| endpoints.is_empty()) && fresh.is_empty();
    for (slice, endpoints) in kept {
        if endpoints.is_empty() && !nothing {
            spare.push(slice);
        } else {
            nothing = false;
            let ports = slice.ports.clone();
            update(world, slice, labels, ports, endpoints, plan);
        }
    }
    if nothing {
        fresh.push((Vec::new(), Vec::new()));
    }
    let mut spare = spare.into_iter();
    for (ports, endpoints) in fresh {
        match spare.next() {
            Some(slice) => update(world, slice, labels, ports, endpoints, plan),
            None => plan.push(create(world, service, family, labels, ports, endpoints)),
        }
    }
    for slice in spare {
        plan.push(Action::Delete(convert::deletion(world, res::SLICES, &slice.object)));
    }
}

fn endpoints(backend: &Backend, spec: &ServiceSpec, family: &str) -> Option<Value> {
    let ip = backend.ips.iter().find(|ip| is_family(ip, family))?;
    let ready = spec.publish_not_ready_addresses || (backend.ready && !backend.terminating);
    let mut endpoint = json!({
        "addresses": [ip],
        "conditions": {"ready": ready, "serving": backend.ready, "terminating": backend.terminating},
        "targetRef": backend.target,
    });
    if !backend.node.is_empty() {
        endpoint["nodeName"] = json!(backend.node);
    }
    if let Some(zone) = &backend.zone {
        endpoint["zone"] = json!(zone);
    }
    if let Some(hostname) = &backend.hostname {
        endpoint["hostname"] = json!(hostname);
    }
    Some(endpoint)
}

pub(super) fn same_ports(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len() && a.iter().all(|port| b.contains(port))
}

fn labels(service: &Object, spec: &ServiceSpec) -> Map<String, Value> {
    let mut labels = Map::new();
    for (key, value) in &service.header.labels {
        if ![SERVICE_NAME, MANAGED_BY, HEADLESS].contains(&key.as_str()) {
            labels.insert(key.clone(), json!(value));
        }
    }
    labels.insert(SERVICE_NAME.to_owned(), json!(service.header.name));
    labels.insert(MANAGED_BY.to_owned(), json!(MANAGER));
    if spec.is_headless() {
        labels.insert(HEADLESS.to_owned(), json!(""));
    }
    labels
}

fn update(
    world: &World,
    slice: Slice,
    labels: &Map<String, Value>,
    ports: Vec<Value>,
    endpoints: Vec<Value>,
    plan: &mut Plan,
) {
    let known = slice.document.get("metadata.labels").and_then(Value::as_object);
    if known == Some(labels) && slice.endpoints == endpoints && same_ports(&slice.ports, &ports) {
        return;
    }
    let mut document = slice.document;
    document.set("metadata.labels", labels.clone());
    document.set("endpoints", endpoints);
    document.set("ports", ports);
    let of = world.catalog().get(res::SLICES).gvr.clone();
    plan.push(Action::Update { of, subresource: None, object: document });
}

fn create(
    world: &World,
    service: &Object,
    family: &str,
    labels: &Map<String, Value>,
    ports: Vec<Value>,
    endpoints: Vec<Value>,
) -> Action {
    let gvk = &world.catalog().get(res::SERVICES).gvk;
    let namespace = service.header.namespace.as_deref().unwrap_or_default();
    let value = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "generateName": format!("{}-", service.header.name), "namespace": namespace, "labels": labels,
            "ownerReferences": [convert::controller_reference(gvk, service)],
        },
        "addressType": family, "endpoints": endpoints, "ports": ports,
    });
    Action::Create {
        of: world.catalog().get(res::SLICES).gvr.clone(),
        namespace: Some(namespace.to_owned()),
        object: Document::from_value(value).unwrap_or_default(),
    }
}
