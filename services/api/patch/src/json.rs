//! JSON patch and JSON merge patch.
//!
//! Written here rather than taken from a crate, since upstream's rules go beyond RFC 6902: negative
//! indices count from the end, and copies may not add up to more than a bound, or a short patch could
//! double an object twenty times.

use api_machinery::{MAX_DEPTH, is_deeper_than};
use serde_json::Value;

use crate::PatchError;

/// Upstream's bound.
const MAX_OPERATIONS: usize = 10_000;

/// What `copy` operations of one patch may duplicate together, in bytes of JSON. Upstream's bound.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// RFC 6902: applies the operations in order, all or none.
pub fn json_patch(current: &Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = patch.as_array().ok_or_else(|| {
        PatchError::Malformed("json: cannot unmarshal into Go value of type jsonpatch.Patch".to_owned())
    })?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut document = current.clone();
    let mut copied = 0;
    for operation in operations {
        run(&mut document, operation, &mut copied)?;
    }
    Ok(document)
}

/// RFC 7396: members of objects are merged, null removes, everything else replaces.
pub fn merge_patch(current: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut merged = current.as_object().cloned().unwrap_or_default();
    for (key, value) in patch {
        if value.is_null() {
            merged.remove(key);
        } else {
            let before = merged.remove(key).unwrap_or(Value::Null);
            merged.insert(key.clone(), merge_patch(&before, value));
        }
    }
    Value::Object(merged)
}

fn run(document: &mut Value, operation: &Value, copied: &mut usize) -> Result<(), PatchError> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str);
    let kind = text("op").unwrap_or_default();
    let missing =
        |what: &str| PatchError::DoesNotApply(format!("{kind} operation does not apply: missing {what}"));
    let path = text("path").ok_or_else(|| missing("path"))?;
    // "value": null is a value; an absent one is an error.
    let value = || operation.get("value").cloned().ok_or_else(|| missing("value"));
    let from = || text("from").ok_or_else(|| missing("from"));
    match kind {
        "add" => add(document, path, value()?, kind),
        "remove" => remove(document, path, kind).map(drop),
        "replace" => {
            let value = value()?;
            check_depth(path, &value, kind)?;
            *find_mut(document, path).ok_or_else(|| lost(kind, path))? = value;
            Ok(())
        }
        "move" => {
            let from = from()?;
            if path.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
                return Err(PatchError::DoesNotApply(format!(
                    "move operation does not apply: {path} is inside {from}"
                )));
            }
            let value = remove(document, from, kind)?;
            add(document, path, value, kind)
        }
        "copy" => {
            let from = from()?;
            let value = find(document, from).cloned().ok_or_else(|| lost(kind, from))?;
            *copied += value.to_string().len();
            if *copied > MAX_COPIED_BYTES {
                return Err(PatchError::TooLarge(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
                )));
            }
            add(document, path, value, kind)
        }
        "test" => {
            let wanted = operation.get("value").unwrap_or(&Value::Null);
            match find(document, path) {
                Some(found) if found == wanted => Ok(()),
                None if wanted.is_null() => Ok(()),
                _ => Err(PatchError::DoesNotApply(format!("testing value {path} failed: test failed"))),
            }
        }
        other => Err(PatchError::Malformed(format!("Unexpected kind: {other}"))),
    }
}

fn lost(kind: &str, path: &str) -> PatchError {
    PatchError::DoesNotApply(format!(
        "{kind} operation does not apply: doc is missing path: {path:?}: missing value"
    ))
}

/// Parent path and last token; `None` for the whole document.
fn split(path: &str) -> Option<(&str, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    Some((parent, unescape(last)))
}

fn unescape(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// `None` for what is no JSON pointer.
fn tokens(path: &str) -> Option<Vec<String>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    path.strip_prefix('/').map(|rest| rest.split('/').map(unescape).collect())
}

/// An index into a list of `length` items, negative ones counted from its end.
fn index(token: &str, length: usize) -> Option<usize> {
    match token.strip_prefix('-') {
        Some(back) => length.checked_sub(back.parse().ok().filter(|&back| back > 0)?),
        None => token.parse().ok(),
    }
}

fn find<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    let mut at = document;
    for token in tokens(path)? {
        at = match at {
            Value::Object(map) => map.get(&token)?,
            Value::Array(list) => list.get(index(&token, list.len())?)?,
            _ => return None,
        };
    }
    Some(at)
}

fn find_mut<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut at = document;
    for token in tokens(path)? {
        at = match at {
            Value::Object(map) => map.get_mut(&token)?,
            Value::Array(list) => {
                let index = index(&token, list.len())?;
                list.get_mut(index)?
            }
            _ => return None,
        };
    }
    Some(at)
}

/// Checked at every step and not at the end: operations could build a tower that can't even be dropped.
fn check_depth(path: &str, value: &Value, kind: &str) -> Result<(), PatchError> {
    let above = path.matches('/').count();
    if MAX_DEPTH.checked_sub(above).is_none_or(|left| is_deeper_than(value, left)) {
        return Err(PatchError::DoesNotApply(format!("{kind} operation does not apply: exceeded max depth")));
    }
    Ok(())
}

fn add(document: &mut Value, path: &str, value: Value, kind: &str) -> Result<(), PatchError> {
    check_depth(path, &value, kind)?;
    let Some((parent, last)) = split(path) else {
        *document = value;
        return Ok(());
    };
    match find_mut(document, parent) {
        Some(Value::Object(map)) => {
            map.insert(last, value);
            Ok(())
        }
        Some(Value::Array(list)) => {
            let length = list.len();
            // One past the end is where an item may be added, counted from either side.
            let at = if last == "-" { Some(length) } else { index(&last, length + 1) };
            let at = at.filter(|&at| at <= length).ok_or_else(|| {
                PatchError::DoesNotApply(format!("{kind} operation does not apply: Unable to access invalid index: {last}: invalid index referenced"))
            })?;
            list.insert(at, value);
            Ok(())
        }
        _ => Err(lost(kind, path)),
    }
}

fn remove(document: &mut Value, path: &str, kind: &str) -> Result<Value, PatchError> {
    let removed = split(path).and_then(|(parent, last)| match find_mut(document, parent)? {
        Value::Object(map) => map.remove(&last),
        Value::Array(list) => {
            let at = index(&last, list.len()).filter(|&at| at < list.len())?;
            Some(list.remove(at))
        }
        _ => None,
    });
    removed.ok_or_else(|| lost(kind, path))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_patches_follow_the_rfc() {
        let start = json!({"a": 1, "list": [1, 2, 3], "o": {"x/y": 1, "m~n": 2}});
        for (patch, wanted) in [
            (json!([]), Some(start.clone())),
            (
                json!([{"op": "add", "path": "/b", "value": null}]),
                Some(json!({"a": 1, "b": null, "list": [1, 2, 3], "o": {"x/y": 1, "m~n": 2}})),
            ),
            (
                json!([{"op": "replace", "path": "/list", "value": []}, {"op": "remove", "path": "/o"}]),
                Some(json!({"a": 1, "list": []})),
            ),
            (
                json!([{"op": "remove", "path": "/o"}, {"op": "add", "path": "/list/-", "value": 4}, {"op": "add", "path": "/list/0", "value": 0}]),
                Some(json!({"a": 1, "list": [0, 1, 2, 3, 4]})),
            ),
            (
                json!([{"op": "remove", "path": "/o"}, {"op": "remove", "path": "/list/-1"}]),
                Some(json!({"a": 1, "list": [1, 2]})),
            ),
            (
                json!([{"op": "move", "from": "/o/x~1y", "path": "/a"}, {"op": "remove", "path": "/o/m~0n"}]),
                Some(json!({"a": 1, "list": [1, 2, 3], "o": {}})),
            ),
            (
                json!([{"op": "copy", "from": "/a", "path": "/list/1"}, {"op": "remove", "path": "/o"}]),
                Some(json!({"a": 1, "list": [1, 1, 2, 3]})),
            ),
            (json!([{"op": "test", "path": "/a", "value": 1}]), Some(start.clone())),
            (json!([{"op": "test", "path": "/absent", "value": null}]), Some(start.clone())),
            (json!([{"op": "replace", "path": "", "value": {}}]), Some(json!({}))),
            (json!([{"op": "test", "path": "/a", "value": 2}]), None),
            (json!([{"op": "remove", "path": "/absent"}]), None),
            (json!([{"op": "replace", "path": "/absent", "value": 1}]), None),
            (json!([{"op": "add", "path": "/absent/x", "value": 1}]), None),
            (json!([{"op": "add", "path": "/list/9", "value": 1}]), None),
            (json!([{"op": "add", "path": "/list/x", "value": 1}]), None),
            (json!([{"op": "add", "path": "/a"}]), None),
            (json!([{"op": "move", "from": "/o", "path": "/o/x"}]), None),
            (json!([{"op": "smash", "path": "/a"}]), None),
            (json!([{"op": "remove", "path": "a"}]), None),
            (json!({"a": 1}), None),
        ] {
            assert_eq!(json_patch(&start, &patch).ok(), wanted, "{patch}");
        }
    }

    #[test]
    fn copies_can_not_blow_an_object_up() {
        let start = json!({"a": "x".repeat(1000)});
        let double = |n: usize| json!({"op": "copy", "from": "", "path": format!("/b{n}")});
        let patch = Value::Array((0..40).map(double).collect());
        assert!(matches!(json_patch(&start, &patch), Err(PatchError::TooLarge(_))));
    }

    #[test]
    fn towers_are_refused_while_they_are_built() {
        // Each copy of the whole into its own deepest place doubles the depth.
        let deepen = |n: usize| json!({"op": "copy", "from": "", "path": "/a".repeat(1 << n)});
        let patch = Value::Array((0..20).map(deepen).collect());
        assert!(matches!(json_patch(&json!({}), &patch), Err(PatchError::DoesNotApply(_))));
        let nested = (0..90).fold(json!(1), |inner, _| json!({"a": inner}));
        let patch = json!([{"op": "add", "path": "/x", "value": nested}, {"op": "move", "from": "/x", "path": format!("/y{}", "/z".repeat(20))}]);
        let start = json!({"y": (0..20).fold(json!({}), |inner, _| json!({"z": inner}))});
        assert!(matches!(json_patch(&start, &patch), Err(PatchError::DoesNotApply(_))));
    }

    #[test]
    fn merge_patches_follow_the_rfc() {
        for (start, patch, wanted) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [1]}), json!({"a": [2, null]}), json!({"a": [2, null]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            assert_eq!(merge_patch(&start, &patch), wanted, "{start} {patch}");
        }
    }
}
