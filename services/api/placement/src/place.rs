//! The decision: filters first, then scores.

use std::collections::BTreeMap;

use crate::inter_pod::InterPod;
use crate::model::{NodeInfo, PodInfo, Snapshot};
use crate::spread::Spread;
use crate::{affinity, image, node, ports, resources, taints};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub node: String,
    pub score: i64,
}

/// Why no node will do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unschedulable {
    pub nodes: usize,
    /// How many nodes gave each reason.
    pub reasons: BTreeMap<String, usize>,
    /// Nodes where the pod might fit if others left.
    pub preemptible: Vec<String>,
}

impl std::fmt::Display for Unschedulable {
    /// In upstream's words: people search for them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        // Upstream sorts the finished texts, so that "10 x" comes before "2 y".
        let mut texts: Vec<String> =
            self.reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        texts.sort();
        write!(f, "0/{} nodes are available: {}.", self.nodes, texts.join(", "))
    }
}

const WEIGHT_TAINTS: i64 = 3;
const WEIGHT_AFFINITY: i64 = 2;
const WEIGHT_SPREAD: i64 = 2;
const WEIGHT_INTER_POD: i64 = 2;

/// Where `pod` goes. Equal scores are decided by `tie`, so that they spread and can be replayed.
pub fn place(pod: &PodInfo, snapshot: &Snapshot, tie: u64) -> Result<Placement, Unschedulable> {
    let rules = Rules::new(pod, snapshot);
    let mut why = Unschedulable { nodes: snapshot.nodes.len(), ..Unschedulable::default() };
    let mut fitting = Vec::new();
    for node in snapshot.nodes.values() {
        match rules.filter(pod, node) {
            Ok(()) => fitting.push(node),
            Err(reasons) => {
                // Preemption helps only where every obstacle is another pod.
                if reasons.iter().all(|(_, for_good)| !for_good) {
                    why.preemptible.push(node.name.clone());
                }
                for (reason, _) in reasons {
                    *why.reasons.entry(reason).or_default() += 1;
                }
            }
        }
    }
    if fitting.is_empty() {
        return Err(why);
    }
    let scores = rules.score(pod, &fitting, snapshot);
    let best = scores.iter().copied().max().unwrap_or(0);
    let ties: Vec<&NodeInfo> =
        fitting.iter().zip(&scores).filter(|(_, score)| **score == best).map(|(node, _)| *node).collect();
    let at = usize::try_from(tie % ties.len().max(1) as u64).unwrap_or(0);
    Ok(Placement { node: ties[at].name.clone(), score: best })
}

/// What a node says to a pod that belongs on it, whatever else is there: for DaemonSets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// By node selector and affinity.
    pub selected: bool,
    /// No taint keeps it from starting; none drives it away.
    pub may_start: bool,
    pub may_stay: bool,
}

pub fn admits(pod: &PodInfo, on: &NodeInfo) -> Admission {
    let mut driving = on.clone();
    driving.taints.retain(|taint| taint.effect == "NoExecute");
    Admission {
        selected: affinity::matches_node(pod, on),
        may_start: node::filter(pod, on).is_ok() && taints::filter(pod, on).is_ok(),
        may_stay: taints::filter(pod, &driving).is_ok(),
    }
}

/// What is worked out once per pod.
pub(crate) struct Rules {
    spread: Spread,
    inter_pod: InterPod,
}

impl Rules {
    pub fn new(pod: &PodInfo, snapshot: &Snapshot) -> Rules {
        Rules { spread: Spread::new(pod, snapshot), inter_pod: InterPod::new(pod, snapshot) }
    }

    /// Reasons against a node; `true` beside one that no leaving pod can change.
    pub fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Vec<(String, bool)>> {
        let for_good = |reason: String| vec![(reason, true)];
        node::filter(pod, node).map_err(for_good)?;
        if !pod.node.is_empty() && pod.node != node.name {
            return Err(for_good("node(s) didn't match the requested node name".to_owned()));
        }
        taints::filter(pod, node).map_err(for_good)?;
        affinity::filter(pod, node).map_err(for_good)?;
        ports::filter(pod, node).map_err(|reason| vec![(reason, false)])?;
        resources::filter(pod, node)?;
        let one = |(reason, for_good): (&str, bool)| vec![(reason.to_owned(), for_good)];
        self.spread.filter(node).map_err(one)?;
        self.inter_pod.filter(node).map_err(one)
    }

    fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo], snapshot: &Snapshot) -> Vec<i64> {
        let mut scores: Vec<i64> = nodes
            .iter()
            .map(|node| {
                resources::least_allocated(pod, node)
                    + resources::balanced(pod, node)
                    + image::score(pod, node, snapshot)
            })
            .collect();
        let mut add = |values: Vec<i64>, weight: i64| {
            scores.iter_mut().zip(values).for_each(|(score, value)| *score += value * weight);
        };
        let disliked: Vec<i64> = nodes.iter().map(|node| taints::disliked(pod, node)).collect();
        add(up_to_100(&disliked, true), WEIGHT_TAINTS);
        let preference: Vec<i64> = nodes.iter().map(|node| affinity::preference(pod, node)).collect();
        add(up_to_100(&preference, false), WEIGHT_AFFINITY);
        if self.spread.has_preferences() {
            let crowds: Vec<Option<f64>> = nodes.iter().map(|node| self.spread.crowd(node)).collect();
            add(evenness(&crowds), WEIGHT_SPREAD);
        }
        if self.inter_pod.has_preferences() {
            let wishes: Vec<i64> = nodes.iter().map(|node| self.inter_pod.preference(node)).collect();
            add(between(&wishes), WEIGHT_INTER_POD);
        }
        scores
    }
}

/// In proportion to the highest.
fn up_to_100(values: &[i64], reverse: bool) -> Vec<i64> {
    let highest = values.iter().copied().max().unwrap_or(0);
    let one = |value: &i64| if highest == 0 { 0 } else { value * 100 / highest };
    values.iter().map(|value| if reverse { 100 - one(value) } else { one(value) }).collect()
}

/// In proportion between lowest and highest.
fn between(values: &[i64]) -> Vec<i64> {
    let lowest = values.iter().copied().min().unwrap_or(0);
    let range = values.iter().copied().max().unwrap_or(0) - lowest;
    values.iter().map(|value| if range == 0 { 0 } else { (value - lowest) * 100 / range }).collect()
}

/// The least crowded scores 100; a node outside the topology 0.
fn evenness(crowds: &[Option<f64>]) -> Vec<i64> {
    let known = crowds.iter().flatten().copied();
    let lowest = known.clone().fold(f64::INFINITY, f64::min);
    let highest = known.fold(0.0, f64::max);
    let one = |crowd: &Option<f64>| match crowd {
        None => 0,
        Some(_) if highest == 0.0 => 100,
        Some(crowd) => (100.0 * (highest + lowest - crowd) / highest) as i64,
    };
    crowds.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod, snapshot};
    use serde_json::{Value, json};

    fn cpu(amount: &str) -> Value {
        json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]})
    }

    #[test]
    fn the_reasons_are_counted_in_upstreams_words() {
        let small = json!({"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}});
        let tainted = json!({"taints": [{"key": "x", "value": "y", "effect": "NoSchedule"}]});
        for (nodes, wanted) in [
            (vec![], "no nodes available to schedule pods"),
            (vec![node("a", small.clone())], "0/1 nodes are available: 1 Insufficient cpu."),
            (
                vec![node("a", small.clone()), node("b", small), node("c", tainted)],
                "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu.",
            ),
        ] {
            let got = place(&pod("p", cpu("2")), &snapshot(nodes), 0).map_err(|why| why.to_string());
            assert_eq!(got, Err(wanted.to_owned()));
        }
    }

    #[test]
    fn the_better_node_wins_and_ties_are_decided_by_the_number() {
        let mut busy = node("a", json!({}));
        busy.add(pod("q", cpu("50")).into());
        let nodes = snapshot(vec![busy, node("b", json!({})), node("c", json!({}))]);
        let went = |tie: u64| place(&pod("p", cpu("1")), &nodes, tie).unwrap().node;
        assert_eq!((went(0), went(1), went(2)), ("b".to_owned(), "c".to_owned(), "b".to_owned()));
    }

    #[test]
    fn soft_rules_move_a_pod_but_never_stop_it() {
        let disliked = json!({"taints": [{"key": "x", "effect": "PreferNoSchedule"}]});
        let nodes = snapshot(vec![node("a", disliked.clone()), node("b", json!({}))]);
        assert_eq!(place(&pod("p", cpu("1")), &nodes, 0).unwrap().node, "b");
        let only = snapshot(vec![node("a", disliked)]);
        assert_eq!(place(&pod("p", cpu("1")), &only, 0).unwrap().node, "a");
    }
}
