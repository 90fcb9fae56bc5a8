//! Defaults the table knows.
//!
//! OpenAPI states only a few (`protocol: TCP`, `fsType: ext4`); everything that needs a thought is written by
//! hand in the registry's strategies, which run after this.

use api_machinery::Document;
use serde_json::{Map, Value};

use crate::{Cardinality, FieldInfo, FieldKind, MessageId, kinds};

/// Deeper bodies than this are refused by decoding; going no further here keeps the stack bounded anyway.
const MAX_DEPTH: usize = 64;

/// Fills absent and null fields that have a default, in objects that are there. Makes no parent objects.
pub fn apply(message: MessageId, document: &mut Document) {
    fill(message, &mut document.0, 0);
}

fn fill(message: MessageId, object: &mut Map<String, Value>, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    for field in kinds().message(message).json_fields() {
        match object.get_mut(field.json) {
            None | Some(Value::Null) => {
                if let Some(default) = &field.default {
                    object.insert(field.json.to_owned(), default.clone());
                }
            }
            Some(value) => descend(field, value, depth),
        }
    }
}

fn descend(field: &FieldInfo, value: &mut Value, depth: usize) {
    let FieldKind::Message(id) = field.kind else { return };
    match (field.cardinality, value) {
        (Cardinality::One, Value::Object(inner)) => fill(id, inner, depth + 1),
        (Cardinality::List, Value::Array(items)) => {
            items.iter_mut().filter_map(Value::as_object_mut).for_each(|item| fill(id, item, depth + 1));
        }
        (Cardinality::Map, Value::Object(items)) => {
            items.values_mut().filter_map(Value::as_object_mut).for_each(|item| fill(id, item, depth + 1));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api_machinery::Gvk;
    use serde_json::json;

    #[test]
    fn only_what_is_there_is_filled_in() {
        for (gvk, pointer, body, wanted) in [
            (
                Gvk::new("", "v1", "Service"),
                "/spec/ports",
                json!({"spec": {"ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}, {"port": 1, "protocol": null}]}}),
                json!([{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}, {"port": 1, "protocol": "TCP"}]),
            ),
            (Gvk::new("", "v1", "Service"), "/spec", json!({"metadata": {}}), Value::Null),
            (
                Gvk::new("apps", "v1", "Deployment"),
                "/spec/template/spec/volumes/0/azureDisk",
                // Through a struct that JSON flattens.
                json!({"spec": {"template": {"spec": {"volumes": [{"name": "v", "azureDisk": {"kind": "Dedicated"}}]}}}}),
                json!({"kind": "Dedicated", "cachingMode": "ReadWrite", "fsType": "ext4"}),
            ),
            // A body of the wrong shape is somebody else's to refuse.
            (Gvk::new("", "v1", "Service"), "/spec", json!({"spec": [1]}), json!([1])),
        ] {
            let message = kinds().kind_message(&gvk).expect("a built-in kind").id;
            let mut document = Document::from_value(body).expect("an object");
            apply(message, &mut document);
            assert_eq!(document.pointer(pointer).cloned().unwrap_or_default(), wanted, "{gvk} {pointer}");
        }
    }
}
