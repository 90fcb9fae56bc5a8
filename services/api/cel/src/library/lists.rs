//! Lists and sets: Kubernetes' own functions and those of cel-go's extensions.

use std::cmp::Ordering;

use super::{Body, no_overload, standard, strings};
use crate::eval::{EvalError, Meter, Outcome, bool_value};
use crate::plan::Call;
use crate::value::{List, Value, compare, equal};

pub(super) const BODIES: &[(&str, Body)] = &[
    ("isSorted", is_sorted),
    ("sum", sum),
    ("min", |meter, call, args| best(meter, call, args, Ordering::Greater)),
    ("max", |meter, call, args| best(meter, call, args, Ordering::Less)),
    ("indexOf", |meter, call, args| index_of(meter, call, args, false)),
    ("lastIndexOf", |meter, call, args| index_of(meter, call, args, true)),
    ("slice", slice),
    ("flatten", |meter, call, args| match args {
        [Value::List(list)] => flattened(meter, list, 1),
        [Value::List(list), Value::Int(depth)] => flattened(meter, list, *depth),
        _ => no_overload(call, args),
    }),
    ("sort", |meter, call, args| match args {
        [Value::List(list)] => sorted(meter, list, list),
        _ => no_overload(call, args),
    }),
    ("@sortByAssociatedKeys", |meter, call, args| match args {
        [Value::List(list), Value::List(keys)] => sorted(meter, list, keys),
        _ => no_overload(call, args),
    }),
    ("lists.range", |_, call, args| match args {
        // What it costs was charged before, so the number is bounded.
        [Value::Int(count)] => Ok(Value::List(List::new((0..*count).map(Value::Int).collect())?)),
        _ => no_overload(call, args),
    }),
    ("reverse", |_, call, args| match args {
        [Value::List(list)] => {
            let mut values: Vec<Value<'_>> = list.iter().collect::<Result<_, _>>()?;
            values.reverse();
            Ok(Value::List(List::new(values)?))
        }
        _ => no_overload(call, args),
    }),
    ("distinct", distinct),
    ("sets.contains", |meter, call, args| match args {
        [Value::List(all), Value::List(some)] => bool_value(contains_all(meter, all, some)?),
        _ => no_overload(call, args),
    }),
    ("sets.equivalent", |meter, call, args| match args {
        [Value::List(one), Value::List(two)] => {
            bool_value(contains_all(meter, one, two)? && contains_all(meter, two, one)?)
        }
        _ => no_overload(call, args),
    }),
    ("sets.intersects", |meter, call, args| match args {
        [Value::List(one), Value::List(two)] => {
            for value in one.iter() {
                if contains(meter, two, &value?)? {
                    return bool_value(true);
                }
            }
            bool_value(false)
        }
        _ => no_overload(call, args),
    }),
];

fn contains(meter: &mut Meter, list: &List<'_>, value: &Value<'_>) -> Result<bool, EvalError> {
    for item in list.iter() {
        if equal(&item?, value, meter)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn contains_all(meter: &mut Meter, all: &List<'_>, some: &List<'_>) -> Result<bool, EvalError> {
    for value in some.iter() {
        if !contains(meter, all, &value?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_sorted<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else { return no_overload(call, args) };
    let mut before: Option<Value<'_>> = None;
    for value in list.iter() {
        meter.work(1)?;
        let value = value?;
        if let Some(before) = before {
            match compare(&before, &value) {
                None => return Err(EvalError::no_such_overload()),
                Some(Ordering::Greater) => return bool_value(false),
                Some(_) => {}
            }
        }
        before = Some(value);
    }
    bool_value(true)
}

fn sum<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else { return no_overload(call, args) };
    let mut sum: Option<Value<'a>> = None;
    for value in list.iter() {
        meter.work(1)?;
        let value = value?;
        sum = Some(match sum {
            None => value,
            Some(sum) => standard::sum(&sum, &value, meter)?,
        });
    }
    // Of nothing, the nought of the type that the list was declared with.
    Ok(sum.unwrap_or(match call.zero {
        "uint" => Value::Uint(0),
        "double" => Value::Double(0.0),
        "duration" => Value::Duration(0),
        _ => Value::Int(0),
    }))
}

/// The one that no other is `worse` for.
fn best<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>], worse: Ordering) -> Outcome<'a> {
    let [Value::List(list)] = args else { return no_overload(call, args) };
    let mut best: Option<Value<'a>> = None;
    for value in list.iter() {
        meter.work(1)?;
        let value = value?;
        best = match best {
            None => Some(value),
            Some(best) => match compare(&best, &value) {
                None => return Err(EvalError::no_such_overload()),
                Some(order) if order == worse => Some(value),
                Some(_) => Some(best),
            },
        };
    }
    best.ok_or_else(|| EvalError::failed(format!("{} called on empty list", call.function)))
}

fn index_of<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>], last: bool) -> Outcome<'a> {
    match args {
        [Value::String(text), Value::String(part)] => strings::position(meter, text, part, None, last),
        [Value::String(text), Value::String(part), Value::Int(from)] => {
            strings::position(meter, text, part, Some(*from), last)
        }
        [Value::List(list), value] => {
            let mut found = -1;
            for (at, item) in list.iter().enumerate() {
                if equal(&item?, value, meter)? {
                    found = i64::try_from(at).unwrap_or(i64::MAX);
                    if !last {
                        break;
                    }
                }
            }
            Ok(Value::Int(found))
        }
        _ => no_overload(call, args),
    }
}

fn slice<'a>(_: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else {
        return no_overload(call, args);
    };
    let wrong = |why: String| Err(EvalError::failed(format!("cannot slice({start}, {end}), {why}")));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return wrong("negative indexes not supported".to_owned());
    };
    if from > to {
        return wrong("start index must be less than or equal to end index".to_owned());
    }
    if to > list.len() {
        return wrong(format!("list is length {}", list.len()));
    }
    let values = (from..to).filter_map(|at| list.get(at)).collect::<Result<Vec<_>, _>>()?;
    Ok(Value::List(List::new(values)?))
}

fn flattened<'a>(meter: &mut Meter, list: &List<'a>, depth: i64) -> Outcome<'a> {
    if depth < 0 {
        return Err(EvalError::failed("level must be non-negative"));
    }
    let mut values = Vec::new();
    flatten_into(meter, list, depth, &mut values)?;
    Ok(Value::List(List::new(values)?))
}

/// Recurses no deeper than values can be nested.
fn flatten_into<'a>(
    meter: &mut Meter,
    list: &List<'a>,
    depth: i64,
    values: &mut Vec<Value<'a>>,
) -> Result<(), EvalError> {
    for value in list.iter() {
        meter.work(4)?;
        match value? {
            Value::List(inner) if depth > 0 => {
                crate::stack::deep(|| flatten_into(meter, &inner, depth - 1, values))?
            }
            other => values.push(other),
        }
    }
    Ok(())
}

fn sorted<'a>(meter: &mut Meter, list: &List<'a>, keys: &List<'a>) -> Outcome<'a> {
    if list.len() != keys.len() {
        return Err(EvalError::failed(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            list.len(),
            keys.len()
        )));
    }
    if list.is_empty() {
        return Ok(Value::List(list.clone()));
    }
    let mut pairs = Vec::with_capacity(list.len());
    for (value, key) in list.iter().zip(keys.iter()) {
        meter.work(1)?;
        pairs.push((key?, value?));
    }
    let first = pairs.first().map_or("", |(key, _)| key.type_name()).to_owned();
    if !matches!(
        first.as_str(),
        "int"
            | "uint"
            | "double"
            | "bool"
            | "string"
            | "bytes"
            | "google.protobuf.Timestamp"
            | "google.protobuf.Duration"
    ) {
        return Err(EvalError::failed("list elements must be comparable"));
    }
    if pairs.iter().any(|(key, _)| key.type_name() != first) {
        return Err(EvalError::failed("list elements must have the same type"));
    }
    // NaN goes first, so that there is an order at all.
    let rank = |value: &Value<'_>| !matches!(value, Value::Double(double) if double.is_nan());
    pairs.sort_by(|(one, _), (two, _)| compare(one, two).unwrap_or_else(|| rank(one).cmp(&rank(two))));
    Ok(Value::List(List::new(pairs.into_iter().map(|(_, value)| value).collect())?))
}

fn distinct<'a>(meter: &mut Meter, call: &Call, args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::List(list)] = args else { return no_overload(call, args) };
    let mut values: Vec<Value<'a>> = Vec::new();
    'next: for value in list.iter() {
        let value = value?;
        for known in &values {
            if equal(known, &value, meter)? {
                continue 'next;
            }
        }
        values.push(value);
    }
    Ok(Value::List(List::new(values)?))
}
