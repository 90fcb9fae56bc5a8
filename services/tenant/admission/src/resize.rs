//! PodResizeValidator: a pod that runs is not resized beyond what its node could ever give, nor on a node whose
//! system cannot resize.
//!
//! Not here: whether a pod may be resized at all (`tenant-registry`), and whether it fits beside the node's
//! other pods, which the kubelet decides and may defer.

use api_machinery::{Cause, Document, Gvr, Quantity, Status};
use async_trait::async_trait;

use crate::attributes::{Attributes, Operation, SideWrite};
use crate::chain::Admission;
use crate::resources;

pub(crate) struct PodResizeValidator;

const NODES: Gvr = Gvr::core("nodes");
const SYSTEM: &str = "kubernetes.io/os";

#[async_trait]
impl Admission for PodResizeValidator {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        old: Option<&Document>,
    ) -> Result<Vec<SideWrite>, Status> {
        let resizes = attributes.is_under("", "pods")
            && attributes.subresource == "resize"
            && attributes.operation == Operation::Update;
        let (Some(pod), Some(old)) = (object.filter(|_| resizes), old) else { return Ok(Vec::new()) };
        let name = pod.get_str("spec.nodeName").unwrap_or_default();
        if name.is_empty() || pod.get("spec") == old.get("spec") {
            return Ok(Vec::new());
        }
        let Some(node) = attributes.lookup.get(&NODES, None, name) else {
            return Err(attributes.forbidden(format!("node {name:?} not found")));
        };
        let refuse = |why: String, reason: &str| {
            let cause = Cause { reason: reason.to_owned(), ..Cause::default() };
            Err(attributes.forbidden(why).with_cause(cause))
        };
        if let Some(system) = node.header.labels.get(SYSTEM)
            && system.as_str() != "linux"
        {
            let why = format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
            return refuse(why, "UnsupportedPlatform");
        }
        let given = resources::amounts(node.field("status.allocatable").as_ref());
        let wanted = resources::of_pod(pod, "requests");
        let amount = |of: &resources::Amounts, what: &str| of.get(what).copied().unwrap_or(Quantity::ZERO);
        let (cpu, memory) = (
            (amount(&wanted, "cpu"), amount(&given, "cpu")),
            (amount(&wanted, "memory"), amount(&given, "memory")),
        );
        let mut short = Vec::new();
        if cpu.0 > cpu.1 {
            short.push(format!("cpu, requested: {}, allocatable: {}", cpu.0.milli(), cpu.1.milli()));
        }
        if memory.0 > memory.1 {
            let (wanted, given) = (memory.0.value(), memory.1.value());
            short.push(format!("memory, requested: {wanted}, allocatable: {given}"));
        }
        if short.is_empty() {
            return Ok(Vec::new());
        }
        let why = format!("node didn't have enough allocatable resources: {}", short.join("; "));
        refuse(why, "NodeCapacity")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, request};
    use serde_json::json;

    fn pod(node: &str, cpu: &str, memory: &str) -> Document {
        let resources = json!({"requests": {"cpu": cpu, "memory": memory}});
        let spec = json!({"nodeName": node, "containers": [{"name": "c", "resources": resources}]});
        Document::from_value(json!({"metadata": {"name": "p", "namespace": "d"}, "spec": spec}))
            .expect("a pod")
    }

    #[tokio::test]
    async fn a_running_pod_grows_as_far_as_its_node_goes() {
        let mut cluster = Cluster::default();
        for (name, system) in [("small", "linux"), ("other", "windows")] {
            let status = json!({"allocatable": {"cpu": "2", "memory": "1Gi"}});
            let labels = json!({SYSTEM: system});
            cluster.put("v1/nodes", json!({"metadata": {"name": name, "labels": labels}, "status": status}));
        }
        for (subresource, node, cpu, memory, wanted) in [
            ("resize", "small", "2", "1Gi", None),
            (
                "resize",
                "small",
                "2100m",
                "1Gi",
                Some((
                    "node didn't have enough allocatable resources: cpu, requested: 2100, allocatable: 2000",
                    "NodeCapacity",
                )),
            ),
            (
                "resize",
                "small",
                "3",
                "2Gi",
                Some((
                    "cpu, requested: 3000, allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824",
                    "NodeCapacity",
                )),
            ),
            (
                "resize",
                "other",
                "1",
                "1Mi",
                Some((
                    "pod resize is only supported on linux nodes, node \"other\" is \"windows\"",
                    "UnsupportedPlatform",
                )),
            ),
            ("resize", "gone", "1", "1Mi", Some(("node \"gone\" not found", ""))),
            ("resize", "", "9", "9Gi", None),
            ("", "small", "9", "9Gi", None),
        ] {
            let request = request(&cluster, Operation::Update, "v1/pods", subresource, "d", "p");
            let (new, old) = (pod(node, cpu, memory), pod(node, "100m", "1Mi"));
            let answer = PodResizeValidator.validate(&request.attributes(), Some(&new), Some(&old)).await;
            let seen = answer.err().map(|status| {
                let causes = status.details.map(|details| details.causes).unwrap_or_default();
                (status.message, causes.last().map(|cause| cause.reason.clone()).unwrap_or_default())
            });
            match (wanted, seen) {
                (None, None) => {}
                (Some((why, reason)), Some((message, cause))) => {
                    assert!(message.ends_with(why) && cause == reason, "{message} {cause}");
                }
                (wanted, seen) => panic!("{node} {cpu} {memory}: wanted {wanted:?}, got {seen:?}"),
            }
        }
        // What does not change its spec is nobody's resize.
        let request = request(&cluster, Operation::Update, "v1/pods", "resize", "d", "p");
        let same = pod("small", "9", "9Gi");
        let answer = PodResizeValidator.validate(&request.attributes(), Some(&same), Some(&same)).await;
        assert!(answer.is_ok(), "unchanged");
    }
}
