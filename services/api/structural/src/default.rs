//! Defaults put in. After `apiserver/schema/defaulting/algorithm.go` of `k8s.io/apiextensions-apiserver`.

use serde_json::Value;

use crate::schema::Schema;

/// What defaults may add to one object. It could not be stored by far; without an end, a list of nothing but
/// nulls and one large default would take all memory there is.
const MAX_ADDED_BYTES: usize = 8 << 20;

/// Fills in defaults, from the outside in: a default may bring fields that have defaults of their own.
/// Expects that [`crate::prune::prune_nulls`] was there before. Gives whether all of them had room.
pub(crate) fn default(value: &mut Value, schema: &Schema) -> bool {
    let mut room = Room(MAX_ADDED_BYTES);
    room.fill(value, schema);
    room.0 > 0
}

/// Bytes that may still be added.
struct Room(usize);

impl Room {
    fn take(&mut self, default: &Value) -> Option<Value> {
        self.0 = self.0.saturating_sub(size(default));
        (self.0 > 0).then(|| default.clone())
    }

    fn fill(&mut self, value: &mut Value, schema: &Schema) {
        match value {
            Value::Object(members) => {
                for (key, property) in &schema.properties {
                    let Some(default) = &property.default else { continue };
                    if members.get(key).is_none_or(|now| now.is_null() && !property.nullable)
                        && let Some(default) = self.take(default)
                    {
                        members.insert(key.clone(), default);
                    }
                }
                for (key, value) in members {
                    if let Some(property) = schema.property(key) {
                        self.fill(value, property);
                    } else if let Some(additional) = schema.additional() {
                        self.fill_null(value, additional);
                        self.fill(value, additional);
                    }
                }
            }
            Value::Array(items) => {
                let Some(below) = schema.items() else { return };
                for item in items {
                    self.fill_null(item, below);
                    self.fill(item, below);
                }
            }
            _ => {}
        }
    }

    fn fill_null(&mut self, value: &mut Value, schema: &Schema) {
        if value.is_null()
            && !schema.nullable
            && let Some(default) = schema.default.as_ref().and_then(|default| self.take(default))
        {
            *value = default;
        }
    }
}

/// Roughly what a value takes in memory.
fn size(value: &Value) -> usize {
    32 + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(members) => members.iter().map(|(key, value)| 32 + key.len() + size(value)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_filled_in() {
        let nested = json!({"properties": {"a": {"default": {}, "properties": {"b": {"default": 1}}}}});
        let list =
            json!({"properties": {"l": {"items": {"default": "x", "properties": {"b": {"default": 1}}}}}});
        let map = json!({"properties": {"m": {"additionalProperties": {"default": 7}}}});
        let nullable = json!({"properties": {"a": {"nullable": true, "default": 1}}});
        for (schema, mut value, filled) in [
            (&nested, json!({}), json!({"a": {"b": 1}})),
            (&nested, json!({"a": {"b": 2}}), json!({"a": {"b": 2}})),
            (&nested, json!({"a": {"b": null}}), json!({"a": {"b": 1}})),
            (&nested, json!({"a": 5}), json!({"a": 5})),
            (&list, json!({"l": [null, {}, "y"]}), json!({"l": ["x", {"b": 1}, "y"]})),
            (&map, json!({"m": {"a": null, "b": 1}}), json!({"m": {"a": 7, "b": 1}})),
            (&nullable, json!({"a": null}), json!({"a": null})),
            (&nullable, json!({}), json!({"a": 1})),
        ] {
            default(&mut value, &Schema::read(schema).unwrap());
            assert_eq!(value, filled, "{schema}");
        }
    }

    #[test]
    fn defaults_do_not_fill_the_memory() {
        let large = json!("x".repeat(1 << 20));
        let schema = json!({"properties": {"l": {"items": {"default": large}}}});
        let mut value = json!({"l": vec![Value::Null; 1000]});
        assert!(!default(&mut value, &Schema::read(&schema).unwrap()));
        assert!(size(&value) < 2 * MAX_ADDED_BYTES);
    }
}
