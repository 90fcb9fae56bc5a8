//! Small readings of Kubernetes JSON that several controllers share.

use std::collections::BTreeMap;

use api_machinery::{Document, Gvk, LabelSelector, Object, Requirement};
use api_reconcile::{Deletion, Regarding};
use base_clock::{Timestamp, rfc3339};
use serde_json::{Map, Value, json};

use crate::catalog::{Resource, ResourceId};
use crate::world::World;

/// `metav1.LabelSelector`. `None` in, nothing selected; an empty one selects everything. `None` out for an
/// operator that does not exist: validation refused it, so nothing may be done in its name.
pub(crate) fn selector(value: Option<&Value>) -> Option<LabelSelector> {
    let value = value?.as_object()?;
    let mut requirements = Vec::new();
    for (key, wanted) in value.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        requirements.push(Requirement::In(key.clone(), vec![wanted.as_str()?.to_owned()]));
    }
    for expression in value.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let key = expression.get("key")?.as_str()?.to_owned();
        let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
        let values: Vec<String> = values.filter_map(|value| value.as_str().map(str::to_owned)).collect();
        requirements.push(match expression.get("operator")?.as_str()? {
            "In" => Requirement::In(key, values),
            "NotIn" => Requirement::NotIn(key, values),
            "Exists" => Requirement::Exists(key),
            "DoesNotExist" => Requirement::NotExists(key),
            _ => return None,
        });
    }
    Some(LabelSelector { requirements })
}

/// An equality selector (`spec.selector` of Services). Empty selects nothing, as there.
pub(crate) fn map_selector(value: Option<&Value>) -> Option<LabelSelector> {
    let labels = strings(value?);
    if labels.is_empty() { None } else { Some(LabelSelector::from_map(&labels)) }
}

pub(crate) fn strings(value: &Value) -> BTreeMap<String, String> {
    let members = value.as_object().into_iter().flatten();
    members.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// The object as a document with apiVersion and kind, to be changed and written back.
pub(crate) fn document(resource: &Resource, object: &Object) -> Option<Document> {
    let mut document = object.to_document().ok()?;
    document.set("apiVersion", resource.gvk.api_version());
    document.set("kind", resource.gvk.kind.to_string());
    Some(document)
}

/// What an Event about `object` says it is about.
pub(crate) fn regarding(gvk: &Gvk, object: &Object) -> Regarding {
    Regarding {
        api_version: gvk.api_version(),
        kind: gvk.kind.to_string(),
        namespace: object.header.namespace.as_deref().map(str::to_owned),
        name: object.header.name.to_string(),
        uid: object.header.uid.to_string(),
        resource_version: object.header.revision.to_string(),
    }
}

/// `ownerReferences` entry of a controller.
pub(crate) fn controller_reference(gvk: &Gvk, owner: &Object) -> Value {
    json!({
        "apiVersion": gvk.api_version(), "kind": gvk.kind, "name": owner.header.name,
        "uid": owner.header.uid.to_string(), "controller": true, "blockOwnerDeletion": true,
    })
}

pub(crate) fn deletion(world: &World, of: ResourceId, object: &Object) -> Deletion {
    Deletion {
        of: world.catalog().get(of).gvr.clone(),
        namespace: object.header.namespace.as_deref().map(str::to_owned),
        name: object.header.name.to_string(),
        uid: object.header.uid.to_string(),
        resource_version: None,
        grace_period_seconds: None,
        propagation: None,
    }
}

/// A condition of `status.conditions` by type.
pub(crate) fn condition<'a>(conditions: &'a [Value], kind: &str) -> Option<&'a Value> {
    conditions.iter().find(|condition| condition["type"] == kind)
}

/// Sets a condition; the transition time moves only with the status. With `updates`, `lastUpdateTime` is
/// kept too and moves with anything. False when nothing changed.
pub(crate) fn set_condition(
    conditions: &mut Vec<Value>,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
    updates: bool,
) -> bool {
    let at = conditions.iter().position(|condition| condition["type"] == kind);
    let mut new = Map::new();
    new.insert("type".to_owned(), json!(kind));
    new.insert("status".to_owned(), json!(status));
    let mut since = json!(rfc3339(now));
    if let Some(at) = at {
        let old = &conditions[at];
        if old["status"] == status && old["reason"] == reason && old["message"] == message {
            return false;
        }
        if old["status"] == status && !old["lastTransitionTime"].is_null() {
            since = old["lastTransitionTime"].clone();
        }
    }
    new.insert("lastTransitionTime".to_owned(), since);
    if updates {
        new.insert("lastUpdateTime".to_owned(), json!(rfc3339(now)));
    }
    new.insert("reason".to_owned(), json!(reason));
    new.insert("message".to_owned(), json!(message));
    match at {
        Some(at) => conditions[at] = Value::Object(new),
        None => conditions.push(Value::Object(new)),
    }
    true
}

pub(crate) fn time(value: Option<&Value>) -> Option<Timestamp> {
    value?.as_str()?.parse().ok()
}

/// `25%` of `total`, rounded as asked, or the number itself. `None` for anything else.
pub(crate) fn int_or_percent(value: Option<&Value>, total: i64, round_up: bool) -> Option<i64> {
    match value? {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            let hundredths = percent.checked_mul(total)?;
            Some(if round_up { (hundredths + 99).div_euclid(100) } else { hundredths.div_euclid(100) })
        }
        _ => None,
    }
}

/// Seconds from `from` to `to`; negative when it lies the other way.
pub(crate) fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    to.as_second() - from.as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_asked() {
        for (value, total, up, wanted) in [
            (json!(3), 10, true, Some(3)),
            (json!("25%"), 10, true, Some(3)),
            (json!("25%"), 10, false, Some(2)),
            (json!("100%"), 7, false, Some(7)),
            (json!("0%"), 7, true, Some(0)),
            (json!("x%"), 7, true, None),
            (json!("5"), 7, true, None),
            (json!(null), 7, true, None),
        ] {
            assert_eq!(int_or_percent(Some(&value), total, up), wanted, "{value} of {total}");
        }
    }

    #[test]
    fn a_condition_moves_its_transition_only_with_its_status() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut conditions = Vec::new();
        assert!(set_condition(&mut conditions, "Ready", "True", "a", "", at(0), false));
        assert!(!set_condition(&mut conditions, "Ready", "True", "a", "", at(5), false));
        assert!(set_condition(&mut conditions, "Ready", "True", "b", "", at(9), false));
        assert_eq!(conditions[0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert!(set_condition(&mut conditions, "Ready", "False", "b", "", at(9), false));
        assert_eq!(conditions[0]["lastTransitionTime"], "1970-01-01T00:00:09Z");
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn selectors_read_both_forms() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        for (value, wanted) in [
            (json!({}), Some(true)),
            (json!({"matchLabels": {"app": "web"}}), Some(true)),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}),
                Some(false),
            ),
            (json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}), Some(true)),
            (json!({"matchExpressions": [{"key": "x", "operator": "Perhaps"}]}), None),
            (json!(null), None),
        ] {
            assert_eq!(selector(Some(&value)).map(|one| one.matches(&labels)), wanted, "{value}");
        }
    }
}
