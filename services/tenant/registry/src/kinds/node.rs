//! Nodes, and the runtimes that a RuntimeClass names on them.

use api_machinery::{Document, Field, Object};
use serde_json::Value;

use crate::strategy::{Moment, Strategy};
use crate::validation::at::{At, Errors};
use crate::validation::{containers, meta, names, pod, scheduling};

pub(crate) struct Nodes;

impl Strategy for Nodes {
    fn defaults(&self, new: &mut Document) {
        // A node that says what it has and not what it gives, gives all.
        if let Some(capacity) = new.get("status.capacity").cloned() {
            new.set_default("status.allocatable", capacity);
        }
        if let Some(cidr) = new.get_str("spec.podCIDR").map(str::to_owned) {
            new.set_default("spec.podCIDRs", serde_json::json!([cidr]));
        }
    }
    /// Kubelets register with their status in one request: nodes keep it on creation.
    fn separates_status(&self) -> bool {
        false
    }
    fn prepare_for_update(&self, _moment: &Moment<'_>, new: &mut Document, old: &Document) {
        new.keep_status_of(old);
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let spec = At::top(new, "spec");
        let mut seen = std::collections::HashSet::new();
        for taint in spec.get("taints").items() {
            let key = taint.get("key");
            key.reasons(&mut errors, names::qualified_name(key.text()));
            let value = taint.get("value");
            value.reasons(&mut errors, names::label_value(value.text()));
            taint.get("effect").must_be_one_of(&mut errors, &["NoExecute", "NoSchedule", "PreferNoSchedule"]);
            if !seen.insert((key.text(), taint.get("effect").text())) {
                errors.push(taint.field.duplicate(taint.value.clone()));
            }
        }
        let cidrs = spec.get("podCIDRs");
        for cidr in cidrs.items() {
            cidr.reasons(&mut errors, names::cidr(cidr.text()));
        }
        if cidrs.len() > 2 {
            errors.push(cidrs.invalid("may not hold more than 1 CIDR for each IP family"));
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let mut errors = self.validate(new);
        for (path, once) in [
            ("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid"),
            ("spec.providerID", "node updates may not change providerID except from \"\" to valid"),
        ] {
            let before = old.get(path);
            let was_set = before.is_some_and(|value| !value.is_null() && value.as_str() != Some(""));
            if was_set && new.get(path) != before {
                errors.push(Field::new(path).forbidden(once));
            }
        }
        errors
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Errors {
        let mut errors = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for address in At::top(new, "status").get("addresses").items() {
            if !seen.insert(address.value.to_string()) {
                errors.push(address.field.duplicate(address.value.clone()));
            }
        }
        errors
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["spec.unschedulable"]
    }
    fn select(&self, object: &Object, path: &str) -> String {
        let set = object.field(path) == Some(Value::Bool(true));
        set.to_string()
    }
}

pub(crate) struct RuntimeClasses;

impl Strategy for RuntimeClasses {
    fn creates_on_update(&self) -> bool {
        true
    }
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn validate(&self, new: &Document) -> Errors {
        let mut errors = Vec::new();
        let handler = At::top(new, "handler");
        if handler.require(&mut errors) {
            handler.reasons(&mut errors, names::dns_label(handler.text()));
        }
        let fixed = At::top(new, "overhead").get("podFixed");
        for (name, at) in fixed.members() {
            containers::resource_name(name, &at, &mut errors);
            containers::amount(&at, &mut errors);
        }
        let scheduling = At::top(new, "scheduling");
        let selector = scheduling.get("nodeSelector");
        errors.extend(meta::labels(Some(selector.value), &selector.field));
        let mut seen = std::collections::HashSet::new();
        for toleration in scheduling.get("tolerations").items() {
            scheduling::toleration(&toleration, &mut errors);
            let key = ["key", "operator", "value", "effect"].map(|name| toleration.get(name).text());
            if !seen.insert(key) {
                errors.push(toleration.duplicate());
            }
        }
        errors
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        let (now, before) = (new.0.get("handler"), old.0.get("handler"));
        meta::immutable(now, before, &Field::new("handler")).into_iter().collect()
    }
    fn warnings(&self, new: &Document, _old: Option<&Document>) -> Vec<String> {
        let selector = At::top(new, "scheduling").get("nodeSelector");
        let field = &selector.field;
        let said = |(key, _): (&str, At<'_>)| Some(format!("{field}: {}", pod::deprecated_label(key)?));
        selector.members().filter_map(said).collect()
    }
}
