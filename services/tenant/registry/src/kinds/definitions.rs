//! CustomResourceDefinitions: what users write to get resources of their own.
//!
//! Facts: `apiextensions-apiserver/pkg/registry/customresourcedefinition/{strategy,etcd}.go`. Conditions and the
//! end of a deletion are `tenant-controllers`'; what a definition makes is `custom`.

use api_machinery::Document;
use base_clock::rfc3339;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::strategy::{Generation, Moment, Strategy};
use crate::validation::at::Errors;

pub(crate) struct Definitions;

/// Holds a deleted definition back until its objects are gone.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

impl Strategy for Definitions {
    fn generation(&self) -> Generation {
        Generation::OnSpec
    }
    fn defaults(&self, new: &mut Document) {
        let mut value = Value::Object(std::mem::take(&mut new.0));
        api_structural::default_definition(&mut value);
        if let Value::Object(members) = value {
            new.0 = members;
        }
    }
    fn prepare_for_create(&self, _moment: &Moment<'_>, new: &mut Document) {
        new.set("status", json!({"acceptedNames": {"kind": "", "plural": ""}}));
        remember_storage(new);
    }
    fn prepare_for_update(&self, _moment: &Moment<'_>, new: &mut Document, _old: &Document) {
        remember_storage(new);
    }
    fn validate(&self, new: &Document) -> Errors {
        api_structural::validate_definition(&whole(new), None)
    }
    fn validate_update(&self, new: &Document, old: &Document) -> Errors {
        api_structural::validate_definition(&whole(new), Some(&whole(old)))
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        api_structural::definition_warnings(&whole(new), old.map(whole).as_ref())
    }
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn takes_any_finalizer(&self) -> bool {
        true
    }
    fn last_finalizer(&self) -> Option<&'static str> {
        Some(CLEANUP)
    }
    fn mark(&self, object: &mut Document, now: Timestamp) {
        let mut conditions = object.get_array("status.conditions").to_vec();
        if conditions.iter().any(|one| one["type"] == "Terminating" && one["status"] == "True") {
            return;
        }
        conditions.retain(|one| one["type"] != "Terminating");
        conditions.push(json!({
            "type": "Terminating", "status": "True", "lastTransitionTime": rfc3339(now),
            "reason": "InstanceDeletionPending",
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        }));
        object.set("status.conditions", conditions);
    }
}

fn storage_version(new: &Document) -> Option<&str> {
    new.get_array("spec.versions").iter().find(|one| one["storage"] == true)?["name"].as_str()
}

/// Versions that objects were ever stored in stay on the list until somebody has rewritten them all.
fn remember_storage(new: &mut Document) {
    let Some(storage) = storage_version(new).map(str::to_owned) else { return };
    let mut stored = new.get_array("status.storedVersions").to_vec();
    if !stored.iter().any(|one| *one == storage) {
        stored.push(storage.into());
        if !new.0.get("status").is_some_and(Value::is_object) {
            new.set("status", Map::new());
        }
        new.set("status.storedVersions", stored);
    }
}

fn whole(definition: &Document) -> Value {
    Value::Object(definition.0.clone())
}
