//! What values must look like, where Terraform's types do not say it. The manager checks again; these are
//! for a person who plans.

use base_ids::Slug;
use fleet_model::FieldProblem;
use fleet_model::labels::{Labels, check_labels};

use crate::value::{Value, whole};

/// The name of an organisation, a cluster, a pool.
pub fn name(value: &Value) -> Result<(), String> {
    let Value::Text(text) = value else { return Ok(()) };
    match text.parse::<Slug>() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!(
            "{text:?} is no name: 1 to 40 lower case letters, digits and '-', beginning with a letter and not \
             ending with '-'."
        )),
    }
}

/// The name or the id of a cluster.
pub fn reference(value: &Value) -> Result<(), String> {
    let Value::Text(text) = value else { return Ok(()) };
    match text.parse::<fleet_model::ClusterRef>() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{text:?} is neither the name nor the id of a cluster.")),
    }
}

/// Labels in Kubernetes' syntax.
pub fn labels(value: &Value) -> Result<(), String> {
    let Value::Map(items) = value else { return Ok(()) };
    let mut labels = Labels::new();
    for (key, value) in items {
        match value {
            Value::Text(text) => drop(labels.insert(key.clone(), text.clone())),
            _ => return Err(format!("label {key:?} has no value; \"\" is one.")),
        }
    }
    first(check_labels(&labels))
}

pub fn replicas(value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) if *number == 1.0 || *number == 3.0 => Ok(()),
        Value::Number(number) => Err(format!("A cluster has 1 replica or 3, not {number}.")),
        _ => Ok(()),
    }
}

pub fn size(value: &Value) -> Result<(), String> {
    count(value, 0, fleet_model::MAX_POOL_SIZE, "machines")
}

/// How long a join token may live: Kubernetes' own limit does not exist, the manager's is 30 days.
pub fn join_token_seconds(value: &Value) -> Result<(), String> {
    count(value, 1, 30 * 24 * 3600, "seconds")
}

pub fn seconds(value: &Value) -> Result<(), String> {
    count(value, 1, u32::MAX, "seconds")
}

fn count(value: &Value, least: u32, most: u32, of: &str) -> Result<(), String> {
    let Value::Number(number) = value else { return Ok(()) };
    match whole(*number) {
        Some(number) if (least..=most).contains(&number) => Ok(()),
        _ => Err(format!("{number} is not a whole number of {of} from {least} to {most}.")),
    }
}

/// The first fault of many: a diagnostic is about one attribute, and the next plan names the next.
pub fn first(faults: Vec<FieldProblem>) -> Result<(), String> {
    match faults.into_iter().next() {
        Some(fault) => Err(sentence(fault.detail)),
        None => Ok(()),
    }
}

pub fn sentence(text: String) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).chain(['.']).collect(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::schema::Check;

    #[test]
    fn values_are_judged_before_anything_is_made() {
        let label = |value: Value| Value::Map(BTreeMap::from([("team".to_owned(), value)]));
        for (check, value, wanted) in [
            (name as Check, Value::from("web"), "fine"),
            (name, "Web".into(), "\"Web\" is no name"),
            (name, "../x".into(), "\"../x\" is no name"),
            (name, "".into(), "\"\" is no name"),
            (reference, "web".into(), "fine"),
            (reference, "01938f5e-7c1a-7c3b-9d1f-2b7e5a9c4d10".into(), "fine"),
            (reference, "a/b".into(), "\"a/b\" is neither"),
            (labels, label("red".into()), "fine"),
            (labels, label("".into()), "fine"),
            (labels, label("a/b".into()), "Label \"team\": value \"a/b\""),
            (labels, label(Value::Null), "label \"team\" has no value"),
            (replicas, 1u32.into(), "fine"),
            (replicas, 3u32.into(), "fine"),
            (replicas, 2u32.into(), "A cluster has 1 replica or 3, not 2."),
            (size, 0u32.into(), "fine"),
            (size, 1000u32.into(), "fine"),
            (size, 1001u32.into(), "1001 is not a whole number of machines from 0 to 1000."),
            (size, Value::Number(-1.0), "-1 is not"),
            (size, Value::Number(1.5), "1.5 is not"),
            (size, Value::Number(f64::NAN), "NaN is not"),
            (seconds, 0u32.into(), "0 is not"),
            (join_token_seconds, 2_592_001u32.into(), "2592001 is not"),
        ] {
            let said = check(&value).err().unwrap_or_else(|| "fine".to_owned());
            assert!(said.starts_with(wanted), "{value:?}: {said}");
        }
    }
}
