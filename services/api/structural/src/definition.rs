//! Whether a CustomResourceDefinition may be.
//!
//! [`default_definition`] fills in what its author left to the server, [`validate_definition`] says what is
//! wrong, on creation and on update; an update is never held to more than what was there before already
//! broke. After `apis/apiextensions/{v1/defaults,validation/validation}.go` of
//! `k8s.io/apiextensions-apiserver`.
//!
//! Errors name fields as upstream's internal form has them: what is the same in all versions stands in
//! `spec.validation`, `spec.subresources` and so on, which is where users find it in messages. `spec` is about
//! all of it, `schema` about one schema, `defaults` about the defaults in it.
//!
//! Not here: metadata other than the name, and conditions (`tenant-controllers`).

mod conversion;
mod defaults;
mod form;
mod schema;
mod spec;

use std::collections::BTreeSet;

use api_machinery::{Field, FieldError};
use serde_json::{Value, json};

use crate::bounds::MAX_ERRORS;
use crate::nonstructural;
use crate::publish::has_unknown_types;
use crate::schema::Schema;
use crate::value;
use form::{Form, text};

/// What defaulting does to a definition.
pub fn default_definition(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let storage: Option<Value> = spec
        .get("versions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|version| version.get("storage") == Some(&Value::Bool(true)))
        .and_then(|version| version.get("name").cloned());
    if let Some(names) = spec.entry("names").or_insert_with(|| json!({})).as_object_mut() {
        let is_empty = |value: Option<&Value>| value.and_then(Value::as_str).is_none_or(str::is_empty);
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        if is_empty(names.get("singular")) && !kind.is_empty() {
            names.insert("singular".to_owned(), kind.to_lowercase().into());
        }
        if is_empty(names.get("listKind")) && !kind.is_empty() {
            names.insert("listKind".to_owned(), format!("{kind}List").into());
        }
    }
    let conversion = spec.entry("conversion").or_insert(Value::Null);
    if conversion.is_null() {
        *conversion = json!({"strategy": "None"});
    }
    let service = conversion.pointer_mut("/webhook/clientConfig/service").and_then(Value::as_object_mut);
    if let Some(service) = service
        && service.get("port").is_none_or(Value::is_null)
    {
        service.insert("port".to_owned(), 443.into());
    }
    let stored = definition.pointer("/status/storedVersions").and_then(Value::as_array);
    if stored.is_none_or(Vec::is_empty)
        && let (Some(storage), Some(definition)) = (storage, definition.as_object_mut())
    {
        let status = definition.entry("status").or_insert(Value::Null);
        if !status.is_object() {
            *status = json!({});
        }
        status["storedVersions"] = json!([storage]);
    }
}

/// For `Warning` headers: formats that nobody knows, which are not looked at in values. Those that `old` had
/// already are not mentioned again.
pub fn definition_warnings(definition: &Value, old: Option<&Value>) -> Vec<String> {
    let unknown = |definition: &Value| {
        let mut formats = Vec::new();
        for schema in Form::of(definition).schemas() {
            schema.any(&mut |schema| {
                let format = &schema.format;
                if value::effective_format(schema) != format && !formats.contains(format) {
                    formats.push(format.clone());
                }
                false
            });
        }
        formats
    };
    let known = old.map(unknown).unwrap_or_default();
    let new = unknown(definition).into_iter().filter(|format| !known.contains(format));
    new.map(|format| format!("unrecognized format {format:?}")).collect()
}

/// How strict to be: all of it for a new definition, less for one that was already otherwise.
struct Options {
    recognized_review_version: bool,
    immutable_names: bool,
    openapi_schema: bool,
    valid_types: bool,
    structural: bool,
    pruned_defaults: bool,
    atomic_sets: bool,
    map_keys: bool,
    allow_invalid_ca: bool,
    /// Versions whose schema is as it was: what their rules cost was accepted once.
    unchanged_schemas: BTreeSet<String>,
    /// Versions (`""` for all of them) that may keep more selectable fields than there may be.
    many_selectable: BTreeSet<String>,
}

/// Everything wrong with a whole definition, defaulted. `old` is what it was, on update.
///
/// Of metadata only what is particular to definitions is looked at.
pub fn validate_definition(definition: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let form = Form::of(definition);
    let was = old.map(Form::of);
    let options = match (&was, old) {
        (Some(was), Some(old)) => for_update(&form, was, old),
        _ => for_create(),
    };
    let mut errors = Vec::new();
    if was.is_none() {
        let name = definition.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        if name != format!("{}.{}", text(form.names, "plural"), form.group) {
            let why = "must be spec.names.plural+\".\"+spec.group";
            errors.push(Field::new("metadata").child("name").invalid(name, why));
        }
    }
    let at = Field::new("spec");
    spec::validate(&at, &form, &options, &mut errors);
    if let Some(was) = &was {
        spec::validate_immutable(&at, &form, was, options.immutable_names, &mut errors);
    }
    let status = definition.get("status").unwrap_or(&Value::Null);
    let at = Field::new("status");
    spec::validate_names(&at.child("acceptedNames"), status.get("acceptedNames"), &mut errors);
    stored_versions(&at.child("storedVersions"), status, &form, &mut errors);
    approval(definition, old, form.group, &mut errors);
    if form.keep_unknown && was.as_ref().is_none_or(|was| !was.keep_unknown) {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(Field::new("spec").child("preserveUnknownFields").invalid(true, why));
    }
    errors.truncate(MAX_ERRORS);
    errors
}

fn for_create() -> Options {
    Options {
        recognized_review_version: true,
        immutable_names: false,
        openapi_schema: true,
        valid_types: true,
        structural: true,
        pruned_defaults: true,
        atomic_sets: true,
        map_keys: true,
        // Nobody depends on it yet.
        allow_invalid_ca: true,
        unchanged_schemas: BTreeSet::new(),
        many_selectable: BTreeSet::new(),
    }
}

fn for_update(form: &Form<'_>, was: &Form<'_>, old: &Value) -> Options {
    let schemas = was.schemas();
    let none = |wrong: &dyn Fn(&Schema) -> bool| !schemas.iter().any(|schema| wrong(schema));
    let is_non_structural = |schema: &Schema| {
        nonstructural::unsupported(schema).is_some()
            || !nonstructural::violations(&Field::default(), schema).is_empty()
    };
    let established = old
        .pointer("/status/conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .any(|condition| text(condition, "type") == "Established" && text(condition, "status") == "True");
    Options {
        recognized_review_version: conversion::has_recognized_version_or_none(was.conversion),
        immutable_names: established,
        openapi_schema: was.every_version_has_schema(),
        valid_types: none(&has_unknown_types),
        structural: none(&is_non_structural),
        pruned_defaults: none(&|schema| !is_non_structural(schema) && defaults::are_unpruned(schema)),
        atomic_sets: none(&|schema| schema.any(&mut schema::is_set_of_parts)),
        map_keys: none(&|schema| {
            schema.any(&mut |schema| {
                let mut errors = Vec::new();
                schema::map_keys_and_set_items(&Field::default(), schema, &mut errors);
                !errors.is_empty()
            })
        }),
        allow_invalid_ca: !established || conversion::has_invalid_ca(was.conversion),
        unchanged_schemas: form.versions_with_schema_of(was),
        many_selectable: spec::many_selectable(form, was),
    }
}

fn stored_versions(at: &Field, status: &Value, form: &Form<'_>, errors: &mut Vec<FieldError>) {
    let stored: Vec<&str> = status
        .get("storedVersions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if stored.is_empty() {
        let shown = status.get("storedVersions").cloned().unwrap_or_default();
        errors.push(at.invalid(shown, "must have at least one stored version"));
        return;
    }
    for version in form.versions.iter().filter(|version| version.storage) {
        if !stored.contains(&version.name) {
            let why = format!("must have the storage version {}", version.name);
            errors.push(at.invalid(json!(stored), why));
        }
    }
    for (index, name) in stored.iter().enumerate() {
        if !form.versions.iter().any(|version| version.name == *name) {
            let why = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.push(at.index(index).invalid(*name, why));
        }
    }
}

/// Groups of the Kubernetes community are for those who asked it.
fn approval(definition: &Value, old: Option<&Value>, group: &str, errors: &mut Vec<FieldError>) {
    if !is_protected_group(group) {
        return;
    }
    let (state, why) = approval_state(definition);
    if old.is_some_and(|old| approval_state(old).0 == state) {
        return;
    }
    let at = Field::new("metadata").child("annotations").key(APPROVED);
    match state {
        Approval::Given | Approval::Bypassed => {}
        Approval::Missing => errors.push(at.required(why)),
        Approval::Invalid => errors.push(at.invalid(annotation(definition), why)),
    }
}

const APPROVED: &str = "api-approved.kubernetes.io";

/// What `api-approved.kubernetes.io` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    Given,
    Bypassed,
    Missing,
    Invalid,
}

/// `k8s.io`, `kubernetes.io` and everything below.
pub fn is_protected_group(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|own| group == *own || group.strip_suffix(own).is_some_and(|rest| rest.ends_with('.')))
}

fn annotation(definition: &Value) -> &str {
    let annotations = definition.pointer("/metadata/annotations");
    annotations.and_then(|all| all.get(APPROVED)).and_then(Value::as_str).unwrap_or_default()
}

/// For protected groups: the state and its reason, also for the condition `KubernetesAPIApprovalPolicyConformant`.
pub fn approval_state(definition: &Value) -> (Approval, String) {
    let annotation = annotation(definition);
    let with_host = crate::formats::is_request_uri(annotation)
        && annotation
            .split_once("://")
            .is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/'));
    if annotation.is_empty() {
        let why = format!(
            "protected groups must have approval annotation {APPROVED:?}, see https://github.com/kubernetes/enhancements/pull/1111"
        );
        (Approval::Missing, why)
    } else if annotation.starts_with("unapproved") {
        (Approval::Bypassed, format!("not approved: {annotation:?}"))
    } else if with_host {
        (Approval::Given, format!("approved in {annotation}"))
    } else {
        let why = format!(
            "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
        );
        (Approval::Invalid, why)
    }
}

#[cfg(test)]
mod tests;
