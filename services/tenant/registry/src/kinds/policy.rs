//! What limits others: LimitRange, ResourceQuota, PodDisruptionBudget.

use api_machinery::{Document, Quantity};
use serde_json::{Map, Value};

use super::apps::{at_most_whole, count_or_percent};
use super::pod_defaults::items;
use crate::strategy::{Generation, Moment, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{names, selector};

pub(crate) struct LimitRanges;

impl Strategy for LimitRanges {
    fn creates_on_update(&self) -> bool {
        true
    }
    fn defaults(&self, new: &mut Document) {
        for item in items(new.get_mut("spec.limits")) {
            if item.get("type").and_then(Value::as_str) != Some("Container") {
                continue;
            }
            // The least said fills what was left open: max → default → defaultRequest, then min.
            let read = |item: &Map<String, Value>, name: &str| -> Map<String, Value> {
                item.get(name).and_then(Value::as_object).cloned().unwrap_or_default()
            };
            let mut default = read(item, "default");
            let mut request = read(item, "defaultRequest");
            for (name, amount) in read(item, "max") {
                default.entry(name).or_insert(amount);
            }
            for (name, amount) in &default {
                request.entry(name.clone()).or_insert(amount.clone());
            }
            for (name, amount) in read(item, "min") {
                request.entry(name).or_insert(amount);
            }
            for (name, map) in [("default", default), ("defaultRequest", request)] {
                if !map.is_empty() {
                    item.insert(name.to_owned(), map.into());
                }
            }
        }
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for item in At::top(new, "spec").get("limits").items() {
            let kind = item.get("type");
            if kind.require(&mut errors) && !seen.insert(kind.text()) {
                errors.push(kind.duplicate());
            }
            let amount =
                |name: &str, resource: &str| Quantity::from_json(item.get(name).get(resource).value).ok();
            let mut resources = std::collections::BTreeSet::new();
            for name in ["min", "max", "default", "defaultRequest", "maxLimitRequestRatio"] {
                for (resource, at) in item.get(name).members() {
                    if resources.insert(resource) {
                        at.reasons(&mut errors, names::qualified_name(resource));
                    }
                }
            }
            if kind.text() == "Pod" {
                for name in ["default", "defaultRequest"] {
                    if !item.get(name).is_empty() {
                        errors.push(item.get(name).forbidden("may not be specified when `type` is 'Pod'"));
                    }
                }
            }
            for resource in resources {
                let (min, max) = (amount("min", resource), amount("max", resource));
                let (default, request) = (amount("default", resource), amount("defaultRequest", resource));
                let mut ordered = |low: Option<Quantity>,
                                   high: Option<Quantity>,
                                   name: &str,
                                   low_name: &str,
                                   high_name: &str| {
                    if let (Some(low), Some(high)) = (low, high)
                        && low > high
                    {
                        let shown = item.get(name).get(resource);
                        errors.push(item.get(name).field.key(resource).invalid(
                            shown.value.clone(),
                            format!("{low_name} value {low} is greater than {high_name} value {high}"),
                        ));
                    }
                };
                ordered(min, max, "min", "min", "max");
                ordered(min, request, "defaultRequest", "min", "default request");
                ordered(request, max, "defaultRequest", "default request", "max");
                ordered(request, default, "defaultRequest", "default request", "default limit");
                ordered(min, default, "default", "min", "default");
                ordered(default, max, "default", "default", "max");
            }
        }
        errors
    }
}

pub(crate) struct ResourceQuotas;

impl Strategy for ResourceQuotas {
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let spec = At::top(new, "spec");
        for (name, at) in spec.get("hard").members() {
            at.reasons(&mut errors, names::qualified_name(name));
            if Quantity::from_json(at.value).is_ok_and(|amount| amount.is_negative()) {
                errors.push(at.invalid("must be greater than or equal to 0"));
            }
        }
        for scope in spec.get("scopes").items() {
            scope.one_of(
                &mut errors,
                &[
                    "BestEffort",
                    "CrossNamespacePodAffinity",
                    "NotBestEffort",
                    "NotTerminating",
                    "PriorityClass",
                    "Terminating",
                    "VolumeAttributesClass",
                ],
            );
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        let (now, before) = (At::top(new, "spec").get("scopes"), At::top(old, "spec").get("scopes"));
        now.same_as(&mut errors, &before);
        errors
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}

pub(crate) struct DisruptionBudgets;

impl Strategy for DisruptionBudgets {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn prepare_for_create(&self, _moment: &Moment<'_>, new: &mut Document) {
        let zero = ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"];
        let status: Map<String, Value> = zero.iter().map(|name| ((*name).to_owned(), 0.into())).collect();
        new.set("status", status);
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let spec = At::top(new, "spec");
        let (least, most) = (spec.get("minAvailable"), spec.get("maxUnavailable"));
        if least.is_set() && most.is_set() {
            errors.push(spec.invalid("minAvailable and maxUnavailable cannot be both set"));
        }
        for at in [&least, &most] {
            count_or_percent(at, &mut errors);
            at_most_whole(at, &mut errors);
        }
        let chosen = spec.get("selector");
        errors.extend(selector::validate(Some(chosen.value).filter(|value| !value.is_null()), &chosen.field));
        spec.get("unhealthyPodEvictionPolicy").one_of(&mut errors, &["AlwaysAllow", "IfHealthyBudget"]);
        errors
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        let mut errors = Vec::new();
        let status = At::top(new, "status");
        for name in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
            status.get(name).not_negative(&mut errors);
        }
        errors
    }
}
