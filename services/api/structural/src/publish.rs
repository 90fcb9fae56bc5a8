//! Schemas as OpenAPI shows them: what `kubectl explain` and clients read.
//!
//! After `controller/openapi/{builder,v2}` of `k8s.io/apiextensions-apiserver`. Version 2 cannot say
//! everything that a schema says, and old `kubectl`s trip over some of what it can; those parts are left
//! out there.
//!
//! Not here: paths, lists, whole documents (`api-schema`).

use serde_json::{Map, Value, json};

use crate::nonstructural;
use crate::schema::{Rule, Schema};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    V2,
    V3,
}

/// What to say beside the schema.
#[derive(Debug, Clone, Copy)]
pub struct Published<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    /// `jsonPath`s of `selectableFields`.
    pub selectable_fields: &'a [&'a str],
    /// `spec.preserveUnknownFields`.
    pub keep_unknown: bool,
}

const CONVENTIONS: &str =
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";

/// The schema of one object, as `api_schema::Custom` wants it. A version without a schema, or with one that
/// is not structural, is an object of which nothing more is known.
pub fn publish(schema: Option<&Schema>, dialect: Dialect, what: Published<'_>) -> Value {
    let shown = schema.filter(|schema| {
        !has_unknown_types(schema)
            && nonstructural::unsupported(schema).is_none()
            && nonstructural::violations(&Default::default(), schema).is_empty()
    });
    let mut out = Map::new();
    match shown {
        // Naming any field here would make kubectl refuse all others.
        Some(schema) if dialect == Dialect::V2 && (schema.preserves_unknown() || what.keep_unknown) => {
            out.insert("type".to_owned(), "object".into());
        }
        Some(schema) => {
            out = spine(schema, dialect, &schema.required);
            let properties = out.entry("properties").or_insert_with(|| json!({}));
            if let Some(properties) = properties.as_object_mut() {
                properties.insert("apiVersion".to_owned(), api_version());
                properties.insert("kind".to_owned(), kind());
                properties.insert("metadata".to_owned(), metadata(dialect));
            }
        }
        None => {
            out.insert("type".to_owned(), "object".into());
        }
    }
    out.insert(
        "x-kubernetes-group-version-kind".to_owned(),
        json!([{"group": what.group, "version": what.version, "kind": what.kind}]),
    );
    if !what.selectable_fields.is_empty() {
        let field = |path: &&str| json!({"fieldPath": path.strip_prefix('.').unwrap_or(path)});
        let fields: Vec<Value> = what.selectable_fields.iter().map(field).collect();
        out.insert("x-kubernetes-selectable-fields".to_owned(), fields.into());
    }
    Value::Object(out)
}

/// Types that OpenAPI doesn't have.
pub(crate) fn has_unknown_types(schema: &Schema) -> bool {
    schema.any(&mut |schema| !schema.kind.is_empty() && !TYPES.contains(&schema.kind.as_str()))
}

/// In the order of their names, as messages list them.
pub(crate) const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

fn api_version() -> Value {
    let description = format!(
        "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: {CONVENTIONS}#resources"
    );
    json!({"type": "string", "description": description})
}

fn kind() -> Value {
    let description = format!(
        "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: {CONVENTIONS}#types-kinds"
    );
    json!({"type": "string", "description": description})
}

fn metadata(dialect: Dialect) -> Value {
    const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let description = format!("Standard object's metadata. More info: {CONVENTIONS}#metadata");
    match dialect {
        Dialect::V2 => json!({"description": description, "$ref": format!("#/definitions/{META}")}),
        // A reference may have nothing beside it in version 3.
        Dialect::V3 => {
            json!({"description": description, "allOf": [{"$ref": format!("#/components/schemas/{META}")}]})
        }
    }
}

/// A node that says what there is, and those below it. `required` may have been thinned out.
fn spine(schema: &Schema, dialect: Dialect, required: &[String]) -> Map<String, Value> {
    let v2 = dialect == Dialect::V2;
    let nullable = v2 && schema.nullable;
    // Clients of version 2 know neither nulls nor unknown fields beside fields they know.
    let hide = nullable || (v2 && schema.preserves_unknown());
    let items = schema.items().filter(|_| !hide);
    let untyped = nullable
        || (v2 && schema.kind == "array" && items.is_none())
        || (v2 && schema.preserves_unknown() && schema.kind == "object");

    let mut out = generic(schema);
    if untyped {
        out.remove("type");
    }
    if v2 {
        out.remove("nullable");
        // Upstream merges these documents into one that never had defaults.
        out.remove("default");
    }
    if v2 {
        values(schema, required, false, &mut out);
    } else {
        let mut unfolded = schema.clone_restrictions();
        unfold(schema, &mut unfolded);
        values(&unfolded, required, true, &mut out);
    }
    if let Some(items) = items {
        out.insert("items".to_owned(), Value::Object(below(items, dialect)));
    }
    if !hide && !schema.properties.is_empty() {
        let properties: Map<String, Value> = schema
            .properties
            .iter()
            .map(|(key, property)| (key.clone(), Value::Object(below(property, dialect))))
            .collect();
        out.insert("properties".to_owned(), Value::Object(properties));
    }
    if let Some(additional) = &schema.additional {
        let shown = match additional.schema.as_deref() {
            Some(schema) => Value::Object(below(schema, dialect)),
            None => additional.allows.into(),
        };
        out.insert("additionalProperties".to_owned(), shown);
    }
    if v2 && let Some(Value::Array(required)) = out.get_mut("required") {
        // What may be null may be absent, for those who know no nulls.
        let nullable = |key: &Value| {
            !hide
                && key.as_str().and_then(|key| schema.property(key)).is_some_and(|property| property.nullable)
        };
        required.retain(|key| !nullable(key));
        if required.is_empty() || schema.additional().is_some_and(|additional| additional.nullable) {
            out.remove("required");
        }
    }
    out
}

/// A node that is not the root: embedded resources show their metadata.
fn below(schema: &Schema, dialect: Dialect) -> Map<String, Value> {
    let is_shown = schema.embedded_resource && !(dialect == Dialect::V2 && schema.preserves_unknown());
    if !is_shown {
        return spine(schema, dialect, &schema.required);
    }
    let mut required = schema.required.clone();
    for key in ["kind", "apiVersion"] {
        if !required.iter().any(|known| known == key) {
            required.push(key.to_owned());
        }
    }
    let mut out = spine(schema, dialect, &required);
    let described = |text: &str| json!({"type": "string", "description": text});
    if let Some(properties) = out.entry("properties").or_insert_with(|| json!({})).as_object_mut() {
        let text = format!(
            "apiVersion defines the versioned schema of this representation of an object. More info: {CONVENTIONS}#resources"
        );
        properties.insert("apiVersion".to_owned(), described(&text));
        let text = format!(
            "kind is a string value representing the type of this object. In CamelCase. More info: {CONVENTIONS}#types-kinds"
        );
        properties.insert("kind".to_owned(), described(&text));
        properties.insert("metadata".to_owned(), metadata(dialect));
    }
    out
}

/// `x-kubernetes-int-or-string` in terms of standard JSON schema.
fn unfold(schema: &Schema, restrictions: &mut Schema) {
    if !schema.int_or_string
        || nonstructural::is_int_or_string(&schema.any_of)
        || schema.all_of.first().is_some_and(|first| nonstructural::is_int_or_string(&first.any_of))
    {
        return;
    }
    let only = |kind: &str| Schema { kind: kind.to_owned(), ..Schema::default() };
    let either = vec![only("integer"), only("string")];
    if schema.any_of.is_empty() {
        restrictions.any_of = either;
    } else {
        restrictions.all_of.insert(0, Schema { any_of: either, ..Schema::default() });
    }
}

/// A node under a junctor.
fn nested(schema: &Schema) -> Value {
    let mut out = generic(schema);
    values(schema, &schema.required, true, &mut out);
    if let Some(items) = schema.items() {
        out.insert("items".to_owned(), nested(items));
    }
    if !schema.properties.is_empty() {
        let properties = schema.properties.iter().map(|(key, property)| (key.clone(), nested(property)));
        out.insert("properties".to_owned(), Value::Object(properties.collect()));
    }
    Value::Object(out)
}

fn generic(schema: &Schema) -> Map<String, Value> {
    let mut out = Map::new();
    let mut text = |key: &str, text: &str| {
        if !text.is_empty() {
            out.insert(key.to_owned(), text.into());
        }
    };
    text("type", &schema.kind);
    text("description", &schema.description);
    text("title", &schema.title);
    text("x-kubernetes-list-type", schema.list_type.as_deref().unwrap_or_default());
    text("x-kubernetes-map-type", schema.map_type.as_deref().unwrap_or_default());
    for (key, flag) in [
        ("nullable", schema.nullable),
        ("x-kubernetes-preserve-unknown-fields", schema.preserves_unknown()),
        ("x-kubernetes-embedded-resource", schema.embedded_resource),
        ("x-kubernetes-int-or-string", schema.int_or_string),
    ] {
        if flag {
            out.insert(key.to_owned(), true.into());
        }
    }
    for (key, value) in
        [("default", &schema.default), ("example", &schema.example), ("externalDocs", &schema.external_docs)]
    {
        if let Some(value) = value {
            out.insert(key.to_owned(), value.clone());
        }
    }
    if !schema.list_map_keys.is_empty() {
        out.insert("x-kubernetes-list-map-keys".to_owned(), schema.list_map_keys.clone().into());
    }
    if !schema.rules.is_empty() {
        let rules: Vec<Value> = schema.rules.iter().map(rule).collect();
        out.insert("x-kubernetes-validations".to_owned(), rules.into());
    }
    out
}

fn rule(rule: &Rule) -> Value {
    let mut out = Map::new();
    out.insert("rule".to_owned(), rule.rule.as_str().into());
    for (key, text) in [
        ("message", rule.message.as_str()),
        ("messageExpression", &rule.message_expression),
        ("reason", rule.reason.as_deref().unwrap_or_default()),
        ("fieldPath", &rule.field_path),
    ] {
        if !text.is_empty() {
            out.insert(key.to_owned(), text.into());
        }
    }
    if let Some(optional) = rule.optional_old_self {
        out.insert("optionalOldSelf".to_owned(), optional.into());
    }
    Value::Object(out)
}

/// Restrictions on values; junctors only on request.
fn values(schema: &Schema, required: &[String], junctors: bool, out: &mut Map<String, Value>) {
    if !schema.format.is_empty() {
        out.insert("format".to_owned(), schema.format.as_str().into());
    }
    if let Some(pattern) = &schema.pattern {
        out.insert("pattern".to_owned(), pattern.as_str().into());
    }
    for (key, bound) in
        [("maximum", schema.maximum), ("minimum", schema.minimum), ("multipleOf", schema.multiple_of)]
    {
        if let Some(bound) = bound {
            out.insert(key.to_owned(), number(bound));
        }
    }
    for (key, bound) in [
        ("maxLength", schema.max_length),
        ("minLength", schema.min_length),
        ("maxItems", schema.max_items),
        ("minItems", schema.min_items),
        ("maxProperties", schema.max_properties),
        ("minProperties", schema.min_properties),
    ] {
        if let Some(bound) = bound {
            out.insert(key.to_owned(), bound.into());
        }
    }
    for (key, flag) in [
        ("exclusiveMaximum", schema.exclusive_maximum),
        ("exclusiveMinimum", schema.exclusive_minimum),
        ("uniqueItems", schema.unique_items),
    ] {
        if flag {
            out.insert(key.to_owned(), true.into());
        }
    }
    if !schema.enumeration.is_empty() {
        out.insert("enum".to_owned(), schema.enumeration.clone().into());
    }
    if !required.is_empty() {
        out.insert("required".to_owned(), required.to_vec().into());
    }
    if !junctors {
        return;
    }
    for (key, list) in [("allOf", &schema.all_of), ("anyOf", &schema.any_of), ("oneOf", &schema.one_of)] {
        if !list.is_empty() {
            out.insert(key.to_owned(), list.iter().map(nested).collect());
        }
    }
    if let Some(not) = &schema.not {
        out.insert("not".to_owned(), nested(not));
    }
}

/// Without a fraction of nothing, as Go writes floats.
fn number(float: f64) -> Value {
    if float.fract() == 0.0 && float.abs() < 1e15 { Value::from(float as i64) } else { Value::from(float) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(schema: Value, dialect: Dialect) -> Value {
        let parsed = Schema::read(&schema).unwrap();
        let what = Published {
            group: "bar.k8s.io",
            version: "v1",
            kind: "Foo",
            selectable_fields: &[],
            keep_unknown: false,
        };
        publish(Some(&parsed), dialect, what)
    }

    /// The schema of one property.
    fn check(schema: Value, v2: Value, v3: Value) {
        for (dialect, expected) in [(Dialect::V2, v2), (Dialect::V3, v3)] {
            let all = shown(json!({"type": "object", "properties": {"x": schema}}), dialect);
            assert_eq!(all["properties"]["x"], expected, "{schema} {dialect:?}");
        }
    }

    #[test]
    fn what_version_2_cannot_say_is_left_out() {
        let same = |schema: Value| check(schema.clone(), schema.clone(), schema);
        same(json!({"type": "string", "format": "date", "maxLength": 3, "enum": ["a"], "description": "d"}));
        same(json!({"type": "array", "items": {"type": "integer", "maximum": 4, "minimum": 0.5}}));
        same(json!({"type": "object", "additionalProperties": {"type": "string"}}));
        same(json!({"type": "object", "additionalProperties": true}));
        same(json!({"type": "object", "x-kubernetes-validations": [{"rule": "true", "message": "m"}]}));
        let filled = json!({"type": "string", "default": "a"});
        check(filled.clone(), json!({"type": "string"}), filled);
        let any = json!({"type": "integer", "anyOf": [{"minimum": 42}], "not": {"maximum": 3}});
        check(any.clone(), json!({"type": "integer"}), any);
        check(
            json!({"type": "string", "nullable": true}),
            json!({}),
            json!({"type": "string", "nullable": true}),
        );
        let keep = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"a": {"type": "string"}}});
        check(keep.clone(), json!({"x-kubernetes-preserve-unknown-fields": true}), keep);
        let needed = json!({"type": "object", "required": ["a", "b"],
            "properties": {"a": {"type": "string", "nullable": true}, "b": {"type": "string"}}});
        check(
            needed.clone(),
            json!({"type": "object", "required": ["b"], "properties": {"a": {}, "b": {"type": "string"}}}),
            needed,
        );
    }

    #[test]
    fn int_or_string_is_spelt_out() {
        let either = json!([{"type": "integer"}, {"type": "string"}]);
        let plain = json!({"x-kubernetes-int-or-string": true});
        check(plain.clone(), plain.clone(), json!({"x-kubernetes-int-or-string": true, "anyOf": either}));
        check(
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"minimum": 42}]}),
            plain.clone(),
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"minimum": 42}], "allOf": [{"anyOf": either}]}),
        );
        let spelt = json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": either}, {"minimum": 1}]});
        check(spelt.clone(), plain, spelt);
    }

    #[test]
    fn every_object_has_metadata() {
        let v2 = shown(json!({"type": "object", "description": "d"}), Dialect::V2);
        assert_eq!(v2["description"], "d");
        assert_eq!(
            v2["properties"]["metadata"]["$ref"],
            "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert_eq!(v2["properties"]["apiVersion"]["type"], "string");
        assert_eq!(
            v2["x-kubernetes-group-version-kind"],
            json!([{"group": "bar.k8s.io", "version": "v1", "kind": "Foo"}])
        );
        let v3 = shown(json!({"type": "object"}), Dialect::V3);
        assert_eq!(
            v3["properties"]["metadata"]["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        let embedded = json!({"type": "object", "properties": {"x": {"type": "object",
            "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}});
        let v3 = shown(embedded, Dialect::V3);
        assert_eq!(v3["properties"]["x"]["required"], json!(["kind", "apiVersion"]));
        assert_eq!(v3["properties"]["x"]["properties"].as_object().unwrap().len(), 4);

        let bare = json!({"type": "object",
            "x-kubernetes-group-version-kind": [{"group": "bar.k8s.io", "version": "v1", "kind": "Foo"}]});
        let keep = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        assert_eq!(shown(keep, Dialect::V2), bare);
        let wrong = json!({"type": "object", "properties": {"a": {"type": "bool"}}});
        assert_eq!(shown(wrong, Dialect::V3), bare);
    }

    #[test]
    fn selectable_fields_are_shown() {
        let what = Published {
            group: "g",
            version: "v1",
            kind: "K",
            selectable_fields: &[".spec.color"],
            keep_unknown: false,
        };
        let all = publish(None, Dialect::V3, what);
        assert_eq!(all["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.color"}]));
    }
}
