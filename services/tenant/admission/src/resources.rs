//! What a pod asks for, added up over its containers.

use std::collections::BTreeMap;

use api_machinery::{Document, Quantity};
use serde_json::Value;

pub(crate) type Amounts = BTreeMap<String, Quantity>;

pub(crate) fn amounts(value: Option<&Value>) -> Amounts {
    let members = value.and_then(Value::as_object).into_iter().flatten();
    members.filter_map(|(name, amount)| Some((name.clone(), Quantity::from_json(amount).ok()?))).collect()
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let entry = sum.entry(name.clone()).or_insert(Quantity::ZERO);
        *entry = entry.plus(*amount);
    }
}

fn at_least(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = sum.entry(name.clone()).or_insert(*amount);
        if *amount > *entry {
            *entry = *amount;
        }
    }
}

/// `kind` is `requests` or `limits`: containers add up; init containers run one after the other beside the
/// sidecars started before them; overhead comes on top.
pub(crate) fn of_pod(pod: &Document, kind: &str) -> Amounts {
    let of = |container: &Value| amounts(container.pointer(&format!("/resources/{kind}")));
    let mut sum = Amounts::new();
    for container in pod.get_array("spec.containers") {
        add(&mut sum, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in pod.get_array("spec.initContainers") {
        if container["restartPolicy"] == "Always" {
            add(&mut sum, &of(container));
            add(&mut sidecars, &of(container));
            at_least(&mut peak, &sidecars);
        } else {
            let mut now = sidecars.clone();
            add(&mut now, &of(container));
            at_least(&mut peak, &now);
        }
    }
    at_least(&mut sum, &peak);
    // A budget for the whole pod stands instead of the sum.
    for (name, amount) in amounts(pod.get(&format!("spec.resources.{kind}"))) {
        sum.insert(name, amount);
    }
    let overhead = amounts(pod.get("spec.overhead"));
    for (name, amount) in &overhead {
        if kind == "requests" || sum.contains_key(name) {
            let entry = sum.entry(name.clone()).or_insert(Quantity::ZERO);
            *entry = entry.plus(*amount);
        }
    }
    sum
}
