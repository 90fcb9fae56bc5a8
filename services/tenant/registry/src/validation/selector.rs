//! `metav1.LabelSelector`: checking, matching and printing.
//!
//! Old kinds (ReplicationController, Service) select by a plain map; it is told apart by having neither
//! `matchLabels` nor `matchExpressions`, which are no valid values there since they are no strings.

use std::collections::BTreeMap;

use api_machinery::{Field, FieldError};
use serde_json::Value;

use super::names;

pub(crate) fn validate(selector: Option<&Value>, field: &Field) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(selector) = selector else { return errors };
    errors.extend(super::meta::labels(selector.get("matchLabels"), &field.child("matchLabels")));
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    for (at, expression) in expressions.enumerate() {
        let field = field.child("matchExpressions").index(at);
        let text = |name: &str| expression.get(name).and_then(Value::as_str).unwrap_or_default();
        let values: Vec<&str> = values_of(expression);
        match text("operator") {
            "In" | "NotIn" if values.is_empty() => errors
                .push(field.child("values").required("must be specified when `operator` is 'In' or 'NotIn'")),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(
                field
                    .child("values")
                    .forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(field.child("operator").invalid(other, "not a valid selector operator")),
        }
        let reasons = names::qualified_name(text("key"));
        errors.extend(reasons.into_iter().map(|why| field.child("key").invalid(text("key"), why)));
        for (at, value) in values.into_iter().enumerate() {
            let reasons = names::label_value(value);
            errors.extend(reasons.into_iter().map(|why| field.child("values").index(at).invalid(value, why)));
        }
    }
    errors
}

pub(crate) fn is_empty(selector: Option<&Value>) -> bool {
    let Some(Value::Object(selector)) = selector else { return true };
    let empty = |name: &str| match selector.get(name) {
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        _ => true,
    };
    empty("matchLabels") && empty("matchExpressions")
}

pub(crate) fn matches(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let mut expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    equal.into_iter().all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
        && expressions.all(|expression| {
            let key = expression.get("key").and_then(Value::as_str).unwrap_or_default();
            let value = labels.get(key).map(String::as_str);
            let values = values_of(expression);
            match expression.get("operator").and_then(Value::as_str) {
                Some("In") => value.is_some_and(|value| values.contains(&value)),
                Some("NotIn") => value.is_none_or(|value| !values.contains(&value)),
                Some("Exists") => value.is_some(),
                Some("DoesNotExist") => value.is_none(),
                // An operator nobody validated selects nothing.
                _ => false,
            }
        })
}

/// `a=b,c in (d,e)`, requirements by key: the query form, as a Scale's status shows it.
pub(crate) fn selector_text(selector: &Value) -> String {
    let Some(map) = selector.as_object() else { return String::new() };
    let old_form = !map.contains_key("matchLabels") && !map.contains_key("matchExpressions");
    let labels = if old_form { Some(map) } else { map.get("matchLabels").and_then(Value::as_object) };
    let mut parts: Vec<(String, String)> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.clone(), format!("{key}={}", value.as_str().unwrap_or_default())))
        .collect();
    for expression in map.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let key = expression.get("key").and_then(Value::as_str).unwrap_or_default();
        let mut values = values_of(expression);
        values.sort_unstable();
        let text = match expression.get("operator").and_then(Value::as_str) {
            Some("In") => format!("{key} in ({})", values.join(",")),
            Some("NotIn") => format!("{key} notin ({})", values.join(",")),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        };
        parts.push((key.to_owned(), text));
    }
    parts.sort();
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(",")
}

fn values_of(expression: &Value) -> Vec<&str> {
    expression
        .get("values")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_print_and_match() {
        let labels: BTreeMap<String, String> = [("a".to_owned(), "b".to_owned())].into();
        for (selector, text, fits) in [
            (json!({"matchLabels": {"a": "b"}}), "a=b", true),
            (json!({"a": "b"}), "a=b", true),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["c", "b"]}]}),
                "a in (b,c)",
                true,
            ),
            (json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}), "!a", false),
            (
                json!({"matchLabels": {"z": "1"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}),
                "a,z=1",
                false,
            ),
        ] {
            assert_eq!(selector_text(&selector), text);
            assert_eq!(matches(&selector, &labels), fits, "{text}");
        }
    }
}
