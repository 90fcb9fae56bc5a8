//! ClusterRoles that are the sum of others.

use api_machinery::Object;
use api_reconcile::{Action, Plan};
use serde_json::Value;

use crate::catalog::{ResourceId, res};
use crate::controller::{Change, Controller, Key, Now};
use crate::convert;
use crate::world::World;

#[derive(Default)]
pub struct AggregatedRoles;

fn is_sum(role: &Object) -> bool {
    role.field("aggregationRule").is_some_and(|rule| !rule.is_null())
}

impl Controller for AggregatedRoles {
    fn name(&self) -> &'static str {
        "clusterrole-aggregation-controller"
    }
    fn resources(&self) -> &'static [ResourceId] {
        &[res::CLUSTER_ROLES]
    }
    fn concerns(&mut self, world: &World, change: &Change<'_>, _now: Now, wake: &mut dyn FnMut(Key)) {
        let labelled =
            |role: &Object| role.header.labels.keys().any(|key| key != "kubernetes.io/bootstrapping");
        if labelled(change.object) || change.old.is_some_and(|old| labelled(old)) {
            world
                .all(res::CLUSTER_ROLES)
                .filter(|role| is_sum(role))
                .for_each(|role| wake(Key::of(res::CLUSTER_ROLES, role)));
        }
        if is_sum(change.object) {
            wake(Key::of(res::CLUSTER_ROLES, change.object));
        }
    }
    fn plan(&mut self, world: &World, key: &Key, _now: Now) -> Plan {
        let Some(role) = world.at(key).filter(|role| is_sum(role) && !world.is_deleting(role)) else {
            return Plan::nothing();
        };
        let resource = world.catalog().get(res::CLUSTER_ROLES);
        let Some(mut document) = convert::document(resource, role) else { return Plan::nothing() };
        let selectors = document.get_array("aggregationRule.clusterRoleSelectors");
        let selectors: Vec<_> = selectors.iter().filter_map(|one| convert::selector(Some(one))).collect();
        let mut rules: Vec<Value> = Vec::new();
        for selector in &selectors {
            for other in world.select(res::CLUSTER_ROLES, "", selector) {
                if other.header.name == role.header.name {
                    continue;
                }
                for rule in
                    other.field("rules").and_then(|rules| rules.as_array().cloned()).unwrap_or_default()
                {
                    if !rules.contains(&rule) {
                        rules.push(rule);
                    }
                }
            }
        }
        if document.get_array("rules") == rules {
            return Plan::nothing();
        }
        document.set("rules", rules);
        Plan::of(vec![Action::Update { of: resource.gvr.clone(), subresource: None, object: document }])
    }
}
