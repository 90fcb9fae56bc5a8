//! How custom resources differ from built-in ones.
//!
//! Facts: `apiextensions-apiserver/pkg/registry/customresource/{strategy,status_strategy,validator}.go`.

use api_machinery::{Document, FieldError, Object};
use api_structural::{Part, ScalePaths};
use serde_json::Value;

use super::definition::CustomResource;
use crate::strategy::{Generation, Moment, Strategy, Write, field_text};
use crate::validation::meta;

impl Strategy for CustomResource {
    fn generation(&self) -> Generation {
        // Without a status of its own, that is content like any other.
        if self.has_status() { Generation::OnContent } else { Generation::OnEverything }
    }
    fn defaults(&self, new: &mut Document) {
        if let Some(schema) = self.schema() {
            schema.default(new);
        }
    }
    fn prepare_for_create(&self, _moment: &Moment<'_>, new: &mut Document) {
        if self.has_status() {
            new.clear_status();
        }
    }
    fn prepare_for_status_update(&self, _moment: &Moment<'_>, new: &mut Document, old: &Document) {
        // Nothing but the status; who owns it was recorded on the way here.
        let managed = new.metadata_mut().remove("managedFields");
        if let Some(metadata) = old.0.get("metadata") {
            new.0.insert("metadata".to_owned(), metadata.clone());
        }
        match managed {
            Some(managed) => new.metadata_mut().insert("managedFields".to_owned(), managed),
            None => new.metadata_mut().remove("managedFields"),
        };
    }
    fn judge(
        &self,
        new: &Document,
        old: Option<&Document>,
        write: Write,
        warnings: &mut Vec<String>,
    ) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let part = if write == Write::Status { Part::Status } else { Part::Whole };
        if let Some(schema) = self.schema() {
            let (found, warned) = schema.validate(new, old, part);
            errors.extend(found);
            warnings.extend(warned);
        }
        if let Some(scale) = self.scale() {
            let written = |path: &String| format!(".{path}");
            let (spec, status) = (written(&scale.spec_replicas), written(&scale.status_replicas));
            let selector = scale.selector.as_ref().map(written);
            let paths = ScalePaths {
                spec_replicas: &spec,
                status_replicas: &status,
                label_selector: selector.as_deref(),
            };
            errors.extend(api_structural::validate_scale(&Value::Object(new.0.clone()), paths, part));
        }
        errors
    }
    fn warnings(&self, new: &Document, old: Option<&Document>) -> Vec<String> {
        let known = old.map(Document::finalizers).unwrap_or_default();
        let added = new.finalizers().into_iter().filter(|one| !known.contains(one));
        added.filter_map(meta::finalizer_warning).collect()
    }
    fn selects(&self, path: &str) -> bool {
        self.selectable().iter().any(|one| one == path)
    }
    fn select(&self, object: &Object, path: &str) -> String {
        field_text(object, path)
    }
    fn updates_unconditionally(&self) -> bool {
        false
    }
    fn separates_status(&self) -> bool {
        self.has_status()
    }
    fn has_empty_status(&self) -> bool {
        false
    }
    fn takes_any_finalizer(&self) -> bool {
        true
    }
    fn refuses_new(&self) -> Option<&'static str> {
        self.is_terminating().then_some("create not allowed while custom resource definition is terminating")
    }
}
