//! `metadata`, for all kinds alike.

use api_machinery::{Document, Field, FieldError};
use serde_json::{Map, Value};

use super::names;
use crate::strategy::Strategy;

/// All annotations of an object together.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

/// Finalizers that need no domain in front.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

pub(crate) fn validate(new: &Document, namespaced: bool, strategy: &dyn Strategy) -> Vec<FieldError> {
    let rule = strategy.names();
    let meta = Field::new("metadata");
    let mut errors = Vec::new();
    let generate_name = new.generate_name();
    if !generate_name.is_empty() {
        let reasons = names::check(rule, generate_name, true);
        errors.extend(reasons.into_iter().map(|why| meta.child("generateName").invalid(generate_name, why)));
    }
    if new.name().is_empty() {
        errors.push(meta.child("name").required("name or generateName is required"));
    } else {
        let reasons = names::check(rule, new.name(), false);
        errors.extend(reasons.into_iter().map(|why| meta.child("name").invalid(new.name(), why)));
    }
    if namespaced {
        if new.namespace().is_empty() {
            errors.push(meta.child("namespace").required(""));
        } else {
            let reasons = names::dns_label(new.namespace());
            errors
                .extend(reasons.into_iter().map(|why| meta.child("namespace").invalid(new.namespace(), why)));
        }
    } else if !new.namespace().is_empty() {
        errors.push(meta.child("namespace").forbidden("not allowed on this type"));
    }
    if new.generation() < 0 {
        errors.push(meta.child("generation").invalid(new.generation(), "must be greater than or equal to 0"));
    }
    errors.extend(labels(new.get("metadata.labels"), &meta.child("labels")));
    errors.extend(annotations(new.get("metadata.annotations"), &meta.child("annotations")));
    errors.extend(owners(new, &meta.child("ownerReferences")));
    errors.extend(finalizers(new, &meta.child("finalizers"), strategy.takes_any_finalizer()));
    errors
}

/// Beyond [`validate`], what an update may not do. System fields were carried over before.
pub(crate) fn validate_update(new: &Document, old: &Document) -> Vec<FieldError> {
    let meta = Field::new("metadata");
    let mut errors = Vec::new();
    if new.generation() < old.generation() {
        errors.push(meta.child("generation").invalid(new.generation(), "must not be decremented"));
    }
    for (path, name) in
        [("metadata.name", "name"), ("metadata.namespace", "namespace"), ("metadata.uid", "uid")]
    {
        let (now, before) = (new.get_str(path).unwrap_or_default(), old.get_str(path).unwrap_or_default());
        if now != before {
            errors.push(meta.child(name).invalid(now, IMMUTABLE));
        }
    }
    if old.is_deleting() {
        let before = old.finalizers();
        let added: Vec<String> = new
            .finalizers()
            .into_iter()
            .filter(|one| !before.contains(one))
            .map(|one| format!("{one:?}"))
            .collect();
        if !added.is_empty() {
            errors.push(meta.child("finalizers").forbidden(format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            )));
        }
    }
    errors
}

pub(crate) const IMMUTABLE: &str = "field is immutable";

pub(crate) fn labels(value: Option<&Value>, field: &Field) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in members(value) {
        errors.extend(names::qualified_name(key).into_iter().map(|why| field.invalid(key.as_str(), why)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(names::label_value(value).into_iter().map(|why| field.key(key).invalid(value, why)));
    }
    errors
}

pub(crate) fn annotations(value: Option<&Value>, field: &Field) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut bytes = 0;
    for (key, value) in members(value) {
        // Case does not matter here: old annotations have capitals in their domain.
        let reasons = names::qualified_name(&key.to_lowercase());
        errors.extend(reasons.into_iter().map(|why| field.invalid(key.as_str(), why)));
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > MAX_ANNOTATION_BYTES {
        errors.push(field.too_long(MAX_ANNOTATION_BYTES));
    }
    errors
}

fn owners(new: &Document, field: &Field) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut controller: Option<&str> = None;
    for (at, owner) in new.get_array("metadata.ownerReferences").iter().enumerate() {
        let field = field.index(at);
        let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
        let version = text("apiVersion").rsplit_once('/').map_or(text("apiVersion"), |(_, version)| version);
        if version.is_empty() {
            errors.push(field.child("apiVersion").invalid(text("apiVersion"), "version must not be empty"));
        }
        for name in ["kind", "name", "uid"] {
            if text(name).is_empty() {
                errors.push(field.child(name).invalid("", "must not be empty"));
            }
        }
        if text("apiVersion") == "v1" && text("kind") == "Event" {
            errors
                .push(field.invalid("/v1, Kind=Event", "/v1, Kind=Event is disallowed from being an owner"));
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            match controller {
                Some(first) => errors.push(Field::new("metadata.ownerReferences").invalid(
                    Value::Array(new.get_array("metadata.ownerReferences").to_vec()),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {}",
                        text("name")
                    ),
                )),
                None => controller = Some(text("name")),
            }
        }
    }
    errors
}

fn finalizers(new: &Document, field: &Field, any: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let all = new.finalizers();
    for (at, name) in all.iter().enumerate() {
        let field = field.index(at);
        if any {
            errors.extend(names::qualified_name(name).into_iter().map(|why| field.invalid(*name, why)));
        } else {
            errors.extend(finalizer_name(name, &field));
        }
    }
    if all.contains(&"orphan") && all.contains(&"foregroundDeletion") {
        errors.push(
            field.invalid(
                Value::from(all.clone()),
                "finalizer foregroundDeletion and orphan cannot be both set",
            ),
        );
    }
    errors
}

pub(crate) fn finalizer_name(name: &str, field: &Field) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> =
        names::qualified_name(name).into_iter().map(|why| field.invalid(name, why)).collect();
    if errors.is_empty() && !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
        errors
            .push(field.invalid(name, "name is neither a standard finalizer name nor is it fully qualified"));
    }
    errors
}

/// What is said of a finalizer's name where names without a domain are allowed.
pub(crate) fn finalizer_warning(name: &str) -> Option<String> {
    if name.contains('/') || STANDARD_FINALIZERS.contains(&name) {
        return None;
    }
    let what = if name.contains('.') { "name including a path (/)" } else { "name" };
    Some(format!(
        "metadata.finalizers: {name:?}: prefer a domain-qualified finalizer {what} to avoid accidental conflicts with other finalizer writers"
    ))
}

fn members(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// `new` and `old` must be equal; the error carries the new value, as upstream's `ValidateImmutableField`.
pub(crate) fn immutable(new: Option<&Value>, old: Option<&Value>, field: &Field) -> Option<FieldError> {
    let null = Value::Null;
    let (new, old) = (new.unwrap_or(&null), old.unwrap_or(&null));
    (new != old).then(|| field.invalid(new.clone(), IMMUTABLE))
}
