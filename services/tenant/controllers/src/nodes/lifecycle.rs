//! Notices nodes that fell silent, and moves pods off them.
//!
//! Silence is time on this process's monotonic clock since *this* leader last saw the node's Lease (or
//! status) change; what the Lease says about time is not believed. So a new leader, a woken cluster or a
//! jumping clock gives every node a fresh grace period. When most nodes are silent at once the fault is more
//! likely ours: they are reported, and nothing is driven away.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api_machinery::Object;
use api_reconcile::{Action, EventText, PatchKind, Plan};
use base_clock::{Timestamp, rfc3339};
use serde_json::{Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, Now};
use crate::convert;
use crate::workloads::pods::PodView;
use crate::world::World;

use super::taints;

/// Upstream's node-monitor-grace-period, rounded to what its documentation promises.
const GRACE: Duration = Duration::from_secs(40);
/// From this share of silent nodes on, nobody is driven away (upstream's unhealthy-zone-threshold).
const MOST_SILENT_PERCENT: usize = 55;
/// A node whose eviction is held back is looked at again this often while it is silent.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct NodeLifecycle {
    heard: HashMap<Arc<str>, Heard>,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    at: Duration,
    /// Since when the node has had taints that drive pods away, as this leader saw it.
    driving_since: Option<Duration>,
}

impl Controller for NodeLifecycle {
    fn name(&self) -> &'static str {
        "node-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::NODES, res::LEASES, res::PODS]
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, now: Now, wake: &mut dyn FnMut(Key)) {
        let name = &*change.object.header.name;
        match change.of {
            res::LEASES => {
                if change.object.header.namespace.as_deref() != Some("kube-node-lease")
                    || change.kind == ChangeKind::Gone
                {
                    return;
                }
                // The usual renewal ends here: no plan, no wake-up.
                let was_silent = self.hear(name, now);
                if was_silent {
                    wake(Key::new(res::NODES, "", name));
                }
            }
            res::NODES if change.kind == ChangeKind::Gone => {
                self.heard.remove(name);
            }
            res::NODES => {
                if change.old.is_none_or(|old| heartbeat(old) != heartbeat(change.object)) {
                    self.hear(name, now);
                }
                wake(Key::of(res::NODES, change.object));
            }
            res::PODS if change.kind != ChangeKind::Gone => {
                let Some(node) = world.node_of(change.object) else { return };
                let driving = self.heard.get(node).is_some_and(|heard| heard.driving_since.is_some());
                if driving && change.object.header.deleting_since.is_none() {
                    wake(Key::new(res::NODES, "", node));
                }
            }
            _ => {}
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(object) = world.at(key) else { return Plan::nothing() };
        let Some(document) = convert::document(world.catalog().get(res::NODES), object) else {
            return Plan::nothing();
        };
        let mut node = document.into_value();
        let mut plan = Plan::nothing();
        let heard =
            *self.heard.entry(key.name.clone()).or_insert(Heard { at: now.mono, driving_since: None });
        let silent_for = now.mono.saturating_sub(heard.at);
        let is_silent = silent_for >= GRACE;
        let may_evict = !self.most_are_silent(world, now);
        if is_silent {
            if let Some(status) = unknown(&mut node, now.wall) {
                plan.push(patch(world, object, Some("status"), json!({"status": status})));
                let text = EventText::normal(
                    "NodeNotReady",
                    format!("Node {} status is now: NodeNotReady", key.name),
                );
                plan.push(Action::Event(
                    convert::regarding(&world.catalog().get(res::NODES).gvk, object),
                    text,
                ));
                plan.actions.extend(world.pods_on(&key.name).filter_map(|pod| unready(world, pod, now.wall)));
            }
            plan.again(LOOK_AGAIN);
        } else {
            plan.again(GRACE - silent_for);
        }
        let wanted = taints::wanted(&node, may_evict, now.wall);
        if node["spec"]["taints"].as_array().map_or(&[][..], Vec::as_slice) != wanted.as_slice() {
            let mut change = json!({"spec": {"taints": wanted}});
            // Our own status write above has moved the revision on.
            if plan.actions.is_empty() {
                change["metadata"] = json!({"resourceVersion": object.header.revision.to_string()});
            }
            plan.push(patch(world, object, None, change));
        }
        let driving = wanted.iter().any(|taint| taint["effect"] == "NoExecute");
        let since = driving.then(|| heard.driving_since.unwrap_or(now.mono));
        if let Some(heard) = self.heard.get_mut(&key.name) {
            heard.driving_since = since;
        }
        if let Some(since) = since
            && (may_evict || !is_silent)
        {
            drive_away(world, &key.name, &wanted, now, since, &mut plan);
        }
        plan
    }
}

impl NodeLifecycle {
    /// True when the node had been silent for too long.
    fn hear(&mut self, name: &str, now: Now) -> bool {
        match self.heard.get_mut(name) {
            Some(heard) => {
                let was_silent = now.mono.saturating_sub(heard.at) >= GRACE;
                heard.at = now.mono;
                was_silent
            }
            None => {
                self.heard.insert(name.into(), Heard { at: now.mono, driving_since: None });
                false
            }
        }
    }

    fn most_are_silent(&self, world: &World, now: Now) -> bool {
        let total = world.count(res::NODES);
        let is_silent = |node: &&Arc<Object>| {
            self.heard.get(&*node.header.name).is_some_and(|heard| now.mono.saturating_sub(heard.at) >= GRACE)
        };
        let silent = world.all(res::NODES).filter(is_silent).count();
        // One silent node of two or three is a fault of that node; all of them is not.
        if total > 3 { silent * 100 >= total * MOST_SILENT_PERCENT } else { silent == total && silent > 0 }
    }
}

fn heartbeat(node: &Object) -> Option<Value> {
    let conditions = node.field("status.conditions")?;
    let ready = conditions.as_array()?.iter().find(|condition| condition["type"] == "Ready")?;
    Some(ready["lastHeartbeatTime"].clone())
}

/// Makes the node's conditions unknown; the status to write, if that is news.
fn unknown(node: &mut Value, now: Timestamp) -> Option<Value> {
    let mut conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let mut changed = false;
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        let known = conditions.iter_mut().find(|condition| condition["type"] == kind);
        match known {
            Some(known) if known["status"] == "Unknown" => {}
            Some(known) => {
                known["status"] = json!("Unknown");
                known["reason"] = json!("NodeStatusUnknown");
                known["message"] = json!("Kubelet stopped posting node status.");
                known["lastTransitionTime"] = json!(rfc3339(now));
                changed = true;
            }
            None => {
                conditions.push(json!({
                    "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                    "message": "Kubelet never posted node status.", "lastTransitionTime": rfc3339(now),
                }));
                changed = true;
            }
        }
    }
    if !changed {
        return None;
    }
    let status = json!({"conditions": conditions});
    node["status"]["conditions"] = status["conditions"].clone();
    Some(status)
}

/// Nothing is known to answer on a silent node: its pods leave the endpoints.
fn unready(world: &World, pod: &Arc<Object>, now: Timestamp) -> Option<Action> {
    if !PodView::of(pod).is_ready() {
        return None;
    }
    let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(now)});
    Some(pod_status(world, pod, condition))
}

fn drive_away(world: &World, node: &str, taints: &[Value], now: Now, since: Duration, plan: &mut Plan) {
    for pod in world.pods_on(node) {
        if world.is_deleting(pod) || PodView::of(pod).is_over() {
            continue;
        }
        let tolerations = pod.field("spec.tolerations").unwrap_or_default();
        let tolerations = tolerations.as_array().map_or(&[][..], Vec::as_slice);
        let Some(seconds) = taints::bears(tolerations, taints) else { continue };
        let at = since.saturating_add(Duration::from_secs(seconds));
        if at > now.mono {
            plan.again(at - now.mono);
            continue;
        }
        let name = format!("{}/{}", pod.header.namespace.as_deref().unwrap_or_default(), pod.header.name);
        let text = EventText::normal("TaintManagerEviction", format!("Marking for deletion Pod {name}"));
        plan.push(Action::Event(convert::regarding(&world.catalog().get(res::PODS).gvk, pod), text));
        let mark = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": rfc3339(now.wall),
        });
        plan.push(pod_status(world, pod, mark));
        plan.push(Action::Delete(convert::deletion(world, res::PODS, pod)));
    }
}

fn pod_status(world: &World, pod: &Object, condition: Value) -> Action {
    Action::Patch {
        of: world.catalog().get(res::PODS).gvr.clone(),
        subresource: Some("status"),
        namespace: pod.header.namespace.as_deref().map(str::to_owned),
        name: pod.header.name.to_string(),
        kind: PatchKind::Strategic,
        patch: json!({"status": {"conditions": [condition]}}),
    }
}

fn patch(world: &World, node: &Object, subresource: Option<&'static str>, patch: Value) -> Action {
    Action::Patch {
        of: world.catalog().get(res::NODES).gvr.clone(),
        subresource,
        namespace: None,
        name: node.header.name.to_string(),
        kind: PatchKind::Merge,
        patch,
    }
}
