//! The join of OpenAPI schemas with protobuf numbers.
//!
//! Names are matched without case and punctuation: protobuf calls `x-kubernetes-int-or-string`
//! `xKubernetesIntOrString`. A protobuf field whose name JSON does not have is a struct that JSON flattens;
//! it becomes an *inline* field, and its message is described from what its parent's schema says.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::openapi::{Schema, Schemas};
use crate::proto::{ProtoField, Protos};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const APIEXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// Kinds that travel as protobuf without being in any OpenAPI document.
const PROTO_ONLY: [(&str, &str); 2] = [
    ("PartialObjectMetadata", "meta.k8s.io/v1/PartialObjectMetadata"),
    ("PartialObjectMetadataList", "meta.k8s.io/v1/PartialObjectMetadataList"),
];

pub struct Joined {
    pub messages: BTreeMap<String, Message>,
    /// What did not fit, for whoever runs this.
    pub remarks: Vec<String>,
}

#[derive(Default)]
pub struct Message {
    /// Words behind the name.
    flags: Vec<String>,
    /// Complete lines, without the indent.
    fields: Vec<String>,
    /// JSON names, for descriptions.
    pub json: Vec<String>,
}

impl Joined {
    pub fn text(&self) -> String {
        let mut out = String::from(
            "# Written by services/dev/tablegen. NAME flags gvk..., then fields: JSON NUMBER TYPE flags.\n",
        );
        for (name, message) in &self.messages {
            out.push_str(name);
            for flag in &message.flags {
                out.push(' ');
                out.push_str(flag);
            }
            out.push('\n');
            for field in &message.fields {
                out.push(' ');
                out.push_str(field);
                out.push('\n');
            }
        }
        out
    }
    /// The message with this `group/version/Kind`.
    pub fn of_kind(&self, kind: &str) -> Option<&str> {
        let has = |message: &Message| message.flags.iter().any(|flag| flag == kind);
        self.messages.iter().find(|(_, message)| has(message)).map(|(name, _)| name.as_str())
    }
}

pub fn join(schemas: &Schemas, protos: &Protos) -> Joined {
    let mut joined = Joined { messages: BTreeMap::new(), remarks: Vec::new() };
    for (name, schema) in schemas {
        if special(name).is_none() {
            joined.message(name, schema, protos);
        }
    }
    for (name, kind) in PROTO_ONLY {
        let name = format!("{META}.{name}");
        joined.proto_only(&name, protos);
        if let Some(message) = joined.messages.get_mut(&name) {
            message.flags.push(kind.to_owned());
            message.fields.splice(0..0, ["apiVersion 0 string".to_owned(), "kind 0 string".to_owned()]);
        }
    }
    joined.messages.insert(
        "dev.roadstead.CustomResource".to_owned(),
        Message {
            flags: vec!["open".to_owned()],
            fields: vec![
                "apiVersion 0 string".to_owned(),
                "kind 0 string".to_owned(),
                format!("metadata 0 {META}.ObjectMeta"),
            ],
            json: Vec::new(),
        },
    );
    joined
}

impl Joined {
    fn message(&mut self, name: &str, schema: &Schema, protos: &Protos) {
        let mut message = Message::default();
        if schema.value["x-kubernetes-map-type"] == "atomic" {
            message.flags.push("atomic".to_owned());
        }
        for union in schema.value["x-kubernetes-unions"].as_array().into_iter().flatten() {
            message.flags.push(format!("union={union}"));
        }
        message.flags.extend(schema.kinds.iter().cloned());
        let none = serde_json::Map::new();
        let properties = schema.value["properties"].as_object().unwrap_or(&none);
        let required: BTreeSet<&str> =
            schema.value["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let proto = protos.get(name);
        if proto.is_none() && !properties.is_empty() {
            self.remarks.push(format!("{name}: no protobuf message"));
        }
        let proto = proto.map_or(&[][..], Vec::as_slice);

        let mut left: BTreeMap<String, (&str, &Value)> =
            properties.iter().map(|(json, value)| (plain(json), (json.as_str(), value))).collect();
        let mut lines: Vec<(u32, String)> = Vec::new();
        // Named ones first: an inline struct gets what nobody else has a claim to.
        let (named, inline): (Vec<&ProtoField>, Vec<&ProtoField>) =
            proto.iter().partition(|field| left.contains_key(&plain(&field.name)));
        for field in named {
            if let Some((json, value)) = left.remove(&plain(&field.name)) {
                let line = line(json, field.number, value, Some(field), required.contains(json));
                lines.push((field.number, line));
            }
        }
        for field in inline {
            // Required fields differ between those that embed the same struct, so each gets its own.
            let inner_name = format!("{name}.{}", field.name);
            if self.inline(&inner_name, field, &mut left, &required, protos) {
                lines.push((field.number, format!("- {} {inner_name}", field.number)));
            } else {
                self.remarks.push(format!("{name}: {} is not in JSON", field.name));
            }
        }
        for (json, value) in left.into_values() {
            if !["apiVersion", "kind"].contains(&json) && !proto.is_empty() {
                self.remarks.push(format!("{name}: {json} has no number"));
            }
            lines.push((0, line(json, 0, value, None, required.contains(json))));
        }
        lines.sort_by_key(|(number, _)| *number);
        message.fields = lines.into_iter().map(|(_, line)| line).collect();
        message.json = properties.keys().cloned().collect();
        self.messages.insert(name.to_owned(), message);
    }

    /// Describes the struct JSON flattens into `left`'s owner; false when none of its fields is there.
    fn inline(
        &mut self,
        name: &str,
        field: &ProtoField,
        left: &mut BTreeMap<String, (&str, &Value)>,
        required: &BTreeSet<&str>,
        protos: &Protos,
    ) -> bool {
        let mut message = Message::default();
        for inner in protos.get(&field.typ).into_iter().flatten() {
            if let Some((json, value)) = left.remove(&plain(&inner.name)) {
                message.fields.push(line(json, inner.number, value, Some(inner), required.contains(json)));
                continue;
            }
            let deeper = format!("{name}.{}", inner.name);
            if self.inline(&deeper, inner, left, required, protos) {
                message.fields.push(format!("- {} {deeper}", inner.number));
            }
        }
        let found = !message.fields.is_empty();
        if found {
            self.messages.insert(name.to_owned(), message);
        }
        found
    }

    fn proto_only(&mut self, name: &str, protos: &Protos) {
        let Some(proto) = protos.get(name) else {
            self.remarks.push(format!("{name}: no protobuf message"));
            return;
        };
        let fields = proto.iter().map(|field| {
            let prefix = if field.map {
                "{}"
            } else if field.repeated {
                "[]"
            } else {
                ""
            };
            let typ = special(&field.typ).unwrap_or(&field.typ);
            format!("{} {} {prefix}{typ}", field.name, field.number)
        });
        let message = Message { fields: fields.collect(), ..Message::default() };
        self.messages.insert(name.to_owned(), message);
    }
}

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn line(json: &str, number: u32, value: &Value, proto: Option<&ProtoField>, required: bool) -> String {
    let mut out = format!("{json} {number} {}", field_type(value, proto));
    let mut flag = |text: &str| {
        out.push(' ');
        out.push_str(text);
    };
    if required {
        flag("required");
    }
    match value["x-kubernetes-list-type"].as_str() {
        Some("set") => flag("set"),
        Some("map") => {
            let keys = value["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
            let keys: Vec<&str> = keys.filter_map(Value::as_str).collect();
            flag(&format!("keys={}", keys.join(",")));
        }
        Some("atomic") => flag("list-atomic"),
        _ => {}
    }
    match value["x-kubernetes-map-type"].as_str() {
        Some("atomic") => flag("atomic"),
        Some("granular") => flag("granular"),
        _ => {}
    }
    if let Some(key) = value["x-kubernetes-patch-merge-key"].as_str() {
        flag(&format!("key={key}"));
    }
    for strategy in value["x-kubernetes-patch-strategy"].as_str().into_iter().flat_map(|all| all.split(',')) {
        flag(if strategy == "retainKeys" { "retain-keys" } else { strategy });
    }
    match &value["default"] {
        Value::Null => {}
        default => flag(&format!("default={default}")),
    }
    out
}

fn field_type(value: &Value, proto: Option<&ProtoField>) -> String {
    if value["type"] == "array" {
        return format!("[]{}", scalar(&value["items"], proto));
    }
    if value["additionalProperties"].is_object() {
        return format!("{{}}{}", scalar(&value["additionalProperties"], proto));
    }
    scalar(value, proto)
}

fn scalar(value: &Value, proto: Option<&ProtoField>) -> String {
    let reference = value["$ref"].as_str().or_else(|| value["allOf"][0]["$ref"].as_str());
    if let Some(name) = reference.and_then(|reference| reference.rsplit('/').next()) {
        return special(name).unwrap_or(name).to_owned();
    }
    // OpenAPI says only "string" of durations.
    if proto.is_some_and(|field| field.typ == format!("{META}.Duration")) {
        return "duration".to_owned();
    }
    match (value["type"].as_str(), value["format"].as_str()) {
        (Some("string"), Some("byte")) => "bytes",
        (Some("string"), _) => "string",
        (Some("boolean"), _) => "bool",
        (Some("integer"), Some("int64")) => "int64",
        (Some("integer"), _) => "int32",
        (Some("number"), _) => "double",
        (Some("array"), _) => "strings",
        _ => "json",
    }
    .to_owned()
}

fn special(name: &str) -> Option<&'static str> {
    Some(match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => "quantity",
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => "int-or-string",
        "io.k8s.apimachinery.pkg.runtime.RawExtension" => "raw-extension",
        _ => match name.strip_prefix(META).or_else(|| name.strip_prefix(APIEXTENSIONS))? {
            ".Time" => "time",
            ".MicroTime" => "micro-time",
            ".FieldsV1" => "fields-v1",
            ".JSON" => "json",
            ".JSONSchemaPropsOrArray" => "schema-or-array",
            ".JSONSchemaPropsOrBool" => "schema-or-bool",
            ".JSONSchemaPropsOrStringArray" => "schema-or-strings",
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_and_numbers_become_lines() {
        let schema = |value: Value, kinds: &[&str]| Schema {
            value,
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
        };
        let schemas: Schemas = [(
            "io.k8s.api.x.v1.Volume".to_owned(),
            schema(
                json!({"required": ["name"], "properties": {
                    "apiVersion": {"type": "string"},
                    "name": {"type": "string", "default": ""},
                    "x-odd-name": {"type": "boolean"},
                    "emptyDir": {"$ref": "#/components/schemas/io.k8s.api.x.v1.Empty"},
                    "deep": {"type": "integer", "format": "int64"},
                    "ports": {"type": "array", "items": {"type": "string", "format": "byte"},
                        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
                        "x-kubernetes-patch-strategy": "merge,retainKeys", "x-kubernetes-patch-merge-key": "a"},
                    "new": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
                }}),
                &["x/v1/Volume"],
            ),
        )]
        .into();
        let field = |name: &str, number, typ: &str| ProtoField {
            name: name.to_owned(),
            number,
            typ: typ.to_owned(),
            repeated: false,
            map: false,
        };
        let protos: Protos = [
            (
                "io.k8s.api.x.v1.Volume".to_owned(),
                vec![
                    field("name", 1, "string"),
                    field("source", 2, "S"),
                    field("xOddName", 3, "bool"),
                    field("ports", 4, "bytes"),
                ],
            ),
            ("S".to_owned(), vec![field("emptyDir", 7, "E"), field("inner", 8, "T")]),
            ("T".to_owned(), vec![field("deep", 9, "int64")]),
        ]
        .into();
        let joined = join(&schemas, &protos);
        let text = joined.text();
        for line in [
            "io.k8s.api.x.v1.Volume x/v1/Volume",
            " name 1 string required default=\"\"",
            " - 2 io.k8s.api.x.v1.Volume.source",
            " x-odd-name 3 bool",
            " ports 4 []bytes keys=a,b key=a merge retain-keys",
            " apiVersion 0 string",
            " new 0 {}strings",
            "io.k8s.api.x.v1.Volume.source",
            " emptyDir 7 io.k8s.api.x.v1.Empty",
            " - 8 io.k8s.api.x.v1.Volume.source.inner",
            "io.k8s.api.x.v1.Volume.source.inner",
            " deep 9 int64",
        ] {
            assert!(text.lines().any(|one| one == line), "{line:?} is not in\n{text}");
        }
        assert!(joined.remarks.iter().any(|remark| remark.ends_with("Volume: new has no number")));
        assert_eq!(joined.of_kind("x/v1/Volume"), Some("io.k8s.api.x.v1.Volume"));
    }
}
