//! Nodes and the kubelets that speak for them: a new node is tainted until it is ready, and a kubelet touches
//! only what is its own.

use api_machinery::{Document, Gvr, Status};
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;

/// Keeps pods off a node until the controllers have seen it ready.
pub(crate) struct TaintNewNodes;

#[async_trait]
impl Admission for TaintNewNodes {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<(), Status> {
        let Some(node) =
            object.filter(|_| attributes.is("", "nodes") && attributes.operation == Operation::Create)
        else {
            return Ok(());
        };
        let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
        let taints = node.object_mut("spec").entry("taints").or_insert_with(|| json!([]));
        if let Value::Array(taints) = taints {
            let same = |one: &Value| one["key"] == taint["key"] && one["effect"] == taint["effect"];
            if !taints.iter().any(same) {
                taints.push(taint);
            }
        }
        Ok(())
    }
}

/// Tells a pod, by labels, which zone and region it landed in.
pub(crate) struct PodTopologyLabels;

const NODES: Gvr = Gvr::core("nodes");
const TOPOLOGY: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

#[async_trait]
impl Admission for PodTopologyLabels {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        _old: Option<&Document>,
    ) -> Result<(), Status> {
        let creates = attributes.is_under("", "pods") && attributes.operation == Operation::Create;
        let Some(object) = object.filter(|_| creates) else { return Ok(()) };
        let node = match attributes.subresource {
            "" => object.get_str("spec.nodeName"),
            "binding" => object.get_str("target.name"),
            _ => None,
        };
        let Some(node) = node.filter(|node| !node.is_empty()) else { return Ok(()) };
        let Some(node) = attributes.lookup.get(&NODES, None, node) else { return Ok(()) };
        for key in TOPOLOGY {
            if let Some(value) = node.header.labels.get(key) {
                object.object_mut("metadata.labels").insert(key.to_owned(), value.as_str().into());
            }
        }
        Ok(())
    }
}

pub(crate) struct NodeRestriction;

const PODS: Gvr = Gvr::core("pods");
const NODES_GROUP: &str = "system:nodes";
const NODE_USER: &str = "system:node:";
const MIRROR: &str = "kubernetes.io/config.mirror";

#[async_trait]
impl Admission for NodeRestriction {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Document>,
        old: Option<&Document>,
    ) -> Result<(), Status> {
        if !attributes.user.is_in(NODES_GROUP) {
            return Ok(());
        }
        let node = attributes.user.name.strip_prefix(NODE_USER).unwrap_or_default();
        if node.is_empty() {
            let name = &attributes.user.name;
            return Err(attributes.forbidden(format!("could not determine node from user {name:?}")));
        }
        let object = object.as_deref();
        match (&*attributes.gvr.group, &*attributes.gvr.resource) {
            ("", "pods") => pods(attributes, node, object, old),
            ("", "nodes") => nodes(attributes, node, object, old),
            ("", "serviceaccounts") if attributes.subresource == "token" => token(attributes, node, object),
            ("coordination.k8s.io", "leases") => {
                if attributes.namespace != "kube-node-lease" {
                    return Err(attributes
                        .forbidden("can only access leases in the \"kube-node-lease\" system namespace"));
                }
                if attributes.name != node {
                    return Err(attributes
                        .forbidden("can only access node lease with the same name as the requesting node"));
                }
                Ok(())
            }
            ("storage.k8s.io", "csinodes") if attributes.name != node => {
                Err(attributes.forbidden("can only access CSINode with the same name as the requesting node"))
            }
            ("resource.k8s.io", "resourceslices") if attributes.operation == Operation::Create => {
                // Which slice a node changes later is the authorizer's to look up; what it creates, only we see.
                let own = object.and_then(|slice| slice.get_str("spec.nodeName")) == Some(node);
                if own {
                    return Ok(());
                }
                Err(attributes
                    .forbidden("can only create ResourceSlice with the same NodeName as the requesting node"))
            }
            ("", "persistentvolumeclaims") if attributes.subresource != "status" => {
                Err(attributes.forbidden("may only update PVC status"))
            }
            _ => Ok(()),
        }
    }

    async fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Document>,
        _old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        Ok(Vec::new())
    }
}

fn bound_to(pod: &Document) -> &str {
    pod.get_str("spec.nodeName").unwrap_or_default()
}

fn pods(
    attributes: &Attributes<'_>,
    node: &str,
    object: Option<&Document>,
    old: Option<&Document>,
) -> Result<(), Status> {
    match (attributes.subresource, attributes.operation) {
        ("", Operation::Create) => {
            let Some(pod) = object else { return Ok(()) };
            if pod.annotation(MIRROR).is_none() {
                return Err(attributes.forbidden(format!(
                    "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
                )));
            }
            if bound_to(pod) != node {
                return Err(attributes.forbidden(format!(
                    "node {node:?} can only create pods with spec.nodeName set to itself"
                )));
            }
            match &pod.owners()[..] {
                [owner] if owner.kind == "Node" && owner.name == node => {}
                _ => {
                    return Err(attributes.forbidden(format!(
                        "node {node:?} can only create pods with an owner reference set to itself"
                    )));
                }
            }
            for (path, what) in
                [("spec.serviceAccountName", "serviceaccounts"), ("spec.imagePullSecrets", "secrets")]
            {
                let refers = match pod.get(path) {
                    Some(Value::String(text)) => !text.is_empty(),
                    Some(Value::Array(items)) => !items.is_empty(),
                    _ => false,
                };
                if refers {
                    return Err(attributes
                        .forbidden(format!("node {node:?} can not create pods that reference {what}")));
                }
            }
            if let Some(what) = reference(pod) {
                return Err(
                    attributes.forbidden(format!("node {node:?} can not create pods that reference {what}"))
                );
            }
            Ok(())
        }
        ("", Operation::Delete) => {
            if old.is_some_and(|pod| bound_to(pod) != node) {
                return Err(attributes.forbidden(format!(
                    "node {node:?} can only delete pods with spec.nodeName set to itself"
                )));
            }
            Ok(())
        }
        ("", operation) => Err(attributes.forbidden(format!(
            "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
            operation.as_str()
        ))),
        ("status", _) => {
            if old.is_some_and(|pod| bound_to(pod) != node) {
                return Err(attributes.forbidden(format!(
                    "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
                )));
            }
            let labels = |document: Option<&Document>| document.map(Document::labels).unwrap_or_default();
            if labels(object) != labels(old) {
                return Err(
                    attributes.forbidden(format!("node {node:?} cannot update labels through pod status"))
                );
            }
            Ok(())
        }
        ("eviction", _) => {
            let pod = attributes.lookup.get(&PODS, Some(attributes.namespace), attributes.name);
            // A pod that is bound to nobody is not this node's either; a missing one is a 404 further on.
            if pod.is_some_and(|pod| pod.field("spec.nodeName").is_none_or(|bound| bound != node)) {
                return Err(attributes
                    .forbidden(format!("node {node} can only evict pods with spec.nodeName set to itself")));
            }
            Ok(())
        }
        (other, _) => Err(attributes.forbidden(format!(
            "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
        ))),
    }
}

/// What else of the cluster's a pod uses, if anything: a mirror pod is a file on its node and may use nothing.
fn reference(pod: &Document) -> Option<&'static str> {
    for volume in pod.get_array("spec.volumes") {
        for (source, what) in [
            ("secret", "secrets"),
            ("configMap", "configmaps"),
            ("persistentVolumeClaim", "persistentvolumeclaims"),
            ("ephemeral", "persistentvolumeclaims"),
        ] {
            if volume.get(source).is_some_and(|source| !source.is_null()) {
                return Some(what);
            }
        }
        let projected = volume.pointer("/projected/sources").and_then(Value::as_array);
        for source in projected.into_iter().flatten() {
            for (kind, what) in [
                ("secret", "secrets"),
                ("configMap", "configmaps"),
                ("serviceAccountToken", "serviceaccounts"),
                ("clusterTrustBundle", "clustertrustbundles"),
                ("podCertificate", "podcertificaterequests"),
            ] {
                if source.get(kind).is_some_and(|source| !source.is_null()) {
                    return Some(what);
                }
            }
        }
        // Drivers with a secret of their own: cephfs, rbd, iscsi, csi, azureFile and their kin.
        let drivers = volume.as_object().into_iter().flat_map(|volume| volume.values());
        for driver in drivers {
            for name in ["secretRef", "nodePublishSecretRef", "secretName"] {
                if driver.get(name).is_some_and(|secret| !secret.is_null()) {
                    return Some("secrets");
                }
            }
        }
    }
    for list in ["spec.containers", "spec.initContainers", "spec.ephemeralContainers"] {
        for container in pod.get_array(list) {
            let items = |name: &str| container.get(name).and_then(Value::as_array).into_iter().flatten();
            let all = items("envFrom").chain(items("env").filter_map(|one| one.get("valueFrom")));
            for source in all {
                for (kind, what) in [
                    ("secretRef", "secrets"),
                    ("secretKeyRef", "secrets"),
                    ("configMapRef", "configmaps"),
                    ("configMapKeyRef", "configmaps"),
                ] {
                    if source.get(kind).is_some_and(|source| !source.is_null()) {
                        return Some(what);
                    }
                }
            }
        }
    }
    (!pod.get_array("spec.resourceClaims").is_empty()).then_some("resourceclaims")
}

/// Labels under these domains are the kubelet's to set; others of kubernetes.io are not.
const OWN_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

fn may_label(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return true };
    let system = |suffix: &str| domain == suffix || domain.ends_with(&format!(".{suffix}"));
    if !system("kubernetes.io") && !system("k8s.io") {
        return true;
    }
    OWN_LABELS.contains(&key) || system("kubelet.kubernetes.io") || system("node.kubernetes.io")
}

fn nodes(
    attributes: &Attributes<'_>,
    node: &str,
    object: Option<&Document>,
    old: Option<&Document>,
) -> Result<(), Status> {
    let requested =
        if attributes.name.is_empty() { object.map_or("", Document::name) } else { attributes.name };
    if requested != node {
        return Err(
            attributes.forbidden(format!("node {node:?} is not allowed to modify node {requested:?}"))
        );
    }
    let Some(new) = object else { return Ok(()) };
    let labels = new.labels();
    let before = old.map(Document::labels).unwrap_or_default();
    let restricted = |key: &str| {
        key.split_once('/').is_some_and(|(domain, _)| {
            domain == "node-restriction.kubernetes.io" || domain.ends_with(".node-restriction.kubernetes.io")
        })
    };
    let changed: Vec<&str> = labels
        .keys()
        .chain(before.keys())
        .filter(|key| labels.get(*key) != before.get(*key))
        .filter(|key| restricted(key) || !may_label(key))
        .map(String::as_str)
        .collect();
    if !changed.is_empty() {
        let all = changed.join(", ");
        return Err(attributes.forbidden(match attributes.operation {
            Operation::Create => format!("node {node:?} is not allowed to set the following labels: {all}"),
            _ => format!("is not allowed to modify labels: {all}"),
        }));
    }
    if attributes.operation == Operation::Update
        && let Some(old) = old
    {
        if attributes.subresource.is_empty() && new.get("spec.taints") != old.get("spec.taints") {
            return Err(attributes.forbidden(format!("node {node:?} is not allowed to modify taints")));
        }
        if new.owners() != old.owners() {
            return Err(
                attributes.forbidden(format!("node {node:?} is not allowed to modify ownerReferences"))
            );
        }
    }
    Ok(())
}

/// A node gets tokens for its pods, bound to them.
fn token(attributes: &Attributes<'_>, node: &str, object: Option<&Document>) -> Result<(), Status> {
    let Some(request) = object else { return Ok(()) };
    let text = |path: &str| request.get_str(path).unwrap_or_default();
    if text("spec.boundObjectRef.kind") != "Pod" || text("spec.boundObjectRef.name").is_empty() {
        return Err(attributes.forbidden("node requested token not bound to a pod"));
    }
    let uid = text("spec.boundObjectRef.uid");
    if uid.is_empty() {
        return Err(attributes.forbidden("node requested token with a pod binding without a uid"));
    }
    let name = text("spec.boundObjectRef.name");
    let Some(pod) = attributes.lookup.get(&PODS, Some(attributes.namespace), name) else {
        return Err(attributes.forbidden(format!("pod {name:?} not found")));
    };
    if pod.header.uid.to_string() != uid {
        return Err(attributes.forbidden(format!("the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated")));
    }
    if pod.field("spec.nodeName").is_none_or(|bound| bound != node) {
        return Err(attributes.forbidden("node requested token bound to a pod scheduled on a different node"));
    }
    Ok(())
}
