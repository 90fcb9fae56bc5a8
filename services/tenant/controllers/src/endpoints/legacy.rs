//! Endpoints, the older form: one object per Service, cut off at a thousand addresses.

use std::collections::BTreeMap;

use api_machinery::Document;
use api_reconcile::{Action, Plan};
use serde_json::{Map, Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

use super::{Backend, Selectors, ServiceSpec, backends, is_family};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const HEADLESS: &str = "service.kubernetes.io/headless";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MOST: usize = 1000;

#[derive(Default)]
pub struct LegacyEndpoints {
    selectors: Selectors,
}

impl Controller for LegacyEndpoints {
    fn name(&self) -> &'static str {
        "endpoint-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::SERVICES, res::PODS, res::ENDPOINTS]
    }

    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == res::ENDPOINTS {
            let namespace = change.object.header.namespace.as_deref().unwrap_or_default();
            wake(Key::new(res::SERVICES, namespace, &change.object.header.name));
            return;
        }
        self.selectors.concerns(change, wake);
    }

    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let known = world.get(res::ENDPOINTS, &key.namespace, &key.name);
        let Some(service) = world.at(key) else {
            // Only what this controller made goes with its Service.
            let ours = known
                .filter(|known| known.header.labels.contains_key(MANAGED_BY) && !world.is_deleting(known));
            let delete = ours.map(|known| Action::Delete(convert::deletion(world, res::ENDPOINTS, known)));
            return Plan::of(delete.into_iter().collect());
        };
        let spec = ServiceSpec::of(service);
        if world.is_deleting(service) {
            return Plan::nothing();
        }
        let Some(mut backends) = backends(world, service, &spec) else { return Plan::nothing() };
        backends.retain(|backend| spec.publish_not_ready_addresses || !backend.terminating);
        let over = backends.len() > MOST;
        if over {
            backends.sort_by_key(|backend| !backend.ready);
            backends.truncate(MOST);
        }
        let subsets = subsets(&backends, &spec);
        let mut labels: Map<String, Value> =
            service.header.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        labels.insert(MANAGED_BY.to_owned(), json!("endpoint-controller"));
        labels.remove(HEADLESS);
        if spec.is_headless() {
            labels.insert(HEADLESS.to_owned(), json!(""));
        }
        let resource = world.catalog().get(res::ENDPOINTS);
        let of = resource.gvr.clone();
        let mut document = match known.map(|known| convert::document(resource, known)) {
            Some(Some(document)) => document,
            Some(None) => return Plan::nothing(),
            None => Document::from_value(json!({
                "apiVersion": "v1", "kind": "Endpoints",
                "metadata": {"name": &*key.name, "namespace": &*key.namespace},
            }))
            .unwrap_or_default(),
        };
        let same = document.get_array("subsets") == subsets
            && document.get("metadata.labels").and_then(Value::as_object) == Some(&labels)
            && document.annotation(OVER_CAPACITY).is_some() == over;
        if known.is_some() && same {
            return Plan::nothing();
        }
        document.set("metadata.labels", labels);
        document.set("subsets", subsets);
        let annotations = document.object_mut("metadata.annotations");
        if over {
            annotations.insert(OVER_CAPACITY.to_owned(), json!("truncated"));
        } else {
            annotations.remove(OVER_CAPACITY);
        }
        if annotations.is_empty() {
            document.remove("metadata.annotations");
        }
        let action = match known {
            Some(_) => Action::Update { of, subresource: None, object: document },
            None => Action::Create { of, namespace: Some(key.namespace.to_string()), object: document },
        };
        Plan::of(vec![action])
    }
}

/// Ports, addresses that are ready, and those that are not.
type Group = (Vec<Value>, Vec<Value>, Vec<Value>);

fn subsets(backends: &[Backend], spec: &ServiceSpec) -> Vec<Value> {
    let families = spec.families();
    let family = families.first().copied().unwrap_or("IPv4");
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for backend in backends {
        let Some(ip) = backend.ips.iter().find(|ip| is_family(ip, family)) else { continue };
        let mut address = json!({"ip": ip, "targetRef": backend.target});
        if !backend.node.is_empty() {
            address["nodeName"] = json!(backend.node);
        }
        if let Some(hostname) = &backend.hostname {
            address["hostname"] = json!(hostname);
        }
        let mut ports = backend.ports.clone();
        for port in &mut ports {
            // Here an empty name is left out, in slices it is written.
            if port["name"] == ""
                && let Some(port) = port.as_object_mut()
            {
                port.remove("name");
            }
        }
        ports.sort_by_key(ToString::to_string);
        let group = groups.entry(json!(ports).to_string()).or_insert_with(|| (ports, Vec::new(), Vec::new()));
        if backend.ready || spec.publish_not_ready_addresses {
            group.1.push(address);
        } else {
            group.2.push(address);
        }
    }
    let mut subsets = Vec::new();
    for (ports, mut ready, mut unready) in groups.into_values() {
        ready.sort_by_key(|address| address["ip"].to_string());
        unready.sort_by_key(|address| address["ip"].to_string());
        let mut subset = Map::new();
        for (field, list) in [("addresses", ready), ("notReadyAddresses", unready), ("ports", ports)] {
            if !list.is_empty() {
                subset.insert(field.to_owned(), Value::Array(list));
            }
        }
        subsets.push(Value::Object(subset));
    }
    subsets
}
