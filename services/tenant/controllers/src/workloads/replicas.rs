//! ReplicaSets, and ReplicationControllers, which are the same thing with an older selector.
//!
//! Keeps `spec.replicas` pods alive: adopts orphans its selector matches, lets go of pods it matches no
//! more, makes what is missing and deletes the least useful of what is too much.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api_machinery::{LabelSelector, Object, Status};
use api_reconcile::{Action, PatchKind, Plan, Spread};
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::runner::is_namespace_terminating;
use crate::workloads::pods::{PodView, from_template, goes_first};
use crate::world::World;

/// Pods made or deleted in one round, as upstream: a wrong number in `replicas` should take a while.
const BURST: usize = 500;

pub struct ReplicaSets {
    of: ResourceId,
    name: &'static str,
    resources: &'static [ResourceId],
    /// What the last round of a key failed with, for the condition ReplicaFailure.
    failures: HashMap<Key, String>,
}

impl ReplicaSets {
    pub fn new() -> ReplicaSets {
        ReplicaSets {
            of: res::REPLICA_SETS,
            name: "replicaset-controller",
            resources: &[res::REPLICA_SETS, res::PODS],
            failures: HashMap::new(),
        }
    }
    /// For ReplicationControllers.
    pub fn old() -> ReplicaSets {
        ReplicaSets {
            of: res::REPLICATION_CONTROLLERS,
            name: "replication-controller",
            resources: &[res::REPLICATION_CONTROLLERS, res::PODS],
            failures: HashMap::new(),
        }
    }

    fn selector(&self, set: &Object) -> Option<LabelSelector> {
        let value = set.field("spec.selector");
        if self.of == res::REPLICA_SETS {
            convert::selector(value.as_ref())
        } else {
            convert::map_selector(value.as_ref())
        }
    }
}

impl Controller for ReplicaSets {
    fn name(&self) -> &'static str {
        self.name
    }
    fn resources(&self) -> &'static [ResourceId] {
        self.resources
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        if change.of == self.of {
            wake(Key::of(self.of, change.object));
            return;
        }
        wake_controllers(world, change, self.of, wake, |set| self.selector(set));
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(set) = world.at(key) else {
            self.failures.remove(key);
            return Plan::nothing();
        };
        let resource = world.catalog().get(self.of);
        let (Some(document), Some(selector)) = (convert::document(resource, set), self.selector(set)) else {
            return Plan::nothing();
        };
        let mut plan = Plan::nothing();
        let claimed = claim(world, self.of, set, &selector, &mut plan);
        let mut active: Vec<(&Arc<Object>, PodView)> = Vec::new();
        let mut terminating = 0;
        for pod in claimed {
            let view = PodView::of(pod);
            if view.is_over() {
                continue;
            }
            if world.is_deleting(pod) {
                terminating += 1;
            } else {
                active.push((pod, view));
            }
        }
        let wanted = usize::try_from(document.get_i64("spec.replicas").unwrap_or(1)).unwrap_or(0);
        let is_deleting = world.is_deleting(set);
        let missing = wanted.saturating_sub(active.len()).min(BURST);
        let surplus = active.len().saturating_sub(wanted).min(BURST);
        if is_deleting || (missing == 0 && surplus == 0) {
            self.failures.remove(key);
        }

        let min_ready = document.get_i64("spec.minReadySeconds").unwrap_or(0);
        let failure = self
            .failures
            .get(key)
            .map(|message| (if missing > 0 { "FailedCreate" } else { "FailedDelete" }, message.as_str()));
        let template = document.get("spec.template");
        let template_labels =
            template.map(|template| convert::strings(&template["metadata"]["labels"])).unwrap_or_default();
        let all_labels = LabelSelector::from_map(&template_labels);
        let (mut ready, mut available, mut labelled) = (0, 0, 0);
        for (pod, view) in &active {
            labelled += i64::from(all_labels.matches(&pod.header.labels));
            ready += i64::from(view.is_ready());
            match view.available(min_ready, now.wall) {
                Ok(()) => available += 1,
                Err(Some(left)) => plan.again(Duration::from_secs(left.max(1).unsigned_abs())),
                Err(None) => {}
            }
        }
        let mut status = document.get("status").cloned().unwrap_or(json!({}));
        let before = status.clone();
        set_count(&mut status, "replicas", active.len() as i64, true);
        set_count(&mut status, "fullyLabeledReplicas", labelled, false);
        set_count(&mut status, "readyReplicas", ready, false);
        set_count(&mut status, "availableReplicas", available, false);
        if self.of == res::REPLICA_SETS {
            set_count(&mut status, "terminatingReplicas", terminating, true);
        }
        set_count(&mut status, "observedGeneration", set.header.generation, false);
        set_failure(&mut status, failure, now);
        let status_action = (status != before).then(|| {
            let mut written = document.clone();
            written.set("status", status);
            Action::Update { of: resource.gvr.clone(), subresource: Some("status"), object: written }
        });

        if is_deleting {
            plan.actions.extend(status_action);
            return plan;
        }
        let deletes = if surplus > 0 {
            let crowd = crowds(world, set, &active);
            active.sort_by(|(a, a_view), (b, b_view)| {
                let crowd_of = |view: &PodView| crowd.get(view.node()).copied().unwrap_or(0);
                goes_first((a_view, crowd_of(a_view), a), (b_view, crowd_of(b_view), b), now.wall)
            });
            active[..surplus].iter().map(|(pod, _)| convert::deletion(world, res::PODS, pod)).collect()
        } else {
            Vec::new()
        };
        let pods = &world.catalog().get(res::PODS).gvr;
        let namespace = Some(key.namespace.to_string());
        let creates: Vec<_> = (0..missing)
            .map(|_| (pods.clone(), namespace.clone(), from_template(template, &resource.gvk, set)))
            .collect();
        // A round that has to say that the last one failed says so first: it may well fail again.
        let status_first = failure.is_some();
        if status_first {
            plan.actions.extend(status_action.clone());
        }
        if !creates.is_empty() || !deletes.is_empty() {
            plan.push(Action::Spread(Spread {
                regarding: Some(convert::regarding(&resource.gvk, set)),
                creates,
                deletes,
                created: ("SuccessfulCreate", "Created pod: "),
                create_failed: ("FailedCreate", "Error creating: "),
                deleted: ("SuccessfulDelete", "Deleted pod: "),
                delete_failed: ("FailedDelete", "Error deleting: "),
            }));
        }
        if !status_first {
            plan.actions.extend(status_action);
        }
        plan
    }

    fn failed(&mut self, key: &Key, status: &Status) {
        // Stale reads are our own affair; a namespace that goes away is everybody's.
        if !status.is_conflict() && !is_namespace_terminating(status) {
            self.failures.insert(key.clone(), status.message.clone());
        }
    }
}

/// Wakes the owners of kind `of` of a changed pod; for a pod without controller, whoever would adopt it.
pub(crate) fn wake_controllers(
    world: &World,
    change: &Change<'_>,
    of: ResourceId,
    wake: &mut dyn FnMut(Key),
    selector: impl Fn(&Object) -> Option<LabelSelector>,
) {
    let namespace = change.object.header.namespace.as_deref().unwrap_or_default();
    let mut owned = false;
    for pod in [Some(change.object), change.old].into_iter().flatten() {
        let Some(controller) = pod.controller() else { continue };
        owned = owned || Arc::ptr_eq(pod, change.object);
        if world.catalog().by_kind(&controller.api_version, &controller.kind) == Some(of) {
            wake(Key::new(of, namespace, &controller.name));
        }
    }
    if owned || change.kind == crate::controller::ChangeKind::Gone {
        return;
    }
    for set in world.within(of, namespace) {
        if selector(set).is_some_and(|selector| selector.matches(&change.object.header.labels)) {
            wake(Key::of(of, set));
        }
    }
}

/// The pods that are `owner`'s: those it controls and still matches, and orphans it matches, which it adopts.
/// Pods it matches no more are let go. The writes that takes are added to `plan`.
pub(crate) fn claim<'a>(
    world: &'a World,
    of: ResourceId,
    owner: &Object,
    selector: &LabelSelector,
    plan: &mut Plan,
) -> Vec<&'a Arc<Object>> {
    let gvk = &world.catalog().get(of).gvk;
    let namespace = owner.header.namespace.as_deref().unwrap_or_default();
    let mut claimed = Vec::new();
    for pod in world.controlled_by(res::PODS, &owner.header.uid) {
        if selector.matches(&pod.header.labels) {
            claimed.push(pod);
        } else if !world.is_deleting(owner) {
            let uid = owner.header.uid.to_string();
            let rest: Vec<Value> =
                pod.header.owners.iter().filter(|one| one.uid != uid).map(|one| json!(one)).collect();
            plan.push(set_owners(world, pod, rest));
        }
    }
    if world.is_deleting(owner) || selector.is_everything() {
        return claimed;
    }
    // Collected first: `world.select` borrows the selector, not the pods.
    let orphans = world.within(res::PODS, namespace).filter(|pod| {
        pod.controller().is_none() && selector.matches(&pod.header.labels) && !world.is_deleting(pod)
    });
    for pod in orphans {
        if PodView::of(pod).is_over() {
            continue;
        }
        let mut owners: Vec<Value> = pod.header.owners.iter().map(|one| json!(one)).collect();
        owners.push(convert::controller_reference(gvk, owner));
        plan.push(set_owners(world, pod, owners));
        claimed.push(pod);
    }
    claimed
}

fn set_owners(world: &World, pod: &Object, owners: Vec<Value>) -> Action {
    let owners = if owners.is_empty() { Value::Null } else { Value::Array(owners) };
    Action::Patch {
        of: world.catalog().get(res::PODS).gvr.clone(),
        subresource: None,
        namespace: pod.header.namespace.as_deref().map(str::to_owned),
        name: pod.header.name.to_string(),
        kind: PatchKind::Merge,
        patch: json!({"metadata": {
            "uid": pod.header.uid.to_string(),
            "resourceVersion": pod.header.revision.to_string(),
            "ownerReferences": owners,
        }}),
    }
}

/// Ready pods per node among all pods of this set and its siblings under the same owner.
fn crowds(world: &World, set: &Object, own: &[(&Arc<Object>, PodView)]) -> HashMap<String, usize> {
    let mut crowd: HashMap<String, usize> = HashMap::new();
    let mut count = |view: &PodView| {
        if view.is_ready() {
            *crowd.entry(view.node().to_owned()).or_default() += 1;
        }
    };
    own.iter().for_each(|(_, view)| count(view));
    let siblings = set.controller().and_then(|owner| owner.uid.parse().ok());
    for sibling in siblings.map(|owner| world.controlled_by(res::REPLICA_SETS, &owner)).unwrap_or_default() {
        if sibling.header.uid != set.header.uid {
            for pod in world.controlled_by(res::PODS, &sibling.header.uid) {
                count(&PodView::of(pod));
            }
        }
    }
    crowd
}

/// Counts that are zero are left out unless upstream always sends them.
pub(crate) fn set_count(status: &mut Value, field: &str, count: i64, always: bool) {
    let Some(map) = status.as_object_mut() else { return };
    if count != 0 || always {
        map.insert(field.to_owned(), json!(count));
    } else {
        map.remove(field);
    }
}

fn set_failure(status: &mut Value, failure: Option<(&str, &str)>, now: Now) {
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    match failure {
        Some((reason, message)) => {
            convert::set_condition(
                &mut conditions,
                "ReplicaFailure",
                "True",
                reason,
                message,
                now.wall,
                false,
            );
        }
        None => conditions.retain(|condition| condition["type"] != "ReplicaFailure"),
    }
    let Some(map) = status.as_object_mut() else { return };
    if conditions.is_empty() {
        map.remove("conditions");
    } else {
        map.insert("conditions".to_owned(), Value::Array(conditions));
    }
}
