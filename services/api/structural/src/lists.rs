//! Items of lists with `x-kubernetes-list-type` `set` and `map` that are there twice.
//!
//! After `apiserver/schema/listtype` of `k8s.io/apiextensions-apiserver`.

use std::collections::HashMap;

use api_machinery::{Field, FieldError};
use serde_json::{Map, Value};

use crate::bounds::{self, MAX_ERRORS};
use crate::schema::{ListType, Schema};

/// Every second appearance, once however many follow.
pub(crate) fn duplicates(at: &Field, value: &Value, schema: &Schema, errors: &mut Vec<FieldError>) {
    if errors.len() >= MAX_ERRORS {
        return;
    }
    match value {
        Value::Object(members) => {
            if let Some(additional) = schema.additional() {
                members.iter().for_each(|(key, value)| duplicates(&at.key(key), value, additional, errors));
            }
            for (key, value) in members {
                if let Some(property) = schema.property(key) {
                    duplicates(&at.child(key), value, property, errors);
                }
            }
        }
        Value::Array(items) => {
            match schema.list_type() {
                ListType::Atomic => {}
                ListType::Set => {
                    let keys = items.iter().map(Value::to_string);
                    let found = second(keys).take(MAX_ERRORS);
                    errors.extend(found.map(|index| at.index(index).duplicate(bounds::shown(&items[index]))));
                }
                ListType::Map(keys) => by_key(at, items, keys, errors),
            }
            if let Some(below) = schema.items() {
                for (index, item) in items.iter().enumerate() {
                    duplicates(&at.index(index), item, below, errors);
                }
            }
        }
        _ => {}
    }
}

fn by_key(at: &Field, items: &[Value], keys: &[String], errors: &mut Vec<FieldError>) {
    if let Some(index) = items.iter().position(|item| !item.is_object() && !item.is_null()) {
        let item = bounds::shown(&items[index]);
        errors.push(at.index(index).invalid(item, "must be an object for an array of list-type map"));
        return;
    }
    // A key that is not there differs from one that is null.
    let key_of = |item: &Value| -> Map<String, Value> {
        keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone()))).collect()
    };
    let found: Vec<Value> = items.iter().map(|item| Value::Object(key_of(item))).collect();
    errors.extend(
        second(found.iter().map(Value::to_string))
            .take(MAX_ERRORS)
            .map(|index| at.index(index).duplicate(bounds::shown(&found[index]))),
    );
}

/// Indexes at which something is there for the second time.
fn second(keys: impl Iterator<Item = String>) -> impl Iterator<Item = usize> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    keys.enumerate().filter_map(move |(index, key)| {
        let times = seen.entry(key).or_default();
        *times += 1;
        (*times == 2).then_some(index)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_there_twice_is_found() {
        let set = json!({"x-kubernetes-list-type": "set"});
        let map = json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]});
        let two = json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"]});
        for (schema, value, expected) in [
            (&set, json!([1, 2, 1, 1]), vec!["l[2]: Duplicate value: 1"]),
            (&set, json!([1, 1.0, "1", null, null]), vec!["l[4]: Duplicate value: null"]),
            (&set, json!([{"a": 1}, {"a": 1}]), vec!["l[1]: Duplicate value: {\"a\":1}"]),
            (&map, json!([{"a": 1}, {"a": 2}, {"a": 1}]), vec!["l[2]: Duplicate value: {\"a\":1}"]),
            (&map, json!([{}, null]), vec!["l[1]: Duplicate value: {}"]),
            (&map, json!([{}, {"a": null}]), vec![]),
            (
                &map,
                json!([{}, 1]),
                vec!["l[1]: Invalid value: 1: must be an object for an array of list-type map"],
            ),
            (
                &two,
                json!([{"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2}]),
                vec!["l[2]: Duplicate value: {\"a\":1,\"b\":2}"],
            ),
        ] {
            let schema = Schema::read(&json!({"properties": {"l": schema}})).unwrap();
            let mut errors = Vec::new();
            duplicates(&Field::default(), &json!({"l": value}), &schema, &mut errors);
            let errors: Vec<String> = errors.iter().map(FieldError::to_string).collect();
            assert_eq!(errors, expected, "{value}");
        }
    }
}
