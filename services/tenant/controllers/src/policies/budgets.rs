//! PodDisruptionBudgets: how many pods may be evicted now.
//!
//! The API server spends what is written here; so it is written only from what is known, and zero when the
//! wanted number cannot be known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api_machinery::Object;
use api_reconcile::{Action, Plan};
use serde_json::{Map, Value, json};

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::workloads::pods::PodView;
use crate::world::World;

/// An eviction that was granted and never happened is forgotten after this.
const GRANT_SECONDS: i64 = 120;

#[derive(Default)]
pub struct Budgets;

impl Controller for Budgets {
    fn name(&self) -> &'static str {
        "disruption-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[
            res::BUDGETS,
            res::PODS,
            res::REPLICA_SETS,
            res::REPLICATION_CONTROLLERS,
            res::STATEFUL_SETS,
            res::DEPLOYMENTS,
        ]
    }
    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        let namespace = change.object.header.namespace.as_deref().unwrap_or_default();
        match change.of {
            res::BUDGETS => wake(Key::of(res::BUDGETS, change.object)),
            res::PODS => {
                for budget in world.within(res::BUDGETS, namespace) {
                    let Some(selector) = convert::selector(budget.field("spec.selector").as_ref()) else {
                        continue;
                    };
                    let matches = |pod: &Arc<Object>| selector.matches(&pod.header.labels);
                    if matches(change.object) || change.old.is_some_and(matches) {
                        wake(Key::of(res::BUDGETS, budget));
                    }
                }
            }
            _ => {
                // A new scale changes what percentages mean.
                if change.old.is_none_or(|old| old.header.generation != change.object.header.generation) {
                    world
                        .within(res::BUDGETS, namespace)
                        .for_each(|budget| wake(Key::of(res::BUDGETS, budget)));
                }
            }
        }
    }

    fn plan(&mut self, world: &World, key: &Key, now: Now) -> Plan {
        let Some(object) = world.at(key) else { return Plan::nothing() };
        let resource = world.catalog().get(res::BUDGETS);
        let Some(mut document) = convert::document(resource, object) else { return Plan::nothing() };
        let Some(selector) = convert::selector(document.get("spec.selector")) else { return Plan::nothing() };
        let mut plan = Plan::nothing();
        let pods: Vec<(&Arc<Object>, PodView)> = world
            .select(res::PODS, &key.namespace, &selector)
            .map(|pod| (pod, PodView::of(pod)))
            .filter(|(_, view)| !view.is_over())
            .collect();
        let mut disrupted = Map::new();
        for (name, since) in
            document.get("status.disruptedPods").and_then(Value::as_object).into_iter().flatten()
        {
            let waiting = pods.iter().any(|(pod, _)| *pod.header.name == **name && !world.is_deleting(pod));
            let Some(since_time) = convert::time(Some(since)).filter(|_| waiting) else { continue };
            let left = GRANT_SECONDS - convert::seconds_between(since_time, now.wall);
            if left > 0 {
                plan.again(Duration::from_secs(left.unsigned_abs()));
                disrupted.insert(name.clone(), since.clone());
            }
        }
        let healthy = pods.iter().filter(|(pod, view)| {
            view.is_ready() && !world.is_deleting(pod) && !disrupted.contains_key(&*pod.header.name)
        });
        let healthy = healthy.count() as i64;
        let expected = expected(world, &pods);
        let total = pods.len() as i64;
        let (expected, desired) =
            match (document.get("spec.maxUnavailable"), document.get("spec.minAvailable"), expected) {
                (Some(most), _, Some(expected)) => {
                    let most = convert::int_or_percent(Some(most), expected, true).unwrap_or(0);
                    (expected, (expected - most).max(0))
                }
                (None, Some(Value::Number(least)), _) => (total, least.as_i64().unwrap_or(0)),
                (None, Some(least), Some(expected)) => {
                    (expected, convert::int_or_percent(Some(least), expected, true).unwrap_or(expected))
                }
                (None, None, _) => (total, 0),
                // A pod whose controller has no scale: nobody can say what is too few.
                (_, _, None) => (total, i64::from(i32::MAX)),
            };
        let unknown = desired == i64::from(i32::MAX);
        let allowed = if expected <= 0 || unknown { 0 } else { (healthy - desired).max(0) };
        let mut status = document.get("status").cloned().unwrap_or(json!({}));
        let before = status.clone();
        status["currentHealthy"] = json!(healthy);
        status["desiredHealthy"] = json!(if unknown { 0 } else { desired });
        status["expectedPods"] = json!(expected);
        status["disruptionsAllowed"] = json!(allowed);
        status["observedGeneration"] = json!(object.header.generation);
        match status.as_object_mut() {
            Some(map) if disrupted.is_empty() => drop(map.remove("disruptedPods")),
            _ => status["disruptedPods"] = Value::Object(disrupted),
        }
        let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let (state, reason) = match (allowed > 0, unknown) {
            (true, _) => ("True", "SufficientPods"),
            (false, true) => ("False", "SyncFailed"),
            (false, false) => ("False", "InsufficientPods"),
        };
        if convert::set_condition(&mut conditions, "DisruptionAllowed", state, reason, "", now.wall, false)
            && let Some(condition) = conditions.iter_mut().find(|one| one["type"] == "DisruptionAllowed")
        {
            condition["observedGeneration"] = json!(object.header.generation);
        }
        status["conditions"] = Value::Array(conditions);
        if status != before {
            document.set("status", status);
            plan.push(Action::Update {
                of: resource.gvr.clone(),
                subresource: Some("status"),
                object: document,
            });
        }
        plan
    }
}

/// How many pods there should be, by the scales of the pods' controllers; `None` when one has none.
fn expected(world: &World, pods: &[(&Arc<Object>, PodView)]) -> Option<i64> {
    let mut scales: BTreeMap<String, i64> = BTreeMap::new();
    for (pod, _) in pods {
        let namespace = pod.header.namespace.as_deref().unwrap_or_default();
        let owner = world.owner(namespace, pod.controller()?)?;
        // A deployment's scale counts, not that of its ReplicaSets, which sum to more during a rollout.
        let top = owner.controller().and_then(|above| world.owner(namespace, above)).unwrap_or(owner);
        let replicas = top.field("spec.replicas").and_then(|replicas| replicas.as_i64())?;
        scales.insert(top.header.uid.to_string(), replicas);
    }
    Some(scales.values().sum())
}
