//! `apiVersion`, `kind` and `metadata` of objects within objects (`x-kubernetes-embedded-resource`).
//!
//! [`coerce`] brings them into the form that Go's `ObjectMeta` would have, [`validate`] says what is wrong
//! with them. After `apiserver/schema/objectmeta` of `k8s.io/apiextensions-apiserver`.
//!
//! Not here: the metadata of the object itself, which is the registry's as for every kind.

use api_machinery::{Field, FieldError};
use serde_json::{Map, Value};

use crate::bounds::{self, MAX_ERRORS};
use crate::schema::Schema;
use api_machinery::validation;

/// What a field of `ObjectMeta` is.
enum Kind {
    Text,
    /// A string, another name for the error only.
    Uid,
    Integer,
    Time,
    TextMap,
    TextList,
    Owners,
    ManagedFields,
}

fn kind_of(field: &str) -> Option<Kind> {
    Some(match field {
        "name" | "generateName" | "namespace" | "selfLink" | "resourceVersion" => Kind::Text,
        "uid" => Kind::Uid,
        "generation" | "deletionGracePeriodSeconds" => Kind::Integer,
        "creationTimestamp" | "deletionTimestamp" => Kind::Time,
        "labels" | "annotations" => Kind::TextMap,
        "finalizers" => Kind::TextList,
        "ownerReferences" => Kind::Owners,
        "managedFields" => Kind::ManagedFields,
        _ => return None,
    })
}

/// How to take metadata that is not as it should be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coerce {
    /// Leave malformed fields out instead of refusing them: for what is stored already.
    pub drop_malformed: bool,
    /// Say which unknown fields were dropped.
    pub unknown: bool,
}

/// Brings embedded metadata into form: unknown fields go, empty ones too. `embedded` says that `value` is
/// itself an embedded resource. Gives the unknown fields.
pub(crate) fn coerce(
    at: &Field,
    value: &mut Value,
    schema: &Schema,
    embedded: bool,
    how: Coerce,
) -> Result<Vec<String>, FieldError> {
    let mut unknown = Vec::new();
    walk(value, schema, embedded, at, how, &mut unknown)?;
    unknown.sort();
    Ok(unknown)
}

fn walk(
    value: &mut Value,
    schema: &Schema,
    embedded: bool,
    at: &Field,
    how: Coerce,
    unknown: &mut Vec<String>,
) -> Result<(), FieldError> {
    match value {
        Value::Object(members) => {
            if embedded {
                for key in ["apiVersion", "kind"] {
                    match members.get(key) {
                        None | Some(Value::String(_)) => {}
                        Some(_) if how.drop_malformed => drop(members.remove(key)),
                        Some(other) => {
                            return Err(at.child(key).invalid(bounds::shown(other), "must be a string"));
                        }
                    }
                }
                if let Some(metadata) = members.get("metadata") {
                    match object_meta(metadata, how.drop_malformed) {
                        Ok(Meta { fields, dropped }) => {
                            if how.unknown {
                                let at = at.child("metadata");
                                unknown.extend(dropped.iter().map(|path| format!("{at}.{path}")));
                            }
                            members.insert("metadata".to_owned(), Value::Object(fields));
                        }
                        Err(_) if how.drop_malformed => {}
                        Err(why) => return Err(at.child("metadata").invalid(bounds::shown(metadata), why)),
                    }
                }
            }
            for (key, value) in members {
                if let Some(property) = schema.property(key) {
                    walk(value, property, property.embedded_resource, &at.child(key), how, unknown)?;
                } else if let Some(additional) = schema.additional() {
                    walk(value, additional, additional.embedded_resource, &at.key(key), how, unknown)?;
                }
            }
            Ok(())
        }
        Value::Array(items) => {
            let Some(below) = schema.items() else { return Ok(()) };
            for (index, item) in items.iter_mut().enumerate() {
                walk(item, below, below.embedded_resource, &at.index(index), how, unknown)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

pub(crate) struct Meta {
    /// As Go writes `ObjectMeta` down: what is empty is left out.
    pub fields: Map<String, Value>,
    /// Paths of what it doesn't know, from `metadata` on.
    pub dropped: Vec<String>,
}

/// Reads `metadata` as Go's `ObjectMeta`. The error is the one of Go's `encoding/json`.
pub(crate) fn object_meta(metadata: &Value, drop_malformed: bool) -> Result<Meta, String> {
    let members = match metadata {
        Value::Object(members) => members,
        Value::Null => return Ok(Meta { fields: Map::new(), dropped: Vec::new() }),
        other if drop_malformed => {
            return Err(format!("invalid metadata: expected object, got {}", go_type(other)));
        }
        other => {
            return Err(format!(
                "json: cannot unmarshal {} into Go value of type v1.ObjectMeta",
                json_type(other)
            ));
        }
    };
    let mut meta = Meta { fields: Map::new(), dropped: Vec::new() };
    for (key, value) in members {
        let Some(kind) = kind_of(key) else {
            meta.dropped.push(key.clone());
            continue;
        };
        if value.is_null() {
            continue;
        }
        match read(key, &kind, value, &mut meta.dropped) {
            Ok(Some(read)) => drop(meta.fields.insert(key.clone(), read)),
            Ok(None) => {}
            Err(_) if drop_malformed => {}
            Err(why) => return Err(why),
        }
    }
    Ok(meta)
}

fn mismatch(value: &Value, field: &str, wanted: &str) -> String {
    format!(
        "json: cannot unmarshal {} into Go struct field ObjectMeta.{field} of type {wanted}",
        json_type(value)
    )
}

/// The field as Go would write it again; `None` where it would leave it out.
fn read(field: &str, kind: &Kind, value: &Value, dropped: &mut Vec<String>) -> Result<Option<Value>, String> {
    let kept = |empty: bool| Ok(Some(value.clone()).filter(|_| !empty));
    match kind {
        Kind::Text | Kind::Uid => {
            let wanted = if matches!(kind, Kind::Uid) { "types.UID" } else { "string" };
            let text = value.as_str().ok_or_else(|| mismatch(value, field, wanted))?;
            kept(text.is_empty())
        }
        Kind::Integer => match value.as_i64() {
            Some(number) => kept(number == 0 && field == "generation"),
            None => Err(match value {
                Value::Number(number) => format!(
                    "json: cannot unmarshal number {number} into Go struct field ObjectMeta.{field} of type int64"
                ),
                other => mismatch(other, field, "int64"),
            }),
        },
        Kind::Time => {
            let text = value.as_str().ok_or_else(|| mismatch(value, field, "string"))?;
            let time: jiff::Timestamp = text.parse().map_err(|_| {
                format!(
                    "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
                )
            })?;
            // Seconds, in UTC.
            Ok(Some(Value::from(time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())))
        }
        Kind::TextMap => {
            let members = value.as_object().ok_or_else(|| mismatch(value, field, "map[string]string"))?;
            let mut texts = Map::new();
            for (key, value) in members {
                match value {
                    Value::String(_) => drop(texts.insert(key.clone(), value.clone())),
                    Value::Null => drop(texts.insert(key.clone(), Value::from(""))),
                    other => return Err(mismatch(other, field, "string")),
                }
            }
            Ok(Some(Value::Object(texts)).filter(|_| !members.is_empty()))
        }
        Kind::TextList => {
            let items = value.as_array().ok_or_else(|| mismatch(value, field, "[]string"))?;
            if let Some(other) = items.iter().find(|item| !item.is_string()) {
                return Err(mismatch(other, field, "string"));
            }
            kept(items.is_empty())
        }
        Kind::Owners => {
            let list = value.as_array().ok_or_else(|| mismatch(value, field, "[]v1.OwnerReference"))?;
            let texts = ["apiVersion", "kind", "name", "uid"];
            let known = [("controller", "bool"), ("blockOwnerDeletion", "bool")];
            let read = structs(field, list, &texts, &known, &[], dropped)?;
            Ok(Some(Value::Array(read)).filter(|_| !list.is_empty()))
        }
        Kind::ManagedFields => {
            let list = value.as_array().ok_or_else(|| mismatch(value, field, "[]v1.ManagedFieldsEntry"))?;
            let known = [("fieldsV1", "v1.FieldsV1")];
            let texts = ["manager", "operation", "apiVersion", "time", "fieldsType", "subresource"];
            let read = structs(field, list, &[], &known, &texts, dropped)?;
            Ok(Some(Value::Array(read)).filter(|_| !list.is_empty()))
        }
    }
}

/// A list of structs: `always` are strings that are there even when empty, `optional` strings that are not.
fn structs(
    field: &str,
    list: &[Value],
    always: &[&str],
    others: &[(&str, &str)],
    optional: &[&str],
    dropped: &mut Vec<String>,
) -> Result<Vec<Value>, String> {
    let mut read = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let empty = Map::new();
        let members = match item {
            Value::Object(members) => members,
            Value::Null => &empty,
            other => return Err(mismatch(other, field, "v1.OwnerReference")),
        };
        let mut out = Map::new();
        out.extend(always.iter().map(|&key| (key.to_owned(), Value::from(""))));
        for (key, value) in members {
            let name = key.as_str();
            let path = || format!("{field}.{name}");
            if value.is_null() {
                continue;
            }
            if always.contains(&name) || optional.contains(&name) {
                let text = value.as_str().ok_or_else(|| mismatch(value, &path(), "string"))?;
                if !text.is_empty() {
                    out.insert(key.clone(), value.clone());
                }
            } else if let Some((_, wanted)) = others.iter().find(|(known, _)| *known == name) {
                let fits = if *wanted == "bool" { value.is_boolean() } else { value.is_object() };
                if !fits {
                    return Err(mismatch(value, &path(), wanted));
                }
                out.insert(key.clone(), value.clone());
            } else {
                dropped.push(format!("{field}[{index}].{name}"));
            }
        }
        read.push(Value::Object(out));
    }
    Ok(read)
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// What is wrong with embedded metadata. `embedded` says that `value` is itself an embedded resource.
pub(crate) fn validate(
    at: &Field,
    value: &Value,
    schema: &Schema,
    embedded: bool,
    errors: &mut Vec<FieldError>,
) {
    if errors.len() >= MAX_ERRORS {
        return;
    }
    match value {
        Value::Object(members) => {
            if embedded {
                validate_embedded(at, members, errors);
            }
            for (key, value) in members {
                if let Some(property) = schema.property(key) {
                    validate(&at.child(key), value, property, property.embedded_resource, errors);
                } else if let Some(additional) = schema.additional() {
                    validate(&at.key(key), value, additional, additional.embedded_resource, errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(below) = schema.items() else { return };
            for (index, item) in items.iter().enumerate() {
                validate(&at.index(index), item, below, below.embedded_resource, errors);
            }
        }
        _ => {}
    }
}

fn validate_embedded(at: &Field, members: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let api_version = at.child("apiVersion");
    match members.get("apiVersion") {
        None => errors.push(api_version.required("")),
        Some(Value::String(text)) if text.is_empty() => {
            errors.push(api_version.invalid("", "must not be empty"));
        }
        Some(Value::String(text)) if text.matches('/').count() > 1 => {
            errors
                .push(api_version.invalid(text.as_str(), format!("unexpected GroupVersion string: {text}")));
        }
        Some(Value::String(_)) => {}
        Some(other) => errors.push(api_version.invalid(bounds::shown(other), "must be a string")),
    }
    let kind = at.child("kind");
    match members.get("kind") {
        None => errors.push(kind.required("")),
        Some(Value::String(text)) if text.is_empty() => errors.push(kind.invalid("", "must not be empty")),
        Some(Value::String(text)) => {
            let reasons = validation::dns_1035_label(&text.to_lowercase());
            if !reasons.is_empty() {
                errors.push(kind.invalid(text.as_str(), mixed_case(&reasons)));
            }
        }
        Some(other) => errors.push(kind.invalid(bounds::shown(other), "must be a string")),
    }
    if let Some(metadata) = members.get("metadata") {
        let at = at.child("metadata");
        match object_meta(metadata, false) {
            Ok(meta) => validate_meta(&at, &meta.fields, errors),
            Err(why) => errors.push(at.invalid(bounds::shown(metadata), why)),
        }
    }
}

pub(crate) fn mixed_case(reasons: &[String]) -> String {
    format!("may have mixed case, but should otherwise match: {}", reasons.join(","))
}

/// `ValidateObjectMeta` with names that are path segments. A name is not required here.
fn validate_meta(at: &Field, meta: &Map<String, Value>, errors: &mut Vec<FieldError>) {
    let text = |key: &str| meta.get(key).and_then(Value::as_str).unwrap_or_default();
    for (key, prefix) in [("generateName", true), ("name", false)] {
        for reason in validation::path_segment(text(key), prefix) {
            errors.push(at.child(key).invalid(text(key), reason));
        }
    }
    let namespace = text("namespace");
    if !namespace.is_empty() && (!validation::is_dns_label(namespace) || namespace.len() > 63) {
        for reason in api_machinery::validation::dns_label(namespace) {
            errors.push(at.child("namespace").invalid(namespace, reason));
        }
    }
    if let Some(generation) = meta.get("generation").and_then(Value::as_i64)
        && generation < 0
    {
        errors.push(at.child("generation").invalid(generation, "must be greater than or equal to 0"));
    }
    let members = |key: &str| meta.get(key).and_then(Value::as_object).into_iter().flatten();
    for (key, value) in members("labels") {
        let at = at.child("labels");
        let value = value.as_str().unwrap_or_default();
        errors.extend(validation::qualified_name(key).into_iter().map(|why| at.invalid(key.as_str(), why)));
        errors.extend(validation::label_value(value).into_iter().map(|why| at.invalid(value, why)));
    }
    let mut annotation_bytes = 0;
    for (key, value) in members("annotations") {
        annotation_bytes += key.len() + value.as_str().map_or(0, str::len);
        let reasons = validation::qualified_name(&key.to_lowercase());
        errors.extend(reasons.into_iter().map(|why| at.child("annotations").invalid(key.as_str(), why)));
    }
    if annotation_bytes > MAX_ANNOTATION_BYTES {
        errors.push(at.child("annotations").too_long(MAX_ANNOTATION_BYTES));
    }
    let items = |key: &str| meta.get(key).and_then(Value::as_array).into_iter().flatten();
    let mut controller: Option<&str> = None;
    for (index, owner) in items("ownerReferences").enumerate() {
        let at = at.child("ownerReferences").index(index);
        let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default();
        let version = text("apiVersion").rsplit('/').next().unwrap_or_default();
        if version.is_empty() {
            errors.push(at.child("apiVersion").invalid(text("apiVersion"), "version must not be empty"));
        }
        for key in ["kind", "name", "uid"] {
            if text(key).is_empty() {
                errors.push(at.child(key).invalid("", "must not be empty"));
            }
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            match controller {
                Some(first) => errors.push(at.invalid_unshown(format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {}",
                    text("name")
                ))),
                None => controller = owner.get("name").and_then(Value::as_str),
            }
        }
    }
    for finalizer in items("finalizers").filter_map(Value::as_str) {
        let reasons = validation::qualified_name(finalizer);
        errors.extend(reasons.into_iter().map(|why| at.child("finalizers").invalid(finalizer, why)));
    }
}

/// All annotations of an object together.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true});
        Schema::read(&json!({"properties": {"spec": {"properties": {
            "one": embedded, "list": {"items": embedded}, "map": {"additionalProperties": embedded},
        }}}}))
        .unwrap()
    }

    #[test]
    fn embedded_metadata_is_brought_into_form() {
        let strict = Coerce { drop_malformed: false, unknown: true };
        let lenient = Coerce { drop_malformed: true, unknown: true };
        let one = |metadata: Value| json!({"spec": {"one": {"metadata": metadata}}});
        for (how, value, left, unknown) in [
            (
                strict,
                json!({"name": "a", "x": 1, "labels": {}}),
                json!({"name": "a"}),
                vec!["spec.one.metadata.x"],
            ),
            (strict, json!({"creationTimestamp": null}), json!({}), vec![]),
            (
                strict,
                json!({"creationTimestamp": "2020-01-02T03:04:05.6+01:00"}),
                json!({"creationTimestamp": "2020-01-02T02:04:05Z"}),
                vec![],
            ),
            (
                strict,
                json!({"ownerReferences": [{"name": "a", "y": 1}]}),
                json!({"ownerReferences": [{"apiVersion": "", "kind": "", "name": "a", "uid": ""}]}),
                vec!["spec.one.metadata.ownerReferences[0].y"],
            ),
            (lenient, json!({"name": 1, "namespace": "b"}), json!({"namespace": "b"}), vec![]),
        ] {
            let mut whole = one(value.clone());
            let found = coerce(&Field::default(), &mut whole, &schema(), false, how).unwrap();
            assert_eq!(
                (whole, found),
                (one(left), unknown.into_iter().map(str::to_owned).collect()),
                "{value}"
            );
        }
    }

    #[test]
    fn malformed_metadata_is_refused_as_go_does() {
        let strict = Coerce { drop_malformed: false, unknown: false };
        for (value, error) in [
            (
                json!({"spec": {"list": [{}, {"metadata": {"name": 1}}]}}),
                "spec.list[1].metadata: Invalid value: {\"name\":1}: json: cannot unmarshal number into Go struct field ObjectMeta.name of type string",
            ),
            (
                json!({"spec": {"map": {"x": {"kind": 1}}}}),
                "spec.map[x].kind: Invalid value: 1: must be a string",
            ),
        ] {
            let refused =
                coerce(&Field::default(), &mut value.clone(), &schema(), false, strict).unwrap_err();
            assert_eq!(refused.to_string(), error);
        }
    }

    #[test]
    fn embedded_metadata_is_validated() {
        let label = validation::dns_1035_label("a.b")[0].clone();
        for (value, expected) in [
            (json!({"apiVersion": "v1", "kind": "Pod"}), vec![]),
            (
                json!({}),
                vec![
                    "spec.one.apiVersion: Required value".to_owned(),
                    "spec.one.kind: Required value".to_owned(),
                ],
            ),
            (
                json!({"apiVersion": "a/b/c", "kind": "a.b"}),
                vec![
                    "spec.one.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c"
                        .to_owned(),
                    format!(
                        "spec.one.kind: Invalid value: \"a.b\": may have mixed case, but should otherwise match: {label}"
                    ),
                ],
            ),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "..", "finalizers": ["/"]}}),
                vec![
                    "spec.one.metadata.name: Invalid value: \"..\": may not be '..'".to_owned(),
                    "spec.one.metadata.finalizers: Invalid value: \"/\": prefix part must be non-empty"
                        .to_owned(),
                    "spec.one.metadata.finalizers: Invalid value: \"/\": name part must be non-empty"
                        .to_owned(),
                    format!(
                        "spec.one.metadata.finalizers: Invalid value: \"/\": {}",
                        validation::qualified_name("/")[2]
                    ),
                ],
            ),
        ] {
            let mut errors = Vec::new();
            validate(&Field::default(), &json!({"spec": {"one": value}}), &schema(), false, &mut errors);
            let errors: Vec<String> = errors.iter().map(FieldError::to_string).collect();
            assert_eq!(errors, expected);
        }
    }
}
