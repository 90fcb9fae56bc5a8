//! What has to happen to the balancer of a Service. Pure.
//!
//! The rules are those of upstream's service controller (`k8s.io/cloud-provider/controllers/service`) as its
//! documentation has them: who wants a balancer, what its finalizer protects, which nodes are targets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api_machinery::Object;
use base_ids::TenantId;
use cloud_interface::{Balancer, BalancerSpec, ClientToken, HealthCheck, Listener, Protocol, Tags, Target};
use serde_json::{Value, json};

use crate::model::NodeView;
use crate::pools::TAG_CLUSTER;

pub(crate) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Nodes that carry it are no targets.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// What the cluster autoscaler puts on nodes it is about to remove.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// The kubelet: what a balancer of UDP ports alone can ask.
const KUBELET_PORT: u16 = 10_250;

/// A Service as far as it matters here.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServiceView {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub revision: u64,
    pub finalizers: Vec<String>,
    deleting: bool,
    spec: Value,
    annotations: Value,
    pub balancer_status: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// It is to have a balancer.
    Balancer,
    /// It had one, and must not go before that is gone.
    Cleanup,
    Nothing,
}

impl ServiceView {
    pub(crate) fn of(object: &Object) -> ServiceView {
        ServiceView {
            namespace: object.header.namespace.as_deref().unwrap_or_default().to_owned(),
            name: object.header.name.to_string(),
            uid: object.header.uid.to_string(),
            revision: object.header.revision,
            finalizers: object.header.finalizers.iter().map(ToString::to_string).collect(),
            deleting: object.header.deleting_since.is_some(),
            spec: object.field("spec").unwrap_or_default(),
            annotations: object.field("metadata.annotations").unwrap_or_default(),
            balancer_status: object.field("status.loadBalancer").unwrap_or_default(),
        }
    }

    /// `namespace/name`
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
    pub(crate) fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|one| one == FINALIZER)
    }

    /// A class is somebody else's, always: what they do with it is not ours to undo.
    pub(crate) fn need(&self) -> Need {
        let wants = self.spec["type"] == "LoadBalancer" && self.spec["loadBalancerClass"].is_null();
        match (wants && !self.deleting, self.has_finalizer()) {
            (true, _) => Need::Balancer,
            (false, true) => Need::Cleanup,
            (false, false) => Need::Nothing,
        }
    }

    /// Its balancer's client token: one Service, one balancer.
    pub(crate) fn token(&self) -> Option<ClientToken> {
        self.uid.parse().ok()
    }

    /// The balancer it asks for; the error is for whoever wrote the Service.
    pub(crate) fn spec(
        &self,
        cluster: TenantId,
        token: ClientToken,
        targets: Vec<Target>,
    ) -> Result<BalancerSpec, String> {
        let mut listeners = Vec::new();
        for port in self.spec["ports"].as_array().into_iter().flatten() {
            let number = |field: &str| port[field].as_u64().and_then(|one| u16::try_from(one).ok());
            let Some(listen) = number("port").filter(|port| *port > 0) else { continue };
            let Some(node_port) = number("nodePort").filter(|port| *port > 0) else {
                return Err(format!(
                    "port {listen} has no node port, which this provider's balancers need: \
                     set allocateLoadBalancerNodePorts, or nodePort"
                ));
            };
            let protocol = match port["protocol"].as_str() {
                Some("UDP") => Protocol::Udp,
                Some("TCP") | None => Protocol::Tcp,
                Some(other) => return Err(format!("balancers carry TCP and UDP, not {other}")),
            };
            listeners.push(Listener { port: listen, protocol, node_port });
        }
        if listeners.is_empty() {
            return Err("requested load balancer with no ports".to_owned());
        }
        let local = self.spec["externalTrafficPolicy"] == "Local";
        let health_port = self.spec["healthCheckNodePort"].as_u64().and_then(|one| u16::try_from(one).ok());
        let (port, http_path) = match health_port.filter(|port| local && *port > 0) {
            // Every node answers there; 200 only where the Service has an endpoint.
            Some(port) => (port, Some("/healthz".to_owned())),
            None => {
                let tcp = listeners.iter().find(|one| one.protocol == Protocol::Tcp);
                (tcp.map_or(KUBELET_PORT, |one| one.node_port), None)
            }
        };
        let tags: Tags =
            [(TAG_CLUSTER.to_owned(), cluster.to_string()), ("kubernetes-service".to_owned(), self.key())]
                .into();
        let wanted = self.spec["loadBalancerIP"].as_str().filter(|text| !text.is_empty());
        let wanted_address = match wanted.map(str::parse) {
            None => None,
            Some(Ok(address)) => Some(address),
            Some(Err(_)) => {
                return Err(format!("{:?} is not an IP address", wanted.unwrap_or_default()));
            }
        };
        Ok(BalancerSpec {
            cluster,
            client_token: token,
            name: self.key(),
            listeners,
            targets,
            source_ranges: self.source_ranges(),
            health_check: HealthCheck {
                port,
                http_path,
                interval_ms: 2000,
                timeout_ms: 1000,
                unhealthy_after: 2,
                healthy_after: 1,
            },
            tags,
            wanted_address,
        })
    }

    /// The field, or before there was one the annotation; everybody's range says nothing.
    fn source_ranges(&self) -> Vec<String> {
        let field: Vec<String> = self.spec["loadBalancerSourceRanges"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| Some(one.as_str()?.trim().to_owned()))
            .collect();
        let ranges = match field.is_empty() {
            false => field,
            true => {
                let text = self.annotations[SOURCE_RANGES].as_str().unwrap_or_default();
                text.split(',').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty()).collect()
            }
        };
        if ranges == ["0.0.0.0/0"] { Vec::new() } else { ranges }
    }
}

/// The nodes a balancer sends to. `leaving` are those whose machines go.
pub(crate) fn targets(
    nodes: &BTreeMap<String, NodeView>,
    leaving: &dyn Fn(&str) -> bool,
    machine_of: &dyn Fn(&NodeView) -> Option<String>,
) -> Vec<Target> {
    let fits = |node: &&NodeView| {
        !node.deleting
            && !node.labels.contains_key(EXCLUDED)
            && !node.taints.iter().any(|taint| taint.key == TO_BE_DELETED)
            && !leaving(&node.name)
    };
    let target = |node: &NodeView| {
        Some(Target { name: node.name.clone(), address: node.internal_ip?, machine_id: machine_of(node) })
    };
    nodes.values().filter(fits).filter_map(target).collect()
}

/// `status.loadBalancer` of a Service with this balancer. Who connects to its address from inside the cluster
/// may be answered there, so an address is a VIP, which is what the API makes of it when nothing is said.
pub(crate) fn balancer_status(balancer: &Balancer) -> Value {
    let address = |ip: &IpAddr| json!({"ip": ip.to_string(), "ipMode": "VIP"});
    let ingress: Vec<Value> = match &balancer.hostname {
        Some(hostname) if balancer.addresses.is_empty() => vec![json!({"hostname": hostname})],
        _ => balancer.addresses.iter().map(address).collect(),
    };
    match ingress.is_empty() {
        true => json!({}),
        false => json!({"ingress": ingress}),
    }
}

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
