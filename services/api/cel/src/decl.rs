//! What is known of data beforehand: its type, how large it may become, and how lists of it compare.
//!
//! A [`Decl`] is made from the schema of a custom resource ([`Decl::from_schema`]) and serves three: the
//! checker (its [`Type`]), the estimate of costs (its sizes), and the evaluator, which reads JSON by it, so
//! that a string of format `date-time` is a timestamp and lists of type `set` compare as sets.
//! Source: `k8s.io/apiserver/pkg/cel/common/schemas.go` and `values*.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::escape::{escape, is_reserved, unescape};
use crate::limits::MAX_REQUEST_BYTES;
use crate::types::Type;

/// Schemas nested deeper than this are not visible to expressions.
const MAX_SCHEMA_DEPTH: usize = 128;

/// One place in the data.
#[derive(Debug, Clone)]
pub struct Decl {
    pub ty: Type,
    pub shape: Shape,
    /// The most elements, entries, characters or bytes there can be. Nought for what has no size, as upstream.
    pub max_elements: u64,
    /// The least bytes it takes in JSON.
    pub min_size: u64,
    pub nullable: bool,
}

#[derive(Debug, Clone)]
pub enum Shape {
    /// JSON as it comes.
    Dyn,
    Bool,
    Int,
    Double,
    Text,
    Bytes,
    Duration,
    Date,
    DateTime,
    IntOrString,
    List {
        items: Arc<Decl>,
        kind: ListKind,
    },
    Map {
        values: Arc<Decl>,
    },
    Object(Arc<ObjectType>),
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListKind {
    Atomic,
    Set,
    /// Elements are told apart by these fields (JSON names).
    Map(Vec<String>),
}

/// An object whose fields are known.
#[derive(Debug)]
pub struct ObjectType {
    pub name: String,
    /// By the name in JSON.
    pub fields: BTreeMap<String, Field>,
    /// Has whatever field is asked for, of any type: `Object` of mutating policies.
    pub open: bool,
}

#[derive(Debug, Clone)]
pub struct Field {
    pub decl: Arc<Decl>,
    pub required: bool,
}

impl ObjectType {
    /// The field that an expression means: reserved words may be spelt escaped or plain.
    pub(crate) fn field(&self, ident: &str) -> Option<&Field> {
        let name = unescape(ident)?;
        let field = self.fields.get(&*name)?;
        let spelt = escape(&name)?;
        (spelt == ident || (name == ident && is_reserved(ident))).then_some(field)
    }
}

impl Decl {
    fn new(ty: Type, shape: Shape, max_elements: u64, min_size: u64) -> Decl {
        Decl { ty, shape, max_elements, min_size, nullable: false }
    }
    pub fn dynamic() -> Decl {
        Decl::new(Type::Dyn, Shape::Dyn, 0, 1)
    }
    /// Data of which only the type is known: results of other expressions.
    pub fn of_type(ty: Type) -> Decl {
        Decl { ty, ..Decl::dynamic() }
    }
    pub fn boolean() -> Decl {
        Decl::new(Type::Bool, Shape::Bool, 0, 4)
    }
    pub fn integer() -> Decl {
        Decl::new(Type::Int, Shape::Int, 0, 1)
    }
    pub fn number() -> Decl {
        Decl::new(Type::Double, Shape::Double, 0, 1)
    }
    /// `max_length` in characters, which may take four bytes each.
    pub fn string(max_length: Option<u64>) -> Decl {
        let max = max_length.map_or(MAX_REQUEST_BYTES - 2, |max| max.saturating_mul(4));
        Decl::new(Type::String, Shape::Text, max, 2)
    }
    pub fn list(items: Decl, kind: ListKind, max_items: Option<u64>) -> Decl {
        let max = max_items.unwrap_or((MAX_REQUEST_BYTES - 2) / (items.min_size + 1));
        let items = Arc::new(items);
        Decl::new(Type::list(items.ty.clone()), Shape::List { items, kind }, max, 2)
    }
    pub fn map(values: Decl, max_properties: Option<u64>) -> Decl {
        let max = max_properties.unwrap_or((MAX_REQUEST_BYTES - 2) / (values.min_size + 6));
        let values = Arc::new(values);
        Decl::new(Type::map(Type::String, values.ty.clone()), Shape::Map { values }, max, 2)
    }
    pub fn object(
        name: impl Into<String>,
        fields: impl IntoIterator<Item = (String, Field)>,
        min_size: u64,
    ) -> Decl {
        let object =
            Arc::new(ObjectType { name: name.into(), fields: fields.into_iter().collect(), open: false });
        Decl::new(Type::Object(object.clone()), Shape::Object(object), 0, min_size)
    }

    /// The declaration for an OpenAPI v3 (structural) schema in JSON; none where expressions see nothing.
    ///
    /// `root` says that the schema is of a whole resource, whose apiVersion, kind, metadata.name and
    /// metadata.generateName are always there. `name` is what messages call the type.
    pub fn from_schema(schema: &Json, root: bool, name: &str) -> Option<Decl> {
        from_schema(schema, root || is(schema, "x-kubernetes-embedded-resource"), name, MAX_SCHEMA_DEPTH)
    }
}

fn is(schema: &Json, flag: &str) -> bool {
    schema.get(flag).and_then(Json::as_bool).unwrap_or(false)
}

fn limit(schema: &Json, name: &str) -> Option<u64> {
    let value = schema.get(name)?;
    match value.as_i64() {
        Some(value) => Some(u64::try_from(value).unwrap_or(0)),
        None => value.as_u64(),
    }
}

fn from_schema(schema: &Json, root: bool, name: &str, levels: usize) -> Option<Decl> {
    let levels = levels.checked_sub(1)?;
    let nested = |schema: &Json, name: &str| {
        from_schema(schema, is(schema, "x-kubernetes-embedded-resource"), name, levels)
    };
    let nullable = is(schema, "nullable");
    let longest = || limit(schema, "maxLength").map(|max| max.saturating_mul(4));
    if is(schema, "x-kubernetes-int-or-string") {
        let max = longest().unwrap_or(MAX_REQUEST_BYTES - 2);
        return Some(Decl { nullable, ..Decl::new(Type::Dyn, Shape::IntOrString, max, 1) });
    }
    let kind = schema.get("type").and_then(Json::as_str).unwrap_or(if root { "object" } else { "" });
    let decl = match kind {
        "array" => {
            let items = nested(schema.get("items")?, &format!("{name}.@idx"))?;
            let kind = match schema.get("x-kubernetes-list-type").and_then(Json::as_str) {
                Some("set") => ListKind::Set,
                Some("map") => {
                    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Json::as_array);
                    let keys = keys.into_iter().flatten().filter_map(|key| key.as_str().map(str::to_owned));
                    ListKind::Map(keys.collect())
                }
                _ => ListKind::Atomic,
            };
            Decl::list(items, kind, limit(schema, "maxItems"))
        }
        "object" => {
            if let Some(values @ Json::Object(_)) = schema.get("additionalProperties")
                && !root
            {
                let values = nested(values, &format!("{name}.@elem"))?;
                Decl::map(values, limit(schema, "maxProperties"))
            } else {
                object(schema, root, name, &nested)
            }
        }
        "string" => {
            let format = schema.get("format").and_then(Json::as_str).unwrap_or("");
            match format {
                "byte" => {
                    let max = limit(schema, "maxLength").unwrap_or(MAX_REQUEST_BYTES - 2);
                    Decl::new(Type::Bytes, Shape::Bytes, max, 2)
                }
                "duration" => Decl::new(Type::Duration, Shape::Duration, 32, 3),
                "date" => Decl::new(Type::Timestamp, Shape::Date, 12, 12),
                "date-time" => Decl::new(Type::Timestamp, Shape::DateTime, 32, 21),
                _ => {
                    let longest_of_enum = || {
                        let values = schema.get("enum")?.as_array().filter(|values| !values.is_empty())?;
                        values.iter().map(|value| value.as_str().map_or(0, |text| text.len() as u64)).max()
                    };
                    let max = longest().or_else(longest_of_enum).unwrap_or(MAX_REQUEST_BYTES - 2);
                    Decl::new(Type::String, Shape::Text, max, 2)
                }
            }
        }
        "boolean" => Decl::boolean(),
        "number" => Decl::number(),
        "integer" => Decl::integer(),
        _ => return None,
    };
    Some(Decl { nullable, ..decl })
}

fn object(schema: &Json, root: bool, name: &str, nested: &dyn Fn(&Json, &str) -> Option<Decl>) -> Decl {
    let required = |field: &str| {
        let names = schema.get("required").and_then(Json::as_array);
        names.is_some_and(|names| names.iter().any(|one| one.as_str() == Some(field)))
    };
    let mut fields = BTreeMap::new();
    let mut min_size = 2;
    for (field, property) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
        let shown = escape(field).unwrap_or_else(|| field.clone());
        let Some(decl) = nested(property, &format!("{name}.{shown}")) else { continue };
        let required = required(field);
        if required && property.get("default").is_none_or(Json::is_null) {
            min_size += field.len() as u64 + decl.min_size + 4;
        }
        if escape(field).is_some() {
            fields.insert(field.clone(), Field { decl: Arc::new(decl), required });
        }
    }
    if root && !has_meta(schema) {
        // What every resource has, and nothing else of its metadata.
        let text = || Field { decl: Arc::new(Decl::string(None)), required: false };
        let metadata = ["name", "generateName"].map(|field| (field.to_owned(), text()));
        let decl = Arc::new(Decl::object(format!("{name}.metadata"), metadata, 2));
        fields.insert("kind".to_owned(), text());
        fields.insert("apiVersion".to_owned(), text());
        fields.insert("metadata".to_owned(), Field { decl, required: required("metadata") });
    }
    Decl::object(name, fields, min_size)
}

/// Whether the schema speaks of apiVersion, kind, and the metadata that every resource has.
fn has_meta(schema: &Json) -> bool {
    let is_a = |pointer: &str, kind: &str| schema.pointer(pointer).and_then(Json::as_str) == Some(kind);
    is_a("/properties/kind/type", "string")
        && is_a("/properties/apiVersion/type", "string")
        && is_a("/properties/metadata/type", "object")
        && is_a("/properties/metadata/properties/name/type", "string")
        && is_a("/properties/metadata/properties/generateName/type", "string")
}
