//! PodTopologySpread: even numbers of matching pods over zones, nodes or whatever labels say.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::affinity::{matches_node, selects};
use crate::model::{NodeInfo, PodInfo, Snapshot};
use crate::taints;

pub(crate) const NOT_EVEN: &str = "node(s) didn't match pod topology spread constraints";
pub(crate) const NO_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";

/// Matching pods per domain, counted once per pod that is placed.
pub(crate) struct Spread {
    hard: Vec<Counted>,
    soft: Vec<Counted>,
}

struct Counted {
    key: String,
    max_skew: i64,
    /// The pod counts itself where it lands.
    own: i64,
    by_domain: BTreeMap<String, i64>,
    minimum: i64,
}

impl Spread {
    pub fn new(pod: &PodInfo, snapshot: &Snapshot) -> Spread {
        let count = |kind: &str| {
            let wanted: Vec<&TopologySpreadConstraint> =
                pod.spread.iter().filter(|one| one.when_unsatisfiable == kind).collect();
            let keys: BTreeSet<&str> = wanted.iter().map(|one| one.topology_key.as_str()).collect();
            wanted.into_iter().map(|one| counted(one, &keys, pod, snapshot)).collect()
        };
        Spread { hard: count("DoNotSchedule"), soft: count("ScheduleAnyway") }
    }

    pub fn filter(&self, node: &NodeInfo) -> Result<(), (&'static str, bool)> {
        for constraint in &self.hard {
            // No other pod can be moved out of the way of a label that isn't there.
            let Some(domain) = node.labels.get(&constraint.key) else { return Err((NO_LABEL, true)) };
            let here = constraint.by_domain.get(domain).copied().unwrap_or(0);
            if here + constraint.own - constraint.minimum > constraint.max_skew {
                return Err((NOT_EVEN, false));
            }
        }
        Ok(())
    }

    pub fn has_preferences(&self) -> bool {
        !self.soft.is_empty()
    }
    /// Matching pods where this node is: fewer is better. `None`: the node lacks a label.
    pub fn crowd(&self, node: &NodeInfo) -> Option<f64> {
        let mut sum = 0.0;
        for constraint in &self.soft {
            let domain = node.labels.get(&constraint.key)?;
            let here = constraint.by_domain.get(domain).copied().unwrap_or(0) as f64;
            // Few domains weigh less than many: a pod more in one of two zones is no surprise.
            let weight = ((constraint.by_domain.len() + 2) as f64).ln();
            sum += here * weight + (constraint.max_skew - 1) as f64;
        }
        Some(sum)
    }
}

fn counted(
    constraint: &TopologySpreadConstraint,
    keys: &BTreeSet<&str>,
    pod: &PodInfo,
    snapshot: &Snapshot,
) -> Counted {
    let selector = with_label_keys(constraint, pod);
    let honors_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
    let ignores_affinity = constraint.node_affinity_policy.as_deref() == Some("Ignore");
    let mut by_domain: BTreeMap<String, i64> = BTreeMap::new();
    for node in snapshot.nodes.values() {
        let eligible = keys.iter().all(|key| node.labels.contains_key(*key))
            && (ignores_affinity || matches_node(pod, node))
            && (!honors_taints || taints::filter(pod, node).is_ok());
        let Some(domain) = node.labels.get(&constraint.topology_key).filter(|_| eligible) else { continue };
        let here = node.pods.iter().filter(|other| {
            other.namespace == pod.namespace
                && !other.is_deleting
                && selects(selector.as_ref(), &other.labels)
        });
        *by_domain.entry(domain.clone()).or_default() += i64::try_from(here.count()).unwrap_or(i64::MAX);
    }
    let enough_domains = i64::from(constraint.min_domains.unwrap_or(1)) <= by_domain.len() as i64;
    let minimum = if enough_domains { by_domain.values().min().copied().unwrap_or(0) } else { 0 };
    Counted {
        key: constraint.topology_key.clone(),
        max_skew: i64::from(constraint.max_skew),
        own: i64::from(selects(selector.as_ref(), &pod.labels)),
        by_domain,
        minimum,
    }
}

/// `matchLabelKeys` narrow the selector to the pod's own values.
fn with_label_keys(constraint: &TopologySpreadConstraint, pod: &PodInfo) -> Option<LabelSelector> {
    let mut selector = constraint.label_selector.clone()?;
    for key in constraint.match_label_keys.iter().flatten() {
        if let Some(value) = pod.labels.get(key) {
            selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                key: key.clone(),
                operator: "In".to_owned(),
                values: Some(vec![value.clone()]),
            });
        }
    }
    Some(selector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod, snapshot};
    use serde_json::json;

    fn zones(counts: &[(&str, usize)]) -> Snapshot {
        let nodes = counts.iter().map(|(zone, count)| {
            let mut node = node(&format!("n-{zone}"), json!({"labels": {"zone": zone}}));
            for at in 0..*count {
                node.add(pod(&format!("{zone}{at}"), json!({"labels": {"app": "web"}})).into());
            }
            node
        });
        snapshot(nodes.collect())
    }
    fn spread(skew: i32, when: &str, min_domains: Option<i32>) -> PodInfo {
        let mut constraint = json!({"maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": "web"}}});
        if let Some(domains) = min_domains {
            constraint["minDomains"] = json!(domains);
        }
        pod("p", json!({"labels": {"app": "web"}, "topologySpreadConstraints": [constraint]}))
    }

    #[test]
    fn pods_stay_even() {
        for (counts, skew, min_domains, wanted) in [
            (&[("a", 1), ("b", 0)][..], 1, None, "b"),
            (&[("a", 1), ("b", 1)], 1, None, "ab"),
            (&[("a", 2), ("b", 0)], 2, None, "b"),
            (&[("a", 1), ("b", 0)], 2, None, "ab"),
            (&[("a", 1)], 1, None, "a"),
            (&[("a", 1)], 1, Some(2), ""),
        ] {
            let snapshot = zones(counts);
            let spread = Spread::new(&spread(skew, "DoNotSchedule", min_domains), &snapshot);
            let fitting = snapshot.nodes.values().filter(|node| spread.filter(node).is_ok());
            let got: String = fitting.map(|node| node.labels["zone"].as_str()).collect();
            assert_eq!(got, wanted, "{counts:?} skew {skew}");
        }
    }

    #[test]
    fn a_node_without_the_label_never_fits() {
        let snapshot = zones(&[("a", 0)]);
        let spread = Spread::new(&spread(1, "DoNotSchedule", None), &snapshot);
        assert_eq!(spread.filter(&node("x", json!({}))), Err((NO_LABEL, true)));
    }

    #[test]
    fn a_preference_only_prefers() {
        let snapshot = zones(&[("a", 5), ("b", 0)]);
        let spread = Spread::new(&spread(1, "ScheduleAnyway", None), &snapshot);
        assert!(spread.filter(&snapshot.nodes["n-a"]).is_ok());
        assert!(spread.crowd(&snapshot.nodes["n-a"]) > spread.crowd(&snapshot.nodes["n-b"]));
    }
}
