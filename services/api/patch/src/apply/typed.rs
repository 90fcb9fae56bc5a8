//! Walks over two values of one shape: which fields there are, what changed, merging, removing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::set::{FieldSet, field_element, show};
use super::shape::Shape;

/// What a change did, field by field.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
}

/// Every field of `value`.
pub(super) fn fields(shape: Shape<'_>, value: &Value) -> Result<FieldSet, String> {
    let mut set = FieldSet::default();
    collect(shape, value, &mut Vec::new(), &mut set)?;
    Ok(set)
}

fn collect(
    shape: Shape<'_>,
    value: &Value,
    path: &mut Vec<String>,
    set: &mut FieldSet,
) -> Result<(), String> {
    match value {
        Value::Object(object) if shape.is_object(Some(value)) => {
            for (key, member) in object {
                let (inner, named) = shape.member(key);
                path.push(field_element(key));
                collect(inner, member, path, set)?;
                let empty = member.is_null() || member.as_object().is_some_and(Map::is_empty);
                if empty || !named {
                    set.insert(path);
                }
                path.pop();
            }
        }
        Value::Array(items) if shape.is_list() => {
            let (once, twice) = by_element(shape, items)?;
            for (element, item) in once {
                path.push(element);
                collect(shape.item(), item, path, set)?;
                set.insert(path);
                path.pop();
            }
            for element in twice {
                path.push(element);
                set.insert(path);
                path.pop();
            }
        }
        // Of another type than its shape says, or null: owned as one thing.
        _ => set.insert(path),
    }
    Ok(())
}

/// Items by what identifies them, and the elements that several items share: those are owned as one thing.
#[allow(clippy::type_complexity)]
fn by_element<'v>(
    shape: Shape<'_>,
    items: &'v [Value],
) -> Result<(BTreeMap<String, &'v Value>, BTreeSet<String>), String> {
    let mut once = BTreeMap::new();
    let mut twice = BTreeSet::new();
    for item in items {
        let element = shape.element(item)?;
        if twice.contains(&element) {
            continue;
        }
        if once.insert(element.clone(), item).is_some() {
            once.remove(&element);
            twice.insert(element);
        }
    }
    Ok((once, twice))
}

pub(super) fn compare(shape: Shape<'_>, old: &Value, new: &Value) -> Result<Comparison, String> {
    let mut comparison = Comparison::default();
    differ(shape, Some(old), Some(new), &mut Vec::new(), &mut comparison)?;
    Ok(comparison)
}

fn differ(
    shape: Shape<'_>,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<String>,
    found: &mut Comparison,
) -> Result<(), String> {
    let leaf = |path: &[String], found: &mut Comparison| match (old, new) {
        (None, Some(_)) => found.added.insert(path),
        (Some(_), None) => found.removed.insert(path),
        (Some(old), Some(new)) if old != new => found.modified.insert(path),
        _ => {}
    };
    // Null and absent take the form of the other side.
    if shape.is_object(old) || shape.is_object(new) {
        if let (Some(before), Some(after)) = (members(old), members(new)) {
            if before.is_empty() && after.is_empty() {
                leaf(path, found);
                return Ok(());
            }
            for key in before.keys().chain(after.keys().filter(|key| !before.contains_key(*key))) {
                let (old, new) = (before.get(key), after.get(key));
                if old == new {
                    continue;
                }
                path.push(field_element(key));
                differ(shape.member(key).0, old, new, path, found)?;
                path.pop();
            }
            mark_container(old, new, path, found);
            return Ok(());
        }
    } else if shape.is_list()
        && let (Some(before), Some(after)) = (items(old), items(new))
    {
        if before.is_empty() && after.is_empty() {
            leaf(path, found);
            return Ok(());
        }
        differ_items(shape, before, after, path, found)?;
        mark_container(old, new, path, found);
        return Ok(());
    }
    leaf(path, found);
    Ok(())
}

/// An object's members; none for what is null or absent; `None` for anything else.
fn members(value: Option<&Value>) -> Option<&Map<String, Value>> {
    static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    match value {
        None | Some(Value::Null) => Some(&NONE),
        Some(Value::Object(members)) => Some(members),
        Some(_) => None,
    }
}

/// The same for a list.
fn items(value: Option<&Value>) -> Option<&[Value]> {
    match value {
        None | Some(Value::Null) => Some(&[]),
        Some(Value::Array(items)) => Some(items),
        Some(_) => None,
    }
}

/// A container that came or went is a field that came or went itself.
fn mark_container(old: Option<&Value>, new: Option<&Value>, path: &[String], found: &mut Comparison) {
    match (old, new) {
        (None, Some(_)) => found.added.insert(path),
        (Some(_), None) => found.removed.insert(path),
        _ => {}
    }
}

fn differ_items(
    shape: Shape<'_>,
    before: &[Value],
    after: &[Value],
    path: &mut Vec<String>,
    found: &mut Comparison,
) -> Result<(), String> {
    let (old, old_twice) = by_element(shape, before)?;
    let (new, new_twice) = by_element(shape, after)?;
    let elements: BTreeSet<&String> =
        old.keys().chain(new.keys()).chain(&old_twice).chain(&new_twice).collect();
    for element in elements {
        path.push(element.clone());
        let all = |items: &[Value]| -> Result<Vec<Value>, String> {
            let mut same = Vec::new();
            for item in items {
                if shape.element(item)? == *element {
                    same.push(item.clone());
                }
            }
            Ok(same)
        };
        match (old_twice.contains(element), new_twice.contains(element)) {
            (true, true) => {
                if all(before)? != all(after)? {
                    found.modified.insert(path);
                }
            }
            (true, false) => {
                if let Some(item) = new.get(element) {
                    differ(shape.item(), None, Some(item), path, found)?;
                }
                found.removed.insert(path);
            }
            (false, true) => {
                if let Some(item) = old.get(element) {
                    differ(shape.item(), Some(item), None, path, found)?;
                }
                found.added.insert(path);
            }
            (false, false) => {
                differ(shape.item(), old.get(element).copied(), new.get(element).copied(), path, found)?
            }
        }
        path.pop();
    }
    Ok(())
}

/// `applied` laid over `live`. Lists with identities keep live's order and take new items where the applied
/// list has them.
pub(super) fn merge(
    shape: Shape<'_>,
    live: Option<&Value>,
    applied: Option<&Value>,
) -> Result<Value, String> {
    match (live, applied) {
        (Some(Value::Object(live_object)), Some(applied_value @ Value::Object(applied_object)))
            if shape.is_object(Some(applied_value)) =>
        {
            let mut merged = live_object.clone();
            for (key, value) in applied_object {
                let inner = merge(shape.member(key).0, live_object.get(key), Some(value))?;
                merged.insert(key.clone(), inner);
            }
            Ok(Value::Object(merged))
        }
        (Some(Value::Array(live)), Some(Value::Array(applied))) if shape.is_list() => {
            merge_items(shape, live, applied).map(Value::Array)
        }
        (_, Some(applied)) => Ok(applied.clone()),
        (Some(live), None) => Ok(live.clone()),
        (None, None) => Ok(Value::Null),
    }
}

/// Live's own items keep their places in front of the shared item they preceded; shared items come in the
/// applied order, and so do new ones.
fn merge_items(shape: Shape<'_>, live: &[Value], applied: &[Value]) -> Result<Vec<Value>, String> {
    let named = |items: &[Value]| -> Result<Vec<(String, Value)>, String> {
        items.iter().map(|item| Ok((shape.element(item)?, item.clone()))).collect()
    };
    let (live, applied) = (named(live)?, named(applied)?);
    let find =
        |list: &'_ [(String, Value)], element: &str| list.iter().position(|(other, _)| other == element);
    let is_applied = |element: &str| find(&applied, element).is_some();
    let mut shared =
        applied.iter().map(|(element, _)| element).filter(|element| find(&live, element).is_some());
    let mut next_shared = shared.next();

    let mut merged = Vec::with_capacity(live.len() + applied.len());
    let (mut at_live, mut at_applied) = (0, 0);
    while at_live < live.len() || at_applied < applied.len() {
        if let Some((element, own)) = live.get(at_live) {
            let turn = applied.get(at_applied).is_some_and(|(other, _)| other == element);
            if !is_applied(element) {
                merged.push(own.clone());
                at_live += 1;
                continue;
            }
            // A shared item is put down where the applied list has it; here it is passed over, unless its
            // turn comes after new items that are to be put down first.
            if !turn && (at_applied >= applied.len() || next_shared != Some(element)) {
                at_live += 1;
                continue;
            }
            at_live += usize::from(turn);
        }
        if let Some((element, item)) = applied.get(at_applied) {
            let before = find(&live, element).map(|at| &live[at].1);
            merged.push(merge(shape.item(), before, Some(item))?);
            at_applied += 1;
            if next_shared == Some(element) {
                next_shared = shared.next();
            }
        }
    }
    Ok(merged)
}

/// Whether the items of all lists in `value` can be told apart; an error says where they can't. Live objects
/// may have such lists, an applied configuration may not.
pub(super) fn distinct(shape: Shape<'_>, value: &Value, path: &str) -> Result<(), String> {
    match value {
        Value::Object(object) if shape.is_object(Some(value)) => object
            .iter()
            .try_for_each(|(key, member)| distinct(shape.member(key).0, member, &format!("{path}.{key}"))),
        Value::Array(items) if shape.is_list() => {
            let mut seen = BTreeSet::new();
            for (index, item) in items.iter().enumerate() {
                let element = shape.element(item).map_err(|why| format!("{path}: element {index}: {why}"))?;
                let shown = show(&element);
                if !seen.insert(element) {
                    return Err(format!("{path}: duplicate entries for key {shown}"));
                }
                distinct(shape.item(), item, &format!("{path}{shown}"))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// `value` without the fields in `gone`; `None` when it is a leaf that goes as a whole. Containers that
/// become empty stay, empty.
pub(super) fn remove(shape: Shape<'_>, value: &Value, gone: &FieldSet) -> Value {
    match value {
        Value::Object(object) if shape.is_object(Some(value)) => {
            let mut kept = Map::new();
            for (key, member) in object {
                let element = field_element(key);
                if gone.has(&element) {
                    continue;
                }
                let member = match gone.below(&element) {
                    Some(below) => remove(shape.member(key).0, member, below),
                    None => member.clone(),
                };
                kept.insert(key.clone(), member);
            }
            Value::Object(kept)
        }
        Value::Array(items) if shape.is_list() => {
            let kept = items.iter().filter_map(|item| {
                let Ok(element) = shape.element(item) else { return Some(item.clone()) };
                if gone.has(&element) {
                    return None;
                }
                Some(match gone.below(&element) {
                    Some(below) => remove(shape.item(), item, below),
                    None => item.clone(),
                })
            });
            Value::Array(kept.collect())
        }
        other => other.clone(),
    }
}
