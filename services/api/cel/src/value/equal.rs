//! Equality and order.
//!
//! Numbers compare across their types. Lists and maps compare element by element, lists declared as sets or
//! as maps without regard to order. What is compared is counted, since values can share parts and be
//! exponentially larger than they look.

use std::cmp::Ordering;

use serde_json::Value as Json;

use super::{List, Map, Opaque, Value};
use crate::decl::{ListKind, Shape};
use crate::escape::escape;
use crate::eval::{EvalError, Meter};

/// `one == other`.
pub(crate) fn equal(one: &Value<'_>, other: &Value<'_>, meter: &mut Meter) -> Result<bool, EvalError> {
    meter.work(1)?;
    match (one, other) {
        (Value::String(one), Value::String(two)) => Ok(one.as_str() == two.as_str()),
        _ => crate::stack::deep(|| equal_parts(one, other, meter)),
    }
}

fn equal_parts(one: &Value<'_>, other: &Value<'_>, meter: &mut Meter) -> Result<bool, EvalError> {
    Ok(match (one, other) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(one), Value::Bool(two)) => one == two,
        (
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
            Value::Int(_) | Value::Uint(_) | Value::Double(_),
        ) => numbers(one, other) == Some(Ordering::Equal),
        (Value::String(one), Value::String(two)) => one.as_str() == two.as_str(),
        (Value::Bytes(one), Value::Bytes(two)) => one == two,
        (Value::Timestamp(one), Value::Timestamp(two)) => {
            (one.seconds, one.nanos) == (two.seconds, two.nanos)
        }
        (Value::Duration(one), Value::Duration(two)) => one == two,
        (Value::List(one), Value::List(two)) => lists(one, two, meter)?,
        (Value::List(list), other) if list.is_declared() && !matches!(other, Value::Null) => {
            return Err(EvalError::no_such_overload());
        }
        (Value::Map(one), Value::Map(two)) => maps(one, two, meter)?,
        (Value::Map(map), other) if map.as_json().is_some_and(|(_, decl)| decl.is_some()) => {
            return if matches!(other, Value::Null) { Ok(false) } else { Err(EvalError::no_such_overload()) };
        }
        (Value::Struct(one), Value::Struct(two)) => {
            if one.name != two.name || one.fields.len() != two.fields.len() {
                return Ok(false);
            }
            for (name, value) in &one.fields {
                match two.get(name) {
                    Some(other) if equal(value, other, meter)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Optional(None), Value::Optional(None)) => true,
        (Value::Optional(Some(one)), Value::Optional(Some(two))) => equal(one, two, meter)?,
        (Value::Type(one), Value::Type(two)) => one.as_str() == two.as_str(),
        (Value::Opaque(one), Value::Opaque(two)) => match (&**one, &**two) {
            (Opaque::Url(one), Opaque::Url(two)) => one.text == two.text,
            (Opaque::Ip(one), Opaque::Ip(two)) => one == two,
            (Opaque::Cidr(one, bits), Opaque::Cidr(two, other)) => one == two && bits == other,
            (Opaque::Quantity(one), Opaque::Quantity(two)) => one == two,
            (Opaque::Semver(one), Opaque::Semver(two)) => one.cmp(two) == Ordering::Equal,
            (Opaque::Format(one), Opaque::Format(two)) => std::ptr::eq(*one, *two),
            (Opaque::Authorizer(one), Opaque::Authorizer(two)) => one.same(two),
            _ => false,
        },
        _ => false,
    })
}

fn lists(one: &List<'_>, two: &List<'_>, meter: &mut Meter) -> Result<bool, EvalError> {
    if one.len() != two.len() {
        return Ok(false);
    }
    if let Some(rule) = one.rule().or(two.rule()) {
        return unordered(one, two, rule, meter);
    }
    for (one, two) in one.iter().zip(two.iter()) {
        if !equal(&one?, &two?, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn unordered(one: &List<'_>, two: &List<'_>, rule: &ListKind, meter: &mut Meter) -> Result<bool, EvalError> {
    let known: Vec<Value<'_>> = one.iter().collect::<Result<_, _>>()?;
    for (at, value) in two.iter().enumerate() {
        let value = value?;
        // Most lists are in the same order, so the search starts where the element would be.
        let mut same = false;
        for candidate in known.iter().cycle().skip(at).take(known.len()) {
            if same_element(candidate, &value, rule, meter)? {
                same = match rule {
                    ListKind::Map(_) => equal(candidate, &value, meter)?,
                    _ => true,
                };
                break;
            }
        }
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// One and the same element of a set, or of a list that is a map.
pub(super) fn same_element(
    one: &Value<'_>,
    two: &Value<'_>,
    rule: &ListKind,
    meter: &mut Meter,
) -> Result<bool, EvalError> {
    let ListKind::Map(keys) = rule else { return equal(one, two, meter) };
    let (Value::Map(one), Value::Map(two)) = (one, two) else { return Ok(false) };
    for key in keys {
        let ident = escape(key).unwrap_or_else(|| key.clone());
        let same = match (one.field(&ident, Some(key)), two.field(&ident, Some(key))) {
            (None, None) => true,
            (Some(one), Some(two)) => equal(&one?, &two?, meter)?,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

fn maps(one: &Map<'_>, two: &Map<'_>, meter: &mut Meter) -> Result<bool, EvalError> {
    if one.len() != two.len() {
        return Ok(false);
    }
    for key in one.keys() {
        let same = match (one.get(&key), two.get(&key)) {
            (None, None) => true,
            (Some(one), Some(two)) => equal(&one?, &two?, meter)?,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    // Fields that no declaration knows count as well, as the JSON they are.
    if let (Some((one, Some(decl))), Some((two, _))) = (one.as_json(), two.as_json())
        && let Shape::Object(ty) = &decl.shape
    {
        for (name, value) in one.iter().filter(|(name, _)| !ty.fields.contains_key(*name)) {
            if let Some(other) = two.get(name) {
                meter.work(json_nodes(value, 64))?;
                if value != other {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// Roughly how much there is to compare.
fn json_nodes(json: &Json, levels: u32) -> u64 {
    match json {
        _ if levels == 0 => 1,
        Json::Array(items) => 1 + items.iter().map(|item| json_nodes(item, levels - 1)).sum::<u64>(),
        Json::Object(object) => 1 + object.values().map(|value| json_nodes(value, levels - 1)).sum::<u64>(),
        _ => 1,
    }
}

/// Order of two numbers of whatever type; none if one is no number.
fn numbers(one: &Value<'_>, two: &Value<'_>) -> Option<Ordering> {
    match (one, two) {
        (Value::Int(one), Value::Int(two)) => Some(one.cmp(two)),
        (Value::Uint(one), Value::Uint(two)) => Some(one.cmp(two)),
        (Value::Double(one), Value::Double(two)) => one.partial_cmp(two),
        (Value::Int(one), Value::Uint(two)) => Some(i128::from(*one).cmp(&i128::from(*two))),
        (Value::Uint(one), Value::Int(two)) => Some(i128::from(*one).cmp(&i128::from(*two))),
        (Value::Int(one), Value::Double(two)) => whole_and_double(i128::from(*one), *two),
        (Value::Uint(one), Value::Double(two)) => whole_and_double(i128::from(*one), *two),
        (Value::Double(one), Value::Int(two)) => {
            whole_and_double(i128::from(*two), *one).map(Ordering::reverse)
        }
        (Value::Double(one), Value::Uint(two)) => {
            whole_and_double(i128::from(*two), *one).map(Ordering::reverse)
        }
        _ => None,
    }
}

fn whole_and_double(whole: i128, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Beyond any 64 bits the double decides; within, its whole part is exact in an i128.
    if double.abs() >= 1e20 {
        return Some(if double > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    let floor = double.floor();
    Some(whole.cmp(&(floor as i128)).then(if double > floor { Ordering::Less } else { Ordering::Equal }))
}

/// `one < other` and its like. None where the two have no order.
pub(crate) fn compare(one: &Value<'_>, other: &Value<'_>) -> Option<Ordering> {
    match (one, other) {
        (Value::Bool(one), Value::Bool(two)) => Some(one.cmp(two)),
        (Value::String(one), Value::String(two)) => Some(one.as_str().cmp(two.as_str())),
        (Value::Bytes(one), Value::Bytes(two)) => Some(one.cmp(two)),
        (Value::Timestamp(one), Value::Timestamp(two)) => {
            Some((one.seconds, one.nanos).cmp(&(two.seconds, two.nanos)))
        }
        (Value::Duration(one), Value::Duration(two)) => Some(one.cmp(two)),
        _ => numbers(one, other),
    }
}

/// What `optional.ofNonZeroValue` takes for nothing.
pub(crate) fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Int(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::Timestamp(time) => (time.seconds, time.nanos) == (crate::library::time::MIN_SECONDS, 0),
        Value::Duration(nanos) => *nanos == 0,
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Struct(value) => value.fields.is_empty(),
        Value::Optional(value) => value.is_none(),
        Value::Type(_) | Value::Opaque(_) => false,
    }
}
