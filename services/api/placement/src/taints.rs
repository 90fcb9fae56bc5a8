//! TaintToleration.

use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::model::{NodeInfo, PodInfo};

pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if some(&toleration.effect).is_some_and(|effect| effect != taint.effect) {
        return false;
    }
    let operator = some(&toleration.operator).unwrap_or_else(|| "Equal".to_owned());
    match some(&toleration.key) {
        // Without a key, `Exists` tolerates everything.
        None => operator == "Exists",
        Some(key) if key != taint.key => false,
        Some(_) => {
            let given = toleration.value.clone().unwrap_or_default();
            let value = taint.value.clone().unwrap_or_default();
            let numbers = || Some((value.parse::<i64>().ok()?, given.parse::<i64>().ok()?));
            match operator.as_str() {
                "Exists" => true,
                "Lt" => numbers().is_some_and(|(value, given)| value < given),
                "Gt" => numbers().is_some_and(|(value, given)| value > given),
                _ => given == value,
            }
        }
    }
}

/// The first taint that keeps new pods away and isn't tolerated.
pub(crate) fn filter(pod: &PodInfo, node: &NodeInfo) -> Result<(), String> {
    let hard = node.taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
    for taint in hard {
        if !pod.tolerations.iter().any(|toleration| tolerates(toleration, taint)) {
            // 1.36 names no taint here any more, so that one reason counts all such nodes.
            return Err("node(s) had untolerated taint(s)".to_owned());
        }
    }
    Ok(())
}

/// How many `PreferNoSchedule` taints the pod doesn't tolerate: fewer is better.
pub(crate) fn disliked(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let soft = node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
    let disliked =
        soft.filter(|taint| !pod.tolerations.iter().any(|toleration| tolerates(toleration, taint)));
    i64::try_from(disliked.count()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod};
    use serde_json::json;

    #[test]
    fn a_taint_must_be_tolerated() {
        let no = "node(s) had untolerated taint(s)";
        for (tolerations, effect, wanted) in [
            (json!([]), "NoSchedule", no),
            (json!([]), "NoExecute", no),
            (json!([]), "PreferNoSchedule", ""),
            (json!([{"key": "gpu", "operator": "Equal", "value": "yes"}]), "NoSchedule", ""),
            (json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]), "NoSchedule", ""),
            (json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]), "NoExecute", no),
            (json!([{"key": "gpu", "value": "no"}]), "NoSchedule", no),
            (json!([{"key": "gpu", "operator": "Exists"}]), "NoSchedule", ""),
            (json!([{"key": "other", "operator": "Exists"}]), "NoSchedule", no),
            (json!([{"operator": "Exists"}]), "NoExecute", ""),
        ] {
            let node = node("n", json!({"taints": [{"key": "gpu", "value": "yes", "effect": effect}]}));
            let pod = pod("p", json!({"tolerations": tolerations}));
            assert_eq!(filter(&pod, &node).err().unwrap_or_default(), wanted, "{tolerations} {effect}");
        }
    }

    #[test]
    fn numbers_compare() {
        for (operator, given, wanted) in
            [("Lt", "7", true), ("Lt", "5", false), ("Gt", "4", true), ("Gt", "x", false)]
        {
            let taint = Taint { key: "k".into(), value: Some("5".into()), ..Taint::default() };
            let toleration = Toleration {
                key: Some("k".into()),
                operator: Some(operator.into()),
                value: Some(given.into()),
                ..Toleration::default()
            };
            assert_eq!(tolerates(&toleration, &taint), wanted, "{operator} {given}");
        }
    }
}
