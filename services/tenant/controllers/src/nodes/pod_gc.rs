//! Removes pods that no kubelet will ever report the end of.

use std::collections::HashMap;
use std::time::Duration;

use api_reconcile::{Action, PatchKind, Plan};
use serde_json::json;

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, ChangeKind, Controller, Key, Now};
use crate::convert;
use crate::workloads::pods::PodView;
use crate::world::World;

/// A node that registers anew within this keeps its pods, as upstream.
const QUARANTINE: Duration = Duration::from_secs(40);

#[derive(Default)]
pub struct PodCollector {
    orphaned_since: HashMap<Key, Duration>,
}

impl Controller for PodCollector {
    fn name(&self) -> &'static str {
        "pod-garbage-collector"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::PODS, res::NODES]
    }

    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        match (change.of, change.kind) {
            (res::NODES, ChangeKind::Gone) => {
                world.pods_on(&change.object.header.name).for_each(|pod| wake(Key::of(res::PODS, pod)));
            }
            (res::PODS, ChangeKind::Gone) => {
                self.orphaned_since.remove(&Key::of(res::PODS, change.object));
            }
            (res::PODS, _) => {
                let look = match world.node_of(change.object) {
                    Some(node) => !world.is_synced(res::NODES) || world.get(res::NODES, "", node).is_none(),
                    None => change.object.header.deleting_since.is_some(),
                };
                if look {
                    wake(Key::of(res::PODS, change.object));
                }
            }
            _ => {}
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(pod) = world.at(key) else {
            self.orphaned_since.remove(key);
            return Plan::nothing();
        };
        let mut plan = Plan::nothing();
        match world.node_of(pod) {
            Some(node) if world.get(res::NODES, "", node).is_some() => {
                self.orphaned_since.remove(key);
                return plan;
            }
            Some(_) => {
                let since = *self.orphaned_since.entry(key.clone()).or_insert(now.mono);
                let waited = now.mono.saturating_sub(since);
                if waited < QUARANTINE {
                    plan.again(QUARANTINE - waited);
                    return plan;
                }
            }
            None if pod.header.deleting_since.is_none() => return plan,
            None => {}
        }
        // Asked for already: it waits for its finalizers.
        let ended = pod.field("metadata.deletionGracePeriodSeconds").is_some_and(|seconds| seconds == 0);
        if ended && PodView::of(pod).is_over() {
            return plan;
        }
        // Whoever waits for the pod's end (a Job) must see that it did not succeed.
        if !PodView::of(pod).is_over() {
            plan.push(Action::Patch {
                of: world.catalog().get(res::PODS).gvr.clone(),
                subresource: Some("status"),
                namespace: Some(key.namespace.to_string()),
                name: key.name.to_string(),
                kind: PatchKind::Strategic,
                patch: json!({"status": {"phase": "Failed", "conditions": [{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists",
                }]}}),
            });
        }
        let mut deletion = convert::deletion(world, res::PODS, pod);
        deletion.grace_period_seconds = Some(0);
        plan.push(Action::Delete(deletion));
        plan
    }
}
