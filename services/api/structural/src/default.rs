//! Defaults put in. After `apiserver/schema/defaulting/algorithm.go` of `k8s.io/apiextensions-apiserver`.

use serde_json::Value;

use crate::schema::Schema;

/// Fills in defaults, from the outside in: a default may bring fields that have defaults of their own.
/// Expects that [`crate::prune::prune_nulls`] was there before.
pub(crate) fn default(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(members) => {
            for (key, property) in &schema.properties {
                let Some(default) = &property.default else { continue };
                if members.get(key).is_none_or(|now| now.is_null() && !property.nullable) {
                    members.insert(key.clone(), default.clone());
                }
            }
            for (key, value) in members {
                if let Some(property) = schema.property(key) {
                    self::default(value, property);
                } else if let Some(additional) = schema.additional() {
                    fill_null(value, additional);
                    self::default(value, additional);
                }
            }
        }
        Value::Array(items) => {
            let Some(below) = schema.items() else { return };
            for item in items {
                fill_null(item, below);
                default(item, below);
            }
        }
        _ => {}
    }
}

fn fill_null(value: &mut Value, schema: &Schema) {
    if value.is_null()
        && !schema.nullable
        && let Some(default) = &schema.default
    {
        *value = default.clone();
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
}
