//! Which part of the old object a part of the new one comes from, and whether it changed.
//!
//! What did not change is not held against anybody, even where the schema has become stricter since
//! (ratcheting). After `apiserver/pkg/cel/common/equality.go` of `k8s.io/apiserver`: only what the schema
//! names has a past, and items of lists only where they have keys.

use std::collections::HashMap;

use serde_json::Value;

use crate::schema::{ListType, Schema};

/// A value together with what it was before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Correlated<'a> {
    pub new: &'a Value,
    pub old: &'a Value,
    schema: &'a Schema,
}

impl<'a> Correlated<'a> {
    pub fn new(new: &'a Value, old: &'a Value, schema: &'a Schema) -> Correlated<'a> {
        Correlated { new, old, schema }
    }

    pub fn key(self, key: &str) -> Option<Correlated<'a>> {
        let schema = self.schema.member(key)?;
        Some(Correlated::new(self.new.get(key)?, self.old.get(key)?, schema))
    }

    /// All items at once, since finding one means looking at all.
    pub fn items(self) -> Vec<Option<Correlated<'a>>> {
        let Value::Array(new) = self.new else { return Vec::new() };
        let below = self.schema.items();
        let (Some(below), Value::Array(old), ListType::Map(keys)) =
            (below, self.old, self.schema.list_type())
        else {
            return vec![None; new.len()];
        };
        let old = ByKey::new(keys, old);
        new.iter().map(|item| old.get(item).map(|old| Correlated::new(item, old, below))).collect()
    }

    pub fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Null, Value::Null) => true,
            (Value::Null, _) | (_, Value::Null) => false,
            (Value::Array(new), Value::Array(old)) => {
                if new.len() != old.len() {
                    return false;
                }
                if !matches!(self.schema.list_type(), ListType::Map(_)) || self.schema.items.is_none() {
                    return new == old;
                }
                self.items().into_iter().all(|item| item.is_some_and(Correlated::is_unchanged))
            }
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len()
                    && new.keys().all(|key| self.key(key).is_some_and(Correlated::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}

/// Items of a list by their keys; of several with the same ones the first.
pub(crate) struct ByKey<'a> {
    keys: &'a [String],
    items: HashMap<String, &'a Value>,
}

impl<'a> ByKey<'a> {
    pub fn new(keys: &'a [String], items: &'a [Value]) -> ByKey<'a> {
        let mut by_key = ByKey { keys, items: HashMap::new() };
        for item in items {
            if let Some(key) = by_key.key_of(item) {
                by_key.items.entry(key).or_insert(item);
            }
        }
        by_key
    }
    pub fn get(&self, item: &Value) -> Option<&'a Value> {
        self.items.get(&self.key_of(item)?).copied()
    }
    /// `None` where a key is missing or is not a scalar.
    fn key_of(&self, item: &Value) -> Option<String> {
        let item = item.as_object()?;
        let mut found = String::new();
        for key in self.keys {
            match item.get(key)? {
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
                scalar => {
                    found.push_str(&scalar.to_string());
                    found.push('\0');
                }
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unchanged_is_what_the_schema_can_follow() {
        let map = json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"properties": {"k": {}, "v": {}}}});
        let schema = json!({"properties": {"a": {}, "atomic": {"items": {}}, "map": map,
            "labels": {"additionalProperties": {}}}});
        let schema = Schema::read(&schema).unwrap();
        for (old, new, unchanged) in [
            (json!({"a": 1}), json!({"a": 1}), true),
            (json!({"a": 1}), json!({"a": 1.0}), false),
            (json!({"a": 1}), json!({}), false),
            (json!({"a": null}), json!({"a": null}), true),
            // Nothing is known of what has no schema.
            (json!({"z": 1}), json!({"z": 1}), false),
            (json!({"labels": {"x": 1}}), json!({"labels": {"x": 1}}), true),
            (json!({"atomic": [1, 2]}), json!({"atomic": [1, 2]}), true),
            (json!({"atomic": [1, 2]}), json!({"atomic": [2, 1]}), false),
            // Keys tell items apart, not their order.
            (json!({"map": [{"k": 1}, {"k": 2}]}), json!({"map": [{"k": 2}, {"k": 1}]}), true),
            (json!({"map": [{"k": 1, "v": 1}]}), json!({"map": [{"k": 1, "v": 2}]}), false),
        ] {
            assert_eq!(Correlated::new(&new, &old, &schema).is_unchanged(), unchanged, "{old} {new}");
        }
    }
}
