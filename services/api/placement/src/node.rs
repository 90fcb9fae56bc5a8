//! NodeUnschedulable: a cordoned node takes pods that tolerate that.

use k8s_openapi::api::core::v1::Taint;

use crate::model::{NodeInfo, PodInfo};
use crate::taints::tolerates;

pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

pub(crate) fn filter(pod: &PodInfo, node: &NodeInfo) -> Result<(), String> {
    if !node.unschedulable {
        return Ok(());
    }
    let taint = Taint { key: UNSCHEDULABLE.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    if pod.tolerations.iter().any(|toleration| tolerates(toleration, &taint)) {
        return Ok(());
    }
    Err("node(s) were unschedulable".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod};
    use serde_json::json;

    #[test]
    fn a_cordoned_node_is_left_alone() {
        let cordoned = node("n", json!({"unschedulable": true}));
        let tolerant = json!({"tolerations": [{"key": UNSCHEDULABLE, "operator": "Exists"}]});
        assert!(filter(&pod("p", json!({})), &node("n", json!({}))).is_ok());
        assert!(filter(&pod("p", json!({})), &cordoned).is_err());
        assert!(filter(&pod("p", tolerant), &cordoned).is_ok());
    }
}
