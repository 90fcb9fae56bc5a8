//! Schemas as types of CEL.
//!
//! After `apiserver/pkg/cel/common/schemas.go` of `k8s.io/apiserver` and `schema/cel/model` of
//! `k8s.io/apiextensions-apiserver`. Sizes are estimates of the most that a request can hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use api_cel::limits::MAX_REQUEST_BYTES;
use api_cel::{Decl, Field, ListKind, ObjectType, Shape, Type, escape};

use crate::schema::{ListType, Schema};

/// What rules see of a value of this schema; `None` where they see nothing, as of what has no type. `root`
/// says that it is a whole resource, whose `kind`, `apiVersion`, `metadata.name` and `metadata.generateName`
/// are always seen. `name` is the type's, and must differ from those of other types.
pub(crate) fn declare(schema: &Schema, root: bool, name: &str) -> Option<Decl> {
    let decl = if schema.int_or_string {
        let most = schema.max_length.map(in_bytes).unwrap_or(LONGEST_TEXT);
        decl(Type::Dyn, Shape::IntOrString, most, 1)
    } else {
        match schema.kind.as_str() {
            "array" => {
                let items = schema.items()?;
                let items = declare(items, items.embedded_resource, &format!("{name}.@idx"))?;
                let kind = match schema.list_type() {
                    ListType::Atomic => ListKind::Atomic,
                    ListType::Set => ListKind::Set,
                    ListType::Map(keys) => ListKind::Map(keys.to_vec()),
                };
                Decl::list(items, kind, schema.max_items.map(count))
            }
            "object" => match schema.additional() {
                Some(values) => {
                    let values = declare(values, values.embedded_resource, &format!("{name}.@elem"))?;
                    Decl::map(values, schema.max_properties.map(count))
                }
                None => object(schema, root, name),
            },
            "string" => text(schema),
            "boolean" => Decl::boolean(),
            "number" => Decl::number(),
            "integer" => Decl::integer(),
            _ => return None,
        }
    };
    Some(Decl { nullable: schema.nullable, ..decl })
}

/// A string that fills a request, without its quotes.
const LONGEST_TEXT: u64 = MAX_REQUEST_BYTES - 2;

fn count(bound: i64) -> u64 {
    u64::try_from(bound).unwrap_or_default()
}

/// Characters may take four bytes.
fn in_bytes(characters: i64) -> u64 {
    count(characters).saturating_mul(4)
}

fn decl(ty: Type, shape: Shape, max_elements: u64, min_size: u64) -> Decl {
    Decl { ty, shape, max_elements, min_size, nullable: false }
}

fn text(schema: &Schema) -> Decl {
    match schema.format.as_str() {
        "byte" => {
            let most = schema.max_length.map_or(LONGEST_TEXT, count);
            decl(Type::Bytes, Shape::Bytes, most, 2)
        }
        "duration" => decl(Type::Duration, Shape::Duration, 32, 3),
        "date" => decl(Type::Timestamp, Shape::Date, 12, 12),
        "date-time" => decl(Type::Timestamp, Shape::DateTime, 32, 21),
        _ => {
            let longest =
                schema.enumeration.iter().map(|one| one.as_str().map_or(0, |text| text.len() as u64));
            let most = match (schema.max_length, longest.max()) {
                (Some(length), _) => in_bytes(length),
                (None, Some(longest)) => longest,
                (None, None) => LONGEST_TEXT,
            };
            decl(Type::String, Shape::Text, most, 2)
        }
    }
}

fn object(schema: &Schema, root: bool, name: &str) -> Decl {
    let mut fields = BTreeMap::new();
    let mut min_size = 2;
    // A schema that has all of these says more of them than is said for it.
    let implicit = root && !has_type_and_names(schema);
    for (key, property) in &schema.properties {
        if implicit && crate::prune::METADATA.contains(&key.as_str()) {
            continue;
        }
        let spelt = escape(key);
        let below = format!("{name}.{}", spelt.as_deref().unwrap_or(key));
        let Some(decl) = declare(property, property.embedded_resource, &below) else { continue };
        let required = schema.required.contains(key);
        if required && property.default.is_none() {
            min_size += key.len() as u64 + decl.min_size + 4;
        }
        if spelt.is_some() {
            fields.insert(key.clone(), Field { decl: Arc::new(decl), required });
        }
    }
    if implicit {
        let field = |key: &str, decl: Decl, min_size: &mut u64| {
            let required = schema.required.iter().any(|required| required == key);
            if required {
                *min_size += key.len() as u64 + decl.min_size + 4;
            }
            Field { decl: Arc::new(decl), required }
        };
        for key in ["kind", "apiVersion"] {
            let text = field(key, Decl::string(None), &mut min_size);
            fields.insert(key.to_owned(), text);
        }
        let names = ["name", "generateName"]
            .map(|key| (key.to_owned(), Field { decl: Arc::new(Decl::string(None)), required: false }));
        let metadata = Decl::object(format!("{name}.metadata"), names, 2);
        let metadata = field("metadata", metadata, &mut min_size);
        fields.insert("metadata".to_owned(), metadata);
    }
    let object = Arc::new(ObjectType { name: name.to_owned(), fields, open: false });
    decl(Type::Object(object.clone()), Shape::Object(object), 0, min_size)
}

fn has_type_and_names(schema: &Schema) -> bool {
    let is = |schema: &Schema, key: &str, kind: &str| {
        schema.property(key).is_some_and(|property| property.kind == kind)
    };
    is(schema, "kind", "string")
        && is(schema, "apiVersion", "string")
        && is(schema, "metadata", "object")
        && schema
            .property("metadata")
            .is_some_and(|metadata| is(metadata, "name", "string") && is(metadata, "generateName", "string"))
}
