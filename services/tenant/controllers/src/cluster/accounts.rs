//! What every namespace is given: the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt`.

use api_machinery::{Document, Object};
use api_reconcile::{Action, Plan};
use serde_json::json;

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

fn is_going(world: &World, namespace: &Object) -> bool {
    world.is_deleting(namespace)
        || namespace.field("status.phase").is_some_and(|phase| phase == "Terminating")
}

/// Wakes the namespace that a change is in, or of.
fn wake_namespace(change: &Change<'_>, name: &str, wake: &mut dyn FnMut(Key)) {
    if change.of == res::NAMESPACES {
        wake(Key::of(res::NAMESPACES, change.object));
    } else if &*change.object.header.name == name {
        wake(Key::new(res::NAMESPACES, "", change.object.header.namespace.as_deref().unwrap_or_default()));
    }
}

#[derive(Default)]
pub struct DefaultAccounts;

impl Controller for DefaultAccounts {
    fn name(&self) -> &'static str {
        "service-account-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::NAMESPACES, res::SERVICE_ACCOUNTS]
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        wake_namespace(change, "default", wake);
    }
    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let Some(namespace) = world.at(key) else { return Plan::nothing() };
        if is_going(world, namespace) || world.get(res::SERVICE_ACCOUNTS, &key.name, "default").is_some() {
            return Plan::nothing();
        }
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": &*key.name},
        });
        create(world, res::SERVICE_ACCOUNTS, &key.name, account)
    }
}

pub struct RootCertificates {
    root_ca_pem: String,
}

const ROOT_CA: &str = "kube-root-ca.crt";

impl RootCertificates {
    pub fn new(root_ca_pem: &str) -> RootCertificates {
        RootCertificates { root_ca_pem: root_ca_pem.to_owned() }
    }
}

impl Controller for RootCertificates {
    fn name(&self) -> &'static str {
        "root-ca-cert-publisher"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::NAMESPACES, res::CONFIG_MAPS]
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        wake_namespace(change, ROOT_CA, wake);
    }
    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let Some(namespace) = world.at(key) else { return Plan::nothing() };
        if is_going(world, namespace) || self.root_ca_pem.is_empty() {
            return Plan::nothing();
        }
        let data = json!({"ca.crt": self.root_ca_pem});
        let Some(known) = world.get(res::CONFIG_MAPS, &key.name, ROOT_CA) else {
            let about =
                "The CA that signs this cluster's API server certificate, for clients inside the cluster.";
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": ROOT_CA, "namespace": &*key.name,
                    "annotations": {"kubernetes.io/description": about}},
                "data": data,
            });
            return create(world, res::CONFIG_MAPS, &key.name, map);
        };
        let resource = world.catalog().get(res::CONFIG_MAPS);
        let Some(mut document) = convert::document(resource, known) else { return Plan::nothing() };
        if document.get("data") == Some(&data) {
            return Plan::nothing();
        }
        document.set("data", data);
        document.remove("binaryData");
        Plan::of(vec![Action::Update { of: resource.gvr.clone(), subresource: None, object: document }])
    }
}

fn create(world: &World, of: ResourceId, namespace: &str, value: serde_json::Value) -> Plan {
    let Some(object) = Document::from_value(value) else { return Plan::nothing() };
    let of = world.catalog().get(of).gvr.clone();
    Plan::of(vec![Action::Create { of, namespace: Some(namespace.to_owned()), object }])
}
