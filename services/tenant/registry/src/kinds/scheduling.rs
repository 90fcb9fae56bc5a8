//! PriorityClasses.

use api_machinery::{Document, Field};
use serde_json::Value;

use super::pod_defaults::text;
use crate::strategy::Strategy;
use crate::validation::at::{At, Errors};
use crate::validation::meta;

pub(crate) struct PriorityClasses;

/// Above this only the system's own classes.
const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;

impl Strategy for PriorityClasses {
    fn defaults(&self, new: &mut Document) {
        text(&mut new.0, "preemptionPolicy", "PreemptLowerPriority");
        if new.get("globalDefault") == Some(&Value::Bool(false)) {
            new.remove("globalDefault");
        }
        new.set_default("value", 0);
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let value = At::top(new, "value");
        let system = new.name().starts_with("system-");
        let known = match new.name() {
            "system-cluster-critical" => value.int() == Some(2_000_000_000),
            "system-node-critical" => value.int() == Some(2_000_001_000),
            _ => false,
        };
        if system && !known {
            errors.push(
                Field::new("metadata.name")
                    .forbidden("priority class names with 'system-' prefix are reserved for system use only. error: it is not a known system priority class"),
            );
        } else if !system && value.int().unwrap_or(0) > HIGHEST_USER_PRIORITY {
            errors.push(value.forbidden(format!(
                "maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
            )));
        }
        At::top(new, "preemptionPolicy").one_of(&mut errors, &["Never", "PreemptLowerPriority"]);
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        if new.0.get("value") != old.0.get("value") {
            errors.push(Field::new("value").forbidden("may not be changed in an update."));
        }
        let (now, before) = (new.0.get("preemptionPolicy"), old.0.get("preemptionPolicy"));
        errors.extend(meta::immutable(now, before, &Field::new("preemptionPolicy")));
        errors
    }
}
