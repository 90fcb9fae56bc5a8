//! The standard: arithmetic, order, membership, conversions.

use std::cmp::Ordering;

use super::{Body, no_overload, time};
use crate::ast::op;
use crate::eval::{EvalError, Meter, Outcome, bool_value, text_value};
use crate::plan::Call;
use crate::value::{Entries, Map, Opaque, Text, Value, compare, equal, format_double};

pub(super) const BODIES: &[(&str, Body)] = &[
    (op::NOT, |_, _, args| match args {
        [Value::Bool(value)] => bool_value(!value),
        _ => Err(EvalError::no_such_overload()),
    }),
    (op::NOT_STRICTLY_FALSE, |_, _, args| match args {
        [Value::Bool(value)] => bool_value(*value),
        _ => bool_value(true),
    }),
    (op::NEGATE, negate),
    (op::ADD, add),
    (op::SUBTRACT, subtract),
    (op::MULTIPLY, multiply),
    (op::DIVIDE, divide),
    (op::MODULO, modulo),
    (op::LESS, |_, call, args| ordered(call, args, |order| order == Ordering::Less)),
    (op::LESS_EQUALS, |_, call, args| ordered(call, args, |order| order != Ordering::Greater)),
    (op::GREATER, |_, call, args| ordered(call, args, |order| order == Ordering::Greater)),
    (op::GREATER_EQUALS, |_, call, args| ordered(call, args, |order| order != Ordering::Less)),
    (op::IN, contained),
    (op::MAP_INSERT, map_insert),
    ("size", |_, _, args| match args {
        [value @ (Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))] => {
            Ok(Value::Int(i64::try_from(value.size()).unwrap_or(i64::MAX)))
        }
        _ => Err(EvalError::failed("no such overload: size")),
    }),
    ("type", |_, _, args| match args {
        [value] => Ok(Value::Type(Text::Shared(value.type_name().into()))),
        _ => Err(EvalError::no_such_overload()),
    }),
    ("dyn", |_, _, args| args.first().cloned().ok_or_else(EvalError::no_such_overload)),
    ("bool", to_bool),
    ("bytes", |_, call, args| match args {
        [value @ Value::Bytes(_)] => Ok(value.clone()),
        [Value::String(text)] => Ok(Value::Bytes(text.as_bytes().into())),
        _ => no_overload(call, args),
    }),
    ("double", to_double),
    ("duration", |_, call, args| match args {
        [value @ Value::Duration(_)] => Ok(value.clone()),
        [Value::Int(nanos)] => Ok(Value::Duration(*nanos)),
        [Value::String(text)] => match time::parse_go_duration(text) {
            Some(nanos) => Ok(Value::Duration(nanos)),
            None => wrong_conversion("string", "google.protobuf.Duration"),
        },
        _ => no_overload(call, args),
    }),
    ("int", to_int),
    ("string", to_string),
    ("timestamp", |_, call, args| match args {
        [value @ Value::Timestamp(_)] => Ok(value.clone()),
        [Value::Int(seconds)] => {
            time::at(*seconds, 0, 0).map(Value::Timestamp).ok_or_else(timestamp_overflow)
        }
        [Value::String(text)] => match time::parse_rfc3339(text) {
            Some(time) => Ok(Value::Timestamp(time)),
            None => wrong_conversion("string", "google.protobuf.Timestamp"),
        },
        _ => no_overload(call, args),
    }),
    ("uint", to_uint),
    ("contains", |_, _, args| match args {
        [Value::String(text), Value::String(part)] => bool_value(text.contains(part.as_str())),
        _ => Err(EvalError::no_such_overload()),
    }),
    ("startsWith", |_, _, args| match args {
        [Value::String(text), Value::String(part)] => bool_value(text.starts_with(part.as_str())),
        _ => Err(EvalError::no_such_overload()),
    }),
    ("endsWith", |_, _, args| match args {
        [Value::String(text), Value::String(part)] => bool_value(text.ends_with(part.as_str())),
        _ => Err(EvalError::no_such_overload()),
    }),
];

/// Values that have no such operator at all are told from those that have it for others.
fn no_operator<'a>(call: &Call, args: &[Value<'a>], has_it: fn(&Value<'a>) -> bool) -> Outcome<'a> {
    match args.first() {
        Some(first) if !has_it(first) => {
            Err(EvalError::failed(format!("no such overload: {}", call.function)))
        }
        _ => Err(EvalError::no_such_overload()),
    }
}

pub(super) fn int_overflow() -> EvalError {
    EvalError::failed("integer overflow")
}
fn uint_overflow() -> EvalError {
    EvalError::failed("unsigned integer overflow")
}
fn duration_overflow() -> EvalError {
    EvalError::failed("duration overflow")
}
fn timestamp_overflow() -> EvalError {
    EvalError::failed("timestamp overflow")
}

fn int<'a>(value: Option<i64>) -> Outcome<'a> {
    value.map(Value::Int).ok_or_else(int_overflow)
}
fn uint<'a>(value: Option<u64>) -> Outcome<'a> {
    value.map(Value::Uint).ok_or_else(uint_overflow)
}
fn duration<'a>(value: Option<i64>) -> Outcome<'a> {
    value.map(Value::Duration).ok_or_else(duration_overflow)
}

fn negate<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(value)] => int(value.checked_neg()),
        [Value::Double(value)] => Ok(Value::Double(-value)),
        [Value::Duration(value)] => duration(value.checked_neg()),
        _ => no_operator(call, args, |value| {
            matches!(value, Value::Int(_) | Value::Double(_) | Value::Duration(_))
        }),
    }
}

fn add<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [
            Value::Null
            | Value::Bool(_)
            | Value::Map(_)
            | Value::Struct(_)
            | Value::Optional(_)
            | Value::Type(_),
            _,
        ] => no_operator(call, args, |_| false),
        [one, other] => sum(one, other, meter),
        _ => Err(EvalError::no_such_overload()),
    }
}

pub(super) fn sum<'a>(one: &Value<'a>, other: &Value<'a>, meter: &mut Meter) -> Outcome<'a> {
    match (one, other) {
        (Value::Int(one), Value::Int(two)) => int(one.checked_add(*two)),
        (Value::Uint(one), Value::Uint(two)) => uint(one.checked_add(*two)),
        (Value::Double(one), Value::Double(two)) => Ok(Value::Double(one + two)),
        (Value::String(one), Value::String(two)) => {
            meter.produce(one.len() + two.len())?;
            let mut text = String::with_capacity(one.len() + two.len());
            text.push_str(one);
            text.push_str(two);
            text_value(text)
        }
        (Value::Bytes(one), Value::Bytes(two)) => {
            meter.produce(one.len() + two.len())?;
            Ok(Value::Bytes([&**one, &**two].concat().into()))
        }
        (Value::List(one), Value::List(two)) => one.add(two, meter).map(Value::List),
        (Value::Duration(one), Value::Duration(two)) => duration(one.checked_add(*two)),
        (Value::Timestamp(at), Value::Duration(by)) | (Value::Duration(by), Value::Timestamp(at)) => {
            time::shift(at, i128::from(*by)).map(Value::Timestamp).ok_or_else(timestamp_overflow)
        }
        _ => Err(EvalError::no_such_overload()),
    }
}

fn subtract<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(one), Value::Int(two)] => int(one.checked_sub(*two)),
        [Value::Uint(one), Value::Uint(two)] => uint(one.checked_sub(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(one - two)),
        [Value::Duration(one), Value::Duration(two)] => duration(one.checked_sub(*two)),
        [Value::Timestamp(at), Value::Duration(by)] => {
            time::shift(at, -i128::from(*by)).map(Value::Timestamp).ok_or_else(timestamp_overflow)
        }
        [Value::Timestamp(one), Value::Timestamp(two)] => {
            duration(i64::try_from(time::nanos(one) - time::nanos(two)).ok())
        }
        _ => no_operator(call, args, |value| {
            matches!(
                value,
                Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_) | Value::Timestamp(_)
            )
        }),
    }
}

fn multiply<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(one), Value::Int(two)] => int(one.checked_mul(*two)),
        [Value::Uint(one), Value::Uint(two)] => uint(one.checked_mul(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(one * two)),
        _ => no_operator(call, args, |value| {
            matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_))
        }),
    }
}

fn divide<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(EvalError::failed("division by zero"))
        }
        [Value::Int(one), Value::Int(two)] => int(one.checked_div(*two)),
        [Value::Uint(one), Value::Uint(two)] => uint(one.checked_div(*two)),
        [Value::Double(one), Value::Double(two)] => Ok(Value::Double(one / two)),
        _ => no_operator(call, args, |value| {
            matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_))
        }),
    }
}

fn modulo<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            Err(EvalError::failed("modulus by zero"))
        }
        [Value::Int(one), Value::Int(two)] => int(one.checked_rem(*two)),
        [Value::Uint(one), Value::Uint(two)] => uint(one.checked_rem(*two)),
        _ => no_operator(call, args, |value| matches!(value, Value::Int(_) | Value::Uint(_))),
    }
}

fn ordered<'a>(call: &Call, args: &[Value<'a>], holds: fn(Ordering) -> bool) -> Outcome<'a> {
    let [one, two] = args else { return Err(EvalError::no_such_overload()) };
    match compare(one, two) {
        Some(order) => bool_value(holds(order)),
        None => {
            let nan = |value: &Value<'_>| matches!(value, Value::Double(double) if double.is_nan());
            let number =
                |value: &Value<'_>| matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_));
            if (nan(one) || nan(two)) && number(one) && number(two) {
                return Err(EvalError::failed("NaN values cannot be ordered"));
            }
            no_operator(call, args, |value| compare(value, value).is_some())
        }
    }
}

fn contained<'a>(meter: &mut Meter, _: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [value, Value::List(list)] => {
            let mut failed = None;
            for item in list.iter() {
                match item.and_then(|item| equal(&item, value, meter)) {
                    Ok(true) => return bool_value(true),
                    Ok(false) => {}
                    Err(err @ EvalError::Failed(_)) => failed = failed.or(Some(err)),
                    Err(err) => return Err(err),
                }
            }
            match failed {
                Some(err) => Err(err),
                None => bool_value(false),
            }
        }
        [key, Value::Map(map)] => match map.get(key) {
            Some(Ok(_)) => bool_value(true),
            Some(Err(err)) => Err(err),
            None => bool_value(false),
        },
        _ => Err(EvalError::no_such_overload()),
    }
}

/// Adds an entry that must not be there yet.
pub(crate) fn insert<'a>(
    entries: &mut Entries<'a>,
    key: Value<'a>,
    value: Value<'a>,
) -> Result<(), EvalError> {
    if entries.contains(&key) {
        return Err(EvalError::failed(format!("insert failed: key {key} already exists")));
    }
    entries.set(key, value)
}

fn map_insert<'a>(meter: &mut Meter, _: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let Some(Value::Map(map)) = args.first() else { return Err(EvalError::no_such_overload()) };
    meter.work(map.len() as u64)?;
    let mut entries = map.to_entries()?;
    match args {
        [_, Value::Map(more)] => {
            for key in more.keys() {
                if let Some(value) = more.get(&key) {
                    insert(&mut entries, key, value?)?;
                }
            }
        }
        [_, key, value] => insert(&mut entries, key.clone(), value.clone())?,
        _ => return Err(EvalError::no_such_overload()),
    }
    Ok(Value::Map(Map::new(entries)))
}

/// The position that an index of a list means.
pub(crate) fn index(value: &Value<'_>) -> Result<i64, EvalError> {
    let unsupported = || EvalError::failed(format!("unsupported index value {value} in list"));
    match value {
        Value::Int(at) => Ok(*at),
        Value::Uint(at) => i64::try_from(*at).map_err(|_| unsupported()),
        Value::Double(at) if at.fract() == 0.0 && at.abs() < 9.2e18 => Ok(*at as i64),
        Value::Double(_) => Err(unsupported()),
        other => Err(EvalError::failed(format!("unsupported index type '{}' in list", other.type_name()))),
    }
}

fn wrong_conversion<'a>(from: &str, to: &str) -> Outcome<'a> {
    Err(EvalError::failed(format!("type conversion error from '{from}' to '{to}'")))
}

fn to_bool<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [value @ Value::Bool(_)] => Ok(value.clone()),
        [Value::String(text)] => match text.as_str() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => bool_value(true),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => bool_value(false),
            _ => wrong_conversion("string", "bool"),
        },
        _ => no_overload(call, args),
    }
}

fn to_double<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [value @ Value::Double(_)] => Ok(value.clone()),
        [Value::Int(value)] => Ok(Value::Double(*value as f64)),
        [Value::Uint(value)] => Ok(Value::Double(*value as f64)),
        [Value::String(text)] => match text.parse::<f64>() {
            // What is out of range is an error in Go, not infinity.
            Ok(value) if value.is_finite() || !text.contains(|c: char| c.is_ascii_digit()) => {
                Ok(Value::Double(value))
            }
            _ => wrong_conversion("string", "double"),
        },
        _ => no_overload(call, args),
    }
}

fn to_int<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [value @ Value::Int(_)] => Ok(value.clone()),
        [Value::Uint(value)] => int(i64::try_from(*value).ok()),
        // The bounds themselves do not fit: doubles near them are not exact.
        [Value::Double(value)] => int((value.abs() < 9_223_372_036_854_775_807.0).then_some(*value as i64)),
        [Value::String(text)] => match text.parse() {
            Ok(value) => Ok(Value::Int(value)),
            Err(_) => wrong_conversion("string", "int"),
        },
        [Value::Timestamp(time)] => Ok(Value::Int(time.seconds)),
        [Value::Duration(nanos)] => Ok(Value::Int(*nanos)),
        _ => no_overload(call, args),
    }
}

fn to_uint<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [value @ Value::Uint(_)] => Ok(value.clone()),
        [Value::Int(value)] => uint(u64::try_from(*value).ok()),
        [Value::Double(value)] => {
            uint((*value >= 0.0 && *value < 18_446_744_073_709_551_615.0).then_some(*value as u64))
        }
        [Value::String(text)] if !text.starts_with('+') => match text.parse() {
            Ok(value) => Ok(Value::Uint(value)),
            Err(_) => wrong_conversion("string", "uint"),
        },
        [Value::String(_)] => wrong_conversion("string", "uint"),
        _ => no_overload(call, args),
    }
}

fn to_string<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let [value] = args else { return no_overload(call, args) };
    match as_text(value) {
        Some(text) => Ok(Value::String(text)),
        None if matches!(value, Value::Bytes(_)) => {
            Err(EvalError::failed("invalid UTF-8 in bytes, cannot convert to string"))
        }
        None => no_overload(call, args),
    }
}

/// What `string()` makes of a value.
pub(super) fn as_text<'a>(value: &Value<'a>) -> Option<Text<'a>> {
    let text = match value {
        Value::String(text) => return Some(text.clone()),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Uint(value) => value.to_string(),
        Value::Double(value) => format_double(*value),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.to_owned(),
        Value::Timestamp(moment) => time::format(moment),
        Value::Duration(nanos) => time::format_duration(*nanos),
        Value::Type(name) => return Some(name.clone()),
        Value::Opaque(value) => match &**value {
            Opaque::Ip(ip) => ip.to_string(),
            Opaque::Cidr(ip, bits) => format!("{ip}/{bits}"),
            _ => return None,
        },
        _ => return None,
    };
    Some(Text::Shared(text.into()))
}
