//! Preemption: which pods of lower priority make room.
//!
//! Not here: PodDisruptionBudgets; the API's delete doesn't ask them either, upstream only prefers victims
//! that break none.

use std::sync::Arc;

use crate::model::{PodInfo, Snapshot};
use crate::place::{Rules, Unschedulable};

#[derive(Debug, Clone)]
pub struct Preemption {
    pub node: String,
    /// The pods that have to go, most important first.
    pub victims: Vec<Arc<PodInfo>>,
}

/// The node where the least is lost: lowest highest victim, then lowest sum of priorities, then fewest.
pub fn preempt(pod: &PodInfo, snapshot: &Snapshot, why: &Unschedulable) -> Option<Preemption> {
    if !pod.may_preempt {
        return None;
    }
    let candidates = why.preemptible.iter().filter_map(|node| victims(pod, snapshot, node));
    candidates.min_by_key(|one| {
        let highest = one.victims.first().map_or(i32::MIN, |victim| victim.priority);
        let sum: i64 = one.victims.iter().map(|victim| i64::from(victim.priority)).sum();
        (highest, sum, one.victims.len(), one.node.clone())
    })
}

/// Takes away all lesser pods, and gives back, most important first, whichever still fits.
fn victims(pod: &PodInfo, snapshot: &Snapshot, name: &str) -> Option<Preemption> {
    let mut node = snapshot.nodes.get(name)?.clone();
    let mut lesser: Vec<Arc<PodInfo>> =
        node.pods.iter().filter(|other| other.priority < pod.priority).cloned().collect();
    if lesser.is_empty() {
        return None;
    }
    lesser.iter().for_each(|other| drop(node.remove(&other.uid)));
    let mut world = snapshot.clone();
    let fits = |node: &crate::model::NodeInfo, world: &mut Snapshot| {
        world.nodes.insert(name.to_owned(), node.clone());
        Rules::new(pod, world).filter(pod, node).is_ok()
    };
    if !fits(&node, &mut world) {
        return None;
    }
    lesser.sort_by_key(|other| std::cmp::Reverse(other.priority));
    let mut victims = Vec::new();
    for other in lesser {
        node.add(other.clone());
        if !fits(&node, &mut world) {
            node.remove(&other.uid);
            victims.push(other);
        }
    }
    Some(Preemption { node: name.to_owned(), victims })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod, snapshot};
    use crate::place::place;
    use serde_json::json;

    #[test]
    fn the_least_important_pods_make_room() {
        let asks = |name: &str, cpu: &str, priority: i32| {
            pod(
                name,
                json!({"priority": priority,
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}),
            )
        };
        let room = json!({"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}});
        let mut a = node("a", room.clone());
        a.add(asks("a1", "2", 5).into());
        a.add(asks("a2", "2", 1).into());
        let mut b = node("b", room);
        b.add(asks("b1", "4", 7).into());
        let snapshot = snapshot(vec![a, b]);
        for (cpu, priority, wanted) in
            [("2", 10, "a: a2"), ("4", 10, "a: a1 a2"), ("2", 3, "a: a2"), ("2", 1, ""), ("5", 10, "")]
        {
            let asks = asks("p", cpu, priority);
            let why = place(&asks, &snapshot, 0).unwrap_err();
            let got = preempt(&asks, &snapshot, &why).map(|found| {
                let victims: Vec<&str> = found.victims.iter().map(|pod| pod.name.as_str()).collect();
                format!("{}: {}", found.node, victims.join(" "))
            });
            assert_eq!(got.unwrap_or_default(), wanted, "{cpu} at {priority}");
        }
    }
}
