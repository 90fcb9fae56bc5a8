//! What a pod's spec tells the scheduler: tolerations, affinities, spread.

use serde_json::Value;

use super::at::{At, Errors};
use super::{names, selector};

pub(crate) fn validate(spec: &At<'_>, errors: &mut Errors) {
    for toleration in spec.get("tolerations").items() {
        self::toleration(&toleration, errors);
    }
    affinity(&spec.get("affinity"), errors);
    spread(&spec.get("topologySpreadConstraints"), errors);
}

pub(crate) fn toleration(toleration: &At<'_>, errors: &mut Errors) {
    let (key, operator) = (toleration.get("key"), toleration.get("operator"));
    let (value, effect) = (toleration.get("value"), toleration.get("effect"));
    if !key.is_empty() {
        key.reasons(errors, names::qualified_name(key.text()));
    } else if operator.text() != "Exists" {
        errors.push(operator.invalid(
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ));
    }
    if toleration.get("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
        errors.push(effect.invalid("effect must be 'NoExecute' when `tolerationSeconds` is set"));
    }
    match operator.text() {
        "Equal" | "" => value.reasons(errors, names::label_value(value.text())),
        "Exists" => {
            if !value.is_empty() {
                errors.push(
                    operator
                        .field
                        .invalid(toleration.value.clone(), "value must be empty when `operator` is 'Exists'"),
                );
            }
        }
        _ => errors.push(operator.unsupported(&["Equal", "Exists"])),
    }
    if !effect.is_empty() {
        effect.one_of(errors, &["NoExecute", "NoSchedule", "PreferNoSchedule"]);
    }
}

fn affinity(affinity: &At<'_>, errors: &mut Errors) {
    let node = affinity.get("nodeAffinity");
    let required = node.get("requiredDuringSchedulingIgnoredDuringExecution");
    if required.is_set() {
        node_selector(&required, errors);
    }
    for preferred in node.get("preferredDuringSchedulingIgnoredDuringExecution").items() {
        weight(&preferred.get("weight"), errors);
        node_term(&preferred.get("preference"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let at = affinity.get(kind);
        for term in at.get("requiredDuringSchedulingIgnoredDuringExecution").items() {
            pod_term(&term, errors);
        }
        for preferred in at.get("preferredDuringSchedulingIgnoredDuringExecution").items() {
            weight(&preferred.get("weight"), errors);
            pod_term(&preferred.get("podAffinityTerm"), errors);
        }
    }
}

fn weight(at: &At<'_>, errors: &mut Errors) {
    if !at.int().is_some_and(|weight| (1..=100).contains(&weight)) {
        let shown = at.int().unwrap_or(0);
        errors.push(at.field.invalid(shown, "must be in the range 1-100"));
    }
}

fn node_selector(at: &At<'_>, errors: &mut Errors) {
    let terms = at.get("nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(terms.required("must have at least one node selector term"));
    }
    for term in terms.items() {
        node_term(&term, errors);
    }
}

fn node_term(term: &At<'_>, errors: &mut Errors) {
    for expression in term.get("matchExpressions").items() {
        let (key, operator) = (expression.get("key"), expression.get("operator"));
        let values = expression.get("values");
        match operator.text() {
            "In" | "NotIn" => {
                if values.is_empty() {
                    errors.push(values.required("must be specified when `operator` is 'In' or 'NotIn'"));
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    errors.push(
                        values
                            .forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
                    );
                }
            }
            "Gt" | "Lt" => {
                if values.len() != 1 {
                    errors.push(
                        values.required("must be specified single value when `operator` is 'Lt' or 'Gt'"),
                    );
                }
            }
            _ => errors.push(operator.invalid("not a valid selector operator")),
        }
        key.reasons(errors, names::qualified_name(key.text()));
        for value in values.items() {
            value.reasons(errors, names::label_value(value.text()));
        }
    }
    for field in term.get("matchFields").items() {
        let key = field.get("key");
        if key.text() != "metadata.name" {
            errors.push(key.invalid("not a valid field selector key"));
        }
        let operator = field.get("operator");
        if !matches!(operator.text(), "In" | "NotIn") {
            errors.push(operator.invalid("not a valid selector operator"));
        }
        if field.get("values").len() != 1 {
            errors.push(field.get("values").required(
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            ));
        }
    }
}

fn pod_term(term: &At<'_>, errors: &mut Errors) {
    for name in ["labelSelector", "namespaceSelector"] {
        let at = term.get(name);
        if at.is_set() {
            errors.extend(selector::validate(Some(at.value), &at.field));
        }
    }
    for namespace in term.get("namespaces").items() {
        namespace.reasons(errors, names::dns_label(namespace.text()));
    }
    let key = term.get("topologyKey");
    if key.is_empty() {
        errors.push(key.required("can not be empty"));
    } else {
        key.reasons(errors, names::qualified_name(key.text()));
    }
}

fn spread(constraints: &At<'_>, errors: &mut Errors) {
    let mut seen = std::collections::HashSet::new();
    for constraint in constraints.items() {
        let skew = constraint.get("maxSkew");
        if skew.int().unwrap_or(0) <= 0 {
            errors.push(skew.field.invalid(skew.int().unwrap_or(0), "must be greater than 0"));
        }
        let key = constraint.get("topologyKey");
        if key.is_empty() {
            errors.push(key.required("can not be empty"));
        }
        let action = constraint.get("whenUnsatisfiable");
        action.must_be_one_of(errors, &["DoNotSchedule", "ScheduleAnyway"]);
        let domains = constraint.get("minDomains");
        if domains.is_set() {
            domains.positive(errors);
            if action.text() != "DoNotSchedule" {
                errors.push(domains.invalid(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ".to_owned()
                        + action.text(),
                ));
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.get(policy).one_of(errors, &["Honor", "Ignore"]);
        }
        let chosen = constraint.get("labelSelector");
        if chosen.is_set() {
            errors.extend(selector::validate(Some(chosen.value), &chosen.field));
        }
        if !seen.insert((key.text(), action.text())) {
            let shown = Value::from(format!("{{{}, {}}}", key.text(), action.text()));
            errors.push(constraint.field.duplicate(shown));
        }
    }
}
