//! The Service `kubernetes` with its ends, made again when somebody deletes it: `kubectl delete all --all`
//! does, and every client inside the cluster depends on it. The first ones come with the cluster.

use std::net::Ipv4Addr;

use api_machinery::Document;
use api_reconcile::{Action, Plan};
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::world::World;

const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";

/// Whose hand writes; see [`crate::identity`].
pub(crate) const API_SERVER: &str = "apiserver";

pub struct ApiService {
    address: Ipv4Addr,
    end: (Ipv4Addr, u16),
}

impl ApiService {
    /// `address` is the Service's, `end` where it leads.
    pub fn new(address: Ipv4Addr, end: (Ipv4Addr, u16)) -> ApiService {
        ApiService { address, end }
    }

    fn parts(&self) -> [(ResourceId, Value); 3] {
        let (end, port) = self.end;
        [
            (
                res::SERVICES,
                json!({"apiVersion": "v1", "kind": "Service",
                    "metadata": {"name": NAME, "namespace": NAMESPACE,
                        "labels": {"component": "apiserver", "provider": "kubernetes"}},
                    "spec": {"clusterIP": self.address, "type": "ClusterIP", "sessionAffinity": "None",
                        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                        "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}]}}),
            ),
            (
                res::ENDPOINTS,
                json!({"apiVersion": "v1", "kind": "Endpoints",
                    "metadata": {"name": NAME, "namespace": NAMESPACE,
                        "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
                    "subsets": [{"addresses": [{"ip": end}],
                        "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]}),
            ),
            (
                res::SLICES,
                json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                    "metadata": {"name": NAME, "namespace": NAMESPACE,
                        "labels": {"kubernetes.io/service-name": NAME}},
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [end], "conditions": {"ready": true}}],
                    "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}),
            ),
        ]
    }
}

impl Controller for ApiService {
    fn name(&self) -> &'static str {
        API_SERVER
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::NAMESPACES, res::SERVICES, res::ENDPOINTS, res::SLICES]
    }
    fn concerns(&mut self, _world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        let header = &change.object.header;
        let ours = match change.of {
            res::NAMESPACES => &*header.name == NAMESPACE,
            _ => &*header.name == NAME && header.namespace.as_deref() == Some(NAMESPACE),
        };
        if ours {
            wake(Key::new(res::NAMESPACES, "", NAMESPACE));
        }
    }
    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        if world.at(key).is_none() {
            return Plan::nothing();
        }
        let missing = self.parts().into_iter().filter(|(of, _)| world.get(*of, NAMESPACE, NAME).is_none());
        let creations = missing.filter_map(|(of, value)| {
            let object = Document::from_value(value)?;
            let of = world.catalog().get(of).gvr.clone();
            Some(Action::Create { of, namespace: Some(NAMESPACE.to_owned()), object })
        });
        Plan::of(creations.collect())
    }
}
