//! What a schema does not name goes, and nulls that mean nothing.
//!
//! After `apiserver/schema/pruning` and `defaulting/prunenulls.go` of `k8s.io/apiextensions-apiserver`.

use serde_json::Value;

use crate::schema::Schema;

pub(crate) const METADATA: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Where unknown fields were found, if anybody wants to know.
pub(crate) struct Unknown {
    pub wanted: bool,
    pub paths: Vec<String>,
    at: String,
}

impl Unknown {
    pub fn new(wanted: bool) -> Unknown {
        Unknown { wanted, paths: Vec::new(), at: String::new() }
    }
    fn within<T>(&mut self, step: Step<'_>, walk: impl FnOnce(&mut Unknown) -> T) -> T {
        if !self.wanted {
            return walk(self);
        }
        let length = self.at.len();
        match step {
            Step::Key(key) => {
                if length > 0 {
                    self.at.push('.');
                }
                self.at.push_str(key);
            }
            Step::Index(index) => self.at.push_str(&format!("[{index}]")),
        }
        let done = walk(self);
        self.at.truncate(length);
        done
    }
    fn record(&mut self, key: &str) {
        self.within(Step::Key(key), |unknown| {
            if unknown.wanted {
                unknown.paths.push(unknown.at.clone());
            }
        });
    }
}

enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// Removes what `schema` does not name. `embedded` leaves `apiVersion`, `kind` and `metadata` alone, whatever
/// the schema says: for the root of an object.
pub(crate) fn prune(value: &mut Value, schema: Option<&Schema>, embedded: bool, unknown: &mut Unknown) {
    if let Some(schema) = schema
        && schema.preserves_unknown()
    {
        return keep_unknown(value, schema, embedded, unknown);
    }
    match value {
        Value::Object(members) => {
            let Some(schema) = schema else {
                members.keys().for_each(|key| unknown.record(key));
                members.clear();
                return;
            };
            members.retain(|key, value| {
                if embedded && METADATA.contains(&key.as_str()) {
                    return true;
                }
                if let Some(property) = schema.property(key) {
                    unknown.within(Step::Key(key), |unknown| {
                        prune(value, Some(property), property.embedded_resource, unknown);
                    });
                } else if let Some(additional) = &schema.additional {
                    let below = additional.schema.as_deref();
                    unknown.within(Step::Key(key), |unknown| {
                        prune(value, below, below.is_some_and(|below| below.embedded_resource), unknown);
                    });
                } else {
                    if !METADATA.contains(&key.as_str()) || !unknown.at.is_empty() {
                        unknown.record(key);
                    }
                    return false;
                }
                true
            });
        }
        Value::Array(items) => {
            let below = schema.and_then(Schema::items);
            for (index, item) in items.iter_mut().enumerate() {
                unknown.within(Step::Index(index), |unknown| {
                    prune(item, below, below.is_some_and(|below| below.embedded_resource), unknown);
                });
            }
        }
        _ => {}
    }
}

/// Under `x-kubernetes-preserve-unknown-fields`: only what a schema is given for is pruned again.
fn keep_unknown(value: &mut Value, schema: &Schema, embedded: bool, unknown: &mut Unknown) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                if embedded && METADATA.contains(&key.as_str()) {
                    continue;
                }
                if let Some(property) = schema.property(key) {
                    unknown.within(Step::Key(key), |unknown| {
                        prune(value, Some(property), property.embedded_resource, unknown);
                    });
                } else if let Some(additional) = &schema.additional {
                    let below = additional.schema.as_deref();
                    unknown.within(Step::Key(key), |unknown| {
                        prune(value, below, below.is_some_and(|below| below.embedded_resource), unknown);
                    });
                }
            }
        }
        Value::Array(items) => {
            let Some(below) = schema.items() else { return };
            for (index, item) in items.iter_mut().enumerate() {
                unknown.within(Step::Index(index), |unknown| {
                    keep_unknown(item, below, below.embedded_resource, unknown);
                });
            }
        }
        _ => {}
    }
}

/// Nulls that are neither allowed nor have a default to take their place are as good as absent.
pub(crate) fn prune_nulls(value: &mut Value, schema: Option<&Schema>) {
    match value {
        Value::Object(members) => members.retain(|key, value| {
            let below = schema.and_then(|schema| schema.member(key));
            if value.is_null() && below.is_some_and(|below| !below.nullable && below.default.is_none()) {
                return false;
            }
            prune_nulls(value, below);
            true
        }),
        Value::Array(items) => {
            let below = schema.and_then(Schema::items);
            items.iter_mut().for_each(|item| prune_nulls(item, below));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: Value, mut value: Value, left: Value, unknown: &[&str]) {
        let parsed = Schema::read(&schema).unwrap();
        let mut found = Unknown::new(true);
        prune(&mut value, Some(&parsed), true, &mut found);
        found.paths.sort();
        assert_eq!(value, left, "{schema}");
        assert_eq!(found.paths, unknown, "{schema}");
    }

    #[test]
    fn what_is_not_named_goes() {
        let keep = json!({"x-kubernetes-preserve-unknown-fields": true});
        check(
            json!({}),
            json!({"apiVersion": "a", "kind": "b", "metadata": {"x": 1}, "spec": 1}),
            json!({"apiVersion": "a", "kind": "b", "metadata": {"x": 1}}),
            &["spec"],
        );
        check(
            json!({"properties": {"a": {"properties": {"b": {}}}}}),
            json!({"a": {"b": {"c": 1}, "d": [1]}, "e": null}),
            json!({"a": {"b": {}}}),
            &["a.b.c", "a.d", "e"],
        );
        check(
            json!({"properties": {"a": {"items": {"properties": {"b": {}}}}}}),
            json!({"a": [{"b": 1, "c": 2}, {"d": 3}, 4]}),
            json!({"a": [{"b": 1}, {}, 4]}),
            &["a[0].c", "a[1].d"],
        );
        check(
            json!({"properties": {"a": {"additionalProperties": {"properties": {"b": {}}}}}}),
            json!({"a": {"x": {"b": 1, "c": 2}}}),
            json!({"a": {"x": {"b": 1}}}),
            &["a.x.c"],
        );
        check(
            json!({"properties": {"a": {"additionalProperties": true}}}),
            json!({"a": {"x": {"b": 1}, "y": 2}}),
            json!({"a": {"x": {}, "y": 2}}),
            &["a.x.b"],
        );
        check(
            json!({"properties": {"a": keep}}),
            json!({"a": {"x": {"y": 1}}}),
            json!({"a": {"x": {"y": 1}}}),
            &[],
        );
        check(
            json!({"x-kubernetes-preserve-unknown-fields": true,
            "properties": {"a": {"properties": {"b": {}}}}}),
            json!({"z": {"y": 1}, "a": {"b": 1, "c": 1}}),
            json!({"z": {"y": 1}, "a": {"b": 1}}),
            &["a.c"],
        );
        // Within lists that keep what is unknown, items keep it as well, and their own properties do not.
        check(
            json!({"properties": {"a": {"x-kubernetes-preserve-unknown-fields": true,
            "items": {"properties": {"b": {"properties": {}}}}}}}),
            json!({"a": [{"b": {"c": 1}, "d": 1}]}),
            json!({"a": [{"b": {}, "d": 1}]}),
            &["a[0].b.c"],
        );
        let embedded = json!({"properties": {"a": {"x-kubernetes-embedded-resource": true,
            "properties": {"spec": {}}}}});
        check(
            embedded,
            json!({"a": {"kind": "K", "metadata": {"x": 1}, "spec": 1, "other": 1}}),
            json!({"a": {"kind": "K", "metadata": {"x": 1}, "spec": 1}}),
            &["a.other"],
        );
        // Not an embedded resource: metadata is a field like others.
        check(
            json!({"properties": {"a": {"properties": {}}}}),
            json!({"a": {"metadata": {"x": 1}}}),
            json!({"a": {}}),
            &["a.metadata"],
        );
    }

    #[test]
    fn nulls_without_meaning_go() {
        let schema = json!({"properties": {
            "plain": {}, "nullable": {"nullable": true}, "defaulted": {"default": 1},
            "list": {"items": {"properties": {"plain": {}}}},
            "map": {"additionalProperties": {}}, "free": {"x-kubernetes-preserve-unknown-fields": true},
        }});
        let parsed = Schema::read(&schema).unwrap();
        let mut value = json!({"plain": null, "nullable": null, "defaulted": null, "unnamed": null,
            "list": [{"plain": null}, null], "map": {"a": null, "b": 1}, "free": {"x": null}});
        prune_nulls(&mut value, Some(&parsed));
        assert_eq!(
            value,
            json!({"nullable": null, "defaulted": null, "unnamed": null,
            "list": [{}, null], "map": {"b": 1}, "free": {"x": null}})
        );
    }
}
