//! NodeAffinity and nodeSelector, and label selectors of the other rules.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::model::{Labels, NodeInfo, PodInfo};

pub(crate) fn matches_node(pod: &PodInfo, node: &NodeInfo) -> bool {
    let selected = pod.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let required = pod
        .node_affinity
        .as_ref()
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required
            .is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

pub(crate) fn filter(pod: &PodInfo, node: &NodeInfo) -> Result<(), String> {
    if matches_node(pod, node) {
        return Ok(());
    }
    Err("node(s) didn't match Pod's node affinity/selector".to_owned())
}

/// The sum of the weights of preferred terms that match.
pub(crate) fn preference(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let preferred = pod
        .node_affinity
        .iter()
        .flat_map(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten());
    preferred.filter(|term| term_matches(&term.preference, node)).map(|term| i64::from(term.weight)).sum()
}

/// An empty term matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    if labels.clone().next().is_none() && fields.clone().next().is_none() {
        return false;
    }
    let name = |key: &str| (key == "metadata.name").then_some(node.name.as_str());
    labels.into_iter().all(|one| holds(one, node.labels.get(&one.key).map(String::as_str)))
        && fields.into_iter().all(|one| holds(one, name(&one.key)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let wanted = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| wanted.iter().any(|one| one == value);
    let numbers = || Some((value?.parse::<i64>().ok()?, wanted.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// `None` selects nothing, an empty selector everything.
pub(crate) fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let Some(selector) = selector else { return false };
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|one| {
            let value = labels.get(&one.key);
            let wanted = one.values.as_deref().unwrap_or_default();
            match one.operator.as_str() {
                "In" => value.is_some_and(|value| wanted.contains(value)),
                "NotIn" => value.is_none_or(|value| !wanted.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{node, pod};
    use serde_json::json;

    #[test]
    fn a_pod_goes_where_it_is_drawn_to() {
        let node = node("n1", json!({"labels": {"zone": "a", "disk": "ssd", "cpus": "8"}}));
        let required = |terms: serde_json::Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        let expression = |key: &str, operator: &str, values: &[&str]| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        for (spec, wanted) in [
            (json!({}), true),
            (json!({"nodeSelector": {"zone": "a"}}), true),
            (json!({"nodeSelector": {"zone": "b"}}), false),
            (required(expression("zone", "In", &["a", "b"])), true),
            (required(expression("zone", "NotIn", &["a"])), false),
            (required(expression("gpu", "NotIn", &["a"])), true),
            (required(expression("gpu", "Exists", &[])), false),
            (required(expression("gpu", "DoesNotExist", &[])), true),
            (required(expression("cpus", "Gt", &["4"])), true),
            (required(expression("cpus", "Lt", &["4"])), false),
            (required(json!([{}])), false),
            (
                required(
                    json!([{}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]),
                ),
                true,
            ),
            (
                required(
                    json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]),
                ),
                false,
            ),
        ] {
            assert_eq!(filter(&pod("p", spec.clone()), &node).is_ok(), wanted, "{spec}");
        }
    }

    #[test]
    fn preferences_add_up() {
        let term = |weight: i32, zone: &str| json!({"weight": weight, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}});
        let spec = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
            [term(5, "a"), term(7, "a"), term(11, "b")]}}});
        assert_eq!(preference(&pod("p", spec), &node("n", json!({"labels": {"zone": "a"}}))), 12);
    }
}
