//! HorizontalPodAutoscalers, as autoscaling/v2. Rules as in upstream's `pkg/apis/autoscaling/validation`.

use api_machinery::{Document, Quantity};
use serde_json::{Value, json};

use crate::strategy::{Moment, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::names;

/// Longest period of a scaling policy, and longest window of stabilization.
const MAX_PERIOD_SECONDS: i64 = 1800;
const MAX_WINDOW_SECONDS: i64 = 3600;
/// A metric's type, and the field that must hold what it says.
const METRICS: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];

pub(crate) struct Autoscalers;

impl Strategy for Autoscalers {
    fn defaults(&self, new: &mut Document) {
        new.set_default("spec.minReplicas", 1);
        if new.get_array("spec.metrics").is_empty() {
            let target = json!({"type": "Utilization", "averageUtilization": 80});
            new.set(
                "spec.metrics",
                json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]),
            );
        }
        if new.get("spec.behavior").is_some_and(Value::is_object) {
            let up = json!([{"type": "Pods", "value": 4, "periodSeconds": 15},
                {"type": "Percent", "value": 100, "periodSeconds": 15}]);
            let down = json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]);
            new.set_default("spec.behavior.scaleUp.stabilizationWindowSeconds", 0);
            for (direction, policies) in [("scaleUp", up), ("scaleDown", down)] {
                new.set_default(&format!("spec.behavior.{direction}.selectPolicy"), "Max");
                new.set_default(&format!("spec.behavior.{direction}.policies"), policies);
            }
        }
    }
    fn prepare_for_create(&self, _moment: &Moment<'_>, new: &mut Document) {
        new.set("status", json!({"desiredReplicas": 0}));
    }
    fn validate(&self, new: &Document) -> Errors {
        validate(new, None)
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        validate(new, Some(old))
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        let mut errors = Vec::new();
        for name in ["currentReplicas", "desiredReplicas"] {
            At::top(new, "status").get(name).not_negative(&mut errors);
        }
        errors
    }
}

/// What was there before the rule may stay: an invalid `apiVersion`.
fn validate(new: &Document, old: Option<&Document>) -> Errors {
    let spec = At::top(new, "spec");
    let mut errors = Vec::new();
    let (least, most) = (spec.get("minReplicas"), spec.get("maxReplicas"));
    // Scaling to zero is behind a gate upstream.
    if least.int().is_some_and(|count| count < 1) {
        errors.push(least.invalid("must be greater than or equal to 1"));
    }
    match most.int().unwrap_or(0) {
        0 => errors.push(most.required("must be set and greater than 0")),
        count if count < 0 => errors.push(most.invalid("must be greater than or equal to 1")),
        _ => {}
    }
    if least.int().is_some_and(|least| most.int().unwrap_or(0) < least) {
        let shown = most.int().unwrap_or(0);
        errors.push(most.field.invalid(shown, "must be greater than or equal to `minReplicas`"));
    }
    let path = "spec.scaleTargetRef.apiVersion";
    let kept = old.is_some_and(|old| old.get(path) == new.get(path));
    reference(&spec.get("scaleTargetRef"), kept, &mut errors);
    for metric in spec.get("metrics").items() {
        self::metric(&metric, old.is_some(), &mut errors);
    }
    for direction in ["scaleUp", "scaleDown"] {
        let rules = spec.get("behavior").get(direction);
        if rules.is_set() {
            scaling(&rules, &mut errors);
        }
    }
    errors
}

fn reference(at: &At<'_>, any_version: bool, errors: &mut Errors) {
    for name in ["kind", "name"] {
        let part = at.get(name);
        if part.require(errors) {
            part.reasons(errors, names::path_segment(part.text(), false));
        }
    }
    let version = at.get("apiVersion");
    if !any_version && version.text().matches('/').count() > 1 {
        errors.push(version.invalid(format!("unexpected GroupVersion string: {}", version.text())));
    }
}

fn scaling(rules: &At<'_>, errors: &mut Errors) {
    let window = rules.get("stabilizationWindowSeconds");
    match window.int() {
        Some(seconds) if seconds < 0 => errors.push(window.invalid("must be greater than or equal to zero")),
        Some(seconds) if seconds > MAX_WINDOW_SECONDS => {
            errors.push(window.invalid(format!("must be less than or equal to {MAX_WINDOW_SECONDS}")));
        }
        _ => {}
    }
    rules.get("selectPolicy").one_of(errors, &["Disabled", "Max", "Min"]);
    let policies = rules.get("policies");
    if policies.is_empty() {
        errors.push(policies.required("must specify at least one Policy"));
    }
    for policy in policies.items() {
        let kind = policy.get("type");
        if !matches!(kind.text(), "Pods" | "Percent") {
            errors.push(kind.unsupported(&["Percent", "Pods"]));
        }
        for name in ["value", "periodSeconds"] {
            let at = policy.get(name);
            let number = at.int().unwrap_or(0);
            if number <= 0 {
                errors.push(at.field.invalid(number, "must be greater than zero"));
            }
            if name == "periodSeconds" && number > MAX_PERIOD_SECONDS {
                errors.push(at.invalid(format!("must be less than or equal to {MAX_PERIOD_SECONDS}")));
            }
        }
    }
    let tolerance = rules.get("tolerance");
    if Quantity::from_json(tolerance.value).is_ok_and(|amount| amount.is_negative()) {
        errors.push(tolerance.invalid("must be greater than or equal to 0"));
    }
}

fn metric(metric: &At<'_>, any_version: bool, errors: &mut Errors) {
    let kind = metric.get("type");
    let wanted = METRICS.iter().find(|(name, _)| *name == kind.text()).map(|(_, field)| *field);
    if kind.is_empty() {
        errors.push(kind.required("must specify a metric source type"));
    }
    if wanted.is_none() {
        errors.push(kind.unsupported(&METRICS.map(|(name, _)| name)));
    }
    let present: Vec<&str> = ["object", "external", "pods", "resource", "containerResource"]
        .into_iter()
        .filter(|name| metric.get(name).is_set())
        .collect();
    // More than one is refused below; only the first is looked into.
    if let Some(first) = present.first() {
        source(first, &metric.get(first), any_version, errors);
    }
    if let Some(wanted) = wanted
        && !metric.get(wanted).is_set()
    {
        errors.push(metric.get(wanted).required("must populate information for the given metric source"));
    }
    if present.len() > 1 {
        for other in present.iter().filter(|name| Some(**name) != wanted) {
            errors.push(metric.get(other).forbidden("must populate the given metric source only"));
        }
    }
}

fn source(kind: &str, at: &At<'_>, any_version: bool, errors: &mut Errors) {
    let target = at.get("target");
    let (value, average) = (target.get("value").is_set(), target.get("averageValue").is_set());
    let utilization = target.get("averageUtilization").is_set();
    if kind == "object" {
        reference(&at.get("describedObject"), any_version, errors);
    }
    match kind {
        "object" | "external" | "pods" => {
            let name = at.get("metric").get("name");
            if name.is_empty() {
                errors.push(name.required("must specify a metric name"));
            } else {
                name.reasons(errors, names::path_segment(name.text(), false));
            }
        }
        _ => {
            let name = at.get("name");
            if name.is_empty() {
                errors.push(name.required("must specify a resource name"));
            }
            let container = at.get("container");
            if kind == "containerResource" {
                if container.is_empty() {
                    errors.push(container.required("must specify a container"));
                } else {
                    container.reasons(errors, names::dns_label(container.text()));
                }
            }
        }
    }
    self::target(&target, errors);
    match kind {
        "object" if !value && !average => {
            errors.push(target.get("averageValue").required("must set either a target value or averageValue"))
        }
        "external" if !value && !average => errors.push(
            target
                .get("averageValue")
                .required("must set either a target value for metric or a per-pod target"),
        ),
        "external" if value && average => errors.push(
            target.get("value").forbidden("may not set both a target value for metric and a per-pod target"),
        ),
        "pods" if !average => {
            errors.push(target.get("averageValue").required("must specify a positive target averageValue"))
        }
        "resource" | "containerResource" if !utilization && !average => errors.push(
            target
                .get("averageUtilization")
                .required("must set either a target raw value or a target utilization"),
        ),
        "resource" | "containerResource" if utilization && average => errors.push(
            target
                .get("averageValue")
                .forbidden("may not set both a target raw value and a target utilization"),
        ),
        _ => {}
    }
}

fn target(target: &At<'_>, errors: &mut Errors) {
    let kind = target.get("type");
    if kind.is_empty() {
        errors.push(kind.required("must specify a metric target type"));
    }
    if !matches!(kind.text(), "Utilization" | "Value" | "AverageValue") {
        errors.push(kind.invalid("must be either Utilization, Value, or AverageValue"));
    }
    for name in ["value", "averageValue"] {
        let at = target.get(name);
        if Quantity::from_json(at.value).is_ok_and(|amount| amount.is_zero() || amount.is_negative()) {
            errors.push(at.invalid("must be positive"));
        }
    }
    let utilization = target.get("averageUtilization");
    if utilization.int().is_some_and(|percent| percent < 1) {
        errors.push(utilization.invalid("must be greater than 0"));
    }
}
