//! What keeps a schema from being structural.
//!
//! A structural schema says what there is (types, fields, items) outside of `allOf`, `anyOf`, `oneOf` and
//! `not`, and uses those only to restrict values. After `apiserver/schema/{validation,complete,convert}.go`
//! of `k8s.io/apiextensions-apiserver`.

use api_machinery::{Field, FieldError};

use crate::bounds::MAX_ERRORS;
use crate::schema::Schema;

/// Violations, in the order of their text, worded as upstream does.
pub(crate) fn violations(at: &Field, schema: &Schema) -> Vec<FieldError> {
    let mut errors = Vec::new();
    invariants(at, schema, Level::Root, &mut errors);
    junctors_complete(schema, Some(schema), at, at, &mut errors);
    errors.sort_by_cached_key(FieldError::to_string);
    errors
}

/// The first thing that a schema of custom resources can't have at all, if any: it is then not even looked
/// at as a structural one.
pub(crate) fn unsupported(schema: &Schema) -> Option<String> {
    let mut found = None;
    schema.any(&mut |schema| {
        found = unsupported_here(schema);
        found.is_some()
    });
    found
}

fn unsupported_here(schema: &Schema) -> Option<String> {
    if schema.preserve_unknown == Some(false) {
        return Some(
            "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned(),
        );
    }
    let other = schema.unsupported.as_deref()?;
    let name = if !other.id.is_empty() {
        "id"
    } else if !other.schema.is_empty() {
        "schema"
    } else if other.reference.as_ref().is_some_and(|reference| !reference.is_empty()) {
        "$ref"
    } else if !other.pattern_properties.is_empty() {
        "patternProperties"
    } else if other.dependencies.as_ref().is_some_and(|dependencies| !dependencies.is_empty()) {
        "dependencies"
    } else if other.additional_items.is_some() {
        "additionalItems"
    } else if !other.definitions.is_empty() {
        "definitions"
    } else if !other.item_list.is_empty() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    } else {
        return None;
    };
    Some(format!("OpenAPIV3Schema '{name}' is not supported"))
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

fn invariants(at: &Field, schema: &Schema, level: Level, errors: &mut Vec<FieldError>) {
    if errors.len() >= MAX_ERRORS {
        return;
    }
    if schema.kind == "array" && schema.items.is_none() {
        errors.push(at.child("items").required("must be specified"));
    }
    if let Some(items) = schema.items() {
        invariants(&at.child("items"), items, Level::Item, errors);
    }
    let properties = at.child("properties");
    for (key, property) in &schema.properties {
        invariants(&properties.key(key), property, Level::Field, errors);
    }
    if schema.additional.is_some() {
        let at = at.child("additionalProperties");
        if level == Level::Root {
            errors.push(at.forbidden("must not be used at the root"));
        }
        if let Some(additional) = schema.additional() {
            invariants(&at, additional, Level::Field, errors);
        }
    }
    if schema.int_or_string && schema.preserves_unknown() {
        let why = "must be false if x-kubernetes-int-or-string is true";
        errors.push(at.child("x-kubernetes-preserve-unknown-fields").invalid(true, why));
    }
    if schema.int_or_string && schema.embedded_resource {
        let why = "must be false if x-kubernetes-int-or-string is true";
        errors.push(at.child("x-kubernetes-embedded-resource").invalid(true, why));
    }

    let skip_any_of = is_int_or_string(&schema.any_of);
    let skip_first = schema.all_of.first().is_some_and(|first| is_int_or_string(&first.any_of));
    restrictions(at, schema, skip_any_of, skip_first, errors);

    let kind = at.child("type");
    if schema.embedded_resource && schema.kind != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match schema.kind.as_str() {
            "" => kind.required(why),
            other => kind.invalid(other, why),
        });
    } else if schema.kind.is_empty() && !schema.int_or_string && !schema.preserves_unknown() {
        errors.push(kind.required(match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        }));
    }
    if schema.embedded_resource && schema.additional.is_some() {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(at.child("additionalProperties").forbidden(why));
    }
    if level == Level::Root && !schema.kind.is_empty() && schema.kind != "object" {
        errors.push(kind.invalid(schema.kind.as_str(), "must be object at the root"));
    }

    let is_object = level == Level::Root || schema.embedded_resource;
    for key in ["kind", "apiVersion"] {
        if let Some(property) = schema.property(key)
            && is_object
            && property.kind != "string"
        {
            let at = properties.key(key).child("type");
            errors.push(at.invalid(property.kind.as_str(), "must be string"));
        }
    }
    if let Some(metadata) = schema.property("metadata") {
        let at = properties.key("metadata");
        if is_object && metadata.kind != "object" {
            errors.push(at.child("type").invalid(metadata.kind.as_str(), "must be object"));
        }
        if level == Level::Root && !only_names(metadata) {
            errors.push(at.forbidden(
                "must not specify anything other than name and generateName, but metadata is implicitly specified",
            ));
        }
    }
    if schema.embedded_resource && !schema.preserves_unknown() && schema.properties.is_empty() {
        errors.push(properties.required(
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
}

/// Whether a schema of metadata says nothing but what names may be.
fn only_names(metadata: &Schema) -> bool {
    let names = metadata.properties.keys().all(|key| key == "name" || key == "generateName");
    let rest =
        Schema { kind: String::new(), default: None, properties: Default::default(), ..metadata.clone() };
    names && rest == Schema::default()
}

/// `anyOf: [{type: integer}, {type: string}]`, the one place where types may be nested.
pub(crate) fn is_int_or_string(any_of: &[Schema]) -> bool {
    let [integer, string] = any_of else { return false };
    let only = |kind: &str| Schema { kind: kind.to_owned(), ..Schema::default() };
    *integer == only("integer") && *string == only("string")
}

fn restrictions(
    at: &Field,
    schema: &Schema,
    skip_any_of: bool,
    skip_first: bool,
    errors: &mut Vec<FieldError>,
) {
    if !skip_any_of {
        for (index, one) in schema.any_of.iter().enumerate() {
            nested(&at.child("anyOf").index(index), one, false, errors);
        }
    }
    for (index, one) in schema.all_of.iter().enumerate() {
        nested(&at.child("allOf").index(index), one, skip_first && index == 0, errors);
    }
    for (index, one) in schema.one_of.iter().enumerate() {
        nested(&at.child("oneOf").index(index), one, false, errors);
    }
    if let Some(not) = &schema.not {
        nested(&at.child("not"), not, false, errors);
    }
    if let Some(pattern) = &schema.pattern
        && let Err(why) = pattern.compiled()
    {
        let why = format!("must be a valid regular expression, but isn't: {why}");
        errors.push(at.child("pattern").invalid(pattern.as_str(), why));
    }
}

fn nested(at: &Field, schema: &Schema, skip_any_of: bool, errors: &mut Vec<FieldError>) {
    if errors.len() >= MAX_ERRORS {
        return;
    }
    restrictions(at, schema, skip_any_of, false, errors);
    if let Some(items) = schema.items() {
        nested(&at.child("items"), items, false, errors);
    }
    for (key, property) in &schema.properties {
        nested(&at.child("properties").key(key), property, false, errors);
    }
    let additional = schema.additional.as_ref().is_some_and(|additional| additional.allows);
    for (is_set, key, why) in [
        (!schema.kind.is_empty(), "type", "must be empty to be structural"),
        (additional, "additionalProperties", "must be undefined to be structural"),
        (schema.default.is_some(), "default", "must be undefined to be structural"),
        (!schema.title.is_empty(), "title", "must be empty to be structural"),
        (!schema.description.is_empty(), "description", "must be empty to be structural"),
        (schema.nullable, "nullable", "must be false to be structural"),
        (
            schema.preserves_unknown(),
            "x-kubernetes-preserve-unknown-fields",
            "must be false to be structural",
        ),
        (schema.embedded_resource, "x-kubernetes-embedded-resource", "must be false to be structural"),
        (schema.int_or_string, "x-kubernetes-int-or-string", "must be false to be structural"),
        (!schema.list_map_keys.is_empty(), "x-kubernetes-list-map-keys", "must be empty to be structural"),
        (schema.list_type.is_some(), "x-kubernetes-list-type", "must be undefined to be structural"),
        (schema.map_type.is_some(), "x-kubernetes-map-type", "must be undefined to be structural"),
        (!schema.rules.is_empty(), "x-kubernetes-validations", "must be empty to be structural"),
    ] {
        if is_set {
            errors.push(at.child(key).forbidden(why));
        }
    }
    if schema.properties.contains_key("metadata") {
        let at = at.child("properties").key("metadata");
        errors.push(at.forbidden("must not be specified in a nested context"));
    }
}

/// Everything restricted must be there: `from` is where the restriction is, `at` where it should be.
fn complete(nested: &Schema, spine: Option<&Schema>, at: &Field, from: &Field, errors: &mut Vec<FieldError>) {
    if errors.len() >= MAX_ERRORS {
        return;
    }
    let Some(schema) = spine else {
        errors.push(at.required(format!("because it is defined in {from}")));
        return;
    };
    junctors_complete(nested, spine, at, from, errors);
    if let Some(items) = nested.items() {
        complete(items, schema.items(), &at.child("items"), &from.child("items"), errors);
    }
    for (key, property) in &nested.properties {
        let (at, from) = (at.child("properties").key(key), from.child("properties").key(key));
        complete(property, schema.property(key), &at, &from, errors);
    }
}

fn junctors_complete(
    schema: &Schema,
    spine: Option<&Schema>,
    at: &Field,
    from: &Field,
    errors: &mut Vec<FieldError>,
) {
    if let Some(not) = &schema.not {
        complete(not, spine, at, &from.child("not"), errors);
    }
    for (name, list) in [("allOf", &schema.all_of), ("anyOf", &schema.any_of), ("oneOf", &schema.one_of)] {
        for (index, one) in list.iter().enumerate() {
            complete(one, spine, at, &from.child(name).index(index), errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(schema: Value, expected: &[&str]) {
        let parsed = Schema::read(&schema).unwrap();
        let found = violations(&Field::new("s"), &parsed);
        let found: Vec<String> = found.iter().map(FieldError::to_string).collect();
        assert_eq!(found, expected, "{schema}");
    }

    #[test]
    fn violations_are_named() {
        check(json!({"type": "object"}), &[]);
        check(json!({}), &["s.type: Required value: must not be empty at the root"]);
        check(
            json!({"type": "array"}),
            &[
                "s.items: Required value: must be specified",
                "s.type: Invalid value: \"array\": must be object at the root",
            ],
        );
        check(
            json!({"type": "object", "properties": {"a": {}}}),
            &["s.properties[a].type: Required value: must not be empty for specified object fields"],
        );
        check(
            json!({"type": "object", "properties": {"a": {"x-kubernetes-preserve-unknown-fields": true}}}),
            &[],
        );
        check(
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {}}}}),
            &["s.properties[a].items.type: Required value: must not be empty for specified array items"],
        );
        check(
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            &["s.additionalProperties: Forbidden: must not be used at the root"],
        );
        check(
            json!({"type": "object", "properties": {
            "kind": {"type": "integer"}, "metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            &[
                "s.properties[kind].type: Invalid value: \"integer\": must be string",
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        );
        check(
            json!({"type": "object", "properties": {"metadata": {"type": "object",
            "properties": {"name": {"type": "string", "maxLength": 5}}}}}),
            &[],
        );
    }

    #[test]
    fn junctors_only_restrict() {
        check(
            json!({"type": "object", "properties": {"a": {"type": "integer"}},
            "allOf": [{"properties": {"a": {"minimum": 1}}}]}),
            &[],
        );
        check(
            json!({"type": "object", "anyOf": [{"properties": {"a": {"type": "string", "default": 1}}}],
            "not": {"items": {}}}),
            &[
                "s.anyOf[0].properties[a].default: Forbidden: must be undefined to be structural",
                "s.anyOf[0].properties[a].type: Forbidden: must be empty to be structural",
                "s.items: Required value: because it is defined in s.not.items",
                "s.properties[a]: Required value: because it is defined in s.anyOf[0].properties[a]",
            ],
        );
        check(
            json!({"type": "object", "oneOf": [{"title": "t", "description": "d", "nullable": true,
            "x-kubernetes-list-type": "set", "x-kubernetes-validations": [{"rule": "true"}]}]}),
            &[
                "s.oneOf[0].description: Forbidden: must be empty to be structural",
                "s.oneOf[0].nullable: Forbidden: must be false to be structural",
                "s.oneOf[0].title: Forbidden: must be empty to be structural",
                "s.oneOf[0].x-kubernetes-list-type: Forbidden: must be undefined to be structural",
                "s.oneOf[0].x-kubernetes-validations: Forbidden: must be empty to be structural",
            ],
        );
        let either = json!([{"type": "integer"}, {"type": "string"}]);
        check(
            json!({"type": "object", "properties": {
            "a": {"x-kubernetes-int-or-string": true, "anyOf": either},
            "b": {"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": either}, {"minimum": 1}]}}}),
            &[],
        );
        check(
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}}),
            &[
                "s.properties[a].pattern: Invalid value: \"[\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ]: `[`",
            ],
        );
    }

    #[test]
    fn embedded_resources_are_objects() {
        check(
            json!({"type": "object", "properties": {"a": {"x-kubernetes-embedded-resource": true}}}),
            &[
                "s.properties[a].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
                "s.properties[a].type: Required value: must be object if x-kubernetes-embedded-resource is true",
            ],
        );
        check(
            json!({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": true,
            "x-kubernetes-preserve-unknown-fields": true}}}),
            &[
                "s.properties[a].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
            ],
        );
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (schema, why) in [
            (json!({"properties": {"a": {"$ref": "#/x"}}}), Some("OpenAPIV3Schema '$ref' is not supported")),
            (json!({"items": [{}]}), Some("OpenAPIV3Schema 'items' must be a schema, but is an array")),
            (
                json!({"allOf": [{"definitions": {"a": {}}}]}),
                Some("OpenAPIV3Schema 'definitions' is not supported"),
            ),
            (json!({"type": "object"}), None),
        ] {
            assert_eq!(unsupported(&Schema::read(&schema).unwrap()).as_deref(), why, "{schema}");
        }
    }
}
