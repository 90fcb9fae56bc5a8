//! What controllers read of a pod, and how they make one.

use api_machinery::{Document, Gvk, Object};
use base_clock::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::convert::{controller_reference, seconds_between};

/// The few fields that decide anything; everything else of a pod is skipped unparsed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodView {
    pub metadata: PodMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodMeta {
    pub annotations: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub node_name: Option<String>,
    pub hostname: Option<String>,
    pub subdomain: Option<String>,
    pub restart_policy: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatus {
    pub phase: Option<String>,
    pub reason: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub pod_ips: Option<Vec<PodIp>>,
    pub conditions: Option<Vec<PodCondition>>,
    pub container_statuses: Option<Vec<ContainerStatus>>,
    pub init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodIp {
    pub ip: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: Option<String>,
    pub last_transition_time: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContainerStatus {
    pub name: String,
    pub restart_count: i64,
    pub state: Value,
}

impl PodView {
    /// A pod that cannot be read counts as one that has no status yet.
    pub fn of(pod: &Object) -> PodView {
        serde_json::from_slice(pod.body()).unwrap_or_default()
    }
    pub fn phase(&self) -> &str {
        self.status.phase.as_deref().unwrap_or("Pending")
    }
    pub fn is_over(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }
    pub fn node(&self) -> &str {
        self.spec.node_name.as_deref().unwrap_or_default()
    }
    /// All addresses, the main one first.
    pub fn ips(&self) -> Vec<String> {
        let listed = self.status.pod_ips.iter().flatten().map(|one| one.ip.clone());
        let ips: Vec<String> = listed.filter(|ip| !ip.is_empty()).collect();
        if ips.is_empty() {
            self.status.pod_ip.clone().filter(|ip| !ip.is_empty()).into_iter().collect()
        } else {
            ips
        }
    }
    pub fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().flatten().find(|condition| condition.kind == kind)
    }
    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| ready.status == "True")
    }
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.condition("Ready").filter(|ready| ready.status == "True")?.last_transition_time
    }
    /// Ready for `min_ready_seconds`: `Ok`, or how many seconds are left; `Err(None)` when it isn't ready.
    pub fn available(&self, min_ready_seconds: i64, now: Timestamp) -> Result<(), Option<i64>> {
        if !self.is_ready() {
            return Err(None);
        }
        if min_ready_seconds <= 0 {
            return Ok(());
        }
        let Some(since) = self.ready_since() else { return Err(None) };
        let left = min_ready_seconds - seconds_between(since, now);
        if left <= 0 { Ok(()) } else { Err(Some(left)) }
    }
    pub fn restarts(&self) -> i64 {
        let statuses = self.status.container_statuses.iter().flatten();
        statuses.map(|status| status.restart_count).max().unwrap_or(0)
    }
    pub fn deletion_cost(&self) -> i32 {
        let cost = self.metadata.annotations.as_ref();
        let cost = cost.and_then(|all| all.get("controller.kubernetes.io/pod-deletion-cost"));
        cost.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// A pod as `template` (a PodTemplateSpec) says, controlled by `owner`. The API names it.
pub(crate) fn from_template(template: Option<&Value>, gvk: &Gvk, owner: &Object) -> Document {
    let empty = Value::Null;
    let template = template.unwrap_or(&empty);
    let mut metadata = serde_json::Map::new();
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template["metadata"].get(field).filter(|value| !value.is_null()) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    metadata.insert("generateName".to_owned(), json!(format!("{}-", owner.header.name)));
    metadata.insert("namespace".to_owned(), json!(owner.header.namespace));
    metadata.insert("ownerReferences".to_owned(), json!([controller_reference(gvk, owner)]));
    let mut pod = Document::default();
    pod.set("apiVersion", "v1");
    pod.set("kind", "Pod");
    pod.set("metadata", metadata);
    pod.set("spec", template.get("spec").cloned().unwrap_or(json!({})));
    pod
}

/// Upstream's order of who goes first when there are too many: the least useful pods.
/// `crowd` is how many ready siblings share the pod's node.
pub(crate) fn goes_first(
    (a, a_crowd, a_object): (&PodView, usize, &Object),
    (b, b_crowd, b_object): (&PodView, usize, &Object),
    now: Timestamp,
) -> std::cmp::Ordering {
    let phase = |pod: &PodView| match pod.phase() {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    // Ages within a power of two of each other count as equal, so that a scale-down spreads over cohorts.
    let age = |at: Timestamp| match now.as_nanosecond() - at.as_nanosecond() {
        age if age > 0 => i64::from(age.ilog2()),
        _ => -1,
    };
    (!a.node().is_empty())
        .cmp(&!b.node().is_empty())
        .then_with(|| phase(a).cmp(&phase(b)))
        .then_with(|| a.is_ready().cmp(&b.is_ready()))
        .then_with(|| a.deletion_cost().cmp(&b.deletion_cost()))
        .then_with(|| b_crowd.cmp(&a_crowd))
        .then_with(|| match (a.ready_since(), b.ready_since()) {
            (Some(a), Some(b)) => age(a).cmp(&age(b)),
            _ => std::cmp::Ordering::Equal,
        })
        .then_with(|| b.restarts().cmp(&a.restarts()))
        .then_with(|| age(a_object.header.created).cmp(&age(b_object.header.created)))
        .then_with(|| a_object.header.uid.cmp(&b_object.header.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: &str, phase: &str, ready: Option<i64>, cost: &str, restarts: i64) -> (PodView, Object) {
        let mut conditions = Vec::new();
        if let Some(at) = ready {
            let at = Timestamp::from_second(at).unwrap();
            conditions.push(json!({"type": "Ready", "status": "True", "lastTransitionTime": at.to_string()}));
        }
        let value = json!({
            "apiVersion": "v1",
            "metadata": {"name": "p", "namespace": "d",
                "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}},
            "spec": {"nodeName": node},
            "status": {"phase": phase, "conditions": conditions,
                "containerStatuses": [{"name": "c", "restartCount": restarts}]},
        });
        let object = Object::from_document(&Document::from_value(value).unwrap()).unwrap();
        (PodView::of(&object), object)
    }

    #[test]
    fn the_least_useful_pod_goes_first() {
        let now = Timestamp::from_second(10_000).unwrap();
        let usual = || pod("n", "Running", Some(0), "0", 0);
        for (first, crowd, second, why) in [
            (pod("", "Pending", None, "0", 0), 0, pod("n", "Pending", None, "0", 0), "not assigned"),
            (pod("n", "Pending", None, "0", 0), 0, usual(), "not running"),
            (pod("n", "Running", None, "0", 0), 0, usual(), "not ready"),
            (pod("n", "Running", Some(0), "-5", 0), 0, usual(), "cheaper"),
            (usual(), 2, usual(), "in a crowd"),
            (pod("n", "Running", Some(9_990), "0", 0), 0, usual(), "ready for less long"),
            (pod("n", "Running", Some(0), "0", 4), 0, usual(), "restarts more"),
        ] {
            let order = goes_first((&first.0, crowd, &first.1), (&second.0, 0, &second.1), now);
            assert_eq!(order, std::cmp::Ordering::Less, "{why}");
        }
    }

    #[test]
    fn availability_takes_its_time() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let (ready, _) = pod("n", "Running", Some(100), "0", 0);
        let (unready, _) = pod("n", "Running", None, "0", 0);
        assert_eq!(ready.available(0, at(100)), Ok(()));
        assert_eq!(ready.available(10, at(104)), Err(Some(6)));
        assert_eq!(ready.available(10, at(110)), Ok(()));
        assert_eq!(unready.available(0, at(110)), Err(None));
    }
}
