//! Quantities, and what semantic versions are compared by under the same names.

use std::cmp::Ordering;

use api_machinery::{Quantity, QuantityError};

use super::{Body, no_overload};
use crate::eval::{EvalError, Outcome, bool_value};
use crate::plan::Call;
use crate::value::{Opaque, Value};

pub(super) const BODIES: &[(&str, Body)] = &[
    ("quantity", |_, call, args| match args {
        [Value::String(text)] => match parse(text) {
            Ok(quantity) => Ok(Value::opaque(Opaque::Quantity(quantity))),
            Err(err) => Err(EvalError::failed(err)),
        },
        _ => no_overload(call, args),
    }),
    ("isQuantity", |_, call, args| match args {
        [Value::String(text)] => bool_value(parse(text).is_ok()),
        _ => no_overload(call, args),
    }),
    ("sign", |_, call, args| match quantity(args.first()) {
        Some(quantity) => Ok(Value::Int(match quantity.cmp(&Quantity::ZERO) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        })),
        None => no_overload(call, args),
    }),
    ("isGreaterThan", |_, call, args| match order(args) {
        Some(order) => bool_value(order == Ordering::Greater),
        None => no_overload(call, args),
    }),
    ("isLessThan", |_, call, args| match order(args) {
        Some(order) => bool_value(order == Ordering::Less),
        None => no_overload(call, args),
    }),
    ("compareTo", |_, call, args| match order(args) {
        Some(order) => Ok(Value::Int(order as i64)),
        None => no_overload(call, args),
    }),
    ("asApproximateFloat", |_, call, args| match quantity(args.first()) {
        Some(quantity) => Ok(Value::Double(quantity.ratio(Quantity::whole(1)))),
        None => no_overload(call, args),
    }),
    ("asInteger", |_, call, args| match quantity(args.first()) {
        Some(quantity) if is_integer(quantity) => Ok(Value::Int(quantity.value())),
        Some(_) => Err(EvalError::failed("cannot convert value to integer")),
        None => no_overload(call, args),
    }),
    ("isInteger", |_, call, args| match quantity(args.first()) {
        Some(quantity) => bool_value(is_integer(quantity)),
        None => no_overload(call, args),
    }),
    ("add", |_, call, args| combine(call, args, Quantity::plus)),
    ("sub", |_, call, args| combine(call, args, Quantity::minus)),
];

fn parse(text: &str) -> Result<Quantity, String> {
    // Upstream takes no blanks here, where other places of Kubernetes do; and a letter that no suffix has is a
    // matter of form to it.
    let allowed = |c: char| c.is_ascii_digit() || "+-.eEinumkKMGTP".contains(c);
    if text.is_empty() || !text.chars().all(allowed) {
        return Err(QuantityError::Form.to_string());
    }
    Quantity::parse(text).map_err(|err| err.to_string())
}

/// Upstream keeps numbers of more than 18 digits in another form, which it never takes for an integer. The
/// largest number is what still larger ones are capped to.
fn is_integer(quantity: &Quantity) -> bool {
    quantity.is_whole() && quantity.value() < i64::MAX && quantity.value() > -i64::MAX
}

fn quantity<'v>(value: Option<&'v Value<'_>>) -> Option<&'v Quantity> {
    match value {
        Some(Value::Opaque(value)) => match &**value {
            Opaque::Quantity(quantity) => Some(quantity),
            _ => None,
        },
        _ => None,
    }
}

fn order(args: &[Value<'_>]) -> Option<Ordering> {
    let [Value::Opaque(one), Value::Opaque(two)] = args else { return None };
    match (&**one, &**two) {
        (Opaque::Quantity(one), Opaque::Quantity(two)) => Some(one.cmp(two)),
        (Opaque::Semver(one), Opaque::Semver(two)) => Some(one.cmp(two)),
        _ => None,
    }
}

fn combine<'a>(call: &Call, args: &[Value<'a>], with: fn(Quantity, Quantity) -> Quantity) -> Outcome<'a> {
    let [one, two] = args else { return no_overload(call, args) };
    let other = match two {
        Value::Int(whole) => Some(Quantity::whole(*whole)),
        two => quantity(Some(two)).copied(),
    };
    match (quantity(Some(one)), other) {
        (Some(one), Some(other)) => Ok(Value::opaque(Opaque::Quantity(with(*one, other)))),
        _ => no_overload(call, args),
    }
}
