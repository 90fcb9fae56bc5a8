//! How custom resources differ from built-in ones.
//!
//! Facts: `apiextensions-apiserver/pkg/registry/customresource/{strategy,status_strategy,validator}.go`.

use api_machinery::{Document, Field, FieldError, Object};
use api_structural::Part;
use serde_json::Value;

use super::definition::{CustomResource, Scale};
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
        if let Some(schema) = self.schema() {
            let part = if write == Write::Status { Part::Status } else { Part::Whole };
            let (found, warned) = schema.validate(new, old, part);
            errors.extend(found);
            warnings.extend(warned);
        }
        if let Some(scale) = self.scale() {
            validate_scale(scale, new, &mut errors);
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

/// Replicas are counts, wherever the definition says they are.
fn validate_scale(scale: &Scale, new: &Document, errors: &mut Vec<FieldError>) {
    for path in [&scale.spec_replicas, &scale.status_replicas] {
        let Some(value) = new.get(path).filter(|value| !value.is_null()) else { continue };
        let field = path.split('.').fold(None, |field: Option<Field>, part| {
            Some(field.map_or_else(|| Field::new(part), |field| field.child(part)))
        });
        let Some(field) = field else { continue };
        match value.as_i64() {
            Some(count) if count < 0 => {
                errors.push(field.invalid(count, "should be a non-negative integer"));
            }
            Some(count) if i32::try_from(count).is_err() => {
                errors.push(field.invalid(count, format!("should be less than or equal to {}", i32::MAX)));
            }
            Some(_) => {}
            None => {
                let shown = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                errors.push(field.invalid(shown, "should be an integer"));
            }
        }
    }
    if let Some(path) = &scale.selector
        && let Some(value) = new.get(path).filter(|value| !value.is_null() && !value.is_string())
    {
        let field = path
            .split('.')
            .skip(1)
            .fold(Field::new(path.split('.').next().unwrap_or_default()), |field, part| field.child(part));
        errors.push(field.invalid(value.to_string(), "should be a string"));
    }
}
