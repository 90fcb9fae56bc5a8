//! Optionals. `or` and `orValue` are not here: they look at their argument only if they need it.

use super::{Body, no_overload};
use crate::eval::{EvalError, Outcome, bool_value};
use crate::value::{List, MAX_VALUE_DEPTH, Value, is_zero};

pub(super) const BODIES: &[(&str, Body)] = &[
    ("optional.of", |_, call, args| match args {
        [value] => some(value),
        _ => no_overload(call, args),
    }),
    ("optional.ofNonZeroValue", |_, call, args| match args {
        [value] if is_zero(value) => Ok(Value::Optional(None)),
        [value] => some(value),
        _ => no_overload(call, args),
    }),
    ("optional.none", |_, _, _| Ok(Value::Optional(None))),
    ("value", |_, call, args| match args {
        [Value::Optional(Some(value))] => Ok((**value).clone()),
        [Value::Optional(None)] => Err(EvalError::failed("optional.none() dereference")),
        _ => no_overload(call, args),
    }),
    ("hasValue", |_, call, args| match args {
        [Value::Optional(value)] => bool_value(value.is_some()),
        _ => no_overload(call, args),
    }),
    ("first", |_, call, args| match args {
        [Value::List(list)] => at(list, 0),
        _ => no_overload(call, args),
    }),
    ("last", |_, call, args| match args {
        [Value::List(list)] => match list.len().checked_sub(1) {
            Some(last) => at(list, last),
            None => Ok(Value::Optional(None)),
        },
        _ => no_overload(call, args),
    }),
    ("optional.unwrap", |_, _, args| unwrap(args)),
    ("unwrapOpt", |_, _, args| unwrap(args)),
];

fn some<'a>(value: &Value<'a>) -> Outcome<'a> {
    if value.depth() >= MAX_VALUE_DEPTH {
        return Err(EvalError::failed("value is nested too deeply"));
    }
    Ok(Value::some(value.clone()))
}

fn at<'a>(list: &List<'a>, index: usize) -> Outcome<'a> {
    match list.get(index) {
        Some(value) => some(&value?),
        None => Ok(Value::Optional(None)),
    }
}

fn unwrap<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else { return Err(EvalError::no_such_overload()) };
    let mut values = Vec::new();
    for value in list.iter() {
        match value? {
            Value::Optional(Some(value)) => values.push((*value).clone()),
            Value::Optional(None) => {}
            other => return Err(EvalError::failed(format!("value {other} is not optional"))),
        }
    }
    Ok(Value::List(List::new(values)?))
}
