//! Brings a decoded body into the form upstream would send it back in.
//!
//! Upstream decodes into structs and encodes them again, which drops nulls and empty optional lists and
//! maps, prints quantities canonically and cuts times. Our documents are kept as they came, so the same is
//! done here, by the field table. Unknown fields were dealt with by the decoder and are left alone.

use api_kinds::{Cardinality, FieldInfo, FieldKind, MessageId, kinds};
use api_machinery::{Document, Gvk, Quantity, Status};
use jiff::Timestamp;
use serde_json::{Map, Value};

/// 400 for values that no decoder would take: malformed quantities and times.
pub(crate) fn normalize(message: MessageId, gvk: &Gvk, document: &mut Document) -> Result<(), Status> {
    walk(message, &mut document.0).map_err(|why| {
        Status::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {why}",
            gvk.kind, gvk.version, gvk.kind
        ))
    })
}

fn walk(message: MessageId, object: &mut Map<String, Value>) -> Result<(), String> {
    let message = kinds().message(message);
    let mut drop = Vec::new();
    for (name, value) in object.iter_mut() {
        let Some(field) = message.field(name) else { continue };
        match (field.cardinality, &mut *value) {
            (_, Value::Null) => drop.push(name.clone()),
            (Cardinality::One, value) => one(field, value)?,
            (Cardinality::List, Value::Array(items)) => {
                for item in items.iter_mut() {
                    one(field, item)?;
                }
                if items.is_empty() && !field.required {
                    drop.push(name.clone());
                }
            }
            (Cardinality::Map, Value::Object(items)) => {
                for item in items.values_mut() {
                    one(field, item)?;
                }
                if items.is_empty() && !field.required {
                    drop.push(name.clone());
                }
            }
            // Of another type than the table says: the decoder has refused it, or the kind is open.
            (Cardinality::List | Cardinality::Map, _) => {}
        }
    }
    for name in drop {
        object.remove(&name);
    }
    Ok(())
}

fn one(field: &FieldInfo, value: &mut Value) -> Result<(), String> {
    match (field.kind, &mut *value) {
        (FieldKind::Message(id), Value::Object(inner)) => walk(id, inner)?,
        (FieldKind::Quantity, Value::Null) => *value = Value::from("0"),
        (FieldKind::Quantity, given) => {
            *value = Quantity::from_json(given).map_err(|cause| cause.to_string())?.to_string().into();
        }
        (FieldKind::Time, Value::String(text)) => *value = base_clock::rfc3339(time(text)?).into(),
        (FieldKind::MicroTime, Value::String(text)) => *value = base_clock::rfc3339_micro(time(text)?).into(),
        _ => {}
    }
    Ok(())
}

fn time(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| {
        format!("parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\"")
    })
}
