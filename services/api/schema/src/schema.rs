//! Bodies as JSON schemas.

use std::collections::BTreeSet;

use api_kinds::{Cardinality, FieldInfo, FieldKind, ListType, Message, kinds};
use serde_json::{Map, Value, json};

use crate::descriptions::Descriptions;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const APIEXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// OpenAPI 2 has another place for schemas, no `default` (clients of that age never saw one) and lets a
/// reference have siblings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    V2,
    V3,
}

impl Dialect {
    pub fn reference(self, name: &str) -> Value {
        json!({"$ref": match self {
            Dialect::V2 => format!("#/definitions/{name}"),
            Dialect::V3 => format!("#/components/schemas/{name}"),
        }})
    }
}

/// `PartialObjectMetadata` and the shells of inline structs are no schemas of their own.
pub(crate) fn is_shown(message: &Message) -> bool {
    !message.name.starts_with("dev.roadstead.")
        && !message.short_name().starts_with(|c: char| c.is_ascii_lowercase())
        && !message.short_name().starts_with("PartialObjectMetadata")
}

/// Values with a schema of their own that are no messages.
pub(crate) fn special(kind: FieldKind) -> Option<String> {
    let (package, name) = match kind {
        FieldKind::Quantity => ("io.k8s.apimachinery.pkg.api.resource", "Quantity"),
        FieldKind::IntOrString => ("io.k8s.apimachinery.pkg.util.intstr", "IntOrString"),
        FieldKind::RawExtension => ("io.k8s.apimachinery.pkg.runtime", "RawExtension"),
        FieldKind::Time => (META, "Time"),
        FieldKind::MicroTime => (META, "MicroTime"),
        FieldKind::FieldsV1 => (META, "FieldsV1"),
        FieldKind::Json => (APIEXTENSIONS, "JSON"),
        FieldKind::SchemaOrArray => (APIEXTENSIONS, "JSONSchemaPropsOrArray"),
        FieldKind::SchemaOrBool => (APIEXTENSIONS, "JSONSchemaPropsOrBool"),
        FieldKind::SchemaOrStrings => (APIEXTENSIONS, "JSONSchemaPropsOrStringArray"),
        _ => return None,
    };
    Some(format!("{package}.{name}"))
}

fn special_schema(name: &str, dialect: Dialect) -> Value {
    match (name.rsplit('.').next().unwrap_or_default(), dialect) {
        ("Quantity", Dialect::V3) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        ("Quantity", Dialect::V2) => json!({"type": "string"}),
        ("IntOrString", Dialect::V3) => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        ("IntOrString", Dialect::V2) => json!({"format": "int-or-string", "type": "string"}),
        ("Time" | "MicroTime", _) => json!({"format": "date-time", "type": "string"}),
        ("RawExtension" | "FieldsV1" | "Patch", _) => json!({"type": "object"}),
        _ => json!({}),
    }
}

/// The schema of that name and the names of those it refers to.
pub(crate) fn schema(
    name: &str,
    dialect: Dialect,
    descriptions: &Descriptions,
    group: Option<&str>,
) -> (Value, BTreeSet<String>) {
    let (mut own, mut fields) = descriptions.of(name);
    if let Some(item) = name.rsplit('.').next().and_then(|name| name.strip_suffix("List")) {
        // Nobody describes lists one by one.
        if own.is_empty() {
            own = format!("{item}List is a list of {item}.");
        }
        fields.entry("items").or_insert_with(|| format!("The objects, each a {item}."));
        fields.entry("metadata").or_insert_with(|| "What concerns the list as a whole.".to_owned());
    }
    let mut needed = BTreeSet::new();
    let mut out = match kinds().message_named(name) {
        None => special_schema(name, dialect),
        Some(message) => {
            let mut properties = Map::new();
            let mut required = Vec::new();
            for field in message.json_fields() {
                let description = fields.get(field.json).map_or("", String::as_str);
                properties.insert(field.json.to_owned(), property(field, dialect, description, &mut needed));
                if field.required {
                    required.push(field.json);
                }
            }
            let mut out = json!({"type": "object"});
            if !properties.is_empty() {
                out["properties"] = Value::Object(properties);
            }
            if !required.is_empty() {
                out["required"] = json!(required);
            }
            if message.map_atomic {
                out["x-kubernetes-map-type"] = "atomic".into();
            }
            if !message.unions.is_empty() {
                out["x-kubernetes-unions"] = json!(message.unions);
            }
            let shown = group_version_kinds(message, group);
            if !shown.is_empty() {
                out["x-kubernetes-group-version-kind"] = shown.into();
            }
            out
        }
    };
    if !own.is_empty() {
        out["description"] = own.into();
    }
    (out, needed)
}

/// Bodies that exist in every group (`DeleteOptions`, `WatchEvent`) name the core one and that of the
/// document.
fn group_version_kinds(message: &Message, group: Option<&str>) -> Vec<Value> {
    let everywhere = message.kinds.len() > 10;
    let shown = message.kinds.iter().filter(|gvk| match group {
        Some(group) if everywhere => {
            let version_of = |gvk: &api_machinery::Gvk| format!("{}/{}", gvk.group, gvk.version);
            version_of(gvk) == group || version_of(gvk) == "/v1"
        }
        _ => true,
    });
    shown.map(|gvk| json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind})).collect()
}

fn property(field: &FieldInfo, dialect: Dialect, description: &str, needed: &mut BTreeSet<String>) -> Value {
    let value = value(field.kind, dialect, needed);
    let mut out = match field.cardinality {
        Cardinality::List => json!({"type": "array", "items": value}),
        Cardinality::Map => json!({"type": "object", "additionalProperties": value}),
        Cardinality::One => value,
    };
    let default = match dialect {
        Dialect::V2 => None,
        Dialect::V3 => field.default.as_ref().or(field.stated.zero_default.as_ref()),
    };
    let has_siblings = !description.is_empty() || default.is_some() || field.map_granular;
    if dialect == Dialect::V3 && has_siblings && out["$ref"].is_string() {
        out = json!({"allOf": [out]});
    }
    if !description.is_empty() {
        out["description"] = description.into();
    }
    if let Some(default) = default {
        out["default"] = default.clone();
    }
    match &field.list_type {
        ListType::Set => out["x-kubernetes-list-type"] = "set".into(),
        ListType::Map { keys } => {
            out["x-kubernetes-list-type"] = "map".into();
            out["x-kubernetes-list-map-keys"] = json!(keys);
        }
        ListType::Atomic if field.stated.atomic => out["x-kubernetes-list-type"] = "atomic".into(),
        ListType::Atomic => {}
    }
    if field.map_atomic {
        out["x-kubernetes-map-type"] = "atomic".into();
    }
    if field.map_granular {
        out["x-kubernetes-map-type"] = "granular".into();
    }
    let patch = &field.patch;
    let strategies = [(patch.merge, "merge"), (patch.replace, "replace"), (patch.retain_keys, "retainKeys")];
    let strategies: Vec<&str> = strategies.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    if !strategies.is_empty() {
        out["x-kubernetes-patch-strategy"] = strategies.join(",").into();
    }
    if let Some(key) = patch.merge_key {
        out["x-kubernetes-patch-merge-key"] = key.into();
    }
    out
}

fn value(kind: FieldKind, dialect: Dialect, needed: &mut BTreeSet<String>) -> Value {
    let (typ, format) = match kind {
        FieldKind::Message(id) => {
            let name = kinds().message(id).name;
            needed.insert(name.to_owned());
            return dialect.reference(name);
        }
        FieldKind::Strings => return json!({"type": "array", "items": {"type": "string"}}),
        FieldKind::String | FieldKind::Duration => ("string", ""),
        FieldKind::Bool => ("boolean", ""),
        FieldKind::Int32 => ("integer", "int32"),
        FieldKind::Int64 => ("integer", "int64"),
        FieldKind::Double => ("number", "double"),
        FieldKind::Bytes => ("string", "byte"),
        kind => {
            let name = special(kind).unwrap_or_default();
            let reference = dialect.reference(&name);
            needed.insert(name);
            return reference;
        }
    };
    if format.is_empty() { json!({"type": typ}) } else { json!({"type": typ, "format": format}) }
}
