//! Between the version a client speaks and the version the store keeps.
//!
//! Nearly all kinds have the same body in every served version. The exceptions are here: events, which have
//! two faces in two groups, and HorizontalPodAutoscalers, whose v1 hides what it cannot say in annotations.
//!
//! Not here: custom resources (`custom/versions.rs`).

use std::sync::Arc;

use api_kinds::ResourceInfo;
use api_machinery::{Document, Object, Status};
use serde_json::{Map, Value, json};

/// A stored object as `resource` shows it; the same `Arc` where nothing differs.
pub(crate) fn served_object(resource: &ResourceInfo, object: &Arc<Object>) -> Result<Arc<Object>, Status> {
    if same_body(resource) {
        return Ok(object.clone());
    }
    let mut document = object.to_document().map_err(|cause| Status::internal(cause.to_string()))?;
    to_served(resource, &mut document);
    let converted = Object::from_document(&document).map_err(|cause| Status::internal(cause.to_string()))?;
    Ok(Arc::new(converted))
}

pub(crate) fn to_served(resource: &ResourceInfo, document: &mut Document) {
    document.set("apiVersion", resource.gvk.api_version());
    document.set("kind", resource.gvk.kind.to_string());
    match conversion(resource) {
        Conversion::None => {}
        Conversion::Event => rename(document, EVENT_FIELDS, false),
        Conversion::Autoscaler => autoscaler_v2_to_v1(document),
    }
}

pub(crate) fn to_storage(resource: &ResourceInfo, document: &mut Document) {
    if resource.is_custom() {
        // Decided on in the version asked for; see `custom/versions.rs`.
        return;
    }
    document.set("apiVersion", resource.storage.api_version());
    document.set("kind", resource.gvk.kind.to_string());
    match conversion(resource) {
        Conversion::None => {}
        Conversion::Event => rename(document, EVENT_FIELDS, true),
        Conversion::Autoscaler => autoscaler_v1_to_v2(document),
    }
}

enum Conversion {
    None,
    Event,
    Autoscaler,
}

fn conversion(resource: &ResourceInfo) -> Conversion {
    if resource.is_custom() {
        return Conversion::None;
    }
    match (&*resource.gvk.group, &*resource.gvk.version, &*resource.gvk.kind) {
        ("events.k8s.io", _, "Event") => Conversion::Event,
        ("autoscaling", "v1", "HorizontalPodAutoscaler") => Conversion::Autoscaler,
        _ => Conversion::None,
    }
}

fn same_body(resource: &ResourceInfo) -> bool {
    matches!(conversion(resource), Conversion::None)
}

/// Core name and `events.k8s.io` name of what the two faces of an event call differently.
const EVENT_FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn rename(document: &mut Document, fields: &[(&str, &str)], to_storage: bool) {
    for (core, other) in fields {
        let (from, to) = if to_storage { (other, core) } else { (core, other) };
        if let Some(value) = document.0.remove(*from) {
            document.0.insert((*to).to_owned(), value);
        }
    }
}

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

fn is_cpu_utilization(metric: &Value) -> Option<i64> {
    let resource = metric.get("resource")?;
    let is_cpu = metric["type"] == "Resource" && resource["name"] == "cpu";
    let target = resource.get("target").or_else(|| resource.get("current"))?;
    is_cpu.then(|| target.get("averageUtilization")?.as_i64()).flatten()
}

fn take_list(object: Option<&mut Value>, name: &str) -> Vec<Value> {
    match object.and_then(Value::as_object_mut).and_then(|map| map.remove(name)) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn autoscaler_v2_to_v1(document: &mut Document) {
    let mut hidden = Map::new();
    let mut hide = |key: &str, value: Value| hidden.insert(key.to_owned(), Value::from(value.to_string()));
    let mut metrics = take_list(document.0.get_mut("spec"), "metrics");
    if let Some(at) = metrics.iter().position(|metric| is_cpu_utilization(metric).is_some()) {
        let cpu = metrics.remove(at);
        document.set("spec.targetCPUUtilizationPercentage", is_cpu_utilization(&cpu).unwrap_or_default());
    }
    if !metrics.is_empty() {
        hide(METRICS, Value::Array(metrics));
    }
    if let Some(behavior) = document.remove("spec.behavior") {
        hide(BEHAVIOR, behavior);
    }
    let mut current = take_list(document.0.get_mut("status"), "currentMetrics");
    if let Some(at) = current.iter().position(|metric| is_cpu_utilization(metric).is_some()) {
        let cpu = current.remove(at);
        document.set("status.currentCPUUtilizationPercentage", is_cpu_utilization(&cpu).unwrap_or_default());
    }
    if !current.is_empty() {
        hide(CURRENT_METRICS, Value::Array(current));
    }
    let conditions = take_list(document.0.get_mut("status"), "conditions");
    if !conditions.is_empty() {
        hide(CONDITIONS, Value::Array(conditions));
    }
    if !hidden.is_empty() {
        document.object_mut("metadata.annotations").append(&mut hidden);
    }
}

fn autoscaler_v1_to_v2(document: &mut Document) {
    let mut shown = |key: &str| -> Option<Value> {
        let annotations = document.get_mut("metadata.annotations")?.as_object_mut()?;
        let text = annotations.get(key)?.as_str()?.to_owned();
        let value = serde_json::from_str(&text).ok()?;
        annotations.remove(key);
        Some(value)
    };
    let (metrics, current) = (shown(METRICS), shown(CURRENT_METRICS));
    let (conditions, behavior) = (shown(CONDITIONS), shown(BEHAVIOR));
    if document.get("metadata.annotations").and_then(Value::as_object).is_some_and(Map::is_empty) {
        document.remove("metadata.annotations");
    }
    let mut all = match metrics {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    if let Some(percent) = document.remove("spec.targetCPUUtilizationPercentage") {
        let target = json!({"type": "Utilization", "averageUtilization": percent});
        all.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
    }
    if !all.is_empty() {
        document.set("spec.metrics", all);
    }
    if let Some(behavior) = behavior {
        document.set("spec.behavior", behavior);
    }
    let mut all = match current {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    if let Some(percent) = document.remove("status.currentCPUUtilizationPercentage") {
        let current = json!({"averageUtilization": percent});
        all.push(json!({"type": "Resource", "resource": {"name": "cpu", "current": current}}));
    }
    if !all.is_empty() {
        document.set("status.currentMetrics", all);
    }
    if let Some(conditions) = conditions {
        document.set("status.conditions", conditions);
    }
}
