//! Mirrors hand-made Endpoints into EndpointSlices, which is all that proxies read.
//!
//! Only of Services without a selector; what the Endpoints controller writes, `slices` has written too.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api_machinery::{Document, Object};
use api_reconcile::{Action, Plan};
use serde_json::{Map, Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

use super::slices::{MANAGED_BY, SERVICE_NAME, same_ports};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations that speak of the Endpoints object itself.
const OWN_ANNOTATIONS: [&str; 2] =
    ["endpoints.kubernetes.io/last-change-trigger-time", "kubectl.kubernetes.io/last-applied-configuration"];
/// Addresses mirrored of one subset, as upstream; also what one slice may hold.
const MOST: usize = 1000;

#[derive(Default)]
pub struct Mirror;

impl Controller for Mirror {
    fn name(&self) -> &'static str {
        "endpointslicemirroring-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::ENDPOINTS, res::SERVICES, res::SLICES]
    }

    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        let header = &change.object.header;
        let namespace = header.namespace.as_deref().unwrap_or_default();
        match change.of {
            // A Service and its Endpoints share their name.
            res::ENDPOINTS | res::SERVICES => wake(Key::new(res::ENDPOINTS, namespace, &header.name)),
            _ => {
                if is_mirror(change.object)
                    && let Some(service) = header.labels.get(SERVICE_NAME)
                {
                    wake(Key::new(res::ENDPOINTS, namespace, service));
                }
            }
        }
    }

    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let mut mirrors: Vec<&Arc<Object>> = world
            .within(res::SLICES, &key.namespace)
            .filter(|slice| is_mirror(slice) && !world.is_deleting(slice))
            .filter(|slice| slice.header.labels.get(SERVICE_NAME).is_some_and(|name| **name == *key.name))
            .collect();
        let source = world.at(key).filter(|endpoints| {
            let service = world.get(res::SERVICES, &key.namespace, &key.name);
            let unselected = service.is_some_and(|service| {
                convert::map_selector(service.field("spec.selector").as_ref()).is_none()
            });
            unselected && !world.is_deleting(endpoints) && wants_mirror(endpoints)
        });
        let mut plan = Plan::nothing();
        if let Some(endpoints) = source {
            for wanted in wanted_slices(endpoints) {
                let found = mirrors.iter().position(|slice| wanted.fits(slice));
                match found.map(|at| mirrors.swap_remove(at)) {
                    Some(slice) => plan.actions.extend(wanted.update(world, endpoints, slice)),
                    None => plan.push(wanted.create(world, endpoints)),
                }
            }
        }
        for slice in mirrors {
            plan.push(Action::Delete(convert::deletion(world, res::SLICES, slice)));
        }
        plan
    }
}

fn is_mirror(slice: &Object) -> bool {
    slice.header.labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER)
}

fn wants_mirror(endpoints: &Object) -> bool {
    let skipped = endpoints.header.labels.get(SKIP).is_some_and(|value| value == "true");
    let annotations = endpoints.field("metadata.annotations").unwrap_or_default();
    !skipped && annotations.get(LEADER).is_none()
}

struct Wanted {
    family: &'static str,
    ports: Vec<Value>,
    endpoints: Vec<Value>,
}

/// One slice for each family and set of ports; an empty one where there is nothing, which says so.
fn wanted_slices(endpoints: &Object) -> Vec<Wanted> {
    let mut groups: BTreeMap<(&'static str, String), Wanted> = BTreeMap::new();
    let subsets = endpoints.field("subsets").unwrap_or_default();
    for subset in subsets.as_array().into_iter().flatten() {
        let ports: Vec<Value> = subset["ports"].as_array().into_iter().flatten().map(slice_port).collect();
        let lists = [("addresses", true), ("notReadyAddresses", false)].into_iter();
        let addresses = lists.flat_map(|(list, ready)| {
            subset[list].as_array().into_iter().flatten().map(move |address| (address, ready))
        });
        for (address, ready) in addresses.take(MOST) {
            let Some((family, endpoint)) = endpoint(address, ready) else { continue };
            let group = groups.entry((family, json!(ports).to_string())).or_insert_with(|| Wanted {
                family,
                ports: ports.clone(),
                endpoints: Vec::new(),
            });
            if group.endpoints.len() < MOST {
                group.endpoints.push(endpoint);
            }
        }
    }
    if groups.is_empty() {
        return vec![Wanted { family: "IPv4", ports: Vec::new(), endpoints: Vec::new() }];
    }
    groups.into_values().collect()
}

fn slice_port(port: &Value) -> Value {
    let mut made = json!({
        "name": port["name"].as_str().unwrap_or_default(),
        "port": port["port"],
        "protocol": port["protocol"].as_str().unwrap_or("TCP"),
    });
    if let Some(protocol) = port["appProtocol"].as_str() {
        made["appProtocol"] = json!(protocol);
    }
    made
}

fn endpoint(address: &Value, ready: bool) -> Option<(&'static str, Value)> {
    let ip: IpAddr = address["ip"].as_str()?.parse().ok()?;
    let mut made = json!({"addresses": [ip.to_string()], "conditions": {"ready": ready}});
    for name in ["targetRef", "nodeName", "hostname"] {
        if let Some(value) = address.get(name).filter(|value| *value != "" && !value.is_null()) {
            made[name] = value.clone();
        }
    }
    Some((if ip.is_ipv6() { "IPv6" } else { "IPv4" }, made))
}

impl Wanted {
    fn fits(&self, slice: &Object) -> bool {
        let ports = slice.field("ports").unwrap_or_default();
        slice.field("addressType").is_some_and(|family| family == self.family)
            && same_ports(ports.as_array().map_or(&[][..], Vec::as_slice), &self.ports)
    }

    fn update(&self, world: &World, endpoints: &Object, slice: &Arc<Object>) -> Option<Action> {
        let resource = world.catalog().get(res::SLICES);
        let mut document = convert::document(resource, slice)?;
        let (labels, annotations) = labels_and_annotations(endpoints);
        let same = document.get_array("endpoints") == self.endpoints
            && document.get("metadata.labels") == Some(&labels)
            && document.get("metadata.annotations").cloned().unwrap_or_else(|| json!({})) == annotations;
        if same {
            return None;
        }
        document.set("metadata.labels", labels);
        document.set("metadata.annotations", annotations);
        document.set("endpoints", self.endpoints.clone());
        Some(Action::Update { of: resource.gvr.clone(), subresource: None, object: document })
    }

    fn create(&self, world: &World, endpoints: &Object) -> Action {
        let gvk = &world.catalog().get(res::ENDPOINTS).gvk;
        let namespace = endpoints.header.namespace.as_deref().unwrap_or_default();
        let (labels, annotations) = labels_and_annotations(endpoints);
        let value = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "generateName": format!("{}-", endpoints.header.name), "namespace": namespace,
                "labels": labels, "annotations": annotations,
                "ownerReferences": [convert::controller_reference(gvk, endpoints)],
            },
            "addressType": self.family, "endpoints": self.endpoints, "ports": self.ports,
        });
        Action::Create {
            of: world.catalog().get(res::SLICES).gvr.clone(),
            namespace: Some(namespace.to_owned()),
            object: Document::from_value(value).unwrap_or_default(),
        }
    }
}

fn labels_and_annotations(endpoints: &Object) -> (Value, Value) {
    let mut labels: Map<String, Value> =
        endpoints.header.labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    labels.insert(SERVICE_NAME.to_owned(), json!(endpoints.header.name));
    labels.insert(MANAGED_BY.to_owned(), json!(MANAGER));
    let annotations = endpoints.field("metadata.annotations").unwrap_or_default();
    let annotations = annotations.as_object().cloned().unwrap_or_default();
    let kept = annotations.into_iter().filter(|(key, _)| !OWN_ANNOTATIONS.contains(&key.as_str()));
    (labels.into(), Value::Object(kept.collect()))
}
