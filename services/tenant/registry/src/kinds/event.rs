//! Events, both faces of them: kept for an hour.
//!
//! Stored as `v1`; `events.k8s.io` clients see them renamed (`convert`) and are held to stricter rules, which
//! are told by `eventTime` as upstream tells them.

use api_machinery::{Document, Field, FieldError, Object};

use crate::strategy::{GarbagePolicy, Strategy};

pub(crate) struct Events;

const LIVES_MS: i64 = 60 * 60 * 1000;

impl Strategy for Events {
    fn lives_ms(&self) -> Option<i64> {
        Some(LIVES_MS)
    }
    fn garbage_policy(&self) -> GarbagePolicy {
        GarbagePolicy::Unsupported
    }
    fn creates_on_update(&self) -> bool {
        true
    }
    fn validate(&self, new: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let involved = new.get_str("involvedObject.namespace").unwrap_or_default();
        let field = Field::new("involvedObject.namespace");
        if involved.is_empty() {
            // About something cluster-scoped: lives in the default namespace, or where the server keeps such.
            if !matches!(new.namespace(), "default" | "kube-system") {
                errors.push(field.invalid(involved, "does not match event.namespace"));
            }
        } else if involved != new.namespace() {
            errors.push(field.invalid(involved, "does not match event.namespace"));
        }
        if new.get_str("eventTime").is_none() {
            return errors;
        }
        let text = |path: &str| new.get_str(path).unwrap_or_default();
        if text("reportingComponent").is_empty() {
            errors.push(Field::new("reportingController").required(""));
        } else {
            let name = text("reportingComponent");
            let reasons = crate::validation::names::qualified_name(name);
            errors
                .extend(reasons.into_iter().map(|why| Field::new("reportingController").invalid(name, why)));
        }
        for (path, most) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
            let length = text(path).len();
            if length == 0 {
                errors.push(Field::new(path).required(""));
            } else if length > most {
                errors.push(Field::new(path).invalid("", format!("can have at most {most} characters")));
            }
        }
        if text("message").len() > 1024 {
            errors.push(Field::new("message").invalid("", "can have at most 1024 characters"));
        }
        if !matches!(text("type"), "Normal" | "Warning") {
            errors.push(Field::new("type").invalid("", "has invalid value: ".to_owned() + text("type")));
        }
        errors
    }
    fn selectable(&self) -> &'static [&'static str] {
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "reason",
            "reportingComponent",
            "reportingController",
            "source",
            "type",
        ]
    }
    fn select(&self, object: &Object, path: &str) -> String {
        let text = |path: &str| crate::strategy::field_text(object, path);
        match path.split_once('.') {
            Some(("regarding", rest)) => text(&format!("involvedObject.{rest}")),
            _ if path == "reportingController" => text("reportingComponent"),
            _ if path == "source" => {
                let source = text("source.component");
                if source.is_empty() { text("reportingComponent") } else { source }
            }
            _ => text(path),
        }
    }
}
