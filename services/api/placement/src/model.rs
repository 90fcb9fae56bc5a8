//! Pods and nodes as the rules see them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, Pod, PodSpec, Taint, Toleration, TopologySpreadConstraint,
};

use crate::resources::Resources;

pub type Labels = BTreeMap<String, String>;

/// A host port a pod takes: address (`0.0.0.0` for all), protocol, number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Port {
    pub ip: String,
    pub protocol: String,
    pub port: i32,
}

#[derive(Debug, Clone, Default)]
pub struct PodInfo {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: Labels,
    /// Empty until assigned.
    pub node: String,
    /// `spec.nodeName` as asked for by whoever made the pod is the same field; a scheduler never sees those.
    pub requests: Resources,
    pub scored: Resources,
    pub ports: Vec<Port>,
    pub tolerations: Vec<Toleration>,
    pub node_selector: Labels,
    pub node_affinity: Option<NodeAffinity>,
    pub affinity: Option<Affinity>,
    pub spread: Vec<TopologySpreadConstraint>,
    pub images: Vec<String>,
    pub priority: i32,
    pub may_preempt: bool,
    pub scheduler: String,
    /// Not to be placed before its gates are gone.
    pub gated: bool,
    pub is_deleting: bool,
}

impl PodInfo {
    pub fn of(pod: &Pod) -> PodInfo {
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let affinity = spec.affinity.clone();
        PodInfo {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            node: spec.node_name.clone().unwrap_or_default(),
            requests: Resources::requested_by(spec),
            scored: Resources::scored_for(spec),
            ports: ports(spec),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            node_affinity: affinity.as_ref().and_then(|affinity| affinity.node_affinity.clone()),
            affinity: affinity
                .filter(|affinity| affinity.pod_affinity.is_some() || affinity.pod_anti_affinity.is_some()),
            spread: spec.topology_spread_constraints.clone().unwrap_or_default(),
            images: spec.containers.iter().filter_map(|container| container.image.clone()).collect(),
            priority: spec.priority.unwrap_or(0),
            may_preempt: spec.preemption_policy.as_deref() != Some("Never"),
            scheduler: spec.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".to_owned()),
            gated: spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()),
            is_deleting: pod.metadata.deletion_timestamp.is_some(),
        }
    }
    pub(crate) fn has_required_anti_affinity(&self) -> bool {
        self.affinity
            .as_ref()
            .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
            .and_then(|anti| anti.required_during_scheduling_ignored_during_execution.as_ref())
            .is_some_and(|terms| !terms.is_empty())
    }
}

fn ports(spec: &PodSpec) -> Vec<Port> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let ip = port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned());
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            Some(Port { ip, protocol, port: number })
        })
        .collect()
}

#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    pub name: String,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Resources,
    /// Size in bytes by every name of the image.
    pub images: HashMap<String, i64>,
    /// On this node, or assumed to be on it soon.
    pub pods: Vec<Arc<PodInfo>>,
    pub requested: Resources,
    pub scored: Resources,
}

impl NodeInfo {
    pub fn of(node: &Node) -> NodeInfo {
        let spec = node.spec.clone().unwrap_or_default();
        let status = node.status.clone().unwrap_or_default();
        let allocatable = status.allocatable.or(status.capacity).unwrap_or_default();
        let images = status.images.into_iter().flatten().flat_map(|image| {
            let size = image.size_bytes.unwrap_or(0);
            image.names.into_iter().flatten().map(move |name| (name, size))
        });
        NodeInfo {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or(false),
            allocatable: Resources::from_list(&allocatable),
            images: images.collect(),
            ..NodeInfo::default()
        }
    }
    /// The node as now described, with the pods of the node as known.
    pub fn with_pods_of(mut self, known: NodeInfo) -> NodeInfo {
        self.pods = known.pods;
        self.requested = known.requested;
        self.scored = known.scored;
        self
    }
    pub fn add(&mut self, pod: Arc<PodInfo>) {
        self.requested.add(&pod.requests);
        self.scored.add(&pod.scored);
        self.pods.push(pod);
    }
    pub fn remove(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let at = self.pods.iter().position(|pod| pod.uid == uid)?;
        let pod = self.pods.swap_remove(at);
        self.requested.subtract(&pod.requests);
        self.scored.subtract(&pod.scored);
        Some(pod)
    }
}

/// The cluster as last observed, kept up to date by the scheduler.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub nodes: BTreeMap<String, NodeInfo>,
    /// Labels of namespaces, for affinity terms that select by them.
    pub namespaces: BTreeMap<String, Labels>,
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use serde_json::{Value, json};

    /// A pod in namespace `d` with this spec; `labels` and `priority` may stand in it too.
    pub fn pod(name: &str, mut spec: Value) -> PodInfo {
        let labels = spec.as_object_mut().and_then(|spec| spec.remove("labels")).unwrap_or(json!({}));
        if spec.get("containers").is_none() {
            spec["containers"] = json!([]);
        }
        let value = json!({"metadata": {"name": name, "namespace": "d", "uid": name, "labels": labels}, "spec": spec});
        PodInfo::of(&serde_json::from_value(value).unwrap())
    }
    /// `labels`, `taints`, `unschedulable`, `allocatable`, `images`; roomy unless it says otherwise.
    pub fn node(name: &str, what: Value) -> NodeInfo {
        let mut labels = what.get("labels").cloned().unwrap_or(json!({}));
        labels["kubernetes.io/hostname"] = json!(name);
        let room = json!({"cpu": "100", "memory": "100Gi", "pods": "110"});
        let value = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": what.get("taints").cloned().unwrap_or(json!([])),
                "unschedulable": what.get("unschedulable").cloned().unwrap_or(json!(false))},
            "status": {"allocatable": what.get("allocatable").cloned().unwrap_or(room),
                "images": what.get("images").cloned().unwrap_or(json!([]))},
        });
        NodeInfo::of(&serde_json::from_value(value).unwrap())
    }
    pub fn snapshot(nodes: Vec<NodeInfo>) -> Snapshot {
        let nodes = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        Snapshot { nodes, namespaces: BTreeMap::new() }
    }
}
