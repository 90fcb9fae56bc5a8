//! Strategic merge patch: like a merge patch, but lists merge by the field table's keys.
//!
//! Directives: `$patch` (replace, delete, merge), `$retainKeys`, `$setElementOrder/<list>`,
//! `$deleteFromPrimitiveList/<list>`. A field that the table doesn't know merges as plain JSON does; the
//! decoder that comes after says it is unknown.

use api_kinds::{Cardinality, FieldInfo, FieldKind, Message, MessageId, kinds};
use serde_json::{Map, Value};

use crate::PatchError;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

/// `current`, of the kind whose body is `message`, with `patch` merged in. Both must be objects.
pub fn strategic_merge(message: MessageId, current: &Value, patch: &Value) -> Result<Value, PatchError> {
    let message = kinds().message(message);
    if message.open {
        return Err(malformed("strategic merge patch format is not supported"));
    }
    let Value::Object(patch) = patch else { return Err(malformed("invalid JSON document")) };
    let current = current.as_object().cloned().unwrap_or_default();
    merge_object(Some(Shape::Struct(message)), current, patch.clone()).map(Value::Object)
}

fn malformed(message: impl Into<String>) -> PatchError {
    PatchError::Malformed(message.into())
}

/// What an object's members are.
#[derive(Clone, Copy)]
enum Shape {
    Struct(&'static Message),
    /// Values of one kind; the field that is the map.
    Map(&'static FieldInfo),
}

/// What is known of one member.
struct Known {
    field: Option<&'static FieldInfo>,
    /// What the member is, when it is an object; what its items are, when it is a list of objects.
    shape: Option<Shape>,
}

fn look_up(shape: Option<Shape>, key: &str) -> Known {
    match shape {
        Some(Shape::Struct(message)) => match message.field(key) {
            Some(field) if field.cardinality == Cardinality::Map => {
                Known { field: Some(field), shape: Some(Shape::Map(field)) }
            }
            Some(field) => Known { field: Some(field), shape: element(field) },
            None => Known { field: None, shape: None },
        },
        Some(Shape::Map(field)) => Known { field: None, shape: element(field) },
        None => Known { field: None, shape: None },
    }
}

fn element(field: &FieldInfo) -> Option<Shape> {
    match field.kind {
        FieldKind::Message(id) => Some(Shape::Struct(kinds().message(id))),
        _ => None,
    }
}

fn merge_object(
    shape: Option<Shape>,
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
) -> Result<Map<String, Value>, PatchError> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Map::new()),
            _ => Err(unknown_directive(directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    set_orders(shape, &mut original, &mut patch)?;
    for (key, value) in patch {
        if let Some(key) = key.strip_prefix(DELETE_FROM) {
            delete_from(&mut original, key, &value)?;
            continue;
        }
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let known = look_up(shape, &key);
        let strategy = known.field.map(|field| field.patch).unwrap_or_default();
        let merged = match (original.remove(&key), value) {
            (Some(Value::Object(before)), Value::Object(patch)) => {
                if strategy.replace {
                    Some(Value::Object(patch))
                } else {
                    Some(Value::Object(merge_object(known.shape, before, patch)?))
                }
            }
            (Some(Value::Array(before)), Value::Array(patch)) => {
                if strategy.merge {
                    Some(Value::Array(merge_list(known.shape, strategy.merge_key, before, patch)?))
                } else {
                    Some(Value::Array(patch))
                }
            }
            // New, or of another type than before: as it is, but for what only made sense in a patch.
            (_, value) => without_directives(without_nulls(value)),
        };
        if let Some(merged) = merged {
            original.insert(key, merged);
        }
    }
    Ok(original)
}

fn unknown_directive(directive: &Value, patch: &Map<String, Value>) -> PatchError {
    let named = directive.as_str().map_or_else(|| directive.to_string(), str::to_owned);
    malformed(format!("unknown patch type: {named} in map: {}", Value::Object(patch.clone())))
}

/// `$retainKeys`: everything else in the original goes, and the patch may not say more than it retains.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let wrong = || malformed("invalid patch format of retainKeys");
    let keys: Vec<&str> = keys.as_array().ok_or_else(wrong)?.iter().filter_map(Value::as_str).collect();
    for (key, value) in patch.iter() {
        let directive = key.starts_with(DELETE_FROM) || key.starts_with(ORDER);
        if !value.is_null() && !directive && !keys.contains(&key.as_str()) {
            return Err(wrong());
        }
    }
    original.retain(|key, _| keys.contains(&key.as_str()));
    Ok(())
}

fn delete_from(original: &mut Map<String, Value>, key: &str, gone: &Value) -> Result<(), PatchError> {
    let gone = gone.as_array().ok_or_else(|| malformed("invalid patch format of primitive list"))?;
    if let Some(Value::Array(list)) = original.get_mut(key) {
        list.retain(|item| !gone.contains(item));
    }
    Ok(())
}

/// `$setElementOrder/<list>`: merges the list it is about, then brings it into the order given. Items that
/// only the server has keep their places relative to those that the order names, as far as that can be.
fn set_orders(
    shape: Option<Shape>,
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(ORDER)).cloned().collect();
    let wrong = || malformed("invalid patch format of setElementOrder list");
    for directive in directives {
        let Some(Value::Array(order)) = patch.remove(&directive) else { return Err(wrong()) };
        let key = &directive[ORDER.len()..];
        // A null deletes the list, as it does without an order.
        if patch.get(key).is_some_and(Value::is_null) {
            continue;
        }
        let list = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(wrong()),
        };
        let before = list(original.remove(key))?;
        let changes = list(patch.remove(key))?;
        let known = look_up(shape, key);
        let strategy = known.field.map(|field| field.patch).unwrap_or_default();
        if let Some(changes) = &changes {
            check_order(changes, &order, strategy.merge_key)?;
        }
        let server_order = before.clone().unwrap_or_default();
        let merged = match (before, changes) {
            (None, None) => continue,
            (Some(before), None) => before,
            (None, Some(changes)) => match without_directives(Value::Array(changes)) {
                Some(Value::Array(list)) => list,
                _ => continue,
            },
            (Some(before), Some(changes)) if strategy.merge => {
                merge_list(known.shape, strategy.merge_key, before, changes)?
            }
            (Some(_), Some(changes)) => changes,
        };
        let ordered = in_order(merged, &order, &server_order, strategy.merge_key);
        original.insert(key.to_owned(), Value::Array(ordered));
    }
    Ok(())
}

/// The patch's items must come in the order given, and each be named by it.
fn check_order(changes: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    if order.is_empty() || changes.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for change in changes.iter().filter(|change| change.get(DIRECTIVE).is_none()) {
        let wanted = identity(change, key)?;
        let mut found = false;
        for named in rest.by_ref() {
            if identity(named, key)? == wanted {
                found = true;
                break;
            }
        }
        if !found {
            return Err(malformed(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                Value::from(changes.to_vec()),
                Value::from(order.to_vec())
            )));
        }
    }
    Ok(())
}

/// What two items have to share to be the same item.
fn identity<'a>(item: &'a Value, key: Option<&str>) -> Result<&'a Value, PatchError> {
    match key {
        None => Ok(item),
        Some(key) => item
            .get(key)
            .ok_or_else(|| malformed(format!("map: {item} does not contain declared merge key: {key}"))),
    }
}

fn merge_list(
    items: Option<Shape>,
    key: Option<&str>,
    mut original: Vec<Value>,
    patch: Vec<Value>,
) -> Result<Vec<Value>, PatchError> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    let objects = original.iter().chain(&patch).filter(|item| item.is_object()).count();
    if objects == 0 {
        return Ok(merge_scalars(original, patch));
    }
    if objects != original.len() + patch.len() {
        return Err(malformed("list element types are not identical"));
    }
    let key = key.ok_or_else(|| malformed("cannot merge lists without merge key"))?;

    let server_order = original.clone();
    let mut changes = Vec::with_capacity(patch.len());
    let mut replace = false;
    for item in patch {
        let directive = item.get(DIRECTIVE).map(|directive| directive.as_str().unwrap_or_default());
        match directive {
            None => changes.push(item),
            Some("delete") => {
                let gone = identity(&item, Some(key))?;
                original.retain(|one| one.get(key) != Some(gone));
            }
            Some("replace") => replace = true,
            Some("merge") => return Err(malformed("merging lists cannot yet be specified in the patch")),
            Some(_) => {
                let map = item.as_object().cloned().unwrap_or_default();
                return Err(unknown_directive(&item[DIRECTIVE], &map));
            }
        }
    }
    if replace {
        return Ok(changes);
    }
    let order: Vec<Value> = changes.clone();
    for change in changes {
        let name = identity(&change, Some(key))?.clone();
        let place = original.iter().position(|one| one.get(key) == Some(&name));
        match (place, change) {
            (Some(at), Value::Object(change)) => {
                let before = original[at].as_object().cloned().unwrap_or_default();
                original[at] = Value::Object(merge_object(items, before, change)?);
            }
            (_, change) => original.extend(without_directives(without_nulls(change))),
        }
    }
    // A merge that deletes everything a `$patch: delete` named may leave items without the key in place;
    // they stay where they were.
    Ok(in_order(original, &order, &server_order, Some(key)))
}

fn merge_scalars(original: Vec<Value>, patch: Vec<Value>) -> Vec<Value> {
    let server_order = original.clone();
    let order = patch.clone();
    let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
    for item in original.into_iter().chain(patch) {
        if !merged.contains(&item) {
            merged.push(item);
        }
    }
    in_order(merged, &order, &server_order, None)
}

/// Items that `order` names in its order, woven with the others, which keep the server's.
fn in_order(items: Vec<Value>, order: &[Value], server_order: &[Value], key: Option<&str>) -> Vec<Value> {
    let name = |item: &Value| match key {
        None => Some(item.clone()),
        Some(key) => item.get(key).cloned(),
    };
    let place = |list: &[Value], item: &Value| {
        let wanted = name(item)?;
        list.iter().position(|one| name(one).as_ref() == Some(&wanted))
    };
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    others.sort_by_key(|item| place(server_order, item).unwrap_or(usize::MAX));

    let mut woven = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        match (others.peek(), named.peek()) {
            (Some(other), Some(one)) => {
                let before = match (place(server_order, other), place(server_order, one)) {
                    (Some(other), Some(one)) => other < one,
                    _ => false,
                };
                woven.extend(if before { others.next() } else { named.next() });
            }
            (Some(_), None) => woven.extend(others.next()),
            (None, Some(_)) => woven.extend(named.next()),
            (None, None) => return woven,
        }
    }
}

/// Null members of objects mean deletion, and there is nothing to delete in what is new.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(list) => Value::Array(list.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

/// `None` when the value as a whole was a directive.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(key, _)| {
                key != RETAIN_KEYS && !key.starts_with(ORDER) && !key.starts_with(DELETE_FROM)
            });
            Some(Value::Object(
                kept.filter_map(|(key, value)| Some((key, without_directives(value)?))).collect(),
            ))
        }
        Value::Array(list) => Some(Value::Array(list.into_iter().filter_map(without_directives).collect())),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use api_machinery::Gvk;
    use serde_json::json;

    use super::*;

    fn check(
        kind: (&'static str, &'static str, &'static str),
        current: Value,
        patch: Value,
        wanted: Result<Value, &str>,
    ) {
        let message = kinds().kind_message(&Gvk::new(kind.0, kind.1, kind.2)).unwrap().id;
        let got = strategic_merge(message, &current, &patch);
        match (got, wanted) {
            (Ok(got), Ok(wanted)) => assert_eq!(got, wanted, "{patch}"),
            (Err(got), Err(wanted)) => assert!(got.to_string().contains(wanted), "{patch}: {got}"),
            (got, wanted) => panic!("{patch}: {got:?}, wanted {wanted:?}"),
        }
    }

    const POD: (&str, &str, &str) = ("", "v1", "Pod");

    #[test]
    fn lists_of_objects_merge_by_key() {
        let containers = |list: Value| json!({"spec": {"containers": list}});
        let two = || containers(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]));
        for (patch, wanted) in [
            (
                json!([{"name": "b", "image": "2"}]),
                Ok(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}])),
            ),
            (
                json!([{"name": "c", "image": "1"}]),
                Ok(
                    json!([{"name": "c", "image": "1"}, {"name": "a", "image": "1"}, {"name": "b", "image": "1"}]),
                ),
            ),
            (json!([{"name": "a", "image": null}]), Ok(json!([{"name": "a"}, {"name": "b", "image": "1"}]))),
            (json!([{"name": "a", "$patch": "delete"}]), Ok(json!([{"name": "b", "image": "1"}]))),
            (json!([{"$patch": "replace"}, {"name": "z"}]), Ok(json!([{"name": "z"}]))),
            (json!([]), Ok(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]))),
            (json!([{"image": "2"}]), Err("does not contain declared merge key: name")),
            (json!([{"name": "a", "$patch": "smash"}]), Err("unknown patch type: smash")),
            (json!(["a"]), Err("not identical")),
        ] {
            check(POD, two(), containers(patch), wanted.map(containers));
        }
    }

    #[test]
    fn nested_lists_and_maps_know_their_own_strategy() {
        let deployment = ("apps", "v1", "Deployment");
        let template = |spec: Value| json!({"spec": {"template": {"spec": spec}}});
        check(
            deployment,
            template(
                json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}], "command": ["a", "b"]}]}),
            ),
            template(
                json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}], "command": ["c"]}]}),
            ),
            Ok(template(json!({"containers": [{"name": "a", "command": ["c"],
                "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}]}))),
        );
        // Ports merge by number in containers, and by port in Services.
        check(
            ("", "v1", "Service"),
            json!({"spec": {"ports": [{"port": 80, "name": "http"}, {"port": 443, "name": "https"}]}}),
            json!({"spec": {"ports": [{"port": 443, "targetPort": 8443}]}}),
            Ok(
                json!({"spec": {"ports": [{"port": 80, "name": "http"}, {"port": 443, "name": "https", "targetPort": 8443}]}}),
            ),
        );
        check(
            POD,
            json!({"metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x"]}}),
            json!({"metadata": {"labels": {"b": null, "c": "3"}, "finalizers": ["y"]}}),
            Ok(json!({"metadata": {"labels": {"a": "1", "c": "3"}, "finalizers": ["y", "x"]}})),
        );
        // Without a merge strategy a list is replaced.
        check(
            POD,
            json!({"spec": {"tolerations": [{"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
            Ok(json!({"spec": {"tolerations": [{"key": "b"}]}})),
        );
    }

    #[test]
    fn directives_do_what_they_say() {
        let deployment = ("apps", "v1", "Deployment");
        check(
            deployment,
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            Ok(json!({"spec": {"strategy": {"type": "Recreate"}}})),
        );
        check(
            deployment,
            json!({"spec": {"strategy": {}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}}}),
            Err("invalid patch format of retainKeys"),
        );
        check(
            POD,
            json!({"metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}, "annotations": {"$patch": "delete"}}}),
            Ok(json!({"metadata": {"labels": {"c": "3"}, "annotations": {}}})),
        );
        check(
            POD,
            json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}}),
            Ok(json!({"metadata": {"finalizers": ["a", "c"]}})),
        );
        check(
            POD,
            json!({"spec": {"containers": [{"name": "a"}, {"name": "server"}, {"name": "b"}]}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "image": "2"}]}}),
            // The server's own item was in front of `b`, and stays there.
            Ok(
                json!({"spec": {"containers": [{"name": "server"}, {"name": "b"}, {"name": "a", "image": "2"}]}}),
            ),
        );
        check(
            POD,
            json!({"spec": {"containers": [{"name": "a"}]}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}}),
            Err("doesn't match $setElementOrder"),
        );
    }
}
