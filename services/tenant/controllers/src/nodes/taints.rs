//! Taints that follow from a node's conditions, and how long a pod bears them.

use base_clock::{Timestamp, rfc3339};
use serde_json::{Value, json};

pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Condition, its bad status, the taint.
const BY_CONDITION: &[(&str, &str, &str)] = &[
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

/// The taints the node should have. Others' taints stay; with `may_evict` false, no taint that drives pods
/// away is added or kept.
pub(super) fn wanted(node: &Value, may_evict: bool, now: Timestamp) -> Vec<Value> {
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is = |kind: &str, status: &str| {
        conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == status)
    };
    let mut ours: Vec<(&str, &str)> = Vec::new();
    for (kind, status, taint) in BY_CONDITION {
        if is(kind, status) {
            ours.push((taint, "NoSchedule"));
            if *kind == "Ready" && may_evict {
                ours.push((taint, "NoExecute"));
            }
        }
    }
    if node["spec"]["unschedulable"] == true {
        ours.push((UNSCHEDULABLE, "NoSchedule"));
    }
    // A kubelet registers with the taint not-ready; it goes when a Ready condition says something else.
    let undecided = !conditions.iter().any(|condition| condition["type"] == "Ready");
    let known = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let mut taints = Vec::new();
    for taint in &known {
        let (key, effect) =
            (taint["key"].as_str().unwrap_or_default(), taint["effect"].as_str().unwrap_or_default());
        let managed = key == UNSCHEDULABLE && effect == "NoSchedule"
            || BY_CONDITION.iter().any(|(kind, _, name)| {
                *name == key && (effect == "NoSchedule" || (effect == "NoExecute" && *kind == "Ready"))
            });
        if !managed || (undecided && key == NOT_READY) || ours.contains(&(key, effect)) {
            taints.push(taint.clone());
        }
    }
    for (key, effect) in ours {
        if !taints.iter().any(|taint| taint["key"] == key && taint["effect"] == effect) {
            taints.push(json!({"key": key, "effect": effect, "timeAdded": rfc3339(now)}));
        }
    }
    taints
}

/// How long a pod with these tolerations bears the `NoExecute` taints, in seconds since they were put on:
/// `None` for ever.
pub(super) fn bears(tolerations: &[Value], taints: &[Value]) -> Option<u64> {
    let mut least: Option<u64> = None;
    for taint in taints.iter().filter(|taint| taint["effect"] == "NoExecute") {
        let fitting = tolerations.iter().filter(|toleration| tolerates(toleration, taint));
        // Of several tolerations of one taint upstream takes the shortest that names a time.
        let (mut tolerated, mut seconds) = (false, None);
        for toleration in fitting {
            tolerated = true;
            if let Some(given) = toleration["tolerationSeconds"].as_i64() {
                let given = u64::try_from(given).unwrap_or(0);
                seconds = Some(seconds.map_or(given, |known: u64| known.min(given)));
            }
        }
        if !tolerated {
            return Some(0);
        }
        if let Some(seconds) = seconds {
            least = Some(least.map_or(seconds, |known| known.min(seconds)));
        }
    }
    least
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let text = |field: &str| toleration[field].as_str().unwrap_or_default();
    let (key, effect, operator) = (text("key"), text("effect"), text("operator"));
    if !effect.is_empty() && taint["effect"] != effect {
        return false;
    }
    if key.is_empty() {
        return operator == "Exists";
    }
    taint["key"] == key
        && (operator == "Exists" || taint["value"].as_str().unwrap_or_default() == text("value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_follow_conditions() {
        let now = Timestamp::UNIX_EPOCH;
        let short = |taints: Vec<Value>| {
            let one = |taint: &Value| {
                let key = taint["key"].as_str().unwrap().trim_start_matches("node.kubernetes.io/").to_owned();
                format!("{key}:{}", taint["effect"].as_str().unwrap().trim_start_matches("No"))
            };
            taints.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        let own = json!({"key": "gpu", "effect": "NoSchedule"});
        let registered = json!({"key": NOT_READY, "effect": "NoSchedule"});
        for (ready, spec, may_evict, wanted_taints) in [
            ("True", json!({"taints": [own]}), true, "gpu:Schedule"),
            ("False", json!({"taints": [own]}), true, "gpu:Schedule not-ready:Schedule not-ready:Execute"),
            ("Unknown", json!({}), true, "unreachable:Schedule unreachable:Execute"),
            (
                "Unknown",
                json!({"taints": [{"key": UNREACHABLE, "effect": "NoExecute"}]}),
                false,
                "unreachable:Schedule",
            ),
            ("True", json!({"unschedulable": true}), true, "unschedulable:Schedule"),
            ("True", json!({"taints": [registered]}), true, ""),
            ("", json!({"taints": [registered]}), true, "not-ready:Schedule"),
        ] {
            let conditions =
                if ready.is_empty() { json!([]) } else { json!([{"type": "Ready", "status": ready}]) };
            let node = json!({"spec": spec, "status": {"conditions": conditions}});
            assert_eq!(short(wanted(&node, may_evict, now)), wanted_taints, "{node}");
        }
    }

    #[test]
    fn a_pod_bears_a_taint_as_long_as_it_says() {
        let taints =
            [json!({"key": NOT_READY, "effect": "NoExecute"}), json!({"key": "x", "effect": "NoSchedule"})];
        let bearing = |seconds: Value| json!({"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        for (tolerations, wanted) in [
            (vec![], Some(0)),
            (vec![bearing(json!(300))], Some(300)),
            (vec![bearing(json!(300)), bearing(json!(5))], Some(5)),
            (vec![bearing(json!(null))], None),
            (vec![json!({"operator": "Exists"})], None),
            (vec![json!({"key": "other", "operator": "Exists"})], Some(0)),
            (vec![bearing(json!(-4))], Some(0)),
        ] {
            assert_eq!(bears(&tolerations, &taints), wanted, "{tolerations:?}");
        }
    }
}
