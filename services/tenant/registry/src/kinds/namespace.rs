//! Namespaces: deleted in two steps, by `spec.finalizers`, which the namespace controller empties through the
//! `finalize` subresource once everything in it is gone.

use api_machinery::{Document, FieldError};
use serde_json::{Value, json};

use crate::strategy::{Moment, NameRule, Strategy};
use crate::validation::meta;

pub(crate) struct Namespaces;

/// Every namespace says its own name in a label, so that selectors can name it.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

impl Strategy for Namespaces {
    fn names(&self) -> NameRule {
        NameRule::DnsLabel
    }
    fn defaults(&self, new: &mut Document) {
        if !new.name().is_empty() {
            let name = new.name().to_owned();
            new.object_mut("metadata.labels").insert(NAME_LABEL.to_owned(), name.into());
        }
        if new.get("spec").is_none() {
            new.set("spec", json!({}));
        }
        new.set_default("status.phase", "Active");
    }
    fn prepare_for_create(&self, _moment: &Moment<'_>, new: &mut Document) {
        new.set("status", json!({"phase": "Active"}));
        let finalizers = new.object_mut("spec").entry("finalizers").or_insert_with(|| json!([]));
        if let Value::Array(all) = finalizers
            && !all.iter().any(|one| one == "kubernetes")
        {
            all.push("kubernetes".into());
        }
    }
    fn prepare_for_update(&self, _moment: &Moment<'_>, new: &mut Document, old: &Document) {
        // Only `finalize` changes finalizers.
        match old.get("spec.finalizers") {
            Some(finalizers) => new.set("spec.finalizers", finalizers.clone()),
            None => {
                new.remove("spec.finalizers");
            }
        }
        new.keep_status_of(old);
    }
    fn validate_status_update(&self, new: &Document, _old: &Document) -> Vec<FieldError> {
        let field = api_machinery::Field::new("status.Phase");
        let phase = new.get_str("status.phase").unwrap_or_default();
        match (phase, new.is_deleting()) {
            ("Terminating", true) | ("Active" | "", false) => Vec::new(),
            ("Terminating", false) => {
                vec![field.invalid(phase, "may only be 'Active' if `deletionTimestamp` is empty")]
            }
            _ => vec![field.invalid(phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")],
        }
    }
    fn validate(&self, new: &Document) -> Vec<FieldError> {
        let field = api_machinery::Field::new("spec.finalizers");
        let finalizers = new.get_array("spec.finalizers").iter().enumerate();
        finalizers
            .flat_map(|(at, name)| meta::finalizer_name(name.as_str().unwrap_or_default(), &field.index(at)))
            .collect()
    }
    fn selectable(&self) -> &'static [&'static str] {
        &["status.phase"]
    }
    fn may_vanish(&self, object: &Document) -> bool {
        object.get_array("spec.finalizers").is_empty()
    }
    fn mark(&self, object: &mut Document, _now: jiff::Timestamp) {
        object.set("status.phase", "Terminating");
        // A namespace knows no grace; its content has its own.
        object.metadata_mut().remove("deletionGracePeriodSeconds");
    }
    fn returns_deleted(&self) -> bool {
        true
    }
}
