//! InterPodAffinity: towards pods, and away from them.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::PodAffinityTerm;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::affinity::selects;
use crate::model::{NodeInfo, PodInfo, Snapshot};

pub(crate) const TOWARDS: &str = "node(s) didn't match pod affinity rules";
pub(crate) const AWAY: &str = "node(s) didn't match pod anti-affinity rules";
pub(crate) const OTHERS_AWAY: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// A topology domain: label key and value.
type Domain = (String, String);

/// What the pods that are there mean for one pod, worked out once per placement.
pub(crate) struct InterPod {
    towards: Vec<(Term, HashMap<Domain, i64>)>,
    /// The pod matches its own terms: the first of a group that wants to be together may go anywhere.
    starts_group: bool,
    away: Vec<(Term, HashMap<Domain, i64>)>,
    others_away: HashMap<Domain, i64>,
    preference: HashMap<Domain, i64>,
}

struct Term {
    key: String,
    namespaces: Vec<String>,
    namespace_selector: Option<LabelSelector>,
    selector: Option<LabelSelector>,
}

impl Term {
    fn new(term: &PodAffinityTerm, of: &PodInfo) -> Term {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(of.namespace.clone());
        }
        let mut selector = term.label_selector.clone();
        let mut narrow = |keys: &Option<Vec<String>>, operator: &str| {
            for key in keys.iter().flatten() {
                if let (Some(value), Some(selector)) = (of.labels.get(key), selector.as_mut()) {
                    selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                        key: key.clone(),
                        operator: operator.to_owned(),
                        values: Some(vec![value.clone()]),
                    });
                }
            }
        };
        narrow(&term.match_label_keys, "In");
        narrow(&term.mismatch_label_keys, "NotIn");
        Term {
            key: term.topology_key.clone(),
            namespaces,
            namespace_selector: term.namespace_selector.clone(),
            selector,
        }
    }
    fn matches(&self, other: &PodInfo, snapshot: &Snapshot) -> bool {
        let empty = Default::default();
        let labels = snapshot.namespaces.get(&other.namespace).unwrap_or(&empty);
        let here =
            self.namespaces.contains(&other.namespace) || selects(self.namespace_selector.as_ref(), labels);
        here && selects(self.selector.as_ref(), &other.labels)
    }
    fn domain(&self, node: &NodeInfo) -> Option<Domain> {
        Some((self.key.clone(), node.labels.get(&self.key)?.clone()))
    }
}

fn terms(list: &Option<Vec<PodAffinityTerm>>, of: &PodInfo) -> Vec<Term> {
    list.iter().flatten().map(|term| Term::new(term, of)).collect()
}

impl InterPod {
    pub fn new(pod: &PodInfo, snapshot: &Snapshot) -> InterPod {
        let affinity = pod.affinity.as_ref();
        let towards = affinity.and_then(|one| one.pod_affinity.as_ref());
        let away = affinity.and_then(|one| one.pod_anti_affinity.as_ref());
        let required = towards
            .map(|one| terms(&one.required_during_scheduling_ignored_during_execution, pod))
            .unwrap_or_default();
        let refused = away
            .map(|one| terms(&one.required_during_scheduling_ignored_during_execution, pod))
            .unwrap_or_default();
        let wished = towards.iter().flat_map(|one| {
            one.preferred_during_scheduling_ignored_during_execution.iter().flatten().map(|term| (term, 1))
        });
        let shunned = away.iter().flat_map(|one| {
            one.preferred_during_scheduling_ignored_during_execution.iter().flatten().map(|term| (term, -1))
        });
        let preferred: Vec<(Term, i64)> = wished
            .chain(shunned)
            .map(|(term, sign)| (Term::new(&term.pod_affinity_term, pod), i64::from(term.weight) * sign))
            .collect();
        let mut state = InterPod {
            starts_group: required.iter().all(|term| term.matches(pod, snapshot)),
            towards: required.into_iter().map(|term| (term, HashMap::new())).collect(),
            away: refused.into_iter().map(|term| (term, HashMap::new())).collect(),
            others_away: HashMap::new(),
            preference: HashMap::new(),
        };
        let asks = !state.towards.is_empty() || !state.away.is_empty() || !preferred.is_empty();
        for node in snapshot.nodes.values() {
            for other in &node.pods {
                if asks {
                    state.count(other, node, &preferred, snapshot);
                }
                if other.affinity.is_some() {
                    state.count_theirs(pod, other, node, snapshot);
                }
            }
        }
        state
    }

    fn count(&mut self, other: &PodInfo, node: &NodeInfo, preferred: &[(Term, i64)], snapshot: &Snapshot) {
        // A pod counts for affinity where it matches all terms, as upstream.
        if !self.towards.is_empty() && self.towards.iter().all(|(term, _)| term.matches(other, snapshot)) {
            for (term, counts) in &mut self.towards {
                if let Some(domain) = term.domain(node) {
                    *counts.entry(domain).or_default() += 1;
                }
            }
        }
        for (term, counts) in &mut self.away {
            if let Some(domain) = term.domain(node).filter(|_| term.matches(other, snapshot)) {
                *counts.entry(domain).or_default() += 1;
            }
        }
        for (term, weight) in preferred {
            if let Some(domain) = term.domain(node).filter(|_| term.matches(other, snapshot)) {
                *self.preference.entry(domain).or_default() += weight;
            }
        }
    }

    /// What the other pod's own terms say about this one.
    fn count_theirs(&mut self, pod: &PodInfo, other: &PodInfo, node: &NodeInfo, snapshot: &Snapshot) {
        let Some(affinity) = &other.affinity else { return };
        let mut wants: Vec<(Term, i64)> = Vec::new();
        if let Some(anti) = &affinity.pod_anti_affinity {
            if other.has_required_anti_affinity() {
                for term in terms(&anti.required_during_scheduling_ignored_during_execution, other) {
                    if let Some(domain) = term.domain(node).filter(|_| term.matches(pod, snapshot)) {
                        *self.others_away.entry(domain).or_default() += 1;
                    }
                }
            }
            for term in anti.preferred_during_scheduling_ignored_during_execution.iter().flatten() {
                wants.push((Term::new(&term.pod_affinity_term, other), -i64::from(term.weight)));
            }
        }
        if let Some(towards) = &affinity.pod_affinity {
            for term in terms(&towards.required_during_scheduling_ignored_during_execution, other) {
                wants.push((term, 1));
            }
            for term in towards.preferred_during_scheduling_ignored_during_execution.iter().flatten() {
                wants.push((Term::new(&term.pod_affinity_term, other), i64::from(term.weight)));
            }
        }
        for (term, weight) in wants {
            if let Some(domain) = term.domain(node).filter(|_| term.matches(pod, snapshot)) {
                *self.preference.entry(domain).or_default() += weight;
            }
        }
    }

    pub fn filter(&self, node: &NodeInfo) -> Result<(), (&'static str, bool)> {
        let nowhere = self.towards.iter().all(|(_, counts)| counts.is_empty());
        for (term, counts) in &self.towards {
            let Some(domain) = term.domain(node) else { return Err((TOWARDS, true)) };
            let satisfied = counts.contains_key(&domain) || (nowhere && self.starts_group);
            if !satisfied {
                return Err((TOWARDS, true));
            }
        }
        for (term, counts) in &self.away {
            if term.domain(node).is_some_and(|domain| counts.contains_key(&domain)) {
                return Err((AWAY, false));
            }
        }
        let shunned = |(key, value): &Domain| node.labels.get(key) == Some(value);
        if self.others_away.keys().any(shunned) {
            return Err((OTHERS_AWAY, false));
        }
        Ok(())
    }

    pub fn has_preferences(&self) -> bool {
        !self.preference.is_empty()
    }
    pub fn preference(&self, node: &NodeInfo) -> i64 {
        let here = self.preference.iter().filter(|((key, value), _)| node.labels.get(key) == Some(value));
        here.map(|(_, weight)| weight).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod, snapshot};
    use serde_json::{Value, json};

    fn term(app: &str) -> Value {
        json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}})
    }
    fn hard(which: &str, app: &str) -> Value {
        json!({"affinity": {which: {"requiredDuringSchedulingIgnoredDuringExecution": [term(app)]}}})
    }
    fn fits(asks: Value, existing: Value) -> String {
        let mut first = node("n1", json!({"labels": {"zone": "a"}}));
        first.add(pod("e", existing).into());
        let snapshot = snapshot(vec![first, node("n2", json!({"labels": {"zone": "b"}}))]);
        let state = InterPod::new(&pod("p", asks), &snapshot);
        let fitting = snapshot.nodes.values().filter(|node| state.filter(node).is_ok());
        fitting.map(|node| node.labels["zone"].as_str()).collect()
    }

    #[test]
    fn pods_attract_and_repel() {
        let labelled = |mut spec: Value, app: &str| {
            spec["labels"] = json!({"app": app});
            spec
        };
        for (asks, existing, wanted) in [
            (json!({}), json!({}), "ab"),
            (hard("podAffinity", "db"), labelled(json!({}), "db"), "a"),
            (hard("podAffinity", "db"), labelled(json!({}), "web"), ""),
            (labelled(hard("podAffinity", "db"), "db"), labelled(json!({}), "web"), "ab"),
            (hard("podAntiAffinity", "db"), labelled(json!({}), "db"), "b"),
            (labelled(json!({}), "web"), hard("podAntiAffinity", "web"), "b"),
            (labelled(json!({}), "db"), hard("podAntiAffinity", "web"), "ab"),
        ] {
            assert_eq!(fits(asks.clone(), existing.clone()), wanted, "{asks} beside {existing}");
        }
    }

    #[test]
    fn preferences_weigh() {
        let mut first = node("n1", json!({"labels": {"zone": "a"}}));
        first.add(pod("e", json!({"labels": {"app": "db"}})).into());
        let snapshot = snapshot(vec![first, node("n2", json!({"labels": {"zone": "b"}}))]);
        let spec = json!({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
            [{"weight": 7, "podAffinityTerm": term("db")}]}}});
        let state = InterPod::new(&pod("p", spec), &snapshot);
        assert_eq!(state.preference(&snapshot.nodes["n1"]), 7);
        assert_eq!(state.preference(&snapshot.nodes["n2"]), 0);
    }
}
