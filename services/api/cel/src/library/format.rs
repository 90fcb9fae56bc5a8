//! `'%s has %d'.format([...])`, as cel-go's strings extension of version 2 does it, for the locale en_US.

use super::{MAX_TEXT_BYTES, standard};
use crate::eval::{EvalError, Meter};
use crate::value::{List, Value, quote_go};

/// Digits after the point that may be asked for; more than any double has.
const MAX_PRECISION: usize = 1000;

fn check_length(bytes: usize) -> Result<(), EvalError> {
    if bytes > MAX_TEXT_BYTES { Err(EvalError::failed("resulting text is too long")) } else { Ok(()) }
}

/// One clause of a format: `%.3f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clause {
    pub verb: char,
    pub precision: Option<usize>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Piece<'t> {
    Text(&'t str),
    Clause(Clause),
}

/// The pieces up to the first that is wrong, and what is wrong with it.
pub(crate) fn pieces(text: &str) -> (Vec<Piece<'_>>, Option<String>) {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        if at > 0 {
            pieces.push(Piece::Text(&rest[..at]));
        }
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            pieces.push(Piece::Text("%"));
            rest = after;
            continue;
        }
        match clause(rest) {
            Ok((clause, after)) => {
                pieces.push(Piece::Clause(clause));
                rest = after;
            }
            Err(message) => return (pieces, Some(message)),
        }
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    (pieces, None)
}

fn clause(rest: &str) -> Result<(Clause, &str), String> {
    const WRONG: &str = "could not parse formatting clause";
    let mut precision = None;
    let mut rest = rest;
    if rest.is_empty() {
        return Err("unexpected end of string".to_owned());
    }
    if let Some(digits) = rest.strip_prefix('.') {
        let Some(end) = digits.find(|c: char| !c.is_ascii_digit()) else {
            return Err(format!(
                "{WRONG}: error while parsing precision: could not find end of precision specifier"
            ));
        };
        let number = digits[..end].parse::<usize>().ok().filter(|number| *number <= MAX_PRECISION);
        precision = Some(number.ok_or_else(|| {
            let spelt = quote_go(&digits[..end]);
            format!("{WRONG}: error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing {spelt}: invalid syntax")
        })?);
        rest = &digits[end..];
    }
    let verb = rest.chars().next().unwrap_or('\0');
    if !"sdfebxXo".contains(verb) {
        return Err(format!("{WRONG}: unrecognized formatting clause {}", quote_go(&verb.to_string())));
    }
    Ok((Clause { verb, precision }, &rest[verb.len_utf8()..]))
}

/// What a clause takes, for the message when it gets something else.
pub(crate) fn refusal(verb: char, given: &str) -> String {
    let takes = match verb {
        's' => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
        }
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'o' => "octal clause can only be used on integers",
        _ => "only integers, byte buffers, and strings can be formatted as hex",
    };
    format!("{takes}, was given {given}")
}

pub(super) fn format(text: &str, args: &List<'_>, meter: &mut Meter) -> Result<String, EvalError> {
    let (pieces, wrong) = pieces(text);
    let mut out = String::new();
    let mut next = 0;
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Clause(clause) => {
                let arg = args
                    .get(next)
                    .unwrap_or_else(|| Err(EvalError::failed(format!("index {next} out of range"))))?;
                next += 1;
                write(&mut out, clause, &arg, meter)?;
            }
        }
        check_length(out.len())?;
    }
    meter.produce(out.len())?;
    match wrong {
        Some(_) if args.get(next).is_none() => Err(EvalError::failed(format!("index {next} out of range"))),
        Some(message) => Err(EvalError::failed(message)),
        None => Ok(out),
    }
}

fn write(out: &mut String, clause: Clause, arg: &Value<'_>, meter: &mut Meter) -> Result<(), EvalError> {
    let refused =
        || EvalError::failed(format!("error during formatting: {}", refusal(clause.verb, arg.type_name())));
    let precision = clause.precision.unwrap_or(6);
    let double = match arg {
        Value::Double(value) => Some(*value),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    };
    let text = match (clause.verb, arg) {
        ('s', arg) => return show(out, arg, meter, &refused),
        ('d', Value::Int(value)) => value.to_string(),
        ('d', Value::Uint(value)) => value.to_string(),
        ('f', _) => fixed(double.ok_or_else(refused)?, precision),
        ('e', _) => scientific(double.ok_or_else(refused)?, precision),
        ('b', Value::Int(value)) => signed(*value, |value| format!("{value:b}")),
        ('b', Value::Uint(value)) => format!("{value:b}"),
        ('b', Value::Bool(value)) => u8::from(*value).to_string(),
        ('o', Value::Int(value)) => signed(*value, |value| format!("{value:o}")),
        ('o', Value::Uint(value)) => format!("{value:o}"),
        ('x', Value::Int(value)) => signed(*value, |value| format!("{value:x}")),
        ('X', Value::Int(value)) => signed(*value, |value| format!("{value:X}")),
        ('x', Value::Uint(value)) => format!("{value:x}"),
        ('X', Value::Uint(value)) => format!("{value:X}"),
        ('x' | 'X', Value::String(_) | Value::Bytes(_)) => {
            let bytes = match arg {
                Value::String(text) => text.as_bytes(),
                Value::Bytes(bytes) => bytes,
                _ => &[],
            };
            check_length(bytes.len().saturating_mul(2))?;
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            if clause.verb == 'X' { hex.to_uppercase() } else { hex }
        }
        _ => return Err(refused()),
    };
    out.push_str(&text);
    Ok(())
}

fn signed(value: i64, digits: impl Fn(u64) -> String) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", digits(value.unsigned_abs()))
}

/// With a comma between thousands.
fn fixed(value: f64, precision: usize) -> String {
    if !value.is_finite() {
        return special(value);
    }
    let plain = format!("{:.precision$}", value.abs());
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let mut out = String::new();
    if value.is_sign_negative() {
        out.push('-');
    }
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if precision > 0 {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// `3.140000×10⁰⁰`.
fn scientific(value: f64, precision: usize) -> String {
    if !value.is_finite() {
        return special(value);
    }
    let plain = format!("{value:.precision$e}");
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((&plain, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ("\u{207b}", digits),
        None => ("", exponent),
    };
    let raised: String = format!("{digits:0>2}")
        .chars()
        .map(|digit| match digit {
            '1' => '\u{b9}',
            '2' => '\u{b2}',
            '3' => '\u{b3}',
            '0' => '\u{2070}',
            digit => char::from_u32(0x2070 + digit.to_digit(10).unwrap_or(0)).unwrap_or(digit),
        })
        .collect();
    format!("{mantissa}×10{sign}{raised}")
}

fn special(value: f64) -> String {
    if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "∞"
    } else {
        "-∞"
    }
    .to_owned()
}

/// `%s`: what is in a list or map is written as a literal of CEL would be.
fn show(
    out: &mut String,
    arg: &Value<'_>,
    meter: &mut Meter,
    refused: &dyn Fn() -> EvalError,
) -> Result<(), EvalError> {
    meter.work(1)?;
    check_length(out.len())?;
    crate::stack::deep(|| show_parts(out, arg, meter, refused))
}

fn show_parts(
    out: &mut String,
    arg: &Value<'_>,
    meter: &mut Meter,
    refused: &dyn Fn() -> EvalError,
) -> Result<(), EvalError> {
    match arg {
        Value::Null => out.push_str("null"),
        Value::List(list) => {
            out.push('[');
            for (at, item) in list.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                literal(out, &item?, meter)?;
            }
            out.push(']');
        }
        Value::Map(map) => {
            let mut pairs = Vec::new();
            for key in map.keys() {
                if !matches!(key, Value::String(_) | Value::Bool(_) | Value::Int(_) | Value::Uint(_)) {
                    let message = format!("no formatting function for map key of type {}", key.type_name());
                    return Err(EvalError::failed(format!("error during formatting: {message}")));
                }
                let (mut left, mut right) = (String::new(), String::new());
                literal(&mut left, &key, meter)?;
                if let Some(value) = map.get(&key) {
                    literal(&mut right, &value?, meter)?;
                }
                pairs.push((left, right));
            }
            pairs.sort();
            out.push('{');
            for (at, (key, value)) in pairs.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                out.push_str(key);
                out.push(':');
                out.push_str(value);
                check_length(out.len())?;
            }
            out.push('}');
        }
        Value::Opaque(_) | Value::Struct(_) | Value::Optional(_) => return Err(refused()),
        other => match standard::as_text(other) {
            Some(text) => out.push_str(&text),
            None => return Err(refused()),
        },
    }
    Ok(())
}

fn literal(out: &mut String, value: &Value<'_>, meter: &mut Meter) -> Result<(), EvalError> {
    let refused = || {
        let message = format!("no formatting function for {}", value.type_name());
        EvalError::failed(format!("error during formatting: {message}"))
    };
    match value {
        Value::String(text) => out.push_str(&quote_go(text)),
        Value::Bytes(bytes) => {
            out.push('b');
            out.push_str(&quote_go(&String::from_utf8_lossy(bytes)));
        }
        Value::Double(double) if !double.is_finite() => {
            out.push_str(&quote_go(&crate::value::format_double(*double)))
        }
        Value::Double(double) => out.push_str(&format!("{double:.6}")),
        Value::Timestamp(_) | Value::Duration(_) => {
            let name = if matches!(value, Value::Duration(_)) { "duration" } else { "timestamp" };
            let text = standard::as_text(value).ok_or_else(refused)?;
            out.push_str(&format!("{name}({})", quote_go(&text)));
        }
        other => return show(out, other, meter, &refused),
    }
    Ok(())
}
