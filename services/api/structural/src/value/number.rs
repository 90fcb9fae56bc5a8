//! Bounds and multiples of numbers.

use serde_json::{Number, Value};

use super::{At, Flaw, Found, types};
use crate::bounds::Work;
use crate::schema::Schema;

/// Whether a float is an integer, give or take what computing with floats loses.
pub(crate) fn is_whole(float: f64) -> bool {
    const LARGEST: f64 = 9_007_199_254_740_991.0;
    const CLOSE: f64 = 1e-9;
    if !float.is_finite() || float.abs() > LARGEST {
        return false;
    }
    let rounded = float.round();
    float == rounded || (rounded != 0.0 && (float - rounded).abs() < CLOSE * rounded.abs())
}

/// As Go prints a float (`%v`).
pub(crate) fn shown(float: f64) -> String {
    let size = float.abs();
    if size != 0.0 && !(1e-4..1e21).contains(&size) {
        let text = format!("{float:e}");
        return match text.split_once('e') {
            Some((digits, exponent)) => {
                let (sign, exponent) = match exponent.strip_prefix('-') {
                    Some(exponent) => ('-', exponent),
                    None => ('+', exponent),
                };
                format!("{digits}e{sign}{exponent:0>2}")
            }
            None => text,
        };
    }
    float.to_string()
}

/// What the type and format of the schema allow a number to be.
struct Range {
    integer: bool,
    /// Empty unless it belongs to the one type that there is.
    format: String,
    kind: &'static str,
}

impl Range {
    /// Whether the number can be said in this type, and what is wrong if not.
    fn check(&self, number: Either, what: &str, at: &At<'_>) -> Option<Flaw> {
        let fits = if self.integer {
            let integer = match number {
                Either::Integer(integer) => Some(integer),
                // Written out without an exponent, and read again.
                Either::Float(float) => float.to_string().parse().ok(),
            };
            match self.format.as_str() {
                "int32" => integer.is_some_and(|integer| i32::try_from(integer).is_ok()),
                _ => integer.is_some(),
            }
        } else if self.format == "float" {
            (number.float() as f32).is_finite()
        } else {
            true
        };
        if fits {
            return None;
        }
        let (kind, path) = (self.kind, at.path());
        Some(Flaw::general(match self.format.as_str() {
            "" => format!("{what} value must be of type {kind} (default format) in {path}"),
            format => format!("{what} value must be of type {kind} with format {format} in {path}"),
        }))
    }
}

#[derive(Clone, Copy)]
enum Either {
    Integer(i64),
    Float(f64),
}

impl Either {
    fn float(self) -> f64 {
        match self {
            Either::Integer(integer) => integer as f64,
            Either::Float(float) => float,
        }
    }
    fn json(self) -> Value {
        match self {
            Either::Integer(integer) => Value::from(integer),
            Either::Float(float) => Value::from(float),
        }
    }
}

pub(super) fn validate(
    number: &Number,
    schema: &Schema,
    format: &str,
    at: &At<'_>,
    found: &mut Found,
    work: &Work,
) {
    let (Some(value), kinds) =
        (number.as_i64().map(Either::Integer).or_else(|| number.as_f64().map(Either::Float)), types(schema))
    else {
        return;
    };
    let range = match kinds {
        ["integer"] => Range { integer: true, format: format.to_owned(), kind: "integer" },
        ["number"] => Range { integer: false, format: format.to_owned(), kind: "number" },
        _ => Range { integer: false, format: String::new(), kind: "" },
    };
    if !range.integer
        && range.format.is_empty()
        && schema.multiple_of.is_none()
        && schema.maximum.is_none()
        && schema.minimum.is_none()
    {
        return;
    }
    if let Some(flaw) = range.check(value, "Checked", at) {
        found.add(flaw, work);
    }
    // A bound that the type cannot hold is compared as a float.
    let native = |bound: f64, what: &str, found: &mut Found| match range.check(Either::Float(bound), what, at)
    {
        None => value,
        Some(flaw) => {
            found.add(flaw, work);
            Either::Float(value.float())
        }
    };
    if let Some(factor) = schema.multiple_of {
        let value = native(factor, "MultipleOf", found);
        let (multiple, positive, factor_shown) = match value {
            Either::Integer(integer) => {
                let factor = factor as i64;
                let multiple = factor > 0 && integer % factor == 0;
                (multiple, factor > 0, Either::Integer(factor))
            }
            Either::Float(float) => {
                let times = if factor < 1.0 { 1.0 / factor * float } else { float / factor };
                (is_whole(times), factor > 0.0, Either::Float(factor))
            }
        };
        let text = print(factor_shown);
        if !positive {
            let path = at.path();
            let message = format!("factor MultipleOf declared for {path} must be positive: {text}");
            found.add(Flaw::invalid(&path, factor_shown.json(), message), work);
        } else if !multiple {
            let path = at.path();
            let message = format!("{path} in body should be a multiple of {text}");
            found.add(Flaw::invalid(&path, value.json(), message), work);
        }
    }
    if let Some(most) = schema.maximum {
        let value = native(most, "Maximum boundary", found);
        bound(value, most, schema.exclusive_maximum, Side::Most, at, found, work);
    }
    if let Some(least) = schema.minimum {
        let value = native(least, "Minimum boundary", found);
        bound(value, least, schema.exclusive_minimum, Side::Least, at, found, work);
    }
}

fn print(number: Either) -> String {
    match number {
        Either::Integer(integer) => integer.to_string(),
        Either::Float(float) => shown(float),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Most,
    Least,
}

fn bound(
    value: Either,
    bound: f64,
    exclusive: bool,
    side: Side,
    at: &At<'_>,
    found: &mut Found,
    work: &Work,
) {
    let (order, bound_shown) = match value {
        // An integer is compared with the integer part of the bound.
        Either::Integer(integer) => (Some(integer.cmp(&(bound as i64))), Either::Integer(bound as i64)),
        Either::Float(float) => (float.partial_cmp(&bound), Either::Float(bound)),
    };
    let beyond = match side {
        Side::Most => std::cmp::Ordering::Greater,
        Side::Least => std::cmp::Ordering::Less,
    };
    if order != Some(beyond) && !(exclusive && order == Some(std::cmp::Ordering::Equal)) {
        return;
    }
    let words = match (side, exclusive) {
        (Side::Most, false) => "less than or equal to",
        (Side::Most, true) => "less than",
        (Side::Least, false) => "greater than or equal to",
        (Side::Least, true) => "greater than",
    };
    let path = at.path();
    let message = format!("{path} in body should be {words} {}", print(bound_shown));
    found.add(Flaw::invalid(&path, value.json(), message), work);
}
